"""What the pages for people who come from other systems say: the names are there, and the statements hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import stateflow as sf
from stateflow.pipelines.misplaced import Steps
from stateflow.testing import ColumnarHarness, KeyedHarness
from tests.refusals.refusal import refused

PAGES = sorted((Path(__file__).parents[1] / "docs" / "coming-from").glob("*.md"))
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TIME: Any = {"event_time": "ts", "watermark": "0 seconds"}


@dataclass
class Order:
    id: int | None
    shop: str
    amount: float | None
    ts: datetime


@dataclass
class Rate:
    shop: str
    percent: float
    ts: datetime


@dataclass
class Rated:
    id: int | None
    percent: float | None


@dataclass
class Whole:
    id: int | None
    whole: int


@dataclass
class Total:
    whole: int
    orders: int


@dataclass
class Hour:
    shop: str
    window_end: datetime
    revenue: float


def here(page: Path) -> Iterator[str]:
    """The code in the second column of a page's table."""
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and len(cells := line.split(" | ")) > 1:
            yield from re.findall(r"`([^`]+)`", cells[1])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_name_of_the_tables_is_there(page: Path) -> None:
    kinds = [kind for kind, _ in Steps._kinds]
    steps = {name for kind in kinds for name in dir(kind)} | {
        "source",
        "advance",
        "clear",
        "set",
        "at",
        "value",
    }
    code = list(here(page))
    assert code
    for each in code:
        for name in re.findall(r"\bsf\.(\w+)", each):
            assert name in sf.__all__, each
        for name in re.findall(r"(?:^|[a-z)])\.([a-z_]+)\(", each):
            assert name in steps | {"ttl", "selectExpr", "where", "emit", *sf.__all__}, each
        for name in re.findall(r"\bctx\.(\w+)", each):
            assert hasattr(sf.Context, name), each


def orders(flow: sf.Flow, **time: Any) -> Any:
    return flow.source("orders", sf.delta("/orders"), Order, **(time or TIME))


def harness(declare: Any, uid: str) -> ColumnarHarness:
    @sf.pipeline("told")
    def told(flow: sf.Flow) -> None:
        declare(flow)

    return ColumnarHarness.of(told.build({}), uid)


def test_copies_of_one_event_time_are_those_within_nothing() -> None:
    once = harness(
        lambda flow: (
            orders(flow).deduplicate("once", by="id", within="0 minutes").append("o", sf.delta("/o"))
        ),
        "once",
    )
    later = NOON + timedelta(microseconds=1)
    assert once.rows(Order(1, "a", 1.0, NOON), Order(1, "b", 2.0, NOON), Order(1, "a", 1.0, later)) == []
    assert [(row.id, row.ts) for row in once.advance(later)] == [(1, NOON), (1, later)]


class Late(sf.KeyedProcess[int, Order, bool]):
    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Iterator[bool]:
        for _ in rows:
            yield ctx.late


def test_a_process_gets_late_rows_and_is_told() -> None:
    late = KeyedHarness(Late, key="id", event_time="ts")
    late.advance(NOON)
    assert late.rows(Order(1, "a", 1.0, NOON), Order(1, "a", 1.0, NOON + timedelta(hours=1))) == [True, False]


def test_a_constant_column_is_a_key_of_all_rows() -> None:
    def declare(flow: sf.Flow) -> None:
        rows = orders(flow).transform(lambda rows: rows.selectExpr("*", "0 as whole"), type=Whole)
        rows.key_by("whole").aggregate("all", Total, orders=sf.count()).upsert("o", sf.delta("/o"))

    assert harness(declare, "all").rows(Whole(1, 0), Whole(2, 0)) == [Total(0, 2)]


def test_a_null_is_no_group() -> None:
    once = harness(lambda flow: orders(flow).deduplicate("once", by="id").append("o", sf.delta("/o")), "once")
    with refused(sf.UsageError, "a row has no 'id'", "leave such rows out before"):
        once.rows(Order(None, "a", 1.0, NOON))


@pytest.mark.parametrize(("by", "ids"), [("amount", [3, 1, 2]), ("-amount", [2, 1, 3])])
def test_a_null_comes_before_all_values(by: str, ids: list[int]) -> None:
    rows = [Order(1, "a", 1.0, NOON), Order(2, "a", 2.0, NOON), Order(3, "a", None, NOON)]
    best = harness(
        lambda flow: orders(flow).key_by("shop").top("best", 3, by=by).upsert("o", sf.delta("/o")), "best"
    )
    assert [row["id"] for row in sorted(best.rows(*rows), key=lambda row: row["rank"])] == ids
    newest = harness(
        lambda flow: orders(flow).key_by("shop", order_by=by).latest("newest").upsert("o", sf.delta("/o")),
        "newest",
    )
    assert [row.id for row in newest.rows(*rows)] == ids[-1:]


@pytest.mark.parametrize("how", ["inner", "left"])
def test_joins_with_one_row_are_left_joins_unless_told_otherwise(how: str) -> None:
    options: Any = {} if how == "left" else {"how": how}

    def declare(flow: sf.Flow) -> None:
        left = orders(flow).key_by("shop")
        right = flow.source("rates", sf.delta("/rates"), Rate, **TIME).key_by("shop")
        left.join_latest("latest", right, Rated, **options).append("a", sf.delta("/a"))
        left.join_asof("valid", right, Rated, **options).append("b", sf.delta("/b"))
        left.join("pairs", right, Rated, within=("-1 hour", "0 hours")).append("c", sf.delta("/c"))

    came: Any = ([Order(1, "a", 1.0, NOON), Order(2, "b", 1.0, NOON)], [Rate("b", 0.5, NOON)])
    alone = [Rated(1, None)] if how == "left" else []
    latest, valid, pairs = (harness(declare, uid) for uid in ("latest", "valid", "pairs"))
    assert sorted(latest.both(*came), key=str) == sorted([Rated(2, 0.5), *alone], key=str)
    assert valid.both(*came) == []
    assert sorted(valid.advance(NOON), key=str) == sorted([Rated(2, 0.5), *alone], key=str)
    assert [*pairs.both(*came), *pairs.advance(NOON + timedelta(days=1))] == [Rated(2, 0.5)]


def test_the_first_rows_of_a_window_follow_it() -> None:
    def declare(flow: sf.Flow) -> None:
        hours = (
            orders(flow).key_by("shop").window(sf.tumbling("1 hour"))
            .aggregate("hours", Hour, revenue=sf.sum("amount"))
        )  # fmt: skip
        hours.key_by("window_end").top("best", 1, by="-revenue").upsert("o", sf.delta("/o"))

    rows = [Hour("a", NOON, 1.0), Hour("b", NOON, 2.0), Hour("c", NOON + timedelta(hours=1), 0.5)]
    assert sorted(row["shop"] for row in harness(declare, "best").rows(*rows)) == ["b", "c"]


def test_a_filter_of_sums_that_change_is_refused_and_a_condition_deletes() -> None:
    @sf.pipeline("having")
    def having(flow: sf.Flow, *, filtered: bool) -> None:
        rows = orders(flow).transform(lambda rows: rows.selectExpr("*", "0 as whole"), type=Whole)
        sums = rows.key_by("whole").aggregate("sums", Total, orders=sf.count())
        if filtered:
            sums.transform(lambda rows: rows.where("orders > 100"), type=Total).upsert("o", sf.delta("/o"))
        else:
            sums.upsert("o", sf.delta("/o"), delete_when="orders <= 100")

    assert having.build({"filtered": False})
    with refused(sf.UsageError, "delete_when"):
        having.build({"filtered": True})


class BothRows(sf.ConnectedProcess[str, Order, Rate, Rated]):
    """A join without a time, as the page advises."""

    order = sf.ValueState(Order, ttl="7 days")
    rate = sf.ValueState(Rate, ttl="7 days")

    def process_left(self, key: str, rows: Iterator[Order], ctx: sf.Context) -> Iterator[Rated]:
        for row in rows:
            self.order.value = row
            yield from self.pair()

    def process_right(self, key: str, rows: Iterator[Rate], ctx: sf.Context) -> Iterator[Rated]:
        for row in rows:
            self.rate.value = row
            yield from self.pair()

    def pair(self) -> Iterator[Rated]:
        if self.order.value is not None and self.rate.value is not None:
            yield Rated(self.order.value.id, self.rate.value.percent)


def test_a_connected_process_keeps_both_rows() -> None:
    both = KeyedHarness(BothRows, key="shop")
    assert both.left(Order(1, "a", 1.0, NOON)) == []
    assert both.right(Rate("a", 0.5, NOON)) == [Rated(1, 0.5)]
    assert both.right(Rate("a", 0.75, NOON)) == [Rated(1, 0.75)]
    assert both.left(Order(2, "a", 1.0, NOON)) == [Rated(2, 0.75)]
