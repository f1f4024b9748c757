"""Finds files that were written again after a job had read them: Spark knows a file by its name, and never reads it twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from stateflow.spark.internals.scratch_folder import ReadFile

MOST_COMPARED = 10_000
"""How many of the files that a source read last are looked at: together that takes a tenth of a second."""
MOST_LISTED = 500
"""Files of a source in another place than this machine's disk. There Spark lists the folder, which takes milliseconds per file."""
_LOCAL = "file:"


def rewritten(read: Iterable[ReadFile], there: Mapping[str, int]) -> list[str]:
    """Names of files that have another time now than when they were read. `there` has times by path, as Spark writes both."""
    changed = [file for file in read if there.get(file.path, file.modified_ms) != file.modified_ms]
    return sorted(unquote(file.path) for file in changed)


def local_times(read: Iterable[ReadFile]) -> dict[str, int] | None:
    """As `times_of_files`, of those files alone; None unless all lie on the local disk."""
    found: dict[str, int] = {}
    for file in read:
        if not file.path.startswith(_LOCAL):
            return None
        path = "/" + unquote(file.path.removeprefix(_LOCAL)).lstrip("/")
        with suppress(OSError):
            found[file.path] = Path(path).stat().st_mtime_ns // 1_000_000
    return found


def sentence(source: str, names: Sequence[str]) -> str:
    """The run's warning of them, with the next step."""
    first = PurePosixPath(names[0]).name
    more = f" (and so were {len(names) - 1} more)" if len(names) > 1 else ""
    return (
        f"source {source!r}: {first} was written again after the job had read it{more}, and a name is read once: what was added is "
        "in no result; put new rows into files of new names"
    )
