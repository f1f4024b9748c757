"""No batch waits for the tidying behind an earlier one, and nothing that was begun is left out."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stateflow.checkpoint import scheduled
from stateflow.checkpoint.control import Progress
from stateflow.spark.tidying import ORPHANS_EVERY, Tidying
from tests.jobs.made import MadeJob


class Slow(Tidying):
    """Of which each tidying waits until it may go on."""

    may_go_on: threading.Event
    begun: threading.Event
    done: list[tuple[int, bool]]

    @classmethod
    def made(cls) -> Slow:
        writer: Any = SimpleNamespace(epoch=1)
        options: Any = None
        slow = cls(writer, options, lambda: 0)
        slow.may_go_on, slow.begun, slow.done = threading.Event(), threading.Event(), []
        return slow

    def _tidy(self, progress: Progress, *, orphans: bool) -> None:
        self.begun.set()
        assert self.may_go_on.wait(30)
        self.done.append((progress.slot, orphans))


@pytest.mark.timeout(60)
def test_a_batch_does_not_wait_for_a_slow_tidying_and_the_next_one_covers_what_came_meanwhile() -> None:
    slow = Slow.made()
    slow.begin(1, {})
    assert slow.begun.wait(30)
    for slot in range(2, ORPHANS_EVERY + 3):
        slow.begin(slot, {})
    assert slow.done == []
    slow.may_go_on.set()
    slow.end()
    # Among those that came meanwhile one was to look for orphans.
    assert slow.done == [(1, True), (ORPHANS_EVERY + 2, True)]


def test_behind_an_idle_run_the_next_checkpoint_begins_anew() -> None:
    slow = Slow.made()
    slow.may_go_on.set()
    for slot in (1, 2):
        slow.begin(slot, {})
        while len(slow.done) < slot:
            slow.begun.wait(0.01)
    slow.end()
    assert slow.done == [(1, True), (2, False)]


def test_a_run_that_looks_for_orphans_forgets_the_oldest_dag_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduled, "MOST_MARKS", 2)
    made = MadeJob(tmp_path / "root")
    for number in range(5):
        scheduled.begin(made.store, made.layout, f"dag/{number}", "run", None, made.clock)
    tidying = Tidying(made.writer, made.options(), made.clock)
    tidying.begin(made.batch(), {})
    tidying.end()
    left = [scheduled.find(made.store, made.layout, f"dag/{number}", "run") for number in range(5)]
    assert [mark is not None for mark in left] == [False, False, False, True, True]
