"""How much of a shard expires when: a few ranges of time per state, kept up to date by what a batch changes.

It counts what the blocks of the index name, and no entry is read for it but a small sample of what is written. So it is an
estimate: an entry that is cleared counts until its block comes due, and one that grows counts as large as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from stateflow.format.expiry_blocks import AT_ONCE
from stateflow.format.instants import END_OF_TIME
from stateflow.format.records import ExpiryShare

RANGES = 6
"""Ranges of time that a record keeps per state and shard: they travel with every record."""


class Shares:
    """One state in one shard."""

    def __init__(self, state_id: int, known: Iterable[ExpiryShare] = ()) -> None:
        self._state_id = state_id
        self.ranges = sorted((s for s in known if s.state == state_id), key=lambda s: s.first)
        """In the order of time, and separate from each other."""

    def add(self, due: int, entries: int, size: int) -> None:
        """Counts entries that are named by blocks of this due time, and their bytes."""
        due = _moment(due)
        at = next((i for i, share in enumerate(self.ranges) if share.last >= due), len(self.ranges))
        if at < len(self.ranges) and self.ranges[at].first <= due:
            old = self.ranges[at]
            self.ranges[at] = _sized(old, old.entries + entries, old.size + size)
        else:
            self.ranges.insert(at, ExpiryShare(self._state_id, due, due, entries, size))
            self._shorten()

    def take(self, due: int, entries: int) -> None:
        """Takes entries out of the count, since the blocks of this due time that named them are gone."""
        due = _moment(due)
        for at, old in enumerate(self.ranges):
            if old.first <= due <= old.last:
                rest = max(old.entries - entries, 0)
                self.ranges[at : at + 1] = [_sized(old, rest, old.size * rest // old.entries)] if rest else []
                return

    def since(self, due: int | None) -> None:
        """Moves the ranges up to the time of the next block; None: there is no block. Nothing comes due before it."""
        self.ranges = [
            msgspec.structs.replace(share, first=max(share.first, due))
            for share in self.ranges
            if due is not None and share.last >= due
        ]

    def join(self, other: ExpiryShare) -> None:
        """Takes up a range of another shard, together with those that it overlaps."""
        separate = [s for s in self.ranges if s.last < other.first or s.first > other.last]
        together = [other, *(s for s in self.ranges if s not in separate)]
        self.ranges = sorted([*separate, _together(together)], key=lambda s: s.first)
        self._shorten()

    def _shorten(self) -> None:
        """Puts the two neighbours together that have the fewest entries, if there are too many ranges."""
        while len(self.ranges) > RANGES:
            # Entries whose time has not begun stay separate.
            ends = len(self.ranges) - (self.ranges[-1].last >= END_OF_TIME)
            at = min(range(ends - 1), key=lambda i: self.ranges[i].entries + self.ranges[i + 1].entries)
            self.ranges[at : at + 2] = [_together(self.ranges[at : at + 2])]


def joined_shares(parts: Iterable[Sequence[ExpiryShare]]) -> tuple[ExpiryShare, ...]:
    """The shares of several shards that become one."""
    states: dict[int, Shares] = {}
    for share in (share for part in parts for share in part):
        states.setdefault(share.state, Shares(share.state)).join(share)
    return tuple(share for _, shares in sorted(states.items()) for share in shares.ranges)


def _moment(due: int) -> int:
    # Entries from before the first watermark: their time has not begun, whatever the index calls them.
    return END_OF_TIME if due == AT_ONCE else due


def _sized(share: ExpiryShare, entries: int, size: int) -> ExpiryShare:
    return msgspec.structs.replace(share, entries=entries, size=size)


def _together(shares: Sequence[ExpiryShare]) -> ExpiryShare:
    return ExpiryShare(
        shares[0].state,
        min(s.first for s in shares),
        max(s.last for s in shares),
        sum(s.entries for s in shares),
        sum(s.size for s in shares),
    )
