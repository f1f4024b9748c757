"""What a sink does with a record, decided from three numbers."""

from __future__ import annotations

import pytest

from stateflow.spark.sinks.base import decide, decide_undecided


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
    assert decide(version, prev, 7, late) == verdict
    # Before the decision nobody has it.
    assert decide_undecided(version, prev, 7, late) == ("commit" if verdict == "commit" else "disagree")
