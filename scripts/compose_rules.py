"""What has to hold for the services of a compose file, each rule a function that yields sentences."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.compose_text import variables_of

Services = Mapping[str, Mapping[str, Any]]
_SECRET = re.compile(r"PASSWORD|SECRET|FERNET|(^|_)KEY$|TOKEN")
_DURATION = re.compile(r"(\d+(ms|s|m|h))+$")
_OWN_KAFKA = frozenset(
    ("KAFKA_HEAP_OPTS", "KAFKA_OPTS", "KAFKA_LOG4J_OPTS", "KAFKA_JVM_PERFORMANCE_OPTS", "CLUSTER_ID")
)
_POSTGRES = frozenset(("POSTGRES_USER", "POSTGRES_PASSWORD", "POSTGRES_DB", "POSTGRES_INITDB_ARGS", "PGDATA"))
_SPARK = frozenset(
    ("SPARK_DAEMON_MEMORY", "SPARK_DAEMON_JAVA_OPTS", "SPARK_MASTER_OPTS", "SPARK_WORKER_OPTS", "SPARK_LOCAL_IP",
     "SPARK_PUBLIC_DNS", "SPARK_NO_DAEMONIZE", "SPARK_WORKER_DIR", "SPARK_LOCAL_DIRS")
)  # fmt: skip
_STORE = frozenset(
    ("ROOT_ACCESS_KEY", "ROOT_SECRET_KEY", "VGW_PORT", "VGW_REGION", "VGW_HEALTH", "VGW_QUIET", "VGW_IAM_DIR",
     "VGW_KEEP_ALIVE", "VGW_LOG_LEVEL", "VGW_ADMIN_PORT", "VGW_CERT", "VGW_KEY")
)  # fmt: skip
_NATURES = {"boolean": re.compile(r"(?i)(true|false|t|f|1|0|yes|no|on|off)$"), "integer": re.compile(r"-?\d+$"),
            "float": re.compile(r"-?\d+(\.\d+)?$")}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Known:
    """What the names of environment variables are compared with."""

    airflow: Mapping[tuple[str, str], str]
    """Section and option -> type."""
    stateflow: Collection[str]
    """Options, by their names in the environment."""
    passwords: Collection[str]
    """Variables that the first service of Airflow reads itself."""


def pinned(image: str) -> str:
    """What is wrong with the name of an image; empty for nothing."""
    if "@sha256:" in image:
        return "" if re.search(r"@sha256:[0-9a-f]{64}$", image) else "has a digest that is none"
    name = image.rpartition("/")[2]
    _, colon, tag = name.partition(":")
    if not colon:
        return "has no tag: the newest would be taken"
    if not re.match(r"v?\d+\.\d+", tag):
        return f"is pinned to {tag!r}, which is not a version"
    return ""


def images(services: Services) -> Iterator[str]:
    for name, service in services.items():
        image = service.get("image")
        if not image:
            yield f"service {name} has no image"
        elif wrong := pinned(str(image)):
            yield f"service {name}: image {image} {wrong}"


def builds(services: Services, folder: Path) -> Iterator[tuple[Path, Path]]:
    """Dockerfiles that services are built from, each with its context."""
    seen = set()
    for service in services.values():
        if build := service.get("build"):
            build_options = {"context": build} if isinstance(build, str) else build
            context = (folder / build_options.get("context", ".")).resolve()
            seen.add((context / build_options.get("dockerfile", "Dockerfile"), context))
    yield from sorted(seen)


def ports(services: Services) -> Iterator[str]:
    for name, service in services.items():
        for port in service.get("ports", ()):
            host = (
                port.get("host_ip", "")
                if isinstance(port, dict)
                else str(port).rpartition(":")[0].rpartition(":")[0]
            )
            if host not in ("127.0.0.1", "[::1]"):
                yield f"service {name}: port {port} is open to the network: write 127.0.0.1:{port}"
        if service.get("network_mode") == "host":
            yield f"service {name} shares the host's network, where all its ports are open"
        if service.get("privileged"):
            yield f"service {name} is privileged"


def dependencies(services: Services) -> Iterator[str]:
    edges: dict[str, list[str]] = {}
    for name, service in services.items():
        needs = service.get("depends_on", {})
        conditions = {each: {} for each in needs} if isinstance(needs, list) else needs
        edges[name] = [each for each in conditions if each in services]
        for other, how in conditions.items():
            if other not in services:
                yield f"service {name} depends on {other}, which does not exist"
                continue
            condition = how.get("condition", "service_started")
            if condition == "service_healthy" and "healthcheck" not in services[other]:
                yield f"service {name} waits until {other} is healthy, which has no healthcheck"
            if condition == "service_completed_successfully" and _goes_on(services[other]):
                yield f"service {name} waits for the end of {other}, which is started again when it ends"
            if condition == "service_started" and _goes_on(services[other]):
                yield f"service {name} only waits until {other} has been started: use condition: service_healthy"
    if circle := _circle(edges):
        yield f"services depend on each other in a circle: {' -> '.join(circle)}"


def healthchecks(services: Services) -> Iterator[str]:
    for name, service in services.items():
        check = service.get("healthcheck")
        if check is None or check.get("disable"):
            if _goes_on(service):
                yield f"service {name} has no healthcheck"
            continue
        test = check.get("test")
        if not test or (isinstance(test, list) and (test[0] not in ("CMD", "CMD-SHELL") or len(test) < 2)):
            yield f"service {name}: its healthcheck tests nothing"
        missing = [key for key in ("interval", "timeout", "retries") if key not in check]
        if missing:
            yield f"service {name}: its healthcheck does not say {', '.join(missing)}"
        if not str(check.get("retries", 1)).isdigit():
            yield f"service {name}: its retries are no number"
        for key in ("interval", "timeout", "start_period"):
            if key in check and not _DURATION.match(str(check[key])):
                yield f"service {name}: its {key} {str(check[key])!r} is no duration, such as 15s"


def volumes(document: Mapping[str, Any], folder: Path) -> Iterator[str]:
    declared, used = set(document.get("volumes") or {}), set()
    for name, service in document["services"].items():
        for volume in service.get("volumes", ()):
            source = volume.get("source", "") if isinstance(volume, dict) else str(volume).partition(":")[0]
            if source.startswith((".", "/", "~")):
                if not (folder / source).exists():
                    yield f"service {name}: {source} does not exist"
                elif not (isinstance(volume, dict) or str(volume).endswith(":ro")):
                    yield f"service {name}: {source} could be written to from inside: end it with :ro"
            else:
                used.add(source)
                if source not in declared:
                    yield f"service {name}: volume {source} is not declared"
    for name in sorted(declared - used):
        yield f"volume {name} is used by no service"


def secrets(raw: Mapping[str, Any], example: Mapping[str, str]) -> Iterator[str]:
    """Of the text before variables are put in: no password stands in it, and each one comes from .env."""
    names_used = set()
    for name, service in raw["services"].items():
        for variable, value in (service.get("environment") or {}).items():
            references = list(variables_of(value))
            if _SECRET.search(variable) and not variable.endswith("_FILE") and not references:
                yield f"service {name}: {variable} stands in the file: take it from .env, ${{NAME:?...}}"
    for variable, how, rest in variables_of(raw):
        names_used.add(variable)
        if how not in ("?", ":?"):
            default = f"has the default {rest!r}" if rest else "may be missing"
            yield f"variable {variable} {default}: write ${{{variable}:?run make docker-env}}"
        if variable not in example:
            yield f"variable {variable} is not in .env.example"
    for variable, value in example.items():
        if variable not in names_used:
            yield f".env.example has {variable}, which nothing uses"
        if value:
            yield f".env.example has a value for {variable}: everybody would have the same secret"


def environments(services: Services, known: Known) -> Iterator[str]:
    for name, service in services.items():
        environment = service.get("environment") or {}
        if not isinstance(environment, dict):
            yield f"service {name}: write its environment as a mapping"
            continue
        for variable, value in environment.items():
            if problem := _variable(variable, "" if value is None else str(value), known):
                yield f"service {name}: {problem}"
        if "KAFKA_LISTENERS" in environment:
            yield from (f"service {name}: {problem}" for problem in _kafka(name, environment))


def addresses(services: Services) -> Iterator[str]:
    """`//host:port` and `@host:port` in environments and commands lead to services."""
    for name, service in services.items():
        texts = [str(value) for value in (service.get("environment") or {}).values()]
        command = service.get("command") or ""
        texts += command if isinstance(command, list) else [str(command)]
        for text in texts:
            for host, port in re.findall(r"(?://|@)([a-z][a-z0-9-]*):(\d+)(?![\w@])", text):
                if host not in services and host != "localhost":
                    yield f"service {name}: {host}:{port} is no service of this file"


def _variable(variable: str, value: str, known: Known) -> str:
    if variable.startswith("AIRFLOW__"):
        section, _, option = variable.removeprefix("AIRFLOW__").lower().partition("__")
        nature = known.airflow.get((section, option.removesuffix("_cmd").removesuffix("_secret")))
        nature = known.airflow.get((section, option), nature)
        if nature is None:
            return f"{variable} is no option of Airflow"
        pattern = _NATURES.get(nature)
        return (
            f"{variable} has to be a {nature}, not {value!r}" if pattern and not pattern.match(value) else ""
        )
    if variable.startswith("AIRFLOW_CONN_"):
        return _connection(variable, value, known)
    if variable.startswith("AIRFLOW_VAR_") or variable in known.passwords:
        return ""
    if variable.startswith("STATEFLOW_"):
        fine = variable in known.stateflow
        return "" if fine else f"{variable} is no option of Stateflow: docs/configuration.md lists them"
    if variable.startswith("KAFKA_") or variable in _OWN_KAFKA | _POSTGRES | _SPARK | _STORE:
        return ""
    return f"nothing here reads {variable}"


def _connection(variable: str, value: str, known: Known) -> str:
    try:
        document = json.loads(value)
    except ValueError as error:
        return f"{variable} is no JSON: {error}"
    if not document.get("conn_type"):
        return f"{variable} does not say its conn_type"
    if document["conn_type"] == "stateflow":
        extra = document.get("extra") or {}
        if not (extra.get("checkpoint_dir") or document.get("host")):
            return f"{variable} does not say its checkpoint_dir"
        wrong = [key for key in extra if key not in ("checkpoint_dir", "storage_options", "options")]
        wrong += [
            key for key in extra.get("options") or {} if f"STATEFLOW_{key.upper()}" not in known.stateflow
        ]
        if wrong:
            return f"{variable}: {wrong[0]} is nothing that a connection has"
    return ""


def _kafka(name: str, environment: Mapping[str, Any]) -> Iterator[str]:
    """KRaft, one node: listeners, their protocols and the controllers belong together."""
    listeners = [each.partition("://")[0] for each in str(environment["KAFKA_LISTENERS"]).split(",")]
    mapped = dict(
        each.partition(":")[::2]
        for each in str(environment.get("KAFKA_LISTENER_SECURITY_PROTOCOL_MAP", "")).split(",")
    )
    for listener in listeners:
        if listener not in mapped:
            yield f"listener {listener} has no protocol in KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"
    for key in ("KAFKA_CONTROLLER_LISTENER_NAMES", "KAFKA_INTER_BROKER_LISTENER_NAME"):
        if environment.get(key) not in listeners:
            yield f"{key} names {environment.get(key)}, which is not among its listeners"
    advertised = [
        each.partition("://")[0] for each in str(environment.get("KAFKA_ADVERTISED_LISTENERS", "")).split(",")
    ]
    for listener in set(advertised) - set(listeners):
        yield f"listener {listener} is advertised, but there is none"
    node, _, where = str(environment.get("KAFKA_CONTROLLER_QUORUM_VOTERS", "")).partition("@")
    if node != str(environment.get("KAFKA_NODE_ID")) or where.partition(":")[0] != name:
        yield f"KAFKA_CONTROLLER_QUORUM_VOTERS names {node}@{where}, not this node"


def _goes_on(service: Mapping[str, Any]) -> bool:
    return service.get("restart", "no") not in ("no", False)


def _circle(edges: Mapping[str, list[str]]) -> list[str]:
    finished: set[str] = set()

    def walk(name: str, above: list[str]) -> list[str]:
        if name in above:
            return [*above[above.index(name) :], name]
        if name in finished:
            return []
        for other in edges[name]:
            if cycle := walk(other, [*above, name]):
                return cycle
        finished.add(name)
        return []

    return next((cycle for name in edges if (cycle := walk(name, []))), [])
