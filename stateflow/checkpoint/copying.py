"""Copies files that a record names into the job's own folder, under the claimed epoch and slot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from stateflow.checkpoint.writer import Writer
from stateflow.format.records import FileRef, Record, total_size
from stateflow.format.references import references, with_references
from stateflow.storage.store import Store
from stateflow.storage.transfer import Transfer, transfer


def copy_files(
    record: Record,
    writer: Writer,
    store_of: Callable[[str], Store],
    *,
    ids: Callable[[], str],
    scratch: Path,
    progress: Callable[[int, int], object] = lambda copied_bytes, total: None,
    needs_copy: Callable[[FileRef], bool] = lambda ref: True,
) -> tuple[Record, int]:
    """The record with copies for the references that `which` picks, and their bytes. `store_of`: by a reference's base."""
    refs = {ref.place: ref for ref in references(record) if ref.path and needs_copy(ref)}
    paths = {
        place: writer.layout.shared_copy(
            writer.epoch, writer.next_slot, ids(), Path(ref.name).suffix or ".bin"
        )
        for place, ref in refs.items()
    }
    items = [
        Transfer(store_of(ref.base), ref.path, paths[place], ref.size, ref.xxh3, ref.offset, ref.sha256)
        for place, ref in refs.items()
    ]
    total, copied_bytes = total_size(refs.values()), 0

    def count(size: int) -> None:
        nonlocal copied_bytes
        copied_bytes += size
        progress(copied_bytes, total)

    transfer(items, writer.store, scratch=scratch, progress=count)

    def to_copy(ref: FileRef) -> FileRef:
        path = paths.get(ref.place)
        return ref if path is None else msgspec.structs.replace(ref, base="", path=path, offset=None)

    return with_references(record, to_copy), total
