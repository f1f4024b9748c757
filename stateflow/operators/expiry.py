"""Lets expired entries of an operator's states go, shard by shard: before the shard's rows, within a batch's share."""

from __future__ import annotations

from collections.abc import Sequence

from stateflow.format.records import ExpiryShare
from stateflow.state.backends.base import Backend
from stateflow.state.bound import Change
from stateflow.state.expiry.index import Expiry, NextDue, next_due

AT_LEAST = 200_000
"""Expired entries of a shard that every batch may take, however small the shard is."""
SHARE = 6
"""A batch takes at most this part of a large shard, so that a backlog stalls no batch and is gone after twenty."""
WRITTEN_AT_ONCE = 500_000


class OperatorExpiry:
    """The states with a ttl in one task."""

    def __init__(self, states: Sequence[Expiry]) -> None:
        self._states = states

    @property
    def expired(self) -> int:
        """Entries that this task has let go."""
        return sum(state.expired for state in self._states)

    def attach(self, known: Sequence[ExpiryShare] = ()) -> None:
        """Turns to another shard; `known` is what its record says about the bytes that expire."""
        for state in self._states:
            state.attach(known)

    def expire(self, backend: Backend, groups: range, known: NextDue, most: int, turn: int) -> bool:
        """Deletes what is due, `most` entries per state, beginning at another key group with every `turn`.

        All scans come before the rows of the batch: a backend sorts what was written before it scans. Tells whether it wrote.
        """
        start = turn * 31 % len(groups)
        order = [*groups[start:], *groups[:start]]
        changes: list[Change] = []
        wrote = False
        for state in self._states:
            due = known[0 if state.event_time else 1]
            if state.clock is None or (due is not None and due > state.clock):
                state.next = due
                continue
            for portion in state.expire(backend, order, most):
                changes += portion
                if len(changes) > WRITTEN_AT_ONCE:
                    backend.write(changes)
                    changes, wrote = [], True
        if changes:
            backend.write(changes)
        return wrote or bool(changes)

    def finish(self, backend: Backend) -> bool:
        """Writes the blocks of all that the shard was given an expiry for. Tells whether there were any."""
        changes = [change for state in self._states for change in state.blocks()]
        if changes:
            backend.write(changes)
        for state in self._states:
            state.measure(backend)
        return bool(changes)

    @property
    def shares(self) -> tuple[ExpiryShare, ...]:
        """How much of the attached shard expires when, after `finish`."""
        return tuple(share for state in self._states for share in state.shares)

    @property
    def next_due(self) -> NextDue:
        """For the attached shard, after `finish`."""
        return next_due(self._states)


def share_of(entries: int) -> int:
    """How many expired entries a batch takes from a shard that has rows."""
    return max(AT_LEAST, entries // SHARE)
