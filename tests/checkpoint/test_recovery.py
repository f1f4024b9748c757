"""What a run does next, from what it sees."""

from __future__ import annotations

from typing import Any

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
    lacks_after,
    late_after,
    newest_rows,
    next_step,
    without,
)
from stateflow.format.records import Link, Prepared
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


def test_a_way_back_takes_out_what_came_behind_it_and_brings_again_what_was_there_then() -> None:
    known: dict[int, dict[str, tuple[tuple[int, int], ...]]] = {0: {}, 5: {}, 7: {}}

    def back(slot: int, to: int, before: dict[str, tuple[tuple[int, int], ...]]) -> Any:
        made = record(slot, sinks={"a": Prepared("delta_rewind", "/a", back_to=to)})
        known[slot] = lacks_after(made, {"a": "committed"}, before, known.get)
        return known[slot]

    once = back(11, 5, {})
    assert once == {"a": ((6, 10),)}
    assert lacks_after(record(12), {"a": "committed"}, once, known.get) == once, "rows change nothing of it"
    known[13] = once
    forward = back(15, 7, once)
    assert forward == {"a": ((8, 14),)}, "6 and 7 are there again"
    assert back(19, 13, forward) == {"a": ((6, 10), (14, 18))}
    assert back(20, 19, known[19]) == known[19], "nothing lies between"
    del known[7]
    assert back(15, 7, once) == {"a": ((6, 10), (8, 14))}, "a record that is gone may have lacked it all"
    given_up = lacks_after(
        record(21, sinks={"a": Prepared("x", "/a", back_to=5)}), {"a": "abandoned"}, once, known.get
    )
    assert given_up == once


def test_spans_without_others() -> None:
    assert without(((1, 5), (8, 9)), ((2, 3), (9, 12))) == ((1, 1), (4, 5), (8, 8))
    assert without(((4, 6),), ((1, 3), (7, 9))) == ((4, 6),)
    assert without(((4, 6),), ((4, 6),)) == ()
    assert newest_rows(11, ((2, 3), (6, 10))) == 5
    assert newest_rows(13, ((6, 10),)) == 13
