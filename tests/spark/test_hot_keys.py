"""A key with half of all rows: found by looking at few of them, told with its share, and named in the log alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.jobs.job import Job
from stateflow.spark.task.acks import Ack
from stateflow.spark.task.hot_keys import SEEN, KeySample, hot_key
from tests.spark.pipelines import Workbench


def acks(*taken: tuple[int, int]) -> list[Ack]:
    return [Ack(n, n, (), taken=rows, hot_key=f"'k{n}'", hot_rows=hot) for n, (rows, hot) in enumerate(taken)]


@pytest.mark.parametrize(
    ("given", "share"),
    [
        (acks((75_000, 50_000), (25_000, 40)), 0.5),
        (acks((25_000, 40), (75_000, 50_000)), 0.5),
        (acks((60_000, 20_000), (40_000, 9)), None),  # the other task has as much to do
        (acks(*[(12_500, 3)] * 7, (37_500, 25_000)), 0.2),
        (acks(*[(12_500, 3)] * 8), None),
        (acks((100_000, 90_000)), None),  # no task waits
        (acks((3_000, 2_900), (100, 1)), None),  # it is quick all the same
        (acks((0, 0), (0, 0)), None),
    ],
)
def test_a_key_is_hot_when_one_task_works_for_it_and_others_wait(
    given: list[Ack], share: float | None
) -> None:
    found = hot_key(given)
    if share is None:
        assert found is None
        return
    assert found is not None
    assert found.share == pytest.approx(share)
    assert found.key == f"'k{found.subtask}'"


def batches(keys: Any, rows: int = 20_000) -> Iterator[Any]:
    for begin in range(0, len(keys), rows):
        part = pa.array(keys[begin : begin + rows])
        yield pa.record_batch([pa.array(np.zeros(len(part), dtype=np.int64)), part], ["place", "key"])


def sampled(keys: Any, rows: int = 20_000) -> tuple[KeySample, dict[str, Any]]:
    sample = KeySample([1])
    assert sum(batch.num_rows for batch in sample.of(batches(keys, rows))) == len(keys)
    return sample, sample.figures()


@pytest.mark.parametrize("is_sorted", [False, True])
def test_the_share_of_a_key_is_about_right(is_sorted: bool) -> None:
    chance = np.random.default_rng(5)
    keys = np.where(chance.random(1_000_000) < 0.5, 7, chance.integers(0, 1 << 40, 1_000_000))
    _, figures = sampled(np.sort(keys) if is_sorted else keys)
    assert (figures["hot_key"], figures["taken"]) == ("7", 1_000_000)
    assert 430_000 < figures["hot_rows"] < 570_000


@pytest.mark.parametrize("keys", [5, 64, 312, 313, 1000])
def test_keys_that_come_in_turns_are_not_hot(keys: int) -> None:
    _, figures = sampled(np.arange(1_000_000) % keys)
    assert figures["hot_rows"] < 1_000_000 * max(0.1, 1.7 / keys)


def test_small_batches_are_counted_exactly_and_a_key_may_be_null() -> None:
    _, figures = sampled(["a", None, "b", "a"] * 5, rows=SEEN)
    assert figures == {"taken": 20, "hot_key": "'a'", "hot_rows": 10}
    assert sampled([])[1] == {"taken": 0, "hot_key": "", "hot_rows": 0}


def test_many_keys_need_no_more_memory() -> None:
    sample, _ = sampled(np.arange(400_000), rows=SEEN)
    assert len(sample._counts) <= 4096 + SEEN


@dataclass
class Click:
    user: str


@dataclass
class Count:
    user: str
    clicks: int


class Counting(sf.KeyedProcess[str, Click, Count]):
    clicks = sf.ValueState(int, default=0)

    def process(self, key: str, rows: Iterator[Click], ctx: sf.Context) -> Iterator[Count]:
        self.clicks.value += sum(1 for _ in rows)
        yield Count(key, self.clicks.value)


@pytest.mark.slow
@pytest.mark.parametrize("combines", [False, True])
def test_a_run_warns_of_a_hot_key_unless_its_rows_are_combined(
    combines: bool, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clicks = str(tmp_path / "clicks")
    user = "if(id % 2 = 0, 'robot 17', concat('user ', id % 5000)) as user"
    spark.range(0, 120_000, numPartitions=2).selectExpr(user).write.format("delta").save(clicks)
    bench = Workbench(spark, tmp_path)

    @sf.pipeline("hot")
    def hot(flow: sf.Flow) -> None:
        source = flow.source("clicks", lambda spark: spark.readStream.format("delta").load(clicks), Click)
        keyed = source.key_by("user")
        counts = (
            keyed.aggregate("counts", Count, clicks=sf.count())
            if combines
            else keyed.process("counts", Counting)
        )
        counts.upsert("out", sf.delta(str(tmp_path / "out")), keys=["user"])

    with caplog.at_level(logging.WARNING):
        report = bench.run(hot, parallelism=2)
    told = [sentence for sentence in report.warnings if "one key has about" in sentence]
    noted = bench.reports[0].record.statistics
    [shown] = Job(str(tmp_path / "root"), "hot").status().operators
    assert shown.hot_key == noted["operators"]["counts"].get("hot_key", {})
    if combines:
        assert not told
        assert "hot_key" not in noted["operators"]["counts"]
        return
    assert 0.4 < noted["operators"]["counts"]["hot_key"]["share"] < 0.6
    assert len(told) == 1
    assert "operator 'counts': one key has about" in told[0]
    assert "the key is 'robot 17'" in caplog.text
    # Who has a key erased finds it in no record.
    kept = [
        path.read_bytes()
        for path in (tmp_path / "root").rglob("*")
        if path.is_file() and path.name.startswith("_")
    ]
    assert kept
    assert not any(b"the key is" in each for each in kept)
    assert "robot" not in str(noted) + str(report.warnings)
