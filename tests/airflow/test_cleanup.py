"""Cleaning up by a task: what goes and why, in bytes; nothing in a dry run; the others when one job is broken."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from stateflow.airflow import StateflowCleanupOperator, StateflowSavepointOperator
from stateflow.checkpoint.pins import list_pins, pin
from stateflow.checkpoint.process import this_process
from stateflow.checkpoint.retention import Retention
from stateflow.config.options import load
from stateflow.config.retention_rule import retention_rule
from stateflow.format.records import Owner
from stateflow.jobs.job import Job
from stateflow_ui.connections import root_of
from tests.airflow.conftest import Connect
from tests.airflow.tasks import Try, context_of, killed_at_every_write, ran, task
from tests.jobs.files import files_of
from tests.jobs.made import MadeJob, made_job
from tests.jobs.snapshots import DEAD
from tests.refusals.refusal import lacking, refused
from tests.ui.catalogs import Clock, catalog_of


def cleanup(attempt: Try | None = None, **arguments: Any) -> Any:
    return ran(StateflowCleanupOperator, attempt, **{"job": "", **arguments})


def used(root: Path, *, batches: int = 6) -> MadeJob:
    """A job with subsumed checkpoints, an orphan, an expired savepoint and one that was never finished."""
    job = made_job(root, batches=batches, retained=1)
    job.store.put(job.layout.shared_file(1, 2, "lost", ".sst"), b"left by a task that died")
    ran(StateflowSavepointOperator, name="old", expires=timedelta(microseconds=1))
    half = root / "_savepoints" / "orders" / "half" / "state"
    half.mkdir(parents=True)
    (half / f"{DEAD}-000001.sst").write_bytes(b"half of it")
    return job


def test_what_nobody_needs_goes_and_the_bytes_are_told_by_reason(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    used(tmp_path)
    result = cleanup(retained=2)
    report = result["jobs"]["orders"]
    assert report["records"] == {"subsumed": 5}
    assert report["kept"] == {"retained": 1, "head": 1}
    assert report["bytes_by_reason"]["subsumed"] == 3 * len("state of 1")
    assert report["bytes_by_reason"]["orphan"] == len("left by a task that died")
    assert report["bytes_by_reason"]["unfinished savepoint"] >= len("half of it")
    assert report["bytes_by_reason"]["expired savepoint"] > 0
    assert report["savepoints"] == {
        f"file://{tmp_path}/_savepoints/orders/old": "expired savepoint",
        f"file://{tmp_path}/_savepoints/orders/half": "unfinished savepoint",
    }
    assert result["bytes_by_reason"] == report["bytes_by_reason"]
    assert result["deleted"]
    assert not any(path.startswith("_savepoints/") for path in files_of(tmp_path))
    job = Job(str(tmp_path), "orders")
    assert [record.slot for record in job.checkpoints()] == [6, 7]
    assert job.verify(deep=True) == []


def test_a_dry_run_tells_the_same_and_deletes_nothing(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    used(tmp_path)
    before = files_of(tmp_path)
    planned = cleanup(retained=2, dry_run="{{ params.dry_run }}", params={"dry_run": True})
    assert files_of(tmp_path) == before
    done = cleanup(retained=2)
    assert (planned["deleted"], done["deleted"]) == (False, True)
    planned, done = planned["jobs"]["orders"], done["jobs"]["orders"]
    would, freed = planned.pop("bytes_by_reason"), done.pop("bytes_by_reason")
    assert planned == done
    assert would.keys() == freed.keys()
    # A disposal makes a claim first, which goes with the rest.
    assert {name: would[name] for name in ("subsumed", "orphan")} == {
        name: freed[name] for name in ("subsumed", "orphan")
    }
    assert 10 == would["unfinished savepoint"] <= freed["unfinished savepoint"]
    assert 0 < would["expired savepoint"] <= freed["expired savepoint"]


def test_age_tags_and_savepoints_keep_what_they_say(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    used(tmp_path).tag(3, "v1")
    result = cleanup(job="orders", retained=1, expired_savepoints=False)
    assert [record.slot for record in Job(str(tmp_path), "orders").checkpoints()] == [3, 7]
    assert result["jobs"]["orders"]["savepoints"] == {}
    assert (tmp_path / "_savepoints" / "orders" / "old" / "_metadata").exists()
    assert cleanup(retained=1, age="{{ '40000 weeks' }}")["jobs"]["orders"]["records"] == {}


def test_what_the_job_s_own_retention_keeps_is_told_with_the_setting(
    tmp_path: Path, connect: Connect
) -> None:
    connect(tmp_path)
    made = made_job(tmp_path, batches=12, retained=10)
    for dry_run in (True, False):
        report = cleanup(retained=3, dry_run=dry_run)["jobs"]["orders"]
        assert report["kept"] == {"announced": 7, "retained": 2, "head": 1}
        assert report["advice"].startswith(
            "7 more checkpoints stay, because the job's last run keeps them by its own options"
        )
        assert (
            "set retained_checkpoints=3, retained_age='0' and retention='none' in the job's connection"
            in report["advice"]
        )
        assert report["kept_by"] == [
            "3 checkpoints as the newest (3, by retained of this task)",
            "7 checkpoints because the job's last run keeps them by its own options retained_checkpoints, retained_age and retention",
        ]
    assert len(Job(str(tmp_path), "orders").checkpoints()) == 10
    # The next step that the sentence names is the one that works.
    made.begin("with the other setting", 3)
    made.batch()
    report = cleanup(retained=3)["jobs"]["orders"]
    assert report["kept"] == {"retained": 2, "head": 1}
    assert "advice" not in report
    assert len(Job(str(tmp_path), "orders").checkpoints()) == 3


def test_the_retention_rule_of_a_job_and_of_a_clean_up(tmp_path: Path, connect: Connect) -> None:
    rule = "hourly for 3000 weeks"
    connect(tmp_path)
    job = MadeJob(tmp_path)
    job.tick = 5 * 60_000_000
    job.batches(9, ended=True)
    report = cleanup(retained=1, retention=rule, dry_run=True)["jobs"]["orders"]
    assert report["kept"]["rule"] >= 2
    assert any("by the rule: hourly for 3000 weeks" in sentence for sentence in report["kept_by"])
    job.begin("by the rule", Retention(1, rule=retention_rule(rule), now=job.clock()))
    job.batch()
    stay = [*job.log().kept, job.log().next_slot - 1]
    for arguments in ({}, {"retention": "none"}, {"retention": rule}):
        cleanup(retained=1, **arguments)
        found = [record.slot for record in Job(str(tmp_path), "orders").checkpoints()]
        assert set(stay) <= set(found), "what the job's last run keeps stays, whatever the clean-up says"
    assert len(job.log().kept) >= 2


def test_a_rule_that_is_wrong_is_refused_while_the_dag_is_parsed(tmp_path: Path, connect: Connect) -> None:
    with pytest.raises(ValueError, match=r"retention='houry for 2 days' .* did you mean hourly"):
        StateflowCleanupOperator(task_id="cleanup", retention="houry for 2 days")


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({"retention": "daily for 3000 weeks"}, {"age": "1 hour"}),
        ({"retained_age": "1 hour"}, {"retention": "daily for 3000 weeks"}),
        ({}, {"age": "1 hour", "retention": "daily for 3000 weeks"}),
    ],
)
def test_an_age_deletes_nothing_that_a_rule_keeps(
    tmp_path: Path, connect: Connect, options: dict[str, str], arguments: dict[str, str]
) -> None:
    connect(tmp_path, options=options)
    job = MadeJob(tmp_path)
    job.tick = 86_400_000_000
    job.begin("it", 1)
    job.batches(9, ended=True)
    before = Job(str(tmp_path), "orders").checkpoints()
    catalog = catalog_of([root_of("stateflow_default")], Clock())
    foreseen = asyncio.run(catalog.storage("stateflow_default", "orders", 1, age=timedelta(hours=1)))
    young = cleanup(retained=1, **{**arguments, "age": "40000 weeks"}, dry_run=True)["jobs"]["orders"]
    assert "young" not in young["kept"], "the rule keeps them as well, so no other age lets them go"
    report = cleanup(retained=1, **arguments)["jobs"]["orders"]
    assert Job(str(tmp_path), "orders").checkpoints() == before
    assert report["kept"] == {"rule": 8, "head": 1}
    if "retention" in options:
        assert foreseen.kept_checkpoints == len(before), "the page counts what the task does"
        assert cleanup(retained=1, retention="none", **arguments)["jobs"]["orders"]["kept"] == {"head": 1}


def test_the_advice_for_a_rule_and_an_age_is_one_that_the_options_take(
    tmp_path: Path, connect: Connect
) -> None:
    connect(tmp_path, options={"retention": "daily for 9 days"})
    made_job(tmp_path, batches=12, retained=10)
    report = cleanup(retained=3, age="5 minutes", dry_run=True)["jobs"]["orders"]
    advised = {
        "retained_checkpoints": "3",
        "retained_age": "0",
        "retention": "all for 5 minutes, daily for 9 days",
    }
    assert not lacking(
        report["advice"], (advised["retained_age"], advised["retention"], "what daily for 9 days keeps")
    )
    load(code=advised, env={})


def test_an_age_that_keeps_more_than_the_form_s_number_is_told_with_who_has_said_it(
    tmp_path: Path, connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    connect(tmp_path, options={"retained_age": "40000 weeks"})
    used(tmp_path, batches=6).tag(2, "v1")
    form = {"job": "orders", "retained": "3", "expired_savepoints": False}
    report = cleanup(**form, age="{{ '' }}")["jobs"]["orders"]
    assert report["records"] == {"subsumed": 1}, "a claim, before the first checkpoint"
    assert report["kept"] == {"young": 2, "retained": 2, "head": 1, "tag": 1}
    assert report["kept_by"][:2] == [
        "3 checkpoints as the newest (3, by retained of this task)",
        "2 checkpoints as younger than 40000 weeks, by option retained_age (connection 'stateflow_default' or the task)",
    ]
    assert "1 checkpoint for tag v1" in report["kept_by"]
    assert report["advice"] == (
        "2 more checkpoints stay, because they are younger than 40000 weeks, by option retained_age (connection 'stateflow_default' "
        "or the task): to keep 3, give the cleanup age='0 seconds'"
    )
    log = capsys.readouterr().out
    for sentence in (*report["kept_by"], report["advice"]):
        assert sentence in log, "it stands in the task's log"
    # The next step that the sentence names is the one that works.
    report = cleanup(**form, age="0 seconds")["jobs"]["orders"]
    assert report["records"] == {"subsumed": 2}
    assert "advice" not in report
    assert [record.slot for record in Job(str(tmp_path), "orders").checkpoints()] == [2, 5, 6, 7]


def test_pins_of_processes_that_are_gone_keep_nothing(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    job = used(tmp_path)
    owner = this_process()
    gone = Owner(run="gone", host=owner.host, pid=2**22 + 1, pid_scope=owner.pid_scope)
    pin(job.store, job.layout, 3, kind="reader", owner=gone, ids=job.ids, clock=job.clock)
    cleanup(retained=1, dry_run=True)
    assert [left.owner.run for left in list_pins(job.store, job.layout)] == ["gone"]
    assert cleanup(retained=1)["jobs"]["orders"]["records"] == {"subsumed": 6}
    assert list_pins(job.store, job.layout) == []


def test_all_jobs_of_the_root_are_cleaned_and_a_broken_one_keeps_no_other_from_it(
    tmp_path: Path, connect: Connect
) -> None:
    connect(tmp_path)
    for name in ("a-broken", "fraud"):
        MadeJob(tmp_path, name, retained=1).batches(4)
    newest = max((tmp_path / "a-broken").glob("chk-*/_pending"))
    newest.write_bytes(newest.read_bytes()[:-5])
    attempt = Try("it")
    with pytest.raises(AirflowFailException, match=r"; 1 of 2 jobs were not cleaned up$"):
        cleanup(attempt, retained=1)
    assert list(attempt.pushed["report"]["jobs"]) == ["fraud"]
    assert [record.slot for record in Job(str(tmp_path), "fraud").checkpoints()] == [5]


@pytest.mark.slow
def test_a_retry_after_a_kill_at_any_point_finishes_it(tmp_path: Path, connect: Connect) -> None:
    stages = 0

    def fresh(at: int) -> Path:
        root = tmp_path / str(at)
        connect(root)
        used(root, batches=4)
        return root

    for at, root in killed_at_every_write(fresh, lambda place: cleanup(Try("it"), retained=1)):
        stages = at
        cleanup(Try("it", try_number=2), retained=1)
        job = Job(str(root), "orders")
        assert [record.slot for record in job.checkpoints()] == [5], at
        assert job.verify(deep=True) == [], at
        assert not any(path.startswith("_savepoints/") for path in files_of(root)), at
        assert cleanup(Try("it", run_id="later"), retained=1)["bytes_by_reason"] == {}, at
    assert stages >= 10


def test_a_job_that_came_out_empty_is_not_all_of_them(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    used(tmp_path)
    before = files_of(tmp_path)
    with refused(AirflowFailException, "task 'it'", "job came out empty", "or '*' to clean up all"):
        ran(StateflowCleanupOperator, job="{{ params.job }}", params={"job": ""})
    made = task(StateflowCleanupOperator, job="")  # as one of those that a mapped task is expanded to
    context = context_of(Try("it"))
    context["ti"].map_index = 0
    with refused(AirflowFailException, "job came out empty"):
        made.execute(context)
    assert files_of(tmp_path) == before
    for job in ("orders", "*"):
        assert cleanup(job="{{ params.job }}", params={"job": job}, retained=2)["jobs"].keys() == {"orders"}


def test_an_empty_root_is_clean(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    result = cleanup()
    assert (result["jobs"], result["bytes_by_reason"]) == ({}, {})


def test_a_root_that_is_not_there_is_no_empty_one(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path / "typo")
    with pytest.raises(
        AirflowException, match="typo does not exist on this worker: check connection 'stateflow_default'"
    ):
        cleanup()
    assert not (tmp_path / "typo").exists()
