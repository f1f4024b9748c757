"""Why a batch failed, when its run was taken over meanwhile; and a batch that comes when the run is to end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming import StreamingQuery

import stateflow as sf
from stateflow.checkpoint.control import INTERRUPTED
from stateflow.errors import FencedError, StateflowError, UnavailableError
from stateflow.spark.deliveries import cause
from stateflow.spark.loop import BatchLoop
from tests.jobs.made import MadeJob
from tests.refusals.refusal import refused
from tests.spark.pipelines import VISIT, Visit, Workbench, at

MISSING = StateflowError(
    "the batch failed: [Errno 2] No such file or directory: 'root/orders/staged/e1-c2-x.parquet'"
)


def test_a_batch_that_lost_its_files_to_a_newer_run_was_fenced(tmp_path: Path) -> None:
    zombie = MadeJob(tmp_path, run="zombie")
    zombie.batch()
    MadeJob(tmp_path, run="newer")
    told = cause(zombie.writer, MISSING)
    assert isinstance(told, FencedError)
    assert "taken over" in str(told)


def test_the_owners_failure_is_told_as_it_is(tmp_path: Path) -> None:
    job = MadeJob(tmp_path)
    job.batch()
    assert cause(job.writer, MISSING) is MISSING


def test_a_store_that_does_not_answer_hides_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = MadeJob(tmp_path)

    def away() -> None:
        raise UnavailableError("the store does not answer")

    monkeypatch.setattr(job.writer, "still_owner", away)
    assert cause(job.writer, MISSING) is MISSING


def test_a_run_told_to_stop_ends_well_also_when_the_next_batch_begins_first(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop is seen by the batch and not by the wait for the query, which looks five times a second."""
    for minute in range(6):
        bench.rows("visits", [Visit(1, "home", 1.0, at(minute))])

    @sf.pipeline("stopped")
    def stopped(flow: sf.Flow) -> None:
        visits = flow.source("visits", bench.source("visits", VISIT), Visit)
        visits.collect("out", sf.memory("stopped"))

    waits = StreamingQuery.awaitTermination
    monkeypatch.setattr(StreamingQuery, "awaitTermination", lambda query, _: waits(query, 120))
    report = bench.run(stopped, stop_after=1)
    assert (report.stopped, report.interrupted, report.batches) == (INTERRUPTED, True, 1)
    ended = bench.run(stopped)
    assert (ended.interrupted, ended.rows) == (False, 5)


def test_a_batch_that_fails_after_a_stop_was_asked_for_fails_the_run(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.rows("visits", [Visit(1, "home", 1.0, at(0))])

    @sf.pipeline("failing")
    def failing(flow: sf.Flow) -> None:
        visits = flow.source("visits", bench.source("visits", VISIT), Visit)
        visits.collect("out", sf.memory("failing"))

    def fails(loop: BatchLoop, *_: Any, **__: Any) -> None:
        loop.stop.set()
        time.sleep(1)  # the run sees the stop, and waits for the batch
        raise StateflowError("the disk is full")

    monkeypatch.setattr(BatchLoop, "_run_batch", fails)
    with refused(StateflowError, "the disk is full"):
        bench.run(failing)
