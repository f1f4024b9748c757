"""A broadcast rule reaches every key in a run as it does in the harness, also in shards that get no rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stateflow as sf
from tests.spark.pipelines import ORDER, Order, Rate, Workbench, at

pytestmark = pytest.mark.usefixtures("own_classes")


class Repriced(sf.KeyedProcess[int, Order, Any]):
    total = sf.ValueState(float, default=0.0)
    rates = sf.BroadcastState(str, float)

    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> None:
        for row in rows:
            self.total.value += row.amount

    def process_broadcast(self, name: str, rows: Iterator[Rate], ctx: sf.Context) -> None:
        for row in rows:
            self.rates[row.sku] = row.factor
            ctx.for_each_key(self.total, self.reprice)

    def reprice(self, key: int, ctx: sf.Context) -> Iterator[Any]:
        self.total.value *= self.rates["all"]
        yield key, self.total.value


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_a_rule_reaches_every_key_of_every_shard(bench: Workbench, tmp_path: Path, backend: str) -> None:
    out = sf.memory(f"{tmp_path.name}-out")
    orders = [Order(user, "tea", float(user), at(user)) for user in range(1, 30)]

    @sf.pipeline("visits")
    def visits(flow: sf.Flow) -> None:
        rates = flow.source("rates", bench.source("rates", "sku string, factor double"), Rate)
        keyed = flow.source("orders", bench.source("orders", ORDER), Order).key_by("user", order_by="ts")
        keyed.process(
            "priced", Repriced, output="user long, total double", broadcast={"rates": rates}
        ).collect("out", out)

    bench.rows("orders", orders)
    bench.run(visits, backend=backend, parallelism=3)
    # Rows of one key only: two of the three shards get none.
    bench.rows("orders", orders[:1])
    bench.rows("rates", [{"sku": "all", "factor": 10.0}])
    bench.run(visits, backend=backend)
    harness = sf.testing.KeyedHarness(Repriced, output="user long, total double")
    harness.rows(*orders)
    wanted = harness.broadcast("rates", Rate("all", 10.0))
    assert sorted((row["user"], row["total"]) for row in out.batches[-1][1]) == sorted(wanted)
    assert len(wanted) == 29


class Killed(Repriced):
    """Its worker dies in the middle of the visit, as long as the marker is there."""

    marker = ""

    def reprice(self, key: int, ctx: sf.Context) -> Iterator[Any]:
        if key == 20 and Path(self.marker).exists():
            Path(self.marker).unlink()
            os._exit(9)
        yield from super().reprice(key, ctx)


@pytest.mark.system
def test_a_visit_that_a_kill_interrupts_begins_anew_and_one_that_is_decided_is_not_repeated(
    bench: Workbench, tmp_path: Path
) -> None:
    delivered: list[tuple[int, float]] = []
    down: list[bool] = []
    marker = tmp_path / "dies"
    process = type("Killed", (Killed,), {"marker": str(marker)})

    def deliver(frame: Any, checkpoint: int) -> None:
        if down:
            down.clear()
            raise RuntimeError("the receiver is down")
        delivered.extend((row["user"], row["total"]) for row in frame.collect())

    @sf.pipeline("killed")
    def killed(flow: sf.Flow) -> None:
        rates = flow.source("rates", bench.source("rates", "sku string, factor double"), Rate)
        keyed = flow.source("orders", bench.source("orders", ORDER), Order).key_by("user", order_by="ts")
        keyed.process(
            "priced", process, output="user long, total double", broadcast={"rates": rates}
        ).for_each_batch("out", deliver)

    orders = [Order(user, "tea", float(user), at(user)) for user in range(1, 30)]
    bench.rows("orders", orders)
    bench.run(killed, backend="rocksdb", parallelism=3)
    bench.rows("rates", [{"sku": "all", "factor": 10.0}])
    marker.touch()
    with pytest.raises(Exception, match=r".+"):
        bench.run(killed, backend="rocksdb")
    assert not marker.exists(), "the worker died in the middle"
    assert delivered == []
    # The batch is taken again with the same rule: every key is visited, and each once. Then the receiver is down.
    down.append(True)
    with pytest.raises(Exception, match="the receiver is down"):
        bench.run(killed, backend="rocksdb")
    assert delivered == []
    # What is decided is carried out as it stands, and nothing is visited again.
    bench.run(killed, backend="rocksdb")
    assert sorted(delivered) == [(user, 10.0 * user) for user in range(1, 30)]
    # The next rule finds every key multiplied once.
    bench.rows("rates", [{"sku": "all", "factor": 2.0}])
    bench.run(killed, backend="rocksdb")
    assert sorted(delivered[29:]) == [(user, 20.0 * user) for user in range(1, 30)]
