"""The sinks of a batch commit side by side, the user's own functions in their order."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from stateflow.pipelines.sink_kinds import KINDS
from stateflow.spark.carry_out import committed_together
from stateflow.spark.side_by_side import SideBySide

FUNCTION = next(kind.name for kind in KINDS.values() if kind.calls_function)
TABLE = next(kind.name for kind in KINDS.values() if kind.table)


@pytest.mark.parametrize(
    ("kinds", "groups"),
    [
        ({}, []),
        ({"a": TABLE, "b": TABLE, "c": TABLE}, [["a", "b", "c"]]),
        ({"a": FUNCTION, "b": FUNCTION}, [["a"], ["b"]]),
        (
            {"a": TABLE, "b": TABLE, "f": FUNCTION, "c": TABLE, "d": TABLE},
            [["a", "b"], ["f"], ["c", "d"]],
        ),
        # Whoever meets it says what is wrong with it.
        ({"a": TABLE, "b": "of another version"}, [["a", "b"]]),
    ],
)
def test_a_function_is_called_when_all_before_it_are_done(
    kinds: dict[str, str], groups: list[list[str]]
) -> None:
    assert committed_together(kinds) == groups


def test_calls_meet() -> None:
    meeting = threading.Barrier(3, timeout=20)

    def call(number: int) -> int:
        meeting.wait()
        return number

    threads = SideBySide("test-meets")
    for _ in range(3):
        assert threads.all([partial(call, number) for number in range(3)]) == [0, 1, 2]
    assert named("test-meets") == ["test-meets-1", "test-meets-2"], "the threads of the first time"


def test_the_first_failure_is_raised_when_all_have_ended() -> None:
    ended = []

    def slow() -> None:
        time.sleep(0.2)
        ended.append("slow")

    def fails(error: BaseException) -> None:
        raise error

    calls: list[Callable[[], Any]] = [
        slow,
        partial(fails, KeyError("a")),
        partial(fails, ValueError("b")),
        slow,
    ]
    threads = SideBySide("test-fails")
    with pytest.raises(KeyError, match="a"):
        threads.all(calls)
    assert ended == ["slow", "slow"]
    assert threads.all([lambda: 1, lambda: 2]) == [1, 2]


def test_its_threads_end_with_it() -> None:
    threads = SideBySide("test-ends")
    threads.all([lambda: None] * 3)
    assert len(named("test-ends")) == 2
    del threads
    gc.collect()
    until = time.monotonic() + 20
    while named("test-ends") and time.monotonic() < until:
        time.sleep(0.01)
    assert named("test-ends") == []


def test_one_call_needs_no_thread() -> None:
    threads = SideBySide("test-alone")
    assert threads.all([threading.get_ident]) == [threading.get_ident()]
    assert threads.all([]) == []
    assert named("test-alone") == []


def named(name: str) -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith(name))
