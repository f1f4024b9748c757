"""The file source's own log: which files each of its offsets stands for.

Entry `k` is a file named `k`, or `k.compact`, which repeats every entry before it. Spark compacts every tenth
and deletes old ones behind itself, so whoever wants to come back to an offset copies what it needs inside the
batch.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stateflow.errors import CorruptError
from stateflow.format.records import FileRef

Save = Callable[[str, Path], FileRef]
Fetch = Callable[[FileRef], Path]

_ENTRY = re.compile(r"(\d+)(\.compact)?\Z")


@dataclass(frozen=True, slots=True)
class ReadFile:
    """One input file that a log entry lists."""

    path: str
    """A URL-encoded URI, as Spark writes it."""
    modified_ms: int
    offset: int


def log_folder(location: Path, leaf: int) -> Path:
    return location / "sources" / str(leaf)


def entries_at(folder: Path, offset: int) -> list[str]:
    """Names of the entries that say what was read up to `offset`: the latest compact one, and all later."""
    numbered = {int(found[1]): path.name for path in folder.iterdir() if (found := _ENTRY.match(path.name))}
    compacted = [
        number for number, name in numbered.items() if name.endswith(".compact") and number <= offset
    ]
    first = max(compacted, default=0)
    missing = [number for number in range(first, offset + 1) if number not in numbered]
    if missing:
        raise CorruptError(
            f"the file source's log {folder} lacks entry {missing[0]} of {first}..{offset}: "
            "keep Spark from deleting it (spark.sql.streaming.fileSource.log.deletion=false) and start the "
            "run "
            "again"
        )
    return [numbered[number] for number in range(first, offset + 1)]


def save_entries(
    folder: Path, leaf: int, offset: int, known: Mapping[str, FileRef], save: Save
) -> list[FileRef]:
    """References to the entries up to `offset`; only those that `known` lacks are saved.

    `known` must come from the parent record: an entry never changes along one line of history, but after a
    rewind the same number can list other files.
    """
    refs: list[FileRef] = []
    for entry in entries_at(folder, offset):
        name = f"{leaf}/{entry}"
        reference = known.get(name)
        if reference is None or reference.size != (folder / entry).stat().st_size:
            reference = save(name, folder / entry)
        refs.append(reference)
    return refs


def restore_entries(folder: Path, refs: Mapping[str, FileRef], fetch: Fetch) -> None:
    """Lay out a source's log as it was at the recorded offset; `refs` maps entry names.

    Copied, never linked: Spark judges an entry's age by its modification time before it deletes it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for entry, reference in refs.items():
        if not _ENTRY.match(entry):
            raise CorruptError(f"{reference.name!r} is not a file-source log entry; run `stateflow verify`")
        if reference.data is not None:
            (folder / entry).write_bytes(reference.data)
        else:
            shutil.copyfile(fetch(reference), folder / entry)


def files_between(folder: Path, after: int, up_to: int) -> list[ReadFile]:
    """The input files of the offsets `after + 1 .. up_to`."""
    found: dict[str, ReadFile] = {}
    for entry in entries_at(folder, up_to) if up_to >= 0 else []:
        version, *lines = (folder / entry).read_text(encoding="utf-8").split("\n")
        if version != "v1":
            raise CorruptError(f"{folder / entry} is not a file-source log entry of version v1")
        for line in lines:
            item = json.loads(line)
            if after < item["batchId"] <= up_to:
                found[item["path"]] = ReadFile(item["path"], item["timestamp"], item["batchId"])
    return list(found.values())
