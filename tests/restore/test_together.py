"""Who goes back together, in which order, what an approval of it binds, and what is left of it after a crash."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stateflow.checkpoint.statistics import HistoryLine
from stateflow.errors import NotFoundError, UsageError
from stateflow.restore.digest import differences_together
from stateflow.restore.gone_back import GoneBack, find_gone_back, note, noted_digest
from stateflow.restore.planned import RestorePlan
from stateflow.restore.readers import Reader
from stateflow.restore.together import RestoreTogether, back_to, plan_together
from tests.refusals.refusal import refused
from tests.restore.test_restore_plans import planned
from tests.restore.test_restoring import Scene, made_scene


def reader(job: str, back: int | None) -> Reader:
    return Reader(job, "in", "/data/orders", "orders", 4, back)


def test_each_job_goes_back_once_and_after_whom_it_reads() -> None:
    readers = [reader("daily", 7), reader("weekly", 3), reader("weekly", 3)]
    assert back_to(readers) == {"daily": 7, "weekly": 3}


def test_a_reader_without_a_checkpoint_from_before_stops_it_before_anything_is_restored() -> None:
    with refused(NotFoundError, "'daily'", "version 4 of /data/orders", "no checkpoint from before"):
        back_to([reader("daily", None)])


class Plans:
    """Of job `orders`, which `daily` and `weekly` have read. Nobody has a table, so nothing is applied."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        for name in ("daily", "weekly"):
            planned(scene, "checkpoint:2", {"output": f"/data/{name}"}, into=name, from_job="orders").apply()
            planned(scene, "latest", into=name).apply()
        self.back = {"daily": 1, "weekly": 1}
        self.lines: dict[str, list[HistoryLine]] = {}

    def first(self, **request: Any) -> RestorePlan:
        readers = tuple(reader(job, slot) for job, slot in self.back.items())
        return replace(planned(self.scene, "checkpoint:2", **request), readers=readers)

    def reader(self, job: str, slot: int) -> RestorePlan:
        return replace(planned(self.scene, "latest", into=job), timeline=100 + slot)

    def history(self, job: str) -> Iterable[HistoryLine]:
        return self.lines.get(job, ())

    def together(self, approved: str | None = None, **request: Any) -> RestoreTogether:
        first = self.first(with_readers=True, **request)
        given = ["weekly", "daily", "monthly"]
        return plan_together(first, self.reader, given, approved=approved, history_of=self.history)

    def restored(self, together: RestoreTogether, job: str, status: str = "COMPLETED") -> None:
        """The job has gone back by this plan, as its history says."""
        [plan] = [plan for plan in together.plans if plan.request.job.name == job]
        line = HistoryLine(id=9, kind="restore", status=status, metrics=note(together.digest, plan.digest))
        self.lines[job] = [line, HistoryLine(id=10, kind="checkpoint", status="COMPLETED")]
        if status == "COMPLETED":
            del self.back[job]


@pytest.fixture
def plans(tmp_path: Path) -> Plans:
    return Plans(made_scene(tmp_path))


def test_an_approval_is_of_every_job_that_goes_back_and_of_where_to(plans: Plans) -> None:
    together = plans.together()
    assert [plan.request.job.name for plan in together.plans] == ["weekly", "daily", "orders"]
    assert together.digest != together.first.digest
    plans.back["daily"] = 2
    assert plans.together().digest != together.digest, "to another checkpoint"
    del plans.back["daily"]
    assert plans.together().digest != together.digest, "a reader less"
    plans.together(approved=plans.together().digest).require_approved()
    with refused(UsageError, "not the one that was approved", "plan again"):
        plans.together(approved=together.digest).require_approved()


def test_without_a_reader_it_is_the_restore_of_the_job_alone(plans: Plans) -> None:
    plans.back.clear()
    together = plans.together()
    assert together.digest == together.first.digest == plans.first().digest
    assert together.markdown() == together.first.markdown()


def test_what_was_approved_holds_while_one_after_the_other_goes_back(plans: Plans) -> None:
    whole = plans.together()
    for job in ("weekly", "daily"):
        plans.restored(whole, job)
        left = plans.together(approved=whole.digest)
        left.require_approved()
        assert job not in [plan.request.job.name for plan in left.plans]
    assert plans.together().digest != whole.digest, "unless nobody says what was approved"


def test_a_reader_whose_record_is_not_carried_out_yet_goes_back_by_the_approved_plan(plans: Plans) -> None:
    whole = plans.together()
    plans.restored(whole, "weekly", "IN_PROGRESS")
    left = plans.together(approved=whole.digest)
    left.require_approved()
    assert [plan.request.job.name for plan in left.plans] == ["weekly", "daily", "orders"]


def test_a_reader_that_has_read_it_again_is_not_taken_back_a_second_time(plans: Plans) -> None:
    whole = plans.together()
    plans.restored(whole, "weekly")
    plans.back["weekly"] = 2
    with refused(UsageError, "not the one that was approved"):
        plans.together(approved=whole.digest).require_approved()


def test_a_restore_of_something_else_does_not_count() -> None:
    def line(**fields: Any) -> HistoryLine:
        given = {"id": 1, "kind": "restore", "status": "COMPLETED", "metrics": note("a" * 64, "b" * 64)}
        return HistoryLine(**{**given, **fields})

    assert find_gone_back([line()], "a" * 64) == GoneBack("b" * 64, finished=True)
    assert find_gone_back([line(status="IN_PROGRESS")], "a" * 64) == GoneBack("b" * 64, finished=False)
    another = line(metrics=note("c" * 64, "d" * 64))
    assert find_gone_back([another, line(), another], "a" * 64) == GoneBack("b" * 64, finished=True)
    for other in (
        another,
        line(kind="checkpoint"),
        line(metrics={}),
        line(metrics={"together": 5}),
        line(metrics={"together": {"digest": "a" * 64, "plan": 7}}),
        line(metrics={"together": {"digest": "a" * 64, "plan": "x"}}),
    ):
        assert find_gone_back([other], "a" * 64) is None
    alone = line(metrics=note("", "b" * 64))
    assert [noted_digest(each) for each in (line(), alone, line(metrics={}))] == ["a" * 64, "b" * 64, ""]


def test_a_reader_whose_pipeline_nobody_named_is_asked_for(plans: Plans) -> None:
    with refused(UsageError, "'daily'", "--reader daily=FILE", "`readers`", "Airflow's recovery"):
        plan_together(plans.first(), plans.reader, ["weekly"])


def test_the_plan_says_how_to_take_readers_along_or_that_they_go(plans: Plans) -> None:
    plans.back["weekly"] = 3
    alone = plans.first()
    hint = "take it along with `--with-readers --reader daily=FILE` (in Airflow's recovery form the field `with_readers`)"
    assert hint in str(alone)
    assert "take it along with &#96;--with-readers --reader daily=FILE&#96;" in alone.markdown()
    assert "the field &#96;with&#95;readers&#96;" in alone.markdown()
    told = alone.document()["readers"]
    assert [(each["job"], each["back_to"]) for each in told] == [("daily", 1), ("weekly", 3)]
    assert hint in told[0]["next_step"]
    lost = replace(alone, readers=(reader("daily", None),))
    assert "restore a savepoint of it, or let it begin anew" in str(lost)

    together = plans.together()
    shown = together.markdown()
    for text in (str(together), shown, str(together.document())):
        assert "it goes back with it, to its checkpoint 1" in text
        assert "take it along" not in text
        assert text.count(together.digest) == 1
        for plan in together.plans[:-1]:
            assert plan.digest in text
    assert [each["job"] for each in together.document()["with_readers"]] == ["weekly", "daily"]


def test_what_has_changed_since_the_approval_names_the_reader(plans: Plans) -> None:
    before = plans.together().document()
    assert differences_together(before, plans.together().document()) == []
    plans.back["daily"] = 2
    assert differences_together(before, plans.together().document()) == [
        "of job daily somebody has restored the job meanwhile"
    ]
    del plans.back["daily"]
    now = plans.together().document()
    assert differences_together(before, now) == ["job daily would not go back any more"]
    assert differences_together(now, before) == ["job daily has read it meanwhile and would go back, too"]
