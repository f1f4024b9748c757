"""References to immutable files: made when a file is written, checked whenever it is fetched."""

from __future__ import annotations

from pathlib import Path

import xxhash

from stateflow.errors import CorruptError, NotFoundError
from stateflow.format.records import FileRef
from stateflow.storage.store import PIECE, Store


def checksum(local: Path) -> tuple[int, str]:
    """`(size, XXH3-64 in hex)` of a file, read in pieces."""
    digest = xxhash.xxh3_64()
    size = 0
    with local.open("rb") as file:
        while chunk := file.read(PIECE):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


def upload_file(store: Store, path: str, local: Path, name: str) -> FileRef:
    """Uploads `local` under the unique `path` and describes it. The file must never be written to again."""
    if not local.is_file():
        raise NotFoundError(f"{local} does not exist: it cannot be uploaded to {path} in {store.url}")
    size, xxh3 = checksum(local)
    store.upload(local, path)
    return FileRef(name=name, size=size, xxh3=xxh3, path=path)


def inline(name: str, data: bytes) -> FileRef:
    """A file that travels inside the record."""
    return FileRef(name=name, size=len(data), xxh3=xxhash.xxh3_64_hexdigest(data), data=data)


def where(ref: FileRef, root: str) -> str:
    """What a person looks for: the root's URL and the path, or that the bytes are in the record."""
    return f"{ref.base or root}/{ref.path}" if ref.data is None else f"{ref.name} (kept inside its record)"


def verify(ref: FileRef, local: Path, root: str = "") -> None:
    """CorruptError unless `local` has the size and checksum of `ref`; `root` is the URL for the error."""
    size, xxh3 = checksum(local)
    if size != ref.size:
        raise CorruptError(
            f"{where(ref, root)} has {size} bytes instead of {ref.size}; run `stateflow verify` and restore "
            "from an earlier checkpoint with `stateflow restore`"
        )
    if xxh3 != ref.xxh3:
        raise CorruptError(
            f"{where(ref, root)} does not match its checksum; run `stateflow verify` and restore from "
            "an earlier checkpoint with `stateflow restore`"
        )
