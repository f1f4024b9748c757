"""What a job remembers of a scheduler's runs."""

from __future__ import annotations

import itertools

import pytest

from stateflow.checkpoint import scheduled
from stateflow.checkpoint.control import RunOutcome
from stateflow.format.layout import JobLayout
from stateflow.storage.store import Store
from tests.memory_store import Call, MemoryStore

LAYOUT = JobLayout("orders")


@pytest.fixture
def store() -> Store:
    return MemoryStore()


def test_the_first_try_says_where_it_began_and_later_ones_find_it(store: Store) -> None:
    first = scheduled.begin(store, LAYOUT, "dag/1", "run", 7, lambda: 100)
    again = scheduled.begin(store, LAYOUT, "dag/1", "run", 9, lambda: 200)
    assert (first.began_from, first.at) == (7, 100)
    assert again == first
    assert scheduled.find(store, LAYOUT, "dag/1", "run") == first


def test_tasks_and_dag_runs_are_told_apart(store: Store) -> None:
    scheduled.begin(store, LAYOUT, "dag/1", "run", 7, lambda: 1)
    for dag_run, task in (("dag/1", "other"), ("dag/2", "run"), ("dag", "1\nrun")):
        assert scheduled.find(store, LAYOUT, dag_run, task) is None


def test_an_end_stands_until_the_run_is_opened_again(store: Store) -> None:
    mark = scheduled.begin(store, LAYOUT, "dag/1", "run", None, lambda: 1)
    outcome = RunOutcome(rows=5, checkpoint=9)
    scheduled.finish(store, LAYOUT, mark, outcome, "run 1", lambda: 2, told={"checkpoint": 9})
    ended = scheduled.find(store, LAYOUT, "dag/1", "run")
    assert ended is not None
    assert (ended.ended, ended.ended_at, ended.ended_by, ended.began_from) == (outcome, 2, "run 1", None)
    assert ended.told == {"checkpoint": 9}
    assert scheduled.reopen(store, LAYOUT, ended, None, mark.began_from) == mark
    assert scheduled.find(store, LAYOUT, "dag/1", "run") == mark


def test_a_recall_stands_until_it_is_taken_back(store: Store) -> None:
    scheduled.recall(store, LAYOUT, "dag/1", "run")  # of a task that has not begun: nobody would hear it
    assert scheduled.find(store, LAYOUT, "dag/1", "run") is None
    mark = scheduled.begin(store, LAYOUT, "dag/1", "run", 7, lambda: 1)
    scheduled.recall(store, LAYOUT, "dag/1", "run")
    recalled = scheduled.find(store, LAYOUT, "dag/1", "run")
    assert recalled is not None
    assert recalled.recalled
    scheduled.recall(store, LAYOUT, "dag/1", "run", recalled=False)
    assert scheduled.find(store, LAYOUT, "dag/1", "run") == mark


def test_the_oldest_marks_go_when_there_are_many(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduled, "MOST_MARKS", 3)
    ticks = itertools.count(1)
    for number in range(5):
        scheduled.begin(store, LAYOUT, f"dag/{number}", "run", None, lambda: next(ticks))
    assert scheduled.sweep(store, LAYOUT) == 2
    left = [scheduled.find(store, LAYOUT, f"dag/{number}", "run") is not None for number in range(5)]
    assert left == [False, False, True, True, True]
    assert scheduled.sweep(store, LAYOUT) == 0


def test_marks_are_read_once_in_many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduled, "MOST_MARKS", 20)
    store = MemoryStore()
    ticks = itertools.count(1)
    swept = []
    for number in range(30):
        scheduled.begin(store, LAYOUT, f"dag/{number}", "run", None, lambda: next(ticks))
        swept.append(scheduled.sweep(store, LAYOUT))
    assert [count for count in swept if count] == [3, 3, 3]
    assert scheduled.find(store, LAYOUT, "dag/10", "run") is not None


def test_a_mark_that_is_damaged_newer_or_just_deleted_keeps_no_other_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduled, "MOST_MARKS", 3)
    store = MemoryStore()
    ticks = itertools.count(1)
    for number in range(8):
        scheduled.begin(store, LAYOUT, f"dag/{number}", "run", None, lambda: next(ticks))
    damaged, newer, deleted = (LAYOUT.scheduled(f"dag/{number}", "run") for number in range(3))
    store.put(damaged, b"")
    store.put(newer, store.read(newer).replace(b"stateflow 1", b"stateflow 2", 1))

    def another_sweep(call: Call) -> None:
        if call.verb == "read" and call.path == deleted:
            store.before = None
            store.delete([deleted])

    store.before = another_sweep
    assert scheduled.sweep(store, LAYOUT) == 2
    left = {entry.path for entry in store.list(LAYOUT.scheduled_runs)}
    assert left == {damaged, newer, *(LAYOUT.scheduled(f"dag/{number}", "run") for number in (5, 6, 7))}
