"""`stateflow trust`: a `stateflow.toml` whose folders, endpoints, credentials and retention count from now on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from stateflow.cli.options import Invocation, argument, flag, rootless_command
from stateflow.cli.output import TextTable
from stateflow.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from stateflow.config.trust import Guarded


@rootless_command
def trust(
    call: Invocation,
    file: Annotated[
        Path, argument(metavar="[FILE]", help="A stateflow.toml, or its folder; else the one here.")
    ] = Path(),
    remove: Annotated[bool, flag("--remove", help="Trust it no longer.")] = False,
) -> None:
    """Trusts a stateflow.toml with its folders, endpoints, credentials and what it says of retention: read it first. It is asked again
    when one of them changes."""
    from stateflow.config.file import FILE_NAME, FILE_VARIABLE, identity, read_file
    from stateflow.config.options import GUARDED
    from stateflow.config.trust import forget, remember

    given = file.absolute()
    path = identity(given / FILE_NAME if given.is_dir() else given)
    if path.name != FILE_NAME:
        raise UsageError(
            f"{path} is never found by itself, because it is not called {FILE_NAME}: name it with {FILE_VARIABLE}={path}"
        )
    if remove:
        was = forget(path, os.environ)
        call.output.answer(
            {"file": str(path), "trusted": False},
            f"{path} is no longer trusted" if was else f"{path} was not trusted",
        )
        return
    if not path.is_file():
        raise NotFoundError(f"there is no {path}: name the folder that has a {FILE_NAME}")
    read = read_file(path, os.environ, GUARDED)
    rows = list(_shown(path, read.guarded))
    remember(path, read.owner, read.guarded, os.environ)
    call.output.answer(
        {"file": str(path), "trusted": True, "options": dict(rows)},
        TextTable(("option", "value"), rows)
        if rows
        else f"{path} names no folder, endpoint or credential, and does not decide what is deleted",
        note=f"{path} is trusted, until one of these values changes." if rows else "",
    )


def _shown(path: Path, guarded: Guarded) -> Iterator[tuple[str, str]]:
    """The values as people may read them, with the folder that a relative path means."""
    from stateflow.config.declaration import read, written
    from stateflow.config.file import beside
    from stateflow.config.options import DECLARATIONS
    from stateflow.masking import masked

    for name, value in guarded:
        declaration = DECLARATIONS[name.replace("-", "_")]
        try:
            value = read(declaration, value)
        except ValueError as error:
            raise UsageError(f"option {name}, set by {path}, is not usable: {error}") from None
        if isinstance(value, Mapping):  # an endpoint has to be seen
            text = ", ".join(f"{key}={masked(key, value[key])}" for key in sorted(value))
        else:
            text = written(declaration, value)
        if declaration.kind == "text" and (meant := beside(path, text)) != text:
            text = f"{text} ({meant})"
        yield name, text
