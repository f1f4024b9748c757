"""Rows that no window takes: all of their windows are closed, or they have no event time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from stateflow.pipelines.columnar import ColumnarContext
from stateflow.pipelines.ready import LATE

COUNTER = "late_rows"


@dataclass(frozen=True)
class LateRows:
    """Counts them, and puts them out to the side if that is read."""

    wanted: bool

    def put(self, rows: pa.Table, ctx: ColumnarContext) -> Iterator[tuple[str, pa.Table]]:
        ctx.metrics.counter(COUNTER).inc(rows.num_rows)
        if self.wanted:
            yield LATE, rows
