"""Finds what expires in a batch, and keeps the index that finds it later; `format/expiry_blocks` documents the index's bytes.

Every entry that has an expiry is named by at least one block, which comes due when the entry expires or before. A write
that only moves an entry's expiry on leaves the index alone: when the block comes due, the entry tells whether it was renewed,
and is then named by a block of its new expiry. So an entry that is written with every batch costs the index one key per
ttl, not one per batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import lt
from typing import Any

from stateflow.format.encoding import (
    PREFIX_WIDTH,
    after,
    group_range,
    prefix,
    split,
    split_timer,
    state_range,
)
from stateflow.format.expiry_blocks import (
    AT_ONCE,
    SweepProgress,
    block,
    block_key,
    decode_progress,
    encode_progress,
    is_block,
    keys_of,
    progress_key,
)
from stateflow.format.instants import END_OF_TIME
from stateflow.format.records import ExpiryShare, StateSchema
from stateflow.state.backends.base import Backend
from stateflow.state.expiry.shares import Shares
from stateflow.state.expiry.ttl import Renew, Time, Ttl
from stateflow.state.values.expiries import by_expiry, expires, expiry_of, has_expired, stamped

Change = tuple[bytes, bytes | None]
Portion = tuple[Sequence[bytes], list[Change]]
"""Keys of entries that go, and other changes."""
NextDue = tuple[int | None, int | None]
"""When the first block of a shard comes due: in event time, in processing time. None: nothing is known to expire."""

BLOCK_KEYS = 4_096
"""Most keys that one block names: a batch's share of the work is cut between blocks."""
GATHERED = 100_000
"""Keys that wait in memory before they become blocks."""
PORTION = 200_000
"""Entries that are looked up at once."""
SAMPLE = 256
"""Entries of a shard whose sizes are looked up to estimate those of all that a batch has indexed."""


class Expiry:
    """The ttl of one state in one task. Without a ttl it only drops blocks that an earlier ttl has left."""

    def __init__(
        self, ttl: Ttl | None, state_id: int, *, now: int, watermark: int | None, slot: int, index_id: int = 0,
        sweep: int = 0, event_time: bool = False,
    ) -> None:  # fmt: skip
        self.ttl = ttl
        self.event_time = ttl.time == "event" if ttl is not None else event_time
        self.clock = now if not self.event_time else watermark
        """Entries that expire at this time or before it have expired. None: there is no such time yet, or event time is over."""
        if self.event_time and watermark is not None and watermark >= END_OF_TIME:
            self.clock = None
        self.at = END_OF_TIME
        """The expiry of this batch's writes."""
        self._due = AT_ONCE if self.event_time and watermark is None else END_OF_TIME
        if ttl is not None and self.clock is not None:
            self.at = self._due = min(self.clock + ttl.micros, END_OF_TIME)
        self.on_read = ttl is not None and ttl.renew == "read"
        self.next: int | None = None
        """When the attached shard's next block comes due, as far as it is known."""
        self.expired = 0
        """Entries that were deleted."""
        self._state_id = state_id
        self._index_id = index_id
        self._sweep = sweep
        self._slot = slot
        self._blocks = 0
        self._fresh: list[bytes] = []
        self._unknown: list[bytes] = []
        self._moved: dict[int, list[bytes]] = {}
        self._shares = Shares(state_id)
        self._named_since: list[tuple[int, int]] = []
        self._sample: list[bytes] = []

    def attach(self, known: Iterable[ExpiryShare] = ()) -> None:
        """Turns to another shard; `known` is what its record says."""
        self.next = None
        self._shares, self._named_since, self._sample = Shares(self._state_id, known), [], []

    @property
    def shares(self) -> Sequence[ExpiryShare]:
        """What the attached shard's index names, after `measure`."""
        return self._shares.ranges

    @property
    def indexed(self) -> bool:
        """Whether expired entries leave the store, or are only hidden."""
        return self._index_id > 0

    def is_unnamed(self, stored: bytes | None) -> bool:
        """Whether no block comes due in time for an entry that is written now: it had no expiry, or has a sooner one than it had, by
        a ttl that is shorter now."""
        expiry = None if stored is None else expiry_of(stored)
        return expiry is None or expiry > self.at

    def wrote(self, keys: Iterable[bytes]) -> None:
        """Entries that are written with an expiry and were unnamed."""
        if self._index_id:
            self._fresh.extend(keys)

    def wrote_over(self, keys: Iterable[bytes]) -> None:
        """Entries that are written with an expiry, when nobody has looked whether they had one."""
        if self._index_id:
            self._unknown.extend(keys)

    def wrote_each(self, keys: Sequence[bytes], before: Sequence[Any], unread: Any) -> None:
        """Entries that are written with an expiry, and what is stored of each; `unread` where nobody has looked."""
        if before.count(None) == len(before):
            self.wrote(keys)
            return
        self.wrote_over([key for key, raw in zip(keys, before, strict=True) if raw is unread])
        self.wrote(
            [key for key, raw in zip(keys, before, strict=True) if raw is not unread and self.is_unnamed(raw)]
        )

    def settle(self, backend: Backend, changes: list[Change]) -> None:
        """Before `changes` are written: finds out which entries are new to the index, and may add blocks."""
        if self._unknown:
            keys, self._unknown = in_order(self._unknown), []
            raws = backend.get_many(keys)
            self._fresh.extend(key for key, raw in zip(keys, raws, strict=True) if self.is_unnamed(raw))
        if len(self._fresh) > GATHERED:
            changes.extend(self.blocks())

    def blocks(self) -> Iterator[Change]:
        """Everything that was gathered, as blocks."""
        if self._fresh:
            self._moved.setdefault(self._due, []).extend(self._fresh)
            self._fresh = []
        for due, keys in self._moved.items():
            self._sooner(due)
            yield from self._named(due, keys)
        self._moved = {}

    def _named(self, due: int, keys: Iterable[bytes]) -> Iterator[Change]:
        ordered = in_order(keys)
        self._named_since.append((due, len(ordered)))
        self._sample += ordered[:: len(ordered) // SAMPLE + 1]
        begin = 0
        while begin < len(ordered):
            group = split(ordered[begin]).group
            end = bisect_left(ordered, group_range(group, group)[1], begin)
            for at in range(begin, end, BLOCK_KEYS):
                bodies = [key[PREFIX_WIDTH:] for key in ordered[at : min(at + BLOCK_KEYS, end)]]
                yield block_key(group, self._index_id, due, self._slot, self._blocks), block(bodies)
                self._blocks += 1
            begin = end

    def measure(self, backend: Backend) -> None:
        """Estimates the bytes of the entries that were indexed since, once they are written."""
        if self._named_since:
            self._measure(backend)
        self._shares.since(self.next)

    def _measure(self, backend: Backend) -> None:
        keys = sorted(dict.fromkeys(self._sample[:: len(self._sample) // SAMPLE + 1]))
        raws = backend.get_many(keys)
        size = sum(len(key) + len(raw) for key, raw in zip(keys, raws, strict=True) if raw is not None)
        for due, count in self._named_since:
            self._shares.add(due, count, size * count // len(keys))
        self._named_since, self._sample = [], []

    def waits(self, due: int | None) -> None:
        """Key groups that this batch leaves out may have blocks that come due then; None: at any time."""
        self._sooner(AT_ONCE if due is None else due)

    def _sooner(self, due: int) -> None:
        self.next = due if self.next is None else min(self.next, due)

    def expire(self, backend: Backend, groups: Sequence[int], budget: int) -> Iterator[Portion]:
        """The entries that expire in these key groups, about `budget` at most; the rest waits for a later batch."""
        clock = self.clock
        if clock is None or not self._index_id:
            return
        keys: list[bytes] = []
        changes: list[Change] = []
        went: list[Sequence[bytes]] = []
        for group in groups:
            begin = prefix(group, self._state_id)
            for full, value in backend.scan(*state_range(group, self._index_id)):
                if not is_block(full):
                    continue
                due = split_timer(split(full).body)[0]
                if due > clock or budget <= 0:
                    self._sooner(due)
                    break
                named = keys_of(value, begin)
                budget -= len(named)
                self._shares.take(due, len(named))
                changes.append((full, None))
                if self.ttl is not None:
                    keys += named
            if len(keys) >= PORTION:
                yield (portion := self._decided(backend, keys, changes))
                went.append(portion[0])
                keys, changes = [], []
        if changes:
            yield (portion := self._decided(backend, keys, changes))
            went.append(portion[0])
        if self._sweep and self.ttl is not None:
            swept = self._swept(backend, groups, max(budget // 4, BLOCK_KEYS), went)
            yield from (((), each) for each in swept)

    def index(self, keys: Sequence[bytes], raws: Sequence[bytes]) -> None:
        """Entries that are there, by the expiries that they have."""
        for key, raw in zip(keys, raws, strict=True):
            expiry = expiry_of(raw)
            if expiry is not None:
                # At the end of time: it was written before there was a watermark.
                due = AT_ONCE if self.event_time and expiry == END_OF_TIME else expiry
                self._moved.setdefault(due, []).append(key)

    def _decided(self, backend: Backend, keys: list[bytes], changes: list[Change]) -> Portion:
        """Decides about entries whose block is due: those that were renewed get another block."""
        if not keys or self.clock is None:
            return (), changes
        keys = in_order(keys)
        gone, later = by_expiry(keys, backend.get_many(keys), self.clock)
        self.expired += len(gone)
        for key, raw in later:
            self._keep(key, raw, changes)
        return gone, changes

    def _keep(self, key: bytes, raw: bytes, changes: list[Change]) -> None:
        expiry = expiry_of(raw)
        assert expiry is not None
        if expiry == END_OF_TIME and self.event_time and self.at < END_OF_TIME:
            # It was written before there was a watermark, so its time begins now.
            changes.append((key, stamped([raw], self.at)[0]))
            expiry = self.at
        self._moved.setdefault(expiry, []).append(key)

    def _swept(
        self, backend: Backend, groups: Sequence[int], budget: int, went: Sequence[Sequence[bytes]]
    ) -> Iterator[list[Change]]:
        """Walks once over entries that the index may not name, some of them with every batch. `went` are those that its blocks
        have named as gone, which may still be stored."""
        assert self.clock is not None
        gone: frozenset[bytes] | None = None
        marks = [progress_key(group, self._index_id) for group in groups]
        for group, mark, value in zip(groups, marks, backend.get_many(marks), strict=True):
            progress = decode_progress(value) if value else SweepProgress(0, False, b"")
            if progress.sweep != self._sweep:
                progress = SweepProgress(self._sweep, False, b"")
            if progress.through:
                continue
            if budget <= 0:
                self._sooner(self.clock)
                return
            gone = frozenset(chain.from_iterable(went)) if gone is None else gone
            changes, progress, seen = self._swept_on(backend, group, progress, budget, gone)
            budget -= seen
            changes.append((mark, encode_progress(progress)))
            if not progress.through:
                self._sooner(self.clock)
            yield changes

    def _swept_on(
        self, backend: Backend, group: int, progress: SweepProgress, budget: int, gone: frozenset[bytes]
    ) -> tuple[list[Change], SweepProgress, int]:
        assert self.ttl is not None
        begin = prefix(group, self._state_id)
        start = begin + progress.key + (b"\0" if progress.key else b"")
        entries = list(islice(backend.scan(start, after(begin)), budget))
        changes: list[Change] = []
        for key, raw in entries:
            if not expires(raw):
                if self.ttl.existing:
                    changes.append((key, stamped([raw], self.at)[0]))
                    self._moved.setdefault(self.at, []).append(key)
            elif has_expired(raw, self.clock):
                if key not in gone:
                    changes.append((key, None))
                    self.expired += 1
            else:
                self._keep(key, raw, changes)
        if len(entries) < budget:
            return changes, SweepProgress(progress.sweep, True, b""), len(entries)
        return changes, SweepProgress(progress.sweep, False, entries[-1][0][PREFIX_WIDTH:]), len(entries)


def in_order(keys: Iterable[bytes]) -> list[bytes]:
    """Each key once. Keys come nearly in order, and sorting them then costs less than looking for their twins in a dict."""
    ordered = sorted(keys)
    if all(map(lt, ordered, islice(ordered, 1, None))):
        return ordered
    return list(dict.fromkeys(ordered))


def expiry_of_schema(schema: StateSchema, now: int, watermark: int | None, slot: int) -> Expiry | None:
    """What a record says of a state's ttl; None when it never had one."""
    if schema.ttl is None and not schema.expiry_index:
        return None
    ttl = None
    if schema.ttl is not None:
        renew: Renew = "read" if schema.ttl_renew == "read" else "write"
        time: Time = "event" if schema.ttl_time == "event" else "processing"
        ttl = Ttl(schema.ttl, renew, time, schema.ttl_existing)
    return Expiry(
        ttl, schema.id, now=now, watermark=watermark, slot=slot, index_id=schema.expiry_index,
        sweep=schema.expiry_sweep, event_time=schema.ttl_time == "event",
    )  # fmt: skip


def next_due(states: Sequence[Expiry]) -> NextDue:
    """When the first block of these states comes due."""
    event, processing = (
        min((s.next for s in states if s.next is not None and s.event_time == kind), default=None)
        for kind in (True, False)
    )
    return event, processing
