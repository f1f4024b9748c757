"""Today's code on a key of a past batch: what it puts out and keeps, beside what the record of the batch has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from stateflow.debugging.past_key import PastKey
from stateflow.format.instants import instant, nearest_instant
from stateflow.operators.arrow_types import arrow_schema_of
from stateflow.operators.output import RowWriter
from stateflow.pipelines.graph import KeyedNode
from stateflow.pipelines.held_back import before_and
from stateflow.pipelines.processes.operator_spec import MAIN
from stateflow.pipelines.rows.row_type import RowType
from stateflow.reading.key_state import KeyState
from stateflow.state.values.plain import comparable, jsonable
from stateflow.testing.columnar import ColumnarHarness
from stateflow.testing.keyed import KeyedHarness
from stateflow.testing.recorded import RecordedState

Row = dict[str, Any]
Run = Callable[[PastKey, Callable[[], Any]], bool]
"""Calls the code that runs the batch of a key; False if that was left early."""


@dataclass(frozen=True)
class Trial:
    """What came of it. All values are as JSON has them."""

    past: PastKey
    rows: Sequence[Sequence[Row]]
    """Of each input."""
    output: Mapping[str, Sequence[Row]]
    """Of the main output, by an empty name, and of those to the side."""
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    then: Mapping[str, Any]
    """By state: before the batch; after it now; after it then."""
    notes: Sequence[str] = field(default_factory=tuple)
    """Why it may differ for other reasons than the code."""

    @property
    def differences(self) -> list[str]:
        """The states that this code leaves otherwise than the record has them."""
        then, after = comparable(self.then), comparable(self.after)
        return [name for name in {**then, **after} if then.get(name) != after.get(name)]

    @property
    def is_same(self) -> bool:
        return not self.differences

    @property
    def verdict(self) -> str:
        where = f"what checkpoint {self.past.slot} holds for key {self.past.text}"
        if self.is_same:
            return f"this code gives the same as {where}"
        return f"this code gives something else than {where}: {', '.join(self.differences)}"

    def document(self) -> dict[str, Any]:
        past = self.past
        return {
            "job": past.job,
            "operator": past.node.uid,
            "key": past.text,
            "checkpoint": past.slot,
            "now": past.moment.now,
            "watermark": past.moment.watermark,
            "rows": self.rows,
            "before": self.before,
            "after": self.after,
            "recorded": self.then,
            "output": {name or "main": rows for name, rows in self.output.items()},
            "same": self.is_same,
            "differences": self.differences,
            "notes": list(self.notes),
        }


Harness = KeyedHarness | ColumnarHarness


def harness_of(past: PastKey) -> Harness:
    """The operator with the key's state as it was before the batch, at the time of the batch."""
    node, moment = past.node, past.moment
    arguments: dict[str, Any] = {
        "rows": [rows.type for rows in past.rows.inputs],
        "after": beginning(past),
        "parameters": moment.parameters,
        "max_parallelism": past.before.operator.max_parallelism,
    }
    kind: type[Harness] = KeyedHarness if node.columnar is None else ColumnarHarness
    harness = kind.of(past.flow, node.uid, **arguments)
    harness.stand_at(
        slot=moment.slot,
        now=instant(moment.now),
        seed=moment.seed,
        watermark=None if moment.watermark is None else nearest_instant(moment.watermark),
        watermark_before=None
        if moment.watermark_before is None
        else nearest_instant(moment.watermark_before),
        subtask=(past.then.subtask, len(past.then.operator.assignment)),
    )
    return harness


def beginning(past: PastKey) -> RecordedState:
    """The state before the batch. Of state without keys it is that of the key's subtask."""
    before = past.before
    subtask = before.subtask
    own = {
        name: msgspec.structs.replace(
            state, parts=parts[:1] if state.kind == "broadcast" else (parts[subtask],)
        )
        for name, state in before.operator.operator_states.items()
        if subtask < len(parts := state.parts) or (state.kind == "broadcast" and parts)
    }
    operator = msgspec.structs.replace(before.operator, shards=(), operator_states=own)
    return RecordedState(operator=operator, entries=tuple(before.entries), slot=past.slot - 1)


def at_once(past: PastKey, code: Callable[[], Any]) -> bool:
    """Runs a batch without stopping."""
    code()
    return True


def tried(past: PastKey, run: Run = at_once) -> Trial | None:
    """Runs the batch. `run` calls the code, under a debugger perhaps; None if somebody has left it before it was done."""
    harness = harness_of(past)
    if not run(past, lambda: _batch(harness, past)):
        return None
    recorded = harness.recorded()
    moment = past.moment
    after = KeyState(
        past.node.uid, recorded.operator, past.key, recorded.entries, moment.now, moment.watermark
    )
    return Trial(
        past,
        rows_in(past),
        _output(past.node, harness),
        past.before.values(),
        after.values(),
        past.then.values(),
        list(_notes(past)),
    )


def rows_in(past: PastKey) -> list[list[Row]]:
    """The key's rows, of each input."""
    return [[plain(row) for row in rows.plain()] for rows in past.rows.inputs]


def plain(row: Row) -> Row:
    """The row as JSON has it."""
    return {name: jsonable(value) for name, value in row.items()}


def _batch(harness: Harness, past: PastKey) -> None:
    inputs = past.rows.inputs
    if isinstance(harness, ColumnarHarness):
        late = [rows.late for rows in inputs]
        if len(inputs) == 1:
            harness.rows(inputs[0].table, late=late[0])
        else:
            harness.both(inputs[0].table, inputs[1].table, late=late)
        return
    objects, flags = [rows.objects() for rows in inputs], [flag for rows in inputs for flag in rows.late]
    harness.batch(*objects, late=flags, broadcast=past.rows.broadcast)


def _output(node: KeyedNode, harness: Harness) -> dict[str, list[Row]]:
    assert node.output is not None
    rows = {MAIN: harness.output, **{name: harness.side(name) for name in node.sides}}
    types = {MAIN: node.output, **node.sides}
    return {
        name: [_row(types[name], each) for each in some] for name, some in rows.items() if some or not name
    }


def _row(of: RowType, row: Any) -> Row:
    if not isinstance(row, dict):
        writer = RowWriter(of, arrow_schema_of(of), of.name)
        row = dict(zip(of.names, writer.values(row), strict=True))
    return plain(row)


def _notes(past: PastKey) -> Iterator[str]:
    node = past.node
    if not all(rows.in_order for rows in past.rows.inputs):
        yield "the order in which the key's rows came then is not known: this one may be another"
    if any(isinstance(each, KeyedNode) for stream in node.inputs for each in before_and(stream.node)):
        yield "the rows come from operators before this one, and this code made them anew from the state of then"
    if any(state.kind != "broadcast" for state in past.before.operator.operator_states.values()):
        yield "state without keys is that of before the batch: what other keys of the subtask did to it in this batch is not there"
