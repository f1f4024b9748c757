"""Rows that were summed up before they came: each stands for several rows of a key, and says for how many."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc

from stateflow.pipelines.columnar import ColumnarOperator

ROWS = "_sf_rows"
"""The column that tells them apart from single rows: how many rows each stands for."""


def is_combined(rows: Any) -> bool:
    """`rows` is a table or a record batch."""
    return ROWS in rows.schema.names


def count_of(rows: Any) -> int:
    """How many rows a table or a record batch stands for."""
    return int(pc.sum(rows.column(ROWS)).as_py() or 0) if is_combined(rows) else int(rows.num_rows)


def part_name(aggregate: str, part: int) -> str:
    """The column of a combined row with a part of an aggregate."""
    return f"_sf_{aggregate}_{part}"


class Combinable(ColumnarOperator):
    """An operator that takes combined rows as well as single ones."""

    groups: int = 0
    """How many combined rows its rows made, or would have made: what tells if combining pays."""
