"""Which state the tables of feeds show, record by record, and what they lack before a batch. Pure."""

from __future__ import annotations

from typing import Any

import pytest

from stateflow.checkpoint.feeds import Lag, Shown, lag, shown_after, shown_by_copies, slots_of_state
from stateflow.checkpoint.statistics import POSITIONS
from stateflow.format.records import Prepared, Record, ShownState, StateSchema
from tests.jobs import log
from tests.jobs.operators import operator_of

BEGINS = {POSITIONS: ["orders"]}
OTHERS = "others of its readers are up to date with another slot"


SUMS = operator_of(
    (), groups=1, next_state_id=5,
    states={name: StateSchema(id=number, kind="value", value="int") for number, name in ((3, "total"), (4, "n"))},
)  # fmt: skip


def record(slot: int, kind: Any, sinks: str = "", **fields: Any) -> Record:
    outputs = {uid: Prepared(kind="memory", target=uid) for uid in sinks}
    return log.record(slot, kind=kind, sinks=outputs, **fields)


def shows(slot: int, sink: str = "a", state: str = "total", *, erased: bool = False) -> ShownState:
    return ShownState(sink, "sums", state, slot, sink, erased)


def left() -> ShownState:
    return ShownState("a", "gone", "total", 4, "a")


@pytest.mark.parametrize(
    ("made", "outcome", "before", "after"),
    [
        ("a batch", "committed", [shows(4)], [shows(5)]),
        ("a batch", "already", [shows(4)], [shows(5)]),
        # It has no rows of the batch, and nothing of the state has changed.
        ("a batch", "none", [shows(4)], [shows(5)]),
        ("a batch", "abandoned", [shows(4)], [shows(4)]),
        ("a batch", "committed", [shows(4, "b"), shows(3, "a", "n")], [shows(4, "b"), shows(3, "a", "n"), shows(5)]),
        # One of its states has another name since, and another one was an operator's that is gone.
        ("a batch", "committed", [shows(4, state="sum"), shows(4, state="sum", sink="b"), left()], [shows(4, state="sum", sink="b"), shows(5)]),
        ("a batch", "abandoned", [shows(4, state="sum")], [shows(4, state="sum")]),
        ("a fence", "", [shows(4)], [shows(4)]),
        ("a beginning", "", [shows(4)], [shows(5)]),
        ("a beginning", "", [shows(3)], [shows(3)]),
        ("a rescale", "", [shows(4)], [shows(5)]),
        ("a rescale", "", [shows(3)], [shows(3)]),
        ("an erasure", "", [shows(4)], [shows(5, erased=True)]),
        ("a restore of the same", "", [shows(4)], [shows(5)]),
        ("a restore", "", [shows(4)], [shows(4)]),
        ("a restore of a savepoint", "", [shows(4)], [shows(4)]),
        ("a rewind", "committed", [shows(4), shows(4, "b")], [shows(4, "b"), shows(5)]),
        ("a rewind to a lag", "committed", [shows(4)], [shows(1)]),
        ("a rewind to before the feed", "committed", [shows(4)], []),
    ],
)  # fmt: skip
def test_each_record_says_what_the_tables_show(
    made: str, outcome: str, before: list[ShownState], after: list[ShownState]
) -> None:
    found = {
        "a batch": record(5, "checkpoint", "a", based_on=4, feeds=(shows(5),), operators={"sums": SUMS}),
        "a fence": record(5, "fence", based_on=4),
        "a beginning": record(5, "checkpoint", based_on=4, statistics=BEGINS),
        "a rescale": record(5, "rescale", based_on=4),
        "an erasure": record(5, "erase", based_on=4, feeds=(shows(4, erased=True),)),
        "a restore of the same": record(5, "restore", based_on=4),
        "a restore": record(5, "restore", based_on=2),
        "a restore of a savepoint": record(5, "restore", based_on=0),
        "a rewind": record(5, "restore", "a", based_on=2, feeds=(shows(2),)),
        "a rewind to a lag": record(5, "restore", "a", based_on=2, feeds=(shows(1),)),
        "a rewind to before the feed": record(5, "restore", "a", based_on=2),
    }[made]
    outcomes = {"a": outcome} if outcome else {}
    assert set(shown_after(found, outcomes, tuple(before))) == set(after)


def test_copied_tables_of_a_fork_show_what_they_showed_there() -> None:
    origin = record(7, "checkpoint")
    shown: Shown = (shows(7), shows(6, "b"), shows(7, "c"))
    copies = shown_by_copies(["a", "b"], origin, shown, 2)
    assert copies == (shows(2), shows(0, "b"))
    restored = record(2, "restore", based_on=0, feeds=copies)
    assert shown_after(restored, {}, ()) == copies, "slot 0 is no checkpoint of the fork"


@pytest.mark.parametrize(
    ("shown", "delivered", "holds", "expected"),
    [
        ({"a": shows(5)}, ["a"], True, Lag()),
        ({"a": shows(3)}, ["a"], True, Lag(("a",), 3)),
        ({"a": None}, [], True, Lag(new=("a",))),
        ({"a": None}, [], False, Lag()),
        ({"a": shows(3), "c": shows(3)}, ["a"], True, Lag(("a", "c"), 3)),
        ({"a": shows(3), "b": shows(5)}, ["a"], True, Lag(("a",), 3, why=OTHERS)),
        ({"a": shows(3), "c": shows(2)}, ["a"], True, Lag(("a", "c"), 2, why=OTHERS)),
        ({"a": shows(5), "b": None}, ["a"], True, Lag(new=("b",), why=OTHERS)),
        ({"a": shows(3), "b": None}, ["a"], True, Lag(("a",), 3, ("b",), OTHERS)),
        (
            {"a": None}, ["a"], True,
            Lag(new=("a",), why="sink 'a' has had rows before of which is not known what they show"),
        ),
        (
            {"operator 'b'": None}, ["operator 'b'"], True,
            Lag(new=("operator 'b'",), why="operator 'b' has had rows before of which is not known what they show"),
        ),
    ],
)  # fmt: skip
def test_a_feed_lacks_what_its_tables_do_not_show(
    shown: dict[str, ShownState | None], delivered: list[str], holds: bool, expected: Lag
) -> None:
    assert lag(shown, delivered, {"b": (4,)}, [5], holds=holds) == expected


def test_what_was_given_up_may_have_arrived_and_is_not_written_again() -> None:
    why = "the output of slot 4 was given up, and may have arrived all the same"
    shown = {"a": shows(3)}
    assert lag(shown, ["a"], {"a": (4,)}, [5], holds=True) == Lag(("a",), 3, why=why)
    assert lag(shown, ["a"], {"a": (2,)}, [5], holds=True) == Lag(("a",), 3)


def test_a_record_that_only_puts_sources_somewhere_has_the_state_of_the_one_below() -> None:
    batch = record(3, "checkpoint", based_on=2)
    begins, moves = (record(slot, "checkpoint", based_on=slot - 1, statistics=BEGINS) for slot in (4, 5))
    chain = {each.slot: each for each in (batch, begins, moves)}
    assert slots_of_state(moves, chain.get) == [5, 4, 3]
    assert slots_of_state(moves, {5: moves}.get) == [5, 4], "the record is collected"
    assert slots_of_state(batch, chain.get) == [3]
