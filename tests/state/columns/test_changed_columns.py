"""Columns added to and removed from columnar state: old values are read under the new columns, and mixed with new ones."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import stateflow as sf
from stateflow.compatibility.flows import compare
from stateflow.compatibility.states import resolve_states
from stateflow.format.encoding import state_range
from stateflow.format.records import OperatorState, Shard
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.pipeline import Pipeline
from stateflow.state.backends.memory import memory_backend
from stateflow.state.columns.state import ColumnState
from stateflow.state.tabular import StateTable, tables_of
from stateflow.state.values.evolution.versions import stored_reader
from tests.jobs.log import record
from tests.jobs.operators import operator_of

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Row(msgspec.Struct):
    user: int


def columnar(columns: dict[str, Any]) -> Flow:
    def declare(flow: Flow) -> None:
        rows = flow.source("in", sf.delta("/nowhere"), Row).key_by("user")
        rows.process_arrow("op", lambda table, state, ctx: table, state=columns, output="user long").collect(
            "out", sf.memory("x")
        )

    return Pipeline("job", declare).build()


class Job:
    """The state of one columnar operator through releases."""

    def __init__(self, folder: Path) -> None:
        shard = Shard(first=0, last=127, backend="memory")
        self.on = memory_backend()(shard, folder / "shard", lambda ref: Path(ref.path))
        self.slot = 0
        self.operator: OperatorState | None = None

    def check(self, columns: dict[str, Any]) -> Any:
        found = None
        if self.operator is not None:
            found = record(self.slot, operators={"op": self.operator})
        return compare(columnar(columns), "job", found)

    def release(self, columns: dict[str, Any]) -> ColumnState:
        self.slot += 1
        [node] = columnar(columns).operators
        states, next_id = resolve_states(node, self.operator, self.slot)
        self.operator = operator_of(states=states, next_state_id=next_id)
        state = ColumnState((("user", "int"),), states["columns"], 128, "operator 'op'")
        state.attach(self.on, range(128))
        return state

    def told(self) -> list[tuple[Any, Any]]:
        """As tables show it, and, entry by entry, as queries do: both must agree."""
        assert self.operator is not None
        table: Any = tables_of(self.operator)["columns"]
        assert isinstance(table, StateTable)
        schema = self.operator.states["columns"]
        entries = [entry for group in range(128) for entry in self.on.scan(*state_range(group, schema.id))]
        rows = table.decode([k for k, _ in entries], [v for _, v in entries]).to_pylist()
        read = stored_reader(schema)
        assert [read(raw) for _, raw in entries] == [row["value"] for row in rows]
        return sorted((row["user"], row["value"]) for row in rows)


KEYS = pa.array([1, 2])


@pytest.mark.parametrize("text", [False, True])
def test_columns_come_and_go_and_values_stay_as_they_were_until_they_are_put(
    tmp_path: Path, text: bool
) -> None:
    more: dict[str, Any] = {"name": str} if text else {}
    said = {"name": ["a", "b"]} if text else {}
    job = Job(tmp_path)
    first = job.release({"n": int, "gone": bool, "at": datetime, **more})
    first.put(
        KEYS,
        pa.table(
            {
                "n": [1, None],
                "gone": [True, False],
                "at": pa.array([NOON, None], pa.timestamp("us", "UTC")),
                **said,
            }
        ),
    )
    columns = (
        {"at": datetime, "n": float, **more, "new": str} if text else {"at": datetime, "n": float, "new": int}
    )
    checked = job.check(columns)
    assert checked.compatible
    [operator] = checked.operators
    assert operator.states["columns"].endswith("loses values: column gone is gone")
    before = dict(job.on.scan(b"", b"\xff" * 8))
    second = job.release(columns)
    rows = second.get(pa.array([2, 1, 3])).to_pylist()
    assert rows == [
        {"at": None, "n": None, "new": None, **({"name": "b"} if text else {})},
        {"at": NOON, "n": 1.0, "new": None, **({"name": "a"} if text else {})},
        {"at": None, "n": None, "new": None, **({"name": None} if text else {})},
    ]
    assert dict(job.on.scan(b"", b"\xff" * 8)) == before
    one = {"at": pa.array([NOON], pa.timestamp("us", "UTC")), "n": [2.5], "new": ["x" if text else 7]}
    second.put(pa.array([1]), pa.table({**one, **({"name": ["c"]} if text else {})}))
    assert second.get(KEYS).to_pylist()[0]["n"] == 2.5
    assert [value["n"] for _, value in job.told()] == [2.5, None]
    third = job.release({**columns, "more": int})
    assert [row["n"] for row in third.get(KEYS).to_pylist()] == [2.5, None]
    assert [value["more"] for _, value in job.told()] == [None, None]


def test_many_columns_become_few_and_many_again(tmp_path: Path) -> None:
    job = Job(tmp_path)
    many = {f"c{n}": int for n in range(20)}
    job.release(many).put(KEYS, pa.table({f"c{n}": [n, None] for n in range(20)}))
    assert job.release({"c19": int, "c3": int}).get(KEYS).to_pylist() == [
        {"c19": 19, "c3": 3},
        {"c19": None, "c3": None},
    ]
    assert [value for _, value in job.told()] == [{"c19": 19, "c3": 3}, {"c19": None, "c3": None}]
    assert job.release(many).get(KEYS).to_pylist()[0] == {f"c{n}": n for n in range(20)}


def test_another_type_of_a_column_is_refused(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.release({"n": float})
    checked = job.check({"n": int})
    assert "column n: float cannot become int by itself" in checked.problems[0]
    assert "migrate=" not in checked.problems[0]
