"""`make compose-check`: is docker/ sound? Everything that can be told without a container engine, in one go."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import yaml  # noqa: E402
from jsonschema import Draft202012Validator  # noqa: E402

from scripts import compose_rules as rules  # noqa: E402
from scripts import dockerfile  # noqa: E402
from scripts.compose_text import ComposeError, interpolated, names_of, parsed  # noqa: E402
from scripts.docker_env import filled  # noqa: E402


def main() -> int:
    problems = list(check(ROOT / "docker"))
    for problem in problems:
        print(f"compose-check: {problem}", file=sys.stderr)
    if not problems:
        services = parsed((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))["services"]
        print(f"compose-check: {len(services)} services and their images are sound")
    return 1 if problems else 0


def check(folder: Path, project: Path = ROOT) -> Iterator[str]:
    """Sentences about what is wrong."""
    example = (folder / ".env.example").read_text(encoding="utf-8")
    try:
        raw = parsed((folder / "compose.yaml").read_text(encoding="utf-8"))
        document = interpolated(raw, names_of(filled(example)))
    except ComposeError as error:
        yield f"compose.yaml: {error}"
        return
    misfits = [f"compose.yaml: {said}" for said in against_schema(document, ROOT / "docker" / "schema")]
    yield from misfits
    if misfits:
        return  # the rules expect its shape
    services = document["services"]
    sentences = [
        *rules.images(services),
        *rules.ports(services),
        *rules.dependencies(services),
        *rules.healthchecks(services),
        *rules.volumes(document, folder),
        *rules.secrets(raw, names_of(example)),
        *rules.environments(services, known(services)),
        *rules.addresses(services),
    ]
    yield from (f"compose.yaml: {said}" for said in dict.fromkeys(sentences))
    yield from same_versions(services, folder, project)
    for file, context in rules.builds(services, folder):
        if not file.is_file():
            yield f"compose.yaml: {file} does not exist"
            continue
        for said in dockerfile.problems(file.read_text(encoding="utf-8"), context, rules.pinned):
            yield f"{file.relative_to(context)}: {said}"


def against_schema(document: dict[str, Any], folder: Path) -> Iterator[str]:
    schema = json.loads((folder / "compose-spec.json").read_text(encoding="utf-8"))
    errors = sorted(
        Draft202012Validator(schema).iter_errors(document), key=lambda e: list(map(str, e.absolute_path))
    )
    for error in errors:
        path = list(error.absolute_path)
        within = [each for each in errors if len(each.absolute_path) > len(path)]
        if error.validator == "unevaluatedProperties" and any(
            list(e.absolute_path)[: len(path)] == path for e in within
        ):
            continue  # it speaks of everything beside what is really wrong
        where = ".".join(map(str, path)) or "the file"
        yield f"{where}: {error.message.splitlines()[0][:200]}"


def known(services: rules.Services) -> rules.Known:
    from stateflow.config.file import FILE_VARIABLE
    from stateflow.config.options import DECLARATIONS, PREFIX

    users = [
        user.partition(":")[0]
        for service in services.values()
        for user in str(
            (service.get("environment") or {}).get("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "")
        ).split(",")
    ]
    return rules.Known(
        airflow=airflow_options(),
        stateflow={*(PREFIX + name.upper() for name in DECLARATIONS), FILE_VARIABLE},
        passwords={f"{user.strip().upper()}_PASSWORD" for user in users if user.strip()},
    )


@cache
def airflow_options() -> dict[tuple[str, str], str]:
    """From the description that Airflow itself is installed with; importing Airflow would make its home folder."""
    spec = importlib.util.find_spec("airflow")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("compose-check: Airflow is not installed: run make setup")
    found = {}
    for place in spec.submodule_search_locations:
        file = Path(place) / "config_templates" / "config.yml"
        if file.is_file():
            for section, body in yaml.safe_load(file.read_text(encoding="utf-8")).items():
                for option, about in (body.get("options") or {}).items():
                    found[section.lower(), option.lower()] = str(about.get("type", "string"))
    return found


def same_versions(services: rules.Services, folder: Path, project: Path) -> Iterator[str]:
    """What is written in several places is the same in all of them."""
    locked = _pins(project / "requirements-dev.txt")
    for name, version in _pins(folder / "airflow" / "postgres.txt").items():
        if locked.get(name) != version:
            yield f"airflow/postgres.txt has {name} {version}, requirements-dev.txt has {locked.get(name)}"
    own = re.search(
        r'^version = "([^"]+)"', (project / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE
    )
    pythons = set()
    for name, service in services.items():
        tag = str(service.get("image", "")).rpartition(":")[2]
        if service.get("build") and own is not None and tag != own[1]:
            yield f"compose.yaml: service {name} is built as {tag}, and the project is {own[1]}"
    for file, _ in rules.builds(services, folder):
        if file.is_file():
            pythons.update(re.findall(r"^FROM python:(\S+)", file.read_text(encoding="utf-8"), re.MULTILINE))
    if len(pythons) > 1:
        yield f"images have different Pythons ({', '.join(sorted(pythons))}): drivers and executors have to have the same"


def _pins(file: Path) -> dict[str, str]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return dict(
        line.split(" ")[0].split("==", 1)
        for line in lines
        if "==" in line and not line.startswith(("#", " "))
    )


if __name__ == "__main__":
    sys.exit(main())
