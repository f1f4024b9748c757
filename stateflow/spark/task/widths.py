"""Measures how wide a task's input and output rows are. The next batch's Arrow batches are made accordingly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

WIDEST = "max_row_bytes"
"""The figure of an operator that tells it."""


class Widest:
    """Looks at batches as they pass, in a task."""

    def __init__(self) -> None:
        self.bytes = 0.0
        """Bytes of a row, on average over a batch; the highest average of all batches."""

    def of(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if batch.num_rows:
                self.bytes = max(self.bytes, batch.nbytes / batch.num_rows)
            yield batch
