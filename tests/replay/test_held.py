"""The newest batches are held for a replay from the moment that they are found, whatever a run collects meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateflow.checkpoint.handle import JobHandle
from stateflow.checkpoint.log import Log, SlotCache
from stateflow.checkpoint.pins import list_pins
from stateflow.errors import NotFoundError
from stateflow.jobs.job import Job
from stateflow.replay.held import held_newest
from tests.jobs.made import MadeJob, made_job
from tests.refusals.refusal import refused

RETAINED = 3


def goes_on(made: MadeJob) -> None:
    """The run's next batch, and its collection."""
    made.batch()
    made.collect()


def overtaken(monkeypatch: pytest.MonkeyPatch, made: MadeJob, times: int) -> list[int]:
    """Lets the run go on between a look at the log and what follows it, so many times; gives the newest slot of each look."""
    found, looks = JobHandle.log, list[int]()

    def log(job: JobHandle, slots: SlotCache | None = None) -> Log:
        seen = found(job, slots)
        looks.append(seen.checkpoints[-1].slot)
        if len(looks) <= times:
            goes_on(made)
        return seen

    monkeypatch.setattr(JobHandle, "log", log)
    return looks


@pytest.fixture
def made(tmp_path: Path) -> MadeJob:
    job = made_job(tmp_path / "root", batches=6, retained=RETAINED, ended=False)
    job.collect()
    return job


def test_what_was_found_stays_until_the_end_while_the_run_goes_on(made: MadeJob) -> None:
    job = Job(made.root, "orders")
    with held_newest(job, RETAINED) as held:
        slots = [held.steps[0].before, *(step.record for step in held.steps)]
        wanted = [record.slot for record in slots if record is not None]
        for _ in range(RETAINED + 2):
            goes_on(made)
        assert [each.slot for each in list_pins(made.store, made.layout)] == wanted
        for slot in wanted:
            assert made.store.list(made.layout.slot(slot)), slot
        assert "2 batches instead of 3" in held.note
    assert list_pins(made.store, made.layout) == []
    made.collect()
    assert not list(made.store.list(made.layout.slot(wanted[0])))


def test_where_the_oldest_is_collected_before_it_is_held_the_choice_begins_again(
    made: MadeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = overtaken(monkeypatch, made, times=2)
    with held_newest(Job(made.root, "orders"), RETAINED) as held:
        assert held.steps[-1].record.slot == looks[-1] == looks[0] + 2
    assert len(looks) == 3
    assert list_pins(made.store, made.layout) == []


def test_a_run_that_is_always_faster_is_said_to_be_in_the_way(
    made: MadeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    overtaken(monkeypatch, made, times=100)
    with (
        refused(NotFoundError, "cannot be pinned", "`stateflow checkpoints orders`"),
        held_newest(Job(made.root, "orders"), RETAINED),
    ):
        pass
    assert list_pins(made.store, made.layout) == []
