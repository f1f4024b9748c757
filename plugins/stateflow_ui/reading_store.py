"""A store as the pages use it: it reads, it never writes, and no single object can fill the API server's memory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from stateflow.errors import CorruptError, UsageError
from stateflow.quantities import size_text
from stateflow.storage.store import Entry, Store

MOST_BYTES = 32 << 20
"""Of one object. The record of a job with a hundred thousand state files is smaller."""

_FIRST = 1 << 20
"""Almost every object has fewer bytes, also a whole segment of the history, so that one request is enough."""


class ReadingStore:
    """Refuses an object of more than `most` bytes, which whoever may write into a root may put there."""

    def __init__(self, store: Store, most: int = MOST_BYTES) -> None:
        self._store, self._most = store, most

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def local_root(self) -> Path | None:
        return self._store.local_root

    def read(self, path: str) -> bytes:
        # A local disk sets as much memory aside as it is asked for, so that 32 MB for each small body would cost time.
        first = min(_FIRST, self._most + 1)
        body = self._store.read_range(path, 0, first)
        if len(body) == first <= self._most:
            body += self._store.read_range(path, first, self._most + 1 - first)
        if len(body) > self._most:
            raise CorruptError(
                f"{path} has more than {size_text(self._most)}, which the pages do not read: look at it with "
                "`stateflow verify`"
            )
        return body

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self._store.read_range(path, start, length)

    def folders(self, prefix: str) -> list[str]:
        return self._store.folders(prefix)

    def list(self, prefix: str) -> list[Entry]:
        return self._store.list(prefix)

    def create(self, path: str, body: bytes) -> NoReturn:
        self._refuse(path)

    def put(self, path: str, body: bytes) -> NoReturn:
        self._refuse(path)

    def upload(self, source: Path, path: str) -> NoReturn:
        self._refuse(path)

    def download(self, path: str, target: Path) -> NoReturn:
        self._refuse(path)

    def copy(self, source: str, target: str) -> NoReturn:
        self._refuse(target)

    def delete(self, paths: Iterable[str]) -> NoReturn:
        self._refuse(", ".join(paths))

    def _refuse(self, path: str) -> NoReturn:
        raise UsageError(f"the pages only read, so they leave {path} as it is: use the command line or a DAG")
