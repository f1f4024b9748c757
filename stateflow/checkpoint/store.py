"""The tiny store that everything durable goes through: read, create, put, list, delete.

`create` is the only call that decides anything. It may lie (a client's retry turns one's own success into a
conflict; a 409 can mean that nothing was stored), so the protocol never calls it directly: see `create_once`.
Paths are relative to the store's root, with `/`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Entry:
    """One listed object."""

    path: str
    size: int


class ExistsError(Exception):
    """`create` was told that the path is taken. What is there, if anything, has to be read."""


class Store(Protocol):
    """Raises NotFoundError for a missing path and UnavailableError when the store cannot be reached or refuses."""

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
        """A local file under a unique name; durable on return. May hard-link: the source is never written again."""
        ...

    def download(self, path: str, target: Path) -> None:
        """To a new local file; may hard-link."""
        ...

    def list(self, prefix: str) -> list[Entry]:
        """Everything whose path starts with `prefix`, in order of paths."""
        ...

    def delete(self, paths: Iterable[str]) -> None:
        """Idempotent: a missing path is fine."""
        ...


def create_once(store: Store, path: str, body: bytes) -> bytes:
    """What stands at `path` after trying to create it with `body`: equal to `body` exactly when it is ours.

    Bodies carry an id of their own, so that equality means 'mine'.
    """
    while True:
        raise NotImplementedError
