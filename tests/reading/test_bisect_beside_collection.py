"""A bisection while another process collects the checkpoints that it looks at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stateflow.errors import CorruptError
from stateflow.jobs.job import Job
from stateflow.reading.past_states import PastStates
from tests.jobs.builder import options_of
from tests.jobs.queried import QueriedJob, entries_of, filled
from tests.refusals.refusal import refused

USERS = range(1500)
"""So many that their state lies in files, not in the record."""


def five_checkpoints(root: Path) -> QueriedJob:
    job = QueriedJob(root, retained=20)
    for rows in range(1, 6):
        job.checkpoint(entries_of(filled(*USERS, rows=rows)))
    return job


def bisected(job: QueriedJob, key: str | None) -> Any:
    options = options_of(job.root)
    return Job(job.root, "orders").bisect("balance", "total", key, "value > 1", options=options)


@pytest.mark.parametrize("key", ["7", None])
def test_a_search_begins_again_with_the_checkpoints_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    job = five_checkpoints(tmp_path / "root")
    made = PastStates.reader
    times: list[int] = []

    def collected(states: PastStates, record: Any, **options: Any) -> Any:
        if not times:
            times.append(record.slot)
            job.begin("run2", retained=1)
            job.checkpoint(entries_of(filled(*USERS, rows=6)))
            assert job.collect(retained=1).removed
        return made(states, record, **options)

    monkeypatch.setattr(PastStates, "reader", collected)
    found = bisected(job, key)
    assert found.record is not None
    assert found.record.slot == job.head().slot
    assert found.checkpoints == 1


@pytest.mark.parametrize("key", ["7", None])
def test_a_file_that_no_clean_up_took_is_damage(tmp_path: Path, key: str | None) -> None:
    job = five_checkpoints(tmp_path / "root")
    for path in (tmp_path / "root").rglob("*.sst"):
        path.unlink()
    with refused(CorruptError, "is missing"):
        bisected(job, key)
