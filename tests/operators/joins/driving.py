"""Drives a join as tasks do: batches of two inputs, shards, several tables, rescales; every batch by a fresh copy."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle

from stateflow.format.keygroups import key_group
from stateflow.operators.columnar import ColumnarEngine
from stateflow.pipelines.ready.operators import ReadyOperator
from tests.operators.ready.driving import END, GROUPS, Driven, _with

SECOND = 1_000_000


class DrivenJoin(Driven):
    def both(
        self, left: pa.Table, right: pa.Table, watermark: int | None, tables: int = 1
    ) -> list[dict[str, Any]]:
        moment = self.moment(watermark)
        produced: list[dict[str, Any]] = []
        after = []
        declared: Any = self.declared
        inputs = [(left, declared.left.key), (right, declared.right.key)]
        groups = [_groups(table, key) for table, key in inputs]
        for mine, backend, due in self._shards:
            here = [
                t.filter(pa.array(np.isin(g, list(mine)))) for (t, _), g in zip(inputs, groups, strict=True)
            ]
            is_due = due is not None and watermark is not None and due <= watermark
            if not any(table.num_rows for table in here) and not is_due:
                after.append((mine, backend, due))
                continue
            operator = cloudpickle.loads(cloudpickle.dumps(self._spec.operator))
            engine = ColumnarEngine(_with(self._spec, operator), moment, 0)
            engine.attach(backend, mine, due, empty=False)
            for pieces in _pieces(here, [key for _, key in inputs], tables):
                late = [pa.array([False] * piece.num_rows) for piece in pieces]
                self._take(engine.process(pieces, late), produced)
            self._take(engine.fire(), produced)
            after.append((mine, backend, engine.next_due()))
            for name, counter in engine.context.metrics.counters.items():
                self.counters[name] = self.counters.get(name, 0) + counter.value
        self._shards = after
        self.output.append(produced)
        return produced


def _groups(table: pa.Table, key: Sequence[str]) -> Any:
    keys = list(zip(*(table[name].to_pylist() for name in key), strict=True))
    plain = [key[0] if len(key) == 1 else key for key in keys]
    return np.array([0 if None in k else key_group(p, GROUPS) for k, p in zip(keys, plain, strict=True)])


def _pieces(tables: list[pa.Table], keys: list[Sequence[str]], count: int) -> list[list[pa.Table]]:
    """Tables of whole keys, but one key that goes on in the next table."""
    if not any(table.num_rows for table in tables):
        return []
    if count == 1:
        return [tables]
    rows = [
        (repr([row[name] for name in key]), side, place)
        for side, (table, key) in enumerate(zip(tables, keys, strict=True))
        for place, row in enumerate(table.to_pylist())
    ]
    rows.sort()
    step = -(-len(rows) // count)
    pieces = []
    for begin in range(0, len(rows), step):
        part = rows[begin : begin + step]
        places = [pa.array([p for _, s, p in part if s == side], pa.int64()) for side in (0, 1)]
        pieces.append([table.take(mine) for table, mine in zip(tables, places, strict=True)])
    return pieces


def run(
    declared: ReadyOperator, left: list[dict[str, Any]], right: list[dict[str, Any]], schemas: tuple[Any, Any], chance: random.Random,
    delay: int,
) -> DrivenJoin:  # fmt: skip
    """Runs the rows in random batches with rescales between them, and marks each row with the watermark of its batch. The
    watermark is `delay` behind the newest time of both inputs."""
    driven = DrivenJoin(declared, chance.randrange(1, 4))
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
