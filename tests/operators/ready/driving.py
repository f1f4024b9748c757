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

from stateflow.compatibility.states import begun_shards, fixed_options, resolve_states
from stateflow.format.keygroups import key_group
from stateflow.format.records import FileRef, Shard, StateSchema
from stateflow.operators.arrow_types import arrow_schema_of
from stateflow.operators.columnar import ColumnarEngine, ColumnarSpec
from stateflow.operators.context import Moment
from stateflow.operators.joins.made import runnable
from stateflow.pipelines.graph import KeyedNode
from stateflow.pipelines.processes.operator_spec import MAIN
from stateflow.pipelines.ready.joins import JoinOperator
from stateflow.pipelines.ready.operators import ReadyOperator
from tests.in_memory import IN_MEMORY
from tests.jobs.operators import operator_of
from tests.state.conftest import BACKENDS, Shelf

GROUPS = 16
END = 253_402_300_799_999_999
SECOND = 1_000_000
DUES = ("next_event_timer", "next_event_expiry", "next_processing_expiry")


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
        backend: str = "memory",
    ) -> None:
        """`sides`: somebody reads its side outputs; `waited`: its rows come from an operator that waits for the watermark;
        `held_back`: so far behind it."""
        self.declared = declared
        self._how: dict[str, Any] = {"waited": waited, "held_back": held_back}
        self._sides = sides
        self._states: Mapping[str, StateSchema] = {
            name: msgspec.structs.replace(layout.schema(), id=index + 1)
            for index, (name, layout) in enumerate(declared.states.items())
        }
        self._next_id, self._options = len(self._states) + 1, dict[str, str]()
        self._spec = self._made()
        self._watermark: int | None = None
        """Of the batch before."""
        self._folder = tempfile.TemporaryDirectory(dir=IN_MEMORY)
        self._shelf = Shelf(Path(self._folder.name), backend, BACKENDS[backend]())
        self._shards: list[tuple[range, Any, Shard]] = []
        """Key groups, what is stored, and what a record says of the shard, apart from its files."""
        self.rescale(shards)
        self.slot = 0
        self.now = 0
        """The clock of the next batch."""
        self.output: list[list[dict[str, Any]]] = []
        """Per batch."""
        self.pieces: list[list[pa.Table]] = []
        """The tables of the last batch, one of each input, as they were handed to the operator."""
        self.sides: dict[str, list[dict[str, Any]]] = {}
        self.counters: dict[str, int] = {}
        self.groups = 0
        """How many combined rows the rows would have made."""

    @classmethod
    def of(cls, node: KeyedNode, shards: int = 1, **how: Any) -> Driven:
        """The operator of a pipeline, which a release may change."""
        assert isinstance(node.columnar, ReadyOperator)
        driven = cls(node.columnar, shards, **how)
        driven._states, driven._next_id = resolve_states(node, None)
        driven._options = fixed_options(node)
        driven._spec = driven._made()
        return driven

    def release(self, node: KeyedNode) -> None:
        """From now on with other code, whose state is compared with what there is."""
        files = (FileRef("any", 0, ""),) if self.entries() else ()
        shards = [msgspec.structs.replace(shard, files=files) for _, _, shard in self._shards]
        before = operator_of(
            shards, key=self.declared.key, groups=GROUPS, states=dict(self._states),
            next_state_id=self._next_id, options=self._options,
        )  # fmt: skip
        self._states, self._next_id = resolve_states(node, before, self.slot + 1)
        begun = [
            msgspec.structs.replace(shard, files=()) for [shard] in begun_shards(node, before, self._states)
        ]
        self._shards = [
            (mine, held, shard) for (mine, held, _), shard in zip(self._shards, begun, strict=True)
        ]
        self._options = fixed_options(node)
        assert isinstance(node.columnar, ReadyOperator)
        self.declared = node.columnar
        self._spec = self._made()

    def evolve(self, declared: ReadyOperator, states: Mapping[str, StateSchema]) -> None:
        """From now on with other code, whose states have been compared with those that there are."""
        self.declared, self._states = declared, states
        self._spec = self._made()

    def _made(self) -> ColumnarSpec:
        declared = self.declared
        outputs = {MAIN: arrow_schema_of(declared.output)}
        outputs |= {name: arrow_schema_of(rows) for name, rows in declared.sides.items()}
        operator = runnable(declared, frozenset(declared.sides) if self._sides else frozenset())
        mine = {name: self._states[name] for name in declared.states}
        return ColumnarSpec("op", operator, declared.key, GROUPS, mine, outputs, **self._how)

    def close(self) -> None:
        for _, backend, _ in self._shards:
            backend.close()
        self._folder.cleanup()

    def rescale(self, count: int) -> None:
        entries = [entry for _, backend, _ in self._shards for entry in backend.scan(b"", b"\xff" * 8)]
        before = [shard for _, _, shard in self._shards]
        due = {name: earliest([getattr(shard, name) for shard in before]) for name in DUES}
        for _, backend, _ in self._shards:
            backend.close()
        bounds = [GROUPS * i // count for i in range(count + 1)]
        self._shards = []
        for first, end in pairwise(bounds):
            shard = self._shelf.empty(first, end - 1)
            backend = self._shelf.open(shard)
            mine = [e for e in entries if first <= int.from_bytes(e[0][:2], "big") < end]
            backend.write(mine)
            shard = msgspec.structs.replace(shard, **due) if mine else shard
            self._shards.append((range(first, end), backend, shard))

    def restart(self) -> None:
        """Closes all shards, and opens their files."""
        self.open(self.seal())

    def seal(self) -> list[tuple[Shard, Shard]]:
        """Closes all shards: their files, and what a record says of each beside."""
        return [
            (self._shelf.seal(backend, mine.start, mine.stop - 1), shard)
            for mine, backend, shard in self._shards
        ]

    def open(self, sealed: Sequence[tuple[Shard, Shard]]) -> None:
        self._shards = [
            (range(shard.first, shard.last + 1), self._shelf.open(files), shard) for files, shard in sealed
        ]

    def moment(self, watermark: int | None) -> Moment:
        """Of the next batch."""
        moment = Moment(self.slot, self.now, self.slot, watermark, watermark_before=self._watermark)
        self.slot, self._watermark = self.slot + 1, watermark
        return moment

    def batch(self, rows: pa.Table | None, watermark: int | None, tables: int = 1) -> list[dict[str, Any]]:
        """A batch. The rows of a shard come in so many tables."""
        return self._run([] if rows is None else [rows], watermark, tables)

    def both(
        self, left: pa.Table, right: pa.Table, watermark: int | None, tables: int = 1
    ) -> list[dict[str, Any]]:
        """A batch of a join."""
        return self._run([left, right], watermark, tables)

    def _run(self, inputs: list[pa.Table], watermark: int | None, tables: int) -> list[dict[str, Any]]:
        moment = self.moment(watermark)
        produced: list[dict[str, Any]] = []
        after = []
        self.pieces = []
        declared = self.declared
        keys = [declared.key_columns]
        if isinstance(declared, JoinOperator):
            keys = [declared.left.key, declared.right.key]
        groups = [_groups(table, key) for table, key in zip(inputs, keys, strict=False)]
        for mine, backend, shard in self._shards:
            here = [
                table.filter(pa.array(np.isin(of, list(mine))))
                for table, of in zip(inputs, groups, strict=True)
            ]
            without_rows = not any(table.num_rows for table in here)
            if without_rows and not self._is_due(shard, watermark):
                after.append((mine, backend, shard))
                continue
            operator = cloudpickle.loads(cloudpickle.dumps(self._spec.operator))
            engine = ColumnarEngine(replace(self._spec, operator=operator), moment, 0)
            engine.attach(backend, mine, shard.next_event_timer, empty=False)
            if engine.expiry.states:
                expiries = shard.next_event_expiry, shard.next_processing_expiry
                engine.expiry.expire(mine, expiries, shard.entries, without_rows=without_rows)
            for pieces in _cut(here, keys, tables):
                self.pieces.append(pieces)
                late = [pa.array([False] * piece.num_rows) for piece in pieces]
                self._take(engine.process(pieces, late), produced)
            self._take(engine.fire(), produced)
            self.groups += engine.groups
            dues = engine.next_due(), *engine.expiry.finish()
            after.append(
                (mine, backend, msgspec.structs.replace(shard, **dict(zip(DUES, dues, strict=True))))
            )
            for name, counter in engine.context.metrics.counters.items():
                self.counters[name] = self.counters.get(name, 0) + counter.value
        self._shards = after
        self.output.append(produced)
        return produced

    def _is_due(self, shard: Shard, watermark: int | None) -> bool:
        event = [at for at in (shard.next_event_timer, shard.next_event_expiry) if at is not None]
        processing = shard.next_processing_expiry
        return (watermark is not None and any(at <= watermark for at in event)) or (
            processing is not None and processing <= self.now
        )

    def entries(self) -> int:
        return sum(len(list(backend.scan(b"", b"\xff" * 8))) for _, backend, _ in self._shards)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in self.output for row in batch]

    def _take(self, pieces: Any, produced: list[dict[str, Any]]) -> None:
        for name, batch in pieces:
            (produced if name == MAIN else self.sides.setdefault(name, [])).extend(batch.to_pylist())


def earliest(times: Sequence[int | None]) -> int | None:
    return min((at for at in times if at is not None), default=None)


def _groups(table: pa.Table, key: Sequence[str]) -> Any:
    keys = list(zip(*(table[name].to_pylist() for name in key), strict=True))
    plain = [key[0] if len(key) == 1 else key for key in keys]
    return np.array([0 if None in k else key_group(p, GROUPS) for k, p in zip(keys, plain, strict=True)])


def _cut(inputs: list[pa.Table], keys: Sequence[Sequence[str]], count: int) -> list[list[pa.Table]]:
    """The tables that a task makes of too many rows: a key that one table cannot hold goes on in the next one."""
    if not any(table.num_rows for table in inputs):
        return []
    if count == 1:
        return [inputs]
    rows = [
        (repr(key), number, place)
        for number, (table, names) in enumerate(zip(inputs, keys, strict=True))
        for place, key in enumerate(zip(*(table[name].to_pylist() for name in names), strict=True))
    ]
    rows.sort()
    step = -(-len(rows) // count)
    pieces = []
    for begin in range(0, len(rows), step):
        part = rows[begin : begin + step]
        pieces.append(
            [
                table.take(pa.array([place for _, mine, place in part if mine == number], pa.int64()))
                for number, table in enumerate(inputs)
            ]
        )
    return pieces
