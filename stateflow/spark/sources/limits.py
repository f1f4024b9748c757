"""How much of a stream the next batch may take, beside what the stream's own options say."""

from __future__ import annotations

from collections.abc import Callable

from stateflow.spark.internals.read_limits import ReadLimit

Limited = Callable[[], ReadLimit | None]
"""Asked anew for each batch."""


def unlimited() -> ReadLimit | None:
    return None
