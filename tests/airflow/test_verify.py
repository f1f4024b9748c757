"""Verification by a task: fails with what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from stateflow.airflow import StateflowVerifyOperator
from tests.airflow.conftest import Connect
from tests.airflow.tasks import Try, ran
from tests.jobs.files import files_of
from tests.jobs.made import made_job
from tests.refusals.refusal import refused


def verify(attempt: Try | None = None, **arguments: Any) -> Any:
    return ran(StateflowVerifyOperator, attempt, **arguments)


def state_files(root: Path) -> list[Path]:
    return sorted((root / "orders" / "shared").iterdir())


def test_a_sound_job_is_said_to_be(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path)
    before = files_of(tmp_path)
    result = verify(deep="{{ true }}")
    assert (result["sound"], result["deep"], result["errors"], result["checkpoint"]) == (True, True, 0, 4)
    assert files_of(tmp_path) == before


def test_a_lost_file_fails_the_task_and_what_follows_can_read_why(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path)
    lost = state_files(tmp_path)
    for file in lost:
        file.unlink()
    attempt = Try("it")
    with pytest.raises(AirflowFailException, match=rf"{lost[0].name}.*, and 2 more$"):
        verify(attempt)
    findings = attempt.pushed["findings"]
    assert (findings["sound"], findings["errors"]) == (False, 3)
    assert findings["findings"][0]["severity"] == "error"


def test_a_changed_file_is_found_when_every_file_is_read(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path)
    file = state_files(tmp_path)[-1]
    file.write_bytes(file.read_bytes()[::-1])
    assert verify()["sound"]
    with pytest.raises(AirflowFailException, match=file.name):
        verify(deep=True)


def test_what_nobody_needs_is_no_error(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    job = made_job(tmp_path)
    job.store.put(job.layout.shared_file(1, 2, "lost", ".sst"), b"left by a task that died")
    result = verify()
    assert (result["sound"], result["warnings"]) == (True, 1)


def test_an_unknown_job_is_named(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path)
    with refused(AirflowFailException, "there is no job 'nonsense' in", "its jobs are: orders"):
        verify(job="nonsense")
