"""Drives a ready-made operator as tasks do: batches, shards, restarts between batches, rescales; without Spark."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark import cloudpickle

from stateflow.format.keygroups import key_group
from stateflow.format.records import Shard, StateSchema
from stateflow.operators.arrow_types import arrow_schema_of
from stateflow.operators.columnar import ColumnarEngine, ColumnarSpec
from stateflow.operators.context import Moment
from stateflow.operators.joins.made import runnable
from stateflow.pipelines.processes.operator_spec import MAIN
from stateflow.pipelines.ready.operators import ReadyOperator
from stateflow.state.backends.memory import memory_backend
from tests.in_memory import IN_MEMORY

GROUPS = 16
END = 253_402_300_799_999_999


class Driven:
    """An operator with its state. Every batch is run by a copy of the operator that knows nothing but the state."""

    def __init__(
        self,
        declared: ReadyOperator,
        shards: int = 1,
        *,
        sides: bool = True,
        waited: bool = False,
        held_back: int = 0,
    ) -> None:
        """`sides`: somebody reads its side outputs; `waited`: its rows come from an operator that waits for the watermark;
        `held_back`: so far behind it."""
        self.declared = declared
        self._sides = sides
        numbered = {
            name: msgspec.structs.replace(layout.schema(), id=index + 1)
            for index, (name, layout) in enumerate(declared.states.items())
        }
        self._spec = replace(_spec(declared, numbered, sides=sides), waited=waited, held_back=held_back)
        self._watermark: int | None = None
        """Of the batch before."""
        self._folder = tempfile.TemporaryDirectory(dir=IN_MEMORY)
        self._shards: list[tuple[range, Any, int | None]] = []
        self.rescale(shards)
        self.slot = 0
        self.output: list[list[dict[str, Any]]] = []
        """Per batch."""
        self.sides: dict[str, list[dict[str, Any]]] = {}
        self.counters: dict[str, int] = {}
        self.groups = 0
        """How many combined rows the rows would have made."""

    def evolve(self, declared: ReadyOperator, states: Mapping[str, StateSchema]) -> None:
        """From now on with other code, whose states have been compared with those that there are."""
        self.declared = declared
        self._spec = _spec(declared, states, sides=self._sides)

    def rescale(self, count: int) -> None:
        entries = [entry for _, backend, _ in self._shards for entry in backend.scan(b"", b"\xff" * 8)]
        due = [at for _, _, at in self._shards if at is not None]
        bounds = [GROUPS * i // count for i in range(count + 1)]
        self._shards = []
        for first, end in pairwise(bounds):
            backend = memory_backend()(
                Shard(first=first, last=end - 1, backend="memory"),
                Path(self._folder.name),
                lambda ref: Path(ref.path),
            )
            mine = [e for e in entries if first <= int.from_bytes(e[0][:2], "big") < end]
            backend.write(mine)
            self._shards.append((range(first, end), backend, min(due, default=None) if mine else None))

    def moment(self, watermark: int | None) -> Moment:
        """Of the next batch."""
        moment = Moment(self.slot, 0, self.slot, watermark, watermark_before=self._watermark)
        self.slot, self._watermark = self.slot + 1, watermark
        return moment

    def batch(self, rows: pa.Table | None, watermark: int | None, tables: int = 1) -> list[dict[str, Any]]:
        """A batch. The rows of a shard come in so many tables."""
        moment = self.moment(watermark)
        produced: list[dict[str, Any]] = []
        after = []
        groups = self._groups(rows)
        for mine, backend, due in self._shards:
            operator = cloudpickle.loads(cloudpickle.dumps(self._spec.operator))
            engine = ColumnarEngine(_with(self._spec, operator), moment, 0)
            here = None if rows is None else rows.filter(pa.array(np.isin(groups, list(mine))))
            is_due = due is not None and watermark is not None and due <= watermark
            if (here is None or not here.num_rows) and not is_due:
                after.append((mine, backend, due))
                continue
            engine.attach(backend, mine, due, empty=False)
            pieces = (
                [] if here is None or not here.num_rows else _cut(here, tables, self.declared.key_columns)
            )
            for piece in pieces:
                self._take(engine.process([piece], [pa.array([False] * piece.num_rows)]), produced)
            self._take(engine.fire(), produced)
            self.groups += engine.groups
            after.append((mine, backend, engine.next_due()))
            for name, counter in engine.context.metrics.counters.items():
                self.counters[name] = self.counters.get(name, 0) + counter.value
        self._shards = after
        self.output.append(produced)
        return produced

    def entries(self) -> int:
        return sum(len(list(backend.scan(b"", b"\xff" * 8))) for _, backend, _ in self._shards)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in self.output for row in batch]

    def _take(self, pieces: Any, produced: list[dict[str, Any]]) -> None:
        for name, batch in pieces:
            (produced if name == MAIN else self.sides.setdefault(name, [])).extend(batch.to_pylist())

    def _groups(self, rows: pa.Table | None) -> Any:
        if rows is None:
            return None
        columns = [rows[name].to_pylist() for name in self.declared.key_columns]
        keys: Sequence[Any] = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        return np.array([key_group(key, GROUPS) for key in keys])


def _spec(declared: ReadyOperator, states: Mapping[str, StateSchema], *, sides: bool) -> ColumnarSpec:
    outputs = {MAIN: arrow_schema_of(declared.output)}
    outputs |= {name: arrow_schema_of(rows) for name, rows in declared.sides.items()}
    operator = runnable(declared, frozenset(declared.sides) if sides else frozenset())
    mine = {name: states[name] for name in declared.states}
    return ColumnarSpec("op", operator, declared.key, GROUPS, mine, outputs)


def _with(spec: ColumnarSpec, operator: Any) -> ColumnarSpec:
    return replace(spec, operator=operator)


def _cut(table: pa.Table, pieces: int, key: Sequence[str]) -> list[pa.Table]:
    """The tables that a task makes of too many rows: a key that one table cannot hold goes on in the next one."""
    if pieces > 1:
        table = table.sort_by([(name, "ascending") for name in key])
    step = -(-table.num_rows // pieces)
    return [table.slice(begin, step) for begin in range(0, table.num_rows, step)]
