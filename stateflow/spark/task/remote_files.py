"""Large state files that this host does not have: a task reads parts of them, and the whole files follow behind the batch.

On a host that the job has never run on, all of a shard's files were fetched before its first row was looked at.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from stateflow.errors import CorruptError, NotFoundError
from stateflow.format.layout import is_copy
from stateflow.format.records import FileRef
from stateflow.spark.task.storage import TaskStorage
from stateflow.state.backends.line import Line, parts_may_pay
from stateflow.storage.files import verify, where
from stateflow.storage.scratch import take_place
from stateflow.storage.store import takes_a_trip

LARGE: Final = 16 << 20
"""Bytes of a file from which on parts may pay: a smaller one comes in the time of a few requests."""
_TABLE = ".sst"
_FETCHES = 2
"""Whole files on their way at once behind a host's batches, so that these have the line, too."""

_log = logging.getLogger(__name__)


class TaskRemoteFiles:
    """Those of one shard."""

    def __init__(self, refs: Iterable[FileRef], storage: TaskStorage, line: Line) -> None:
        self._refs = set(refs)
        self._storage = storage
        self.line = line
        self.paid = True
        """False once all of a file was fetched all the same."""

    def has(self, ref: FileRef) -> bool:
        return ref in self._refs

    def read(self, ref: FileRef, begin: int, length: int) -> bytes:
        store = self._storage.store(ref.base)
        try:
            body = self._storage.cache().part(store, ref, begin, length)
        except NotFoundError:
            body = b""
        if len(body) != length:
            raise CorruptError(
                f"{where(ref, store.url)} is missing, or shorter than it was; run `stateflow verify` and restore from an "
                "earlier checkpoint with `stateflow restore`"
            )
        return body

    def complete(self, ref: FileRef, path: Path) -> None:
        self.paid = False
        store = self._storage.store(ref.base)
        verify(ref, path, store.url)
        self._storage.cache().add(store, ref, path)


def remote_files(refs: Iterable[FileRef], storage: TaskStorage, line: Line) -> TaskRemoteFiles | None:
    """The files of which parts may be read; None: of none.

    Bytes that this job has not written itself are compared with their SHA-256, so they come whole: files of savepoints, and
    copies of them.
    """
    if storage.large_files == "whole" or not takes_a_trip(storage.store()):
        return None
    cache, store = storage.cache(), storage.store()
    chosen = [ref for ref in refs if is_large_and_own(ref) and not cache.holds(store, ref)]
    if not chosen or not parts_may_pay(line, sum(ref.size for ref in chosen)):
        return None
    return TaskRemoteFiles(chosen, storage, line)


def is_large_and_own(ref: FileRef) -> bool:
    own = not ref.base and ref.offset is None and ref.data is None and not is_copy(ref.path)
    return own and ref.name.endswith(_TABLE) and ref.size >= LARGE


def begin_fetch(refs: Sequence[FileRef], storage: TaskStorage) -> None:
    """Begins to fetch the whole files into the host's cache, unless others are on their way; then a later batch asks again."""
    if sum(ref.size for ref in refs) > storage.cache_bytes:
        # The first would be gone when the last is here, and each batch would fetch them all again.
        return
    threading.Thread(target=_fetch_whole, args=(refs, storage), name="stateflow-fetch", daemon=True).start()


def _fetch_whole(refs: Sequence[FileRef], storage: TaskStorage) -> None:
    place = None
    try:
        place = take_place(Path(storage.scratch_dir), "fetching", _FETCHES)
        for ref in refs if place is not None else ():
            storage.cache().fetch(storage.store(ref.base), ref)
    except Exception as error:
        # Nobody misses it: batches go on reading parts.
        _log.warning("state files were not fetched behind the batch (%s): a later batch asks again", error)
    finally:
        if place is not None:
            os.close(place)
