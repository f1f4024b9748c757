"""Which operators Spark sums up before the exchange, and what it computes for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import stateflow as sf
from stateflow.operators.combining import combining_of, piece_of
from stateflow.operators.ready.windows.panes import panes_of
from stateflow.pipelines.processes.operator_spec import MAIN
from stateflow.pipelines.ready import windows
from stateflow.pipelines.ready.operators import (
    LATE,
    KeyedRows,
    RunningAggregate,
    running_aggregate,
    window_aggregate,
)
from stateflow.pipelines.rows.row_type import row_type

ROWS = (
    "user long, name string, raw binary, amount double, small float, price decimal(10,2), huge decimal(38,2), n long, k int, "
    "day date, ts timestamp, paid boolean"
)


def running(**aggregates: sf.Aggregate) -> RunningAggregate:
    keyed = KeyedRows("op", row_type(ROWS), ("user",), ("ts",))
    output = ", ".join(f"{name} {_type(name)}" for name in aggregates)
    return running_aggregate(keyed, f"user long, {output}", aggregates)


def _type(name: str) -> str:
    return {
        "x": "string",
        "b": "binary",
        "d": "date",
        "t": "timestamp",
        "p": "decimal(38,6)",
        "h": "decimal(38,2)",
        "flag": "boolean",
    }.get(name, "array<string>" if name == "listed" else "double" if name == "f" else "long")


@pytest.mark.parametrize(
    "aggregates",
    [
        {"n": sf.count(), "m": sf.count("name")},
        {"n": sf.sum("n"), "m": sf.sum("k"), "f": sf.sum("amount")},
        {"f": sf.mean("n")},
        {"p": sf.mean("price")},
        {"p": sf.sum("price")},
        {"n": sf.min("n"), "d": sf.max("day"), "t": sf.min("ts"), "flag": sf.max("paid")},
        {"n": sf.count_distinct("name"), "m": sf.count_distinct("price", where="paid"), "d": sf.max("day")},
        {f"n{n}": sf.count_distinct("name", where=f"n > {n}") for n in range(62)},
        {"n": sf.count(where="paid AND amount > 1.5 OR NOT name LIKE 'a%'")},
        {"n": sf.count(where="day >= '2026-01-01' AND ts < '2026-01-01' AND k IN (1, -2) AND name IS NOT NULL")},
    ],
)  # fmt: skip
def test_aggregates_whose_partials_spark_gives_exactly_are_combined(aggregates: dict[str, Any]) -> None:
    assert combining_of(running(**aggregates), frozenset({MAIN})) is not None


@pytest.mark.parametrize(
    "aggregates",
    [
        {"n": sf.count_distinct("name", where="n + 1 > 2")},
        {"n": sf.count_distinct("name"), "x": sf.first("name")},
        {f"n{n}": sf.count_distinct("name", where=f"n > {n}") for n in range(63)},
        {f"n{n}": sf.count_distinct(column) for n, column in enumerate(("name", "n", "k", "day", "paid"))},
        {"n": sf.count_distinct("name", approximate=True)},
        {"f": sf.quantile("amount", 0.5)},
        {"x": sf.first("name")},
        {"x": sf.last("name"), "n": sf.count()},
        {"x": sf.max("name")},
        {"b": sf.min("raw")},
        {"f": sf.stddev("amount")},
        {"listed": sf.collect("name", 2)},
        {"h": sf.sum("huge")},
        {"n": sf.aggregate("n", create=int, add=max, merge=max, state=int)},
        # Arithmetic may overflow, and decimals beside floats are compared in another way.
        {"n": sf.count(where="n + 1 > 2")},
        {"n": sf.count(where="price > 1.5")},
        {"n": sf.count(where="n > 1.5")},
        {"n": sf.count(where="amount > n")},
        {"n": sf.count(where=r"name LIKE 'a\\%'")},
        {"n": sf.count(where="paid < true")},
    ],
)
def test_an_operator_is_combined_only_if_all_of_its_aggregates_are(aggregates: dict[str, Any]) -> None:
    assert combining_of(running(**aggregates), frozenset({MAIN})) is None


def windowed(window: sf.Window, key: str = "user", emit: str = "final") -> Any:
    keyed = KeyedRows("op", row_type(ROWS), (key,), ())
    output = f"{key} {'timestamp' if key == 'ts' else 'long'}, window_end timestamp, n long"
    return window_aggregate(
        keyed, output, {"n": sf.count()}, window=window, time="ts", lateness=0, emit=emit
    )  # fmt: skip


@pytest.mark.parametrize(
    ("window", "key", "read", "is_combined"),
    [
        (windows.tumbling("1 minute"), "user", {MAIN}, True),
        (windows.hopping("1 minute", "10 seconds"), "user", {MAIN}, True),
        (windows.cumulative("1 day", "1 hour"), "user", {MAIN}, True),
        (windows.session("1 minute"), "user", {MAIN}, False),
        (windows.count_window(3), "user", {MAIN}, False),
        # Late rows come out as they were, and a key has to stay what it is.
        (windows.tumbling("1 minute"), "user", {MAIN, LATE}, False),
        (windows.tumbling("1 minute"), "ts", {MAIN}, False),
    ],
)
def test_windows_with_bounds_that_time_alone_tells_are_combined(
    window: sf.Window, key: str, read: set[str], is_combined: bool
) -> None:
    assert (combining_of(windowed(window, key), read) is not None) is is_combined


@pytest.mark.parametrize(
    "window",
    [
        windows.tumbling("10 seconds"),
        windows.tumbling("10 seconds", offset="3 seconds"),
        windows.hopping("10 seconds", "4 seconds", offset="1 second"),
        windows.hopping("7 seconds", "7 seconds"),
        windows.cumulative("12 seconds", "4 seconds", offset="5 seconds"),
    ],
)
def test_a_piece_of_time_is_a_pane(window: sf.Window) -> None:
    length, offset = piece_of(window) or (0, 0)
    times = np.random.default_rng(1).integers(-(10**9), 10**9, 1_000)
    assert (times - (times - offset) % length + length == panes_of(window).end_of(times)).all()


@dataclass
class Defaulted:
    user: int = 7
    n: int = 3
    amount: float = 2
    name: str = "it's \\ é"
    price: Decimal = Decimal("1.50")
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    day: date = date(2026, 1, 2)
    paid: bool = True
    unread: list[int] = field(default_factory=list)


def combining(rows: Any, **aggregates: sf.Aggregate) -> Any:
    keyed = KeyedRows("op", row_type(rows), ("user",), ())
    operator = running_aggregate(
        keyed, f"user long, {', '.join(f'{name} long' for name in aggregates)}", aggregates
    )
    return combining_of(operator, frozenset({MAIN}))


def test_what_stands_for_a_null_is_filled_in_before_and_the_key_stays_as_it_came() -> None:
    columns = ("n", "amount", "name", "price", "at", "day", "paid")
    found = combining(Defaulted, **{f"with_{name}": sf.count(name) for name in columns})
    assert dict(found.defaults) == {
        "n": "cast(3 as bigint)",
        "amount": "cast('2.0' as double)",
        "name": f"cast(X'{Defaulted().name.encode().hex()}' as string)",
        "price": "cast('1.50' as decimal(38,18))",
        "at": "timestamp_micros(1767225600000000)",
        "day": "date_from_unix_date(20455)",
        "paid": "true",
    }


@dataclass
class Made:
    user: int
    day: date = field(default_factory=lambda: date(2026, 1, 1))


def test_a_default_that_is_made_anew_for_each_row_is_not_for_spark() -> None:
    assert combining(Made, a=sf.count("day")) is None
    assert combining(Made, a=sf.count()) is not None, "it is not read"
