"""What is said of a job: the word, and the sentence with the next step."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

import stateflow as sf
from stateflow.checkpoint.control import (
    BOUND_REACHED,
    INPUT_DRAINED,
    JOB_DRAINED,
    RunOutcome,
    read_heartbeat,
)
from stateflow.liveness.heart import Heart
from stateflow.observe.health import Health, health_of
from stateflow.observe.status import JobStatus
from stateflow.quantities import age_text
from tests.jobs.builder import T0
from tests.jobs.made import MadeJob, made_job

HOUR = 3_600_000_000
NOW = T0 + 24 * HOUR
AN_HOUR = timedelta(hours=1)

WELL = JobStatus(
    name="orders",
    root="file:///data",
    uuid="u",
    created_at=T0,
    status="IDLE",
    epoch=7,
    owner={"dag_run": "stateflow_orders/scheduled__1", "host": "worker-2"},
    heartbeat_at=NOW - HOUR // 2,
    head=42,
    head_at=NOW - HOUR // 2,
    last_checkpoint_at=NOW - HOUR // 2,
    looked_at=None,
    over=False,
    pending=[],
    timeline=1,
    floor=1,
    watermark=None,
    state_size=0,
    num_files=0,
    operators=[],
    sources=[],
    sinks=[],
    tags={},
    pins=[],
    parameters={},
    versions={},
)


def judged(stale_after: timedelta | None = AN_HOUR, **changes: object) -> Health:
    return health_of(replace(WELL, **changes), NOW, stale_after)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "ok"),
        ({"last_checkpoint_at": NOW - HOUR}, "ok"),
        ({"last_checkpoint_at": NOW - HOUR - 1}, "stale"),
        ({"last_checkpoint_at": NOW - 9 * HOUR, "looked_at": NOW - 60_000_000}, "ok"),
        ({"last_checkpoint_at": NOW - 9 * HOUR, "looked_at": NOW - 2 * HOUR}, "stale"),
        ({"last_checkpoint_at": NOW - 9 * HOUR, "status": "RUNNING"}, "stale"),
        ({"last_checkpoint_at": NOW - 9 * HOUR, "over": True}, "ok"),
        ({"status": "LOST"}, "lost"),
        ({"status": "LOST", "pending": [43]}, "lost"),
        ({"status": "LOST", "over": True}, "lost"),
        ({"pending": [43]}, "blocked"),
        # No run delivers it over a damaged log.
        ({"pending": [43], "damage": "orders/chk-00000043/_metadata cannot be read"}, "unreadable"),
        ({"status": "RUNNING", "damage": "orders/chk-00000041/_pending cannot be read"}, "unreadable"),
        ({"half_deleted": True, "damage": "orders/chk-00000041/_pending cannot be read"}, "failed"),
        ({"pending": [43], "over": True}, "blocked"),
        # A run that lives carries it out right now, unless it has been at it for too long.
        ({"pending": [43], "status": "RUNNING"}, "ok"),
        ({"pending": [43], "status": "RUNNING", "last_checkpoint_at": NOW - 2 * HOUR}, "blocked"),
        (
            {
                "head": None,
                "head_at": None,
                "last_checkpoint_at": None,
                "status": "CREATED",
                "created_at": NOW - 60,
            },
            "new",
        ),
        (
            {
                "head": None,
                "head_at": None,
                "last_checkpoint_at": None,
                "status": "RUNNING",
                "created_at": NOW - 60,
            },
            "new",
        ),
        ({"head": None, "head_at": None, "last_checkpoint_at": None, "status": "CREATED"}, "stale"),
        ({"head": None, "head_at": None, "last_checkpoint_at": None, "looked_at": NOW - 60}, "ok"),
        ({"outcome": {"exit_code": 1, "error": "it broke"}}, "failed"),
        ({"outcome": {"exit_code": 1, "error": "it broke"}, "last_checkpoint_at": None}, "failed"),
        ({"outcome": {"exit_code": 137, "error": ""}}, "failed"),
        ({"outcome": {"exit_code": 0, "error": "", "stopped": "drained"}}, "ok"),
        # A run that lives may make it good.
        ({"outcome": {"exit_code": 1, "error": "it broke"}, "status": "RUNNING"}, "ok"),
        ({"outcome": {"exit_code": 1, "error": "it broke"}, "last_checkpoint_at": NOW - 9 * HOUR}, "stale"),
        ({"outcome": {"exit_code": 1, "error": "it broke"}, "pending": [43]}, "blocked"),
        # Restored from a savepoint.
        ({"last_checkpoint_at": None}, "new"),
        ({"last_checkpoint_at": None, "head_at": NOW - 2 * HOUR}, "stale"),
        # The clock of the run was ahead of ours: by little, and by so much that nobody knows how old the checkpoint is.
        ({"last_checkpoint_at": NOW + HOUR // 6}, "ok"),
        ({"last_checkpoint_at": NOW + HOUR}, "ok"),
        ({"last_checkpoint_at": NOW + 2 * HOUR}, "stale"),
        ({"last_checkpoint_at": NOW + 2 * HOUR, "looked_at": NOW - 60_000_000}, "ok"),
        ({"last_checkpoint_at": NOW + 2 * HOUR, "looked_at": NOW - 2 * HOUR}, "stale"),
    ],
)
def test_the_word(changes: dict[str, object], state: str) -> None:
    assert judged(**changes).state == state  # type: ignore[arg-type]


def test_without_a_bound_nothing_is_stale() -> None:
    assert judged(None, last_checkpoint_at=NOW - 900 * HOUR).state == "ok"
    assert judged(None, head=None, head_at=None, last_checkpoint_at=None).state == "new"
    assert judged(None, status="LOST").state == "lost"


def test_age_counts_from_the_last_time_the_job_had_everything() -> None:
    health = judged(last_checkpoint_at=NOW - 9 * HOUR, looked_at=NOW - 60_000_000)
    assert (health.fresh_at, health.age) == (NOW - 60_000_000, 60_000_000)
    assert judged(last_checkpoint_at=NOW + HOUR // 6).age == 0
    assert judged(last_checkpoint_at=NOW + 900 * HOUR).age == 900 * HOUR
    never = judged(head=None, head_at=None, last_checkpoint_at=None)
    assert (never.fresh_at, never.age) == (None, None)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"status": "LOST", "heartbeat_at": NOW - 5 * 60_000_000},
            (
                "job 'orders' has lost its run (epoch 7, DAG run stateflow_orders/scheduled__1 on worker-2), which has given no "
                "sign of life for 5 minutes: start the next run, it carries on from checkpoint 42"
            ),
        ),
        (
            {"status": "LOST", "heartbeat_at": NOW - 5 * 60_000_000, "pending": [43]},
            "carries on from record 43, which is decided and which it delivers first",
        ),
        (
            {"pending": [43, 44]},
            (
                "job 'orders' has decided record 43 and not delivered it: start the next run, which delivers it, or if that fails "
                "see `stateflow abandon orders 43`"
            ),
        ),
        (
            {"last_checkpoint_at": NOW - 5 * HOUR},
            "job 'orders' is stale: its newest checkpoint is 5 hours old: start its next run, or see why the schedule does not",
        ),
        (
            {"last_checkpoint_at": NOW + HOUR},
            "job 'orders' has a checkpoint of 60 minutes ahead of this clock",
        ),
        (
            {"last_checkpoint_at": NOW + 5 * HOUR},
            "it last was so 5 hours ahead of this clock, so that clock or this one is or was wrong: start its next run",
        ),
        (
            {"last_checkpoint_at": NOW - 9 * HOUR, "looked_at": NOW - 5 * HOUR},
            "it was last seen with nothing left to read 5 hours ago",
        ),
        ({"last_checkpoint_at": NOW - 5 * HOUR, "status": "RUNNING"}, "`stateflow stop orders`"),
        (
            {
                "last_checkpoint_at": NOW - 5 * HOUR,
                "outcome": {"exit_code": 7, "error": "table /out was made anew."},
            },
            "5 hours old: its last run failed (table /out was made anew), start it again when that is settled",
        ),
        (
            {"head": None, "head_at": None, "last_checkpoint_at": None},
            "job 'orders' has no checkpoint 24 hours after it was made: start its next run",
        ),
        (
            {"last_checkpoint_at": None, "head_at": NOW - 2 * HOUR},
            "job 'orders' has no checkpoint 2 hours after it was restored: start its next run",
        ),
        (
            {"outcome": {"exit_code": 1, "error": "the table is gone."}},
            "job 'orders' failed in its last run (the table is gone): start it again when that is settled",
        ),
    ],
)
def test_the_sentence_names_the_job_and_the_next_step(changes: dict[str, object], words: str) -> None:
    assert words in judged(**changes).reason  # type: ignore[arg-type]


def test_only_ok_and_new_are_well() -> None:
    assert judged().well
    assert judged(head=None, head_at=None, last_checkpoint_at=None, created_at=NOW).well
    assert not judged(last_checkpoint_at=NOW - 9 * HOUR).well
    assert not judged(status="LOST").well


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 seconds"),
        (0, "0 seconds"),
        (1, "1 second"),
        (119.9, "119 seconds"),
        (120, "2 minutes"),
        (7199, "119 minutes"),
        (7200, "2 hours"),
        (47.9 * 3600, "47 hours"),
        (50 * 3600, "2 days"),
    ],
)
def test_an_age_is_told_in_one_unit(seconds: float, text: str) -> None:
    assert age_text(seconds * 1e6) == text


def test_the_age_of_a_job_is_that_of_its_newest_complete_checkpoint(tmp_path: Path) -> None:
    made = made_job(tmp_path, batches=2)
    before = sf.Job(str(tmp_path), "orders").status()
    made.batch(carried_out=False)
    job = sf.Job(str(tmp_path), "orders")
    assert before.last_checkpoint_at == job.log().record(3).at
    assert job.status().last_checkpoint_at == before.last_checkpoint_at


def test_an_edit_makes_no_job_fresher(tmp_path: Path) -> None:
    made_job(tmp_path, batches=2)
    job = sf.Job(str(tmp_path), "orders", clock=lambda: NOW)
    before = job.status().last_checkpoint_at
    job.rescale(4)
    after = job.status()
    assert after.head != 3
    assert after.last_checkpoint_at == before // 1000 * 1000  # type: ignore[operator]
    assert health_of(after, NOW, AN_HOUR).state == "stale"


def test_a_glance_says_the_same_without_reading_what_was_collected(tmp_path: Path) -> None:
    made = MadeJob(tmp_path, retained=2)
    for _ in range(5):
        made.batch()
        made.writer.collect(2, orphans=False)
    made.beat(ended=True)
    job = sf.Job(str(tmp_path), "orders", clock=lambda: NOW)
    whole, glance = job.status(), job.glance()
    assert whole.checkpoints["numberOfCompletedCheckpoints"] == 5
    assert glance.checkpoints["numberOfCompletedCheckpoints"] == 2
    assert replace(glance, checkpoints=whole.checkpoints) == whole


@pytest.mark.parametrize(
    ("outcome", "looked"),
    [
        (RunOutcome(stopped=INPUT_DRAINED), True),
        (RunOutcome(stopped=BOUND_REACHED), True),
        (RunOutcome(stopped=JOB_DRAINED), True),
        (RunOutcome(stopped="upgrade to 2.0"), False),
        (RunOutcome(exit_code=4, error="state does not fit"), False),
        (None, False),
    ],
)
def test_a_run_that_found_nothing_new_is_a_sign_of_freshness_one_that_was_cut_off_is_not(
    tmp_path: Path, outcome: RunOutcome | None, looked: bool
) -> None:
    made = made_job(tmp_path, batches=1)
    made.beat(9, at=NOW, ended=True, outcome=outcome)
    status = sf.Job(str(tmp_path), "orders", clock=lambda: NOW).status()
    assert status.looked_at == (NOW if looked else None)
    assert status.outcome.get("stopped") == (outcome.stopped if outcome else None)
    assert health_of(status, NOW, AN_HOUR).state == ("ok" if looked else "stale")


@pytest.mark.parametrize(
    ("looked_at", "state"), [(None, "stale"), (NOW - 60, "ok"), (NOW - 2 * HOUR, "stale")]
)
def test_a_run_that_goes_on_keeps_its_job_fresh_while_it_waits_for_input(
    tmp_path: Path, looked_at: int | None, state: str
) -> None:
    made = made_job(tmp_path, batches=1, ended=False)
    made.beat(9, at=NOW, looked_at=looked_at)
    status = sf.Job(str(tmp_path), "orders", clock=lambda: NOW).status()
    assert (status.status, status.looked_at) == ("RUNNING", looked_at)
    assert health_of(status, NOW, AN_HOUR).state == state


def test_a_heart_tells_with_every_beat_when_nothing_was_left(tmp_path: Path) -> None:
    made = made_job(tmp_path, batches=1)
    heart = Heart(made.store, made.layout, made.writer.owner, 60, threading.Event())
    heart._epoch = made.writer.epoch
    heart.beat_once()
    before = read_heartbeat(made.store, made.layout, made.writer.epoch)
    heart.found_nothing()
    heart.beat_once()
    heart.beat_once(ended=True)
    after = read_heartbeat(made.store, made.layout, made.writer.epoch)
    assert before is not None
    assert before.interval == 60_000_000
    assert before.looked_at is None
    assert after is not None
    assert after.looked_at is not None
    assert after.looked_at <= after.at
