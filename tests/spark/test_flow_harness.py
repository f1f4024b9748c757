"""The harness of a whole pipeline: chains, late rows, restarts and deletes, in the tables that a user would see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.testing import FlowHarness
from tests.refusals.refusal import refused

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass
class Order:
    id: int
    shop: str
    amount: float
    ts: datetime


@dataclass
class PerHour:
    shop: str
    window_start: datetime
    revenue: float


@sf.pipeline("revenue")
def revenue(flow: sf.Flow, *, input: str, output: str, late: str) -> None:
    orders = flow.source("orders", sf.files(input, "json"), Order, event_time="ts", watermark="10 minutes")
    once = orders.deduplicate("once", by="id", within="1 day")
    once.side("late").append("late", sf.delta(late))
    hours = once.key_by("shop").window(sf.tumbling("1 hour"))
    per_hour = hours.aggregate("hours", PerHour, revenue=sf.sum("amount"))
    per_hour.append("revenue", sf.delta(output))


def order(id: int, amount: float, minutes: float, shop: str = "a") -> Order:
    return Order(id, shop, amount, NOON + timedelta(minutes=minutes))


@pytest.mark.slow
def test_a_chain_of_operators_over_several_runs(spark: SparkSession, tmp_path: Path) -> None:
    harness = FlowHarness(revenue, tmp_path)
    assert harness.table("revenue") == []
    harness.add("orders", order(1, 2.5, 1), order(1, 2.5, 1), order(2, 4.0, 30))
    harness.run()
    assert harness.table("revenue") == []
    harness.add("orders", order(1, 2.5, 1), order(3, 1.0, 200))
    harness.run()
    harness.add("orders", vars(order(4, 8.0, 2)))
    report = harness.run()
    assert harness.table("revenue") == [{"shop": "a", "window_start": NOON, "revenue": 6.5}]
    assert sorted(row["id"] for row in harness.table("late")) == [1, 4]
    assert report.epoch == 3
    harness.run(final=True)
    assert sorted(row["revenue"] for row in harness.table("revenue")) == [1.0, 6.5]


@dataclass
class Reading:
    id: int
    ts: datetime
    bad: str | None = None


@sf.pipeline("readings")
def readings(flow: sf.Flow, *, input: str, output: str, late: str) -> None:
    files = sf.files(input, "json", options={"columnNameOfCorruptRecord": "bad"})
    late_ones = sf.output("late", Reading)
    source = flow.source("in", files, Reading, event_time="ts", watermark="10 minutes", late=late_ones)
    source.append("out", sf.delta(output))
    source.side(late_ones).append("late", sf.delta(late))


@sf.pipeline("readings")
def counted_readings(flow: sf.Flow, *, input: str, output: str, late: str, counts: str) -> None:
    readings.function(flow, input=input, output=output, late=late)
    more = flow.source("more", sf.files(input, "json", options={"mode": "PERMISSIVE"}), Reading)
    whole = more.transform(lambda rows: rows.where("id is not null"), Reading)
    counted = whole.key_by("id").aggregate("counts", "id long, n long", n=sf.count())
    counted.upsert("counts", sf.delta(counts))


@pytest.mark.slow
def test_lines_as_they_are_options_and_a_release(spark: SparkSession, tmp_path: Path) -> None:
    harness = FlowHarness(readings, tmp_path)
    exactly = NOON + timedelta(microseconds=123456)
    harness.add("in", Reading(1, exactly), '{"id": "many"}', "no JSON")
    harness.run(options={"source_idle_timeout": "1 hour"})
    found = sorted(harness.table("out"), key=lambda row: row["id"] or 9)
    assert found[0] == {"id": 1, "ts": exactly, "bad": None}
    assert [row["bad"] for row in found[1:]] == ['{"id": "many"}', "no JSON"]
    with refused(sf.UsageError, "no_such_option"):
        harness.run(options={"no_such_option": 1})
    harness.release(counted_readings)
    harness.add("in", Reading(2, exactly))
    harness.run()
    assert len(harness.table("out")) == 4
    assert sorted((row["id"], row["n"]) for row in harness.table("counts")) == [(1, 1), (2, 1)]
    with refused(sf.UsageError, "'revenue'", "'readings'", "the same name"):
        harness.release(revenue)
    with refused(sf.UsageError, "source 'in'", "Reading", "values of the declared types"):
        harness.add("in", {"id": "1", "ts": NOON})


@dataclass
class Price:
    sku: str
    price: float
    op: str


class Cheaper(sf.KeyedProcess[str, Price, Price]):
    last = sf.ValueState(float)

    def process(self, key: str, rows: Iterator[Price], ctx: sf.Context) -> Iterator[Price]:
        for row in rows:
            if row.op == "delete" or self.last.value is None or row.price < self.last.value:
                self.last.value = row.price
                yield row


@sf.pipeline("prices")
def prices(flow: sf.Flow, *, input: str, output: str, format: str = "delta") -> None:
    source = sf.delta(input) if format == "delta" else sf.files(input, format)
    rows = flow.source("prices", source, Price)
    cheaper = rows.key_by("sku").process("cheaper", Cheaper)
    cheaper.upsert("now", sf.delta(output), keys="sku", delete_when="op = 'delete'")
    rows.collect("seen", sf.memory("prices-seen"))


@pytest.mark.slow
@pytest.mark.parametrize("format", ["delta", "csv", "parquet"])
def test_a_table_that_changes_and_deletes(spark: SparkSession, tmp_path: Path, format: str) -> None:
    sf.memory("prices-seen").clear()
    harness = FlowHarness(prices, tmp_path, format=format)
    harness.run()
    assert harness.table("now") == [], "a source without rows is there all the same"
    harness.add("prices", Price("tea", 3.0, "upsert"), Price("jam", 5.0, "upsert"))
    harness.run()
    harness.add("prices", Price("tea", 2.0, "upsert"), Price("jam", 0.0, "delete"))
    harness.run()
    assert harness.table("now") == [{"sku": "tea", "price": 2.0, "op": "upsert"}]
    assert len(harness.table("seen")) == 4


MISTAKES: list[tuple[Any, str]] = [
    (lambda h: h.add("order", order(1, 1, 1)), "pipeline 'revenue' has no source 'order'; it has 'orders'"),
    (lambda h: h.table("out"), "pipeline 'revenue' has no sink 'out'; it has 'late', 'revenue'"),
    (
        lambda h: h.add("orders", {"id": 1, "shp": "a"}),
        "Order has no column 'shp'; it has id, shop, amount, ts",
    ),
]


@pytest.mark.parametrize(("ask", "message"), MISTAKES)
def test_a_mistake_of_a_test_is_told(spark: SparkSession, tmp_path: Path, ask: Any, message: str) -> None:
    with pytest.raises(sf.UsageError) as caught:
        ask(FlowHarness(revenue, tmp_path))
    assert str(caught.value) == message


def test_a_test_writes_nowhere_but_into_its_folder(tmp_path: Path) -> None:
    elsewhere = tmp_path / "production"
    harness = FlowHarness(revenue, tmp_path / "test", input=str(elsewhere))
    with pytest.raises(sf.UsageError, match="which is not in the test's folder"):
        harness.add("orders", order(1, 1, 1))
    with refused(sf.UsageError, "a parameter of the pipeline"):
        harness.run()
    assert not elsewhere.exists()
    outside = FlowHarness(revenue, tmp_path / "test", output=str(elsewhere))
    with refused(sf.UsageError, "sink 'revenue'", "production", "not in the test's folder"):
        outside.run()


def test_a_table_of_a_catalog_is_refused_with_what_to_do(tmp_path: Path) -> None:
    @sf.pipeline("named")
    def named(flow: sf.Flow) -> None:
        flow.source("orders", sf.table("shop.orders"), Order).append("copy", sf.table("shop.copy"))

    harness = FlowHarness(named, tmp_path / "test")
    instead = ("a harness has no catalog", "let a parameter", "sf.delta")
    with refused(sf.UsageError, "source 'orders'", "shop.orders", *instead):
        harness.add("orders", order(1, 1, 1))
    with refused(sf.UsageError, "sink 'copy'", "shop.copy", *instead):
        harness.run()
    with refused(sf.UsageError, "sink 'copy'", "shop.copy", *instead):
        harness.table("copy")


@dataclass
class Idle:
    id: int
    ts: datetime


class Watch(sf.KeyedProcess[int, Order, Idle]):
    due = sf.Timer("event")

    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> None:
        for row in rows:
            self.due.set(row.ts + timedelta(minutes=30))

    @due.fires
    def idle(self, key: int, at: datetime, ctx: sf.Context) -> Iterator[Idle]:
        yield Idle(key, at)


@sf.pipeline("idle")
def idle(flow: sf.Flow, *, input: str, output: str) -> None:
    orders = flow.source("orders", sf.files(input, "json"), Order, event_time="ts", watermark="10 minutes")
    gone = orders.key_by("id").process("watch", Watch)
    shop = gone.transform(lambda rows: rows.selectExpr("1 as one", "ts"), type="one int, ts timestamp")
    hours = shop.key_by("one").window(sf.tumbling("1 hour"))
    per_hour = hours.aggregate("hours", "one int, window_start timestamp, n long", n=sf.count())
    per_hour.append("idle", sf.delta(output))


@pytest.mark.slow
def test_rows_of_timers_reach_the_window_behind_them(spark: SparkSession, tmp_path: Path) -> None:
    """The watermark passes the timers and the end of their hours in one batch."""
    harness = FlowHarness(idle, tmp_path)
    harness.add("orders", order(1, 1.0, 0), order(2, 1.0, 5), order(3, 1.0, 70))
    harness.run()
    harness.add("orders", order(4, 1.0, 600))
    harness.run()
    harness.run(final=True)
    assert sorted((row["window_start"], row["n"]) for row in harness.table("idle")) == [
        (NOON, 2),
        (NOON + timedelta(hours=1), 1),
        (NOON + timedelta(hours=10), 1),
    ]
