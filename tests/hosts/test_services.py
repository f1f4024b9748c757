"""The files that keep a host as a service: each tells the real command what it takes, and what belongs together is the same."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml

from stateflow.cli.main import app
from tests.composed import command, environment, services

DOCKER = Path(__file__).resolve().parents[2] / "docker"
UNIT = DOCKER / "systemd" / "stateflow-host@.service"
MANIFEST = DOCKER / "kubernetes" / "warm-host.yaml"


def understood(words: list[str]) -> dict[str, Any]:
    """What the command line makes of the words behind `stateflow host start` or `show`."""
    assert Path(words[0]).name == "stateflow", words
    found: Any = typer.main.get_command(app)
    context = click.Context(found)
    for word in words[1:3]:
        found = found.get_command(context, word)
        assert found is not None, f"there is no command {word!r}"
    return dict(found.make_context(words[2], words[3:]).params)


def unit() -> configparser.ConfigParser:
    read = configparser.ConfigParser(strict=False, interpolation=None)
    read.optionxform = str  # type: ignore[method-assign,assignment]
    read.read_string(UNIT.read_text(encoding="utf-8"))
    return read


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))["spec"]["template"]["spec"]
    return spec


def test_the_unit_starts_a_host_that_stays_in_its_foreground() -> None:
    service = unit()["Service"]
    given = dict(re.findall(r"(HOST_\w+)=(\S*)", service["Environment"]))
    line = re.sub(r"\$\{?(\w+)\}?", lambda found: given[found[1]], service["ExecStart"])
    said = understood(shlex.split(line.replace("%i", "team")))
    assert (said["name"], said["foreground"], said["runs"], said["memory"]) == ("team", True, 4, "2g")
    assert said["master"] == "local[*]"


def test_the_unit_lets_runs_end_their_batch() -> None:
    service = unit()["Service"]
    # Only the keeper gets the signal: it tells runs to end after their batch, and ends Spark last.
    assert (service["KillMode"], service["KillSignal"]) == ("mixed", "SIGTERM")
    assert service["Restart"] == "always"


def test_a_pod_has_a_worker_and_its_host_from_one_image_with_one_folder_as_one_user() -> None:
    worker, host = pod()["containers"]
    assert worker["args"][:3] == ["airflow", "celery", "worker"]
    for same in ("image", "envFrom", "volumeMounts", "securityContext"):
        assert worker[same] == host[same], same
    said = understood(host["args"])
    assert (said["name"], said["foreground"]) == ("team", True)
    for probe in ("startupProbe", "readinessProbe"):
        asked = understood(host[probe]["exec"]["command"])
        assert (asked["name"], asked["ready"]) == ("team", True)
    cache = re.search(r"STATEFLOW_CACHE_DIR=(\S+)", (DOCKER / "airflow" / "Dockerfile").read_text())
    assert cache is not None
    mounts = {each["name"]: each for each in host["volumeMounts"]}
    assert mounts["hosts"]["mountPath"] == f"{cache[1]}/hosts"
    assert {each["name"] for each in pod()["volumes"]} == set(mounts)


def test_the_manifest_has_only_fields_that_kubernetes_knows() -> None:
    client = pytest.importorskip("kubernetes.client")

    def misfits(body: Any, kind: str, where: str) -> list[str]:
        if kind.startswith(("list[", "dict(")):
            inner = kind[5:-1].split(", ")[-1]
            each = enumerate(body) if kind.startswith("list[") else body.items()
            return [said for name, one in each for said in misfits(one, inner, f"{where}.{name}")]
        model = getattr(client, kind, None)
        if model is None:
            return []
        known = {json: name for name, json in model.attribute_map.items()}
        wrong = [f"{where}.{name}" for name in body if name not in known]
        for name in body:
            if name in known:
                wrong += misfits(body[name], model.openapi_types[known[name]], f"{where}.{name}")
        return wrong

    body = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))
    assert misfits(body, "V1Deployment", "deployment") == []
    body["spec"]["template"]["spec"]["containers"][1]["startupprobe"] = {}
    assert misfits(body, "V1Deployment", "deployment") == [
        "deployment.spec.template.spec.containers.1.startupprobe"
    ]


def test_the_composed_host_shares_its_folder_and_its_credentials_with_the_tasks() -> None:
    said = understood(command("warm-host"))
    assert (said["name"], said["foreground"]) == ("team", True)
    assert said["master"] == environment("airflow-init")["AIRFLOW_CONN_SPARK_DEFAULT"].split('"')[7] + ":7077"
    asked = understood(services()["warm-host"]["healthcheck"]["test"][1:])
    assert (asked["name"], asked["ready"]) == ("team", True)
    assert services()["warm-host"]["volumes"] == services()["airflow-scheduler"]["volumes"]
    assert environment("warm-host") == environment("airflow-scheduler")
