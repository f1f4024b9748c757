"""Runs beside which another one begins while Spark starts, when nobody could see it yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

import stateflow as sf
from stateflow.checkpoint.claim import claim_epoch
from stateflow.checkpoint.control import Heartbeat, beat
from stateflow.checkpoint.log import read_epochs
from stateflow.errors import BusyError
from stateflow.format.layout import JobLayout
from stateflow.format.records import Owner
from stateflow.spark.carry_out import Sinks
from stateflow.storage.roots import open_store
from tests.refusals.refusal import refused
from tests.spark.pipelines import Workbench

LAYOUT = JobLayout("copies")
OTHER = Owner(run="other", host="elsewhere", pid=1)


@pytest.fixture
def copies(bench: Workbench) -> sf.Pipeline:
    @sf.pipeline("copies")
    def copies(flow: sf.Flow) -> None:
        rows = flow.source("rows", bench.source("rows", "id long"), "id long")
        rows.append("copies", sf.delta(str(bench.folder / "copies")))

    bench.rows("rows", [{"id": 1}])
    return copies


@pytest.fixture
def beside(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], None]], None]:
    """Has something done to the job's store while Spark is there, and the job is not claimed."""

    def arrange(act: Callable[[Any], None]) -> None:
        def opened(*args: Any) -> Sinks:
            """The last thing that a run makes before it claims."""
            act(open_store(str(bench.folder / "root")))
            return Sinks(*args)

        monkeypatch.setattr("stateflow.spark.runner.Sinks", opened)

    return arrange


def _now() -> int:
    return time.time_ns() // 1000


def claimed(store: Any) -> None:
    claim_epoch(store, LAYOUT, owner=OTHER, ids=lambda: uuid4().hex, clock=_now)


def test_a_run_that_has_just_begun_and_shows_no_sign_of_life_yet_is_left_alone(
    bench: Workbench, copies: sf.Pipeline, beside: Callable[[Callable[[Any], None]], None]
) -> None:
    seen = threading.Event()

    def live(store: Any) -> None:
        for counter in range(1, 100):
            if seen.wait(0.5):
                return
            beat(store, LAYOUT, Heartbeat(epoch=1, counter=counter, owner=OTHER, at=_now()))

    def begin(store: Any) -> None:
        claimed(store)
        threading.Thread(target=live, args=(store,), daemon=True).start()

    beside(begin)
    with refused(BusyError, "'copies'", "elsewhere"):
        bench.run(copies)
    seen.set()
    assert read_epochs(open_store(str(bench.folder / "root")), LAYOUT) == (1,)


def test_a_command_that_claims_the_job_for_a_moment_holds_no_run_up(
    bench: Workbench, copies: sf.Pipeline, beside: Callable[[Callable[[Any], None]], None]
) -> None:
    beside(claimed)
    assert bench.run(copies).rows == 1
