"""The keyed operator's engine: chunks of keys in, output rows and state changes out.

It knows neither Spark nor Arrow: a Spark task and the test harness drive it alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    UserCodeError,
    masked_lines,
    own_frames,
    placed,
)
from stateflow.format.records import ExpiryShare
from stateflow.operators.attempt import Attempt
from stateflow.operators.chunk_reads import ChunkReads
from stateflow.operators.context import Moment
from stateflow.operators.engine import REPEATED, ProcessEngine
from stateflow.operators.expiry import OperatorExpiry
from stateflow.operators.firing import Firing
from stateflow.operators.output import returned
from stateflow.operators.snapshots import Taker
from stateflow.operators.visiting import Visiting
from stateflow.pipelines.processes.operator_spec import DEAD_LETTER, DEAD_LETTERS, OperatorSpec
from stateflow.pipelines.processes.process import ConnectedProcess
from stateflow.state.backends.base import Backend
from stateflow.state.broadcast_map import BroadcastWriteError
from stateflow.state.cursor import Change
from stateflow.state.keys.codec import KeyCodec

_NEVER_DIVERTED = (
    BroadcastWriteError, BusyError, CorruptError, DisagreementError, FencedError, IncompatibleError, UnavailableError, MemoryError,
)  # fmt: skip
"""Errors that no key has caused. Diverted, one damaged file would turn every key into a dead letter."""


class StreamError(BaseException):
    """The rows could not be read. It is no `Exception`, so that neither user code nor dead letters take it for an error of the
    key."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


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


class KeyedEngine(ProcessEngine):
    """One keyed operator in one task. `attach` a shard's backend, `run` chunks, `fire` timers."""

    def __init__(
        self,
        spec: OperatorSpec,
        moment: Moment,
        subtask: int,
        parallelism: int = 1,
        takers: Mapping[str, Taker] | None = None,
    ) -> None:
        """A key whose rows `takers` refuse can be a dead letter."""
        super().__init__(spec, moment, subtask, parallelism, takers)
        self.context.keyed = self.binding.keyed
        self.expiry = OperatorExpiry(self.binding.expiring, moment.slot)
        self.codec = KeyCodec(spec.key_types, spec.key_columns if len(spec.key_columns) > 1 else ())
        self.dead_letters = 0
        self._diverted = 0
        self._reads = ChunkReads(self.binding.chunked)
        self._attempt = Attempt(
            self.out,
            self.context,
            self.binding,
            self.cursor,
            takers or {},
            self.taker.values,
            lambda error, key: self._failed(error, key, ()),
            checked=spec.on_error == DEAD_LETTER,
        )
        self._firing = Firing(spec, self.codec, moment, self.binding, self._attempt)
        self.visiting = Visiting(spec.uid, self.codec, self._attempt)
        self._handlers = self._steps()

    def _steps(self) -> tuple[Callable[..., Any], ...]:
        process: Any = self.process
        if isinstance(process, ConnectedProcess):
            return process.process_left, process.process_right
        return (process.process,)

    def attach(self, backend: Backend, expiring: Sequence[ExpiryShare] = ()) -> None:
        """Turns to another shard; `expiring` is what its record says about the bytes that expire."""
        self.cursor.backend = backend
        self.cursor.position = 0
        self.cursor.changed = False
        self._firing.forget()
        self.expiry.attach(backend, expiring)

    def run(self, chunk: Chunk) -> None:
        """Calls user code for every key of the chunk and applies its state changes."""
        cursor, stored, count = self.cursor, self.binding.chunked, len(chunk.keys)
        self._firing.forget()
        cursor.base, cursor.keys = chunk.base, chunk.keys
        full = self._reads.begin(cursor.backend, count, chunk.keys_for)
        changes: list[Change] = []
        if chunk.cuts is not None and len(self._handlers) == 1 and self.spec.on_error == "fail":
            self._run_plainly(chunk, *chunk.cuts, changes)
        else:
            self._run_keys(chunk, changes)
        for state in stored:
            state.collect(full.get(state.state_id), changes)
        cursor.write(changes)
        self.keys += count
        self._reads.end(count)

    def _run_plainly(
        self, chunk: Chunk, inputs: list[Any], starts: list[int], ends: list[int], changes: list[Change]
    ) -> None:
        """The loop that nearly all keys go through: a microsecond here is a second per million keys."""
        cursor, context, process = self.cursor, self.context, self._handlers[0]
        context.late = False
        dirty, extend, flush = cursor.dirty, self.out.extend, cursor.flush
        serial, uid, values = cursor.serial, self.spec.uid, self.taker.values
        i, key = 0, None
        try:
            for i, key in enumerate(chunk.keys):
                cursor.i = i
                cursor.key = key
                cursor.serial = serial = serial + 1
                produced = process(key, iter(inputs[starts[i] : ends[i]]), context)
                if produced is not None:
                    rows = produced if type(produced) is GeneratorType else returned(uid, produced)
                    extend(map(values, rows))
                if dirty:
                    flush(changes)
        except Exception as error:
            self._failed(error, key, ())

    def _run_keys(self, chunk: Chunk, changes: list[Change]) -> None:
        cursor, context, rows_of, attempt = self.cursor, self.context, chunk.rows, self._attempt
        for i, key in enumerate(chunk.keys):
            cursor.i = i
            cursor.key = key
            cursor.serial += 1
            context.late = False
            mark = attempt.mark(changes)
            try:
                for step, rows in zip(self._handlers, rows_of(i), strict=True):
                    produced = step(key, rows, context)
                    if produced is not None:
                        self.out.extend(map(self.taker.values, returned(self.spec.uid, produced)))
                attempt.check(mark)
                cursor.flush(changes)
            except Exception as error:
                attempt.undo(mark, changes)
                self._failed(error, key, rows_of(i))

    def _failed(self, error: Exception, key: Any, inputs: tuple[Iterator[Any], ...]) -> None:
        spec, error = self.spec, self.taker.explained(error)
        self.cursor.discard()
        if isinstance(error, _NEVER_DIVERTED):
            raise error
        if spec.on_error != DEAD_LETTER:
            if isinstance(error, StateflowError):
                raise error
            raise UserCodeError(
                f"operator {spec.uid!r} failed on key {key!r}: {placed(error)}: {REPEATED}, or divert such keys with "
                "on_error='dead_letter'"
            ) from error
        rows = [_plain(row) for iterator in inputs for row in iterator]
        self.dead_letters += 1
        self._diverted += len(rows)
        if self._diverted > spec.dead_letter_limit:
            raise StateflowError(
                f"operator {spec.uid!r} diverted more than dead_letter_limit={spec.dead_letter_limit} rows in one subtask "
                f"and batch, the last of key {key!r} ({placed(error)}): {REPEATED}, or raise the option "
                "dead_letter_limit, as in stateflow.toml"
            ) from error
        self.context.sides[DEAD_LETTERS].append(
            (
                spec.uid,
                repr(key),
                f"{type(error).__name__}: {error}",
                _user_frames(error),
                as_json(rows),
                len(rows),
                self.moment.slot,
            )
        )

    def broadcast(self, name: str, rows: Sequence[Any]) -> None:
        self.context.visits = self.visiting.asked
        try:
            super().broadcast(name, rows)
        finally:
            self.context.visits = None

    def visit(self, groups: range) -> Iterator[None]:
        """Visits the keys of the attached shard, before its rows; yields when output should be taken."""
        return self.visiting.run(groups)

    def fire(self, groups: range) -> Iterator[None]:
        """Fires timers that are due in these key groups, in time order; yields when output should be taken."""
        self.context.watermark = self._at_timers
        yield from self._firing.run(groups)
        self.context.watermark = self._at_rows

    def next_timers(self, groups: range) -> tuple[int | None, int | None]:
        """The earliest event-time and processing-time timers that are set."""
        return self._firing.next_timers(groups)

    @property
    def timers_fired(self) -> int:
        return self._firing.fired

    @property
    def changed(self) -> bool:
        """Whether the attached shard was written to."""
        return self.cursor.changed or self.expiry.wrote

    def change(self, base: bytes, key: Any, code: Callable[[], None]) -> None:
        """Lets `code` change the states of a key, as user code does; `base` is its full key under state id 0."""
        self.move_to(base, key)
        changes: list[Change] = []
        code()
        self.cursor.flush(changes)
        for state in self.binding.chunked:
            state.collect(None, changes)
        self.cursor.write(changes)

    def move_to(self, base: bytes, key: Any) -> None:
        """Makes a key the current one; `base` is its full key under state id 0."""
        cursor = self.cursor
        cursor.base, cursor.i, cursor.key, cursor.keys = [base], 0, key, [key]
        cursor.serial += 1
        for state in self.binding.chunked:
            state.begin(1, None)


def _user_frames(error: Exception) -> str:
    frames = own_frames(error)[-3:]
    lines = [masked_lines(f"    {frame.line}").strip() for frame in frames]
    return "".join(
        f"  {f.filename}:{f.lineno} in {f.name}: {line}\n" for f, line in zip(frames, lines, strict=True)
    )


def as_json(rows: list[Any]) -> str:
    try:
        return msgspec.json.encode(rows, enc_hook=repr).decode()
    except (TypeError, ValueError, msgspec.MsgspecError):
        return json.dumps([repr(row) for row in rows])


def _plain(row: Any) -> Any:
    if hasattr(row, "_asdict"):
        return row._asdict()
    fields = getattr(row, "__dataclass_fields__", None) or getattr(row, "__struct_fields__", None)
    return {name: getattr(row, name) for name in fields} if fields else row
