"""Files in a store, and operators whose state is in them."""

from __future__ import annotations

import hashlib
from typing import Any

import xxhash

from stateflow.format.records import FileRef, OperatorState, Shard
from stateflow.storage.store import Store


def body(name: str, size: int) -> bytes:
    """Content that is no other file's."""
    return (f"{name} " * (size // (len(name) + 1) + 1)).encode()[:size]


def stored(store: Store, path: str, content: bytes, *, name: str = "", base: str = "") -> FileRef:
    store.put(path, content)
    return FileRef(
        name=name or path.rpartition("/")[2],
        size=len(content),
        xxh3=xxhash.xxh3_64_hexdigest(content),
        path=path,
        base=base,
        sha256=hashlib.sha256(content).digest(),
    )


def objects(store: Store) -> dict[str, int]:
    return {entry.path: entry.size for entry in store.list("")}


def one_shard(
    *files: FileRef,
    key: tuple[str, str] = ("k", "long"),
    groups: int = 1,
    backend: str = "fake",
    entries: int = 0,
    times: int = 1,
    **fields: Any,
) -> OperatorState:
    """An operator whose one subtask has all key groups, in one shard of these files; or in so many handles of it."""
    shard = Shard(first=0, last=groups - 1, backend=backend, files=files, entries=entries)
    return OperatorState(
        key=(key,),
        max_parallelism=groups,
        assignment=((0, groups - 1),),
        shards=((shard,) * times,),
        **fields,
    )
