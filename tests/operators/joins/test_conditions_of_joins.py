"""A join with a further condition gives what DuckDB gives for it, for every kind of join, however the input is cut into batches."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import duckdb
import pyarrow as pa
import pytest

import stateflow as sf
from stateflow.pipelines.ready.joins import HOWS, asof_join, interval_join, latest_join, window_join
from stateflow.pipelines.ready.operators import KeyedRows
from stateflow.pipelines.ready.windows import Session, Sliding
from stateflow.pipelines.rows.row_type import row_type
from stateflow.testing import ColumnarHarness
from tests.operators.joins.driving import is_late, run
from tests.operators.joins.test_window_join import GAP, by_sql, in_sessions, in_windows, out_of
from tests.operators.ready.driving import SECOND, Driven
from tests.refusals.refusal import refused

INSTANT = pa.timestamp("us", "UTC")
LEFT = pa.schema(
    [("k", pa.string()), ("n", pa.int32()), ("b", pa.int64()), ("t", pa.string()), ("ts", INSTANT)]
)
RIGHT = pa.schema(
    [("k", pa.string()), ("m", pa.int32()), ("b", pa.float64()), ("d", pa.decimal128(9, 2)), ("ts", INSTANT)]
)
LEFT_ROWS = "k string, n int, b bigint, t string, ts timestamp"
RIGHT_ROWS = "k string, m int, b double, d decimal(9,2), ts timestamp"
# Nothing that comes out has the columns that the conditions are about.
OUT = "k string, n int, left_ts timestamp, m int, right_ts timestamp"
ALONE = "k string, n int, left_ts timestamp"
LEFTS = KeyedRows("op", row_type(LEFT_ROWS), ("k",), ())
RIGHTS = KeyedRows("op", row_type(RIGHT_ROWS), ("k",), ())
CONDITIONS = (
    "left_b < right_b",
    "left_b <> right_b OR t IS NULL",
    "NOT (left_b = right_b)",
    "k = 'x' OR left_b >= right_b",
    "left_ts < right_ts AND d > 0.5",
    "t LIKE 'a%'",
    "right_b IN (1, 2, 3)",
    "right_b IS NULL",
    "left_b + d > 2 AND left_k = right_k",
    "1 = 2",
)
SELECTED = "coalesce(l.k, r.k), l.n, epoch_us(l.ts), r.m, epoch_us(r.ts)"


def lefts(chance: random.Random, count: int) -> list[dict[str, Any]]:
    return [
        {
            "k": chance.choice(("x", "y", None)),
            "n": n,
            "b": chance.choice((None, 0, 1, 2, 3)),
            "t": chance.choice((None, "a", "ab", "b")),
            "ts": (n // 2 + chance.randrange(12)) * SECOND,
        }
        for n in range(count)
    ]


def rights(chance: random.Random, count: int) -> list[dict[str, Any]]:
    return [
        {
            "k": chance.choice(("x", "y", None)),
            "m": n,
            "b": chance.choice((None, 0.0, 1.0, 2.0, 2.5)),
            "d": chance.choice((None, 0, 1, 2)),
            "ts": (n // 2 + chance.randrange(12)) * SECOND,
        }
        for n in range(count)
    ]


def sql(where: str) -> str:
    return re.sub(r"\b(left|right)_(\w+)", r"\1s.\2", where).replace("lefts.", "l.").replace("rights.", "r.").replace("k = 'x'", "l.k = 'x'")  # fmt: skip


def found_by_sql(query: str, **tables: pa.Table) -> list[str]:
    with duckdb.connect() as engine:
        engine.execute("set timezone = 'UTC'")
        for name, table in tables.items():
            engine.register(name, table)
        return sorted(repr(list(row)) for row in engine.sql(query).fetchall())


def joined(how: str, where: str, lefts: pa.Table, rights: pa.Table, on: str) -> list[str]:
    return by_sql(how, lefts, rights, f"({sql(where)}) and {on}", SELECTED, "l.k, l.n, epoch_us(l.ts)")


def table(rows: list[dict[str, Any]], schema: Any) -> pa.Table:
    return pa.Table.from_pylist(rows, schema)


def cases(name: str, how: str) -> tuple[random.Random, list[dict[str, Any]], list[dict[str, Any]], int]:
    chance = random.Random(f"{name}{how}")
    return chance, lefts(chance, 60), rights(chance, 60), chance.choice((0, 4, 30)) * SECOND


EACH = [
    (where, HOWS[(number + more) % len(HOWS)]) for more in (0, 2, 3) for number, where in enumerate(CONDITIONS)
]  # fmt: skip
"""Each condition with three kinds of join, and each kind with five conditions: what a condition says of two rows is asked in one place,
and what becomes of rows without a partner in another."""
VERSIONS = [(where, ("left", "inner")[number % 2]) for number, where in enumerate(CONDITIONS)]


@pytest.mark.slow
@pytest.mark.parametrize(("where", "how"), EACH)
def test_an_interval_join_with_a_condition(where: str, how: str) -> None:
    chance, left, right, delay = cases(where, how)
    least = chance.choice((-8, -3, 0, 2)) * SECOND
    most = least + chance.choice((0, 3, 9)) * SECOND
    declared = interval_join(
        LEFTS, RIGHTS, ALONE if how in ("semi", "anti") else OUT, times=("ts", "ts"),
        within=(timedelta(microseconds=least), timedelta(microseconds=most)), how=how, where=where,
    )  # fmt: skip
    driven = run(declared, left, right, (LEFT, RIGHT), chance, delay)
    assert out_of(driven) == joined(
        how,
        where,
        table([row for row in left if not is_late(row)], LEFT),
        table([row for row in right if not is_late(row)], RIGHT),
        f"epoch_us(r.ts) - epoch_us(l.ts) between {least} and {most}",
    )
    assert driven.entries() == 0


@pytest.mark.slow
@pytest.mark.parametrize(("where", "how"), EACH[: len(CONDITIONS)])
def test_a_window_join_with_a_condition(where: str, how: str) -> None:
    chance, left, right, delay = cases(where, how)
    size, every = chance.choice(((10, 10), (9, 3)))
    window, lateness = Sliding(size * SECOND, every * SECOND), chance.choice((0, 5)) * SECOND
    declared = window_join(
        LEFTS, RIGHTS, ALONE if how in ("semi", "anti") else OUT, times=("ts", "ts"), window=window,
        lateness=lateness, how=how, where=where,
    )  # fmt: skip
    driven = run(declared, left, right, (LEFT, RIGHT), chance, delay)
    on = in_windows(left, window, lateness, LEFT), in_windows(right, window, lateness, RIGHT)
    assert out_of(driven) == joined(how, where, *on, "l.w = r.w")
    assert driven.entries() == 0


@pytest.mark.slow
@pytest.mark.parametrize(("where", "how"), EACH[-len(CONDITIONS) :])
def test_a_session_join_with_a_condition(where: str, how: str) -> None:
    chance, left, right, _ = cases(where, how)
    declared = window_join(
        LEFTS, RIGHTS, ALONE if how in ("semi", "anti") else OUT, times=("ts", "ts"), window=Session(GAP),
        lateness=0, how=how, where=where,
    )  # fmt: skip
    # With this delay no row is late.
    driven = run(declared, left, right, (LEFT, RIGHT), chance, 200 * SECOND)
    assert out_of(driven) == joined(how, where, *in_sessions(left, right, (LEFT, RIGHT)), "l.s = r.s")
    assert driven.entries() == 0


@pytest.mark.parametrize(("where", "how"), VERSIONS)
def test_an_as_of_join_with_a_condition_asks_it_of_the_valid_version(where: str, how: str) -> None:
    chance, left, right, delay = cases(where, how)
    right = [{**row, "ts": row["ts"] * 100 + n} for n, row in enumerate(right)]
    left = [{**row, "ts": row["ts"] * 100} for row in left]
    declared = asof_join(LEFTS, RIGHTS, OUT, times=("ts", "ts"), keep=None, wait=True, how=how, where=where)
    driven = run(declared, left, right, (LEFT, RIGHT), chance, delay * 100)
    valid = f"r.k is not null and ({sql(where)})"
    only = f"where {valid}" if how == "inner" else ""
    chosen = f"case when {valid} then r.m end, case when {valid} then epoch_us(r.ts) end"
    assert out_of(driven) == found_by_sql(
        f"select l.k, l.n, epoch_us(l.ts), {chosen} from lefts l asof left join rights r on l.k = r.k and l.ts >= r.ts {only}",
        lefts=table([row for row in left if not is_late(row)], LEFT),
        rights=table([row for row in right if not is_late(row)], RIGHT),
    )


@pytest.mark.parametrize(("where", "how"), VERSIONS)
def test_a_latest_join_with_a_condition_asks_it_of_the_newest_version(where: str, how: str) -> None:
    chance, left, right, _ = cases(where, how)
    newest = [max((row for row in right if row["k"] == key), key=lambda row: row["m"]) for key in ("x", "y")]
    by_number = KeyedRows("op", row_type(RIGHT_ROWS), ("k",), ("m",))
    declared = latest_join(LEFTS, by_number, OUT, order="ts", ttl=None, how=how, where=where)
    driven = Driven(declared, 2)
    for begin in range(0, 60, 20):
        driven.both(table([], LEFT), table(right[begin : begin + 20], RIGHT), None)
        driven.rescale(chance.randrange(1, 4))
    driven.both(table(left, LEFT), table([], RIGHT), None)
    assert out_of(driven) == found_by_sql(
        f"select l.k, l.n, epoch_us(l.ts), r.m, epoch_us(r.ts) from lefts l {how} join rights r on l.k = r.k and ({sql(where)})",
        lefts=table(left, LEFT),
        rights=table(newest, RIGHT),
    )


def test_a_row_waits_on_although_a_row_within_the_bounds_does_not_fulfil_the_condition() -> None:
    declared = interval_join(
        LEFTS, RIGHTS, OUT, times=("ts", "ts"), within=("0 seconds", "10 seconds"), how="left",
        where="left_b < right_b",
    )  # fmt: skip
    driven = Driven(declared)
    mine = {"k": "x", "n": 1, "b": 2, "t": "", "ts": SECOND}
    assert driven.both(table([mine], LEFT), table([], RIGHT), None) == []
    unfit = [{"k": "x", "m": m, "b": b, "ts": 2 * SECOND} for m, b in ((1, 1.0), (2, 2.0), (3, None))]
    assert driven.both(table([], LEFT), table(unfit, RIGHT), None) == []
    fit = [{"k": "x", "m": 4, "b": 3.0, "ts": 3 * SECOND}]
    assert [row["m"] for row in driven.both(table([], LEFT), table(fit, RIGHT), None)] == [4]
    assert driven.both(table([], LEFT), table([], RIGHT), 100 * SECOND) == []


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass
class Bid:
    item: int
    price: float
    ts: datetime


@dataclass
class Limit:
    item: int
    price: float
    at_most: float | None
    ts: datetime


@dataclass
class Over:
    item: int
    left_price: float


def over(where: Any, join: str = "join") -> ColumnarHarness:
    @sf.pipeline("over")
    def declared(flow: sf.Flow) -> None:
        bids = flow.source("bids", sf.delta("/bids"), Bid, event_time="ts", watermark="1 minute").key_by(
            "item"
        )
        limits = flow.source("limits", sf.delta("/limits"), Limit, event_time="ts", watermark="1 minute")
        right = limits.key_by("item")
        match join:
            case "join":
                bids.join("over", right, Over, within=("-1 hour", "0 seconds"), where=where)
            case "window":
                bids.window(sf.tumbling("1 hour")).join("over", right, Over, where=where)
            case "join_asof":
                bids.join_asof("over", right, Over, how="inner", where=where)
            case "join_latest":
                bids.join_latest("over", right, Over, how="inner", where=where)

    return ColumnarHarness.of(declared.build(), "over")


@pytest.mark.parametrize("join", ["join", "window", "join_asof", "join_latest"])
def test_every_join_of_a_pipeline_takes_a_condition(join: str) -> None:
    harness = over("left_price > at_most AND left_price > right_price", join)
    bids = [Bid(1, 5.0, NOON), Bid(1, 3.0, NOON), Bid(2, 9.0, NOON)]
    out = harness.both(bids, [Limit(1, 2.0, 4.0, NOON), Limit(2, 1.0, None, NOON)])
    assert [*out, *harness.advance(NOON + timedelta(hours=2))] == [Over(1, 5.0)]


@dataclass
class RenamedBid:
    item: int
    offered: Annotated[float, sf.field(aliases=["price"])]
    ts: datetime


def of_release(rows: type, where: str, after: ColumnarHarness | None = None) -> ColumnarHarness:
    @sf.pipeline("over")
    def declared(flow: sf.Flow) -> None:
        bids = flow.source("bids", sf.delta("/bids"), rows, event_time="ts", watermark="1 minute")
        limits = flow.source("limits", sf.delta("/limits"), Limit, event_time="ts", watermark="1 minute")
        output = "item long, at_most double"
        bids.key_by("item").join(
            "over", limits.key_by("item"), output, within=("0 seconds", "1 hour"), where=where
        )

    return ColumnarHarness.of(declared.build(), "over", after=after)


def test_a_condition_goes_on_under_the_new_name_of_a_column_and_no_other_one_does() -> None:
    before = of_release(Bid, "left_price > right_price")
    before.both([Bid(1, 5.0, NOON), Bid(2, 5.0, NOON)], [])
    with refused(sf.IncompatibleError, "was left_price > right_price", " < "):
        of_release(RenamedBid, "left_offered < right_price", before)
    with refused(sf.IncompatibleError, "was left_price > right_price", "none now"):
        of_release(Bid, "", before)
    after = of_release(RenamedBid, "left_offered > right_price", before)
    limits = [Limit(1, 4.0, 1.0, NOON), Limit(2, 6.0, 2.0, NOON)]
    assert after.both([], limits) == [{"item": 1, "at_most": 1.0}]


def test_a_run_is_given_the_columns_of_the_condition_and_keeps_them() -> None:
    declared = interval_join(
        LEFTS, RIGHTS, ALONE, times=("ts", "ts"), within=("0 seconds", "1 second"), how="semi",
        where="left_b < right_b AND left_ts < right_ts AND k = 'x'",
    )  # fmt: skip
    assert [rows.names for rows in declared.needed_of_each(frozenset())] == [
        ("k", "n", "b", "ts"),
        ("k", "b", "ts"),
    ]
    assert [field.name for field in declared.right.kept] == ["b"]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("price > 5", "needs column 'price', but its pair of rows has none; it has item, at_most, left_item, left_price"),
        ("left.price > right.price", r"left.price in where='left.price > right.price': write left_price, as a field of the output"),
        ("l.price > 5", "l.price in .*: write left_price"),
        ("r.at_most > 5", "r.at_most in .*: write right_at_most"),
        ("bids.price > 5", "bids.price in .*: write left_x or right_x for the column x of a row"),
        ("left_price", "condition 'left_price' is a number: compare it with something"),
        ("left_price >", "cannot be read at 'its end'"),
        ("left_ts > 5", "> in the condition .* does not take timestamp and number"),
        (lambda bid, limit: True, "where is <function .*: give a condition as text"),
        (None, "where is None: give a condition as text"),
    ],
)  # fmt: skip
def test_a_condition_that_cannot_be_is_refused(where: Any, message: str) -> None:
    with pytest.raises(sf.UsageError, match=f"join 'over'.*{message}"):
        over(where)


def test_a_text_with_a_dot_is_no_column_of_a_row() -> None:
    assert over("left_price > 5.5 AND 'a.b' <> 'l.price'")
