"""What late means: one comparison for the sources of a run and for the test harness."""

from __future__ import annotations

from typing import Any


def is_late(event_time: Any, watermark: Any) -> Any:
    """Whether a row is at or behind the watermark: a timer of its instant has fired by then, or fires in this batch.

    Takes Spark columns as well as plain values, so that a run and the harness cannot differ.
    """
    return event_time <= watermark
