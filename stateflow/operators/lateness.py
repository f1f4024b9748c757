"""Decides what is late, with one comparison for the sources of a run and for the test harness. Gives the watermark of an
operator behind others."""

from __future__ import annotations

from typing import Any

from stateflow.format.instants import END_OF_TIME
from stateflow.operators.context import Moment


def behind(watermark: int | None, held_back: int) -> int | None:
    """The watermark of an operator that is held back by so many microseconds. In a drained job it stands at the end of time for
    all operators."""
    return watermark if watermark is None or watermark >= END_OF_TIME else watermark - held_back


def ahead(due: int | None, held_back: int) -> int | None:
    """The watermark that a batch must have for such an operator to reach an instant."""
    return due if due is None or due >= END_OF_TIME else min(due + held_back, END_OF_TIME)


def of_rows_and_timers(moment: Moment, *, waited: bool, held_back: int) -> tuple[int | None, int | None]:
    """The two watermarks of an operator in a batch: one for taking rows, one for what is due after them. `waited`: rows come
    from an operator that puts them out when the watermark of this batch has reached them, so they are ahead of the watermark of
    the batch before.
    """
    before = moment.watermark_before if waited else moment.watermark
    return behind(before, held_back), behind(moment.watermark, held_back)


def is_late(event_time: Any, watermark: Any) -> Any:
    """Whether a row is at or behind the watermark: a timer of its instant has fired by then, or fires in this batch.

    Takes Spark columns as well as plain values, so that a run and the harness cannot differ.
    """
    return event_time <= watermark
