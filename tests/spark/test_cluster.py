"""More than one executor: state stays where it is, an executor dies, a task runs twice at the same time."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from stateflow.checkpoint.log import read_log
from stateflow.format.layout import JobLayout
from stateflow.format.records import Record
from stateflow.storage.roots import open_store
from tests.spark.murder import ROOT, Run
from tests.spark.murder_evidence import Inbox, delta_rows, difference, examine, examine_store, head, state_of
from tests.spark.murder_pipelines import JOB, Marks
from tests.spark.murder_victim import Errand
from tests.spark.standalone import standalone

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]
SEED = 404
CLUSTER = {"spark.task.maxFailures": "4", "spark.executor.memory": "600m", "spark.driver.host": "127.0.0.1"}

# The first batch must not begin when only one of the two has registered.
BOTH_EXECUTORS = {
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
}


def records(folder: Path) -> list[Record]:
    log = read_log(open_store(str(folder / "root")), JobLayout(JOB))
    return [record for record in log.chain if record.operators]


def test_subtasks_stay_with_their_executor_and_move_when_it_is_killed(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "orders", random.Random(SEED))
    for _ in range(7):
        inbox.add()
    run = Run.start(
        Errand(
            str(tmp_path),
            master="local-cluster[2,1,1500]",
            conf={**CLUSTER, **BOTH_EXECUTORS, "spark.locality.wait": "10s"},
            options={"retained_checkpoints": 20, "shared_filesystem": True, "local_fsync": False},
        )
    )
    try:
        run.until(lambda r: len(r.told("batch")) >= 3, 900, "three batches")
        killed = run.kill_one("executor", random.Random(SEED))
        assert run.wait(900) == 0, run.story()
    finally:
        run.bury()
    assert killed, "no executor was killed: this run has shown nothing"
    assert len(run.told("batch")) == 7
    hosts = [record.operators["totals"].hosts for record in records(tmp_path)]
    # Two subtasks on two executors, pinned from the second batch on, as long as both live.
    assert len(set(hosts[0])) == 2
    assert hosts[0] == hosts[1] == hosts[2]
    gone = set(hosts[2]) - set(hosts[-1])
    assert len(gone) == 1, f"one executor was killed, and subtasks ran at {hosts}"
    # Its successor is given its share again: the subtasks do not stay together where they took refuge.
    assert len(set(hosts[-1])) == 2, f"one executor does nothing: {hosts}"
    assert examine(tmp_path, inbox.rows) == []


def test_of_two_copies_of_a_task_one_gives_rows_state_and_side_output(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "orders", random.Random(SEED))
    for _ in range(3):
        inbox.add()
    speculation = {
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "100ms",
    }
    ours = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    with standalone(tmp_path, cores=2, memory="900m", also=ours) as master:
        run = Run.start(
            Errand(
                str(tmp_path),
                master=master,
                story="copies",
                conf={**CLUSTER, **speculation},
                options={"shared_filesystem": True, "local_fsync": False},
            )
        )
        try:
            assert run.wait(900) == 0, run.story()
        finally:
            run.bury()
    first = sorted(delta_rows(tmp_path / "first").elements())
    assert [row[0] for row in first] == [order.id for order in inbox.rows]
    assert difference(delta_rows(tmp_path / "copies"), delta_rows(tmp_path / "first")) == ""
    mark_of = {row[0]: row[3] for row in first}
    second = delta_rows(tmp_path / "second").elements()
    assert {row[0]: row[2] for row in second} == mark_of
    last = {row[4]: row[0] for row in first}
    marks = state_of(tmp_path, head(tmp_path).operators["marks"], Marks, last)
    assert {user: s["mark"] for user, s in marks.items()} == {user: mark_of[id] for user, id in last.items()}
    # Otherwise nothing was shown: some task did run twice, to the end both times.
    attempts = [line.split() for line in (tmp_path / "attempts.log").read_text().splitlines()]
    finished: dict[tuple[str, str], dict[str, str]] = {}
    for slot, subtask, attempt, mark in attempts:
        finished.setdefault((slot, subtask), {})[attempt] = mark
    twice = [marks for marks in finished.values() if len(marks) > 1]
    assert twice, "no task was run twice"
    kept = set(mark_of.values())
    for found in twice:
        assert len(kept & set(found.values())) <= 1
    assert examine_store(tmp_path) == []
