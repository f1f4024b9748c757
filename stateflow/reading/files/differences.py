"""Which stored entries differ between two shards, from those of their files that they do not share.

An entry that differs stands in such a file, since a file never changes. What the *other* side holds of it may stand in a shared
file, though. Sequence numbers tell: an entry above everything that a shared file has of its keys is what that side
holds. Where they do not tell, the answer is `UNKNOWN`, and only a look-up knows.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Final

from stateflow.errors import IncompatibleError
from stateflow.format.encoding import group_range
from stateflow.format.records import FileRef, Shard
from stateflow.reading.files.manifest import LiveFile
from stateflow.reading.files.shard_files import Identity, StateFiles, identity
from stateflow.reading.files.sst import DeletedRange


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = _Unknown()
Stored = bytes | None | _Unknown
"""The bytes, None where there is nothing, or that only a look-up knows."""
_BEFORE, _AFTER = 0, 1


@dataclass(frozen=True, slots=True)
class Difference:
    """An entry whose bytes may differ."""

    key: bytes
    before: Stored
    after: Stored


@dataclass(frozen=True)
class ShardSide:
    """One of two shards."""

    files: StateFiles
    shard: Shard


@dataclass(frozen=True)
class ShardPair:
    """The key groups that a shard before and a shard after have in common, and their files."""

    before: ShardSide
    after: ShardSide
    first: int
    last: int
    own: tuple[tuple[FileRef, ...], tuple[FileRef, ...]]
    """State files of either side that the other one lacks."""
    shared: tuple[FileRef, ...]
    """Of the side before."""

    @property
    def sides(self) -> tuple[ShardSide, ShardSide]:
        return self.before, self.after


def pairs_of_shards(
    before: Sequence[ShardSide], after: Sequence[ShardSide], *, share: bool = True
) -> Iterator[ShardPair]:
    """By key groups. Without `share` no file counts as shared: for states that have other ids on the other side."""
    for one in before:
        for other in after:
            first, last = max(one.shard.first, other.shard.first), min(one.shard.last, other.shard.last)
            if first <= last:
                yield _pair(one, other, first, last, share)


def _pair(before: ShardSide, after: ShardSide, first: int, last: int, share: bool) -> ShardPair:
    named = [
        {identity(ref): ref for ref in side.shard.files if _holds_entries(ref)} for side in (before, after)
    ]
    both: set[Identity] = set()
    if share and before.shard.backend == after.shard.backend:
        both = named[_BEFORE].keys() & named[_AFTER].keys()
    own = [tuple(ref for own, ref in refs.items() if own not in both) for refs in named]
    shared = tuple(ref for key, ref in named[_BEFORE].items() if key in both)
    return ShardPair(before, after, first, last, (own[_BEFORE], own[_AFTER]), shared)


def _holds_entries(ref: FileRef) -> bool:
    return ref.name.endswith((".sst", ".bin"))


def differing_entries(
    pair: ShardPair, *, every: bool = False
) -> tuple[Iterator[Difference], list[DeletedRange]]:
    """Entries in key order, and ranges that one side has deleted: a shared file may still hold entries of these. `every`: also those that
    have the same bytes, since under one id they may be of two states."""
    begin, end = group_range(pair.first, pair.last)
    sides = [_OneSide(side, own, pair, begin, end) for side, own in zip(pair.sides, pair.own, strict=True)]
    # A range that both sides have deleted in the same breath hides nothing from one of them alone; such ranges are rare, and
    # whatever they may have hidden is looked up.
    ranges = [
        DeletedRange(max(r.begin, begin), min(r.end, end), r.sequence)
        for side in sides
        for r in side.deleted
        if pair.shared and r.begin < end and begin < r.end
    ]
    return _merged(sides[_BEFORE], sides[_AFTER], every), ranges


class _OneSide:
    """What one side's own files say, and how that stands to the files that both have."""

    def __init__(
        self, side: ShardSide, own: Sequence[FileRef], pair: ShardPair, begin: bytes, end: bytes
    ) -> None:
        self._files, self._begin, self._end = side.files, begin, end
        self._shard = side.shard
        self._own: list[tuple[FileRef, LiveFile]] = []
        self.shared: list[LiveFile] = []
        self.deleted: list[DeletedRange] = []
        if side.shard.backend == "memory":
            return
        if side.shard.backend != "rocksdb" and side.shard.files:
            raise IncompatibleError(
                f"state was written by the backend {side.shard.backend!r}, which this version does not have"
            )
        mine = {ref.name for ref in own}
        for ref, live in side.files.live(side.shard) if side.shard.files else ():
            if not live.spans(begin, end):
                continue
            if ref.name in mine:
                self._own.append((ref, live))
                self.deleted += side.files.sst(ref).deleted_ranges()
            else:
                self.shared.append(live)

    def entries(self, number: int) -> Iterator[tuple[bytes, int, int, bytes | None]]:
        """Key, side, sequence number and value, in key order."""
        if self._shard.backend == "memory":
            if self._shard.files:
                held = self._files.memory(self._shard)
                yield from ((key, number, 0, value) for key, value in held.scan(self._begin, self._end))
            return
        yield from heapq.merge(
            *(self._of_file(ref, live, number) for ref, live in self._own), key=itemgetter(0)
        )

    def _of_file(
        self, ref: FileRef, live: LiveFile, number: int
    ) -> Iterator[tuple[bytes, int, int, bytes | None]]:
        for entry in self._files.sst(ref).entries(self._begin, self._end):
            yield entry.key, number, self._files.ingested(live, entry), entry.value

    def latest(
        self, key: bytes, entries: Sequence[tuple[int, bytes | None]]
    ) -> tuple[int, bytes | None] | None:
        """The latest of what its own files say of a key, ranges included."""
        best = max(entries, key=itemgetter(0), default=None)
        for range_ in self.deleted:
            if range_.begin <= key < range_.end and (best is None or range_.sequence > best[0]):
                best = range_.sequence, None
        return best

    def stored(self, key: bytes, latest: tuple[int, bytes | None] | None) -> Stored:
        spanning = [live for live in self.shared if live.smallest <= key <= live.largest]
        if not spanning:
            return None if latest is None else latest[1]
        if latest is not None and all(latest[0] > live.last_sequence for live in spanning):
            return latest[1]
        return UNKNOWN

    def rank(self, key: bytes, sequence: int) -> tuple[object, ...] | None:
        """How an entry stands to each shared file; None where it may be older or newer than what that file holds."""
        ranks: list[object] = []
        for live in self.shared:
            if live.smallest <= key <= live.largest:
                if live.first_sequence <= sequence <= live.last_sequence:
                    return None
                ranks.append((live.name, sequence > live.last_sequence))
        return tuple(ranks)


def _merged(before: _OneSide, after: _OneSide, every: bool) -> Iterator[Difference]:
    both = heapq.merge(before.entries(_BEFORE), after.entries(_AFTER), key=itemgetter(0))
    for key, entries in groupby(both, key=itemgetter(0)):
        by_side: tuple[list[tuple[int, bytes | None]], list[tuple[int, bytes | None]]] = ([], [])
        for _, number, sequence, value in entries:
            by_side[number].append((sequence, value))
        one, other = before.latest(key, by_side[_BEFORE]), after.latest(key, by_side[_AFTER])
        if not every and one is not None and other is not None and one[1] == other[1]:
            rank = before.rank(key, one[0])
            if rank is not None and rank == after.rank(key, other[0]):
                continue  # a merge has moved it, and nobody wrote it
        stored = Difference(key, before.stored(key, one), after.stored(key, other))
        if every or stored.before is UNKNOWN or stored.after is UNKNOWN or stored.before != stored.after:
            yield stored
