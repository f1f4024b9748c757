"""Which batches can be run again, by what the log still has."""

from __future__ import annotations

from typing import Any

import pytest

from stateflow.checkpoint.log import Log
from stateflow.errors import NotFoundError, UsageError
from stateflow.replay.span import NewestBatches, newest_batches, span
from tests.jobs.log import complete, record
from tests.refusals.refusal import refused


def _log(*records: tuple[int, str, int | None]) -> Log:
    """A log of (slot, kind, the slot it continues)."""
    made = [record(slot, kind=kind, based_on=based_on) for slot, kind, based_on in records]
    return Log("orders", None, (1,), {each.slot: complete(each) for each in made}, (), tuple(made), ())


def _slots(log: Log, first: int, last: int) -> list[tuple[Any, int]]:
    return [(step.before and step.before.slot, step.record.slot) for step in span(log, first, last)]


def test_each_batch_goes_on_from_the_record_before_it() -> None:
    log = _log((1, "checkpoint", None), (2, "checkpoint", 1), (3, "fence", 2), (4, "checkpoint", 2))

    assert _slots(log, 2, 4) == [(1, 2), (2, 4)]
    assert _slots(log, 1, 1) == [(None, 1)]


def test_a_rescale_is_a_step_and_no_batch() -> None:
    log = _log((1, "checkpoint", None), (2, "rescale", 1), (3, "checkpoint", 2))

    assert [(s.record.slot, s.is_batch) for s in span(log, 2, 3)] == [(2, False), (3, True)]


def test_without_the_record_before_it_the_refusal_names_the_first_batch_that_can() -> None:
    log = _log((4, "checkpoint", 3), (5, "checkpoint", 4), (6, "checkpoint", 5))

    with refused(NotFoundError, "checkpoint 4 of job 'orders'", "no longer kept", "the first that can is 5"):
        span(log, 4, 6)
    rescaled = _log((4, "checkpoint", 3), (6, "checkpoint", 5), (7, "checkpoint", 6))  # 5 was a rescale
    with refused(NotFoundError, "checkpoint 4", "record 5, from which 6 goes on", "the first that can is 7"):
        span(rescaled, 4, 7)
    with refused(NotFoundError, "retained_checkpoints or retention"):
        span(_log((4, "checkpoint", 3)), 4, 4)


def test_one_batch_that_cannot_be_run_again_leads_to_the_first_later_one_that_can() -> None:
    log = _log((4, "checkpoint", 3), (7, "checkpoint", 6), (8, "restore", 7), (9, "checkpoint", 8))

    with pytest.raises(NotFoundError, match="the first that can is 9"):
        span(log, 4, 4)
    with pytest.raises(NotFoundError, match="the first that can is 9"):
        span(log, 4, 7)


def test_a_hole_between_kept_checkpoints_ends_the_span() -> None:
    log = _log((2, "checkpoint", 1), (3, "checkpoint", 2), (7, "checkpoint", 6), (8, "checkpoint", 7))

    with pytest.raises(NotFoundError, match="the first that can is 8"):
        span(log, 3, 8)


@pytest.mark.parametrize(
    ("kind", "what"), [("restore", "put back an older state"), ("erase", "erased a key")]
)
def test_what_no_code_computes_ends_a_span(kind: str, what: str) -> None:
    log = _log(
        (1, "checkpoint", None),
        (2, "checkpoint", 1),
        (3, kind, 2),
        (4, "checkpoint", 3),
        (5, "checkpoint", 4),
    )

    with refused(UsageError, f"record 3 of job 'orders' {what}", "up to 2", "from 4"):
        span(log, 2, 5)
    assert _slots(log, 4, 5) == [(3, 4), (4, 5)]


def test_an_older_end_than_beginning_is_refused() -> None:
    with pytest.raises(UsageError, match="give an older one first"):
        span(_log((1, "checkpoint", None), (2, "checkpoint", 1)), 2, 1)


def test_the_newest_batches_are_those_that_are_there() -> None:
    log = _log((1, "checkpoint", None), (2, "rescale", 1), (3, "checkpoint", 2), (4, "checkpoint", 3))

    assert newest_batches(log, 2) == NewestBatches(3, 4)
    assert newest_batches(log, 3) == NewestBatches(1, 4)
    assert newest_batches(log, 9) == NewestBatches(
        1, 4, "3 batches instead of 9 can be run again: job 'orders' has no more"
    )


def test_fewer_newest_batches_say_what_is_in_the_way() -> None:
    gone = _log((4, "checkpoint", 3), (5, "checkpoint", 4), (6, "checkpoint", 5))
    assert newest_batches(gone, 3) == NewestBatches(
        5,
        6,
        "2 batches instead of 3 can be run again: record 3, from which 4 goes on, is no longer kept; the options retained_checkpoints "
        "and retention keep more, but nothing from before an erasure",
    )
    restored = _log((1, "checkpoint", None), (2, "restore", 1), (3, "checkpoint", 2), (4, "fence", 3))
    assert newest_batches(restored, 2) == NewestBatches(
        3,
        3,
        "1 batch instead of 2 can be run again: record 2 put back an older state, which no code computes",
    )


def test_no_newest_batch_is_refused_with_the_reason() -> None:
    with refused(NotFoundError, "'orders'", "no batch yet", "run it first"):
        newest_batches(_log(), 3)
    with refused(NotFoundError, "job 'orders'", "record 3, from which 4 goes on"):
        newest_batches(_log((4, "checkpoint", 3)), 3)
