"""Services of docker/compose.yaml, run natively: what they are told there, with other hosts, ports and folders."""

from __future__ import annotations

import shlex
from functools import cache
from pathlib import Path
from typing import Any

from scripts.compose_text import interpolated, names_of, parsed
from scripts.docker_env import filled

DOCKER = Path(__file__).resolve().parents[1] / "docker"


@cache
def services() -> dict[str, Any]:
    """With variables put in, each secret made up once per process."""
    values = names_of(filled((DOCKER / ".env.example").read_text(encoding="utf-8")))
    document = interpolated(parsed((DOCKER / "compose.yaml").read_text(encoding="utf-8")), values)
    found: dict[str, Any] = document["services"]
    return found


def command(service: str) -> list[str]:
    given = services()[service]["command"]
    return shlex.split(given) if isinstance(given, str) else list(given)


def environment(service: str) -> dict[str, str]:
    return {name: str(value) for name, value in services()[service]["environment"].items()}


def replaced(text: str, *changes: tuple[str, str]) -> str:
    """Every change has to apply: a compose file that was edited must not be tested as it used to be."""
    for before, after in changes:
        assert before in text, f"{before!r} is not in {text!r}"
        text = text.replace(before, after)
    return text
