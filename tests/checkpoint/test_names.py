"""One grammar for the names of checkpoints, and one sentence for each way to miss."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateflow.checkpoint.handle import JobHandle
from stateflow.checkpoint.names import (
    Elsewhere,
    LatestCheckpoint,
    Name,
    Slot,
    Tag,
    Time,
    parse,
    slot_by,
    slot_of,
)
from stateflow.checkpoint.statistics import history
from stateflow.errors import NotFoundError, StateflowError, UsageError
from stateflow.jobs.job import Job
from stateflow.jobs.past import kept_records
from tests.jobs.builder import T0, JobBuilder
from tests.jobs.made import made_job
from tests.refusals.refusal import refused

NAMES: list[tuple[str, Name, str]] = [
    ("latest", LatestCheckpoint(), "latest"),
    ("42", Slot(42), "checkpoint:42"),
    ("checkpoint:42", Slot(42), "checkpoint:42"),
    ("tag:v1", Tag("v1"), "tag:v1"),
    ("tag:42", Tag("42"), "tag:42"),
    ("tag:a:b", Tag("a:b"), "tag:a:b"),
    ("2026-01-01T10:00", Time(T0 + 36_000_000_000, 60_000_000), "2026-01-01T10:00Z"),
    ("2026-01-01 10:00:00", Time(T0 + 36_000_000_000, 1_000_000), "2026-01-01T10:00:00Z"),
    ("2026-01-01T10:00:00.0", Time(T0 + 36_000_000_000), "2026-01-01T10:00:00.000000Z"),
    ("2026-01-01 10:00:00.5Z", Time(T0 + 36_000_500_000), "2026-01-01T10:00:00.500000Z"),
    ("2026-01-01T11:00+01:00", Time(T0 + 36_000_000_000, 60_000_000), "2026-01-01T10:00Z"),
    ("2026-01-01", Elsewhere("2026-01-01"), "2026-01-01"),
    ("s3://bucket/savepoint", Elsewhere("s3://bucket/savepoint"), "s3://bucket/savepoint"),
    ("./42", Elsewhere("./42"), "./42"),
    ("newest", Elsewhere("newest"), "newest"),
    ("", Elsewhere(""), ""),
]


@pytest.mark.parametrize(("text", "name", "written"), NAMES)
def test_a_text_names_one_thing(text: str, name: Name, written: str) -> None:
    assert parse(text) == name
    assert str(name) == written
    assert parse(written) == name


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("checkpoint:x", "checkpoint:x does not name a checkpoint: write checkpoint:42"),
        ("checkpoint:-1", "checkpoint:-1 does not name a checkpoint: write checkpoint:42"),
        ("checkpoint:²", "checkpoint:² does not name a checkpoint: write checkpoint:42"),
        (
            "checkpoint:",
            "'checkpoint' names no checkpoint: write latest, 42, checkpoint:42, tag:NAME or a time such as 2026-11-20T10:00",
        ),
        (
            "2026-13-01T10:00",
            "'2026-13-01T10:00' is no time: write 2026-11-20T10:00 (UTC), 2026-11-20T10:00:30Z or 2026-11-20T10:00+01:00",
        ),
        (
            "tag:",
            "'tag' names no checkpoint: write latest, 42, checkpoint:42, tag:NAME or a time such as 2026-11-20T10:00",
        ),
        (
            "tag",
            "'tag' names no checkpoint: write latest, 42, checkpoint:42, tag:NAME or a time such as 2026-11-20T10:00",
        ),
    ],
)
def test_half_a_name_says_how_to_write_a_whole_one(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text)
    assert str(raised.value) == sentence


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("9" * 5000, ("5000 digits", "checkpoint:42")),
        ("checkpoint:" + "9" * 16, ("16 digits", "checkpoint:42")),
        ("9999-12-31T23:59-01:00", ("'9999-12-31T23:59-01:00'", "1 to 9999")),
        ("0001-01-01T00:00+14:00", ("'0001-01-01T00:00+14:00'", "1 to 9999")),
    ],
)
def test_what_no_checkpoint_can_be_called_is_refused(text: str, named: tuple[str, ...]) -> None:
    with refused(UsageError, *named) as caught:
        parse(text)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", ["9" * 15, "9999-12-31T23:59Z", "0001-01-01T00:00"])
def test_the_outermost_numbers_and_times_are_names(text: str) -> None:
    assert str(parse(text))


def test_a_name_leads_to_the_complete_checkpoint_that_is_meant(tmp_path: Path) -> None:
    made = made_job(tmp_path)
    made.tag(3, "v1")
    job = Job(str(tmp_path), "orders")
    log = job.log()
    assert [slot_of(parse(text), job, log) for text in ("latest", "2", "checkpoint:3", "tag:v1")] == [
        4,
        2,
        3,
        3,
    ]


@pytest.mark.parametrize(
    ("text", "error", "sentence"),
    [
        ("77", NotFoundError, "job 'orders' has no checkpoint 77 (any more): it keeps 2, 3, 4, 5; "),
        ("1", NotFoundError, "record 1 of job 'orders' is no complete checkpoint (it is a fence): "),
        (
            "5",
            NotFoundError,
            "record 5 of job 'orders' is no complete checkpoint (it is not carried out yet): ",
        ),
        ("tag:v9", NotFoundError, "job 'orders' has no tag 'v9'; its tags are: v1"),
        (
            "newest",
            UsageError,
            "'newest' names no checkpoint: write latest, 42, checkpoint:42, tag:NAME or a time such as 2026-11-20T10:00",
        ),
    ],
)
def test_a_name_that_leads_nowhere_says_what_there_is(
    tmp_path: Path, text: str, error: type[StateflowError], sentence: str
) -> None:
    made = made_job(tmp_path)
    made.tag(3, "v1")
    made.batch(carried_out=False)
    job = Job(str(tmp_path), "orders")
    with pytest.raises(error) as raised:
        slot_of(parse(text), job, job.log())
    assert str(raised.value).startswith(sentence)


def test_a_job_that_has_not_run_has_no_latest_checkpoint(tmp_path: Path) -> None:
    made_job(tmp_path, batches=0)
    job = Job(str(tmp_path), "orders")
    with refused(NotFoundError, "'orders'", "no complete checkpoint yet", "run it once"):
        slot_of(LatestCheckpoint(), job, job.log())


def slot_then(made: JobBuilder, micros: int) -> int:
    job = JobHandle(made.store, made.layout, clock=made.clock)
    return slot_of(Time(micros), job, job.log())


def test_a_time_is_the_checkpoint_that_was_the_newest_then(tmp_path: Path) -> None:
    made = JobBuilder(str(tmp_path))
    records = [made.decide() for _ in range(3)]
    for record in records:
        assert slot_then(made, record.at) == record.slot
        assert slot_then(made, record.at + 1) == record.slot
    assert slot_then(made, records[1].at - 1) == records[0].slot
    assert slot_then(made, made.clock()) == records[2].slot
    with refused(NotFoundError, "had no checkpoint yet at", f"it keeps is {records[0].slot} of 2026"):
        slot_then(made, records[0].at - 1)
    with refused(UsageError, "has not come yet: write latest"):
        slot_then(made, made.clock() + 3_600_000_000)


def test_the_time_of_the_newest_checkpoint_has_come_on_a_host_whose_clock_is_behind(tmp_path: Path) -> None:
    now = T0
    made = JobBuilder(str(tmp_path), clock=lambda: now)
    ahead = made.decide()
    now -= 5_000_000
    assert slot_then(made, ahead.at) == ahead.slot
    job = JobHandle(made.store, made.layout, clock=made.clock)
    assert slot_by(Time(ahead.at), job, history(made.store, made.layout, log=job.log())) == ahead.slot
    with refused(UsageError, "has not come yet: write latest"):
        slot_then(made, ahead.at + 1)
    later = made.decide()
    with refused(UsageError, "has not come yet"):  # and which of the two is meant is not known
        slot_then(made, ahead.at)
    assert slot_then(made, later.at) == later.slot


@pytest.mark.parametrize("unit", ["2026-01-01T00:02", "2026-01-01 00:02:00", "2026-01-01T01:02:00+01:00"])
def test_a_time_that_commands_cut_is_that_of_the_checkpoint_beside_it(tmp_path: Path, unit: str) -> None:
    now = T0
    made = JobBuilder(str(tmp_path), clock=lambda: now)
    made.decide()
    now = T0 + 120_400_000
    shown = made.decide()
    now = T0 + 180_000_000
    later = made.decide()
    job = Job(str(tmp_path), "orders", clock=made.clock)
    log = job.log()
    assert slot_of(parse(unit), job, log) == shown.slot
    assert slot_by(parse(unit), job, job.history()) == shown.slot
    assert slot_of(parse("2026-01-01T00:02:00.0"), job, log) == shown.slot - 1, "fractions say it exactly"
    assert [r.slot for r in kept_records(job, log, since=unit)] == [shown.slot, later.slot]
    assert [r.slot for r in kept_records(job, log, since=unit, until=unit)] == [shown.slot]


def test_the_state_of_a_time_whose_checkpoint_was_collected_is_not_that_of_an_older_one(
    tmp_path: Path,
) -> None:
    made = JobBuilder(str(tmp_path), retained=2)
    records = [made.decide()]
    made.tag(records[0].slot, "kept")
    records += [made.decide() for _ in range(5)]
    made.collect(retained=2)
    for record in (records[0], records[4], records[5]):
        assert slot_then(made, record.at) == record.slot
    first, collected, next_one = records[0].slot, records[2], records[4].slot
    with pytest.raises(NotFoundError) as raised:
        slot_then(made, collected.at)
    assert f"was {collected.slot}, which has been collected" in str(raised.value)
    assert f"the job keeps {first} of 2026" in str(raised.value)
    assert f" and {next_one} of 2026" in str(raised.value)
