"""Opens a shard for reading in a task: in a private folder, through the host's cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from types import TracebackType

import msgspec

from stateflow.format.encoding import group_range
from stateflow.format.records import Shard
from stateflow.spark.task.storage import TaskStorage
from stateflow.state.backends.base import Backend, OpenShard
from stateflow.storage.scratch import remove_scratch

Range = tuple[bytes, bytes]


class OpenedShard:
    """The entries in the shard's logical range. Other entries in its files belong to other shards, or are obsolete."""

    def __init__(self, storage: TaskStorage, shard: Shard, open_shard: Callable[[str], OpenShard]) -> None:
        self._low, self._high = group_range(shard.first, shard.last)
        self._backend: Backend | None = None
        self._folder: Path | None = None
        if not shard.files:
            return
        self._folder = storage.folder()
        try:
            fetched = self._folder / "fetched"
            fetched.mkdir()
            fetch = storage.cache().fetcher(storage.store, fetched)
            # Opened with the full range of its files, because clipping would write. `scan` reads only the logical range.
            wide = msgspec.structs.replace(shard, physical_first=None, physical_last=None)
            self._backend = open_shard(shard.backend)(wide, self._folder / "shard", fetch)
        except BaseException:
            self.close()
            raise

    def scan(self, ranges: Iterable[Range]) -> Iterator[tuple[bytes, bytes]]:
        """The entries of the ranges, one range after the other."""
        backend, low, high = self._backend, self._low, self._high
        if backend is None:
            return iter(())
        owned = ((max(begin, low), min(end, high)) for begin, end in ranges)
        return chain.from_iterable(backend.scan(begin, end) for begin, end in owned if begin < end)

    def close(self) -> None:
        if self._backend is not None:
            self._backend.close()
            self._backend = None
        if self._folder is not None:
            remove_scratch(self._folder)
            self._folder = None

    def __enter__(self) -> OpenedShard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
