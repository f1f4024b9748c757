"""How wide the rows are that a task gets and puts out, by which the next batch's Arrow batches are made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

WIDEST = "max_row_bytes"
"""The figure of an operator that tells it."""


class Widest:
    """Looks at batches as they pass, in a task."""

    def __init__(self) -> None:
        self.bytes = 0.0
        """Of a row, on average over the batch in which that is the most."""

    def of(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if batch.num_rows:
                self.bytes = max(self.bytes, batch.nbytes / batch.num_rows)
            yield batch
