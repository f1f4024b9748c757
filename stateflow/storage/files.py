"""References to immutable files: made when a file is written, compared whenever it is fetched."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from stateflow.errors import CorruptError
from stateflow.format.records import FileRef
from stateflow.storage.store import PIECE, Store, nothing_to_upload


@dataclass(frozen=True, slots=True)
class Digests:
    """The size and checksums that a reference records. XXH3 finds damage at the speed of memory, but anybody can make other
    bytes with the same XXH3. Nobody can for SHA-256."""

    size: int
    xxh3: str
    sha256: bytes


def digests(local: Path) -> Digests:
    """The size and both checksums, in one pass over the file."""
    xxh3, sha256 = xxhash.xxh3_64(), hashlib.sha256()
    size = _feed(local, xxh3, sha256)
    return Digests(size, xxh3.hexdigest(), sha256.digest())


def checksum(local: Path) -> tuple[int, str]:
    """`(size, XXH3-64 in hex)` of a file, read in pieces."""
    digest = xxhash.xxh3_64()
    return _feed(local, digest), digest.hexdigest()


def _feed(local: Path, *hashes: Any) -> int:
    """Gives the hashes all bytes of a file, and returns how many there are."""
    with local.open("rb") as file:
        while chunk := file.read(PIECE):
            for each in hashes:
                each.update(chunk)
        return file.tell()


def upload_file(store: Store, path: str, local: Path, name: str) -> FileRef:
    """Uploads `local` under the unique `path` and describes it. The file must never be written to again."""
    if not local.is_file():
        raise nothing_to_upload(local, path, store.url)
    computed = digests(local)
    store.upload(local, path)
    return FileRef(name=name, size=computed.size, xxh3=computed.xxh3, path=path, sha256=computed.sha256)


def inline(name: str, data: bytes) -> FileRef:
    """A file that travels inside the record."""
    return FileRef(name=name, size=len(data), xxh3=xxhash.xxh3_64_hexdigest(data), data=data)


def where(ref: FileRef, root: str) -> str:
    """Where the file is, for messages: the root's URL and the path, or that the bytes are in the record."""
    return f"{ref.base or root}/{ref.path}" if ref.data is None else f"{ref.name} (kept inside its record)"


def missing(ref: FileRef, root: str) -> CorruptError:
    """The error for a file that a record names and that is not there."""
    return CorruptError(
        f"{where(ref, root)} is missing; run `stateflow verify` and restore from an earlier checkpoint with `stateflow restore`"
    )


def verify(ref: FileRef, local: Path, root: str = "") -> None:
    """CorruptError unless `local` has the size and the checksums of `ref`; `root` is the URL for the error."""
    if ref.sha256:
        computed = digests(local)
        size, same = computed.size, (computed.xxh3, computed.sha256) == (ref.xxh3, ref.sha256)
    else:
        size, xxh3 = checksum(local)
        same = xxh3 == ref.xxh3
    if size != ref.size:
        raise CorruptError(
            f"{where(ref, root)} has {size} bytes instead of {ref.size}; run `stateflow verify` and restore "
            "from an earlier checkpoint with `stateflow restore`"
        )
    if not same:
        raise CorruptError(
            f"{where(ref, root)} does not match its checksum; run `stateflow verify` and restore from "
            "an earlier checkpoint with `stateflow restore`"
        )
