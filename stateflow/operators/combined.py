"""Combined rows: each stands for several rows of a key that were summed up before the exchange, and says for how many."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow.compute as pc

from stateflow.pipelines.processes.columnar import ColumnarOperator
from stateflow.pipelines.ready.aggregates import Aggregated

ROWS = "_sf_rows"
"""The column that only combined rows have: how many rows each stands for."""
COUNTED, MARKS = "_sf_counted", "_sf_marks"
"""Two columns for counts of different values: which column the row's value is of, and a bit per count of that column. The bit
is set if the rows that it stands for met the count's condition."""


def is_combined(rows: Any) -> bool:
    """`rows` is a table or a record batch."""
    return ROWS in rows.schema.names


def count_of(rows: Any) -> int:
    """How many rows a table or a record batch stands for."""
    return int(pc.sum(rows.column(ROWS)).as_py() or 0) if is_combined(rows) else int(rows.num_rows)


def part_name(aggregate: str, part: int) -> str:
    """The column of a combined row with a part of an aggregate."""
    return f"_sf_{aggregate}_{part}"


def value_name(number: int) -> str:
    """The column of combined rows with the values of a counted column. No aggregate has a part of this name."""
    return f"_sf_{number}_value"


def counts_by_column(aggregates: Iterable[Aggregated]) -> dict[str, list[Aggregated]]:
    """The counts of different values, by the column that they count. A column's number is its place here, and a count's bit is
    its place in the column's list."""
    found: dict[str, list[Aggregated]] = {}
    for each in aggregates:
        if each.value is not None:
            found.setdefault(each.aggregate.column, []).append(each)
    return found


class Combinable(ColumnarOperator):
    """An operator that takes combined rows as well as single ones."""

    groups: int = 0
    """How many combined rows its rows made, or would have made. This shows whether combining pays."""
