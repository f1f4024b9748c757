"""A backend that remembers of some states what each changed entry was before the batch and what it is now."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from stateflow.format.encoding import GROUP_WIDTH, PREFIX_WIDTH
from stateflow.state.backends.base import Backend, Snapshot


class WrittenEntries(NamedTuple):
    """Entries that were written, perhaps with the values that they had: column by column, for there are many. None stands for no
    entry."""

    keys: Sequence[bytes]
    before: Sequence[bytes | None]
    after: Sequence[bytes | None]
    expired: Collection[bytes]
    """The keys of those that are gone because their ttl was over."""


class WatchedBackend:
    """Passes everything on to `backend`. What the operator reads is remembered, so that most entries need no look-up of their own."""

    def __init__(self, backend: Backend, state_ids: Collection[int]) -> None:
        self._backend = backend
        self._ids = frozenset(number.to_bytes(PREFIX_WIDTH - GROUP_WIDTH, "big") for number in state_ids)
        self._before: dict[bytes, bytes | None] = {}
        """By full key: what was stored before the batch, of every entry that was read or written."""
        self._after: dict[bytes, bytes | None] = {}
        """By full key: what was written last."""
        self._expired: set[bytes] = set()
        self._expiring = False
        """Whether what is deleted now has expired."""

    @contextmanager
    def expiry(self) -> Iterator[None]:
        """What is deleted meanwhile has expired."""
        self._expiring = True
        yield
        self._expiring = False

    def written(self, state_id: int) -> WrittenEntries:
        """The entries of a state that were written, in the order of their keys."""
        keys: list[bytes] = sorted(self._after)
        if len(self._ids) > 1:
            number = state_id.to_bytes(PREFIX_WIDTH - GROUP_WIDTH, "big")
            keys = [key for key in keys if key[GROUP_WIDTH:PREFIX_WIDTH] == number]
        before, after = map(self._before.__getitem__, keys), map(self._after.__getitem__, keys)
        return WrittenEntries(keys, list(before), list(after), self._expired)

    def _is_watched(self, key: bytes) -> bool:
        return key[GROUP_WIDTH:PREFIX_WIDTH] in self._ids

    def _will_write(self, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Before entries of watched states are written."""
        before = self._before
        unknown = sorted({key for key, _ in changes if key not in before})
        if unknown:
            before.update(zip(unknown, self._backend.get_many(unknown), strict=True))
        self._after.update(changes)
        if self._expiring:
            self._expired.update(key for key, value in changes if value is None)
        elif self._expired:
            self._expired.difference_update(key for key, _ in changes)

    def get(self, key: bytes) -> bytes | None:
        raw = self._backend.get(key)
        if key[GROUP_WIDTH:PREFIX_WIDTH] in self._ids:
            self._before.setdefault(key, raw)
        return raw

    def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        raws = self._backend.get_many(keys)
        # The keys of one call are of one state, nearly always. Those of other states do no harm here.
        if keys and self._is_watched(keys[0]):
            deque(map(self._before.setdefault, keys, raws), maxlen=0)
        return raws

    @property
    def is_afar(self) -> bool:
        return self._backend.is_afar

    def expect(self, keys: Sequence[bytes]) -> None:
        self._backend.expect(keys)

    def write(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        every = changes if isinstance(changes, list) else list(changes)
        ids = self._ids
        self._will_write([change for change in every if change[0][GROUP_WIDTH:PREFIX_WIDTH] in ids])
        self._backend.write(every)

    def delete_range(self, begin: bytes, end: bytes) -> None:
        # A range lies within one state, or it is of a state that is not watched.
        if self._is_watched(begin) or self._is_watched(end):
            found = [(key, raw) for key, raw in self._backend.scan(begin, end) if self._is_watched(key)]
            for key, raw in found:
                self._before.setdefault(key, raw)
            self._will_write([(key, None) for key, _ in found])
        self._backend.delete_range(begin, end)

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._backend.scan(begin, end)

    def scan_many(self, begins: Sequence[bytes]) -> Iterator[list[tuple[bytes, bytes]]]:
        return self._backend.scan_many(begins)

    def first(self, begin: bytes, end: bytes) -> bytes | None:
        return self._backend.first(begin, end)

    def snapshot(self) -> Snapshot:
        return self._backend.snapshot()

    def close(self) -> None:
        self._backend.close()
