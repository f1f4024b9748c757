"""Aggregates that are added, taken out and put in another order over the state that there is."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import stateflow as sf
from stateflow.compatibility.states import resolve_states
from stateflow.errors import IncompatibleError
from stateflow.pipelines.graph import KeyedNode
from tests.jobs.operators import operator_of
from tests.operators.ready.driving import END, Driven

ROWS = "user long, amount double, name string, ts timestamp"
SECOND = 1_000_000


def node_of(output: str, **aggregates: Any) -> KeyedNode:
    @sf.pipeline("changed")
    def changed(flow: sf.Flow) -> None:
        source = flow.source("in", sf.delta("/in"), ROWS, event_time="ts", watermark="0 seconds")
        keyed = source.key_by("user", order_by="ts")
        windowed = "window_start" in output
        if windowed:
            keyed.window(sf.tumbling("10 seconds")).aggregate("op", output, **aggregates)
        else:
            keyed.aggregate("op", output, **aggregates)

    return changed.build().operators[0]


def declared_of(node: KeyedNode) -> Any:
    return node.columnar


def rows(*values: tuple[float | None, str, int]) -> pa.Table:
    schema = pa.schema(
        [
            ("user", pa.int64()),
            ("amount", pa.float64()),
            ("name", pa.string()),
            ("ts", pa.timestamp("us", "UTC")),
        ]
    )
    made = [{"user": 1, "amount": a, "name": n, "ts": at * SECOND} for a, n, at in values]
    return pa.Table.from_pylist(made, schema)


def driven_over_a_change(before: KeyedNode, after: KeyedNode, first: pa.Table) -> Driven:
    states, next_id = resolve_states(before, None)
    driven = Driven(declared_of(before))
    driven.batch(first, None)
    record = operator_of(key=declared_of(before).key, groups=16, states=states, next_state_id=next_id)
    driven.evolve(declared_of(after), resolve_states(after, record, 7)[0])
    return driven


def test_an_aggregate_that_is_added_begins_with_the_rows_that_come() -> None:
    driven = driven_over_a_change(
        node_of("user long, n long, total double", n=sf.count(), total=sf.sum("amount")),
        node_of(
            "user long, last string, total double, least double, n long, average double",
            last=sf.last("name"), total=sf.sum("amount"), least=sf.min("amount"), n=sf.count(), average=sf.mean("amount"),
        ),
        rows((1.0, "a", 1), (2.0, "b", 2)),
    )  # fmt: skip
    assert driven.batch(rows((4.0, "c", 3), (6.0, "d", 4)), None) == [
        {"user": 1, "last": "d", "total": 13.0, "least": 4.0, "n": 4, "average": 5.0}
    ]


def test_the_windows_that_are_open_take_an_added_aggregate_on() -> None:
    driven = driven_over_a_change(
        node_of("user long, window_start timestamp, n long", n=sf.count()),
        node_of(
            "user long, window_start timestamp, n long, names string", n=sf.count(), names=sf.max("name")
        ),
        rows((1.0, "a", 1), (1.0, "x", 11)),
    )
    driven.batch(rows((1.0, "b", 2)), None)
    assert [(row["n"], row["names"]) for row in driven.batch(None, END)] == [(2, "b"), (1, None)]


def test_an_aggregate_whose_values_change_their_type_is_refused() -> None:
    states, next_id = resolve_states(node_of("user long, x double", x=sf.max("amount")), None)
    record = operator_of(groups=16, states=states, next_state_id=next_id)
    with pytest.raises(IncompatibleError, match="x"):
        resolve_states(node_of("user long, x string", x=sf.max("name")), record, 7)
