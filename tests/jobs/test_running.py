"""What is foreseen without Spark is what a run with Spark then comes to."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from demo.table import Orders
from stateflow.checkpoint.control import BOUND_BEHIND, BOUND_REACHED, INPUT_DRAINED, RunOutcome
from stateflow.jobs.job import Job
from stateflow.jobs.running import foreseen, run_loaded
from stateflow.pipelines.bounds import parse_bounds
from stateflow.pipelines.loading import load_pipeline
from tests.jobs.builder import options_of
from tests.jobs.made import ORDERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stateflow.spark.runner import RunReport

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


class Desk:
    """The orders example; its table gets a commit per hour after noon."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.orders = Orders(folder / "orders")
        self.job = Job(str(folder / "root"), "orders")
        self.parameters = {"input": str(folder / "orders"), "output": str(folder / "totals")}
        self.options = options_of(folder / "root", progress=False)

    def commit(self) -> None:
        version = len(list((self.folder / "orders" / "_delta_log").glob("*.json")))
        self.orders.add(1, 20)
        self.timed(version)

    def timed(self, version: int) -> None:
        at = (NOON + timedelta(hours=version)).timestamp()
        os.utime(self.folder / "orders" / "_delta_log" / f"{version:020d}.json", (at, at))

    def foresee(self, *until: str) -> RunOutcome | None:
        return foreseen(f"{ORDERS}:orders", self.job, self.parameters, options=self.options, until=until)

    def run(self, until: str = "") -> RunReport:
        loaded = load_pipeline(f"{ORDERS}:orders", self.folder)
        bound: Any = parse_bounds([until] if until else None)
        return run_loaded(loaded, self.job, self.parameters, options=self.options, until=bound)


@pytest.fixture
def desk(spark: SparkSession, tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def at(hours: float) -> str:
    return str(NOON + timedelta(hours=hours))


@pytest.mark.slow
def test_what_is_foreseen_is_what_a_run_comes_to(desk: Desk, spark: SparkSession) -> None:
    desk.commit()
    young = desk.foresee(at(-1))
    assert young is not None
    report = desk.run(at(-1))
    assert (report.batches, report.checkpoint, report.stopped) == (0, None, BOUND_REACHED)
    assert young == RunOutcome(stopped=BOUND_REACHED)

    assert desk.foresee() is None
    assert desk.foresee(at(0)) is None
    assert desk.run().rows == 20
    for _ in range(2):
        desk.commit()
    assert desk.foresee() is None
    assert desk.run(at(1.5)).rows == 20

    for until, stopped in ((at(1.5), BOUND_REACHED), (at(1), BOUND_REACHED), (at(0.5), BOUND_BEHIND), (at(-1), BOUND_BEHIND),
                           ("1", BOUND_REACHED), ("0", BOUND_BEHIND)):  # fmt: skip
        outcome = desk.foresee(until)
        assert outcome is not None, until
        assert (outcome.stopped, outcome.batches) == (stopped, 0), until
    for until in (at(0.5), at(1)):
        assert desk.run(until).stopped == getattr(desk.foresee(until), "stopped", None)
    assert desk.foresee(at(2)) is None

    assert desk.run().rows == 20
    outcome = desk.foresee()
    assert outcome is not None
    head = desk.job.log().head
    assert head is not None
    assert (outcome.stopped, outcome.checkpoint) == (INPUT_DRAINED, head.slot)

    # A run refuses a bound of a source that is not there.
    [uid] = head.sources
    assert desk.foresee(f"{uid}=0") is not None
    assert desk.foresee(f"{uid}=0", "other=0") is None

    # Delta rewrites files without new rows, and then deletes some, which only a run may judge.
    spark.sql(f"optimize delta.`{desk.folder / 'orders'}`")
    assert desk.foresee() is not None
    assert desk.run().rows == 0
    spark.sql(f"delete from delta.`{desk.folder / 'orders'}` where user >= 0")
    assert desk.foresee() is None
