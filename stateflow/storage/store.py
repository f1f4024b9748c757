"""The small store that everything durable goes through: read, create, put, copy, list, delete.

`create` is the only call that decides anything. Its answer may be wrong: a client that retries its own success sees a
conflict, and a 409 can mean that nothing was stored. So the protocol never calls it directly: see `create_once`.
Paths are relative to the store's root, with `/`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from stateflow.errors import NotFoundError, UnavailableError, UsageError

TEMP = ".tmp-"
"""Names of unfinished files begin with it, in stores that have such files. No object's name does."""

PIECE = 256 << 10
"""Bytes of a local file that are read or written at a time. They fit the processor's cache. For a write of 1 MiB or more
Linux looks for one stretch of memory of that size, and finding it sometimes took eight times as long as writing."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One listed object."""

    path: str
    size: int


def nothing_to_upload(source: Path, path: str, url: str) -> NotFoundError:
    return NotFoundError(f"{source} does not exist: it cannot be uploaded to {path} in {url}")


def not_saved(path: str, target: Path, error: OSError) -> UnavailableError:
    return UnavailableError(
        f"{path} could not be saved to {target.parent} ({error.strerror}): free space there"
    )


class ExistsError(Exception):
    """The store says that the path is taken. The caller has to read what is there, if anything."""


class Store(Protocol):
    """NotFoundError for a missing path, UnavailableError when the store cannot be reached or refuses."""

    @property
    def url(self) -> str:
        """Where it is, without credentials."""
        ...

    @property
    def local_root(self) -> Path | None:
        """The folder, when it is on a local disk and files can be hard-linked; else None."""
        ...

    def read(self, path: str) -> bytes: ...

    def create(self, path: str, body: bytes) -> None:
        """Create-only and durable on return; raises ExistsError when the path is taken."""
        ...

    def put(self, path: str, body: bytes) -> None:
        """Writes without a condition: for unique names, and for files that decide nothing (heartbeats, statistics)."""
        ...

    def upload(self, source: Path, path: str) -> None:
        """Stores a local file under a unique name; durable on return. It may hard-link: never change the source."""
        ...

    def download(self, path: str, target: Path) -> None:
        """Fetches an object into a new local file. Never write to that file: it may be a hard link.

        FileExistsError when the file exists, FileNotFoundError when its folder is missing.
        """
        ...

    def copy(self, source: str, target: str) -> int:
        """Copies inside the store; durable on return. Returns the bytes that went through this process: none, if possible.

        `target` is a new, unique name. It may hard-link: never change either of the two.
        """
        ...

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`; fewer, or none, when the object ends before."""
        ...

    def folders(self, prefix: str) -> list[str]:
        """Names of the folders directly below `prefix` (empty, or ending in `/`), sorted. It opens none of them.

        On a disk it names empty folders too.
        """
        ...

    def list(self, prefix: str) -> list[Entry]:
        """Every object whose path starts with `prefix`, sorted by path."""
        ...

    def delete(self, paths: Iterable[str]) -> None:
        """Deletes objects. A missing path is no error."""
        ...


@runtime_checkable
class InFolder(Protocol):
    """A store whose root is a folder, which stays when it is empty."""

    def remove_root(self) -> None:
        """Removes the root's own folder. It may raise OSError when the folder holds something."""
        ...


def checked_path(path: str) -> str:
    """`path`, if it names an object inside a root and nothing outside it."""
    segments = path.split("/")
    if "\0" in path or "\\" in path or any(s in ("", ".", "..") for s in segments):
        raise UsageError(f"{path!r} is not a path inside a checkpoint root: use plain segments joined by '/'")
    if any(s.startswith(TEMP) for s in segments):
        raise UsageError(
            f"{path!r} is not usable: names that start with {TEMP!r} are reserved for unfinished files"
        )
    return path


def checked_prefix(prefix: str) -> tuple[str, str]:
    """`prefix` as a folder (empty, or ending in `/`) and the start of a name in it."""
    folder, _, stem = prefix.rpartition("/")
    if folder:
        checked_path(folder)
    elif prefix.startswith("/"):
        raise UsageError(f"{prefix!r} is not a prefix inside a checkpoint root: leave out the leading '/'")
    if "\0" in stem or "\\" in stem or stem == "..":
        raise UsageError(
            f"{prefix!r} is not a prefix inside a checkpoint root: use plain segments joined by '/'"
        )
    return (f"{folder}/" if folder else ""), stem


def checked_folder(prefix: str) -> str:
    """`prefix`, if it stands for a folder: empty, or ending in `/`."""
    folder, stem = checked_prefix(prefix)
    if stem:
        raise UsageError(f"{prefix!r} is not a folder inside a checkpoint root: end it with '/'")
    return folder


ATTEMPTS = 6
FIRST_PAUSE = 0.1


def is_there(store: Store, path: str) -> bool:
    """Whether a small object exists."""
    try:
        store.read(path)
    except NotFoundError:
        return False
    return True


def create_once(
    store: Store,
    path: str,
    body: bytes,
    *,
    attempts: int = ATTEMPTS,
    pause: Callable[[float], object] = time.sleep,
) -> bytes:
    """Tries to create `path`, and returns the body that is there: equal to `body` exactly when this call created it.

    Every body has an id of its own, so equal bodies mean one writer. After an UnavailableError nobody knows whether the
    body was stored, or will be: a request that timed out may still arrive. The caller must stop and never use the path
    with another body. Whoever comes next finds out by creating there.
    """
    unclear = "neither created nor readable"
    for attempt in range(attempts):
        if attempt:
            pause(FIRST_PAUSE * 2 ** (attempt - 1))
        try:
            store.create(path, body)
            return body
        except ExistsError:
            # The object may be our own. A client retries a PUT after a 5xx although it was stored, and then meets its
            # own object. A writer that believed the conflict would give up a slot that it owns, and nobody would
            # carry the record out.
            pass
        except UnavailableError as error:
            # The object may be stored and only the answer lost. A writer that reported a failure here would run its
            # batch again into the next slot, on top of its own record.
            unclear = str(error)
        try:
            return store.read(path)
        except NotFoundError:
            # There is a conflict and yet no object: S3 may refuse two creates at once and store neither, or a collector
            # deleted the object since.
            # To create again with the same body is right in both cases. If the first request arrives late, it finds
            # its own body. A record in a slot that was collected before is void, because the chain does not link to it.
            continue
        except UnavailableError as error:
            unclear = str(error)
    raise UnavailableError(
        f"{path} in {store.url} could not be created in {attempts} attempts ({unclear}): "
        "check the store and run again"
    )


def takes_a_trip(store: Store) -> bool:
    """True if a network is between the store and this process."""
    return not store.url.startswith(("file://", "memory://"))


def refused_for_good(store: Store, path: str) -> bool:
    """True if the failed create stored nothing and cannot store anything later.

    A disk does not carry a request out after it has reported failure; an object store may.
    """
    if store.local_root is None:
        return False
    try:
        store.read(path)
    except NotFoundError:
        return True
    except UnavailableError:
        return False
    return False
