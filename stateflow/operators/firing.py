"""Firing timers: due ones in, handlers called in time order, rows and state changes out.

Timers fire in blocks, as rows are processed in chunks. The keys of a block are looked up and written together.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from types import GeneratorType
from typing import Any

from stateflow.format.encoding import EMPTY_NAMESPACE, SIGN, split, split_timer, state_range, timer_range
from stateflow.format.instants import instant
from stateflow.operators.attempt import Attempt
from stateflow.operators.binding import Binding
from stateflow.operators.chunk_reads import ChunkReads
from stateflow.operators.context import Moment
from stateflow.operators.decoded import decoded_keys
from stateflow.operators.due import KEY_AT, DueTimers, Queue, base_of, rank_of, time_of, times_of, turn
from stateflow.operators.engine import OUTPUT_ROWS
from stateflow.operators.lateness import ahead, behind
from stateflow.operators.output import returned
from stateflow.pipelines.processes.operator_spec import OperatorSpec
from stateflow.state.cursor import Change
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.keys.siblings import siblings
from stateflow.state.many_timers import BoundTimers
from stateflow.state.timers import BoundTimer

FIRED_AT_ONCE = 40_000
"""About how many timers a block has. In a small block the keys lie far apart, and looking them up costs half as much again."""
FIRST_BLOCK = 256
"""The first block is small: it shows which states the handlers read."""
REMEMBERED = 100_000
"""Most keys whose timers handlers have set. Beyond that the queues are read anew instead."""
_NEVER = -SIGN

AnyTimer = BoundTimer | BoundTimers
_News = tuple[int, bytes, list[int], bool]
"""A timer's rank, its key with its namespace, the times that it was set to, and whether other times of it have changed."""


class Firing:
    """Fires an operator's timers, shard by shard."""

    def __init__(
        self,
        spec: OperatorSpec,
        codec: KeyCodec,
        moment: Moment,
        binding: Binding,
        attempt: Attempt,
    ) -> None:
        self._uid = spec.uid
        self._careful = attempt.checked
        self._attempt, self._chunked, self._values = attempt, attempt.chunked, attempt.values
        self._context, self._cursor, self._out = attempt.context, attempt.cursor, attempt.out
        self._names = sorted(binding.timers)
        self._timers: list[AnyTimer] = [binding.timers[name] for name in self._names]
        self._handlers = binding.handlers
        self._held_back = spec.held_back
        self._limits = [_limit(timer, moment, spec.held_back) for timer in self._timers]
        self._namespaced = {
            rank: timer.namespace for rank, timer in enumerate(self._timers) if timer.namespace is not None
        }
        """How the namespaces of timers that have any are written, by rank."""
        self._only = self._timers[0] if len(self._timers) == 1 and not self._namespaced else None
        self._codec, self._decode = codec, codec.decode
        self._reads = ChunkReads(attempt.chunked)
        self._changes: list[Change] = []
        self._keys: list[Any] = []
        self._place: dict[bytes, int] = {}
        """Keys of the block that no timer has fired for yet, and where the states hold them."""
        self._moved: set[bytes] = set()
        """Keys whose timers a handler has set or cleared since the queues were read."""
        self._set: list[bytes] = []
        """A heap of due timers that handlers have set."""
        self._waiting: set[bytes] = set()
        """Timers that their own handlers have set to a time that was due: they fire in the next batch, at whatever time, if
        they have one time per key."""
        self._passed: range | None = None
        self.fired = 0

    def run(self, groups: range) -> Iterator[None]:
        """Fires what is due in these key groups, in time order; yields when output should be taken."""
        self._context.late = False
        self._moved.clear()
        self._set.clear()
        self._waiting.clear()
        due, size = self._due(groups), min(FIRST_BLOCK, FIRED_AT_ONCE)
        while True:
            block = due.take(size)
            # Behind the last one read ahead there may be earlier timers than those that handlers have set.
            bound = block[-1] if block else None
            self._add_set_ones(block, bound, size)
            if not block:
                break
            yield from self._fire_block(block, bound or block[-1])
            yield
            size = FIRED_AT_ONCE
            if len(self._moved) + len(self._set) > REMEMBERED:
                due = self._due(groups, bound or block[-1])
                self._moved.clear()
                self._set.clear()
        self._context.namespace = None
        self._passed = groups

    def forget(self) -> None:
        """Called when another shard is attached, or when rows have set timers."""
        self._passed = None

    def _due(self, groups: range, after: bytes = b"") -> DueTimers:
        queues = [
            Queue(rank, timer.queue_id, limit)
            for rank, (timer, limit) in enumerate(zip(self._timers, self._limits, strict=True))
            if limit != _NEVER
        ]
        return DueTimers(self._cursor.backend, queues, groups, after)

    def _add_set_ones(self, block: list[bytes], bound: bytes | None, size: int) -> None:
        """Adds to the block what earlier handlers have set to fire in it."""
        added = len(block)
        while self._set and (self._set[0] <= bound if bound is not None else len(block) < size):
            block.append(heapq.heappop(self._set))
        if len(block) > added:
            block.sort()

    def _begin(self, block: list[bytes]) -> list[bytes]:
        """Makes the block's keys the chunk that states hold. Gives the key of each timer."""
        of_timers = list(map(self._key_of, block)) if self._namespaced else list(map(base_of, block))
        bases = sorted(set(of_timers))
        cursor = self._cursor
        self._keys = decoded_keys(self._codec, bases)
        cursor.base, cursor.keys = bases, self._keys
        self._place = dict(zip(bases, range(len(bases)), strict=True))
        self._reads.begin(
            cursor.backend, len(bases), lambda number: siblings(bases, number.to_bytes(2, "big"))
        )
        return of_timers

    def _key_of(self, due: bytes) -> bytes:
        """The full key under state id 0, with the empty namespace."""
        if due[-3] == 0 and rank_of(due) not in self._namespaced:
            return base_of(due)
        end = self._decode(due, KEY_AT)[1]
        return due[8:10] + b"\0\0" + due[10:end] + EMPTY_NAMESPACE

    def _fire_block(self, block: list[bytes], bound: bytes) -> Iterator[None]:
        """Fires the timers of a block, and those up to `bound` that their handlers set."""
        of_timers = self._begin(block)
        keys, heap, out = len(self._place), self._set, self._out
        for due, base, at, moment in zip(block, of_timers, *times_of(block), strict=True):
            while heap and heap[0] < due:
                self._fire(first := heapq.heappop(heap), self._key_of(first), time_of(first), None)
            self._fire(due, base, at, moment)
            if len(out) >= OUTPUT_ROWS:
                yield
        while heap and heap[0] <= bound:
            self._fire(first := heapq.heappop(heap), self._key_of(first), time_of(first), None)
            if len(out) >= OUTPUT_ROWS:
                yield
        self._settle()
        self._reads.end(keys)

    def _fire(self, due: bytes, base: bytes, at: int, moment: datetime | None) -> None:
        """Fires a timer, unless a handler has moved or cleared it. Nearly all time of firing goes by here. `moment` is the
        same as `at`, where it is known."""
        if self._waiting and (due in self._waiting or due[8:] in self._waiting):
            return
        cursor, rank = self._cursor, due[-2] << 8 | due[-1]
        i = self._place.pop(base, None)
        if i is None:
            i = self._again(base)
        cursor.i = i
        cursor.serial += 1
        cursor.key = self._keys[i]
        timer = self._timers[rank]
        if self._namespaced:
            timer = self._enter_namespace(timer, due, len(base))
        if base not in self._moved:
            timer.due(at)
        elif not timer.is_set(at):
            cursor.flush(self._changes)  # the look at a namespace left a view, without changes
            return
        self.fired += 1
        try:
            news = self._call(self._handlers[self._names[rank]], timer, at, moment)
        except Exception as error:
            self._attempt.failed(error, cursor.key)
            # The key has no turn any more, nor what was taken in it.
            timer = (
                timer
                if timer is self._timers[rank]
                else self._enter_namespace(self._timers[rank], due, len(base))
            )
            timer.due(at)
            timer.fired(at)
            cursor.flush(self._changes)
        else:
            for of_rank, full, times, others_changed in news:
                if others_changed:
                    self._moved.add(base)
                self._note(of_rank, full, times, at if full == base_of(due) and of_rank == rank else None)

    def _enter_namespace(self, timer: AnyTimer, due: bytes, width: int) -> AnyTimer:
        """The timer in the namespace that it was set in. `width` is that of the full key with the empty namespace."""
        suffix = due[KEY_AT + width - 5 : -2]
        self._context.namespace = (
            None if suffix == EMPTY_NAMESPACE else self._namespaced[rank_of(due)].decode(suffix, 1)[0]
        )
        return timer.view(suffix)

    def _again(self, base: bytes) -> int:
        """A key of the block has another turn: what it changed must be written before it is read."""
        self._settle()
        self._cursor.base.append(base)
        self._keys.append(self._decode(base, 4)[0])
        for state in self._chunked:
            state.append()
        return len(self._keys) - 1

    def _note(self, rank: int, full: bytes, times: list[int], fired_at: int | None) -> None:
        """A handler has set a timer of its key to these times. `fired_at` is given when it was the handler's own."""
        for at in times:
            if at > self._limits[rank]:
                continue
            due = turn(at, full, rank)
            if fired_at is None or at > fired_at:
                heapq.heappush(self._set, due)
            else:
                # It would fire for ever.
                self._waiting.add(due if self._timers[rank].many else due[8:])

    def _call(
        self, handler: Callable[..., Any], timer: AnyTimer, at: int, moment: datetime | None
    ) -> Sequence[_News]:
        """Calls the handler. Gives the timers that it has set or cleared."""
        cursor = self._cursor
        if self._careful:
            return self._call_carefully(handler, timer, at)
        produced = handler(cursor.key, moment or instant(at), self._context)
        if produced is not None:
            rows = produced if type(produced) is GeneratorType else returned(self._uid, produced)
            self._out.extend(map(self._values, rows))
        news = self._news(timer, at)
        timer.fired(at)
        if cursor.dirty:
            cursor.flush(self._changes)
        return news

    def _call_carefully(self, handler: Callable[..., Any], timer: AnyTimer, at: int) -> Sequence[_News]:
        """Calls the handler. If it fails, nothing that it did counts."""
        changes, mark = self._changes, self._attempt.mark(self._changes)
        try:
            produced = handler(self._cursor.key, instant(at), self._context)
            if produced is not None:
                self._out.extend(map(self._values, returned(self._uid, produced)))
            self._attempt.check(mark)
            news = self._news(timer, at)
            timer.fired(at)
            self._cursor.flush(changes)
            return news
        except Exception:
            self._attempt.undo(mark, changes)
            raise

    def _news(self, timer: AnyTimer, at: int) -> Sequence[_News]:
        if self._only is not None and not self._only.was_changed():
            return ()
        news: list[_News] = []
        for rank, other in enumerate(self._timers):
            for each in (other, *other.views()) if rank in self._namespaced else (other,):
                if each.was_changed():
                    times, others_changed = each.was_set(at if each is timer else None)
                    news.append((rank, each.full_base(), times, others_changed))
        return news

    def _settle(self) -> None:
        """Writes what the keys so far have changed."""
        changes, self._changes = self._changes, []
        for state in self._chunked:
            state.collect(None, changes)
        self._cursor.write(changes)

    def next_timers(self, groups: range) -> tuple[int | None, int | None]:
        """The earliest event-time and processing-time timers that are set: the watermark and the clock of a batch that fires them."""
        earliest: dict[str, int] = {}
        for timer, limit in zip(self._timers, self._limits, strict=True):
            for group in groups:
                begin, end = state_range(group, timer.queue_id)
                if self._passed == groups and not self._waiting and limit != _NEVER:
                    # What was due has fired, and only its deletions are left.
                    begin = timer_range(group, timer.queue_id, limit)[1]
                first = self._cursor.backend.first(begin, end)
                if first is not None:
                    at = split_timer(split(first).body)[0]
                    earliest[timer.time] = min(at, earliest.get(timer.time, at))
        return ahead(earliest.get("event"), self._held_back), earliest.get("processing")


def _limit(timer: AnyTimer, moment: Moment, held_back: int) -> int:
    """The last instant whose timers, of this kind, fire in this batch."""
    limit = behind(moment.watermark, held_back) if timer.time == "event" else moment.now
    return _NEVER if limit is None else limit
