"""What a run does next, from what it sees."""

from __future__ import annotations

import pytest

from stateflow.checkpoint.log import Log
from stateflow.checkpoint.recovery import (
    CarryOutRecord,
    CompleteFence,
    PlaceFence,
    Ready,
    Step,
    Stop,
    commits_after,
    late_after,
    next_step,
)
from stateflow.format.records import Link
from tests.jobs.log import complete, log, pending, record

MINE = "my fence"
BATCH = record(1)
DECIDED = record(2)
FENCE = record(3, kind="fence", epoch=2, writer=MINE)
LOWER = record(2, kind="fence", epoch=1)


@pytest.mark.parametrize(
    ("what", "found", "step"),
    [
        ("a new job", log(epochs=(2,)), PlaceFence(1, None, None, 1)),
        (
            "a batch on top: fence above it",
            log(complete(BATCH), epochs=(1, 2)),
            PlaceFence(2, Link(1, "w1"), 1, 1),
        ),
        (
            "a decided batch on top: adopt it",
            log(complete(BATCH), pending(DECIDED), epochs=(1, 2)),
            PlaceFence(3, Link(2, "w2"), 2, 1),
        ),
        (
            "a lower run's fence on top: adopt it, and the state that it stands on",
            log(complete(BATCH), pending(record(2, kind="fence", based_on=1)), epochs=(1, 2)),
            PlaceFence(3, Link(2, "w2"), 1, 1),
        ),
        (
            "fenced, with a decided batch below",
            log(complete(BATCH), pending(DECIDED), pending(FENCE), epochs=(1, 2)),
            CarryOutRecord(DECIDED),
        ),
        (
            "fenced, and all below is carried out",
            log(complete(BATCH), complete(DECIDED), pending(FENCE), epochs=(1, 2)),
            CompleteFence(FENCE),
        ),
        ("done", log(complete(BATCH), complete(DECIDED), complete(FENCE), epochs=(1, 2)), Ready()),
        ("a newer claim", log(complete(BATCH), epochs=(1, 2, 3)), Stop(3)),
        (
            "a newer claim after the fence",
            log(complete(BATCH), complete(DECIDED), pending(FENCE), epochs=(2, 3)),
            Stop(3),
        ),
        (
            "a newer record whose claim is not listed",
            log(complete(BATCH), pending(record(2, kind="fence", epoch=3)), epochs=(2,)),
            Stop(3),
        ),
    ],
)
def test_the_next_step_follows_from_the_log(what: str, found: Log, step: Step) -> None:
    assert next_step(found, 2, MINE) == step


def test_a_delivered_slot_becomes_the_sinks_last_and_an_abandoned_one_does_not() -> None:
    outcomes = {"a": "committed", "b": "already", "c": "abandoned", "d": "none"}
    before = {"a": 1, "b": 1, "c": 1, "gone": 1}
    assert commits_after(DECIDED, outcomes, before) == {"a": 2, "b": 2, "c": 1, "gone": 1}


def test_abandoned_slots_are_remembered_until_the_sink_takes_another() -> None:
    late = late_after(DECIDED, {"a": "abandoned"}, {"a": (1,), "b": (1,)})
    assert late == {"a": (1, 2), "b": (1,)}
    assert late_after(record(5), {"a": "committed"}, late) == {"b": (1,)}
