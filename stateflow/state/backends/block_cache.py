"""One block cache per process.

A shard is opened anew for every batch. Its blocks stay here between openings, because RocksDB names them by the
identity of the file, not of the opening.
"""

from __future__ import annotations

import threading

from rocksdict import Cache

_lock = threading.Lock()
_cache: Cache | None = None
_capacity = 0


def block_cache(capacity: int) -> Cache:
    """The process's cache, made at least `capacity` bytes large."""
    global _cache, _capacity
    with _lock:
        if _cache is None:
            _cache = Cache(capacity)
            _capacity = capacity
        elif capacity > _capacity:
            _cache.set_capacity(capacity)
            _capacity = capacity
        return _cache
