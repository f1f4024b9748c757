"""When a batch is combined before the exchange."""

from __future__ import annotations

from typing import Any

import pytest

from stateflow.operators.combiner_choice import (
    BEGINS,
    FEWEST_ROWS,
    STAYS,
    Combined,
    as_note,
    combines,
    measured,
    noted,
)

MANY = 960_000


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (None, True),
        (Combined(MANY, 1_000, False), True),
        (Combined(MANY, 1_000, True), True),
        (Combined(MANY, MANY // 2, False), False),
        (Combined(MANY, MANY // 2, True), False),
        # Near the border nothing changes.
        (Combined(MANY, round(MANY / ((BEGINS + STAYS) / 2)), False), False),
        (Combined(MANY, round(MANY / ((BEGINS + STAYS) / 2)), True), True),
        (Combined(MANY, round(MANY / BEGINS), False), True),
        (Combined(MANY, round(MANY / STAYS), True), True),
        (Combined(FEWEST_ROWS, 1, False), True),
        (Combined(FEWEST_ROWS - 1, 1, True), False),
    ],
)
def test_rows_per_group_of_the_batch_before_decide(last: Combined | None, expected: bool) -> None:
    assert combines(last) is expected


def test_a_stream_that_changes_is_followed_after_one_batch_and_a_batch_without_rows_says_nothing() -> None:
    few, many, nothing = [(MANY, 1_000)], [(MANY, MANY // 2)], [(0, 0)]
    known: Combined | None = None
    chosen = []
    for rows, groups in few + nothing + few + many + nothing + many + few * 2:
        chosen.append(combines(known))
        known = measured(known, rows, groups, combined=chosen[-1])
    assert chosen == [True, True, True, True, False, False, False, True]


def test_a_record_brings_what_was_measured_back() -> None:
    known = Combined(10, 3, True)
    assert noted({"combiner": {"op": as_note(known)}}, "op") == known


@pytest.mark.parametrize(
    "statistics",
    [
        {},
        {"combiner": {}},
        {"combiner": {"other": {"rows": 1, "groups": 1, "combined": True}}},
        {"combiner": 3},
        {"combiner": {"op": "many"}},
        {"combiner": {"op": {"rows": "1", "groups": 1, "combined": True}}},
        {"combiner": {"op": {"rows": 1}}},
        [],
    ],
)
def test_records_of_other_versions_say_nothing(statistics: Any) -> None:
    assert noted(statistics, "op") is None
