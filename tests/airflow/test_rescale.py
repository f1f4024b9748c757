"""Rescaling by a task: one record, whatever is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from stateflow.airflow import StateflowRescaleOperator
from stateflow.format.records import Record
from stateflow.jobs.job import Job
from tests.airflow.conftest import Connect
from tests.airflow.tasks import Try, killed_at_every_write, ran
from tests.jobs.made import MadeJob, made_job
from tests.refusals.refusal import refused


def rescale(attempt: Try | None = None, **arguments: Any) -> Any:
    return ran(StateflowRescaleOperator, attempt, **{"parallelism": 4, **arguments})


def rescales(root: Path) -> list[Record]:
    return [record for record in Job(str(root), "orders").log().chain if record.kind == "rescale"]


def test_a_form_gives_the_next_run_another_parallelism(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path)
    attempt = Try("it")
    result = rescale(
        attempt, parallelism="{{ params.parallelism }}", params={"parallelism": 4}, note="black friday"
    )
    [record] = rescales(tmp_path)
    assert (result["record"], result["checkpoint"], result["parallelism"]) == (record.slot, record.slot, 4)
    assert len(record.operators["balance"].assignment) == 4
    assert (record.owner.dag_run, record.owner.note) == ("upkeep/manual__1", "black friday")
    assert attempt.pushed["stateflow"]["checkpoint"] == record.slot


def test_a_retry_after_a_kill_at_any_point_rescales_once(tmp_path: Path, connect: Connect) -> None:
    stages = 0

    def fresh(at: int) -> Path:
        root = tmp_path / str(at)
        made_job(root)
        connect(root)
        return root

    for at, root in killed_at_every_write(fresh, lambda place: rescale(Try("it"))):
        stages = at
        result = rescale(Try("it", try_number=2))
        [record] = rescales(root)
        log = Job(str(root), "orders").log()
        assert log.head is not None
        assert (result["record"], log.head.slot, log.pending) == (record.slot, record.slot, ()), at
    assert stages >= 3  # the epoch, the fence, the record


def test_a_cleared_task_rescales_again(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path)
    rescale(Try("it"))
    rescale(Try("it", try_number=2, clears=1))
    assert len(rescales(tmp_path)) == 2


def test_a_task_that_failed_after_its_record_is_not_taken_for_another_parallelism(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise AirflowException("the API server is away")

    connect(tmp_path)
    made_job(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(StateflowRescaleOperator, "result", away)
        with pytest.raises(AirflowException):
            rescale(Try("it"))
    [record] = rescales(tmp_path)
    with refused(AirflowFailException, f"record {record.slot} of job 'orders'", "4", "8", "trigger the DAG"):
        rescale(Try("it", clears=1), parallelism=8)
    assert rescale(Try("it", clears=1))["record"] == record.slot
    assert len(rescales(tmp_path)) == 1


def test_a_job_without_a_checkpoint_is_not_rescaled(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    MadeJob(tmp_path).beat(ended=True)
    with pytest.raises(AirflowFailException, match="job 'orders' has no checkpoint yet"):
        rescale()
