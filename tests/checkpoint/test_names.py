"""One grammar for the names of checkpoints, and one sentence for each way to miss."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateflow.checkpoint.names import Elsewhere, LatestCheckpoint, Name, Slot, Tag, parse, slot_of
from stateflow.errors import NotFoundError, StateflowError, UsageError
from stateflow.jobs.job import Job
from tests.jobs.made import made_job

NAMES: list[tuple[str, Name, str]] = [
    ("latest", LatestCheckpoint(), "latest"),
    ("42", Slot(42), "checkpoint:42"),
    ("checkpoint:42", Slot(42), "checkpoint:42"),
    ("tag:v1", Tag("v1"), "tag:v1"),
    ("tag:42", Tag("42"), "tag:42"),
    ("tag:a:b", Tag("a:b"), "tag:a:b"),
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
        ("checkpoint:", "'checkpoint' names no checkpoint: write latest, 42, checkpoint:42 or tag:NAME"),
        ("tag:", "'tag' names no checkpoint: write latest, 42, checkpoint:42 or tag:NAME"),
        ("tag", "'tag' names no checkpoint: write latest, 42, checkpoint:42 or tag:NAME"),
    ],
)
def test_half_a_name_says_how_to_write_a_whole_one(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text)
    assert str(raised.value) == sentence


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
        ("newest", UsageError, "'newest' names no checkpoint: write latest, 42, checkpoint:42 or tag:NAME"),
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
    with pytest.raises(NotFoundError, match="job 'orders' has no complete checkpoint yet: run it once"):
        slot_of(LatestCheckpoint(), job, job.log())
