"""What a job has not read yet, told from its record and its sources without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from stateflow.checkpoint.lineage import Dataset, Endpoint, RunLineage, report_lineage
from stateflow.errors import NotFoundError, StateflowError, UsageError
from stateflow.format.records import Owner, SourceState
from stateflow.jobs.job import Job
from stateflow.jobs.unread import Looks, newer_messages
from stateflow.storage.files import inline
from tests.jobs.made import MadeJob
from tests.refusals.refusal import refused


class Reader(MadeJob):
    """Its batches have this source."""

    source: SourceState | None = None

    def decide(self, **fields: Any) -> Any:
        if self.source is not None:
            fields["sources"] = {"events": self.source}
        return super().decide(**fields)


def commit(table: Path, version: int, **action: Any) -> None:
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    made: list[dict[str, Any]] = [{"metaData": {"id": "r"}}] if version == 0 else []
    body = [*made, action or {"add": {"path": f"f{version}", "dataChange": True}}]
    (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, body)))


def noted(job: MadeJob, *datasets: Dataset) -> None:
    """As a run from Airflow leaves it."""
    endpoint = Endpoint(uid="events", datasets=datasets)
    lineage = RunLineage(epoch=job.writer.epoch, owner=Owner(run="r"), inputs=(endpoint,))
    report_lineage(job.store, job.layout, lineage)


def looks(job: MadeJob, **fields: Any) -> Looks:
    return Looks(Job(job.root, job.name), **fields)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    for version in range(5):
        commit(tmp_path / "orders", version)
    return tmp_path / "orders"


@pytest.fixture
def job(tmp_path: Path, table: Path) -> MadeJob:
    """It has read versions 0 to 4."""
    made = MadeJob(tmp_path / "root")
    while made.batch() < 5:
        pass
    made.beat(ended=True)
    noted(made, Dataset(kind="delta", place=str(table)))
    return made


def test_a_table_whose_rows_are_read_has_nothing_and_a_commit_with_rows_is_something(
    job: MadeJob, table: Path
) -> None:
    look = looks(job)
    assert look.look().newest == ""
    commit(table, 5, commitInfo={"operation": "OPTIMIZE"})
    assert look.look().newest == "", "a commit without rows for a reader"
    commit(table, 6)
    seen = look.look()
    assert seen.text == f"source events: version 6 of {table}"
    assert (seen.beats, look.look()) == (None, seen)
    job.batch()
    job.batch()
    after = look.look()
    assert after.newest == ""
    assert after.position != seen.position


def test_a_job_that_was_taken_back_stands_where_it_has_not_stood_before(job: MadeJob, table: Path) -> None:
    commit(table, 5)
    called = looks(job).look()
    while job.batch() < 6:
        pass
    job.beat(ended=True)
    assert looks(job).look().newest == ""
    job.restore("checkpoint:5").apply()
    again = looks(job).look()
    assert again.newest == called.newest
    assert again.position != called.position, "or a watcher takes it for what it has called for"
    assert looks(job).look() == again


def test_a_commit_that_only_its_catalog_knows_may_be_something(job: MadeJob, table: Path) -> None:
    staged = table / "_delta_log" / "_staged_commits"
    staged.mkdir()
    for version in (3, 4):
        (staged / f"{version:020d}.a1.json").write_text("{}")
    assert looks(job).look().newest == "", "they are in the log, too"
    (staged / f"{5:020d}.b2.json").write_text("{}")
    seen = looks(job).look()
    assert (
        seen.text
        == f"source events: version 4 of {table}, and perhaps version 5, of which only its catalog knows"
    )
    assert looks(job).look() == seen
    commit(table, 5)
    assert looks(job).look().text == f"source events: version 5 of {table}"


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        ({"sources": ["orders"]}, UsageError, "job 'orders' has no source 'orders': it has events"),
        (
            {"places": {"events": "/nowhere/at/all"}},
            UsageError,
            "the log of Delta table /nowhere/at/all cannot be read from here",
        ),
        ({"places": {"events": "s3://other/table"}}, UsageError, "in the bucket of the checkpoint root"),
    ],
)
def test_a_source_that_cannot_be_looked_at_is_named(
    job: MadeJob, fields: dict[str, Any], error: type[StateflowError], says: str
) -> None:
    with pytest.raises(error, match=says):
        looks(job, **fields).look()


def test_a_job_that_is_not_there_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    with refused(NotFoundError, "no job 'odrers'", "none", "run it once"):
        Looks(Job(str(tmp_path / "root"), "odrers")).look()


def test_a_place_that_no_run_has_noted_has_to_be_said(tmp_path: Path, table: Path) -> None:
    made = MadeJob(tmp_path / "root")
    made.batch()
    with refused(UsageError, "run its DAG once", "places={'events': '/data/...'}"):
        looks(made).look()
    assert looks(made, places={"events": str(table)}).look().newest


def test_files_that_spark_would_read_and_has_not_are_something(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "day=1").mkdir(parents=True)
    (folder / "other").mkdir()
    for name in ("a b.json", "day=1/c.json", "other/d.json", "_e.json", ".f.json"):
        (folder / name).write_text("{}")
    job = Reader(str(tmp_path / "root"))

    def read(*names: str) -> None:
        lines = [
            json.dumps({"path": (folder / name).as_uri(), "timestamp": 1, "batchId": 0}) for name in names
        ]
        entry = inline("0/0", "\n".join(["v1", *lines]).encode())
        job.source = SourceState(lines=('{"logOffset":0}',), kind="file", files=(entry,))
        job.batch()
        noted(job, Dataset(kind="file", place=str(folder)))

    read("a b.json")
    look = looks(job)
    first = look.look()
    assert first.text.startswith(f"source events: 1 files in {folder} (")
    (folder / "g.json").write_text("{}")
    assert look.look().newest != first.newest
    read("a b.json", "day=1/c.json", "g.json")
    assert look.look().newest == ""


def test_topics_are_asked_for_their_ends(tmp_path: Path) -> None:
    job = Reader(str(tmp_path / "root"))
    job.source = SourceState(lines=('{"clicks":{"0":12,"1":7}}',), kind="kafka")
    job.batch()
    noted(job, Dataset(kind="kafka", place="clicks", servers="broker:9092"))
    asked: list[Any] = []

    def ends(topics: Sequence[str], servers: str) -> Mapping[str, Mapping[int, int]]:
        asked.append((list(topics), servers))
        return {"clicks": {0: 12, 1: 9}}

    assert looks(job, topic_ends=ends).look().text == "source events: messages up to 9 in clicks-1"
    assert asked == [(["clicks"], "broker:9092")]
    assert newer_messages({"clicks": {0: 12, 1: 7}}, '{"clicks":{"0":12,"1":7}}') == ""
    assert newer_messages({"clicks": {0: 12, 2: 1}}, '{"clicks":{"0":12}}') == "messages up to 1 in clicks-2"
