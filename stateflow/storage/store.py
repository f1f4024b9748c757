"""The tiny store that everything durable goes through: read, create, put, copy, list, delete.

`create` is the only call that decides anything. It may lie (a client's retry turns one's own success into a
conflict; a 409 can mean that nothing was stored), so the protocol never calls it directly: see `create_once`.
Paths are relative to the store's root, with `/`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stateflow.errors import NotFoundError, UnavailableError, UsageError

TEMP = ".tmp-"
"""How the name of a half-written object begins, where a store has such things; no object's name does."""

PIECE = 256 << 10
"""Of a local file, read and written at a time. It fits the processor's cache; and a write of 1 MiB or more makes Linux
look for as much memory in one stretch, which at times took eight times as long as the write."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One listed object."""

    path: str
    size: int


class ExistsError(Exception):
    """`create` was told that the path is taken. What is there, if anything, has to be read."""


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
        """Unconditional; for unique names and for what decides nothing (heartbeats, statistics)."""
        ...

    def upload(self, source: Path, path: str) -> None:
        """A local file under a unique name; durable on return. May hard-link: never change the source."""
        ...

    def download(self, path: str, target: Path) -> None:
        """To a new local file that is never written to, since it may be a hard link.

        FileExistsError when it is not new, FileNotFoundError when its folder is missing.
        """
        ...

    def copy(self, source: str, target: str) -> None:
        """Inside the store, without a byte through this process where it can; durable on return.

        `target` is a fresh, unique name. May hard-link: never change either of the two.
        """
        ...

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """So many bytes from `start`; fewer, or none, when the object ends before."""
        ...

    def folders(self, prefix: str) -> list[str]:
        """Names of the folders right below `prefix` (empty, or ending in `/`), in order; none is opened.

        On a disk, an empty folder is one too.
        """
        ...

    def list(self, prefix: str) -> list[Entry]:
        """Everything whose path starts with `prefix`, in order of paths."""
        ...

    def delete(self, paths: Iterable[str]) -> None:
        """Idempotent: a missing path is fine."""
        ...


def checked_path(path: str) -> str:
    """`path`, if it names an object inside a root and nothing outside it."""
    segments = path.split("/")
    if "\0" in path or "\\" in path or any(s in ("", ".", "..") for s in segments):
        raise UsageError(f"{path!r} is not a path inside a checkpoint root: use plain segments joined by '/'")
    if any(s.startswith(TEMP) for s in segments):
        raise UsageError(
            f"{path!r} is not usable: names that start with {TEMP!r} are kept for unfinished files"
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


def create_once(
    store: Store,
    path: str,
    body: bytes,
    *,
    attempts: int = ATTEMPTS,
    pause: Callable[[float], object] = time.sleep,
) -> bytes:
    """What stands at `path` after trying to create it with `body`: equal to `body` exactly when it is ours.

    Bodies carry an id of their own, so that equality means 'mine'. An UnavailableError leaves it open whether
    the body stands, or will: a request that timed out may still arrive. The caller must stop, not reuse the
    path with another body; whoever comes next finds out by creating there.
    """
    unclear = "neither created nor readable"
    for attempt in range(attempts):
        if attempt:
            pause(FIRST_PAUSE * 2 ** (attempt - 1))
        try:
            store.create(path, body)
            return body
        except ExistsError:
            # Not yet 'theirs'. The client retries a PUT after a 5xx that had been stored, and is then told of
            # its own object: taken at its word, a writer would give up a slot that it owns and that nobody
            # carries out.
            pass
        except UnavailableError as error:
            # Not yet 'failed' either: the answer may be what was lost. A writer that reported failure here
            # would run its batch again into the next slot, on top of the record that stands.
            unclear = str(error)
        try:
            return store.read(path)
        except NotFoundError:
            # S3 answers 409 to two creates that meet, with nothing stored; or the object was collected since.
            # Creating again, always with the same body, is right for both: should the first request arrive
            # late, it finds its own body there, and a slot from the grave is void by its place in the chain,
            # not by this call.
            continue
        except UnavailableError as error:
            unclear = str(error)
    raise UnavailableError(
        f"{path} in {store.url} could not be created in {attempts} attempts ({unclear}): "
        "check the store and run again"
    )


def refused_for_good(store: Store, path: str) -> bool:
    """Whether a create that ended with UnavailableError has stored nothing and never will.

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
