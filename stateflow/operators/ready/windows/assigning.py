"""In which windows a row is: by its event time, in microseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.operators.ready.grouping.groups import whole
from stateflow.pipelines.ready.operators import BEGINNING, FOREVER
from stateflow.pipelines.ready.windows import Cumulative, Sliding, Window

INSTANT = pa.timestamp("us", tz="UTC")


def event_times(rows: pa.Table, column: str) -> tuple[Any, Any]:
    """The times as int64, and which rows have one."""
    times = whole(rows[column])
    if times.type != INSTANT:
        times = times.cast(INSTANT)
    valid = times.is_valid().to_numpy(zero_copy_only=False)
    numbers = times.view(pa.int64())
    return (numbers.fill_null(0) if numbers.null_count else numbers).to_numpy(), valid


def instants(micros: Any) -> Any:
    return pa.array(micros, pa.int64()).view(INSTANT)


def shown_ends(ends: Any) -> Any:
    """The ends of windows as rows come out with them: a window that holds the last instant there is ends with it."""
    return instants(np.minimum(ends, FOREVER))


def shown_starts(window: Window, ends: Any) -> Any:
    """The starts of the windows that end there, likewise: a window that holds the first instant there is begins with it."""
    begins = starts(window, ends)
    return instants(np.where(ends > BEGINNING, np.maximum(begins, BEGINNING), begins))


@dataclass(frozen=True)
class Assigned:
    """Rows and their windows; a row may come several times."""

    rows: Any
    """Indices of rows; None when each row comes once, in its place."""
    ends: Any


def newest_end(window: Window, times: Any) -> Any:
    """The end of each row's last window."""
    assert isinstance(window, Sliding | Cumulative)
    step = window.every if isinstance(window, Sliding) else window.size
    return _floor(times, step, window.offset) + window.size


def oldest_end(window: Window, times: Any) -> Any:
    """The end of each row's first window."""
    assert isinstance(window, Sliding | Cumulative)
    # The size of a cumulative window is a multiple of `every`.
    return _floor(times, window.every, window.offset + window.size) + window.every


def assigned(window: Window, times: Any) -> Assigned:
    """Every row in each of its windows."""
    last = newest_end(window, times)
    assert isinstance(window, Sliding | Cumulative)
    if window.count == 1:
        return Assigned(None, last)
    rows, ends = [], []
    for back in range(window.count):
        end = last - back * window.every
        there = np.flatnonzero(end > times)
        rows.append(there)
        ends.append(end[there])
    return Assigned(np.concatenate(rows), np.concatenate(ends))


def starts(window: Window, ends: Any) -> Any:
    """Where the windows begin that end there."""
    assert isinstance(window, Sliding | Cumulative)
    if isinstance(window, Sliding):
        return ends - window.size
    return _floor(ends - 1, window.size, window.offset)


def _floor(times: Any, step: int, offset: int) -> Any:
    return times - (times - offset) % step
