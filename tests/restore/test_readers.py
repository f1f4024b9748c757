"""Who has read what a restore would undo, and to where each would have to go back. Without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stateflow.checkpoint.names import require_checkpoint
from stateflow.format.records import Prepared, SourceState
from stateflow.restore.readers import Readers, readers_of
from tests.jobs.builder import JobBuilder
from tests.refusals.refusal import lacking


class Writing(JobBuilder):
    """A job whose batches read versions of tables and append one to its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self.table = folder / name
        super().__init__(f"memory://{folder}", name, folder=folder)
        (self.table / "_delta_log").mkdir(parents=True)
        self.commit({"metaData": {"id": name}})

    def commit(self, *actions: dict[str, Any]) -> None:
        folder = self.table / "_delta_log"
        version = len(list(folder.iterdir()))
        (folder / f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)))

    def restored(self, how: str, *slots: int) -> int:
        """A record whose commit takes the rows of these batches away, or back. Returns the version of the table."""
        self._slot(
            "RESTORE", [{how: {"path": f"{self.name}-{slot}", "dataChange": True}} for slot in slots], {}
        )
        return len(list((self.table / "_delta_log").iterdir())) - 1

    def batch(self, *, changes_of: str = "", **read: int) -> int:
        """`read`: by table the version that the job has read now, of one of them as changes. Returns the slot."""
        added = {"add": {"path": f"{self.name}-{self.writer.next_slot}", "dataChange": True}}
        return self._slot("STREAMING UPDATE", [added], read, changes_of)

    def _slot(
        self, operation: str, moved: list[dict[str, Any]], read: dict[str, int], changes_of: str = ""
    ) -> int:
        slot, last = self.writer.next_slot, self.writer.last_commits.get("out")
        app = f"stateflow/{self.writer.job}/out"
        self.commit(
            {"commitInfo": {"operation": operation}}, {"txn": {"appId": app, "version": slot}}, *moved
        )
        self.decide(
            sources={
                table: SourceState(
                    lines=(offset(table, version + 1),), change_feeds=(0,) if table == changes_of else ()
                )
                for table, version in read.items()
            },
            sinks={
                "out": Prepared(
                    kind="delta_append",
                    target=str(self.table),
                    prev=last,
                    payload={"table": self.name, "exactly_once": True},
                )
            },
            outcomes={"out": "committed"},
        )
        return slot


def offset(table: str, version: int) -> str:
    return json.dumps(
        {
            "sourceVersion": 1,
            "reservoirId": table,
            "reservoirVersion": version,
            "index": -1,
            "isStartingVersion": False,
        }
    )


def readers(job: Writing, slot: int) -> Readers:
    found = job.opened()
    return readers_of(found, require_checkpoint(found.log(), slot).last_commits, ["out"])


def told(found: Readers) -> list[tuple[str, str, int, int | None]]:
    assert found.unknown == ()
    return [(reader.job, reader.of, reader.first, reader.back_to) for reader in found.found]


@pytest.fixture
def orders(tmp_path: Path) -> Writing:
    return Writing(tmp_path, "orders")


def test_a_reader_that_has_read_nothing_of_it_is_none(tmp_path: Path, orders: Writing) -> None:
    sound = orders.batch()
    daily = Writing(tmp_path, "daily")
    daily.batch(orders=1)
    assert told(readers(orders, sound)) == []
    orders.batch()
    assert told(readers(orders, sound)) == []


def test_a_reader_goes_back_to_its_newest_checkpoint_from_before(tmp_path: Path, orders: Writing) -> None:
    sound = orders.batch()
    daily = Writing(tmp_path, "daily")
    daily.batch(orders=0)
    back = daily.batch(orders=1)
    orders.batch()
    orders.batch()
    daily.batch(orders=2)
    daily.batch(orders=3)
    assert told(readers(orders, sound)) == [("daily", "orders", 2, back)]


def test_a_reader_behind_a_restore_to_the_same_rows_has_read_nothing_that_would_be_undone(
    tmp_path: Path, orders: Writing
) -> None:
    orders.batch()
    middle, newest = orders.batch(), orders.batch()
    daily = Writing(tmp_path, "daily")
    orders.restored("remove", middle, newest)
    daily.batch(orders=orders.restored("add", middle, newest))
    orders.restored("remove", middle, newest)
    assert told(readers(orders, newest)) == []
    assert told(readers(orders, middle)) == [("daily", "orders", 3, None)]


def test_a_reader_that_was_left_behind_when_the_table_went_back_is_still_one(
    tmp_path: Path, orders: Writing
) -> None:
    sound, undone = orders.batch(), orders.batch()
    daily = Writing(tmp_path, "daily")
    back = daily.batch(orders=1)
    daily.batch(orders=2)
    orders.restored("remove", undone)
    assert told(readers(orders, sound)) == [("daily", "orders", 2, back)]


def test_a_reader_of_the_changes_gets_what_is_undone_as_changes_and_stays(
    tmp_path: Path, orders: Writing
) -> None:
    sound = orders.batch()
    daily, weekly = Writing(tmp_path, "daily"), Writing(tmp_path, "weekly")
    daily.batch(changes_of="orders", orders=1)
    assert readers(orders, sound) == Readers()
    orders.batch()
    daily.batch(changes_of="orders", orders=2)
    # What it puts out is corrected by itself.
    weekly.batch(daily=2)
    found = readers(orders, sound)
    assert told(found) == []
    [sentence] = found.of_feeds
    assert lacking(sentence, ("job daily", "source orders", "as changes", "stays where it is")) == []


def test_a_job_that_reads_the_changes_and_the_rows_goes_back(tmp_path: Path, orders: Writing) -> None:
    sound = orders.batch()
    daily, both = Writing(tmp_path, "daily"), Writing(tmp_path, "both")
    daily.batch(orders=1)
    back = both.batch(changes_of="orders", orders=1, daily=1)
    orders.batch()
    daily.batch(orders=2)
    both.batch(changes_of="orders", orders=2, daily=2)
    found = readers(orders, sound)
    assert ("both", "daily", 2, back) in told(found)
    assert ("both", "orders", 2, back) not in told(found)
    assert found.of_feeds == ()


def test_without_such_a_checkpoint_it_says_so(tmp_path: Path, orders: Writing) -> None:
    sound = orders.batch()
    orders.batch()
    Writing(tmp_path, "daily").batch(orders=2)
    assert told(readers(orders, sound)) == [("daily", "orders", 2, None)]


def test_readers_of_readers_follow_and_come_after_them(tmp_path: Path, orders: Writing) -> None:
    sound = orders.batch()
    weekly, daily, aside = (Writing(tmp_path, name) for name in ("a-weekly", "daily", "aside"))
    daily_back = daily.batch(orders=1)
    weekly_back = weekly.batch(daily=1)
    aside.batch(daily=1)
    orders.batch()
    daily.batch(orders=2)
    weekly.batch(daily=2)
    assert told(readers(orders, sound)) == [
        ("daily", "orders", 2, daily_back),
        ("a-weekly", "daily", 2, weekly_back),
    ]


def test_a_job_that_reads_both_goes_back_far_enough_for_both(tmp_path: Path, orders: Writing) -> None:
    sound = orders.batch()
    daily, both = Writing(tmp_path, "daily"), Writing(tmp_path, "both")
    daily.batch(orders=1)
    first = both.batch(orders=1, daily=1)
    orders.batch()
    daily.batch(orders=2)
    both.batch(orders=1, daily=2)
    both.batch(orders=2, daily=2)
    assert set(told(readers(orders, sound))) == {
        ("daily", "orders", 2, 2),
        ("both", "orders", 2, first),
        ("both", "daily", 2, first),
    }


def test_jobs_that_read_each_other_are_all_named(tmp_path: Path, orders: Writing) -> None:
    sound = orders.batch()
    one, other = Writing(tmp_path, "one"), Writing(tmp_path, "other")
    one_back = one.batch(orders=1, other=0)
    other_back = other.batch(one=1)
    orders.batch()
    one.batch(orders=2, other=1)
    other.batch(one=2)
    found = told(readers(orders, sound))
    assert {job for job, *_ in found} == {"one", "other"}
    assert {job: back for job, _, _, back in found} == {"one": one_back, "other": other_back}


def test_a_table_whose_log_cannot_be_read_is_named(tmp_path: Path, orders: Writing) -> None:
    sound = orders.batch()
    orders.batch()
    Writing(tmp_path, "daily").batch(orders=2)
    for file in (orders.table / "_delta_log").iterdir():
        file.unlink()
    (orders.table / "_delta_log").rmdir()
    found = readers(orders, sound)
    assert found.found == ()
    assert found.unknown == (f"who has read {orders.table} is not known: its log cannot be read from here",)
