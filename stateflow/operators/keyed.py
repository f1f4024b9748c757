"""The keyed operator's engine: chunks of keys in, output rows and state changes out.

It knows neither Spark nor Arrow: a Spark task and the test harness drive it alike.
"""

from __future__ import annotations

import heapq
import json
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from pathlib import Path
from types import GeneratorType
from typing import Any

import msgspec

from stateflow.errors import (
    BusyError,
    CorruptError,
    DisagreementError,
    FencedError,
    IncompatibleError,
    StateflowError,
    UnavailableError,
    UsageError,
)
from stateflow.format.encoding import prefix, split, split_timer, state_range, timer_range
from stateflow.format.instants import instant
from stateflow.operators.binding import Binding, bind
from stateflow.operators.context import Moment, OperatorContext
from stateflow.operators.expiry import OperatorExpiry, share_of
from stateflow.operators.output import returned
from stateflow.pipelines.operators import DEAD_LETTERS, OperatorSpec
from stateflow.pipelines.process import ConnectedProcess
from stateflow.state.backends.base import Backend
from stateflow.state.bound import Change, Cursor
from stateflow.state.cursor import NO_KEY
from stateflow.state.expiry import NextDue
from stateflow.state.keys.codec import KeyCodec

FIRED_AT_ONCE = 10_000
"""Timers that are read ahead."""
_NEVER = -(1 << 63)
_LIBRARY = str(Path(__file__).parents[1]) + os.sep
REPEATED = "nothing of the batch was stored, and a run with changed code repeats it"
"""How to go on after user code has raised."""
PREFETCH_SHARE = 0.5
"""A batched look-up pays when at least this share of the keys reads the state."""


_NEVER_DIVERTED = (
    BusyError, CorruptError, DisagreementError, FencedError, IncompatibleError, UnavailableError, MemoryError,
)  # fmt: skip
"""Errors that no key has caused: if they were diverted, one damaged file would turn every key into a dead letter."""


class StreamError(BaseException):
    """The rows could not be read. It is no `Exception`, so that user code and dead letters do not take it for the key's."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class UserCodeError(StateflowError):
    """User code raised; the sentence names operator, key and the exception."""


@dataclass(slots=True)
class Chunk:
    """Whole keys that follow each other."""

    keys: Sequence[Any]
    base: list[bytes]
    """Full keys under state id 0."""
    rows: Callable[[int], tuple[Iterator[Any], ...]]
    """The row iterators of the i-th key, one per input. A second call begins anew, as far as rows are remembered."""
    keys_for: Callable[[int], list[bytes]]
    """Full keys under another state id."""
    cuts: tuple[list[Any], list[int], list[int]] | None = None
    """For one input without late rows: all rows, and where each key's begin and end."""


class KeyedEngine:
    """One operator in one task. `attach` a shard's backend, `run` chunks, `fire` timers; `out` fills with rows."""

    def __init__(self, spec: OperatorSpec, moment: Moment, subtask: int) -> None:
        self.spec = spec
        self.moment = moment
        self.cursor = Cursor(moment.slot + moment.shift, moment.now, moment.watermark)
        self.process = spec.process()
        sides = [*spec.sides, *([DEAD_LETTERS] if spec.on_error == "dead_letter" else [])]
        self.context = OperatorContext(self.cursor, moment, subtask, dict.fromkeys(sides))
        self.binding: Binding = bind(self.process, spec.uid, self.cursor, spec.state_ids, spec.indexes)
        self.expiry = OperatorExpiry(self.binding.expiring)
        self.codec = KeyCodec(spec.key_types, spec.key_columns if len(spec.key_columns) > 1 else ())
        self.out: list[Any] = []
        self.keys = 0
        self.dead_letters = 0
        self.timers_fired = 0
        self._diverted = 0
        self.changed = False
        """Whether the attached shard was written to."""
        self._prefetch: list[Any] = []
        self._handlers = self._steps()

    def _steps(self) -> tuple[Callable[..., Any], ...]:
        process: Any = self.process
        if isinstance(process, ConnectedProcess):
            return process.process_left, process.process_right
        return (process.process,)

    def attach(self, backend: Backend) -> None:
        self.cursor.backend = backend
        self.cursor.position = 0
        self.changed = False
        self.expiry.attach()

    def expire(self, groups: range, known: NextDue = (None, None), entries: int = 0) -> None:
        """Lets entries go whose ttl is over, before the shard's rows; `known` is when the first of them is due."""
        if self.expiry.expire(self.cursor.backend, groups, known, share_of(entries), self.moment.slot):
            self.changed = True

    def next_expiries(self) -> NextDue:
        """Ends the shard: indexes what the batch has written, and tells when the first of it is due."""
        if self.expiry.finish(self.cursor.backend):
            self.changed = True
        return self.expiry.next_due

    def _write(self, changes: list[Change]) -> None:
        self.expiry.settle(self.cursor.backend, changes)
        self.cursor.backend.write(changes)
        self.changed = True

    def run(self, chunk: Chunk) -> None:
        """Calls user code for every key of the chunk and applies its state changes."""
        cursor, stored, count = self.cursor, self.binding.stored, len(chunk.keys)
        cursor.base, cursor.keys = chunk.base, chunk.keys
        full: dict[int, list[bytes]] = {}
        for state in stored:
            if state in self._prefetch:
                keys = full[state.state_id] = chunk.keys_for(state.state_id)
                state.begin(count, cursor.backend.get_many(keys))
            else:
                state.begin(count, None)
        changes: list[Change] = []
        if chunk.cuts is not None and len(self._handlers) == 1 and self.spec.on_error == "fail":
            self._run_plainly(chunk, *chunk.cuts, changes)
        else:
            self._run_keys(chunk, changes)
        for state in stored:
            state.collect(full.get(state.state_id), changes)
        if changes:
            self._write(changes)
        self.keys += count
        for state in stored:
            # What nearly every key reads is looked up for all keys of the next chunk at once.
            if state.reads >= PREFETCH_SHARE * count:
                self._prefetch.append(state)
            state.reads = 0

    def _run_plainly(
        self, chunk: Chunk, rows: list[Any], starts: list[int], ends: list[int], changes: list[Change]
    ) -> None:
        """The loop that nearly all keys go through: a microsecond here is a second per million keys."""
        cursor, context, process = self.cursor, self.context, self._handlers[0]
        context.late = False
        dirty, extend, flush = cursor.dirty, self.out.extend, cursor.flush
        serial, uid = cursor.serial, self.spec.uid
        i, key = 0, None
        try:
            for i, key in enumerate(chunk.keys):
                cursor.i = i
                cursor.key = key
                cursor.serial = serial = serial + 1
                produced = process(key, iter(rows[starts[i] : ends[i]]), context)
                if produced is not None:
                    extend(produced if type(produced) is GeneratorType else returned(uid, produced))
                if dirty:
                    flush(changes)
        except Exception as error:
            self._failed(error, key, ())

    def _run_keys(self, chunk: Chunk, changes: list[Change]) -> None:
        cursor, context, rows_of = self.cursor, self.context, chunk.rows
        careful = self.spec.on_error == "dead_letter"
        for i, key in enumerate(chunk.keys):
            cursor.i = i
            cursor.key = key
            cursor.serial += 1
            context.late = False
            mark = (len(self.out), len(changes), {name: len(rows) for name, rows in context.sides.items()})
            try:
                for step, rows in zip(self._handlers, rows_of(i), strict=True):
                    produced = step(key, rows, context)
                    if produced is not None:
                        self.out.extend(returned(self.spec.uid, produced))
                if careful:
                    for state in self.binding.stored:
                        state.check_current()
                cursor.flush(changes)
            except Exception as error:
                del self.out[mark[0] :], changes[mark[1] :]
                for name, length in mark[2].items():
                    del context.sides[name][length:]
                for state in self.binding.stored:
                    state.discard()
                self._failed(error, key, rows_of(i))

    def _failed(self, error: Exception, key: Any, inputs: tuple[Iterator[Any], ...]) -> None:
        spec = self.spec
        self.cursor.discard()
        if isinstance(error, _NEVER_DIVERTED):
            raise error
        if spec.on_error != "dead_letter":
            if isinstance(error, StateflowError):
                raise error
            raise UserCodeError(
                f"operator {spec.uid!r} failed on key {key!r}: {described(error)}: {REPEATED}, or divert such keys with "
                "on_error='dead_letter'"
            ) from error
        rows = [_plain(row) for iterator in inputs for row in iterator]
        self.dead_letters += 1
        self._diverted += len(rows)
        if self._diverted > spec.dead_letter_limit:
            raise StateflowError(
                f"operator {spec.uid!r} diverted more than dead_letter_limit={spec.dead_letter_limit} rows in one subtask "
                f"and batch, the last of key {key!r} ({described(error)}): {REPEATED}, or raise dead_letter_limit in .process()"
            ) from error
        self.context.sides[DEAD_LETTERS].append(
            (
                spec.uid,
                repr(key),
                f"{type(error).__name__}: {error}",
                _user_frames(error),
                _json(rows),
                len(rows),
                self.moment.slot,
            )
        )

    def fire(self, groups: range) -> Iterator[None]:
        """Fires timers that are due in these key groups, in time order; yields when output should be taken."""
        self.context.late = False
        next_batch: set[tuple[bytes, str]] = set()
        while batch := self._next_due(groups):
            bound = batch[-1]
            fired = False
            while batch:
                at, base, name = heapq.heappop(batch)
                if (base, name) in next_batch or not self._still_due(base, name, at):
                    continue  # an earlier handler of this batch moved or cleared it
                fired = True
                self._fire_one(at, name)
                again = self.binding.timers[name].micros
                if again is not None and again <= at:
                    # The handler set it to a time that is due: it would fire for ever, so it waits for the next batch.
                    next_batch.add((base, name))
                # A timer that the handler set fires in its turn if it comes before the last one read ahead.
                for other, timer in self.binding.timers.items():
                    next_at = timer.micros
                    if (
                        next_at is not None
                        and next_at <= self._limit(timer)
                        and (next_at, base, other) <= bound
                    ):
                        heapq.heappush(batch, (next_at, base, other))
                if len(self.out) >= 20_000:
                    yield
            yield
            if not fired:
                return

    def _next_due(self, groups: range) -> list[tuple[int, bytes, str]]:
        """The first timers that are due, in time order, which makes them a heap."""
        due = merge(*(self._due(name, timer, groups) for name, timer in self.binding.timers.items()))
        return list(islice(due, FIRED_AT_ONCE))

    def move_to(self, base: bytes, key: Any) -> None:
        """Makes a key the current one; `base` is its full key under state id 0."""
        cursor = self.cursor
        cursor.base, cursor.i, cursor.key, cursor.keys = [base], 0, key, [key]
        cursor.serial += 1
        for state in self.binding.stored:
            state.begin(1, None)

    def _still_due(self, base: bytes, name: str, at: int) -> bool:
        """Makes a timer's key the current one; whether the timer is still set to `at`."""
        self.move_to(base, self.codec.decode(split(base).body, 0)[0])
        return bool(self.binding.timers[name].micros == at)

    def _fire_one(self, at: int, name: str) -> None:
        cursor, timer, sides = self.cursor, self.binding.timers[name], self.context.sides
        changes: list[Change] = []
        self.timers_fired += 1
        mark = len(self.out), {side: len(rows) for side, rows in sides.items()}
        try:
            produced = self.binding.handlers[name](cursor.key, instant(at), self.context)
            if produced is not None:
                self.out.extend(returned(self.spec.uid, produced))
            timer.fired(at)
            cursor.flush(changes)
            for state in self.binding.stored:
                state.collect(None, changes)
        except Exception as error:
            del self.out[mark[0] :]
            for side, length in mark[1].items():
                del sides[side][length:]
            changes.clear()
            self._failed(error, cursor.key, ())
            timer.clear()
            cursor.flush(changes)
        self._write(changes)

    def _limit(self, timer: Any) -> int:
        """The last instant at which timers of its kind fire in this batch."""
        limit = self.moment.watermark if timer.time == "event" else self.moment.now
        return _NEVER if limit is None else limit

    def _due(self, name: str, timer: Any, groups: range) -> Iterator[tuple[int, bytes, str]]:
        limit = self._limit(timer)
        if limit == _NEVER:
            return iter(())
        queue_id = timer.queue_id

        def of(group: int) -> Iterator[tuple[int, bytes, str]]:
            for full, _ in self.cursor.backend.scan(*timer_range(group, queue_id, limit)):
                at, rest = split_timer(split(full).body)
                yield at, prefix(group, 0) + rest, name

        return merge(*(of(group) for group in groups))

    def next_timers(self, groups: range) -> tuple[int | None, int | None]:
        """The earliest event-time and processing-time timers that are set."""
        earliest: dict[str, int | None] = {"event": None, "processing": None}
        for timer in self.binding.timers.values():
            queue_id = timer.queue_id
            for group in groups:
                first = next(iter(self.cursor.backend.scan(*state_range(group, queue_id))), None)
                if first is not None:
                    at = split_timer(split(first[0]).body)[0]
                    so_far = earliest[timer.time]
                    earliest[timer.time] = at if so_far is None else min(so_far, at)
        return earliest["event"], earliest["processing"]

    def open(self) -> None:
        self._user("open", self.process.open)

    def restore(self) -> None:
        if self.binding.operator:
            self._user("restore", self.process.restore)

    def snapshot(self) -> None:
        if self.binding.operator:
            self._user("snapshot", self.process.snapshot)

    def close(self) -> None:
        self._user("close", self.process.close, without_context=True)

    def broadcast(self, name: str, rows: Sequence[Any]) -> None:
        self._user(
            "process_broadcast", lambda context: self.process.process_broadcast(name, iter(rows), context)
        )

    def _user(self, what: str, method: Callable[..., Any], *, without_context: bool = False) -> None:
        """Calls a method of the operator's life cycle, where there is no key."""
        self._leave_key()
        try:
            method() if without_context else method(self.context)
            if self.cursor.dirty:
                self.cursor.discard()
                raise UsageError(NO_KEY)
        except StateflowError as error:
            raise type(error)(f"operator {self.spec.uid!r}, {what}: {error}") from error
        except Exception as error:
            raise UserCodeError(
                f"operator {self.spec.uid!r} failed in {what}: {described(error)}: {REPEATED}"
            ) from error

    def _leave_key(self) -> None:
        self.cursor.serial += 1
        self.cursor.base = _NoKey()
        for state in self.binding.stored:
            state._values = _NoKey()


class _NoKey(list[Any]):
    """Stands in for keys and values where there are none."""

    def __getitem__(self, index: Any) -> Any:
        raise UsageError(NO_KEY)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise UsageError(NO_KEY)


def _frames(error: Exception) -> list[traceback.FrameSummary]:
    """Where in user code it happened, without the frames of this library."""
    return [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_LIBRARY)]


def described(error: Exception) -> str:
    """The exception and its place, on one line."""
    frames = _frames(error)
    place = (
        f" (line {frames[-1].lineno} of {Path(frames[-1].filename).name}, in {frames[-1].name})"
        if frames
        else ""
    )
    what = " ".join(f"{type(error).__name__}: {error}".rstrip(": ").split())
    return (what if len(what) <= 500 else f"{what[:497]}...") + place


def _user_frames(error: Exception) -> str:
    return "".join(f"  {f.filename}:{f.lineno} in {f.name}: {f.line}\n" for f in _frames(error)[-3:])


def _json(rows: list[Any]) -> str:
    try:
        return msgspec.json.encode(rows, enc_hook=repr).decode()
    except (TypeError, ValueError, msgspec.MsgspecError):
        return json.dumps([repr(row) for row in rows])


def _plain(row: Any) -> Any:
    if hasattr(row, "_asdict"):
        return row._asdict()
    fields = getattr(row, "__dataclass_fields__", None) or getattr(row, "__struct_fields__", None)
    return {name: getattr(row, name) for name in fields} if fields else row
