"""A ttl in runs: added later, across a rescale and a canonical savepoint, until nothing of it is stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stateflow as sf
from stateflow.config.options import load
from stateflow.format.encoding import prefix, split
from stateflow.format.records import OperatorState
from stateflow.jobs.job import Job
from stateflow.spark import runner
from stateflow.state.backends.choice import open_backend
from tests.spark.pipelines import ORDER, Order, Workbench, at
from tests.spark.test_api_time import Clock

HOUR = 3600 * 10**6


class Counts(sf.KeyedProcess[int, Order, str]):
    seen: Any
    skus: Any

    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Iterator[Any]:
        for row in rows:
            self.seen.value += 1
            self.skus[row.sku] = self.seen.value
        yield key, self.seen.value


class Counting(Counts):
    """Without a ttl, as a first release has it."""

    seen = sf.ValueState(int, default=0)
    skus = sf.MapState(str, int)


class Expiring(Counts):
    seen = sf.ValueState(int, default=0, ttl=sf.ttl("1 hour", existing="from now"))
    skus = sf.MapState(str, int, ttl=sf.ttl("1 hour", existing="from now"))


def orders(*users: int) -> list[Order]:
    return [Order(user, "tea", 1.0, at(0)) for user in users]


def entries(folder: Path, operator: OperatorState) -> dict[int, int]:
    """How many entries there are, by state id."""
    opened = open_backend(load(code={}, env={}, folder=folder))
    counts: dict[int, int] = {}
    for number, shard in enumerate(shard for task in operator.shards for shard in task):
        # A shard so small travels in the record.
        backend = opened(shard.backend)(shard, folder / f"look-{number}", lambda ref: Path(ref.path))
        for key, _ in backend.scan(prefix(shard.first, 0), prefix(shard.last + 1, 0)):
            counts[split(key).state_id] = counts.get(split(key).state_id, 0) + 1
        backend.close()
    return counts


@pytest.mark.system
def test_a_ttl_that_is_added_later_frees_state_across_rescale_and_savepoint(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock, out = Clock(), sf.memory("expiring-later")
    out.clear()
    monkeypatch.setattr(runner, "_micros", clock)

    def pipeline_of(process: type[Any]) -> sf.Pipeline:
        @sf.pipeline("expiring")
        def expiring(flow: sf.Flow) -> None:
            source = flow.source("in", bench.source("in", ORDER), Order)
            source.key_by("user").process("count", process, output="user long, n long").collect("out", out)

        return expiring

    def newest() -> OperatorState:
        return bench.records("expiring")[-1].operators["count"]

    def shown() -> list[tuple[int, int]]:
        return sorted((row["user"], row["n"]) for row in out.batches[-1][1])

    bench.rows("in", orders(*range(40)))
    bench.run(pipeline_of(Counting), parallelism=2)
    before = newest()
    assert entries(tmp_path, before) == {1: 40, 2: 40}
    # Every entry gets its hour from this batch on.
    bench.rows("in", orders(1, 2))
    bench.run(pipeline_of(Expiring))
    after = newest()
    assert [after.states[name].expiry_sweep for name in ("seen", "skus")] == [1, 1]
    assert {after.states[name].id for name in ("seen", "skus")} == {1, 2}
    job = Job(str(bench.folder / "root"), "expiring")
    job.rescale(3)
    clock.now += HOUR // 2
    bench.rows("in", orders(1, 3))
    bench.run(pipeline_of(Expiring))
    assert shown() == [(1, 3), (3, 2)]
    options = load(
        code={
            name: str(bench.folder / folder)
            for name, folder in (
                ("checkpoint_dir", "root"),
                ("cache_dir", "cache"),
                ("scratch_dir", "scratch"),
            )
        },
        env={},
        folder=bench.folder,
    )
    made = job.savepoint("canonical", options=options, to=str(tmp_path / "canonical"))
    job.restore(made.url, pipeline_of(Expiring), options=options).apply()
    clock.now += HOUR // 2 + 10**6
    for _ in range(16):
        bench.rows("in", orders(50))
    bench.run(pipeline_of(Expiring))
    held = newest()
    left = entries(tmp_path, held)
    assert (left[1], left[2]) == (3, 3), "1 and 3 were renewed half an hour ago, 50 is new"
    clock.now += 2 * HOUR
    for _ in range(16):
        bench.rows("in", orders(51))
    bench.run(pipeline_of(Expiring))
    left = entries(tmp_path, newest())
    assert (left[1], left[2]) == (1, 1)
    assert shown() == [(51, 16)]
