"""Copies the log entries of Spark's file source. A record has the copies, so that a run can come back to an offset.

Spark compacts every tenth entry and deletes old ones. So the copies are made inside the batch.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from stateflow.errors import CorruptError
from stateflow.format.records import FileRef, SourceState
from stateflow.spark.internals.scratch_folder import entries_at, is_entry

Save = Callable[[str, Path], FileRef]
Fetch = Callable[[FileRef], Path]


def save_entries(
    folder: Path, leaf: int, offset: int, references: Mapping[str, FileRef], save: Save
) -> list[FileRef]:
    """References to the entries up to `offset`. Saves only entries that `references` lacks.

    `references` must come from the parent record: an entry never changes along one timeline, but after a rewind the same
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


def entries_of(recorded: SourceState, leaf: int) -> dict[str, FileRef]:
    """What a record has of the log of one stream of files, by the names of the entries."""
    prefix = f"{leaf}/"
    return {ref.name.removeprefix(prefix): ref for ref in recorded.files if ref.name.startswith(prefix)}


def restore_entries(folder: Path, refs: Mapping[str, FileRef], fetch: Fetch) -> None:
    """Lays out a source's log as it was at the recorded offset. `refs` maps entry names to files.

    It copies the files and never links them: Spark judges an entry's age by its modification time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for entry, reference in refs.items():
        if not is_entry(entry):
            raise CorruptError(f"{reference.name!r} is not a file-source log entry; run `stateflow verify`")
        if reference.data is not None:
            (folder / entry).write_bytes(reference.data)
        else:
            shutil.copyfile(fetch(reference), folder / entry)
