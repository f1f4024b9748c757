"""Deletes expired entries of an operator's states, shard by shard, before the shard's rows and within a batch's share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

from stateflow.format.records import ExpiryShare
from stateflow.state.backends.base import Backend
from stateflow.state.expiry.index import Change, Expiry, NextDue, Portion, next_due

AT_LEAST = 200_000
"""Expired entries of a shard that every batch may take, however small the shard is."""
SHARE = 6
"""A batch takes at most this part of a large shard, so that a backlog stalls no batch and is gone after twenty."""
WRITTEN_AT_ONCE = 500_000
LARGE = 50_000
"""With more entries than this, a shard's key groups take turns."""
TURNS = 8
"""Each batch visits an eighth of the key groups of a large shard. The entries that expire in eight batches lie eight times as
close together, so most look-ups become steps to the next entry."""


class OperatorExpiry:
    """The states with a ttl in one task. `attach` a shard's backend, `expire` before its rows, `finish` behind them."""

    def __init__(self, states: Sequence[Expiry], turn: int) -> None:
        """Of a large shard, each `turn` begins at another key group."""
        self.states = states
        self._turn = turn
        self._backend: Backend | None = None
        self.wrote = False
        """Whether it has written to the attached shard."""

    @property
    def expired(self) -> int:
        """Entries that this task has deleted."""
        return sum(state.expired for state in self.states)

    def attach(self, backend: Backend, known: Sequence[ExpiryShare] = ()) -> None:
        """Turns to another shard; `known` is what its record says about the bytes that expire."""
        self._backend, self.wrote = backend, False
        for state in self.states:
            state.attach(known)

    def expire(
        self, groups: range, known: NextDue = (None, None), entries: int = 0, *, without_rows: bool = False
    ) -> None:
        """Deletes what is due, of a large shard the share of one batch. `known` is when the first of it is due.

        `entries` is about how many the shard has; `without_rows`: nothing else happens to it in this batch. All scans come
        before the rows of the batch: a backend sorts what was written before it scans.
        """
        assert self._backend is not None
        backend, turn = self._backend, self._turn
        start = turn * 31 % len(groups)
        order = [*groups[start:], *groups[:start]]
        now, later = order, list[int]()
        if entries >= LARGE and not without_rows:
            now = [group for group in order if (group + turn) % TURNS == 0]
            later = [group for group in order if (group + turn) % TURNS]
        going = _Going(backend)
        for state in self.states:
            due = known[0 if state.event_time else 1]
            if state.clock is None or (due is not None and due > state.clock):
                state.next = due
                continue
            found = going.take(state.expire(backend, now, share_of(entries)))
            if found and later:
                state.waits(due)
            elif later:
                # Nothing was due here, so it may be over: then the shard's record is to say so.
                going.take(state.expire(backend, later, share_of(entries)))
        self.wrote = going.write()

    def finish(self) -> NextDue:
        """Writes the blocks of all that the shard was given an expiry for. Tells when the first of it is due."""
        assert self._backend is not None
        changes = [change for state in self.states for change in state.blocks()]
        if changes:
            self._backend.write(changes)
            self.wrote = True
        for state in self.states:
            state.measure(self._backend)
        return next_due(self.states)

    @property
    def shares(self) -> tuple[ExpiryShare, ...]:
        """How much of the attached shard expires when, after `finish`."""
        return tuple(share for state in self.states for share in state.shares)


class _Going:
    """Expired entries that are still to be deleted. As long as they are few, other states are scanned first."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._gone: list[Sequence[bytes]] = []
        self._changes: list[Change] = []
        self._length = 0
        self._wrote = False

    def take(self, portions: Iterable[Portion]) -> bool:
        """Tells whether there is anything."""
        found = False
        for gone, changes in portions:
            found = found or bool(gone or changes)
            self._gone.append(gone)
            self._changes += changes
            self._length += len(gone) + len(changes)
            if self._length > WRITTEN_AT_ONCE:
                self.write()
        return found

    def write(self) -> bool:
        """Tells whether anything was written, then or before."""
        for gone in self._gone:
            self._backend.write(zip(gone, repeat(None)))
        self._backend.write(self._changes)
        self._wrote = self._wrote or self._length > 0
        self._gone, self._changes, self._length = [], [], 0
        return self._wrote


def share_of(entries: int) -> int:
    """How many expired entries a batch takes from a shard that has rows."""
    return max(AT_LEAST, entries // SHARE)
