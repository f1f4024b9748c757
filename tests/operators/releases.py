"""One operator over one backend through several releases of its code, as a job's records carry it on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

import stateflow as sf
from stateflow.compatibility.flows import compare
from stateflow.compatibility.states import indexes, resolve_states, state_ids
from stateflow.format.encoding import state_range
from stateflow.format.records import OperatorState, Record, Shard, StateSchema
from stateflow.operators.context import Moment
from stateflow.operators.keyed import KeyedEngine
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.pipeline import Pipeline
from stateflow.pipelines.processes.operator_spec import OperatorSpec
from stateflow.pipelines.rows.row_type import row_type
from stateflow.state.backends.base import Backend
from stateflow.state.backends.memory import memory_backend
from stateflow.state.backends.rocksdb import rocksdb_backend
from stateflow.state.backends.rocksdb_options import MIB, RocksOptions
from stateflow.state.tabular import StateTable, tables_of
from tests.jobs.log import record
from tests.jobs.operators import operator_of
from tests.operators.test_keyed import chunk

Act = Callable[[Any, int], Any]
"""act(process, key): what a test does with the states of a key."""


class Row(msgspec.Struct):
    user: int
    ts: datetime


def opened(backend: str, folder: Path) -> Backend:
    shard = Shard(first=0, last=127, backend=backend)
    factory = memory_backend() if backend == "memory" else rocksdb_backend(RocksOptions(write_buffer=MIB))
    return factory(shard, folder / "shard", lambda ref: Path(ref.path))


def process_of(**body: Any) -> type[Any]:
    """A process class with these states. Its rows are acts, whose results it puts out."""

    def process(self: Any, key: int, rows: Iterator[Act], ctx: sf.Context) -> Iterator[Any]:
        for act in rows:
            yield act(self, key)

    return type("Made", (sf.KeyedProcess,), {**body, "process": process})


def flow_of(process_type: Any) -> Flow:
    def declare(flow: Flow) -> None:
        rows = flow.source("in", sf.delta("/nowhere"), Row, event_time="ts", watermark="0 seconds")
        rows.key_by("user").process("op", process_type, output="n long").collect("out", sf.memory("x"))

    return Pipeline("job", declare).build()


class Releases:
    def __init__(self, on: Backend) -> None:
        self.on = on
        self.slot = 0
        self.operator: OperatorState | None = None
        self.dead: list[Any] = []

    @property
    def record(self) -> Record | None:
        if self.operator is None:
            return None
        return record(self.slot, operators={"op": self.operator})

    def check(self, process_type: Any) -> Any:
        return compare(flow_of(process_type), "job", self.record)

    def run(
        self, process_type: Any, acts: dict[int, list[Act]], *, on_error: str = "fail", now: int = 0
    ) -> list[Any]:
        """A batch of this code, from a new engine; refused as a run would be."""
        checked = self.check(process_type)
        if not checked.compatible:
            raise sf.IncompatibleError(checked.problems[0])
        self.slot += 1
        [node] = flow_of(process_type).operators
        states, next_id = resolve_states(node, self.operator, self.slot)
        # As a record has it: what a decoder of JSON makes of it.
        states = msgspec.json.decode(msgspec.json.encode(states), type=dict[str, StateSchema])
        row = row_type("n long")
        spec = OperatorSpec(
            "op", process_type, process_type, ("user",), ("int",), (row,), row, {}, state_ids(states), on_error, 1000,
            indexes=indexes(states), evolved={name: schema for name, schema in states.items() if schema.evolved},
        )  # fmt: skip
        engine = KeyedEngine(spec, Moment(self.slot, now, 42, None), 0)
        engine.attach(self.on)
        engine.run(chunk(acts))
        self.dead = engine.context.sides.get("dead_letters", [])
        self.operator = operator_of(states=states, next_state_id=next_id)
        return list(engine.out)

    def table(self, state: str) -> list[dict[str, Any]]:
        """The state as tables, exports and canonical savepoints show it."""
        assert self.operator is not None
        table = tables_of(self.operator)[state]
        assert isinstance(table, StateTable)
        entries = self.stored(state)
        return table.decode([key for key, _ in entries], [value for _, value in entries]).to_pylist()  # type: ignore[no-any-return]

    def stored(self, state: str) -> list[tuple[bytes, bytes]]:
        assert self.operator is not None
        schema = self.operator.states[state]
        return [entry for group in range(128) for entry in self.on.scan(*state_range(group, schema.id))]
