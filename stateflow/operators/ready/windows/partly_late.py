"""Which rows are partly late: one of a row's windows is still open, and another one has been put out, or may have been.

`closed` is the instant up to which windows are closed: the watermark less the lateness. Without such rows, the windows that come out are
those of one computation over all rows that were not late. With late="strict" an operator takes no such row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stateflow.operators.ready.windows.assigning import oldest_end
from stateflow.operators.ready.windows.spans import Spans
from stateflow.pipelines.ready.windows import Window


def misses_windows(window: Window, times: Any, closed: int) -> Any:
    """Of windows whose bounds follow from the time of a row: whether the first window of each row is closed. A row is late when
    the last one is, too."""
    return oldest_end(window, times) <= closed


def before_sessions(keys: Any, times: Any, opened: Spans, closed: int) -> Any:
    """Of sessions: whether each row, of the key with that number, is at or behind `closed`, and before the open sessions of its key.

    A closed session ends at or before `closed`, and is forgotten. The row may have been within its gap. A later row cannot have
    been, and neither can a row inside an open session, since that begins after everything that is closed.
    """
    behind = times <= closed
    if not bool(behind.any()):
        return behind
    begins = np.full(max(int(keys.max()), int(opened.keys.max(initial=0))) + 1, np.iinfo(np.int64).max)
    np.minimum.at(begins, opened.keys, opened.starts)
    return behind & (times < begins[keys])
