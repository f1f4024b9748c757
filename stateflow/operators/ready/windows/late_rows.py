"""Late rows: those that no window takes, because all of their windows are closed or they have no event time, and those that are
late for some of their windows."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Set
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from stateflow.operators.combined import count_of
from stateflow.pipelines.processes.columnar import ColumnarContext
from stateflow.pipelines.ready.operators import LATE, LATE_ROWS, PARTLY_LATE_ROWS, WindowAggregate
from stateflow.pipelines.ready.windows import STRICT


@dataclass(frozen=True)
class LateRows:
    """Counts them, and puts them out to the side if that is read."""

    wanted: bool
    strict: bool = False
    """Whether a row that is partly late is late."""

    def divert(
        self, rows: pa.Table, times: Any, on_time: Any, ctx: ColumnarContext, partly: Any = None
    ) -> Generator[tuple[str, pa.Table], None, tuple[pa.Table, Any]]:
        """Puts the late rows out, and returns the others with their times. `partly` says which rows are late for a part of their
        windows, or for all."""
        if partly is not None and bool(partly.any()):
            if self.strict:
                on_time = on_time & ~partly
            else:
                self.count_partly(rows.filter(pa.array(on_time & partly)), ctx)
        if not bool(on_time.all()):
            yield from self.put(rows.filter(pa.array(~on_time)), ctx)
            rows, times = rows.filter(pa.array(on_time)), times[on_time]
        return rows, times

    def count_partly(self, rows: pa.Table, ctx: ColumnarContext) -> None:
        if rows.num_rows:
            ctx.metrics.counter(PARTLY_LATE_ROWS).inc(count_of(rows))

    def put(self, rows: pa.Table, ctx: ColumnarContext) -> Iterator[tuple[str, pa.Table]]:
        ctx.metrics.counter(LATE_ROWS).inc(count_of(rows))
        if self.wanted:
            yield LATE, rows


def late_rows_of(declared: WindowAggregate, read: Set[str]) -> LateRows:
    """`read` are the outputs that have a reader."""
    return LateRows(wanted=LATE in read, strict=declared.late == STRICT)
