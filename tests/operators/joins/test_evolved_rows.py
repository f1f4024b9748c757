"""Joins whose rows have other columns than those that earlier code has kept."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pytest

import stateflow as sf
from stateflow.pipelines.ready.joins import JoinOperator, asof_join, interval_join, latest_join
from stateflow.pipelines.ready.operators import KeyedRows
from stateflow.pipelines.rows.row_type import row_type
from tests.operators.ready.driving import SECOND, Driven

INSTANT = pa.timestamp("us", "UTC")
TIMES = ("ts", "ts")


@dataclass
class Out:
    key: int
    known: str


def joined(left: Any, right: Any) -> Out:
    return Out(left.key, right.tag if hasattr(right, "tag") else f"{right.label!r}, {right.level}")


def rows_of(**fields: Any) -> KeyedRows:
    columns = [("key", int), ("ts", Annotated[Any, "timestamp"])]
    more = [(name, *(given if isinstance(given, tuple) else (given,))) for name, given in fields.items()]
    return KeyedRows("op", row_type(make_dataclass("Row", [*columns, *more])), ("key",), ())


JOINS: dict[str, Any] = {
    "interval": lambda left, right: interval_join(
        left, right, joined, times=TIMES, within=("-1 hour", "1 hour"), how="inner"
    ),
    "as-of": lambda left, right: asof_join(
        left, right, joined, times=TIMES, keep=None, wait=False, how="inner"
    ),
    "latest": lambda left, right: latest_join(left, right, joined, order="", ttl=None, how="inner"),
}


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize(
    ("label", "known"),
    [(str | None, "None, new"), (Annotated[str | None, sf.field(aliases=["name", "tag"])], "'red', new")],
    ids=["another column", "an alias"],
)
def test_rows_that_earlier_code_kept_have_what_aliases_and_defaults_say(
    join: str, label: Any, known: str
) -> None:
    left, level = rows_of(), (str, "new")
    driven = Driven(JOINS[join](left, rows_of(tag=str | None)))
    nothing = pa.table({"key": pa.array([], pa.int64()), "ts": pa.array([], INSTANT)})
    kept = pa.table({"key": [1], "ts": pa.array([5 * SECOND], INSTANT), "tag": ["red"]})
    assert driven.both(nothing, kept, None) == []
    later: JoinOperator = JOINS[join](left, rows_of(label=label, level=level))
    driven.evolve(
        later,
        {
            name: msgspec.structs.replace(layout.schema(), id=number)
            for number, (name, layout) in enumerate(later.states.items(), 1)
        },
    )
    came = pa.table({"key": [1], "ts": pa.array([9 * SECOND], INSTANT)})
    none = nothing.append_column("label", pa.array([], pa.string())).append_column(
        "level", pa.array([], pa.string())
    )
    assert driven.both(came, none, None) == [{"key": 1, "known": known}]
