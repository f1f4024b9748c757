"""The configuration file of a command: the one that `STATEFLOW_CONFIG` names, or a `stateflow.toml` in the working folder."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stateflow.config.trust import Guarded, Standing, option_name, standing
from stateflow.errors import UsageError

FILE_NAME = "stateflow.toml"
FILE_VARIABLE = "STATEFLOW_CONFIG"
_URL = re.compile("[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(frozen=True, slots=True)
class ConfigurationFile:
    """A file that was read."""

    path: Path
    owner: int
    """User id."""
    content: Mapping[str, Any]
    guarded: Guarded
    """Content that counts only if the file is named or trusted."""
    standing: Standing | Literal["named"]
    untrusted: frozenset[str]
    """Names of the guarded options that do not count."""

    def settings(self, *, leave_out: bool) -> Iterator[tuple[str, Any]]:
        """The options as the file writes them. `leave_out`: without those that do not count."""
        for name, value in self.content.items():
            if not (leave_out and option_name(name) in self.untrusted):
                yield name, value

    def refusal(self, options: Sequence[str]) -> UsageError:
        """Why such options of the file are not taken, and what to do."""
        why = {
            "changed": "has changed since you trusted it",
            "of another user": "belongs to another user",
        }.get(self.standing, "is not trusted")
        # A user cannot trust what somebody else may change.
        trust = "" if self.standing == "of another user" else "read it and run `stateflow trust` there, or "
        present = {option_name(name) for name, _ in self.guarded}
        parts = (
            ("sets", [n for n in options if n in present]),
            ("no longer sets", [n for n in options if n not in present]),
        )
        what = ", ".join(f"{verb} {_listed(names)}" for verb, names in parts if names)
        return UsageError(
            f"{self.path} {what}, and {why}: {trust}name it with {FILE_VARIABLE}={self.path}, or leave it out "
            f"with {FILE_VARIABLE}={os.devnull}"
        )


def configuration_file(
    env: Mapping[str, str], folder: Path, guarded: Container[str]
) -> ConfigurationFile | None:
    """The file of a command that is typed in `folder`. `guarded` are the options that count only from a trusted file."""
    if named := env.get(FILE_VARIABLE):
        path = Path(named).expanduser()
        if not path.exists() or path.is_dir():
            raise UsageError(f"the configuration file {path}, named by {FILE_VARIABLE}, does not exist")
        return read_file(path, env, guarded, named=True)
    path = folder / FILE_NAME
    if path.is_file():
        return read_file(path, env, guarded)
    # A folder may let its files be read and not listed.
    with suppress(OSError):
        for other in folder.iterdir():
            if other.name != FILE_NAME and other.name.lower() == FILE_NAME:
                raise UsageError(
                    f"the file {other} is not read, since its name is not {FILE_NAME} to the letter: rename it"
                )
    return None


def read_file(
    path: Path, env: Mapping[str, str], guarded: Container[str], *, named: bool = False
) -> ConfigurationFile:
    """Reads one file, and asks whether the user has trusted it."""
    # The trust and the owner have to belong to the very bytes that are read.
    with path.open("rb") as file:
        owner, body = os.fstat(file.fileno()).st_uid, file.read()
    try:
        content = tomllib.loads(body.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the configuration file {path} is not valid TOML: {error}") from None
    found = tuple((name, value) for name, value in content.items() if option_name(name) in guarded)
    if named:
        return ConfigurationFile(path, owner, content, found, "named", frozenset())
    return ConfigurationFile(path, owner, content, found, *standing(identity(path), owner, found, env))


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def identity(path: Path) -> Path:
    """The path that trust is noted under: of the folder without links, since relative values are taken from there. A link
    to a file that is trusted elsewhere is another file."""
    return path.parent.resolve() / path.name


def beside(file: Path, place: str) -> str:
    """A place as the file means it: a relative folder is one beside the file, from wherever the command is typed."""
    if not place or place.startswith(("/", "~")) or _URL.match(place):
        return place
    folder = file.absolute().parent / place
    plain = os.path.normpath(folder)
    # Behind a link `..` leads elsewhere for the system than for Spark. Then it stays, for whoever opens the folder to refuse.
    return plain if os.path.realpath(folder) == os.path.realpath(plain) else str(folder)
