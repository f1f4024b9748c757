"""Pipelines put out the same whether all keys share a few places in Spark's sort or none do."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import stateflow as sf
from stateflow.spark.shuffle import exchange
from stateflow.spark.task.carried import GROUP_AT
from tests.spark.pipelines import ORDER, Name, Named, Order, Workbench, at, renamed

pytestmark = pytest.mark.usefixtures("own_classes")

BATCHES, ROWS = 2, 120
USERS = [(n // 3) | (n % 3 << GROUP_AT) for n in range(12)]
"""They differ above the bits that a place has: three have one place, if they have one key group."""
SUMMED = "key string, rows long, total double, late long"


class Summed(sf.KeyedProcess[Any, Order, Any]):
    total = sf.ValueState(float, default=0.0)
    idle = sf.Timer("event")

    def process(self, key: Any, rows: Iterator[Order], ctx: sf.Context) -> Iterator[Any]:
        count = late = 0
        for row in rows:
            count, late = count + 1, late + ctx.late
            self.total.value += row.amount
            self.idle.set(row.ts + timedelta(minutes=1))
        yield repr(key), count, self.total.value, late

    @idle.fires
    def ended(self, key: Any, when: datetime, ctx: sf.Context) -> Iterator[Any]:
        yield repr(key), -1, self.total.value, 0


class Listing(sf.KeyedProcess[int, Order, Any]):
    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Iterator[Any]:
        yield key, [row.sku for row in rows]


class Failing(sf.KeyedProcess[int, Order, Any]):
    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Iterator[Any]:
        if sum(1 for _ in rows) and key % 4 == 1:
            raise ValueError("this user")
        yield (key,)


def counted(table: Any, state: Any, ctx: Any) -> Any:
    found = table.group_by("user").aggregate([("sku", "count")])
    before = pc.fill_null(state.get(found["user"])["n"], 0)
    counts = pa.table({"n": pc.add(found["sku_count"], before)})
    state.put(found["user"], counts)
    return pa.table({"user": found["user"], "n": counts["n"]})


@dataclass
class Tables:
    tables: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        if name not in self.tables:
            self.tables[name] = sf.memory(f"colliding-{name}")
            self.tables[name].clear()
        return self.tables[name]

    def rows(self) -> dict[str, list[str]]:
        return {name: sorted(map(repr, table.rows)) for name, table in self.tables.items()}


def ran(bench: Workbench, job: str) -> dict[str, list[str]]:
    """What every consumer of sorted rows puts out, batch after batch."""
    out = Tables({})

    @sf.pipeline(job)
    def colliding(flow: sf.Flow) -> None:
        orders = flow.source(
            "orders", bench.source("orders", ORDER), Order, event_time="ts", watermark="2 minutes"
        )
        names = flow.source("names", bench.source("names", "user long, name string"), Name)
        keyed, ordered = orders.key_by("user"), orders.key_by("user", order_by="sku")
        by_sku = orders.key_by("sku", "user").process("both", Summed, output=SUMMED)
        by_sku.collect("both-out", out["both"])
        keyed.process("summed", Summed, output=SUMMED).collect("summed-out", out["summed"])
        ordered.process("listing", Listing, output="user long, skus array<string>").collect(
            "listing-out", out["listing"]
        )
        failing = keyed.process("failing", Failing, output="user long", on_error="dead_letter")
        failing.collect("failing-out", out["failing"])
        failing.dead_letters.transform(lambda frame: frame.select("key", "row_count")).collect(
            "dead", out["dead"]
        )
        names.key_by("user", order_by="name").connect(ordered).process(
            "named", Named, output="user long, name string, sku string, orders long"
        ).collect("named-out", out["named"])
        ordered.map_with_state("mapped", renamed, state=list[str], output="user long, text string").collect(
            "mapped-out", out["mapped"]
        )
        keyed.process_arrow("counted", counted, state={"n": int}, output="user long, n long").collect(
            "counted-out", out["counted"]
        )
        keyed.window(sf.tumbling("1 minute")).aggregate(
            "windows", "user long, window_start timestamp, n long", n=sf.count()
        ).collect("windows-out", out["windows"])

    bench.run(colliding, max_parallelism=2, chunk_rows=7, backend="memory")
    return out.rows()


@pytest.mark.slow
def test_keys_of_one_place_are_told_apart_in_every_operator(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(7)
    orders = [
        [
            Order(
                chance.choice(USERS if n % 3 else USERS[:2]),
                f"{chance.randrange(1000):03}-{batch}-{n}" if n % 2 else "same",
                float(n),
                at(3 * batch + chance.randrange(-4, 4)),
            )
            for n in range(ROWS)
        ]
        for batch in range(BATCHES)
    ]
    for rows in orders:
        bench.rows("orders", rows)
        bench.rows("names", [Name(chance.choice(USERS), f"{n}") for n in range(20)])
    apart = ran(bench, "apart")

    def few(group: str, key_types: tuple[str, ...], keys: list[str]) -> str:
        return f"(shiftleft(cast({group} as bigint), {GROUP_AT}) | (xxhash64({', '.join(keys)}) & 1L))"

    monkeypatch.setattr(exchange, "_place", few)
    together = ran(bench, "together")
    assert together.keys() == apart.keys()
    for name, found in together.items():
        assert found == apart[name], name
        assert found, name
    per_user = [sum(row.user == user for row in rows) for rows in orders for user in USERS]
    counts = [int(text.partition("'rows': ")[2].partition(",")[0]) for text in together["summed"]]
    assert sorted(n for n in counts if n > 0) == sorted(n for n in per_user if n)
