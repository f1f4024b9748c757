"""The run operator's way to a warm host, with a real host."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.api.datamodels._generated import TaskInstanceState

from stateflow.airflow import StateflowReplayOperator, StateflowRunOperator, WarmHost
from stateflow.driver import supervisor
from stateflow.driver.processes import DriverFolder
from stateflow.driver.run_spec import RunSpec
from stateflow.driver.run_state import Ended
from stateflow.driver.supervision import Supervision
from stateflow.format.records import Owner
from stateflow.jobs.job import Job
from stateflow.replay import reports
from tests.airflow.conftest import Connect
from tests.airflow.runner import run_task
from tests.hosts.hosting import Host, eventually, give, host
from tests.hosts.test_runs import slow

SLOW = """
class Slow(Total):
    def process(self, account, rows, ctx):
        time.sleep(600)
        yield account, 0.0
"""


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with host(tmp_path_factory.mktemp("warm"), "--runs", "1", "--cold") as made:
        yield made


@pytest.fixture(autouse=True)
def of_the_host(team: Host, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEFLOW_CACHE_DIR", str(team.cache))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    connect(team.folder / "root")


def operator(project: Path, launcher: WarmHost, **more: Any) -> StateflowRunOperator:
    given = {"parameters": {"input": str(project / "in"), "output": str(project / "out")}, **more}
    return StateflowRunOperator(
        task_id="run", pipeline=f"{project}/pipeline.py:{project.name}", launcher=launcher, **given
    )


def driver_of(project: Path, run_id: str) -> Any:
    return DriverFolder(project.name, f"orders_dag/{run_id}", "run", f"{project.parent}/root").newest()


def words_of(project: Path, run_id: str) -> str:
    return "\n".join(driver_of(project, run_id).last_words(200))


@pytest.mark.slow
def test_tasks_and_replays_run_on_the_host(team: Host, capsys: pytest.CaptureFixture[str]) -> None:
    project, before = team.project("again"), team.shown()["served"]
    for number, launcher in ((1, WarmHost("tests", only=True)), (2, WarmHost("tests"))):
        ran = run_task(
            operator(project, launcher, conf={"spark.sql.shuffle.partitions": "3"}, retries=0),
            run_id=f"scheduled__{number}",
        )
        assert ran.state is TaskInstanceState.SUCCESS, (ran.error, words_of(project, f"scheduled__{number}"))
        assert ran.xcoms["return_value"]["rows"] == 20
        give(project)
    logged = capsys.readouterr()
    assert "20 rows" in logged.out + logged.err, "the task's log is seen here"
    assert "Spark-Submit cmd" not in logged.out + logged.err, "nobody has started one"

    def replayed(max_changed: float) -> Any:
        shadow = StateflowReplayOperator(
            task_id="shadow",
            pipeline=f"{project}/pipeline.py:again",
            launcher=WarmHost("tests", only=True),
            max_changed=max_changed,
            retries=0,
        )
        return run_task(shadow, run_id=f"limit {max_changed}")

    same = replayed(0.0)
    assert same.state is TaskInstanceState.SUCCESS, same.error
    told = same.xcoms["return_value"]
    assert (told["same"], told["rows"]) == (True, 40)
    job = Job(str(team.folder / "root"), "again")
    assert told["replay"] in [kept.name for kept in reports.kept_reports(job.store, job.layout)]

    code = project / "pipeline.py"
    code.write_text(code.read_text().replace("+= sum", "+= 2 * sum"))
    refused = replayed(0.1)
    assert refused.state is TaskInstanceState.FAILED
    assert "max_changed=0.1 lets" in str(refused.error)
    # The host counts a run when it has seen its process end, which the task does not wait for.
    eventually(lambda: team.shown()["served"] == before + 4, "all four ran there")


@pytest.mark.slow
def test_without_a_host_the_run_has_a_driver_of_its_own_and_says_why(team: Host) -> None:
    """Which starts no Spark here: `test_runs` of the hosts has one that ends well."""
    project = team.project("alone")
    wrong = operator(project, WarmHost("nobody"), retries=0, parameters={"nothing": "1"})
    told = run_task(wrong, run_id="alone")
    assert told.state is TaskInstanceState.FAILED
    assert "nothing" in str(told.error), "its own driver has refused it"
    log = (driver_of(project, "alone").folder / "output.log").read_text()
    assert "the host nobody does not take the run: it is not running in " in log
    assert "Starting a driver of its own" in log


def test_a_host_that_is_not_there_fails_the_try_with_only(team: Host) -> None:
    told = run_task(operator(team.project("nowhere"), WarmHost("nobody", only=True), retries=0))
    assert told.state is TaskInstanceState.UP_FOR_RETRY, "the host may be back by the next try"
    assert "the host nobody does not take the run: it is not running" in str(told.error)


def test_a_full_host_costs_no_try_and_a_killed_driver_ends_its_run_and_not_the_host(team: Host) -> None:
    stuck, other = team.project("stuck", body=SLOW, operator="Slow"), team.project("other")
    root = {"STATEFLOW_CHECKPOINT_DIR": str(team.folder / "root")}
    parameters = {"input": str(stuck / "in"), "output": str(stuck / "out")}
    spec = RunSpec(f"{stuck}/pipeline.py:stuck", "stuck", "dag/1", "run", parameters, environment=root)
    driver: Any = WarmHost("tests", only=True).bound("spark_default").launch(spec)
    try:
        eventually(lambda: team.shown()["runs"], "the slow run has the place")
        full = run_task(operator(other, WarmHost("tests", wait=0.5, only=True), retries=0), run_id="full")
        assert full.state is TaskInstanceState.UP_FOR_RESCHEDULE, (full.error, words_of(other, "full"))
        found: Any = WarmHost("tests").bound("spark_default").find(spec)
        assert found.name == driver.name, "a retry goes on with it"
        assert found.look().running
        pid = team.shown()["pid"]
    finally:
        driver.stop(0)
    eventually(lambda: not team.shown()["runs"], "the killed run has left its place")
    assert not driver.look().running
    assert team.shown()["pid"] == pid, "the host goes on"
    again = run_task(operator(other, WarmHost("tests", only=True), retries=0), run_id="full")
    assert again.state is TaskInstanceState.SUCCESS, (again.error, words_of(other, "full"))


class Task:
    """Tries of a task whose run is on the host, and whose batch waits."""

    def __init__(self, team: Host, name: str) -> None:
        self.team, self.name = team, name
        self.project, self.begun, self._go = slow(team, name)
        self.said: list[str] = []
        self.application = team.shown()["pid"]

    def attempt(self) -> Supervision:
        root = str(self.team.folder / "root")
        parameters = {"input": str(self.project / "in"), "output": str(self.project / "out")}
        spec = RunSpec(
            f"{self.project}/pipeline.py:{self.name}", self.name, "dag/1", "run", parameters,
            environment={"STATEFLOW_CHECKPOINT_DIR": root},
        )  # fmt: skip
        launcher: Any = WarmHost("tests", only=True).bound("spark_default")
        owner = Owner("r", dag_run="dag/1", task="run")
        return Supervision(Job(root, self.name), spec, launcher, owner, say=self.said.append)

    def in_batch(self) -> Supervision:
        first = self.attempt()
        first.begin()
        eventually(self.begun.exists, "the batch runs")
        return first

    def go(self) -> None:
        self._go.touch()

    def ends_well(self) -> None:
        """The next try does, on the same host, with each row once."""
        assert self.attempt().run().exit_code == 0, self.said
        found = self.team.stateflow(
            "query", self.name, "total", "total", "a3", "--checkpoint-dir", str(self.team.folder / "root")
        )
        assert "1.0" in found.stdout, found.stderr
        assert self.team.shown()["pid"] == self.application


def test_the_run_of_a_killed_task_ends_after_its_batch_within_its_grace(team: Host) -> None:
    task = Task(team, "in-grace")
    first = task.in_batch()
    first.stop(grace=60)
    # Before that, the batch might end the input, and the run of itself.
    eventually(lambda: first.look() and "stopping after this batch" in task.said, "it hears of it")
    task.go()
    state = eventually(lambda: isinstance(now := first.look(), Ended) and now, "it ends")
    assert (state.outcome.exit_code, state.outcome.batches) == (0, 1), state
    task.ends_well()
    assert "its task was killed at checkpoint" in " ".join(task.said)


def test_a_retry_takes_over_from_a_run_that_outlived_its_grace_or_was_lost_or_goes_on_with_it(
    team: Host,
) -> None:
    task = Task(team, "lost")
    task.in_batch().stop(grace=0.5)
    eventually(lambda: not team.shown()["runs"], "it is killed, and its place is free")

    task.begun.unlink()
    task.in_batch()
    kill_each(task, supervisor.ITSELF, "driver")
    eventually(lambda: not team.shown()["runs"], "the run ends with who waits for it")
    assert "going on with it" not in " ".join(task.said)

    task.begun.unlink()
    task.in_batch()
    kill_each(task, supervisor.ITSELF)
    task.go()
    task.ends_well()
    assert "going on with it" in " ".join(task.said)


def kill_each(task: Task, *files: str) -> None:
    """Kills processes of a task, with its worker, by what the driver's folder says of them."""
    for victim in [supervisor.read(driver_folder(task) / name) for name in files]:
        assert victim is not None
        os.kill(victim["pid"], signal.SIGKILL)


def driver_folder(task: Task) -> Path:
    found = DriverFolder(task.name, "dag/1", "run", f"{task.team.folder}/root").newest()
    assert found is not None
    return found.folder


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"name": "Team A"}, "'Team A'"),
        ({"name": "team", "wait": "30"}, "wait='30'"),
        ({"name": "team", "wait": -1}, "wait=-1"),
        ({"name": "team", "wait": float("nan")}, "wait=nan"),
        ({"name": "team", "only": "yes"}, "only='yes'"),
        ({"name": "team", "otherwise": "spark"}, "otherwise='spark'"),
    ],
)
def test_a_wrong_argument_is_refused_while_the_dag_is_parsed(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match="WarmHost") as refused:
        WarmHost(**arguments)
    assert named in str(refused.value)


@pytest.mark.parametrize("name", ["{{ params.team }}", "{% if params.night %}night{% else %}day{% endif %}"])
def test_a_name_may_be_a_template(name: str) -> None:
    assert WarmHost(name).name == name


def test_a_launcher_is_the_same_text_in_each_parse_and_shows_no_value() -> None:
    shown = repr(WarmHost("team", env={"TOKEN": "hidden"}))
    assert shown == repr(WarmHost("team", env={"TOKEN": "hidden"}))
    assert "hidden" not in shown
