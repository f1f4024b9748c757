"""The run operator without Spark: what it sends, what it does about earlier tries, what it tells."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from airflow.sdk import DAG, Asset
from airflow.sdk.api.datamodels._generated import TaskInstanceState
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred

from stateflow.airflow import (
    InProcess,
    Kubernetes,
    SparkSubmit,
    StateflowRestoreOperator,
    StateflowRunOperator,
    WarmHost,
    checkpoint_asset,
)
from stateflow.airflow.operators.upgrades import pipeline_variable
from stateflow.airflow.triggers.run import StateflowRunTrigger
from stateflow.checkpoint import scheduled
from stateflow.checkpoint.control import Heartbeat, RunOutcome, beat, stop_requested
from stateflow.checkpoint.log import read_log
from stateflow.driver.processes import ProcessStatus
from stateflow.driver.run_spec import RunSpec
from stateflow.format.layout import JobLayout
from stateflow.format.records import Owner
from stateflow.jobs.job import Job
from stateflow.pipelines.loading import load_pipeline
from stateflow.storage.roots import open_store
from tests.airflow.conftest import Connect
from tests.airflow.runner import Supervisor, run_task, supervised
from tests.airflow.task_state import TaskState
from tests.airflow.tasks import fired
from tests.jobs.made import ORDERS, PARAMETERS, MadeJob
from tests.refusals.refusal import refused


@dataclass
class FakeTask:
    dag_id: str = "orders_dag"
    run_id: str = "scheduled__2026-01-01"
    task_id: str = "run"
    map_index: int = -1
    clears: int = 0
    max_tries: int = 0
    id: UUID = field(default_factory=uuid4)
    pushed: dict[str, Any] = field(default_factory=dict)

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


@dataclass
class Done:
    """A driver that has done its work."""

    code: int = 0
    words: tuple[str, ...] = ()
    stopped: list[float] = field(default_factory=list)
    name: str = ""
    submitting: bool = False

    def look(self) -> ProcessStatus:
        return ProcessStatus(False, self.code)

    def output(self) -> list[str]:
        return []

    def last_words(self) -> list[str]:
        return list(self.words)

    def stop(self, grace: float) -> None:
        self.stopped.append(grace)


@dataclass
class Method:
    """A way to launch that works on the job's log itself."""

    root: Path
    work: Callable[[MadeJob], object] = lambda job: job.batch()
    detached: bool = True
    fails: Done | None = None
    batches: int = 1
    specs: list[RunSpec] = field(default_factory=list)

    def __deepcopy__(self, memo: object) -> Method:
        """A task renders a copy of its launcher. Here the test looks at what that one was asked."""
        return self

    def bound(self, spark_conn_id: str) -> Method:
        return self

    def find(self, spec: RunSpec) -> None:
        return None

    def launch(self, spec: RunSpec) -> Done:
        self.specs.append(spec)
        if self.fails:
            return self.fails
        job = MadeJob(self.root, spec.job, run=f"run-{len(self.specs)}")
        before = job.writer.parent.slot if job.writer.parent else None
        self.work(job)
        head = job.writer.parent.slot if job.writer.parent else None
        owner = Owner("r", dag_run=spec.dag_run, task=spec.task)
        outcome = RunOutcome(batches=self.batches, rows=5, checkpoint=head, stopped=f"from {before}")
        job.beat(9, owner=owner, ended=True, outcome=outcome)
        return Done()


@pytest.fixture
def method(tmp_path: Path, connect: Connect) -> Method:
    connect(tmp_path / "root")
    return Method(tmp_path / "root")


def operator(method: Method, **arguments: Any) -> StateflowRunOperator:
    arguments = {"pipeline": f"{ORDERS}:orders", "parameters": PARAMETERS, "launcher": method, **arguments}
    return StateflowRunOperator(task_id="run", **arguments)


def context(task: FakeTask | None = None, **more: Any) -> Any:
    ti = task or FakeTask()
    return {
        "ti": ti,
        "dag_run": SimpleNamespace(triggering_user_name="ada", clear_number=ti.clears),
        "task_state_store": TaskState(ti.dag_id, ti.run_id, ti.task_id, ti.map_index),
        "dag": SimpleNamespace(folder="/dags"),
        "var": {"value": {}},
        **more,
    }


def cleared(run_id: str = FakeTask.run_id) -> Any:
    """Of a task that somebody has cleared."""
    return context(FakeTask(run_id=run_id, clears=1))


def test_a_run_tells_what_it_came_to(method: Method) -> None:
    task = FakeTask()
    result = operator(method).execute(context(task))
    assert (result["job"], result["checkpoint"], result["batches"], result["rows"]) == ("orders", 2, 1, 5)
    assert result["root"] == str(method.root)
    assert result["dag_run"] == "orders_dag/scheduled__2026-01-01"
    assert set(result["offsets"]) == {"events"}
    assert task.pushed["stateflow"] == {"conn_id": "stateflow_default", "job": "orders", "checkpoint": 2}
    json.dumps(result)


def test_what_is_asked_for_reaches_the_driver(method: Method) -> None:
    operator(
        method, until="2026-01-02", parallelism="3", trigger="drain", options={"local_fsync": False}, conf={"spark.x": 1},
        note="why", final=True,
    ).execute(context())  # fmt: skip
    spec = method.specs[0]
    assert spec.pipeline == f"{ORDERS}:orders"
    assert (spec.dag_run, spec.task) == ("orders_dag/scheduled__2026-01-01", "run")
    assert spec.options == {"local_fsync": "false"}
    assert (spec.until, spec.parallelism, spec.trigger, spec.note, spec.final) == (
        "2026-01-02", 3, "drain", "why", True,
    )  # fmt: skip
    assert spec.conf == {"spark.x": "1"}
    assert spec.user == "ada"
    assert spec.environment["STATEFLOW_CHECKPOINT_DIR"] == str(method.root)


def test_a_run_behind_a_restore_goes_on_with_all_parameters_that_the_restore_took(
    method: Method, tmp_path: Path
) -> None:
    file = tmp_path / "priced.py"
    signature = "input: str, output: str"
    file.write_text(
        ORDERS.read_text().replace(signature, f"{signature}, factor: int = 1, api_token: str = ''")
    )
    priced = f"{file}:orders"
    MadeJob(method.root, "orders").batch()
    taken = {"factor": 3, "api_token": "hidden"}
    own = Job(str(method.root), "orders").restore("latest", load_pipeline(priced, tmp_path).pipeline, taken)
    own.apply()
    other = {"output": "/data/again", "input": None}
    forked = StateflowRestoreOperator(
        task_id="fork", job="again", from_job="orders", origin="latest", pipeline=priced, parameters=other
    )
    forked.execute(context())
    behind = {"pipeline": priced, "job": "again", "parameters": other}

    operator(method, **behind, recorded_parameters="true").execute(context())
    spec = method.specs[-1]
    texts = {"input": "/data/orders", "output": "/data/again", "factor": "3", "api_token": "hidden"}
    assert spec.parameters == texts
    assert "hidden" not in str(spec.arguments())
    operator(method, **behind).execute(context(FakeTask(run_id="two")))
    assert method.specs[-1].parameters == {"output": "/data/again"}, "a usual run has its own"
    # Another version of the pipeline need not take what the record has.
    operator(method, **{**behind, "pipeline": f"{ORDERS}:orders"}, recorded_parameters=True).execute(
        context(FakeTask(run_id="three"))
    )
    assert method.specs[-1].parameters == {"input": "/data/orders", "output": "/data/again"}


def test_a_relative_pipeline_lies_beside_the_dag(method: Method) -> None:
    operator(method, pipeline="orders.py:orders").execute(context())
    assert method.specs[0].pipeline == "/dags/orders.py:orders"


def switched(pipeline: str, run_id: str = FakeTask.run_id) -> Any:
    """Of a task whose job an upgrade has switched to this pipeline."""
    variable = pipeline_variable("stateflow_default", "orders")
    return context(FakeTask(run_id=run_id), var={"value": {variable: pipeline}})


def test_a_task_that_names_another_file_than_an_upgrade_has_switched_to_runs_nothing(method: Method) -> None:
    made = operator(method)
    with refused(
        AirflowFailException, "task 'run'", f"{ORDERS}:orders", "/new.py:orders", "'stateflow_pipeline:stateflow_default:orders'",
        "pipeline=pipeline_template(...)", "delete the Variable", "any_version=True",
    ):  # fmt: skip
        made.execute(switched("/new.py:orders"))
    assert method.specs == []
    # The three ways that it names.
    made.execute(switched(f"{ORDERS}:orders"))
    operator(method, any_version="true").execute(switched("/new.py:orders", "two"))
    made.execute(context(FakeTask(run_id="three")))
    assert len(method.specs) == 3
    # A task that has ended well before the upgrade tells so.
    made.execute(switched("/new.py:orders"))
    assert len(method.specs) == 3


def test_an_upgrade_of_a_job_of_the_same_name_in_another_root_is_of_no_concern(
    tmp_path: Path, connect: Connect
) -> None:
    connect(tmp_path / "root")
    connect(tmp_path / "lake", "lake")
    method = Method(tmp_path / "lake")
    operator(method, stateflow_conn_id="lake").execute(switched("/new.py:orders"))
    operator(method, checkpoint_dir=str(method.root)).execute(switched("/new.py:orders", "two"))
    assert len(method.specs) == 2


@pytest.mark.parametrize(
    ("pipeline", "named", "same"),
    [
        ("orders.py:orders", "/dags/orders.py:orders", True),
        ("/dags/orders.py:orders", "orders.py:orders", True),
        ("/dags/../dags/orders.py:orders", "/dags/orders.py:orders", True),
        ("/dags/orders.py", "/dags/orders.py:orders", True),
        ("/dags/orders.py:orders", "/dags/orders.py:other", False),
        ("/dags/orders.py:orders", "/dags/2/orders.py:orders", False),
        ("/dags/orders.py:orders", "", True),
    ],
)
def test_one_pipeline_may_be_written_in_several_ways(
    method: Method, pipeline: str, named: str, same: bool
) -> None:
    made = operator(method, pipeline=pipeline, job="orders")
    if not same:
        with refused(AirflowFailException, named):
            made.execute(switched(named))
    else:
        made.execute(switched(named))
    assert len(method.specs) == same


@pytest.mark.parametrize("on_rerun", ["skip", "rewind"])
def test_what_a_job_has_forgotten_of_a_dag_run_that_is_cleared_is_not_made_up(
    method: Method, monkeypatch: pytest.MonkeyPatch, on_rerun: str
) -> None:
    for run_id in ("one", "two"):
        operator(method).execute(context(FakeTask(run_id=run_id)))
    monkeypatch.setattr(scheduled, "MOST_MARKS", 1)
    Job(str(method.root), "orders").collect(retained=50)
    for _ in range(2):  # also when it is cleared once more
        with refused(AirflowFailException, "orders_dag/one", f"on_rerun={on_rerun!r}", "on_rerun='go_on'"):
            operator(method, on_rerun=on_rerun).execute(cleared("one"))
    assert operator(method, on_rerun="skip").execute(cleared("two"))["stopped"] == "from 2"
    assert len(method.specs) == 2
    operator(method, on_rerun=on_rerun).execute(context(FakeTask(run_id="three")))
    operator(method).execute(cleared("one"))
    assert len(method.specs) == 4


def test_a_run_in_the_task_s_own_process_is_of_who_triggered_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners: list[Owner] = []
    monkeypatch.setattr(
        "stateflow.jobs.running.run_loaded", lambda *_, owner, **request: owners.append(owner)
    )
    monkeypatch.setattr("stateflow.airflow.launchers.in_process.spark_master", lambda _: ("local[1]", {}))
    root = {"STATEFLOW_CHECKPOINT_DIR": str(tmp_path / "root")}
    spec = RunSpec(f"{ORDERS}:orders", "orders", "dag/1", "run", PARAMETERS, user="ann", environment=root)
    driver = InProcess().bound("spark_here").launch(spec)
    assert isinstance(driver, threading.Thread)
    driver.join(60)
    assert [owner.user for owner in owners] == ["ann"]


def test_a_scheduled_run_names_nobody_to_its_driver(method: Method) -> None:
    operator(method).execute(context() | {"dag_run": SimpleNamespace(clear_number=0)})
    assert method.specs[0].user == ""


def test_a_mapped_task_is_a_task_of_its_own(method: Method) -> None:
    operator(method).execute(context(FakeTask(map_index=2)))
    assert method.specs[0].task == "run[2]"


def test_events_of_assets_carry_the_checkpoint(method: Method) -> None:
    asset = checkpoint_asset("orders")
    events: dict[Asset, Any] = {asset: SimpleNamespace(extra={})}
    operator(method, outlets=[asset]).execute(context(outlet_events=events))
    assert events[asset].extra["checkpoint"] == 2


@pytest.mark.parametrize(
    ("code", "kind"), [(2, AirflowFailException), (4, AirflowFailException), (5, AirflowFailException),
                       (7, AirflowFailException), (1, AirflowException), (9, AirflowException)]
)  # fmt: skip
def test_a_failure_is_one_sentence_and_only_some_are_tried_again(
    method: Method, code: int, kind: type[Exception]
) -> None:
    method.fails = Done(code, ("noise", "stateflow: the table is not where the log says"))
    with pytest.raises(AirflowException, match=r"^the table is not where the log says$") as caught:
        operator(method).execute(context())
    assert type(caught.value) is kind


def test_a_killed_driver_is_tried_again(method: Method) -> None:
    method.fails = Done(-9)
    with refused(AirflowException, "killed") as caught:
        operator(method).execute(context())
    assert type(caught.value) is AirflowException


def test_a_retry_of_a_failed_run_just_goes_on(method: Method) -> None:
    method.fails = Done(1, ("stateflow: lost",))
    with pytest.raises(AirflowException):
        operator(method, on_rerun="skip").execute(context())
    method.fails = None
    assert operator(method, on_rerun="skip").execute(context())["checkpoint"] == 2
    assert len(method.specs) == 2


def test_a_cleared_run_goes_on_by_default(method: Method) -> None:
    first = operator(method).execute(context())["checkpoint"]
    assert operator(method).execute(cleared())["checkpoint"] > first


def test_a_retry_of_a_run_that_ended_well_tells_of_it_and_does_nothing(
    method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(BaseException):
        pass

    def died(*_: object) -> None:
        raise Died

    with monkeypatch.context() as dying:
        dying.setattr(StateflowRunOperator, "_report", died)
        with pytest.raises(Died):
            operator(method).execute(context())
    for on_rerun in ("go_on", "skip", "rewind"):
        assert operator(method, on_rerun=on_rerun).execute(context())["rows"] == 5
    assert len(method.specs) == 1


def test_a_cleared_run_can_be_skipped_and_tells_what_it_told_before(method: Method) -> None:
    first = operator(method, on_rerun="skip").execute(context())
    again = operator(method, on_rerun="skip").execute(cleared())
    assert len(method.specs) == 1
    assert again == first
    operator(method, on_rerun="skip").execute(context(FakeTask(run_id="scheduled__2026-01-02")))
    assert len(method.specs) == 2


def moved_on(method: Method, *, collected: bool) -> None:
    """Another run of the job, after which the checkpoints before it may be `collected`."""
    other = MadeJob(method.root, "orders", run="another", retained=1)
    other.batches(2, ended=True)
    if collected:
        for _ in range(2):
            other.writer.collect(1, orphans=False)
    kept = [record.slot for record in other.opened().checkpoints()]
    assert (2 not in kept) is collected


@pytest.mark.parametrize("collected", [False, True])
def test_what_others_have_done_since_is_not_told_of_a_run_that_is_skipped_or_tried_again(
    method: Method, collected: bool
) -> None:
    first = operator(method).execute(context(FakeTask(run_id="one")))
    moved_on(method, collected=collected)
    assert first["offsets"]
    assert operator(method).execute(context(FakeTask(run_id="one"))) == first
    assert operator(method, on_rerun="skip").execute(cleared("one")) == first
    assert len(method.specs) == 1


def test_a_run_without_rows_is_skipped_as_one_without_rows_whatever_others_have_delivered(
    method: Method,
) -> None:
    operator(method).execute(context(FakeTask(run_id="one")))
    method.work, method.batches = lambda job: None, 0
    nothing = operator(method).execute(context(FakeTask(run_id="two")))
    method.work, method.batches = Method.work, 1
    operator(method).execute(context(FakeTask(run_id="three")))
    assert nothing["empty"]
    assert operator(method, on_rerun="skip").execute(cleared("two")) == nothing


@pytest.mark.parametrize("collected", [False, True])
def test_of_a_mark_that_does_not_say_what_was_told_the_checkpoint_itself_is_asked(
    method: Method, collected: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Marks of versions before this one."""
    first = operator(method).execute(context(FakeTask(run_id="one")))
    moved_on(method, collected=collected)
    store, layout = open_store(str(method.root)), JobLayout("orders")
    mark = scheduled.find(store, layout, "orders_dag/one", "run")
    assert mark is not None
    assert mark.ended is not None
    scheduled.finish(store, layout, mark, mark.ended, mark.ended_by, lambda: 1)
    again = operator(method, on_rerun="skip").execute(cleared("one"))
    assert again == (first | {"offsets": {}} if collected else first)
    assert ("checkpoint 2 has been collected" in capsys.readouterr().out) is collected


def test_the_mark_of_a_dag_run_keeps_where_it_began(method: Method) -> None:
    operator(method).execute(context(FakeTask(run_id="one")))
    operator(method).execute(context(FakeTask(run_id="two")))
    operator(method).execute(context(FakeTask(run_id="two")))
    store, layout = open_store(str(method.root)), JobLayout("orders")
    marks = [scheduled.find(store, layout, f"orders_dag/{run}", "run") for run in ("one", "two")]
    assert [mark.began_from for mark in marks if mark] == [None, 2]
    assert all(mark and mark.ended for mark in marks)


def test_nothing_to_rewind_to_is_said_before_anything_is_touched(method: Method) -> None:
    operator(method).execute(context())
    with pytest.raises(
        AirflowFailException, match="had no checkpoint when orders_dag/scheduled__2026-01-01 began"
    ):
        operator(method, on_rerun="rewind").execute(cleared())
    assert len(method.specs) == 1


@pytest.mark.parametrize(
    ("place", "master"),
    [
        ({"host": "local[1]"}, {"spark.master": "local[1]"}),
        ({"host": "yarn", "extra": {"deploy-mode": "cluster"}}, {}),  # on this worker
    ],
)
def test_a_rerun_that_rewinds_begins_where_its_dag_run_began(
    method: Method, place: dict[str, Any], master: dict[str, str]
) -> None:
    method.work = lambda job: (job.batch(), job.batch())
    operator(method).execute(context(FakeTask(run_id="one")))
    two = FakeTask(run_id="two")
    operator(method).execute(context(two))
    plans: list[dict[str, Any]] = []

    class Plan:
        def apply(self, progress: object) -> None:
            plans[-1]["applied"] = True

    def restore(self: Any, origin: str, *_: Any, **request: Any) -> Plan:
        plans.append({"origin": origin, **request})
        return Plan()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", **place}))
        patch.setattr("stateflow.jobs.job.Job.restore", restore)
        operator(method, on_rerun="rewind", allow_non_restored_state=True, conf={"spark.x": 1}).execute(
            cleared(run_id="two")
        )
    assert (plans[0]["conf"], plans[0]["allow_non_restored_state"]) == ({"spark.x": "1", **master}, True)
    assert [plan["origin"] for plan in plans] == ["checkpoint:3"]
    assert plans[0]["rewind_sinks"]
    assert plans[0]["applied"]


def test_a_try_that_died_after_its_rewind_is_followed_by_one_that_does_not_rewind_again(
    method: Method,
) -> None:
    """What the driver did since must not be undone; only the tables are left out, which would take Spark."""
    method.work = lambda job: (job.batch(), job.batch())
    operator(method).execute(context(FakeTask(run_id="one")))
    operator(method).execute(context(FakeTask(run_id="two")))
    restore, origins = Job.restore, list[str]()

    def without_tables(job: Job, origin: str, *rest: Any, **request: Any) -> Any:
        origins.append(origin)
        return restore(job, origin, *rest, **{**request, "rewind_sinks": False})

    def died(*_: object) -> None:
        raise AirflowException("the worker is gone")

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
        patch.setattr(Job, "restore", without_tables)
        with patch.context() as dying:
            dying.setattr(scheduled, "reopen", died)
            with refused(AirflowException, "gone"):
                operator(method, on_rerun="rewind", parameters=PARAMETERS).execute(cleared(run_id="two"))
        operator(method, on_rerun="rewind", parameters=PARAMETERS).execute(cleared(run_id="two"))
    assert origins == ["checkpoint:3"]
    assert len(method.specs) == 3


def test_a_later_dag_run_goes_on_from_what_an_earlier_one_has_made_anew(
    method: Method, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own checkpoint has the state from before the earlier one was run again. Only the tables are left out, which would take Spark."""
    for run in ("one", "two", "three"):
        operator(method).execute(context(FakeTask(run_id=run)))
    restore, origins = Job.restore, list[str]()

    def without_tables(job: Job, origin: str, *rest: Any, **request: Any) -> Any:
        origins.append(origin)
        return restore(job, origin, *rest, **{**request, "rewind_sinks": False})

    def again(run: str, clears: int) -> str:
        of_task = FakeTask(run_id=run, clears=clears)
        told = operator(method, on_rerun="rewind", parameters=PARAMETERS).execute(context(of_task))
        return str(told["stopped"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
        patch.setattr(Job, "restore", without_tables)
        again("two", 1)
        anew = scheduled_head(method)
        assert again("three", 1) == f"from {anew}"
        assert origins == ["checkpoint:2"]
        assert "job orders has gone back since: it goes on from the newest" in capsys.readouterr().out
        # Where they begin is known for the next time, too.
        again("three", 2)
        assert origins == ["checkpoint:2", f"checkpoint:{anew}"]
        again("two", 2)
        assert origins[2:] == ["checkpoint:2"]
        anew = scheduled_head(method)
        assert again("three", 3) == f"from {anew}"
        assert len(origins) == 3


def scheduled_head(method: Method) -> int:
    """The newest checkpoint of the job."""
    store, layout = open_store(str(method.root)), JobLayout("orders")
    head = read_log(store, layout).head
    assert head is not None
    return head.slot


def test_killing_the_task_asks_the_driver_to_end_and_ends_the_task(method: Method) -> None:
    killed = operator(method)

    class Slow(Done):
        def look(self) -> ProcessStatus:
            store, layout = open_store(str(method.root)), JobLayout("orders")
            owner = Owner("r", dag_run="orders_dag/scheduled__2026-01-01", task="run")
            beat(store, layout, Heartbeat(epoch=1, counter=1, owner=owner))
            MadeJob(method.root, "orders", run="slow") if not list(store.list(layout.epochs)) else None
            killed.on_kill()
            raise AssertionError("on_kill has to end the task")

    method.fails = slow = Slow()
    with refused(AirflowException, "was killed"):
        killed.execute(context())
    assert len(slow.stopped) == 1
    request = stop_requested(open_store(str(method.root)), JobLayout("orders"), 1)
    assert request is not None
    assert request.by.dag_run == "orders_dag/scheduled__2026-01-01"


def test_a_deferred_run_is_followed_by_a_trigger_and_resumed(method: Method) -> None:
    deferred = operator(method, deferrable=True)
    with pytest.raises(TaskDeferred) as deferral:
        deferred.execute(context())
    trigger = deferral.value.trigger
    assert isinstance(trigger, StateflowRunTrigger)
    path, fields = trigger.serialize()
    assert path == "stateflow.airflow.triggers.run.StateflowRunTrigger"
    json.dumps(fields)
    assert (
        operator(method, deferrable=True).resume(context(), fired(StateflowRunTrigger, fields))["checkpoint"]
        == 2
    )


def test_the_trigger_fires_when_the_heart_has_beaten_for_the_last_time(method: Method) -> None:
    with pytest.raises(TaskDeferred) as deferral:
        operator(method, deferrable=True).execute(context())
    _, fields = deferral.value.trigger.serialize()
    event = fired(StateflowRunTrigger, fields)
    assert event.pop("outcome") == {"batches": 1, "rows": 5, "checkpoint": 2, "stopped": "from None"}
    assert event == {"above": 0, "counter": (1, 9)}
    json.dumps(event)


def test_a_run_whose_heartbeat_the_next_one_has_cleared_away_has_ended_as_the_trigger_saw(
    method: Method,
) -> None:
    with pytest.raises(TaskDeferred) as deferral:
        operator(method, deferrable=True).execute(context())
    event = fired(StateflowRunTrigger, deferral.value.trigger.serialize()[1])
    store, layout = open_store(str(method.root)), JobLayout("orders")
    store.delete([entry.path for entry in store.list(layout.control)])
    assert operator(method, deferrable=True).resume(context(), event)["rows"] == 5


class Gone(Method):
    """Its driver claims the job, beats once, and is gone with its host."""

    stale: Done | None = None

    def find(self, spec: RunSpec) -> Any:
        return self.stale

    def launch(self, spec: RunSpec) -> Any:
        self.specs.append(spec)
        job = MadeJob(self.root, spec.job, run="gone")
        job.batch()
        owner = Owner("r", host="elsewhere", dag_run=spec.dag_run, task=spec.task)
        job.beat(9, owner=owner)


def test_a_deferred_run_whose_driver_is_lost_fails_and_is_not_deferred_for_ever(method: Method) -> None:
    gone = Gone(method.root)
    with pytest.raises(TaskDeferred) as deferral:
        operator(gone, deferrable=True).execute(context())
    _, fields = deferral.value.trigger.serialize()
    event = fired(StateflowRunTrigger, {**fields, "patience": 0.1})
    assert "stood still" in event["given_up"]
    with refused(AirflowException, "is lost", "stood still"):
        operator(gone, deferrable=True).resume(context(), event)


def test_a_deferred_run_is_not_judged_by_what_another_try_left_where_it_is_resumed(method: Method) -> None:
    gone = Gone(method.root)
    with pytest.raises(TaskDeferred) as deferral:
        operator(gone, deferrable=True).execute(context())
    _, fields = deferral.value.trigger.serialize()
    gone.stale = Done(0, name="an earlier try's")
    with refused(AirflowException, "is lost"):
        operator(gone, deferrable=True).resume(
            context(), fired(StateflowRunTrigger, {**fields, "patience": 0.1})
        )


@pytest.mark.parametrize("host", ["", "another"])
def test_a_triggerer_that_shares_only_the_folder_of_a_driver_that_starts_does_not_count_it_as_lost(
    method: Method, tmp_path: Path, host: str
) -> None:
    with pytest.raises(TaskDeferred) as deferral:
        operator(Gone(method.root), deferrable=True).execute(context())
    _, fields = deferral.value.trigger.serialize()
    command = {"argv": [], "cwd": "/", **({"host": host} if host else {})}
    (tmp_path / "command.json").write_text(json.dumps(command))
    fields["handover"] = {"above": 1, "folder": str(tmp_path)}
    if host:
        with pytest.raises(TimeoutError):
            fired(StateflowRunTrigger, fields, 0.5)
    else:
        assert "was gone" in fired(StateflowRunTrigger, fields)["given_up"]


@pytest.mark.parametrize("state", ["deferred", "failed", "unknown"])
def test_a_triggerer_that_another_one_stands_in_for_stops_no_run(method: Method, state: str) -> None:
    gone = Gone(method.root)
    with pytest.raises(TaskDeferred) as deferral:
        operator(gone, deferrable=True).execute(context())
    trigger: Any = StateflowRunTrigger(**deferral.value.trigger.serialize()[1])
    trigger.task_instance = FakeTask()
    states = {} if state == "unknown" else {FakeTask.run_id: {"run": state}}
    with supervised(Supervisor(states=states)):
        asyncio.run(trigger.on_kill())
    asked = stop_requested(open_store(str(method.root)), JobLayout("orders"), 1)
    assert (asked is None) is (state == "deferred")


@dataclass
class Working(Method):
    """Its driver is in a batch, and lives until it is killed."""

    drivers: list[Done] = field(default_factory=list)

    def find(self, spec: RunSpec) -> Any:
        return self.drivers[-1] if self.drivers else None

    def launch(self, spec: RunSpec) -> Done:
        self.specs.append(spec)
        job = MadeJob(self.root, spec.job, run="working")
        job.batch()
        job.beat(1, owner=Owner("r", host="elsewhere", dag_run=spec.dag_run, task=spec.task))

        class Alive(Done):
            above = 0

            def look(self) -> ProcessStatus:
                return ProcessStatus(True)

        self.drivers.append(Alive())
        return self.drivers[-1]


def test_execution_timeout_holds_for_a_deferred_task_and_its_run_is_told_to_end(method: Method) -> None:
    working, limit = Working(method.root), timedelta(seconds=20)
    began = datetime.now(UTC) - limit + timedelta(seconds=2)
    task = operator(working, deferrable=True, execution_timeout=limit, retries=1, grace="30 seconds")
    left = run_task(task, started_at=began)
    assert left.state is TaskInstanceState.DEFERRED
    fields = dict(left.message.trigger_kwargs)
    assert fields["deadline"] == (began + limit).timestamp()
    assert StateflowRunTrigger(**fields).serialize()[1] == fields

    event = fired(StateflowRunTrigger, fields)
    assert datetime.now(UTC) >= began + limit
    json.dumps(event)
    told = run_task(task, resumed=("resume", event), started_at=began, max_tries=1)
    assert told.state is TaskInstanceState.UP_FOR_RETRY
    assert "execution_timeout=20 seconds" in str(told.error)
    request = stop_requested(open_store(str(method.root)), JobLayout("orders"), 1)
    assert request is not None
    assert request.by.task == "run"
    assert working.drivers[0].stopped == [30.0]

    again = run_task(
        operator(working, deferrable=True, execution_timeout=limit), started_at=datetime.now(UTC)
    )
    assert again.state is TaskInstanceState.DEFERRED
    assert len(working.specs) == 1, "the next try follows the driver of the first"


def test_a_run_that_has_ended_just_when_the_tasks_time_was_over_has_ended_well(method: Method) -> None:
    task = operator(method, deferrable=True, execution_timeout=timedelta(seconds=1))
    fields = dict(run_task(task).message.trigger_kwargs)
    assert fields["deadline"] < time.time()
    event = {**fields["handover"], "overdue": True}
    assert run_task(task, resumed=("resume", event)).state is TaskInstanceState.SUCCESS


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"pipeline": "orders.py"}, "FILE:PIPELINE"),
        ({"on_live": "shoot"}, "on_live='shoot'"),
        ({"on_rerun": "again"}, "on_rerun='again'"),
        ({"parallelism": 0}, "parallelism=0"),
        ({"parameters": ["a"]}, "parameters="),
        ({"launcher": InProcess(), "deferrable": True}, "deferrable=True"),
        (
            {"launcher": "spark"},
            r"launcher='spark' has to be a way to start drivers, such as SparkSubmit\(\) or InProcess\(\)",
        ),
        ({"launcher": SparkSubmit}, "has to be a way to start drivers"),
        (
            {"trigger": "dran"},
            "trigger='dran' is neither drain, until-stopped nor an interval like '30 seconds'",
        ),
        ({"trigger": "0 seconds"}, "trigger='0 seconds' is neither"),
        ({"until": "None"}, "until='None' is no bound: give a version or a time, or an empty text for none"),
        ({"until": -1}, "until=-1 is no bound: .* 0 or more"),
        ({"until": True}, "until=True has to be a text"),
        ({"until": 7.5}, "until=7.5 has to be a text"),
    ],
)
def test_wrong_arguments_are_refused_while_the_dag_is_parsed(wrong: dict[str, Any], said: str) -> None:
    arguments: dict[str, Any] = {"pipeline": "orders.py:orders", **wrong}
    with pytest.raises((TypeError, ValueError), match=said):
        StateflowRunOperator(task_id="run", **arguments)


def test_a_bound_that_a_template_gives_as_none_is_refused(method: Method) -> None:
    """As Airflow renders natively what is not there. The run would read everything."""
    made = StateflowRunOperator(
        task_id="run", pipeline="orders.py:orders", until="{{ data_interval_end or none }}"
    )
    made.until = None
    with refused(
        AirflowFailException, "task 'run': until came out as None", "{{ data_interval_end or none }}"
    ):
        made.given("until")
    made.until = ""
    assert made.given("until") == ""


@pytest.mark.parametrize("until", [0, 12, "12", "{{ 12 }}"])
def test_a_number_is_a_version_to_end_at(method: Method, until: Any) -> None:
    with DAG("any", schedule=None, render_template_as_native_obj=True):
        made = operator(method, until=until)
    given = context()
    made.render_template_fields(given)
    made.execute(given)
    assert method.specs[0].until == ("0" if until == 0 else "12")


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize(
    ("written", "place"),
    [
        ({"parameters": {**PARAMETERS, "output": "{{ params.none }}"}}, "parameters['output']"),
        ({"parameters": {"days": ["1", "{{ params.none }}"]}}, "parameters['days'][1]"),
        ({"options": {"retained_checkpoints": "{{ params.none }}"}}, "options['retained_checkpoints']"),
        ({"conf": {"spark.x": "{% if 1 %}{{ params.none }}{% endif %}"}}, "conf['spark.x']"),
        ({"checkpoint_dir": "{{ params.none }}"}, "checkpoint_dir"),
        ({"job": "{{ params.none }}"}, "job="),
        ({"pipeline": "{{ params.none }}", "job": "orders"}, "pipeline="),
        ({"until": "{{ params.none }}"}, "until"),
        ({"launcher": SparkSubmit(env={"TOKEN": "{{ params.none }}"})}, "launcher['env']['TOKEN']"),
        (
            {"launcher": SparkSubmit(driver_memory="{{ params.none }}")},
            "launcher['submit']['driver_memory']",
        ),
        (
            {"launcher": Kubernetes(image="{{ params.none }}", namespace="jobs")},
            "launcher['image'] came out as None",
        ),
        (
            {"launcher": WarmHost("team", otherwise=SparkSubmit(queue="{{ params.none }}"))},
            "launcher['otherwise']['submit']['queue']",
        ),
        (
            {"launcher": WarmHost("team", otherwise=SparkSubmit(env={"OUT": "/data/{{ params.none }}"}))},
            "launcher['otherwise']['env']['OUT']",
        ),
        ({"parameters": {**PARAMETERS, "output": "/data/{{ params.none }}/x"}}, "parameters['output']"),
        ({"checkpoint_dir": "/data/{{ params.none }}"}, "checkpoint_dir"),
        (
            {"trigger": "{{ params.none }}", "parallelism": "{{ params.none }}", "note": "{{ params.none }}"},
            "",
        ),
    ],
)
def test_what_a_template_gives_as_none_is_nobodys_value(
    method: Method, written: dict[str, Any], place: str, native: bool
) -> None:
    """It was a table called None. Where nothing may be given, it is nothing."""
    with DAG("any", schedule=None, render_template_as_native_obj=native):
        made = operator(method, **written)
    given = context(params={"none": None})
    made.render_template_fields(given)
    if not place:
        made.execute(given)
        assert (method.specs[0].trigger, method.specs[0].parallelism, method.specs[0].note) == ("", None, "")
        return
    with refused(AirflowFailException, f"task 'run': {place}"):
        made.execute(given)
    assert method.specs == []


def test_the_way_on_that_a_lost_template_s_refusal_names_is_one(method: Method) -> None:
    given = context(params={"output": None})
    made = operator(method, parameters={**PARAMETERS, "output": "{{ params.output }}"})
    made.render_template_fields(given)
    with refused(AirflowFailException, "'{{ params.output }}'", "{{ params.output or '/data/totals' }}"):
        made.execute(given)
    made = operator(method, parameters={**PARAMETERS, "output": "{{ params.output or '/data/totals' }}"})
    made.render_template_fields(given)
    made.execute(given)
    assert method.specs[0].parameters["output"] == "/data/totals"


def test_a_mapped_task_says_so_too(method: Method) -> None:
    with DAG("any", schedule=None):
        mapped = StateflowRunOperator.partial(
            task_id="run", pipeline="orders.py:orders", parameters={"output": "{{ params.output }}"}
        ).expand(job=["one", "two"])
    made: Any = mapped.unmap({"job": "one"})
    made.parameters = {"output": "None"}  # as Airflow renders it on the task that it has made
    with refused(AirflowFailException, "parameters['output']"):
        made.given("parameters")


def test_templates_are_left_for_the_run() -> None:
    made = StateflowRunOperator(
        task_id="run",
        pipeline="orders.py:orders",
        until="{{ data_interval_end }}",
        parallelism="{{ params.p }}",
    )
    assert {"until", "parallelism", "job", "parameters"} <= set(made.template_fields)


def test_everything_but_deferrable_is_a_template(method: Method) -> None:
    launcher = SparkSubmit(driver_memory="{{ memory }}", executor_cores=2, env={"MEMORY": "{{ memory }}"})
    made = [
        operator(method, launcher=launcher, grace="{{ '5 minutes' }}", final="{{ 'yes' }}",
                 allow_non_restored_state="{{ 'true' }}", busy_timeout="{{ '2 hours' }}")
        for _ in range(2)
    ]  # fmt: skip
    for one, memory in zip(made, ("4g", "8g"), strict=True):
        one.render_template_fields(context(memory=memory))
        assert one.launcher.submit == {"driver_memory": memory, "executor_cores": 2}
        assert one.launcher.env == {"MEMORY": memory}
    assert launcher.submit["driver_memory"] == launcher.env["MEMORY"] == "{{ memory }}"
    given = [made[0].given(name) for name in ("grace", "final", "allow_non_restored_state", "busy_timeout")]
    assert given == [timedelta(minutes=5), True, True, timedelta(hours=2)]
    assert set(StateflowRunOperator.arguments) - set(StateflowRunOperator.template_fields) == {
        "deferrable",
        "table_assets",
        "partition_events",
        "openlineage_inject_parent_job_info",
        "openlineage_inject_transport_info",
    }


def test_a_run_is_deferred_by_default_where_airflow_says_so(
    method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert operator(method).deferrable is False
    monkeypatch.setenv("AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE", "True")
    assert operator(method).deferrable is True
    assert operator(method, deferrable=False).deferrable is False
    assert operator(method, launcher=InProcess()).deferrable is False


def test_a_missing_root_names_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_STATEFLOW_DEFAULT", raising=False)
    made = StateflowRunOperator(task_id="run", pipeline="orders.py:orders")
    with pytest.raises(AirflowFailException, match="airflow connections add stateflow_default"):
        made.execute(context())


def test_what_the_operator_says_itself_is_not_taken_by_spark_submit() -> None:
    with pytest.raises(ValueError, match="conf"):
        SparkSubmit(conf={"a": "b"})
