"""What operators do with Spark in a task's own process: typed savepoints, outputs taken back, output that is pending."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from demo.table import Orders, compared, read
from stateflow.airflow import (
    InProcess,
    StateflowReplayOperator,
    StateflowRescaleOperator,
    StateflowRestoreOperator,
    StateflowSavepointOperator,
    StateflowStopOperator,
)
from stateflow.airflow.connections.stateflow import StateflowHook
from stateflow.checkpoint.pins import list_pins
from stateflow.errors import StateflowError
from stateflow.jobs.job import Job
from stateflow.jobs.running import run_loaded
from stateflow.pipelines.loading import load_pipeline
from stateflow.restore.planned import RestorePlan
from stateflow.savepoints.format import verify_savepoint
from stateflow.storage.roots import open_store
from tests.airflow.conftest import Connect
from tests.airflow.tasks import Try, ran
from tests.jobs.files import files_of
from tests.jobs.made import ORDERS, REPOSITORY
from tests.refusals.refusal import refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE = f"{ORDERS}:orders"
SUMS = f"{Path(__file__).parent / 'dags' / 'sums.py'}:sums"


class Desk:
    """The orders example in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.orders = Orders(folder / "orders")
        self.job = Job(str(self.root), "orders")
        self.parameters = {"input": str(folder / "orders"), "output": str(folder / "totals")}

    def run(self, files: int = 2) -> None:
        self.orders.add(files, 50)
        options = StateflowHook().options(retained_checkpoints=20, progress=False)
        run_loaded(load_pipeline(PIPELINE, self.folder, "1a2b"), self.job, self.parameters, options=options)

    @property
    def totals(self) -> list[str]:
        return sorted(map(str, read(self.folder / "totals")))

    @property
    def right(self) -> bool:
        return compared(self.folder / "orders", self.folder / "totals").right


@pytest.fixture
def desk(spark: SparkSession, tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_HERE", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    connect(
        tmp_path / "root",
        options={"cache_dir": str(tmp_path / "cache"), "scratch_dir": str(tmp_path / "scratch")},
    )
    made = Desk(tmp_path)
    made.run()
    return made


def the_table_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def commit(*arguments: Any) -> Any:
        raise StateflowError("the table is away")

    monkeypatch.setattr("stateflow.spark.carry_out.commit", commit)


@pytest.mark.slow
def test_outputs_go_back_with_the_state_once_for_all_tries(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    early, totals = desk.job.checkpoints()[-1].slot, desk.totals
    assert desk.job.checkpoints()[-1].versions["revision"] == "1a2b", "which code made it"
    desk.run()
    assert desk.totals != totals
    restore = {
        "pipeline": PIPELINE,
        "origin": f"checkpoint:{early}",
        "rewind_sinks": True,
        "spark_conn_id": "spark_here",
    }
    with monkeypatch.context() as cut_off:
        the_table_is_away(cut_off)
        with pytest.raises(AirflowException, match=r"^the table is away$") as failed:
            ran(StateflowRestoreOperator, Try("it"), **restore)
    assert not isinstance(failed.value, AirflowFailException)
    [pending] = desk.job.log().pending
    assert pending.kind == "restore"
    told = ran(StateflowRestoreOperator, Try("it", try_number=2), **restore)
    assert told["record"] == pending.slot
    assert desk.totals == totals
    assert desk.job.log().pending == ()
    desk.run()
    assert desk.right


class Reading(Desk):
    """With a job that sums what the orders job puts out."""

    def read(self) -> None:
        options = StateflowHook().options(retained_checkpoints=20, progress=False)
        parameters = {"input": str(self.folder / "totals"), "output": str(self.folder / "sums")}
        loaded = load_pipeline(SUMS, self.folder)
        run_loaded(loaded, self.job.beside("sums"), parameters, options=options)

    @property
    def sums(self) -> list[str]:
        return sorted(map(str, read(self.folder / "sums")))


@pytest.mark.slow
def test_whoever_has_read_it_goes_back_too_by_one_approval_and_once_for_all_tries(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = Reading(desk.folder)
    reading.read()
    early, sound = reading.job.checkpoints()[-1].slot, (reading.totals, reading.sums)
    reading.run()
    reading.read()
    forward = reading.totals, reading.sums
    restore = {
        "pipeline": PIPELINE, "origin": f"checkpoint:{early}", "rewind_sinks": "true", "with_readers": "true",
        "readers": {"sums": "{{ params.sums }}", "broken": "/nowhere/broken.py:broken"}, "params": {"sums": SUMS},
        "spark_conn_id": "spark_here",
    }  # fmt: skip
    plan = ran(StateflowRestoreOperator, dry_run=True, **restore)
    assert plan["plan"].startswith(
        "**Restore job `orders` together with the jobs that have read what this undoes**"
    )
    assert [each["job"] for each in plan["document"]["with_readers"]] == ["sums"]
    with refused(AirflowFailException, "'sums' have read", "an operator takes `readers`"):
        ran(StateflowRestoreOperator, **{**restore, "readers": {}})
    with refused(AirflowFailException, "give that, too"):
        ran(StateflowRestoreOperator, **{**restore, "rewind_sinks": False})

    # A reader that has gone on would go back from elsewhere: that is another plan.
    alone = ran(StateflowRestoreOperator, dry_run=True, **{**restore, "with_readers": False})
    with pytest.raises(AirflowFailException, match="is not the one that was approved any more"):
        ran(StateflowRestoreOperator, approved=alone["digest"], **restore)
    assert (reading.totals, reading.sums) == forward

    applied = RestorePlan.apply

    def dies(self: RestorePlan, *args: Any) -> Any:
        if self.request.job.name == "orders":
            raise StateflowError("the worker is gone")
        return applied(self, *args)

    with monkeypatch.context() as cut_off:
        cut_off.setattr(RestorePlan, "apply", dies)
        with refused(AirflowException, "the worker is gone"):
            ran(StateflowRestoreOperator, Try("it"), approved=plan["digest"], **restore)
    assert (reading.totals, reading.sums) == (forward[0], sound[1]), "the reader has gone back first"
    told = ran(StateflowRestoreOperator, Try("it", try_number=2), approved=plan["digest"], **restore)
    assert (reading.totals, reading.sums) == sound
    assert told["digest"] == plan["digest"]
    assert [r.kind for r in reading.job.beside("sums").log().chain].count("restore") == 1
    again = ran(StateflowRestoreOperator, Try("it", try_number=3), approved=plan["digest"], **restore)
    assert again["record"] == told["record"]
    reading.run(0)
    reading.read()
    assert (reading.totals, reading.sums) == forward


@pytest.mark.slow
def test_output_that_a_run_left_pending_is_delivered_before_a_job_changes(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as cut_off:
        the_table_is_away(cut_off)
        with pytest.raises(StateflowError):
            desk.run()
    [pending] = desk.job.log().pending
    told = ran(StateflowStopOperator, savepoint=True, spark_conn_id="spark_here")
    assert (told["checkpoint"], desk.job.log().pending) == (pending.slot, ())
    assert ran(StateflowRescaleOperator, parallelism=1, spark_conn_id="spark_here")["record"] > pending.slot
    desk.run()
    assert desk.right


@pytest.mark.slow
def test_a_typed_savepoint_is_made_and_restored_into_another_job(desk: Desk) -> None:
    made = ran(StateflowSavepointOperator, kind="canonical", spark_conn_id="spark_here")
    assert made["kind"] == "canonical"
    assert verify_savepoint(open_store(made["savepoint"]), deep=True) == []
    told = ran(
        StateflowRestoreOperator,
        job="copy",
        pipeline=PIPELINE,
        origin=made["savepoint"],
        parameters={"output": str(desk.folder / "copied")},
    )
    assert told["document"]["new_job"]
    assert [f for f in Job(str(desk.root), "copy").verify(deep=True) if f.severity == "error"] == []


IN_A_PROCESS = """
import json, os, signal, sys
from pathlib import Path
from airflow.sdk.exceptions import AirflowException
from pyspark import SparkContext
from stateflow.airflow import StateflowSavepointOperator
from tests.airflow.tasks import Try, airflow_signals, context_of, task
from tests.jobs.files import files_of

for way in ("killed", "to its end"):
    operator = task(StateflowSavepointOperator, kind="canonical", spark_conn_id="spark_here")
    if way == "killed":
        operator.progress = lambda: lambda *progress: os.kill(os.getpid(), signal.SIGTERM)
    with airflow_signals(operator):
        try:
            said = operator.execute(context_of(Try("it")))["savepoint"]
        except AirflowException as error:
            said = str(error)
    spark = SparkContext._active_spark_context is not None
    print(json.dumps({"said": said, "spark": spark, "files": sorted(files_of(Path(sys.argv[1])))}))
"""


@pytest.mark.system
def test_tasks_of_their_own_end_with_their_spark_killed_or_not(desk: Desk) -> None:
    before = files_of(desk.root)
    done = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS, str(desk.root)], cwd=REPOSITORY, env=dict(os.environ), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    killed, ended = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert "py4j" not in done.stdout
    assert not killed["spark"]
    assert not ended["spark"]
    assert list_pins(desk.job.store, desk.job.layout) == []
    assert killed["said"].startswith("task 'it' was killed")
    assert set(killed["files"]) == before
    assert verify_savepoint(open_store(ended["said"]), deep=True) == []


@pytest.mark.slow
def test_a_shadow_of_the_same_code_differs_in_nothing_and_one_of_other_code_in_its_own(
    desk: Desk, tmp_path: Path
) -> None:
    desk.run()
    before, totals = files_of(desk.root), desk.totals
    shadow = {"launcher": InProcess(), "spark_conn_id": "spark_here", "job": "orders", "batches": 50}
    same = ran(StateflowReplayOperator, Try("same"), pipeline=PIPELINE, max_changed=0, **shadow)
    batches = len(desk.job.checkpoints())
    assert (same["same"], same["batches"], same["changes"]) == (True, batches, [])
    assert same["notes"] == [f"{batches} batches instead of 50 can be run again: job 'orders' has no more"]
    assert same["sinks"]["totals"]["before"] == same["sinks"]["totals"]["after"] > 0

    wrong = tmp_path / "wrong.py"
    text = ORDERS.read_text()
    assert "self.total.value += row.amount" in text
    wrong.write_text(text.replace("self.total.value += row.amount", "self.total.value += row.amount * 2"))
    attempt = Try("other")
    with pytest.raises(
        AirflowFailException, match=r"of sink 'totals' would be others, and max_changed=0.01 lets"
    ):
        ran(StateflowReplayOperator, attempt, pipeline=f"{wrong}:orders", max_changed=0.01, **shadow)
    found = attempt.pushed["differences"]
    assert found["sinks"]["totals"]["different"] > 0
    first = found["changes"][0]
    assert first["after"]["total"] == pytest.approx(first["before"]["total"] * 2)

    assert desk.totals == totals, "nothing was published"
    kept = {f"orders/replays/{each['replay']}" for each in (same, found)}
    assert files_of(desk.root) - before == kept, "the fork is gone"
    assert desk.job.verify(deep=True) == []
    desk.job.collect(retained=1)
    assert kept <= files_of(desk.root)
