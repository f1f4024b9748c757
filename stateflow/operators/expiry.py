"""Lets expired entries of an operator's states go, shard by shard: before the shard's rows, within a batch's share."""

from __future__ import annotations

from collections.abc import Sequence

from stateflow.state.backends.base import Backend
from stateflow.state.bound import Change
from stateflow.state.expiry import Expiry

AT_LEAST = 200_000
"""Expired entries of a shard that every batch may take, however small the shard is."""
SHARE = 6
"""A batch takes at most this part of a large shard, so that a backlog stalls no batch and is gone after twenty."""
WRITTEN_AT_ONCE = 500_000

NextDue = tuple[int | None, int | None]
"""When the first block of a shard comes due: in event time, in processing time. None: nothing is known to expire."""


class OperatorExpiry:
    """The states with a ttl in one task."""

    def __init__(self, states: Sequence[Expiry]) -> None:
        self._states = states
        self._known: NextDue = (None, None)

    @property
    def expired(self) -> int:
        """Entries that this task has let go."""
        return sum(state.expired for state in self._states)

    def attach(self) -> None:
        self._known = (None, None)
        for state in self._states:
            state.next = None

    def expire(self, backend: Backend, groups: range, known: NextDue, most: int, turn: int) -> bool:
        """Deletes what is due, `most` entries per state, beginning at another key group with every `turn`.

        All scans come before the rows of the batch: a backend sorts what was written before it scans. Tells whether it wrote.
        """
        self._known = known
        start = turn * 31 % len(groups)
        order = [*groups[start:], *groups[:start]]
        changes: list[Change] = []
        wrote = False
        for state in self._states:
            if not self._is_due(state):
                continue
            for portion in state.expire(backend, order, most):
                changes += portion
                if len(changes) > WRITTEN_AT_ONCE:
                    backend.write(changes)
                    changes, wrote = [], True
        if changes:
            backend.write(changes)
        return wrote or bool(changes)

    def _is_due(self, state: Expiry) -> bool:
        known = self._known[0 if state.event_time else 1]
        if state.clock is None:
            return False
        if known is None:
            return True
        if known <= state.clock:
            return True
        state.next = known
        return False

    def settle(self, backend: Backend, changes: list[Change]) -> None:
        """Before `changes` are written."""
        for state in self._states:
            state.settle(backend, changes)

    def finish(self, backend: Backend) -> bool:
        """Writes the blocks of all that the shard was given an expiry for. Tells whether there were any."""
        changes = [change for state in self._states for change in state.blocks()]
        if changes:
            backend.write(changes)
        return bool(changes)

    @property
    def next_due(self) -> NextDue:
        """For the attached shard, after `finish`."""
        return self._earliest(event_time=True), self._earliest(event_time=False)

    def _earliest(self, *, event_time: bool) -> int | None:
        of_kind = [state for state in self._states if state.event_time == event_time]
        times = [state.next for state in of_kind if state.next is not None]
        waiting = self._known[0 if event_time else 1]
        if waiting is not None and any(state.clock is None for state in of_kind):
            times.append(waiting)
        return min(times, default=None)


def share_of(entries: int) -> int:
    """How many expired entries a batch takes from a shard that has rows."""
    return max(AT_LEAST, entries // SHARE)
