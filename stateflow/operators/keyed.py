"""The keyed operator's engine: chunks of keys in, output rows and state changes out.

It knows neither Spark nor Arrow: a Spark task and the test harness drive it alike.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import Any

from stateflow.errors import StateflowError, UsageError
from stateflow.operators.binding import Binding, bind
from stateflow.operators.context import Moment, OperatorContext
from stateflow.operators.spec import DEAD_LETTERS, OperatorSpec
from stateflow.process import ConnectedProcess
from stateflow.state.backend import Backend
from stateflow.state.bound import Change, Cursor
from stateflow.state.encoding import prefix, split, split_timer, state_range, timer_range
from stateflow.state.instants import instant
from stateflow.state.keycodec import KeyCodec

PREFETCH_SHARE = 0.5
"""A batched look-up pays when at least this share of the keys reads the state."""


class UserCodeError(StateflowError):
    """User code raised; the sentence names operator, key and the exception."""


@dataclass(slots=True)
class Chunk:
    """Whole keys that follow each other."""

    keys: Sequence[Any]
    base: list[bytes]
    """Full keys under state id 0."""
    rows: Callable[[int], tuple[Iterator[Any], ...]]
    """The i-th key's row iterators, one per input; asked again, from the beginning as far as that is remembered."""
    keys_for: Callable[[int], list[bytes]]
    """Full keys under another state id."""
    cuts: tuple[list[Any], list[int], list[int]] | None = None
    """For one input without late rows: all rows, and where each key's begin and end."""


class KeyedEngine:
    """One operator in one task. `attach` a shard's backend, `run` chunks, `fire` timers; `out` fills with rows."""

    def __init__(self, spec: OperatorSpec, moment: Moment, subtask: int) -> None:
        self.spec = spec
        self.moment = moment
        self.cursor = Cursor(moment.slot, moment.now)
        self.process = spec.process()
        sides = [*spec.sides, *([DEAD_LETTERS] if spec.on_error == "dead_letter" else [])]
        self.context = OperatorContext(self.cursor, moment, subtask, dict.fromkeys(sides))
        self.binding: Binding = bind(self.process, spec.uid, self.cursor, spec.state_ids)
        self.codec = KeyCodec(spec.key_types, spec.key_columns if len(spec.key_columns) > 1 else ())
        self.out: list[Any] = []
        self.keys = 0
        self.dead_letters = 0
        self.timers_fired = 0
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
            cursor.backend.write(changes)
            self.changed = True
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
        dirty, extend, flush = cursor.dirty, self.out.extend, cursor.flush
        serial = cursor.serial
        i, key = 0, None
        try:
            for i, key in enumerate(chunk.keys):
                cursor.i = i
                cursor.key = key
                cursor.serial = serial = serial + 1
                got = process(key, iter(rows[starts[i] : ends[i]]), context)
                if got is not None:
                    extend(got)
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
            mark = (len(self.out), len(changes), {name: len(rows) for name, rows in context.sides.items()})
            try:
                for step, rows in zip(self._handlers, rows_of(i), strict=True):
                    got = step(key, rows, context)
                    if got is not None:
                        self.out.extend(got)
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
        where = f"operator {spec.uid!r} failed on key {key!r}"
        if spec.on_error != "dead_letter":
            if isinstance(error, StateflowError):
                raise error
            raise UserCodeError(
                f"{where}: {type(error).__name__}: {error}\n{_user_frames(error)}"
                "Mend the code or the data, or divert such keys with on_error='dead_letter'."
            ) from error
        kept: list[Any] = []
        count = 0
        for rows in inputs:
            for row in rows:
                count += 1
                if len(kept) < spec.dead_letter_limit:
                    kept.append(row)
        self.dead_letters += 1
        self.context.sides[DEAD_LETTERS].append(
            (
                spec.uid,
                repr(key),
                f"{type(error).__name__}: {error}",
                _user_frames(error),
                json.dumps([_plain(row) for row in kept], default=str),
                count,
                self.moment.slot,
            )
        )

    def fire(self, groups: range) -> Iterator[None]:
        """Fires timers that are due in these key groups, in time order; yields when output should be taken."""
        cursor, backend = self.cursor, self.cursor.backend
        fired = True
        while fired:
            fired = False
            due = merge(*(self._due(name, timer, groups) for name, timer in self.binding.timers.items()))
            batch = []
            for entry in due:
                batch.append(entry)
                if len(batch) == 10_000:
                    break
            for at, base, name in batch:
                changes: list[Change] = []
                group, _, body = split(base)
                cursor.base, cursor.i = [base], 0
                cursor.serial += 1
                cursor.key = key = self.codec.decode(body, 0)[0]
                cursor.keys = [key]
                for state in self.binding.stored:
                    state.begin(1, None)
                timer = self.binding.timers[name]
                if timer.micros != at:
                    continue  # an earlier handler of this batch moved or cleared it
                fired = True
                self.timers_fired += 1
                mark = len(self.out)
                try:
                    got = self.binding.handlers[name](key, instant(at), self.context)
                    if got is not None:
                        self.out.extend(got)
                    timer.fired(at)
                    cursor.flush(changes)
                    for state in self.binding.stored:
                        state.collect(None, changes)
                except Exception as error:
                    del self.out[mark:]
                    changes.clear()
                    self._failed(error, key, ())
                    timer.clear()
                    cursor.flush(changes)
                backend.write(changes)
                self.changed = True
                if len(self.out) >= 20_000:
                    yield
            yield

    def _due(self, name: str, timer: Any, groups: range) -> Iterator[tuple[int, bytes, str]]:
        limit = self.moment.watermark if timer.time == "event" else self.moment.now
        if limit is None:
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
                    known = earliest[timer.time]
                    earliest[timer.time] = at if known is None else min(known, at)
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
        try:
            method() if without_context else method(self.context)
        except StateflowError:
            raise
        except Exception as error:
            raise UserCodeError(
                f"operator {self.spec.uid!r} failed in {what}: {type(error).__name__}: {error}\n{_user_frames(error)}"
            ) from error


def _user_frames(error: Exception) -> str:
    """Where in user code it happened, without the frames of this library."""
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if "/stateflow/operators/" not in f.filename
    ]
    return "".join(f"  {f.filename}:{f.lineno} in {f.name}: {f.line}\n" for f in frames[-3:])


def _plain(row: Any) -> Any:
    if hasattr(row, "_asdict"):
        return row._asdict()
    fields = getattr(row, "__dataclass_fields__", None) or getattr(row, "__struct_fields__", None)
    return {name: getattr(row, name) for name in fields} if fields else row


def check_output(spec: OperatorSpec) -> None:
    """Refuses an operator whose output type cannot be known."""
    if not spec.output.fields:
        raise UsageError(f"operator {spec.uid!r} has an output without columns: give it a type with fields")
