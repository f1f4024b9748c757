"""The settings of the RocksDB backend, as RocksDB's own options."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Literal

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    ChecksumType,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    UniversalCompactOptions,
)

from stateflow.errors import UsageError

MIB = 1 << 20
_LARGE = 1 << 30
"""Bytes of a shard from which on parts pay: to open one of 3 GB takes 8 ms instead of 50, and 50 MB of memory less. A batch of
1,250 keys of it takes 18 ms instead of 60; one of 50,000, which needs nearly all parts, 290 instead of 230."""

Preset = Literal["auto", "small", "large", "write-heavy"]
Compaction = Literal["universal", "level"]
Compression = Literal["lz4", "zstd", "snappy", "none"]
Merges = Literal["inside", "beside"]
_WORTH_A_THREAD = 16 * MIB
"""Bytes of a shard from which on it is merged beside the batches. To merge a smaller one takes a tenth of a second."""

_COMPRESSIONS: dict[str, Any] = {
    "lz4": DBCompressionType.lz4,
    "zstd": DBCompressionType.zstd,
    "snappy": DBCompressionType.snappy,
    "none": DBCompressionType.none,
}


@dataclass(frozen=True, slots=True)
class RocksOptions:
    """How shards are kept."""

    preset: Preset = "auto"
    """small: indexes and filters are read when a shard opens. large: in parts, when needed, for shards of gigabytes.
    auto: small or large, by the bytes that the shard has. write-heavy: more runs before a merge, for state that is written more than read."""
    compaction: Compaction = "universal"
    """universal merges whole runs; level rewrites parts of runs, for shards far beyond the budget."""
    compression: Compression = "lz4"
    block_cache: int = 256 * MIB
    """Bytes of the cache that all shards of a process share."""
    write_buffer: int = 128 * MIB
    """Memory for a shard's unwritten changes; beyond it they are written out early."""
    compaction_budget: int = 512 * MIB
    """Bytes that compaction may write per snapshot. A merge beyond it waits until space doubles."""
    merges: Merges = "inside"
    """inside: the batch that finds too many runs merges them. beside: it goes on, and asks for a merge beside the batches."""
    inline_threshold: int = 20 << 10
    """A shard of at most so many bytes travels inside the record."""

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("preset", self.preset, ("auto", "small", "large", "write-heavy")),
            ("compaction", self.compaction, ("universal", "level")),
            ("compression", self.compression, tuple(_COMPRESSIONS)),
            ("merges", self.merges, ("inside", "beside")),
        ):
            if value not in allowed:
                raise UsageError(f"RocksOptions {name} is {value!r}: use one of {', '.join(allowed)}")
        for name, size, least in (
            ("block_cache", self.block_cache, MIB),
            ("write_buffer", self.write_buffer, MIB),
            ("compaction_budget", self.compaction_budget, 0),
            ("inline_threshold", self.inline_threshold, 0),
        ):
            if size < least:
                raise UsageError(f"RocksOptions {name} is {size} bytes: use at least {least}")
        if self.inline_threshold > MIB:
            raise UsageError(
                f"RocksOptions inline_threshold is {self.inline_threshold} bytes: records hold at most {MIB}"
            )

    @property
    def runs(self) -> int:
        """How many sorted runs a shard may have before some are merged."""
        return 8 if self.preset == "write-heavy" else 4

    @property
    def most_runs(self) -> int:
        """With more runs a batch merges them itself: merges beside it are too slow, or do not come."""
        return 3 * self.runs

    def merged_beside(self, stored_bytes: int) -> bool:
        return self.merges == "beside" and worth_a_thread(stored_bytes)


def worth_a_thread(stored_bytes: int) -> bool:
    """Whether a shard is large enough to be merged beside the batches."""
    return stored_bytes >= _WORTH_A_THREAD


def reads_in_parts(preset: Preset, stored_bytes: int) -> bool:
    """Whether an opening reads of indexes and filters only what its look-ups need."""
    return preset == "large" or (preset == "auto" and stored_bytes >= _LARGE)


def database_options(options: RocksOptions, stored_bytes: int) -> Options:
    """For one opening of a shard that has `stored_bytes` now."""
    made = Options(raw_mode=True)
    made.create_if_missing(True)
    made.set_block_based_table_factory(_table(options, stored_bytes))
    made.set_compression_type(_COMPRESSIONS[options.compression]())
    made.set_max_background_jobs(2)
    # Nothing that outlives the task: no log files to roll, no statistics thread.
    made.set_keep_log_file_num(1)
    made.set_stats_dump_period_sec(0)
    made.set_stats_persist_period_sec(0)
    made.set_max_open_files(-1)
    made.set_level_zero_file_num_compaction_trigger(options.runs)
    made.set_disable_auto_compactions(options.merged_beside(stored_bytes))
    # Writers never wait for compaction: the snapshot does, within its budget.
    made.set_level_zero_slowdown_writes_trigger(1 << 20)
    made.set_level_zero_stop_writes_trigger(1 << 20)
    made.set_target_file_size_base(64 * MIB)
    if options.compaction == "level":
        made.set_compaction_style(DBCompactionStyle.level())
        made.set_level_compaction_dynamic_level_bytes(True)
        made.set_max_bytes_for_level_base(max(16 * MIB, stored_bytes // 8))
    else:
        made.set_compaction_style(DBCompactionStyle.universal())
        made.set_universal_compaction_options(_universal(options, stored_bytes))
    return made


def _table(options: RocksOptions, stored_bytes: int) -> BlockBasedOptions:
    table = BlockBasedOptions()
    table.set_block_cache(block_cache(options.block_cache))
    table.set_bloom_filter(10, False)
    table.set_format_version(5)
    table.set_checksum_type(ChecksumType.xxh3())
    if reads_in_parts(options.preset, stored_bytes):
        table.set_index_type(BlockBasedIndexType.two_level_index_search())
        table.set_partition_filters(True)
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
        table.set_pin_top_level_index_and_filter(True)
    return table


def _universal(options: RocksOptions, stored_bytes: int) -> UniversalCompactOptions:
    made = UniversalCompactOptions()
    made.size_ratio = 20
    made.min_merge_width = 2
    # A merge of everything costs as much as everything: a shard beyond the budget waits longer for it.
    affordable = stored_bytes <= options.compaction_budget
    made.max_size_amplification_percent = 50 if affordable and options.preset != "write-heavy" else 100
    return made


_lock = threading.Lock()
_cache: Cache | None = None
_capacity = 0


def block_cache(capacity: int) -> Cache:
    """The process's cache, made at least `capacity` bytes large. A shard is opened anew for every batch. Its blocks stay here between
    openings, because RocksDB names them by the identity of the file, not of the opening."""
    global _cache, _capacity
    with _lock:
        if _cache is None:
            _cache = Cache(capacity)
            _capacity = capacity
        elif capacity > _capacity:
            _cache.set_capacity(capacity)
            _capacity = capacity
        return _cache
