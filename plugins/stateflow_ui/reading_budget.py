"""What one question about state may cost the API server, and a cache and shards that keep to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stateflow.errors import StateflowError
from stateflow.format.records import FileRef, Shard
from stateflow.quantities import size_text
from stateflow.reading.files.shard_files import Identity, StateFiles, identity
from stateflow.reading.files.sst import DeletedRange, FileEntry, SstFile
from stateflow.storage.cache import FileCache
from stateflow.storage.store import Store

MOST_FETCHED = 256 << 20
"""Bytes that come over a network."""


class BudgetSpent(StateflowError):
    """A question has cost enough. It is none of the errors that a reader takes for an answer: a key of another type, a checkpoint
    that was collected."""


@dataclass
class ReadingBudget:
    """Raises BudgetSpent when a question has cost enough."""

    command: str
    """What answers the same without these bounds."""
    seconds: float
    fetched: int = MOST_FETCHED
    monotonic: Callable[[], float] = time.monotonic
    _end: float = field(init=False)

    def __post_init__(self) -> None:
        self._end = self.monotonic() + self.seconds

    def check(self) -> None:
        if self.monotonic() > self._end:
            raise BudgetSpent(
                f"reading this takes longer than the {self.seconds:.0f} seconds that the pages take for it: narrow it down, or use "
                f"`{self.command}`"
            )

    def fetch(self, size: int) -> None:
        self.check()
        self.fetched -= size
        if self.fetched < 0:
            raise BudgetSpent(
                f"reading this fetches more than the {size_text(MOST_FETCHED)} of state that the pages fetch for it: narrow it down, or "
                f"use `{self.command}`"
            )


class BudgetedCache(FileCache):
    """The host's cache, for one question."""

    def __init__(self, folder: Path, limit_bytes: int, budget: ReadingBudget) -> None:
        super().__init__(folder, limit_bytes)
        self._budget = budget

    def fetch(self, store: Store, ref: FileRef) -> Path:
        far = store.local_root is None and not self.holds(store, ref)
        self._budget.fetch(ref.size if far else 0)
        return super().fetch(store, ref)


class BudgetedShard:
    """One shard, read where its files are: whoever may write to a root hands the API server no database to open."""

    def __init__(self, files: StateFiles, shard: Shard, budget: ReadingBudget) -> None:
        self._files, self._shard, self._budget = files, shard, budget
        self._opened: dict[Identity, tuple[SstFile, Sequence[DeletedRange]]] = {}

    def get(self, key: bytes) -> bytes | None:
        return next((value for _, value in self.scan(key, key + b"\0")), None)

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._budget.check()
        yield from self._files.entries(self._shard, begin, end, self._told)

    def _told(
        self, ref: FileRef, begin: bytes, end: bytes
    ) -> tuple[Iterable[FileEntry], Sequence[DeletedRange]]:
        """Keeps each file open, and what it says of no key: a question may ask for very many."""
        own = identity(ref)
        if own not in self._opened:
            file = self._files.sst(ref)
            self._opened[own] = file, tuple(file.deleted_ranges())
        file, ranges = self._opened[own]
        return file.entries(begin, end), ranges

    def close(self) -> None:
        self._opened.clear()
