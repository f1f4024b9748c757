"""Aggregates give what DuckDB computes over the whole input, however it is cut into batches, shards and tables."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import stateflow.pipelines.ready.aggregates as aggregate
from stateflow.errors import StateflowError, UserCodeError
from stateflow.pipelines.ready import windows
from stateflow.pipelines.ready.operators import KeyedRows, running_aggregate, window_aggregate
from stateflow.pipelines.rows.row_type import row_type
from tests.operators.ready.driving import END, Driven
from tests.refusals.refusal import refused

SECOND = 1_000_000
ROWS = "user long, name string, amount double, price decimal(10,2), n long, day date, sent timestamp, paid boolean, ts timestamp"
SCHEMA = pa.schema(
    [
        ("user", pa.int64()), ("name", pa.string()), ("amount", pa.float64()), ("price", pa.decimal128(10, 2)),
        ("n", pa.int64()), ("day", pa.date32()), ("sent", pa.timestamp("us", "UTC")), ("paid", pa.bool_()),
        ("ts", pa.timestamp("us", "UTC")),
    ]
)  # fmt: skip


def table(seed: int, count: int = 250) -> pa.Table:
    """In an order that is roughly that of time; amounts are quarters, so that their sums are exact."""
    chance = random.Random(seed)

    def maybe(value: Any) -> Any:
        return None if chance.random() < 0.2 else value

    return pa.Table.from_pylist(
        [
            {
                "user": chance.randrange(4),
                "name": maybe(chance.choice(("", "é", "ab", "b", "it's"))),
                "amount": maybe(chance.choice((chance.randrange(-40, 40) / 4, 1e300, -0.0, 0.0))),
                "price": maybe(Decimal(chance.randrange(-(10**10) + 1, 10**10)).scaleb(-2)),
                "n": maybe(chance.randrange(-5, 5)),
                "day": maybe(date(2026, 1, chance.randrange(1, 5))),
                "sent": maybe(datetime(2026, 1, 1, chance.randrange(24), tzinfo=UTC)),
                "paid": maybe(chance.random() < 0.5),
                "ts": max(number // 2 + chance.randrange(-20, 20), 0) * SECOND,
            }
            for number in range(count)
        ],
        SCHEMA,
    )


def keyed() -> KeyedRows:
    return KeyedRows("op", row_type(ROWS), ("user",), ("ts", "-n"))


def over(driven: Driven, rows: pa.Table, chance: random.Random) -> list[dict[str, Any]]:
    """In batches and tables of random size, over shards that split and join."""
    cuts = sorted(chance.randrange(rows.num_rows) for _ in range(chance.randrange(8)))
    for begin, end in zip([0, *cuts], [*cuts, rows.num_rows], strict=True):
        driven.batch(rows.slice(begin, end - begin) if end > begin else None, None, chance.randrange(1, 4))
        driven.rescale(chance.randrange(1, 5))
    driven.batch(None, END)
    return driven.rows


WINDOWS = {
    "running": (None, "user"),
    "tumbling": (windows.tumbling("10 seconds"), "epoch(ts)::long // 10"),
    "session": (windows.session("4 seconds"), "session"),
}
SPANS = """
    select *, sum(new) over (partition by user order by ts, row_number) as session from (
        select *, (coalesce(epoch(ts) - lag(epoch(ts)) over (partition by user order by ts, row_number), 99) > 4)::int as new
        from (select *, row_number() over () as row_number from input))
"""
"""The rows with the number of their session: DuckDB has no session windows."""


def by_duckdb(rows: pa.Table, group: str, aggregates: str) -> list[dict[str, Any]]:
    with duckdb.connect() as engine:
        engine.execute("set timezone = 'UTC'")
        engine.register("input", rows)
        query = f"select user, {aggregates} from ({SPANS}) group by user, {group}"
        found = engine.sql(query).to_arrow_table()
    return list(found.to_pylist())


def declared_of(kind: str, output: str, aggregates: dict[str, Any]) -> Any:
    window = WINDOWS[kind][0]
    if window is None:
        return running_aggregate(keyed(), output, aggregates)
    return window_aggregate(keyed(), output, aggregates, window=window, time="ts", lateness=0, emit="final")


def last_of_each(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({row["user"]: row for row in rows}.values())


def in_order(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr([(name, plain(row[name])) for name in sorted(row)]) for row in rows)


def plain(value: Any) -> Any:
    """Zones have two names, and zero two signs."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return value + 0.0 if isinstance(value, float) else value


CONDITIONS = [
    "paid", "n > 1", "n % 3 = 1 OR paid", "NOT paid AND n BETWEEN -1 AND 3", "name LIKE '%b' OR name = 'it''s'",
    "amount * 2 >= n + 1", "price < 12.5 AND price <> n", "day >= '2026-01-03'", "sent < '2026-01-01 12:00:00+00:00'",
    "n NOT IN (1, 2, 3)", "name IN ('é', 'ab') AND amount IS NOT NULL", "(n / 2) > 1 AND -n < 0", "NULL", "n = NULL OR TRUE",
    "NOT (n > 1 OR paid)", "name NOT LIKE 'a_'",
]  # fmt: skip


def test_conditions_mean_what_they_mean_in_sql() -> None:
    rows = table(7, 400)
    aggregates = {f"c{index}": aggregate.count(where=text) for index, text in enumerate(CONDITIONS)}
    output = "user long, " + ", ".join(f"{name} long" for name in aggregates)
    driven = Driven(declared_of("running", output, aggregates))
    sql = ", ".join(
        f"count(*) filter (where {text.replace('n / 2', 'n::double / 2')}) as c{index}"
        for index, text in enumerate(CONDITIONS)
    )
    assert in_order(over(driven, rows, random.Random(0))[-4:]) == in_order(by_duckdb(rows, "user", sql))


@pytest.mark.parametrize("kind", WINDOWS)
def test_a_quantile_is_off_by_its_accuracy_at_most_and_the_same_however_it_is_cut(kind: str) -> None:
    chance = random.Random(kind)
    rows = table(1, 400)
    aggregates = {
        "exact": aggregate.quantile("amount", 0.75, accuracy=0),
        "near": aggregate.quantile("amount", 0.75),
        "coarse": aggregate.quantile("amount", 0.75, accuracy=0.2),
    }
    output = "user long, exact double, near double, coarse double"
    all_found = [over(Driven(declared_of(kind, output, aggregates)), rows, chance) for _ in range(2)]
    found = [last_of_each(each) if kind == "running" else each for each in all_found]
    assert in_order(found[0]) == in_order(found[1])
    assert any(row["exact"] for row in found[0])
    for row in found[0]:
        for name, accuracy in (("near", 0.01), ("coarse", 0.2)):
            if row["exact"] is None:
                assert row[name] is None
            else:
                assert math.isclose(row[name], row["exact"], rel_tol=accuracy * 1.0001), row


@pytest.mark.parametrize(
    ("share", "count", "rank"),
    [
        (0.55, 100, 55),
        (0.07, 100, 7),
        (0.29, 100, 29),
        (0.5, 101, 51),
        (0.0, 7, 1),
        (1.0, 7, 7),
        (0.12345678901234568, 10_000, 1235),
        (1e-30, 7, 1),
        (5e-324, 7, 1),
    ],
)
def test_the_rank_of_a_quantile_is_that_of_the_share_as_written(share: float, count: int, rank: int) -> None:
    """As a float, 0.55 of 100 is a little more than 55."""
    rows = pa.Table.from_pylist([{"user": 1, "amount": n + 1.0, "ts": SECOND} for n in range(count)], SCHEMA)
    exact = {"q": aggregate.quantile("amount", share, accuracy=0)}
    found = over(Driven(declared_of("running", "user long, q double", exact)), rows, random.Random(1))
    assert [row["q"] for row in last_of_each(found)] == [rank]


@pytest.mark.parametrize("count", [0, 1, 30, 900, 1100, 20_000])
def test_a_sketch_counts_different_values_within_its_error(count: int) -> None:
    chance = random.Random(count)
    values = [f"value-{n}" for n in range(count)] * 2
    chance.shuffle(values)
    rows = pa.table({"user": pa.array([1] * len(values), pa.int64()), "name": pa.array(values, pa.string())})
    declared = running_aggregate(
        KeyedRows("op", row_type("user long, name string"), ("user",), ()), "user long, different long, numbers long",
        {"different": aggregate.count_distinct("name", approximate=True),
         "numbers": aggregate.count_distinct("user", approximate=True)},
    )  # fmt: skip
    if not count:
        rows = pa.table({"user": pa.array([1], pa.int64()), "name": pa.array([None], pa.string())})
    driven, whole = Driven(declared), Driven(declared)
    whole.batch(rows, None)
    for begin in range(0, rows.num_rows, 5000):
        driven.batch(rows.slice(begin, 5000), None)
    assert driven.rows[-1] == whole.rows[-1], "a sketch is the same however its values come"
    assert abs(driven.rows[-1]["different"] - count) <= max(count * 0.05, 1)
    assert driven.rows[-1]["numbers"] == 1


def test_most_frequent_values_come_with_their_counts_where_asked_for() -> None:
    @dataclass
    class Frequent:
        value: str
        count: int

    output = row_type("user long, often array<struct<value:string,count:bigint>>")
    declared = running_aggregate(keyed(), output, {"often": aggregate.top_values("name", 1, counts=True)})
    driven = Driven(declared)
    driven.batch(table(3).filter(pa.compute.equal(table(3)["user"], 1)), None)
    (row,) = driven.rows
    names = [
        name
        for name, user in zip(table(3)["name"].to_pylist(), table(3)["user"].to_pylist(), strict=True)
        if user == 1
    ]
    most = max(sorted({name for name in names if name is not None}), key=names.count)
    assert row["often"] == [{"value": most, "count": names.count(most)}]


def prices(*values: str) -> pa.Table:
    made = pa.array([Decimal(value) for value in values], pa.decimal128(38, 0))
    return pa.table({"user": pa.array([7] * len(values), pa.int64()), "price": made})


def test_decimals_are_summed_exactly_up_to_38_digits() -> None:
    rows = KeyedRows("op", row_type("user long, price decimal(38,0)"), ("user",), ())
    aggregates = {"total": aggregate.sum("price"), "average": aggregate.mean("price")}
    driven = Driven(
        running_aggregate(rows, "user long, total decimal(38,0), average decimal(38,4)", aggregates)
    )
    driven.batch(prices("-" + "9" * 30, "4"), None)
    driven.batch(prices("9" * 30, "7"), None)
    assert driven.rows[-1] == {"user": 7, "total": Decimal(11), "average": Decimal("2.7500")}
    driven = Driven(
        running_aggregate(rows, "user long, total decimal(38,0)", {"total": aggregate.sum("price")})
    )
    driven.batch(prices("9" * 38), None)
    assert driven.rows[-1]["total"] == Decimal("9" * 38)
    with refused(StateflowError, "operator 'op'", "'total'", "'price'", "38 digits", "user=7"):
        driven.batch(prices("1"), None)


def test_an_exact_quantile_of_decimals_is_the_nearest_double() -> None:
    rows = KeyedRows("op", row_type("user long, price decimal(10,2)"), ("user",), ())
    exact = {"q": aggregate.quantile("price", 0.5, accuracy=0)}
    driven = Driven(running_aggregate(rows, "user long, q double", exact))
    money = [Decimal("46980911.48"), Decimal("606.80"), Decimal("-99999999.99")]
    driven.batch(pa.table({"user": [1, 2, 3], "price": pa.array(money, pa.decimal128(10, 2))}), None)
    assert {row["user"]: row["q"] for row in driven.rows} == dict(
        zip([1, 2, 3], map(float, money), strict=True)
    )


@pytest.mark.parametrize("batches", [((0.0, -0.0),), ((-0.0, 0.0),), ((0.0,), (-0.0,)), ((-0.0,), (0.0,))])
def test_a_zero_has_no_sign_that_tells_of_the_cut(batches: tuple[tuple[float, ...], ...]) -> None:
    rows = KeyedRows("op", row_type("user long, amount double"), ("user",), ())
    aggregates = {"low": aggregate.min("amount"), "high": aggregate.max("amount")}
    driven = Driven(running_aggregate(rows, "user long, low double, high double", aggregates))
    for values in batches:
        driven.batch(pa.table({"user": [7] * len(values), "amount": values}), None)
    last = driven.rows[-1]
    assert [math.copysign(1, last[name]) for name in ("low", "high")] == [1, 1]


def raising(left: Any, right: Any) -> Any:
    raise ValueError("no such coin")


def over_twice(driven: Driven, batch: pa.Table) -> None:
    driven.batch(batch, None)
    driven.batch(batch, None)


def plus(left: int, right: int) -> int:
    return left + right


@pytest.mark.parametrize("function", ["add", "merge", "result"])
def test_code_of_ones_own_that_raises_is_named_with_its_operator_and_key(function: str) -> None:
    code: dict[str, Any] = {"add": plus, "merge": plus, "result": None}
    code[function] = raising if function != "result" else lambda total: raising(total, total)
    mine = aggregate.aggregate("n", create=int, state=int, **code)
    rows = KeyedRows("op", row_type("user long, n long"), ("user",), ())
    driven = Driven(running_aggregate(rows, "user long, mine long", {"mine": mine}))
    batch = pa.table({"user": pa.array([5], pa.int64()), "n": pa.array([1], pa.int64())})
    with refused(UserCodeError, "operator 'op'", f"{function}() of 'mine'", "user=5", "no such coin"):
        over_twice(driven, batch)
