"""The configuration file of a command: the one that `STATEFLOW_CONFIG` names, or a `stateflow.toml` in the working folder."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stateflow.config.trust import Places, Standing, standing
from stateflow.errors import UsageError

FILE_NAME = "stateflow.toml"
FILE_VARIABLE = "STATEFLOW_CONFIG"


@dataclass(frozen=True, slots=True)
class ConfigurationFile:
    """A file that was read."""

    path: Path
    owner: int
    """User id."""
    content: Mapping[str, Any]
    places: Places
    """What of its content counts only if the file is named or trusted."""
    standing: Standing | Literal["named"]

    @property
    def obeyed(self) -> bool:
        """Whether its places count."""
        return self.standing in ("named", "trusted")

    def refusal(self, options: str) -> UsageError:
        """Why such options of the file are not taken, and what to do."""
        why = {
            "changed": "has changed since you trusted it",
            "of another user": "belongs to another user",
        }.get(self.standing, "is not trusted")
        # A user cannot trust what somebody else may change.
        trust = "" if self.standing == "of another user" else "read it and run `stateflow trust` there, or "
        return UsageError(
            f"{self.path} sets {options}, and {why}: {trust}name it with {FILE_VARIABLE}={self.path}, or leave it out "
            f"with {FILE_VARIABLE}={os.devnull}"
        )


def configuration_file(
    env: Mapping[str, str], folder: Path, trusted_options: Container[str]
) -> ConfigurationFile | None:
    """The file of a command that is typed in `folder`. `trusted_options` are those that count only from a trusted file."""
    if named := env.get(FILE_VARIABLE):
        path = Path(named).expanduser()
        if not path.exists() or path.is_dir():
            raise UsageError(f"the configuration file {path}, named by {FILE_VARIABLE}, does not exist")
        return read_file(path, env, trusted_options, named=True)
    path = folder / FILE_NAME
    return read_file(path, env, trusted_options) if path.is_file() else None


def read_file(
    path: Path, env: Mapping[str, str], trusted_options: Container[str], *, named: bool = False
) -> ConfigurationFile:
    """Reads one file, and asks whether the user has trusted it."""
    # What was trusted, and whose file it is, has to be true of the very bytes that are read.
    with path.open("rb") as file:
        owner, body = os.fstat(file.fileno()).st_uid, file.read()
    try:
        content = tomllib.loads(body.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the configuration file {path} is not valid TOML: {error}") from None
    places = [(name, value) for name, value in content.items() if name.replace("-", "_") in trusted_options]
    whether = "named" if named else standing(identity(path), owner, places, env)
    return ConfigurationFile(path, owner, content, places, whether)


def identity(path: Path) -> Path:
    """The path that trust is noted under: of the folder without links, since relative values are taken from there. A link
    to a file that is trusted elsewhere is another file."""
    return path.parent.resolve() / path.name
