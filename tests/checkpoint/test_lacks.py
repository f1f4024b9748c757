"""What a way back takes out of an output, and what it brings again."""

from __future__ import annotations

from typing import Any

from stateflow.checkpoint.lacks import lacks_after, newest_rows, without
from stateflow.format.records import Prepared
from tests.jobs.log import record


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
