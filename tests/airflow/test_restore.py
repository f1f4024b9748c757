"""Restores by a task: planned for an approval, applied once whatever is killed, refused in a sentence."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from stateflow.airflow import StateflowRestoreOperator
from stateflow.checkpoint.log import read_log
from stateflow.checkpoint.pins import list_pins
from stateflow.format.records import Record
from stateflow.jobs.job import Job
from tests.airflow.conftest import Connect
from tests.airflow.tasks import Try, context_of, killed_at_every_write, ran, task
from tests.jobs.files import files_of
from tests.jobs.made import ORDERS, REPOSITORY, MadeJob, made_job
from tests.refusals.refusal import refused

PIPELINE = f"{ORDERS}:orders"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipeline's file puts its folder on the path."""
    import sys

    monkeypatch.setattr(sys, "path", [*sys.path])


def restore(attempt: Try | None = None, **arguments: Any) -> Any:
    return ran(StateflowRestoreOperator, attempt, **{"pipeline": PIPELINE, **arguments})


def restores(root: Path, name: str = "orders") -> list[Record]:
    job = Job(str(root), name)
    return [record for record in read_log(job.store, job.layout).chain if record.kind == "restore"]


def test_a_plan_can_be_approved_and_has_changed_nothing(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path).tag(2, "v1")
    before = files_of(tmp_path)
    told = restore(origin="tag:v1", dry_run="{{ params.dry }}", params={"dry": "true"})
    assert files_of(tmp_path) == before
    assert (told["restored"], told["checkpoint"]) == (False, 2)
    assert told["document"]["from"] == "tag:v1"
    assert told["plan"].startswith(
        "**Restore job `orders` from `tag:v1`**\n\n|  |  |\n| --- | --- |\n| snapshot | checkpoint 2 "
    )
    for row in (
        "| `balance` | compatible | `total` kept",
        "| `events` | resumes | ",
        "| `totals` | `/data/totals` | **keeps**: keeps its output up to slot 4",
        "- the job goes back by 2 records",
    ):
        assert row in told["plan"]


def test_a_restore_is_one_record_that_names_its_task(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path)
    attempt = Try("it")
    told = restore(attempt, origin="checkpoint:2", note="bad prices", parallelism="2")
    [record] = restores(tmp_path)
    assert (told["restored"], told["record"], told["timeline"]) == (True, record.slot, 2)
    assert (record.origin, record.based_on) == ("checkpoint:2", 2)
    assert (record.owner.dag_run, record.owner.task, record.owner.user) == ("upkeep/manual__1", "it", "ann")
    assert record.owner.note == "bad prices"
    assert len(record.operators["balance"].assignment) == 2
    assert attempt.pushed["stateflow"]["checkpoint"] == record.slot


def approved(**arguments: Any) -> str:
    """What the XCom of a task that planned has."""
    digest = restore(dry_run=True, **arguments)["digest"]
    assert isinstance(digest, str)
    return digest


def test_a_restore_takes_the_plan_that_was_approved_and_no_other(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path)
    digest = approved(origin="checkpoint:2")
    before = files_of(tmp_path)
    for other in ({"origin": "checkpoint:3"}, {"parameters": {"output": "/evil"}}, {"parallelism": 2}):
        with pytest.raises(AirflowFailException, match="is not the one that was approved any more"):
            restore(**{"origin": "checkpoint:2", "approved": digest, **other})
    assert files_of(tmp_path) == before
    told = restore(
        origin="checkpoint:2",
        approved="{{ params.digest }}",
        params={"digest": digest},
        takeover=True,
        note="why",
    )
    assert (told["restored"], told["digest"]) == (True, digest)
    assert (restores(tmp_path)[0].based_on, told["document"]["digest"]) == (2, digest)


@pytest.mark.parametrize("rendered", ["", "None", "{{ params.nothing }}", "0123"])
def test_an_approval_that_is_empty_approves_nothing(tmp_path: Path, connect: Connect, rendered: str) -> None:
    connect(tmp_path)
    made_job(tmp_path)
    with refused((AirflowFailException, ValueError), "approved=", "is no digest of a restore plan"):
        restore(origin="checkpoint:2", approved=rendered, params={"nothing": ""})
    assert restores(tmp_path) == []


def answer(by: str | None, chosen: str = "Approve") -> dict[str, Any]:
    """What Airflow's approval task returns."""
    person = {"id": by, "name": by} if by else None
    return {"chosen_options": [chosen], "params_input": {}, "responded_by_user": person}


@pytest.mark.parametrize(
    ("approval", "user", "sentence"),
    [
        (
            answer("ann"),
            "ann",
            "'ann' has asked for this restore and approved it: four_eyes needs two people",
        ),
        (answer("Ann"), "ann", "'Ann' has asked for this restore and approved it"),
        (
            answer("eve"),
            "ann",
            r"'eve' has approved this restore, and is none of its approvers \(Ann, ann, bob\)",
        ),
        (answer("bob"), None, "nobody knows who asked for this restore"),
        (answer(None), "ann", "nobody has approved this restore"),
        (answer("bob", "Reject"), "ann", "nobody has approved this restore"),
        (None, "ann", "nobody has approved this restore"),
        ("{'chosen_options': ['Approve']}", "ann", "approval=.* has to be what an approval task returns"),
    ],
)
def test_a_restore_that_needs_two_people_is_refused_where_it_is_carried_out(
    tmp_path: Path, connect: Connect, approval: Any, user: str | None, sentence: str
) -> None:
    connect(tmp_path)
    made_job(tmp_path)
    digest = approved(origin="checkpoint:2")
    before = files_of(tmp_path)
    made = task(
        StateflowRestoreOperator, pipeline=PIPELINE, origin="checkpoint:2", approved=digest,
        four_eyes=True, approvers=["bob", "ann", "Ann"],
    )  # fmt: skip
    made.approval = approval  # as Airflow renders it
    with pytest.raises(AirflowFailException, match=sentence):
        made.execute(context_of(Try("it"), user=user))
    assert files_of(tmp_path) == before


def test_whoever_clears_another_person_s_dag_run_cannot_approve_it_alone(
    tmp_path: Path, connect: Connect
) -> None:
    connect(tmp_path)
    made_job(tmp_path)
    strict = {"origin": "checkpoint:2", "approval": answer("bob"), "four_eyes": True, "approvers": "ann, bob"}
    wanted = {**strict, "approved": approved(origin="checkpoint:2")}
    with refused(AirflowFailException, "four_eyes", "trigger the DAG", "cleared"):
        restore(Try("it", clears=1), **wanted)
    assert restores(tmp_path) == []
    assert restore(Try("it"), **wanted)["restored"]


def test_a_list_of_approvers_that_came_out_empty_opens_nothing(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path)
    with refused((AirflowFailException, ValueError), "approvers='' names nobody"):
        restore(origin="checkpoint:2", approvers="{{ params.nobody }}", params={"nobody": ""})
    assert restores(tmp_path) == []


def test_a_restore_that_two_people_wanted_names_both_in_the_history(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path)
    strict = {
        "origin": "checkpoint:2",
        "approval": answer("bob"),
        "four_eyes": "true",
        "approvers": "bob, carl",
    }
    with pytest.raises(AirflowFailException, match="which plan was approved is not known"):
        restore(**strict)
    restore(**strict, approved=approved(origin="checkpoint:2"), note="bad prices")
    [record] = restores(tmp_path)
    assert (record.owner.user, record.owner.note) == ("ann", "bad prices; approved by bob")


def test_a_run_that_went_on_after_the_approval_makes_it_void(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    job = made_job(tmp_path)
    digest = approved(origin="checkpoint:4")
    job.ticks = 1000
    job.begin("another run")
    job.batch()
    job.beat(ended=True)
    with refused(AirflowFailException, "plan again and have that approved"):
        restore(origin="checkpoint:4", approved=digest)
    assert restores(tmp_path) == []
    assert restore(origin="checkpoint:4", approved=approved(origin="checkpoint:4"))["restored"]


@pytest.mark.slow
@pytest.mark.parametrize("origin", ["checkpoint:2", "latest"])
def test_a_retry_after_a_kill_at_any_point_restores_once(
    tmp_path: Path, connect: Connect, origin: str
) -> None:
    stages = 0
    digests: dict[Path, str] = {}

    def fresh(at: int) -> Path:
        root = tmp_path / str(at)
        made_job(root)
        connect(root)
        digests[root] = approved(origin=origin)
        return root

    for at, root in killed_at_every_write(
        fresh, lambda place: restore(Try("it"), origin=origin, approved=digests[place])
    ):
        stages = at
        told = restore(Try("it", try_number=2), origin=origin, approved=digests[root])
        [record] = restores(root)
        assert told["record"] == record.slot, at
        job = Job(str(root), "orders")
        log = job.log()
        assert log.head is not None
        assert (log.head.slot, log.head.timeline, log.pending) == (record.slot, 2, ()), at
        assert list_pins(job.store, job.layout) == [], at
        assert [f for f in job.verify(deep=True) if f.severity == "error"] == [], at
    assert stages >= 6


def test_a_retry_beside_a_try_that_still_writes_restores_once(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The zombie decides after the retry has looked, and before the retry has claimed the job."""
    connect(tmp_path)
    made_job(tmp_path)
    digest = approved(origin="checkpoint:2")
    done_before = Job.done_before

    def late(job: Job, kind: Any) -> Any:
        found = done_before(job, kind)
        monkeypatch.setattr(Job, "done_before", done_before)
        restore(Try("it"), origin="checkpoint:2", approved=digest)
        return found

    monkeypatch.setattr(Job, "done_before", late)
    told = restore(Try("it", try_number=2), origin="checkpoint:2", approved=digest)
    [record] = restores(tmp_path)
    assert told["record"] == record.slot


def test_what_the_job_has_done_since_is_not_taken_back_by_a_retry_but_by_a_cleared_task(
    tmp_path: Path, connect: Connect
) -> None:
    connect(tmp_path)
    job = made_job(tmp_path)
    first = restore(Try("it"), origin="checkpoint:2")
    job.ticks = 1000
    job.begin("another run")
    newest = [job.batch(), job.batch()][-1]
    job.beat(ended=True)
    again = restore(Try("it", try_number=2), origin="checkpoint:2")
    assert (again["record"], again["plan"]) == (
        first["record"],
        "Job `orders` was restored from `checkpoint:2` by an earlier try of this task.",
    )
    head = Job(str(tmp_path), "orders").log().head
    assert head is not None
    assert head.slot == newest
    cleared = restore(Try("it", try_number=3, clears=1), origin="checkpoint:2")
    assert cleared["record"] > newest
    assert len(restores(tmp_path)) == 2


@pytest.mark.parametrize("by_plan", [True, False])
def test_a_task_that_failed_after_its_record_is_not_taken_for_what_is_wanted_since(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch, by_plan: bool
) -> None:
    connect(tmp_path)
    made_job(tmp_path)

    def wanted(**asked: Any) -> dict[str, Any]:
        plan = {"approved": restore(Try("plan"), **asked, dry_run=True)["digest"]} if by_plan else {}
        return {**asked, **plan}

    def away(*_: object, **__: object) -> None:
        raise AirflowException("the API server is away")

    first = wanted(origin="checkpoint:3")
    with monkeypatch.context() as broken:
        broken.setattr(StateflowRestoreOperator, "result", away)
        with pytest.raises(AirflowException):
            restore(Try("it"), **first)
    [record] = restores(tmp_path)
    MadeJob(tmp_path, run="goes on").batches(2, ended=True)
    another = {"origin": "checkpoint:3", "parallelism": 2} if by_plan else {"origin": "checkpoint:2"}
    now = wanted(**another)
    before = files_of(tmp_path)
    what = now["approved"][:12] if by_plan else "checkpoint:2"
    with refused(
        AirflowFailException, "checkpoint:3", what, f"record {record.slot} of job 'orders'", "trigger the DAG"
    ):
        restore(Try("it", clears=1), **now)
    assert files_of(tmp_path) == before
    assert restore(Try("it", clears=1), **first)["record"] == record.slot
    assert restore(Try("it", run_id="manual__2"), **now)["record"] > record.slot


def test_a_retry_that_names_its_origin_otherwise_is_of_the_same_work(
    tmp_path: Path, connect: Connect
) -> None:
    connect(tmp_path)
    made_job(tmp_path)
    saved = Job(str(tmp_path), "orders").savepoint(to=str(tmp_path / "saved")).url
    for n, (first, then) in enumerate(
        [("checkpoint:2", "latest"), ("2", "checkpoint:2"), (saved, str(tmp_path / "saved"))]
    ):
        made = restore(Try("it", run_id=str(n)), origin=first)["record"]
        assert restore(Try("it", run_id=str(n), try_number=2), origin=then)["record"] == made


def test_a_retry_finds_a_restore_whose_record_was_collected(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    job = made_job(tmp_path)
    first = restore(Try("it"), origin="checkpoint:2")
    job.ticks = 1000
    job.retained = 1
    job.begin("another run")
    job.batches(3)
    job.beat(ended=True)
    Job(str(tmp_path), "orders").collect(1)
    assert restores(tmp_path) == []
    assert restore(Try("it", try_number=2), origin="checkpoint:2")["record"] == first["record"]
    assert restores(tmp_path) == []


def test_a_retry_of_a_fork_that_was_killed_when_it_was_done_lets_the_other_job_go(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(tmp_path)
    job = made_job(tmp_path)
    fork = {"job": "orders-test", "from_job": "orders", "parameters": {"output": "/data/test"}}
    with monkeypatch.context() as killed:
        killed.setattr("stateflow.checkpoint.pins.release", lambda *arguments: None)
        first = restore(Try("it"), **fork)
    assert [pin.kind for pin in list_pins(job.store, job.layout)] == ["fork"]
    assert restore(Try("it", try_number=2), **fork)["record"] == first["record"]
    assert list_pins(job.store, job.layout) == []


def test_a_fork_takes_what_another_job_has(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    job = made_job(tmp_path)
    told = restore(
        job="orders-test",
        from_job="orders",
        origin="latest",
        parameters={"output": "/data/test", "input": None},
    )
    [record] = restores(tmp_path, "orders-test")
    assert (told["checkpoint"], record.parameters["input"]) == (record.slot, "/data/orders")
    assert list_pins(job.store, job.layout) == []


FORK = {
    "job": "again",
    "from_job": "orders",
    "origin": "checkpoint:2",
    "parameters": {"output": "/data/again"},
}


def test_a_fork_takes_no_job_over_that_is_there(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path)
    made_job(tmp_path, "again")
    before = files_of(tmp_path)
    with refused(AirflowFailException, "'again'", "'orders'", "`stateflow delete again`", "`approved`"):
        restore(**FORK)
    assert files_of(tmp_path) == before
    restore(**FORK, approved=approved(**FORK))
    assert len(restores(tmp_path, "again")) == 1


def test_a_fork_is_made_again_by_its_task_until_something_was_done_with_it(
    tmp_path: Path, connect: Connect
) -> None:
    connect(tmp_path)
    made_job(tmp_path)
    restore(Try("it"), **FORK)
    restore(Try("it", clears=1), **FORK)
    assert len(restores(tmp_path, "again")) == 2
    with refused(AirflowFailException, "'again'", "`stateflow delete again`"):
        restore(Try("it", run_id="manual__2"), **FORK)
    MadeJob(tmp_path, "again", run="of the fork").batches(1, ended=True, target="/data/again")
    with refused(AirflowFailException, "'again'", "`stateflow delete again`"):
        restore(Try("it", clears=2), **FORK)


def test_a_restore_that_nobody_has_approved_warns_of_rows_that_come_twice(
    tmp_path: Path, connect: Connect, capsys: pytest.CaptureFixture[str]
) -> None:
    connect(tmp_path)
    made_job(tmp_path)
    warned = []
    for arguments in ({"dry_run": True}, {"approved": approved(origin="checkpoint:2")}, {}):
        capsys.readouterr()
        restore(Try("it", run_id=str(arguments)), origin="checkpoint:2", **arguments)
        warned.append("sink totals (/data/totals)" in capsys.readouterr().out)
    assert warned == [False, False, True]


def test_a_live_run_is_in_the_way_until_it_is_taken_over(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(tmp_path)
    job = made_job(tmp_path, ended=False)
    counter = itertools.count(2)

    def live(seconds: float) -> None:
        job.beat(next(counter))

    made = Job.__init__

    def watched(job: Job, *arguments: Any, **named: Any) -> None:
        made(job, *arguments, **{**named, "sleep": live})

    monkeypatch.setattr(Job, "__init__", watched)
    before = restores(tmp_path)
    with pytest.raises(
        AirflowException, match=r"job 'orders' is run by run 'run'.*`stateflow stop orders`"
    ) as failed:
        restore(origin="checkpoint:2")
    assert not isinstance(
        failed.value, AirflowFailException
    )  # it may have ended when the task is tried again
    assert restores(tmp_path) == before == []
    assert restore(origin="checkpoint:2", takeover=True)["restored"]


def test_a_relative_pipeline_lies_beside_the_dag(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    made_job(tmp_path)
    beside = Path("../..") / ORDERS.relative_to(REPOSITORY)
    assert restore(pipeline=f"{beside}:orders", dry_run=True)["document"]["checkpoint"] == 4


def test_a_plan_of_odd_names_is_still_a_table() -> None:
    from stateflow.restore.printing import _row

    assert _row(["a|b", "c\nd"]) == "| a\\|b | c d |"
