"""Opens one shard for many look-ups, in a scratch folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stateflow.format.records import Shard
from stateflow.reading.snapshots import ReaderContext
from stateflow.state.backends.base import Backend
from stateflow.storage.scratch import new_scratch, remove_scratch


@contextmanager
def opened_shard(context: ReaderContext, shard: Shard) -> Iterator[Backend]:
    """Only entries in the shard's own key groups are its."""
    folder = new_scratch(context.scratch)
    try:
        fetched = folder / "fetched"
        fetched.mkdir()
        fetch = context.cache.fetcher(context.store, fetched)
        backend = context.open_shard(shard.backend)(shard, folder / "shard", fetch)
        try:
            yield backend
        finally:
            backend.close()
    finally:
        remove_scratch(folder)
