"""The rows that a batch's streams have, with frames that count how often somebody collects them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from stateflow.pipelines.graph import NodeRows
from stateflow.pipelines.processes.operator_spec import MAIN
from stateflow.pipelines.rows.row_type import row_type
from stateflow.spark.batches.stream_rows import StreamRows


class Rates:
    """A frame of one row."""

    columns = ("sku",)
    dtypes = (("sku", "string"),)
    collected = 0

    def selectExpr(self, *columns: str) -> Rates:
        return self

    def limit(self, rows: int) -> Rates:
        return self

    def toArrow(self) -> pa.Table:
        self.collected += 1
        return pa.table({"sku": ["tea"]})


def test_the_broadcast_rows_of_an_operator_that_is_planned_twice_are_collected_once() -> None:
    rates: Any = Rates()
    source: Any = SimpleNamespace(uid="rates")
    priced: Any = SimpleNamespace(
        uid="priced", broadcast={"rates": NodeRows(None, source, MAIN, row_type("sku string"))}
    )
    rows = StreamRows(attempt=None, sources=None)  # type: ignore[arg-type]
    rows.put(source, MAIN, rates)
    first = rows.broadcast(priced)
    assert rows.broadcast(priced) == first
    assert first == {"rates": (("tea",),)}
    assert rates.collected == 1
