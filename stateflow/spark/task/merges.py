"""Merges of state files beside the batches, in the Python workers that run the tasks.

A task that finds a shard crowded begins a merge in a thread of its worker, which goes on behind the task. The next task that
opens the shard, in whatever worker of the host, takes the merged files in place of those that were merged: its batch's
record names them. Until then nobody else knows of them. So a merge that is lost with its worker, or that has become useless,
costs its time and nothing else.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stateflow.format.records import FileRef, Shard
from stateflow.spark.task.storage import TaskStorage
from stateflow.state.backends.base import Fetch, MergeShard, NewFile
from stateflow.state.backends.rocksdb import travels_inside
from stateflow.state.backends.rocksdb_merges import TABLE, added_since, manifest_of, tables_of, take_in
from stateflow.state.backends.rocksdb_options import worth_a_thread
from stateflow.storage.files import digests, inline
from stateflow.storage.scratch import leave, named_scratch, remove_scratch, take_left, take_place

_FINDINGS = "merge.msgpack"

_log = logging.getLogger(__name__)
_CORES_PER_MERGE = 4
"""A merge keeps one core busy, of these. So the shards of a host take turns."""


class MergeFindings(msgspec.Struct, frozen=True):
    """What a finished merge tells beside its database."""

    merged: tuple[FileRef, ...]
    """The tables that the shard had."""
    tables: tuple[FileRef, ...]
    """Those that it has instead. A new one has no path yet."""


@dataclass(frozen=True)
class TakenMerge:
    """A shard's files with a merge in them."""

    files: tuple[FileRef, ...]
    unstored: tuple[tuple[FileRef, Path], ...]
    """Those of them that have to be stored, with where they are."""


def begin_merge(shard: Shard, storage: TaskStorage, merge: MergeShard) -> None:
    """Begins to merge the shard, unless this host has enough merges under way, or one of this shard."""
    threading.Thread(target=_merge, args=(shard, storage, merge), name="stateflow-merge", daemon=True).start()


def _merge(shard: Shard, storage: TaskStorage, merge: MergeShard) -> None:
    place = folder = None
    try:
        scratch = Path(storage.scratch_dir)
        place = take_place(scratch, "merging", max(1, len(os.sched_getaffinity(0)) // _CORES_PER_MERGE))
        folder = named_scratch(scratch, _name(shard, storage)) if place is not None else None
        made = _merged(shard, storage, merge, folder) if folder is not None else None
        if folder is not None and made is not None:
            leave(folder, made)
    except Exception as error:
        # Nobody misses it: the shard has all its files, and a batch merges them itself when they are too many.
        _log.warning("state was not merged beside the batches (%s): a batch will do it", error)
    finally:
        if folder is not None:
            remove_scratch(folder)
        if place is not None:
            os.close(place)


def _merged(shard: Shard, storage: TaskStorage, merge: MergeShard, folder: Path) -> Path | None:
    """The merged database, with what is to be told of it; None if RocksDB found nothing worth merging."""
    fetched, database = folder / "fetched", folder / "database"
    fetched.mkdir()
    snapshot = merge(shard, database, storage.cache().fetcher(storage.store, fetched))
    new = [_described(database, file) for file in snapshot.new if file.name.endswith(TABLE)]
    if not new:
        return None
    kept = tuple(ref for ref in snapshot.kept if ref.name.endswith(TABLE))
    findings = MergeFindings(tables_of(shard), (*kept, *new))
    (database / _FINDINGS).write_bytes(msgspec.msgpack.encode(findings))
    return database


def _described(database: Path, file: NewFile) -> FileRef:
    if file.data is not None:
        return inline(file.name, file.data)
    path = database / file.name
    # The batch that takes it shall wait neither for the disk nor for the checksums.
    with path.open("rb") as written:
        os.fsync(written.fileno())
    found = digests(path)
    return FileRef(file.name, found.size, found.xxh3, sha256=found.sha256)


def take_merge(shard: Shard, storage: TaskStorage, directory: Path, fetch: Fetch) -> TakenMerge | None:
    """The shard's files with the merge that is done, if there is one; `directory` then has the new ones, and stays as long as
    they are needed."""
    if not worth_a_thread(shard.bytes) or not tables_of(shard):
        return None
    if not take_left(Path(storage.scratch_dir), _name(shard, storage), directory):
        return None
    try:
        findings = msgspec.msgpack.decode((directory / _FINDINGS).read_bytes(), type=MergeFindings)
        younger = added_since(shard, findings.merged)
        if younger is None:
            return None
        younger = take_in(directory, younger, fetch)
    except Exception as error:
        # Batches have added a file that cannot be taken in.
        _log.info("a merge of state beside the batches is of no use (%s): a later one will be", error)
        return None
    files, unstored = list(younger), []
    for ref in findings.tables:
        if ref.path or ref.data is not None:
            files.append(ref)
            continue
        stored = msgspec.structs.replace(ref, path=storage.shared_path(TABLE))
        files.append(stored)
        unstored.append((stored, directory / ref.name))
    for path in manifest_of(directory):
        if travels_inside(path.name, path.stat().st_size, storage.inline_threshold):
            files.append(inline(path.name, path.read_bytes()))
            continue
        found = digests(path)
        stored = FileRef(path.name, found.size, found.xxh3, storage.shared_path(".bin"), sha256=found.sha256)
        files.append(stored)
        unstored.append((stored, path))
    return TakenMerge(tuple(files), tuple(unstored))


def _name(shard: Shard, storage: TaskStorage) -> str:
    """Of the shard on this host. Its oldest table tells it from those of other operators."""
    oldest = tables_of(shard)[0]
    text = "\0".join((storage.root, storage.job, str(shard.first), oldest.base, oldest.path, oldest.xxh3))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
