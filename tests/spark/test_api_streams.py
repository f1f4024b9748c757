"""Graphs as users draw them: several sources, operators and sinks in one pipeline, over two runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import stateflow as sf
from tests.spark.pipelines import (
    LARGE,
    ORDER,
    Name,
    Named,
    Order,
    Priced,
    Rate,
    Sum,
    Total,
    Workbench,
    at,
    renamed,
)


def orders(batch: int) -> list[Order]:
    return [
        Order(n % 7, f"sku-{n % 3}", float((n * 13 + batch * 5) % 60), at(batch * 60 + (n * 17) % 50))
        for n in range(60)
    ]


@pytest.mark.slow
def test_one_pipeline_with_every_way_to_join_and_split(bench: Workbench) -> None:
    totals_path, best_path = str(bench.folder / "totals"), str(bench.folder / "best")
    sides, named, priced, chained, strings, whole = (
        sf.memory(f"streams-{n}") for n in ("sides", "named", "priced", "chained", "strings", "whole")
    )
    for table in (sides, named, priced, chained, strings, whole):
        table.clear()
    delivered: list[tuple[int, int]] = []

    def deliver(frame: DataFrame, delivery: sf.Delivery) -> None:
        delivered.append((delivery.slot, frame.count()))

    @sf.pipeline("streams")
    def streams(flow: sf.Flow, *, least: float, label: str = "x") -> None:
        first = flow.source("orders", bench.source("orders", ORDER), Order)
        more = flow.source("more", bench.source("more", ORDER), Order)
        names = flow.source("names", bench.source("names", "user int, name string"), Name)
        rates = flow.source("rates", bench.source("rates", "sku string, factor double"), Rate)
        both = first.union(more).transform(lambda frame: frame.where(F.col("amount") >= least), Order)
        both.collect("whole", whole)
        totals = both.key_by("user", order_by="ts").process("totals", Sum, outputs=[LARGE])
        totals.append("totals-table", sf.delta(totals_path))
        totals.upsert("best", sf.delta(best_path), keys="user", order_by="total")
        totals.for_each_batch("deliver", deliver)
        totals.side(LARGE).collect("large", sides)
        # Two keyed operators in a row, with a step in between.
        thousands = totals.transform(
            lambda frame: frame.select((F.col("user") % 2).alias("user"), F.col("total")), Total
        )
        thousands.key_by("user").map_with_state(
            "per-parity", lambda key, row, state: (None if row.total < 0 else (key, state + 1), state + 1),
            state=int, default=0, output="parity long, seen long",
        ).collect("chained", chained)  # fmt: skip
        names.key_by("user").connect(both.key_by("user", order_by=["ts", "sku"])).process(
            "named", Named, output="user long, name string, sku string, n long"
        ).collect("named-out", named)
        both.key_by("user", order_by="-ts").process(
            "priced",
            Priced,
            output="user long, price double, mine long, everybody long",
            broadcast={"rates": rates},
        ).collect("priced-out", priced)
        first.key_by("user", order_by="ts").map_with_state(
            "strings", renamed, state=list[str], output="user long, skus string"
        ).collect("strings-out", strings)

    expected: dict[int, list[Order]] = {}
    for batch in range(3):
        expected[batch] = orders(batch)
        bench.rows("orders", expected[batch][:40])
        bench.rows("more", expected[batch][40:])
        bench.rows("names", [{"user": batch, "name": f"name-{batch}"}])
        bench.rows(
            "rates",
            [{"sku": "sku-0", "factor": 10.0 * batch}] if batch else [{"sku": "sku-1", "factor": 3.0}],
        )
        if batch != 0:
            bench.run(streams, {"least": "2.5"}, parallelism=0)
            assert [r.rows for r in bench.reports if r.rows] == [62] * (2 if batch == 1 else 1)

    kept = {b: [o for o in rows if o.amount >= 2.5] for b, rows in expected.items()}
    assert [Counter(r["amount"] for r in rows) for _, rows in whole.batches] == [
        Counter(o.amount for o in rows) for rows in kept.values()
    ]
    # Running totals per batch.
    sums: dict[int, float] = defaultdict(float)
    all_totals = []
    for rows in kept.values():
        for order in rows:
            sums[order.user] += order.amount
        all_totals += [(user, sums[user]) for user in sorted({o.user for o in rows})]
    table = bench.spark.read.format("delta").load(totals_path).collect()
    assert sorted(tuple(r) for r in table) == sorted(all_totals)
    best = bench.spark.read.format("delta").load(best_path).collect()
    assert sorted(tuple(r) for r in best) == sorted(sums.items())
    slots = [slot for slot, _ in whole.batches]
    assert delivered == [
        (slot, len({o.user for o in rows})) for slot, rows in zip(slots, kept.values(), strict=True)
    ]
    large = sorted((o.user, o.amount, o.ts) for rows in kept.values() for o in rows if o.amount > 50)
    assert sorted((r["user"], r["amount"], r["ts"]) for r in sides.rows) == large
    assert bench.reports[-1].statistics["operators"]["totals"]["counters"] == {
        "large orders": sum(o.amount > 50 for o in kept[2])
    }
    # Every total that came by was counted.
    assert max(r["seen"] for r in chained.rows if r["parity"] == 0) == sum(u % 2 == 0 for u, _ in all_totals)
    _named_as_expected(named.batches, kept)
    _priced_as_expected(priced.batches, kept)
    _strings_as_expected(strings.batches, expected)


def _named_as_expected(batches: list[tuple[int, Any]], kept: dict[int, list[Order]]) -> None:
    names: dict[int, str] = {}
    counts: Counter[int] = Counter()
    for (_, rows), (batch, given) in zip(batches, kept.items(), strict=True):
        names[batch] = f"name-{batch}"
        wanted = []
        for order in sorted(given, key=lambda o: (o.ts, o.sku)):
            counts[order.user] += 1
            wanted.append((order.user, names.get(order.user, "?"), order.sku, counts[order.user]))
        assert sorted(tuple(r.values()) for r in rows) == sorted(wanted)


def _priced_as_expected(batches: list[tuple[int, Any]], kept: dict[int, list[Order]]) -> None:
    rates: dict[str, float] = {}
    seen = 0
    for (_, rows), (batch, given) in zip(batches, kept.items(), strict=True):
        rates["sku-1" if batch == 0 else "sku-0"] = 3.0 if batch == 0 else 10.0 * batch
        wanted = Counter((o.user, o.amount * rates.get(o.sku, 1.0)) for o in given)
        assert Counter((r["user"], r["price"]) for r in rows) == wanted
        seen += len(given)
        # What each subtask logged adds up. With the second run, in batch 2, each is told what all of them wrote.
        assert {r["everybody"] for r in rows} == {batch}
    tallest: dict[int, int] = {}
    for r in batches[-1][1]:
        tallest[r["user"]] = max(tallest.get(r["user"], 0), r["mine"])
    assert max(tallest.values()) <= seen
    assert sum(sorted(set(tallest.values()))[-2:]) >= max(tallest.values())


def _strings_as_expected(batches: list[tuple[int, Any]], given: dict[int, list[Order]]) -> None:
    state: dict[int, list[str]] = defaultdict(list)
    for (_, rows), orders_ in zip(batches, given.values(), strict=True):
        wanted = []
        for order in sorted(orders_[:40], key=lambda o: o.ts):
            state[order.user].append(order.sku)
            if len(state[order.user]) % 2 == 0:
                wanted.append((order.user, ",".join(state[order.user])))
            if len(state[order.user]) == 4:
                state[order.user] = []
        assert sorted(tuple(r.values()) for r in rows) == sorted(wanted)
