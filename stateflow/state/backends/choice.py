"""Opens shards by the name of their backend, with the options of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stateflow.config.options import Options
from stateflow.errors import IncompatibleError
from stateflow.state.backends.base import OpenShard
from stateflow.state.backends.rocksdb_options import RocksOptions


@dataclass(frozen=True)
class Backends:
    """Travels to the workers."""

    rocks: RocksOptions

    def __call__(self, backend: str) -> OpenShard:
        if backend == "rocksdb":
            from stateflow.state.backends.rocksdb import rocksdb_backend

            return rocksdb_backend(self.rocks)
        if backend == "memory":
            from stateflow.state.backends.memory import memory_backend

            return memory_backend(self.rocks.inline_threshold)
        raise IncompatibleError(
            f"state was written by the backend {backend!r}, which this version does not have"
        )


@dataclass(frozen=True)
class ShardReaders(Backends):
    """Opens shards that are only read, within their own key groups."""

    def __call__(self, backend: str) -> OpenShard:
        if backend == "rocksdb":
            from stateflow.state.backends.rocksdb import rocksdb_reader

            return rocksdb_reader(self.rocks)
        return super().__call__(backend)


def open_backend(options: Options) -> Backends:
    return Backends(
        RocksOptions(
            preset=options.rocksdb_preset,
            compaction=options.rocksdb_compaction,
            block_cache=options.rocksdb_block_cache,
            write_buffer=options.rocksdb_write_buffer,
            compaction_budget=options.rocksdb_compaction_budget,
            inline_threshold=options.inline_threshold,
        )
    )


def open_backend_of_run(options: Options) -> Backends:
    """For the tasks of a run, in whose workers merges can go on behind a batch."""
    beside = options.rocksdb_merges == "beside" or (
        options.rocksdb_merges == "auto" and options.trigger != "drain"
    )
    return Backends(replace(open_backend(options).rocks, merges="beside" if beside else "inside"))


def open_reader(options: Options) -> ShardReaders:
    return ShardReaders(open_backend(options).rocks)
