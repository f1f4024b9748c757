"""A compose file as a container engine reads it: variables put in, sections merged. Pure functions of text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

_VARIABLE = re.compile(r"\$(?:\$|\{(?P<name>\w+)(?:(?P<how>:?[-?+])(?P<rest>[^}]*))?\}|(?P<bare>\w+))")


class ComposeError(Exception):
    """The text is not a compose file at all."""


def parsed(text: str) -> dict[str, Any]:
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ComposeError(f"it is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict) or not isinstance(document.get("services"), dict):
        raise ComposeError("it has no services")
    return document


def interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    """The document with every `${NAME}` in its texts replaced; a required one that is missing raises ComposeError."""
    if isinstance(value, dict):
        return {key: interpolated(each, variables) for key, each in value.items()}
    if isinstance(value, list):
        return [interpolated(each, variables) for each in value]
    return _VARIABLE.sub(lambda match: _put_in(match, variables), value) if isinstance(value, str) else value


def variables_of(value: Any) -> Iterator[tuple[str, str, str]]:
    """Every variable that is asked for: its name, `:?` or `:-` or such, and what follows it."""
    if isinstance(value, dict):
        for each in value.values():
            yield from variables_of(each)
    elif isinstance(value, list):
        for each in value:
            yield from variables_of(each)
    elif isinstance(value, str):
        for match in _VARIABLE.finditer(value):
            if name := match["name"] or match["bare"]:
                yield name, match["how"] or "", match["rest"] or ""


def names_of(text: str) -> dict[str, str]:
    """Of an .env file."""
    pairs = [line.partition("=") for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return {name.strip(): value.strip() for name, _, value in pairs}


def _put_in(match: re.Match[str], variables: Mapping[str, str]) -> str:
    name = match["name"] or match["bare"]
    if name is None:
        return "$"
    how, rest = match["how"] or "", match["rest"] or ""
    value = variables.get(name)
    is_set = value is not None and (value != "" or not how.startswith(":"))
    if how.endswith("+"):
        return rest if is_set else ""
    if is_set:
        return str(value)
    if how.endswith("?"):
        raise ComposeError(f"variable {name} is not set: {rest or 'it is required'}")
    return rest
