"""Whether a shard's files may still have bytes of some keys, whatever a look-up finds there."""

from __future__ import annotations

from stateflow.format.records import Shard
from stateflow.reading.files.shard_files import StateFiles
from stateflow.reading.snapshots import ReaderContext


def reaches(context: ReaderContext, shard: Shard, begin: bytes, end: bytes) -> bool:
    """Whether files of a RocksDB shard may have bytes of the keys from `begin` to `end`, exclusive. It fetches no table."""
    return StateFiles(context.store, context.cache).reaches(shard, begin, end)
