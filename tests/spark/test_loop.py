"""Why a batch failed, when its run was taken over meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateflow.errors import FencedError, StateflowError, UnavailableError
from stateflow.spark.loop import cause
from tests.cli.made import MadeJob

MISSING = StateflowError(
    "the batch failed: [Errno 2] No such file or directory: 'root/orders/staged/e1-c2-x.parquet'"
)


def test_a_batch_that_lost_its_files_to_a_newer_run_was_fenced(tmp_path: Path) -> None:
    zombie = MadeJob(str(tmp_path), run="zombie")
    zombie.batch()
    MadeJob(str(tmp_path), run="newer")
    told = cause(zombie.writer, MISSING)
    assert isinstance(told, FencedError)
    assert "taken over" in str(told)


def test_the_owners_failure_is_told_as_it_is(tmp_path: Path) -> None:
    job = MadeJob(str(tmp_path))
    job.batch()
    assert cause(job.writer, MISSING) is MISSING


def test_a_store_that_does_not_answer_hides_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = MadeJob(str(tmp_path))

    def away() -> None:
        raise UnavailableError("the store does not answer")

    monkeypatch.setattr(job.writer, "still_owner", away)
    assert cause(job.writer, MISSING) is MISSING
