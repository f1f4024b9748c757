"""Files in a store or a folder."""

from __future__ import annotations

import hashlib
from pathlib import Path

import xxhash

from stateflow.format.records import FileRef
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


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
