"""A key that is erased is gone from the files that stay, not only from what look-ups show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stateflow.config.options import Options
from stateflow.errors import NotFoundError, UsageError
from stateflow.format.keygroups import key_group
from stateflow.format.records import Owner, Record, Shard
from stateflow.format.references import references
from stateflow.jobs.erasure import plan_erase
from stateflow.jobs.job import Job
from stateflow.reading.query import StateReader
from stateflow.storage.local import LocalStore
from tests.jobs.builder import options_of
from tests.jobs.operators import operator_of
from tests.jobs.queried import QueriedJob, entries_of, filled
from tests.refusals.refusal import refused

KEY, OTHER = 3, 4
ME = Owner(run="officer", note="asked to be forgotten")


@pytest.fixture
def made(tmp_path: Path) -> QueriedJob:
    job = QueriedJob(tmp_path / "root")
    for _ in range(2):
        job.checkpoint(entries_of(filled(*range(1, 400))))
    return job


def options(folder: Path) -> Options:
    return options_of(folder / "root", inline_threshold="0")


def seen(reader: StateReader, job: QueriedJob) -> dict[tuple[int, str], Any]:
    """Everything that the two keys have."""
    found = {
        (key, name): reader.look_up(job.operator, name, key) for key in (KEY, OTHER) for name in job.states
    }
    reader.close()
    return {what: each.value for what, each in found.items() if each.found}


def _shards(record: Record) -> list[Shard]:
    return [shard for task in record.operators["balance"].shards for shard in task]


def job(folder: Path) -> Job:
    return Job(str(folder / "root"), "orders")


def test_the_key_is_gone_and_every_other_one_is_as_it_was(made: QueriedJob, tmp_path: Path) -> None:
    before = seen(made.reader(tmp_path / "before"), made)
    done = plan_erase(job(tmp_path), str(KEY), options(tmp_path)).apply(ME)
    after = job(tmp_path).log().head
    assert after is not None
    assert after.kind == "erase"
    assert done.entries > 10
    now = seen(made.reader(tmp_path / "after", after), made)
    assert {key for key, _ in before} == {KEY, OTHER}
    assert now == {(key, name): found for (key, name), found in before.items() if key != KEY}


def test_no_file_that_stays_has_a_byte_of_it_and_older_checkpoints_are_gone(
    made: QueriedJob, tmp_path: Path
) -> None:
    found = job(tmp_path)
    found.tag("v1", "checkpoint:2")
    group = key_group(KEY, 128)
    holding = [s for s in _shards(made.head()) if s.first <= group <= s.last]
    old = {ref.path for shard in holding for ref in shard.files if ref.path}
    assert old, "state that travels in records shows nothing of files"
    plan = plan_erase(found, str(KEY), options(tmp_path))
    assert [pin.name for pin in plan.pins] == ["v1"]
    assert plan.dropped == (2, 3)
    done = plan.apply(ME)
    log = found.log()
    assert [record.slot for record in log.chain if record.carries_state] == [done.checkpoint]
    kept = {ref.path for record in log.chain for ref in references(record) if ref.path}
    assert {e.path for e in found.store.list("orders/shared/")} == kept
    # A deletion inside a database would leave the old bytes in its old files: the shard's files are all new.
    mine = [s for s in _shards(log.head) if s.first <= group <= s.last]
    assert not {r.path for s in mine for r in s.files if r.path} & old
    assert not {e.path for e in found.store.list("orders/shared/")} & old
    assert log.head is not None
    assert log.head.owner.note == "asked to be forgotten"


def test_a_key_that_the_newest_checkpoint_lacks_is_refused_before_anything_is_claimed(
    made: QueriedJob, tmp_path: Path
) -> None:
    before = {entry.path for entry in made.store.list("")}
    with refused(
        NotFoundError,
        "checkpoint 3",
        "'987654'",
        "(looked at: balance;",
        "--absent",
    ):
        plan_erase(job(tmp_path), "987654", options(tmp_path))
    assert {entry.path for entry in made.store.list("")} == before


def test_a_key_that_only_older_checkpoints_have_goes_with_them(made: QueriedJob, tmp_path: Path) -> None:
    made.checkpoint(entries_of(filled(OTHER)))
    with refused(NotFoundError, "has nothing under the key '3'"):
        plan_erase(job(tmp_path), str(KEY), options(tmp_path))
    plan = plan_erase(job(tmp_path), str(KEY), options(tmp_path), absent=True)
    assert plan.entries == {"balance": 0}
    done = plan.apply(ME)
    assert done.entries == 0
    assert [r.slot for r in job(tmp_path).log().chain if r.carries_state] == [done.checkpoint]


def test_a_key_that_a_batch_brought_which_is_not_carried_out_yet_is_erased(tmp_path: Path) -> None:
    made = QueriedJob(tmp_path / "root")
    made.checkpoint(entries_of(filled(OTHER)))
    made.checkpoint(entries_of(filled(KEY, OTHER)), complete=False)
    with refused(NotFoundError, "checkpoint 3", "'987654'"):
        plan_erase(job(tmp_path), "987654", options(tmp_path))
    plan = plan_erase(job(tmp_path), str(KEY), options(tmp_path))
    assert plan.entries == {"balance": plan.apply(ME).entries}


def test_the_plan_is_made_for_the_operators_of_a_record_that_is_not_carried_out_yet(
    made: QueriedJob, tmp_path: Path
) -> None:
    """A release has added an operator and given another one a new uid, and its first run was killed before its first batch was delivered."""
    balance = made.head().operators["balance"]
    pairs = operator_of((), key=(("user", "int"), ("shop", "str")))
    made.decide(operators={"accounts": balance, "totals": balance, "pairs": pairs}, pending=True)
    found = job(tmp_path)
    with refused(NotFoundError, "'balance'", "accounts, pairs, totals"):
        plan_erase(found, str(KEY), options(tmp_path), operator="balance")
    plan = plan_erase(found, str(KEY), options(tmp_path))
    assert plan.keys == {"accounts": KEY, "totals": KEY}
    assert list(plan.not_looked_at) == ["pairs"]
    assert plan.apply(ME).entries == sum(plan.entries.values()) > 20
    after = found.log().head
    for made.operator in plan.keys:
        now = seen(made.reader(tmp_path / made.operator, after), made)
        assert {key for key, _ in now} == {OTHER}


def test_of_a_job_whose_first_record_is_not_carried_out_yet_a_key_is_erased(tmp_path: Path) -> None:
    made = QueriedJob(tmp_path / "root")
    made.checkpoint(entries_of(filled(KEY, OTHER)), complete=False)
    plan = plan_erase(job(tmp_path), str(KEY), options(tmp_path))
    assert plan.entries == {"balance": plan.apply(ME).entries}


@pytest.mark.parametrize("change", ["a new uid", "one more operator", "a key of another type"])
def test_a_record_with_other_operators_that_comes_after_the_plan_asks_for_a_new_plan(
    made: QueriedJob, tmp_path: Path, change: str
) -> None:
    plan = plan_erase(job(tmp_path), str(KEY), options(tmp_path))
    balance = made.head().operators["balance"]
    operators = {
        "a new uid": {"accounts": balance},
        "one more operator": {"balance": balance, "totals": balance},
        "a key of another type": {"balance": operator_of((), key=(("user", "str"),))},
    }[change]
    newer = made.decide(operators=operators)
    with refused(UsageError, f"record {newer.slot}", "'orders'", "nothing is erased", "plan it again"):
        plan.apply(ME)
    head = job(tmp_path).log().head
    assert head is not None
    assert head.slot == newer.slot
    again = plan_erase(job(tmp_path), str(KEY), options(tmp_path), absent=True)
    assert again.keys.keys() == operators.keys()
    assert again.apply(ME).entries == sum(again.entries.values())


def test_the_plan_counts_the_entries_that_go(made: QueriedJob, tmp_path: Path) -> None:
    plan = plan_erase(job(tmp_path), str(KEY), options(tmp_path))
    assert plan.entries == {"balance": plan.apply(ME).entries}


def _with_other_keys(made: QueriedJob) -> None:
    balance = made.head().operators["balance"]
    pairs = operator_of((), key=(("user", "int"), ("shop", "str")))
    made.decide(
        operators={"balance": balance, "names": operator_of((), key=(("name", "str"),)), "pairs": pairs}
    )


def test_operators_whose_keys_have_another_shape_are_named(made: QueriedJob, tmp_path: Path) -> None:
    _with_other_keys(made)
    plan = plan_erase(job(tmp_path), str(KEY), options(tmp_path))
    assert dict(plan.keys) == {"balance": KEY, "names": str(KEY)}
    pairs = "(user int, shop str) as a JSON array, or its parts with commas between"
    assert plan.not_looked_at == {"pairs": pairs}
    chosen = plan_erase(job(tmp_path), str(KEY), options(tmp_path), operator="balance")
    assert list(chosen.not_looked_at) == ["names", "pairs"]
    with refused(NotFoundError, "(looked at: names;", "not looked at: balance, pairs)"):
        plan_erase(job(tmp_path), "03", options(tmp_path))


def test_savepoints_that_may_hold_it_are_named_and_left_alone(made: QueriedJob, tmp_path: Path) -> None:
    place = job(tmp_path).savepoint("native", options=options(tmp_path), name="kept")
    plan = plan_erase(job(tmp_path), str(KEY), options(tmp_path))
    assert plan.savepoints == ("_savepoints/orders/kept",)
    plan.apply(ME)
    assert LocalStore(Path(place.url.removeprefix("file://"))).list("_metadata")


def test_a_key_that_no_operator_can_have_is_refused_before_anything_is_claimed(
    made: QueriedJob, tmp_path: Path
) -> None:
    epochs = job(tmp_path).log().epochs
    with refused(UsageError, "cannot be a key"):
        plan_erase(job(tmp_path), "not a number", options(tmp_path))
    with refused(NotFoundError, "its operators are: balance"):
        plan_erase(job(tmp_path), "3", options(tmp_path), operator="blance")
    assert job(tmp_path).log().epochs == epochs
