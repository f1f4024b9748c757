"""A connection that a pipeline names: a file with properties, or a variable that holds them. Secrets stand there and nowhere else."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from stateflow.errors import UsageError

_VARIABLE = re.compile(r"env:\w+")
_LINE = re.compile(r"((?:\\.|[^\\\s=:])+)\s*[=:\s]\s*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def check_connection(what: str, connection: str, variable: str) -> None:
    """UsageError for a text that is no name of a connection. `variable` is an example of one."""
    if connection.startswith("env:") and _VARIABLE.fullmatch(connection) is None:
        raise UsageError(f"{what}: the connection names no variable: write connection='env:{variable}'")
    if "=" in connection or "\n" in connection or connection.lstrip().startswith("{"):
        # The text may have a password in it.
        raise UsageError(
            f"{what}: the connection is the path of a properties file or 'env:NAME', and not the properties themselves, which would stand in records"
        )


def properties_of(
    what: str, connection: str, example: str, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """What stands in the file or the variable; nothing without a connection. `example` is a line of such properties."""
    if not connection:
        return {}
    if connection.startswith("env:"):
        name = connection.removeprefix("env:")
        if not (text := environment.get(name, "")):
            raise UsageError(
                f"{what}: the connection stands in the variable {name}, which this process does not have: set it where the driver runs"
            )
    else:
        try:
            text = Path(connection).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise UsageError(
                f"{what}: the connection {connection} cannot be read ({reason}): give the path of a properties file that the driver can read, or "
                "'env:NAME'"
            ) from None
    try:
        return parsed(text)
    except ValueError as error:
        raise UsageError(
            f"{what}: the connection {connection} has no properties ({error}): write lines such as {example}"
        ) from None


def parsed(text: str) -> dict[str, str]:
    """Properties as Java writes them, or as an object of JSON. ValueError, without any of the text, for something else."""
    if text.lstrip().startswith("{"):
        try:
            found = json.loads(text)
        except ValueError:
            raise ValueError("it begins like JSON and is none") from None
        if not all(isinstance(value, str | int | float | bool) for value in found.values()):
            raise ValueError("a value of its JSON is no text")
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in found.items()
        }
    return dict(_pairs(text))


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(_whole_lines(text), 1):
        if not line or line[0] in "#!":
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"line {number} has no name and value")
        yield _ESCAPE.sub(_unescaped, match[1]), _ESCAPE.sub(_unescaped, match[2].strip())


def _unescaped(match: re.Match[str]) -> str:
    return chr(int(match[1], 16)) if match[1] else _CONTROLS.get(match[2], match[2])


def _whole_lines(text: str) -> Iterator[str]:
    """The lines; one that ends in a backslash goes on in the next."""
    begun = ""
    for line in text.splitlines():
        line = line.lstrip()
        if not begun and line[:1] in ("#", "!"):
            yield line
        elif (len(line) - len(line.rstrip("\\"))) % 2:
            begun += line[:-1]
        else:
            yield (begun + line).rstrip()
            begun = ""
    if begun:
        yield begun
