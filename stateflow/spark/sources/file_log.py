"""The file source's own log: it says which files each offset stands for.

Entry `k` is a file named `k`, or `k.compact`, which repeats every entry before it. Spark compacts every tenth entry and
deletes old ones. So a record that must come back to an offset needs copies, made inside the batch.
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
from stateflow.format.source_offsets import NOTHING

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
    """Names of the entries that list the files up to `offset`: the latest compact one, and all later ones."""
    numbered = {int(match[1]): path.name for path in folder.iterdir() if (match := _ENTRY.match(path.name))}
    compacted = [
        number for number, name in numbered.items() if name.endswith(".compact") and number <= offset
    ]
    first = max(compacted, default=0)
    missing = [number for number in range(first, offset + 1) if number not in numbered]
    if missing:
        raise CorruptError(
            f"the file source's log {folder} lacks entry {missing[0]} of {first}..{offset}: "
            "keep Spark from deleting it (spark.sql.streaming.fileSource.log.deletion=false) and start the run again"
        )
    return [numbered[number] for number in range(first, offset + 1)]


def save_entries(
    folder: Path, leaf: int, offset: int, references: Mapping[str, FileRef], save: Save
) -> list[FileRef]:
    """References to the entries up to `offset`. Saves only entries that `known` lacks.

    `known` must come from the parent record: an entry never changes along one timeline, but after a rewind the same
    number can list other files.
    """
    refs: list[FileRef] = []
    for entry in entries_at(folder, offset):
        name = f"{leaf}/{entry}"
        reference = references.get(name)
        if reference is None or reference.size != (folder / entry).stat().st_size:
            reference = save(name, folder / entry)
        refs.append(reference)
    return refs


def restore_entries(folder: Path, refs: Mapping[str, FileRef], fetch: Fetch) -> None:
    """Lays out a source's log as it was at the recorded offset. `refs` maps entry names to files.

    It copies the files and never links them: Spark judges an entry's age by its modification time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for entry, reference in refs.items():
        if not _ENTRY.match(entry):
            raise CorruptError(f"{reference.name!r} is not a file-source log entry; run `stateflow verify`")
        if reference.data is not None:
            (folder / entry).write_bytes(reference.data)
        else:
            shutil.copyfile(fetch(reference), folder / entry)


def newest_files(folder: Path, line: str, most: int) -> list[ReadFile]:
    """The newest of the input files up to an offset line, `most` of them at most."""
    if line == NOTHING:
        return []
    names = entries_at(folder, int(json.loads(line)["logOffset"]))
    lines: list[str] = []
    for name in reversed(names):
        # Of a log of a million files nobody parses more than is asked for.
        lines[:0] = _lines(folder / name)[-(most - len(lines)) :]
        if len(lines) >= most:
            break
    items = map(json.loads, lines)
    return [ReadFile(item["path"], item["timestamp"], item["batchId"]) for item in items]


def files_between(folder: Path, after: int, up_to: int) -> list[ReadFile]:
    """The input files of the offsets `after + 1 .. up_to`."""
    files: dict[str, ReadFile] = {}
    for entry in entries_at(folder, up_to) if up_to >= 0 else []:
        for line in _lines(folder / entry):
            item = json.loads(line)
            if after < item["batchId"] <= up_to:
                files[item["path"]] = ReadFile(item["path"], item["timestamp"], item["batchId"])
    return list(files.values())


def _lines(entry: Path) -> list[str]:
    """One per input file."""
    version, *lines = entry.read_text(encoding="utf-8").split("\n")
    if version != "v1":
        raise CorruptError(f"{entry} is not a file-source log entry of version v1")
    return lines
