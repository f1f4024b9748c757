"""Timers that are due, read from their queues block by block in time order."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import NamedTuple

import numpy as np

from stateflow.format.encoding import SIGN, encode_timestamp, split, split_timer, timer_range
from stateflow.operators.decoded import signed
from stateflow.state.backends.base import Backend
from stateflow.state.values.arrow.packed_instants import datetimes_of

LEAST = 4
"""Fewest entries that are read from a queue at once."""
KEY_AT = 10
"""Where the key begins in the bytes of a turn: behind time and key group."""
_QUEUED = 12
"""Where the key begins in an entry of a queue: behind key group, state id and time."""


class Queue(NamedTuple):
    rank: int
    state_id: int
    limit: int
    """The last instant that is due, in microseconds."""


def turn(at: int, base: bytes, rank: int) -> bytes:
    """Bytes that sort timers by time, then by key and namespace, then by the rank of the timer. `base` is a full key
    under state id 0."""
    return encode_timestamp(at) + base[:2] + base[4:] + rank.to_bytes(2, "big")


def time_of(due: bytes) -> int:
    return int.from_bytes(due[:8], "big") - SIGN


def times_of(block: Sequence[bytes]) -> tuple[list[int], Sequence[datetime | None]]:
    """The time of each turn, in microseconds and as handlers get it; None where no datetime can hold it."""
    micros = signed(np.frombuffer(b"".join([due[:8] for due in block]), dtype=">u8"))
    try:
        return micros.tolist(), datetimes_of(micros)
    except ValueError:
        return micros.tolist(), [None] * len(block)


def base_of(due: bytes) -> bytes:
    """The full key under state id 0, with its namespace."""
    return due[8:10] + b"\0\0" + due[10:-2]


def rank_of(due: bytes) -> int:
    return due[-2] << 8 | due[-1]


class DueTimers:
    """Reads the queues as they are now, without what is set or cleared meanwhile.

    There is one sorted source per queue and key group. A block ends where the first source
    has to be read on, so that no source can have an earlier timer than the block's last.
    """

    def __init__(self, backend: Backend, queues: Sequence[Queue], groups: range, after: bytes = b"") -> None:
        self._sources = [
            _Source(_turns(backend, group, queue, after)) for queue in queues for group in groups
        ]

    def take(self, count: int) -> list[bytes]:
        """At least `count` timers while there are so many, as `turn` gives them."""
        block: list[bytes] = []
        while len(block) < count:
            ahead = max(LEAST, count // (len(self._sources) or 1))
            self._sources = [source for source in self._sources if source.fill(ahead)]
            if not self._sources:
                break
            bound = min((s.pending[-1] for s in self._sources if not s.ended), default=None)
            for source in self._sources:
                block += source.up_to(bound)
        block.sort()
        return block


class _Source:
    __slots__ = ("_entries", "ended", "pending")

    def __init__(self, entries: Iterator[bytes]) -> None:
        self._entries = entries
        self.pending: list[bytes] = []
        self.ended = False

    def fill(self, ahead: int) -> bool:
        """Whether there is anything left, and `pending` has some of it."""
        if not self.pending and not self.ended:
            self.pending = list(islice(self._entries, ahead))
            self.ended = len(self.pending) < ahead
        return bool(self.pending)

    def up_to(self, bound: bytes | None) -> list[bytes]:
        pending = self.pending
        if bound is None or pending[-1] <= bound:
            self.pending = []
            return pending
        cut = bisect_right(pending, bound)
        self.pending = pending[cut:]
        return pending[:cut]


def _turns(backend: Backend, group: int, queue: Queue, after: bytes) -> Iterator[bytes]:
    begin, end = timer_range(group, queue.state_id, queue.limit)
    # What comes before `after` has fired: only its deletions are left there.
    return _read(backend.scan(begin + after[:8], end), queue.rank.to_bytes(2, "big"), after)


def _read(entries: Iterator[tuple[bytes, bytes]], rank: bytes, after: bytes) -> Iterator[bytes]:
    for full, _ in entries:
        if len(full) <= _QUEUED:
            split_timer(split(full).body)  # says what is wrong
        due = full[4:_QUEUED] + full[:2] + full[_QUEUED:] + rank
        if due > after:
            yield due
