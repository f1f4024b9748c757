"""What a sink does with a record, decided from three numbers."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest

from stateflow.errors import DisagreementError
from stateflow.spark.sinks.slot import SinkSlot
from tests.refusals.refusal import refused


@pytest.mark.parametrize(
    ("version", "prev", "late", "verdict"),
    [
        (None, None, (), "commit"),
        (4, 4, (), "commit"),
        (7, 4, (), "already"),
        (9, 4, (), "disagree"),
        (None, 4, (), "disagree"),
        (3, 4, (), "disagree"),
        (5, 4, (), "disagree"),
        (5, 4, (5,), "commit"),
        (5, None, (5, 6), "commit"),
        (5, 4, (6,), "disagree"),
    ],
)
def test_a_record_is_committed_after_the_one_before_it_or_an_abandoned_one_that_came_late(
    version: int | None, prev: int | None, late: tuple[int, ...], verdict: str
) -> None:
    at = SinkSlot("3f2b6c1e", "orders", "totals", 7, 1, late, "w7", prev)
    assert at.verdict(version, at.mark) == verdict
    # Before the decision nobody has it.
    with nullcontext() if verdict == "commit" else refused(DisagreementError, "disagree"):
        at.refuse_disagreement("the table", version)


@pytest.mark.parametrize(
    ("version", "verdict"),
    [(None, "commit"), (3, "commit"), (4, "commit"), (5, "disagree"), (7, "already")],
)
def test_behind_a_record_that_left_no_slot_an_older_one_and_none_are_right(
    version: int | None, verdict: str
) -> None:
    at = SinkSlot("3f2b6c1e", "orders", "totals", 7, 1, record="w7", prev=4, unmarked=True)
    assert at.verdict(version, at.mark) == verdict


@pytest.mark.parametrize(
    ("mark", "merged_by_delta", "verdict"),
    [
        ("w7", False, "already"),
        ("w8", False, "disagree"),
        (None, False, "disagree"),
        ("of slot 6", False, "disagree"),
        ("w7", True, "already"),
        ("w8", True, "disagree"),
        (None, True, "already"),
        ("of slot 6", True, "already"),
    ],
)
def test_a_slot_is_in_by_the_mark_of_its_record(
    mark: str | None, merged_by_delta: bool, verdict: str
) -> None:
    """Where the slot was set by hand, the rows are not there. Delta's MERGE leaves no mark, or that of an earlier slot in its place."""
    at = SinkSlot("3f2b6c1e", "orders", "totals", 7, 1, record="w7", prev=6)
    other = replace(at, slot=6) if mark == "of slot 6" else replace(at, record=mark or "")
    assert at.verdict(7, None if mark is None else other.mark, mark_may_lack=merged_by_delta) == verdict
