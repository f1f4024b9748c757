"""Exact distinct counts: many conditions over a column, whatever the values and however the rows come."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import stateflow.pipelines.ready.aggregates as aggregate
from stateflow.pipelines.ready import windows
from stateflow.pipelines.ready.operators import KeyedRows, running_aggregate, window_aggregate
from stateflow.pipelines.rows.row_type import row_type
from stateflow.state.columns.state import ColumnState
from tests.operators.ready.driving import END, Driven

SECOND = 1_000_000
ROWS = "user long, who string, name string, n long, price decimal(10,2), day date, ts timestamp"
SCHEMA = pa.schema(
    [
        ("user", pa.int64()), ("who", pa.string()), ("name", pa.string()), ("n", pa.int64()), ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()), ("ts", pa.timestamp("us", "UTC")),
    ]
)  # fmt: skip
COLUMNS = ("name", "n", "price", "day")
MANY = 70
"""More conditions over one column than there are bits in a word."""


def counts() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for column in COLUMNS:
        made[f"{column}_all"] = aggregate.count_distinct(column)
        made[f"{column}_low"] = aggregate.count_distinct(column, where="n < 0")
        made[f"{column}_named"] = aggregate.count_distinct(column, where="name IS NOT NULL")
    return made | {f"over_{n}": aggregate.count_distinct("price", where=f"n > {n - 35}") for n in range(MANY)}


def table(chance: random.Random, count: int) -> pa.Table:
    def maybe(value: Any) -> Any:
        return None if chance.random() < 0.2 else value

    return pa.Table.from_pylist(
        [
            {
                "user": chance.randrange(3),
                "who": chance.choice(("", "a\0b", "b" * 40, "b" * 40 + "c")),
                "name": maybe(chance.choice(("", "\0", "é", "c" * 50, "c" * 50 + "d"))),
                "n": maybe(chance.randrange(-40, 40) << chance.choice((0, 50))),
                "price": maybe(Decimal(chance.randrange(-50, 50)).scaleb(-2)),
                "day": maybe(date(1970, 1, chance.randrange(1, 9))),
                "ts": number * SECOND,
            }
            for number in range(count)
        ],
        SCHEMA,
    )


def by_hand(rows: list[dict[str, Any]], group: Any) -> dict[Any, dict[str, int]]:
    members: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        members[group(row)].append(row)

    def different(of: list[dict[str, Any]], column: str) -> int:
        return len({row[column] for row in of} - {None})

    out: dict[Any, dict[str, int]] = {}
    for key, own in members.items():
        low = [row for row in own if row["n"] is not None and row["n"] < 0]
        named = [row for row in own if row["name"] is not None]
        out[key] = {f"{column}_all": different(own, column) for column in COLUMNS}
        out[key] |= {f"{column}_low": different(low, column) for column in COLUMNS}
        out[key] |= {f"{column}_named": different(named, column) for column in COLUMNS}
        for n in range(MANY):
            over = [row for row in own if row["n"] is not None and row["n"] > n - 35]
            out[key][f"over_{n}"] = different(over, "price")
    return out


def of(rows: list[dict[str, Any]], *key: str) -> dict[Any, dict[str, int]]:
    """What came out last for each key."""
    return {tuple(row[name] for name in key): {name: row[name] for name in counts()} for row in rows}


def keyed() -> KeyedRows:
    return KeyedRows("op", row_type(ROWS), ("user", "who"), ())


LONGS = ", ".join(f"{name} long" for name in counts())


@pytest.mark.parametrize("seed", range(3))
def test_running_counts_of_a_column_under_many_conditions(seed: int) -> None:
    chance = random.Random(seed)
    rows = table(chance, 300)
    driven = Driven(running_aggregate(keyed(), f"user long, who string, {LONGS}", counts()))
    for begin in range(0, 300, 60):
        driven.batch(rows.slice(begin, 60), None, chance.randrange(1, 3))
        driven.rescale(chance.randrange(1, 4))
    expected = by_hand(rows.to_pylist(), lambda row: (row["user"], row["who"]))
    assert of(driven.rows, "user", "who") == expected


def test_counts_of_windows_under_many_conditions() -> None:
    rows = table(random.Random(9), 300)
    declared = window_aggregate(
        keyed(), f"user long, who string, window_end timestamp, {LONGS}", counts(),
        window=windows.tumbling("50 seconds"), time="ts", lateness=0, emit="final",
    )  # fmt: skip
    driven = Driven(declared)
    for begin in range(0, 300, 60):
        driven.batch(rows.slice(begin, 60), begin // 2 * SECOND)
        driven.rescale(1 + begin % 3)
    driven.batch(None, END)
    found = {
        (*key[:2], key[2].timestamp()): each
        for key, each in of(driven.rows, "user", "who", "window_end").items()
    }
    expected = by_hand(
        rows.to_pylist(), lambda row: (row["user"], row["who"], row["ts"].timestamp() // 50 * 50 + 50)
    )
    assert found == expected


def test_counts_of_one_column_encode_its_values_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values by the million are sorted and encoded; that took most of a batch when each count did it for itself, twice."""
    encoded = []
    shared = ColumnState.shared

    def counted(self: ColumnState, keys: Any, owners: Any, **given: Any) -> Any:
        encoded.append(len(owners))
        return shared(self, keys, owners, **given)

    monkeypatch.setattr(ColumnState, "shared", counted)
    ranks = {"all": "", "low": "n < 0", "high": "n >= 0", "named": "name IS NOT NULL"}
    made = {
        f"{column}_{rank}": aggregate.count_distinct(column, where=where)
        for column in ("price", "day")
        for rank, where in ranks.items()
    }
    longs = ", ".join(f"{name} long" for name in made)
    driven = Driven(running_aggregate(keyed(), f"user long, who string, {longs}", made))
    rows = table(random.Random(1), 200)
    driven.batch(rows, None)
    each = rows.to_pylist()
    assert encoded == [
        len({(row["user"], row["who"], row[column]) for row in each if row[column] is not None})
        for column in ("price", "day")
    ]
