"""Operators put out the same, row for row, whether a batch comes row by row or combined, and whichever batches do."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import stateflow.pipelines.ready.aggregates as aggregate
from stateflow.errors import StateflowError
from stateflow.pipelines.ready import windows
from stateflow.pipelines.ready.operators import KeyedRows, running_aggregate, window_aggregate
from stateflow.pipelines.rows.row_type import row_type
from tests.operators.ready.combine_by_hand import combined
from tests.operators.ready.driving import Driven
from tests.refusals.refusal import refused

SECOND = 1_000_000
ROWS = "user long, name string, amount double, price decimal(10,2), n long, k int, day date, paid boolean, ts timestamp"
SCHEMA = pa.schema(
    [
        ("user", pa.int64()), ("name", pa.string()), ("amount", pa.float64()), ("price", pa.decimal128(10, 2)),
        ("n", pa.int64()), ("k", pa.int32()), ("day", pa.date32()), ("paid", pa.bool_()), ("ts", pa.timestamp("us", "UTC")),
    ]
)  # fmt: skip
AGGREGATES = {
    "rows": aggregate.count(), "names": aggregate.count("name"), "bought": aggregate.count(where="paid"),
    "total": aggregate.sum("amount"), "whole": aggregate.sum("n"), "narrow": aggregate.sum("k", where="paid"),
    "worth": aggregate.sum("price"), "average": aggregate.mean("amount"), "typical": aggregate.mean("k"),
    "fair": aggregate.mean("price"), "low": aggregate.min("amount"), "high": aggregate.max("amount"),
    "least": aggregate.min("n"), "cheapest": aggregate.min("price"), "newest": aggregate.max("day"),
    "all_paid": aggregate.min("paid"),
}  # fmt: skip
OUTPUT = (
    "user long, rows long, names long, bought long, total double, whole long, narrow long, worth decimal(20,2), "
    "average double, typical double, fair decimal(14,6), low double, high double, least long, cheapest decimal(10,2), "
    "newest date, all_paid boolean"
)
FLOATS = (0.0, -0.0, 0.25, -7.5, math.nan, math.inf)
WHOLE = (0, 1, -1, (1 << 62) - 1, -(1 << 62), 1 << 40, -(1 << 40))


def table(chance: random.Random, count: int = 200) -> pa.Table:
    """Sums of the amounts are exact; those of `n` do not overflow, though those of a few of them would."""

    def maybe(value: Any) -> Any:
        return None if chance.random() < 0.25 else value

    signs = [1, -1] * (count // 2)
    return pa.Table.from_pylist(
        [
            {
                "user": chance.randrange(5),
                "name": maybe(chance.choice(("", "é", "ab"))),
                "amount": maybe(chance.choice(FLOATS[: chance.choice((4, 6))])),
                "price": maybe(Decimal(chance.randrange(-(10**10) + 1, 10**10)).scaleb(-2)),
                "n": signs[number] * chance.choice(WHOLE) // 8,
                "k": maybe(chance.choice((-(1 << 31), (1 << 31) - 1, 0, 5))),
                "day": maybe(date(1969, 12, chance.randrange(1, 32))),
                "paid": maybe(chance.random() < 0.5),
                "ts": None
                if chance.random() < 0.05
                else max(number // 2 + chance.randrange(-20, 20), -5) * SECOND + chance.randrange(SECOND),
            }
            for number in range(count)
        ],
        SCHEMA,
    )


def keyed() -> KeyedRows:
    return KeyedRows("op", row_type(ROWS), ("user",), ())


def windowed(window: Any, emit: str) -> Callable[[], Any]:
    return lambda: window_aggregate(
        keyed(), f"{OUTPUT}, window_start timestamp, window_end timestamp", AGGREGATES, window=window, time="ts",
        lateness=2 * SECOND, emit=emit,
    )  # fmt: skip


OPERATORS: dict[str, Callable[[], Any]] = {
    "running": lambda: running_aggregate(keyed(), OUTPUT, AGGREGATES),
    "tumbling": windowed(windows.tumbling("10 seconds", offset="3 seconds"), "final"),
    "tumbling, on time": windowed(windows.tumbling("10 seconds"), "on_time"),
    "tumbling, changes": windowed(windows.tumbling("10 seconds"), "changes"),
    "hopping": windowed(windows.hopping("10 seconds", "4 seconds"), "final"),
    "hopping, changes": windowed(windows.hopping("10 seconds", "4 seconds"), "changes"),
    "hopping, on time": windowed(windows.hopping("9 seconds", "3 seconds"), "on_time"),
    "cumulative": windowed(windows.cumulative("20 seconds", "5 seconds"), "final"),
}


@pytest.mark.parametrize(
    "numbers", [[(1 << 63) - 1, 1], [-(1 << 63), -1], [(1 << 63) - 1, (1 << 63) - 1, -5]]
)
def test_a_sum_beyond_64_bits_is_the_same_error(numbers: list[int]) -> None:
    rows = pa.table({"user": [1] * len(numbers), "n": numbers})
    declared = running_aggregate(
        KeyedRows("op", row_type("user long, n long"), ("user",), ()), "user long, total long", {"total": aggregate.sum("n")}
    )  # fmt: skip
    errors = []
    for batch in (rows, combined(declared, rows)):
        with refused(StateflowError, "beyond 64 bits for user=1") as error:
            Driven(declared).batch(batch, None)
        errors.append(str(error.value))
    assert errors[0] == errors[1]


def test_a_sum_that_only_begins_beyond_64_bits_is_none() -> None:
    numbers = [(1 << 63) - 1, 1, -1, -(1 << 63), (1 << 63) - 1]
    rows = pa.table({"user": [1] * 5, "n": numbers})
    declared = running_aggregate(
        KeyedRows("op", row_type("user long, n long"), ("user",), ()), "user long, total long", {"total": aggregate.sum("n")}
    )  # fmt: skip
    for batch in (rows, combined(declared, rows)):
        assert Driven(declared).batch(batch, None) == [{"user": 1, "total": sum(numbers)}]


@pytest.mark.parametrize("name", list(OPERATORS))
def test_a_batch_that_is_not_combined_counts_the_rows_that_combining_would_have_left(name: str) -> None:
    declared, rows = OPERATORS[name](), table(random.Random(5))
    rows = rows.filter(rows["ts"].is_valid())
    made = combined(declared, rows)
    for batch in (rows, made):
        driven = Driven(declared, sides=False)
        driven.batch(batch, None)
        assert driven.groups == made.num_rows
