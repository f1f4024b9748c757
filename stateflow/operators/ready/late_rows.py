"""Rows that no window takes: all of their windows are closed, or they have no event time."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from stateflow.operators.combined import count_of
from stateflow.pipelines.columnar import ColumnarContext
from stateflow.pipelines.ready import LATE, LATE_ROWS


@dataclass(frozen=True)
class LateRows:
    """Counts them, and puts them out to the side if that is read."""

    wanted: bool

    def apart(
        self, rows: pa.Table, times: Any, on_time: Any, ctx: ColumnarContext
    ) -> Generator[tuple[str, pa.Table], None, tuple[pa.Table, Any]]:
        """Puts the late rows out, and returns the others with their times."""
        if not bool(on_time.all()):
            yield from self.put(rows.filter(pa.array(~on_time)), ctx)
            rows, times = rows.filter(pa.array(on_time)), times[on_time]
        return rows, times

    def put(self, rows: pa.Table, ctx: ColumnarContext) -> Iterator[tuple[str, pa.Table]]:
        ctx.metrics.counter(LATE_ROWS).inc(count_of(rows))
        if self.wanted:
            yield LATE, rows
