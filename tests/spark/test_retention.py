"""Real runs by a retention, each of a single batch, with a clock that goes on 25 minutes from run to run."""

from __future__ import annotations

import sys
from operator import attrgetter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.spark import runner
from stateflow.spark.session.shipping import by_value
from tests.spark import pipelines, test_restore
from tests.spark.pipelines import VISIT, Visit, Workbench
from tests.spark.test_restore import Story

HOUR = 3_600_000_000
at = attrgetter("at")


@pytest.fixture
def story(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Story:
    by_value([pipelines, test_restore, sys.modules[__name__]])
    made = Story(Workbench(spark, tmp_path), tmp_path.name)
    runs = [0]
    real = runner._micros
    begin = real() // HOUR * HOUR
    monkeypatch.setattr(runner, "_micros", lambda: begin + runs[0] * 25 * 60_000_000)
    run = made.run

    def next_run(*arguments: object, **options: object) -> object:
        runs[0] += 1
        return run(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(made, "run", next_run)
    return made


@pytest.mark.slow
def test_runs_of_a_single_batch_keep_the_last_of_each_hour_and_one_of_them_is_gone_back_to(
    story: Story,
) -> None:
    pipeline = story.pipeline("first")
    by_rule = {"retained_checkpoints": 1, "retention": "all for 30 minutes, hourly for 2 days"}
    job = story.job("first")
    states = {}
    for batch in range(5):
        story.feed(range(batch, batch + 1))
        story.run(pipeline, **by_rule)
        states |= {record.slot: record for record in job.checkpoints()}
    log = job.log()
    last = {record.at // HOUR: slot for slot, record in sorted(states.items())}
    young = [
        slot for slot, record in states.items() if record.at > max(states.values(), key=at).at - HOUR // 2
    ]
    assert [each.slot for each in log.checkpoints] == sorted({*last.values(), *young})
    assert log.kept
    assert max(log.kept) < log.floor
    assert [finding.text for finding in job.verify(deep=True)] == []
    job.restore(f"checkpoint:{log.kept[0]}", pipeline, options=story.options(**by_rule)).apply()
    head = job.log().head
    assert head is not None
    assert head.operators["everything"].shards == states[log.kept[0]].operators["everything"].shards
    story.run(pipeline, **by_rule)
    assert [finding.text for finding in job.verify(deep=True)] == []


def test_runs_of_a_single_batch_let_go_of_what_is_older_than_the_age(story: Story) -> None:
    """Their only batch could not: when it is decided, nothing has been collected yet."""

    @sf.pipeline("plain")
    def plain(flow: sf.Flow) -> None:
        flow.source("visits", story.bench.source("visits", VISIT), Visit).collect(
            "all", sf.memory(story.name)
        )

    for batch in range(4):
        story.feed(range(batch, batch + 1))
        story.run(plain, retained_checkpoints=1, retained_age="30 minutes")
    assert story.job("plain").log().head is not None
    assert len(story.job("plain").checkpoints()) == 2
