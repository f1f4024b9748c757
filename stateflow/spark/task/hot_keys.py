"""Keys that have so many of a batch's rows that one task works while the others wait.

A task looks at 64 rows of each Arrow batch, so that the look costs nothing beside them, and what it finds is about right. The key
itself goes into the log alone: a record that named it would keep it when somebody has it erased.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from stateflow.spark.task.acks import Ack

SEEN = 64
"""Rows of an Arrow batch that are looked at."""
LEAST_ROWS = 50_000
"""A batch of fewer rows is quick, whatever its keys are."""
LEAST_SHARE = 0.2
_MOST_KEYS = 4096
_STEP = 0.6180339887498949
"""The golden ratio: keys that come in turns are not met at the same turn again and again."""


@dataclass(frozen=True, slots=True)
class HotKey:
    """A key with a large share of an operator's rows in a batch."""

    key: str
    share: float
    subtask: int
    subtasks: int

    def sentence(self, operator: str) -> str:
        return (
            f"operator {operator!r}: one key has about {self.share:.0%} of a batch's rows, so subtask {self.subtask} of "
            f"{self.subtasks} works while the others wait; the log names the key: aggregate its rows before, or key them by one column more"
        )


class KeySample:
    """Counts the keys of some rows as they pass."""

    def __init__(self, indices: Sequence[int]) -> None:
        self._indices = indices
        """Those of the key's columns."""
        self._counts: Counter[Any] = Counter()
        self._rows = 0

    def of(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            if batch.num_rows:
                self._look(batch)
            yield batch

    def _look(self, batch: Any) -> None:
        rows = batch.num_rows
        self._rows += rows
        step = max(1.0, rows / SEEN)
        indices = pa.array([int((n + n * _STEP % 1) * step) for n in range(min(rows, SEEN))], pa.int32())
        if step == 1.0:
            indices = pa.array(range(rows), pa.int32())
        columns = [batch.column(index).take(indices).to_pylist() for index in self._indices]
        for key in zip(*columns, strict=True):
            self._counts[key] += step
        if len(self._counts) > _MOST_KEYS:
            self._counts = Counter(dict(self._counts.most_common(_MOST_KEYS // 2)))

    def figures(self) -> dict[str, Any]:
        """For the ack."""
        (key, rows), *_ = self._counts.most_common(1) or [((), 0)]
        shown = repr(key[0]) if len(key) == 1 else repr(key)
        return {"taken": self._rows, "hot_key": shown if rows else "", "hot_rows": round(rows)}


def hot_key(acks: Sequence[Ack]) -> HotKey | None:
    """The key that makes one task of a batch slow, if there is one."""
    rows = sum(ack.taken for ack in acks)
    if len(acks) < 2 or rows < LEAST_ROWS:
        return None
    hottest = max(acks, key=lambda ack: ack.hot_rows)
    share = min(1.0, hottest.hot_rows / rows)
    if share < max(LEAST_SHARE, 0.9 / len(acks)):
        return None
    return HotKey(hottest.hot_key, share, hottest.subtask, len(acks))
