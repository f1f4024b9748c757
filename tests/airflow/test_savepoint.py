"""Savepoints by a task: once for all of its tries, and nothing of a try that was ended."""

from __future__ import annotations

import os
import signal
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from stateflow.airflow import StateflowSavepointOperator
from stateflow.checkpoint.pins import list_pins
from stateflow.jobs.job import Job
from stateflow.savepoints.format import list_savepoints, read_savepoint, verify_savepoint
from stateflow.storage.local import LocalStore
from stateflow.storage.roots import open_store
from tests.airflow.conftest import Connect
from tests.airflow.tasks import Try, airflow_signals, context_of, killed_at_every_write, ran, task
from tests.jobs.files import files_of
from tests.jobs.made import made_job
from tests.refusals.refusal import refused


def savepoint(attempt: Try | None = None, **arguments: Any) -> Any:
    return ran(StateflowSavepointOperator, attempt, **arguments)


def savepoints_of(root: Path) -> list[str]:
    return [path for path, _ in list_savepoints(open_store(str(root)), "orders")]


def test_a_savepoint_of_the_newest_checkpoint_is_made(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path)
    attempt = Try("it")
    made = savepoint(attempt, note="before the upgrade", expires=timedelta(days=30))
    assert made["savepoint"].startswith(f"file://{tmp_path}/_savepoints/orders/native-20260131T000000-")
    assert (made["checkpoint"], made["kind"], made["files"]) == (4, "native", 2)
    assert made["bytes"] == len("state of 3") + len("state of 4")
    stands = read_savepoint(open_store(made["savepoint"]))
    assert (stands.note, stands.owner.dag_run, stands.owner.task) == (
        "before the upgrade",
        "upkeep/manual__1",
        "it",
    )
    assert stands.owner.user == "ann"
    assert stands.expires is not None
    assert stands.expires - stands.at == pytest.approx(30 * 86_400e6, abs=60e6)
    assert attempt.pushed["stateflow"] == {"conn_id": "stateflow_default", "job": "orders", "checkpoint": 4}


def test_a_form_chooses_kind_checkpoint_and_place(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path / "root")
    made_job(tmp_path / "root").tag(3, "v1")
    made = savepoint(
        params={"job": "orders", "from": "tag:v1", "to": str(tmp_path / "there"), "days": "7 days"},
        job="{{ params.job }}", checkpoint="{{ params.from }}", to="{{ params.to }}", expires="{{ params.days }}",
        max_files="1",
    )  # fmt: skip
    assert (made["savepoint"], made["checkpoint"], made["files"]) == (f"file://{tmp_path}/there", 3, 1)


def test_every_dag_run_makes_its_own_and_a_cleared_task_another(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path)
    urls = {
        savepoint(Try("it"))["savepoint"],
        savepoint(Try("it", run_id="manual__2"))["savepoint"],
        savepoint(Try("it", map_index=3))["savepoint"],
        savepoint(Try("it", try_number=2, clears=1))["savepoint"],
    }
    assert len(urls) == 4
    assert len(savepoints_of(tmp_path)) == 4


def test_a_retry_after_a_kill_at_any_point_leaves_one_whole_savepoint_and_nothing_else(
    tmp_path: Path, connect: Connect
) -> None:
    stages = 0

    def fresh(at: int) -> Path:
        root = tmp_path / str(at)
        made_job(root)
        connect(root)
        return root

    for at, root in killed_at_every_write(fresh, lambda place: savepoint(Try("it", try_number=1))):
        stages = at
        made = savepoint(Try("it", try_number=2))
        folder = Path(made["savepoint"].removeprefix("file://"))
        assert savepoints_of(root) == [str(folder.relative_to(root))], at
        assert verify_savepoint(open_store(made["savepoint"]), deep=True) == [], at
        assert files_of(root / "_savepoints") == {
            f"{folder.relative_to(root / '_savepoints')}/{name}" for name in files_of(folder)
        }
        assert len(files_of(folder)) == 3, at
        job = Job(str(root), "orders")
        assert list_pins(job.store, job.layout) == [], at
        assert job.verify(deep=True) == [], at
    assert stages >= 4  # a pin, two files, the savepoint itself, the pin's release


def test_a_task_that_is_told_to_end_leaves_no_folder_and_no_pin(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(tmp_path)
    made_job(tmp_path)
    before = files_of(tmp_path)
    operator = task(StateflowSavepointOperator)
    take, killed, once = LocalStore.take, threading.Event(), threading.Lock()

    def slow(store: LocalStore, *arguments: Any, **options: Any) -> None:
        take(store, *arguments, **options)
        with once:  # another one would cut its cleaning up short
            told, _ = killed.is_set(), killed.set()
        if not told:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(LocalStore, "take", slow)
    with airflow_signals(operator), refused(AirflowException, "was killed") as failed:
        operator.execute(context_of(Try("it")))
    assert killed.is_set()
    assert not isinstance(failed.value, AirflowFailException)
    assert files_of(tmp_path) == before
    assert list((tmp_path / "_savepoints" / "orders").iterdir()) == []


def test_a_kill_after_the_work_is_done_raises_nothing(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path)
    operator = task(StateflowSavepointOperator)
    operator.execute(context_of(Try("it")))
    operator.on_kill()  # as after a timeout
    assert len(savepoints_of(tmp_path)) == 1


def test_a_place_that_is_taken_by_another_is_refused(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path / "root")
    made_job(tmp_path / "root")
    place = str(tmp_path / "there")
    savepoint(Try("it"), to=place)
    with pytest.raises(AirflowFailException, match=f"there is a savepoint in file://{place} already"):
        savepoint(Try("it", run_id="manual__2"), to=place)
    assert savepoint(Try("it", try_number=2), to=place)["checkpoint"] == 4
