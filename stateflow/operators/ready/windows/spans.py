"""Spans of time that rows within the gap of each other make, and that become one where they touch."""

from __future__ import annotations

from typing import Any

import numpy as np

from stateflow.pipelines.ready.operators import FOREVER


class Spans:
    """Spans of time of keys, sorted by key and start. `keys` are indices into the keys of a batch."""

    def __init__(self, keys: Any, starts: Any, ends: Any, of_rows: Any = None) -> None:
        self.keys, self.starts, self.ends = keys, starts, ends
        self.of_rows = of_rows
        """For spans of rows: the span of each row."""

    @classmethod
    def among(cls, keys: Any, times: Any, gap: int) -> Spans:
        order = np.lexsort((times, keys))
        sorted_keys, sorted_times = keys[order], times[order]
        begins = np.ones(len(order), dtype=bool)
        begins[1:] = (sorted_keys[1:] != sorted_keys[:-1]) | (sorted_times[1:] - sorted_times[:-1] > gap)
        of_rows = np.empty(len(order), dtype=np.int64)
        of_rows[order] = np.cumsum(begins) - 1
        first = np.flatnonzero(begins)
        last = np.append(first[1:], len(order)) - 1
        ends = np.minimum(sorted_times[last] + gap, FOREVER)
        return cls(sorted_keys[first], sorted_times[first], ends, of_rows)


class Merged:
    """The spans of two sides; those of a key that touch are one."""

    def __init__(self, old: Spans, new: Spans) -> None:
        keys = np.concatenate((old.keys, new.keys))
        starts = np.concatenate((old.starts, new.starts))
        ends = np.concatenate((old.ends, new.ends))
        order = np.lexsort((starts, keys))
        keys, starts, ends = keys[order], starts[order], ends[order]
        reach = _reach(keys, ends)
        begins = np.ones(len(order), dtype=bool)
        begins[1:] = (keys[1:] != keys[:-1]) | (starts[1:] > reach[:-1])
        first = np.flatnonzero(begins)
        last = np.append(first[1:], len(order)) - 1
        self.keys, self.starts, self.ends = keys[first], starts[first], reach[last]
        of = np.empty(len(order), dtype=np.int64)
        of[order] = np.cumsum(begins) - 1
        self.of_old, self.of_new = of[: len(old.keys)], of[len(old.keys) :]


def _reach(keys: Any, ends: Any) -> Any:
    """The latest end of the spans of a key so far."""
    different, ranks = np.unique(ends, return_inverse=True)
    # Keys ascend, so a key's first span outranks all spans of the key before.
    highest = np.maximum.accumulate(keys * len(different) + ranks)
    return different[highest - keys * len(different)]
