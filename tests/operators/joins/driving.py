"""Runs a join over rows of two inputs in random batches."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa

from stateflow.pipelines.ready.operators import ReadyOperator
from tests.operators.ready.driving import END, Driven


def run(
    declared: ReadyOperator, left: list[dict[str, Any]], right: list[dict[str, Any]], schemas: tuple[Any, Any], chance: random.Random,
    delay: int,
) -> Driven:  # fmt: skip
    """Runs the rows in random batches with rescales between them, and marks each row with the watermark of its batch. The
    watermark is `delay` behind the newest time of both inputs."""
    driven = Driven(declared, chance.randrange(1, 4))
    newest: int | None = None
    cuts = chance.randrange(10)
    spans = [
        [0, *sorted(chance.randrange(len(rows) + 1) for _ in range(cuts)), len(rows)]
        for rows in (left, right)
    ]
    for batch in range(cuts + 1):
        parts = [rows[span[batch] : span[batch + 1]] for rows, span in zip((left, right), spans, strict=True)]
        mark = None if newest is None else newest - delay
        for row in (*parts[0], *parts[1]):
            row["mark"] = mark
        tables = [pa.Table.from_pylist(part, schema) for part, schema in zip(parts, schemas, strict=True)]
        driven.both(tables[0], tables[1], mark, chance.randrange(1, 4))
        times = [row["ts"] for part in parts for row in part if row["ts"] is not None]
        newest = max([*times, *([newest] if newest is not None else [])], default=None)
        if chance.random() < 0.3:
            driven.rescale(chance.randrange(1, 5))
    driven.both(schemas[0].empty_table(), schemas[1].empty_table(), END)
    return driven


def is_late(row: dict[str, Any]) -> bool:
    return row["ts"] is None or (row["mark"] is not None and row["ts"] <= row["mark"])
