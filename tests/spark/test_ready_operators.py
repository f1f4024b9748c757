"""Ready-made operators through Spark: what reaches the tables is what a computation over the whole input gives."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from tests.refusals.refusal import refused
from tests.spark.pipelines import ORDER, START, Order, Workbench, at

pytestmark = pytest.mark.system


@dataclass
class Total:
    user: int
    orders: int
    total: float
    newest: str


@dataclass
class PerMinute:
    user: int
    window_start: datetime
    orders: int
    total: float


@dataclass
class PerHour(PerMinute):
    window_end: datetime


ORDER_COLUMNS = ("user", "sku", "amount", "ts")


def orders(batch: int) -> list[Order]:
    """Ten minutes of orders, two of which are minutes behind."""
    made = [
        Order((n * 31) % 17, f"sku-{n % 5}", float(n % 11) + batch, at(batch * 10 + n / 12))
        for n in range(120)
    ]
    return [*made, Order(3, "late", 1.0, at(batch * 10 - 8)), Order(4, "late", 1.0, at(batch * 10 - 3))]


def windows(rows: list[Order], minutes: int) -> dict[Any, tuple[int, float]]:
    out: dict[Any, list[float]] = defaultdict(list)
    for row in rows:
        start = START + (row.ts - START) // timedelta(minutes=minutes) * timedelta(minutes=minutes)
        out[row.user, start].append(row.amount)
    return {key: (len(amounts), sum(amounts)) for key, amounts in out.items()}


def test_aggregates_and_windows_reach_their_tables_once_whatever_happens_between(bench: Workbench) -> None:
    totals, minutes, changes, late = (
        str(bench.folder / name) for name in ("totals", "minutes", "changes", "late")
    )
    failures: list[Exception] = []

    def failing(frame: Any) -> Any:
        if failures and frame.count():
            raise failures.pop()
        return frame

    @sf.pipeline("ready")
    def ready(flow: sf.Flow) -> None:
        events = flow.source("in", bench.source("in", ORDER), Order, event_time="ts", watermark="2 minutes")
        keyed = events.key_by("user", order_by="ts")
        keyed.aggregate(
            "totals", Total, orders=sf.count(), total=sf.sum("amount"), newest=sf.last("sku")
        ).upsert("t", sf.delta(totals))
        per_minute = keyed.window(sf.tumbling("1 minute"), lateness="1 minute").aggregate(
            "minutes", PerMinute, orders=sf.count(), total=sf.sum("amount")
        )
        per_minute.transform(failing, type=PerMinute).append("m", sf.delta(minutes))
        per_minute.side("late").append("l", sf.delta(late))
        keyed.window(sf.hopping("10 minutes", "5 minutes"), lateness="1 minute").aggregate(
            "hours", PerHour, emit="changes", orders=sf.count(), total=sf.sum("amount")
        ).upsert("h", sf.delta(changes))

    everything: list[Order] = []
    for batch in range(5):
        everything += orders(batch)
        bench.rows("in", orders(batch))
        failures += [ValueError("once")] if batch == 2 else []
        # Each run is a driver of its own; the third one repeats its batch.
        bench.run(ready, tolerable_failed_batches=2, failure_backoff="10 ms")
    assert not failures
    spark = bench.spark
    before = spark.read.format("delta").load(minutes).count()
    assert before, "what the watermark has closed is out before the end"
    bench.run(ready, drain=True)
    # Only the first batch has no watermark yet; what is eight minutes behind is late in all others.
    was_late = {(o.user, o.ts) for n in range(1, 5) for o in orders(n) if o.ts == at(n * 10 - 8)}
    assert {(r["user"], r["ts"]) for r in rows_of(spark, late)} == was_late
    in_time = [o for o in everything if (o.user, o.ts) not in was_late]
    found = [((r["user"], r["window_start"]), (r["orders"], r["total"])) for r in rows_of(spark, minutes)]
    assert sorted(found) == sorted(windows(in_time, 1).items())
    sums: dict[int, tuple[int, float, Any]] = {}
    for order in sorted(everything, key=lambda o: (o.ts, o.sku)):
        n, amount, _ = sums.get(order.user, (0, 0.0, ""))
        sums[order.user] = (n + 1, amount + order.amount, order.sku)
    assert {r["user"]: (r["orders"], r["total"], r["newest"]) for r in rows_of(spark, totals)} == sums
    hopping = [r for r in rows_of(spark, changes) if r["window_start"].minute % 10 == 0]
    assert hopping
    assert all(r["window_end"] - r["window_start"] == timedelta(minutes=10) for r in hopping)
    tens = windows(everything, 10)
    assert {(r["user"], r["window_start"]): (r["orders"], r["total"]) for r in hopping} == tens


def rows_of(spark: SparkSession, path: str) -> list[dict[str, Any]]:
    """With the instants in UTC."""
    table = spark.read.format("delta").load(path).toArrow()
    return list(table.to_pylist())


@dataclass
class Visit:
    user: int
    window_start: datetime
    window_end: datetime
    orders: int


def test_sessions_and_single_rows_reach_their_tables_once(bench: Workbench) -> None:
    visits, single, best = (str(bench.folder / name) for name in ("visits", "single", "best"))

    @sf.pipeline("more")
    def more(flow: sf.Flow) -> None:
        events = flow.source("in", bench.source("in", ORDER), Order, event_time="ts", watermark="20 minutes")
        events.key_by("user").window(sf.session("2 minutes")).aggregate(
            "visits", Visit, orders=sf.count()
        ).append("v", sf.delta(visits))
        events.deduplicate("single", by=("user", "sku"), within="5 minutes").append("s", sf.delta(single))
        listed = events.key_by("user").top("best", 2, by="-amount", per="sku")
        listed.upsert("b", sf.delta(best))

    everything: list[Order] = []
    for batch in range(3):
        everything += orders(batch)
        bench.rows("in", orders(batch))
    bench.run(more, stop_after=1)
    bench.run(more, parallelism=3)
    bench.run(more, drain=True)
    by_user: dict[int, list[Order]] = defaultdict(list)
    by_sku: dict[Any, list[Order]] = defaultdict(list)
    for order in sorted(everything, key=lambda o: (o.ts, o.amount)):
        by_user[order.user].append(order)
        by_sku[order.user, order.sku].append(order)
    gap, wanted, firsts = timedelta(minutes=2), [], []
    for user, mine in by_user.items():
        cuts = [0, *(i for i in range(1, len(mine)) if mine[i].ts - mine[i - 1].ts > gap), len(mine)]
        for first, end in pairwise(cuts):
            wanted.append((user, mine[first].ts, mine[end - 1].ts + gap, end - first))
    for mine in by_sku.values():
        until: datetime | None = None
        for order in mine:
            if until is None or order.ts > until:
                firsts.append((order.user, order.sku, order.amount, order.ts))
                until = order.ts + timedelta(minutes=5)
    spark = bench.spark
    assert sorted(tuple(r.values()) for r in rows_of(spark, visits)) == sorted(wanted)
    assert sorted(tuple(r.values()) for r in rows_of(spark, single)) == sorted(firsts)
    listed = {}
    for user in by_user:
        largest = {sku: max(o.amount for o in mine) for (of, sku), mine in by_sku.items() if of == user}
        first = sorted(largest.items(), key=lambda each: -each[1])[:2]
        listed[user] = [amount for _, amount in first]
        assert all(sku in largest for sku, _ in first)
    found: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for r in rows_of(spark, best):
        assert set(r) == {*ORDER_COLUMNS, "rank"}, "what says upsert or delete is no column of the table"
        found[r["user"]].append((r["rank"], r["amount"]))
    assert {user: [a for _, a in sorted(mine)] for user, mine in found.items()} == listed
    assert all([rank for rank, _ in sorted(mine)] == [1, 2][: len(mine)] for mine in found.values())


@dataclass
class Paired:
    user: int
    sku: str
    ts: datetime
    paid: float | None


def test_single_rows_go_on_into_windows_and_joins(bench: Workbench) -> None:
    hours, paired = str(bench.folder / "hours"), str(bench.folder / "paired")

    @sf.pipeline("single")
    def single(flow: sf.Flow) -> None:
        events = flow.source("in", bench.source("in", ORDER), Order, event_time="ts", watermark="20 minutes")
        paid = flow.source(
            "paid", bench.source("paid", ORDER), Order, event_time="ts", watermark="20 minutes"
        )
        once = events.deduplicate("once", by="sku", within="1 hour")
        once.key_by("user").window(sf.tumbling("1 hour")).aggregate(
            "hours", PerHour, orders=sf.count(), total=sf.sum("amount")
        ).append("h", sf.delta(hours))
        payments = paid.deduplicate("paid_once", by="sku", within="1 hour")
        once.key_by("user", "sku").join(
            "paired", payments.key_by("user", "sku"), pair, within=("0 minutes", "0 minutes"), how="left"
        ).append("p", sf.delta(paired))

    everything: list[Order] = []
    for batch in range(0, 12, 3):
        made = [replace(o, sku=f"{batch}-{n}") for n, o in enumerate(orders(batch))]
        everything += made
        bench.rows("in", [*made, *made[::-1]])
        bench.rows("paid", [*made[::2], *made[::2]])
    bench.run(single, stop_after=2)
    bench.run(single, drain=True)
    found = {(r["user"], r["window_start"]): (r["orders"], r["total"]) for r in rows_of(bench.spark, hours)}
    assert found == windows(everything, 60)
    assert len(rows_of(bench.spark, hours)) == len(found), "no window comes twice"
    wanted = [
        Paired(o.user, o.sku, o.ts, None if int(o.sku.split("-")[1]) % 2 else o.amount) for o in everything
    ]
    joined = [Paired(**row) for row in rows_of(bench.spark, paired)]
    assert sorted(joined, key=lambda row: row.sku) == sorted(wanted, key=lambda row: row.sku)


def pair(order: Order, payment: Order | None) -> Paired:
    return Paired(order.user, order.sku, order.ts, payment.amount if payment else None)


class Refused(ValueError):
    pass


def added(total: float, amount: float) -> float:
    if amount > 100:
        raise Refused(f"no order costs {amount}")
    return total + amount


def both(left: float, right: float) -> float:
    return left + right


@dataclass
class Own:
    user: int
    own: float
    orders: int


@dataclass
class OwnPerWindow(Own):
    window_start: datetime


def test_orders_that_an_aggregate_refuses_become_dead_letters_until_there_are_too_many(
    bench: Workbench,
) -> None:
    tables = {name: sf.memory(f"refused-{name}") for name in ("running", "tumbling", "hopping", "session")}
    letters = {name: sf.memory(f"refused-{name}-letters") for name in tables}
    for table in (*tables.values(), *letters.values()):
        table.clear()
    own = sf.aggregate("amount", create=float, add=added, merge=both, state=float)

    @sf.pipeline("refused")
    def refusing(flow: sf.Flow) -> None:
        source = flow.source("in", bench.source("in", ORDER), Order, event_time="ts", watermark="0 seconds")
        keyed = source.key_by("user")
        cut = {
            "tumbling": sf.tumbling("1 minute"),
            "hopping": sf.hopping("2 minutes", "1 minute"),
            "session": sf.session("30 seconds"),
        }
        out = {"running": keyed.aggregate("running", Own, on_error="dead_letter", own=own, orders=sf.count())}
        for name, window in cut.items():
            out[name] = keyed.window(window).aggregate(
                name, OwnPerWindow, on_error="dead_letter", own=own, orders=sf.count()
            )
        for name, stream in out.items():
            stream.collect(name, tables[name])
            stream.dead_letters.collect(f"{name}-letters", letters[name])

    bad, fine = 500.0, 2.0
    bench.rows("in", [Order(n, "a", bad if n in (3, 4) else fine, at(n / 100)) for n in range(8)])
    bench.rows("in", [Order(n, "b", fine, at(5)) for n in range(8)])
    bench.rows("in", [Order(99, "b", fine, at(60))])
    bench.run(refusing)
    last = {row["user"]: (row["own"], row["orders"]) for row in tables["running"].rows if row["user"] < 99}
    assert last == {n: (2.0, 1) if n in (3, 4) else (4.0, 2) for n in range(8)}
    for name, windows_of_a_row in (("tumbling", 1), ("hopping", 2), ("session", 1)):
        assert len(tables[name].rows) == (16 - 2) * windows_of_a_row
        assert {(row["own"], row["orders"]) for row in tables[name].rows} == {(2.0, 1)}
    for name, table in letters.items():
        assert sorted(row["key"] for row in table.rows) == ["3", "4"]
        assert {row["error"] for row in table.rows} == {"add() of 'own': Refused: no order costs 500.0"}
        assert all('"sku":"a"' in row["rows"] for row in table.rows), "with the columns that it does not need"
        assert sum(report.statistics["operators"][name]["dead_letters"] for report in bench.reports) == 2
    bench.rows("in", [Order(n, "c", bad, at(70)) for n in range(5)])
    with refused(sf.StateflowError, "5 keys in one batch", "dead_letter_threshold=4: "):
        bench.run(refusing, dead_letter_threshold=4)
