"""Batches that Spark sums up before the exchange: the same output, row for row, whichever batches are."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.errors import StateflowError
from stateflow.operators.combiner_choice import Combined, noted
from stateflow.operators.combining import combining_of
from stateflow.pipelines.ready import windows
from stateflow.pipelines.ready.operators import KeyedRows, ReadyOperator, running_aggregate, window_aggregate
from stateflow.pipelines.rows.row_type import row_type
from stateflow.spark.batches import running_operator
from stateflow.spark.shuffle.combiner import combined_rows
from stateflow.spark.shuffle.exchange import KeyedInput
from tests.operators.ready.driving import END, Driven
from tests.refusals.refusal import refused
from tests.spark.pipelines import ORDER, Order, Workbench, at

pytestmark = pytest.mark.system

ROWS = (
    "user long, name string, raw binary, amount double, small float, price decimal(10,2), n long, k int, day date, sent timestamp, "
    "paid boolean, ts timestamp"
)
SCHEMA = pa.schema(
    [
        ("user", pa.int64()), ("name", pa.string()), ("raw", pa.binary()), ("amount", pa.float64()), ("small", pa.float32()),
        ("price", pa.decimal128(10, 2)), ("n", pa.int64()), ("k", pa.int32()), ("day", pa.date32()),
        ("sent", pa.timestamp("us", "UTC")), ("paid", pa.bool_()), ("ts", pa.timestamp("us", "UTC")),
    ]
)  # fmt: skip
AGGREGATES = {
    "rows": sf.count(), "names": sf.count("name"), "bytes": sf.count("raw"), "total": sf.sum("amount"), "light": sf.sum("small"),
    "whole": sf.sum("n"), "narrow": sf.sum("k"), "worth": sf.sum("price"), "average": sf.mean("amount"),
    "typical": sf.mean("k"), "fair": sf.mean("price"), "low": sf.min("amount"), "high": sf.max("amount"),
    "lightest": sf.min("small"), "least": sf.min("n"), "most": sf.max("k"), "cheapest": sf.min("price"),
    "oldest": sf.min("day"), "newest": sf.max("sent"), "all_paid": sf.min("paid"),
}  # fmt: skip
CONDITIONS = (
    "paid", "NOT paid", "paid = false", "name LIKE 'a%'", "name LIKE '_'", "name NOT LIKE '%\u00e9'", "name IN ('ab', 'it''s')",
    "amount > 0.125", "amount >= 0", "amount = 0", "amount < small", "amount <> amount", "small > 0.1", "n > 4", "n <= k",
    "k BETWEEN -1 AND 3", "day > '1970-01-01'", "sent < '2026-01-01T12:00:00'", "name IS NULL OR amount IS NOT NULL",
    "paid AND name < 'b'", "NOT (paid AND amount > 1)",
)  # fmt: skip
BATCHES = 3


def aggregates() -> dict[str, sf.Aggregate]:
    conditional = {f"if_{n}": sf.count(where=where) for n, where in enumerate(CONDITIONS)}
    return {
        **AGGREGATES,
        **conditional,
        "some": sf.sum("k", where="name LIKE 'a%'"),
        "few": sf.max("k", where="n < 0"),
    }


OUTPUT = (
    "user long, rows long, names long, bytes long, total double, light double, whole long, narrow long, worth decimal(20,2), average "
    "double, typical double, fair decimal(14,6), low double, high double, lightest double, least long, most long, cheapest "
    "decimal(10,2), oldest date, newest timestamp, all_paid boolean, some long, few long, "
    + ", ".join(f"if_{n} long" for n in range(len(CONDITIONS)))
)


def table(chance: random.Random, share: int = 1, count: int = 400) -> pa.Table:
    """Sums of the floats are exact; of all whole numbers of a user, some sums would overflow in another order."""

    def maybe(value: Any) -> Any:
        return None if chance.random() < 0.25 else value

    floats = chance.choice(
        ((0.0, -0.0, 0.25, -7.5, 1e9), (0.125, math.nan, math.inf), (0.5, -math.inf, math.nan))
    )
    large = [(1 << 62) - 1, -(1 << 62), (1 << 61), -(1 << 61)]
    return pa.Table.from_pylist(
        [
            {
                "user": number % 7,
                "name": maybe(chance.choice(("", "\u00e9", "ab", "a\nb", "it's", "b"))),
                "raw": maybe(b"\x00\xff"),
                "amount": maybe(chance.choice(floats)),
                "small": maybe(chance.choice((0.1, -2.25, math.nan))),
                "price": maybe(Decimal(chance.randrange(-(10**10) + 1, 10**10)).scaleb(-2)),
                # Of each user as many below zero as above.
                "n": large[number // 7 % 4] // share if number < 392 else chance.randrange(-5, 5),
                "k": maybe(chance.choice((-(1 << 31), (1 << 31) - 1, 0, 3, -1))),
                "day": maybe(date(1969, 12, 20) + timedelta(days=chance.randrange(30))),
                "sent": maybe(datetime(2026, 1, 1, chance.randrange(24), tzinfo=UTC)),
                "paid": maybe(chance.random() < 0.5),
                "ts": maybe(
                    (number // 4 + chance.randrange(-30, 30)) * 1_000_000 + chance.randrange(1_000_000)
                ),
            }
            for number in range(count)
        ],
        SCHEMA,
    )


def keyed(key: tuple[str, ...] = ("user",)) -> KeyedRows:
    return KeyedRows("op", row_type(ROWS), key, ())


def windowed(window: Any, emit: str) -> ReadyOperator:
    return window_aggregate(
        keyed(), f"{OUTPUT}, window_start timestamp, window_end timestamp", aggregates(), window=window, time="ts",
        lateness=2_000_000, emit=emit,
    )  # fmt: skip


def different(*columns: str) -> dict[str, sf.Aggregate]:
    """Counts of columns. Of the first one, few rows count."""
    made = {"few_values": sf.count_distinct(columns[0], where="k IN (7, 3) AND paid")}
    for column in columns:
        made[f"each_{column}"] = sf.count_distinct(column)
        made[f"paid_{column}"] = sf.count_distinct(column, where="paid")
        made[f"low_{column}"] = sf.count_distinct(column, where="name < 'b' OR amount > 1")
    return made | {"later": sf.count_distinct(columns[-1], where="k IS NULL")}


def counting(*columns: str, output: str = "user long", **more: sf.Aggregate) -> ReadyOperator:
    aggregates = {**different(*columns), **more}
    longs = ", ".join(f"{name} long" for name in different(*columns))
    return running_aggregate(keyed(), f"{output}, {longs}", aggregates)


OPERATORS = {
    "running": lambda: running_aggregate(keyed(), OUTPUT, aggregates()),
    "running, different values beside others": lambda: counting(
        "name", "raw", "price", "n", output=OUTPUT, **aggregates()
    ),
    "running, different values": lambda: counting("k", "day", "sent", "paid"),
    "running, different keys": lambda: counting("user"),
    "tumbling": lambda: windowed(windows.tumbling("10 seconds", offset="3 seconds"), "on_time"),
    "hopping": lambda: windowed(windows.hopping("10 seconds", "4 seconds", offset="1 second"), "final"),
    "hopping, changes": lambda: windowed(windows.hopping("10 seconds", "5 seconds"), "changes"),
    "cumulative": lambda: windowed(windows.cumulative("20 seconds", "5 seconds"), "final"),
}


def by_spark(spark: SparkSession, declared: Any, rows: pa.Table) -> pa.Table:
    how = combining_of(declared, frozenset())
    assert how is not None
    given = KeyedInput(spark.createDataFrame(rows), declared.key_columns, (), how.rows)
    return combined_rows("op", given, how).frame.toArrow()


@pytest.mark.parametrize("name", list(OPERATORS))
@pytest.mark.parametrize("seed", range(2))
def test_what_spark_combines_gives_what_single_rows_give(spark: SparkSession, name: str, seed: int) -> None:
    chance, declared = random.Random(seed), OPERATORS[name]()
    single, combined = Driven(declared, sides=False), Driven(declared, sides=False)
    for n in range(BATCHES):
        rows = table(chance, 1 if name == "running" else 64)
        watermark = None if n == 0 else 20_000_000 * n
        single.batch(rows, watermark)
        partials = by_spark(spark, declared, rows)
        if "values" not in name:
            assert partials.num_rows < rows.num_rows
        # Several values of a key may come in several tables.
        combined.batch(partials, watermark, 1 + n)
    for driven in (single, combined):
        driven.batch(None, END)
    for expected, found in zip(single.output, combined.output, strict=True):
        assert sorted(map(as_text, found)) == sorted(map(as_text, expected))
    assert combined.counters == single.counters
    assert combined.entries() == single.entries()


def as_text(row: dict[str, Any]) -> str:
    """NaN is NaN, and minus zero is zero."""
    return repr([value + 0.0 if isinstance(value, float) else value for value in row.values()])


KEYS = {
    "paid": "boolean", "k": "int", "name": "string", "raw": "binary", "day": "date", "sent": "timestamp", "price": "decimal(10,2)",
}  # fmt: skip


def test_keys_of_every_type_stay_the_same_keys(spark: SparkSession) -> None:
    fields = ", ".join(f"{name} {kind}" for name, kind in KEYS.items())
    declared = running_aggregate(keyed(tuple(KEYS)), f"{fields}, n long", {"n": sf.count()})
    rows = table(random.Random(3))
    for name in KEYS:
        rows = rows.filter(rows[name].is_valid())
    rows = pa.concat_tables([rows, rows])
    single, combined = Driven(declared), Driven(declared)
    expected, found = single.batch(rows, None), combined.batch(by_spark(spark, declared, rows), None)
    assert expected
    assert sorted(map(as_text, found)) == sorted(map(as_text, expected))


@dataclass
class Defaulted:
    user: int
    k: int = 3
    amount: float = 0.1
    name: str = "it's \\ \u00e9"
    price: Decimal = Decimal("1.50")
    sent: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    day: date = date(1960, 1, 2)
    paid: bool = True


def test_what_stands_for_a_null_is_counted(spark: SparkSession) -> None:
    sums = {
        "k": sf.sum("k"), "amount": sf.max("amount"), "name": sf.count(where="name = 'it''s \\\\ \u00e9'"), "price": sf.min("price"),
        "sent": sf.max("sent"), "day": sf.min("day"), "paid": sf.count(where="paid"),
    }  # fmt: skip
    given = KeyedRows("op", row_type(Defaulted), ("user",), ())
    output = "user long, s_k long, s_amount double, s_name long, s_price decimal(38,18), s_sent timestamp, s_day date, s_paid long"
    declared = running_aggregate(given, output, {f"s_{name}": each for name, each in sums.items()})
    defaults = Defaulted(1)
    empty = spark.sql(
        "select 1L user, cast(null as long) k, cast(null as double) amount, cast(null as string) name, cast(null as "
        "decimal(38,18)) price, cast(null as timestamp) sent, cast(null as date) day, cast(null as boolean) paid"
    ).toArrow()
    found = Driven(declared).batch(by_spark(spark, declared, empty), None)
    assert found == [
        {
            "user": 1, "s_k": 3, "s_amount": 0.1, "s_name": 1, "s_price": defaults.price, "s_sent": defaults.sent,
            "s_day": defaults.day, "s_paid": 1,
        }
    ]  # fmt: skip


@dataclass
class Total:
    user: int
    orders: int
    total: float


@dataclass
class TotalOfSkus(Total):
    skus: int
    dear: int
    moments: int


@dataclass
class PerMinute(Total):
    window_start: datetime


def orders(number: int, users: int) -> list[Order]:
    """Ten minutes; one order is far behind."""
    made = [Order(n % users, "tea", float(n % 11), at(number * 10 + n / 12)) for n in range(120)]
    return [*made, Order(3, "late", 1.0, at(number * 10 - 8))]


def run_with(
    bench: Workbench, monkeypatch: Any, choices: Any, folder: str
) -> tuple[list[Any], list[Any], list[Any]]:
    """The tables, and what each batch says. The last two batches are another run with more tasks."""
    totals, minutes = (str(bench.folder / f"{folder}-{name}") for name in ("totals", "minutes"))

    def named(flow: sf.Flow) -> None:
        events = flow.source("in", bench.source(folder, ORDER), Order, event_time="ts", watermark="2 minutes")
        keyed = events.key_by("user")
        per_user = keyed.aggregate(
            "totals", TotalOfSkus, orders=sf.count(), total=sf.sum("amount"), skus=sf.count_distinct("sku"),
            dear=sf.count_distinct("sku", where="amount > 9"), moments=sf.count_distinct("ts"),
        )  # fmt: skip
        per_user.upsert("t", sf.delta(totals))
        per_minute = keyed.window(sf.tumbling("1 minute")).aggregate(
            "minutes", PerMinute, orders=sf.count(), total=sf.sum("amount")
        )
        per_minute.append("m", sf.delta(minutes))

    pipeline = sf.pipeline(folder)(named)
    chosen = iter(choices)
    monkeypatch.setattr(running_operator, "combines", lambda last: next(chosen))
    for n in range(4):
        bench.rows(folder, orders(n, 17))
    bench.run(pipeline, stop_after=2)
    reports = bench.reports
    bench.run(pipeline, parallelism=3, drain=True)
    read = [
        sorted(map(as_text, bench.spark.read.format("delta").load(path).toArrow().to_pylist()))
        for path in (totals, minutes)
    ]
    return read[0], read[1], [report.statistics for report in [*reports, *bench.reports] if report.rows]


def test_switching_changes_no_output_and_no_figure_of_rows(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = run_with(bench, monkeypatch, [False] * 8, "plain")
    mixed = run_with(bench, monkeypatch, [True, True, False, True, True, False, True, True], "mixed")
    assert plain[0]
    assert plain[1]
    assert mixed[:2] == plain[:2]
    for one, other in zip(plain[2], mixed[2], strict=True):
        for uid in ("totals", "minutes"):
            expected, found = one["operators"][uid], other["operators"][uid]
            assert found["rows_in"] == expected["rows_in"] == 121
            assert found["counters"] == expected["counters"]
            known, known_too = noted(one, uid), noted(other, uid)
            assert known is not None
            assert known_too is not None
            assert (known.rows, known.groups) == (known_too.rows, known_too.groups)
    assert [n["combiner"]["totals"]["combined"] for n in mixed[2]] == [True, False, True, True]


def test_a_run_follows_what_the_batch_before_measured(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateflow.operators.combiner_choice.FEWEST_ROWS", 50)

    @sf.pipeline("followed")
    def followed(flow: sf.Flow) -> None:
        keyed = flow.source("in", bench.source("in", ORDER), Order).key_by("user")
        total = keyed.aggregate("totals", Total, orders=sf.count(), total=sf.sum("amount"))
        total.upsert("t", sf.delta(str(bench.folder / "totals")))

    for n, users in enumerate((5, 5, 121, 121, 121, 5, 5)):
        bench.rows("in", orders(n, users))
    reports = []
    for stop_after in (3, 0):
        bench.run(followed, stop_after=stop_after)
        reports += [report for report in bench.reports if report.rows]
    known = [noted(report.statistics, "totals") for report in reports]
    assert known == [
        Combined(121, 5, True),
        Combined(121, 5, True),
        Combined(121, 120, True),
        Combined(121, 120, False),
        Combined(121, 120, False),
        Combined(121, 5, False),
        Combined(121, 5, True),
    ]


def test_a_key_without_a_value_is_refused_by_name(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    @sf.pipeline("nameless")
    def nameless(flow: sf.Flow) -> None:
        keyed = flow.source("in", bench.source("in", ORDER), Order).key_by("user")
        total = keyed.aggregate("totals", Total, orders=sf.count(), total=sf.sum("amount"))
        total.upsert("t", sf.delta(str(bench.folder / "totals")))

    bench.rows("in", [{"user": None, "sku": "tea", "amount": 1.0, "ts": at(0)}])
    errors = []
    for choice in (True, False):
        monkeypatch.setattr(running_operator, "combines", lambda last, choice=choice: choice)
        with refused(StateflowError, "'user'") as error:
            bench.run(nameless)
        errors.append(str(error.value))
    assert errors[0] == errors[1]
