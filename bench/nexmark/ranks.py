"""Bids, and different values of columns, of all prices and of each rank of them: q15, q16 and q17 in SQL."""

from __future__ import annotations

from bench.nexmark.queries import RANKS


def by_rank(
    *columns: str,
    bids: str = "count(*) filter (where {where})",
    values: str = "count(distinct {column}) filter (where {where})",
) -> str:
    """What to select. `bids` and `values` are how an engine writes the two counts."""
    conditions = {"all": "true", **RANKS}
    counts = [f"{bids.format(where=where)} as bids_{rank}" for rank, where in conditions.items()]
    for column in columns:
        counts += [
            f"{values.format(column=column, where=where)} as {column}s_{rank}"
            for rank, where in conditions.items()
        ]
    return ", ".join(counts)
