"""The replay operator without Spark: what its driver is told, what becomes of a report, and of a driver that fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from stateflow.airflow import InProcess, SparkSubmit, StateflowReplayOperator
from stateflow.airflow.operators.links import XCOM_KEY, page_of
from stateflow.checkpoint.process import this_process
from stateflow.driver.processes import ProcessStatus
from stateflow.driver.run_spec import ReplaySpec
from stateflow.jobs.job import Job
from stateflow.replay import reports
from stateflow.replay.comparison import ReplayReport, SinkChanges
from stateflow.replay.rows import RowChange
from stateflow.replay.states import KeyChange, StateChanges
from tests.airflow.conftest import Connect
from tests.airflow.tasks import Try, context_of, ran, task
from tests.jobs.made import ORDERS, made_job
from tests.refusals.refusal import refused

PIPELINE = f"{ORDERS}:orders"


def report(changed: int = 1, rows: int = 200, **more: Any) -> ReplayReport:
    row = {"user": "a|b", "total": 1.0, "api_token": "hidden", "link": "https://u:hidden@host/x"}
    sink = SinkChanges("totals", ("user",), rows, rows, {"different": changed} if changed else {})
    sink.changes = [
        (n, RowChange("different", {"user": n}, row, {**row, "total": 2.0})) for n in range(changed)
    ][:20]
    state = StateChanges("balance", "total", 100, {"different": 1}, (KeyChange("different", 7, 1.0, 2.0),))
    return ReplayReport(
        "orders", "orders", 3, 6, batches=4, rows=400, sinks={"totals": sink}, states=[state] if changed else [], **more
    )  # fmt: skip


@dataclass
class Driver:
    status: ProcessStatus = field(default_factory=lambda: ProcessStatus(False, 0))
    words: tuple[str, ...] = ()
    name: str = "/drivers/1"
    above: int = 0
    submitting: bool = False
    stopped: list[float] = field(default_factory=list)

    def look(self) -> ProcessStatus:
        return self.status

    def output(self) -> list[str]:
        return ["a line of the driver"]

    def last_words(self) -> list[str]:
        return list(self.words)

    def stop(self, grace: float) -> None:
        self.stopped.append(grace)


@dataclass
class Method:
    """Drivers that keep a report, as `stateflow replay --keep` does, and end."""

    root: Path
    detached: bool = True
    made: ReplayReport | None = field(default_factory=report)
    driver: Driver = field(default_factory=Driver)
    specs: list[ReplaySpec] = field(default_factory=list)
    found: Driver | None = None
    during: Callable[[], object] = lambda: None

    def __deepcopy__(self, memo: object) -> Method:
        """A task renders a copy of its launcher. Here the test looks at what that one was asked."""
        return self

    def bound(self, spark_conn_id: str) -> Method:
        return self

    def find(self, spec: ReplaySpec) -> Driver | None:
        return self.found

    def launch(self, spec: ReplaySpec) -> Driver:
        self.specs.append(spec)
        self.during()
        if self.made is not None:
            job = Job(str(self.root), spec.job)
            owner = this_process(dag_run=spec.dag_run, task=spec.task, note=spec.note)
            kept = reports.kept_report(self.made, spec.keep, at=5, owner=owner, max_changed=spec.max_changed)
            reports.keep(job.store, job.layout, kept)
            if kept.excess:
                self.driver = Driver(ProcessStatus(False, 4), (f"stateflow: {kept.excess}",))
        return self.driver


@pytest.fixture
def method(tmp_path: Path, connect: Connect) -> Method:
    connect(tmp_path)
    made_job(tmp_path)
    return Method(tmp_path)


def replay(method: Method, attempt: Try | None = None, **arguments: Any) -> Any:
    return ran(StateflowReplayOperator, attempt, **{"pipeline": PIPELINE, "launcher": method, **arguments})


def test_the_driver_is_told_what_to_run_again_and_where_its_report_belongs(method: Method) -> None:
    replay(
        method,
        batches="7",
        max_changed="{{ params.most }}",
        params={"most": "0.5"},
        note="new prices",
        parameters={"a": 1},
    )
    [spec] = method.specs
    assert spec.arguments() == [
        "replay", PIPELINE, "--job", "orders", "--last", "7", "--keep", spec.keep, "--compare",
        "--dag-run", "upkeep/manual__1", "--task", "it", "-p", "a=1", "--max-changed", "0.5", "--note", "new prices",
    ]  # fmt: skip
    assert spec.keep.startswith("it-manual__1-")
    assert spec.environment["STATEFLOW_CHECKPOINT_DIR"] == str(method.root)


def test_the_command_line_takes_every_argument_of_a_replay() -> None:
    import typer

    from stateflow.cli.main import app

    spec = ReplaySpec(
        "p.py:p", "j", "d", "t", {"a": "1"}, {"b": "2"}, batches=1, keep="k", max_changed=0.1,
        allow_non_restored_state=True, note="n",
    )  # fmt: skip
    known = {o for p in typer.main.get_command(app).commands["replay"].params for o in p.opts}  # type: ignore[attr-defined]
    assert {word for word in spec.arguments() if word.startswith("-")} <= known


def test_the_result_has_counts_and_first_differences_and_no_secret(method: Method) -> None:
    attempt = Try("it")
    told = replay(method, attempt, max_changed=0.01)
    assert told["sinks"] == {"totals": {"before": 200, "after": 200, "gone": 0, "new": 0, "different": 1}}
    assert told["states"] == {"balance.total": {"keys": 100, "gone": 0, "new": 0, "different": 1}}
    assert (told["from"], told["to"], told["batches"], told["same"], told["excess"]) == (3, 6, 4, False, "")
    assert [(c["where"], c["slot"], c["kind"]) for c in told["changes"]] == [
        ("sink totals", 0, "different"), ("balance.total", 6, "different"),
    ]  # fmt: skip
    assert "hidden" not in str(told)
    assert told["changes"][0]["after"]["api_token"] == "***"
    assert told["report"].startswith(
        "**Replay of checkpoints `3` to `6` of job `orders` with pipeline `orders`**"
    )
    assert "| `totals` | 200 | 200 | 0 | 0 | 1 |" in told["report"]
    assert r"a\x7cb" in told["report"], "a row cannot end its cell"
    page = page_of(attempt.pushed[XCOM_KEY], "")
    assert page == f"/stateflow/#/jobs/stateflow_default/orders/replays/{told['replay']}"


def test_more_differences_than_the_limit_fail_without_a_retry_and_leave_what_they_are(method: Method) -> None:
    method.made = report(changed=30)
    attempt = Try("it")
    with pytest.raises(
        AirflowFailException,
        match=r"^30 of 200 rows of sink 'totals' would be others, and max_changed=0.01 lets 2 pass; look at the differences, and "
        r"give a higher max_changed if they are meant$",
    ):
        replay(method, attempt, max_changed=0.01)
    assert attempt.pushed["differences"]["sinks"]["totals"]["different"] == 30
    assert len(attempt.pushed["differences"]["changes"]) == 20


def test_a_task_beyond_its_limit_replays_again_when_it_is_cleared_and_only_then(method: Method) -> None:
    method.made = report(changed=30)

    def tried(most: float, **of_try: Any) -> Any:
        return replay(method, Try("it", **of_try), max_changed=most)

    for number in (1, 2):  # a worker may die before it has told Airflow
        with refused(AirflowFailException, "max_changed=0.01", "give a higher max_changed"):
            tried(0.01, try_number=number)
    assert len(method.specs) == 1
    method.driver = Driver()
    raised = tried(0.5, clears=1, try_number=3)
    assert (raised["excess"], raised["max_changed"]) == ("", 0.5)

    with refused(AirflowFailException, "max_changed=0.01"):
        tried(0.01, clears=2, try_number=4)
    method.made, method.driver = report(changed=0), Driver()  # somebody has mended the code
    mended = tried(0.01, clears=2, try_number=5, max_tries=3)
    assert mended["sinks"]["totals"]["different"] == 0
    assert len({spec.keep for spec in method.specs}) == len(method.specs) == 4


def test_without_a_limit_any_difference_passes(method: Method) -> None:
    method.made = report(changed=30)
    assert replay(method)["sinks"]["totals"]["different"] == 30


def test_a_retry_finds_the_report_of_a_try_that_was_killed_and_a_cleared_task_makes_another(
    method: Method,
) -> None:
    first = replay(method, Try("it"))
    again = replay(method, Try("it", try_number=2))
    assert again["replay"] == first["replay"]
    assert len(method.specs) == 1
    assert replay(method, Try("it", clears=1))["replay"] != first["replay"]
    assert len(method.specs) == 2


@pytest.mark.parametrize(
    ("code", "words", "kind", "sentence"),
    [
        (3, ("stateflow: no batch of job 'orders' can be run again",), AirflowFailException, "no batch of job 'orders' can"),
        (4, ("stateflow: state 'total' does not fit",), AirflowFailException, "state 'total' does not fit"),
        (-9, (), AirflowException, "the driver was killed"),
        (0, (), AirflowException, "has ended and left no report: does its driver use the root"),
    ],
)  # fmt: skip
def test_a_driver_that_fails_fails_the_task_with_its_sentence(
    method: Method, code: int, words: tuple[str, ...], kind: type[Exception], sentence: str
) -> None:
    method.made, method.driver = None, Driver(ProcessStatus(False, code), words)
    with pytest.raises(AirflowException, match=sentence) as failed:
        replay(method)
    assert type(failed.value) is kind


def test_a_task_that_is_killed_kills_its_driver(method: Method) -> None:
    made = task(StateflowReplayOperator, pipeline=PIPELINE, launcher=method)
    method.during = lambda: made.on_kill()
    method.found = Driver(ProcessStatus(False, 1))
    with refused(AirflowException, "was killed"):
        made.execute(context_of(Try("it")))
    assert method.found.stopped == [0]


def test_what_is_no_share_is_refused_when_the_dag_is_parsed() -> None:
    for wrong in (1.5, -0.1, "much", True):
        with pytest.raises(
            (TypeError, ValueError), match=r"max_changed=.* has to be a number from 0 to 1, such as 0\.01"
        ):
            task(StateflowReplayOperator, pipeline=PIPELINE, max_changed=wrong)


def test_a_job_that_is_called_like_its_pipeline_need_not_be_named(method: Method) -> None:
    with DAG("shadows", schedule=None):
        made = StateflowReplayOperator(task_id="it", pipeline=PIPELINE, launcher=method)
    assert made.job == "orders"
    with pytest.raises(
        ValueError, match="names no pipeline after its file: write FILE:PIPELINE, or give job="
    ):
        task(StateflowReplayOperator, pipeline="orders.py", job="")


def test_the_launcher_is_chosen_as_for_a_run() -> None:
    assert isinstance(task(StateflowReplayOperator, pipeline=PIPELINE).launcher, SparkSubmit)
    assert isinstance(
        task(StateflowReplayOperator, pipeline=PIPELINE, launcher=InProcess()).launcher, InProcess
    )
