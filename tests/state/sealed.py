"""The files of a snapshot, kept as a run keeps them."""

from __future__ import annotations

import shutil
from pathlib import Path

from stateflow.format.records import FileRef
from stateflow.state.backends.base import Snapshot
from stateflow.storage.files import checksum, inline


def kept(snapshot: Snapshot, folder: Path) -> tuple[FileRef, ...]:
    """What a record has of them: those that travel inside of it, and copies in the folder."""
    refs = list(snapshot.kept)
    for file in snapshot.new:
        if file.data is not None:
            refs.append(inline(file.name, file.data))
            continue
        assert file.path is not None
        stored = f"{len(list(folder.iterdir()))}-{file.name}"
        shutil.copyfile(file.path, folder / stored)
        refs.append(FileRef(file.name, *checksum(file.path), path=stored))
    return tuple(refs)
