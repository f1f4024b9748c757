"""State as users see it: every kind and every type of value, over batches, runs and backends."""

from __future__ import annotations

from typing import Any

import pytest

import stateflow as sf
from tests.spark.pipelines import VISIT, Everything, Told, Visit, Workbench, at


def visits(batch: int, users: int = 12) -> list[Visit]:
    pages = ["home", "cart", "search", "clear"]
    return [
        Visit(user, pages[(user * 7 + batch + n) % (4 if n == 1 else 3)], user + n / 4, at(batch * 600 + n))
        for user in range(users)
        for n in range(3)
        if (user + batch) % 3
    ]


@pytest.fixture(params=["memory", "rocksdb"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.slow
def test_every_state_is_there_in_the_next_batch_and_in_the_next_run(bench: Workbench, backend: str) -> None:
    out = sf.memory(f"everything-{backend}")
    out.clear()

    @sf.pipeline(f"everything-{backend}")
    def everything(flow: sf.Flow) -> None:
        rows = flow.source("visits", bench.source("visits", VISIT), Visit)
        rows.key_by("user", order_by="ts").process("everything", Everything).collect("told", out)

    harness = sf.testing.KeyedHarness(Everything)
    expected: list[list[Told]] = []
    for batch in range(4):
        bench.rows("visits", visits(batch))
        expected.append(harness.rows(*visits(batch)))
        if batch != 1:
            bench.run(everything, backend=backend)
    produced = [sorted((row["user"], row["text"]) for row in rows) for _, rows in out.batches]
    assert produced == [sorted((told.user, told.text) for told in batch) for batch in expected]
    head = bench.records(f"everything-{backend}")[-1]
    operator = head.operators["everything"]
    assert all(shard.backend == backend for subtask in operator.shards for shard in subtask)
    entries: Any = sum(shard.entries for subtask in operator.shards for shard in subtask)
    assert entries > 12
