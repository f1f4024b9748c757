"""A flow of ready-made operators as a run evaluates it, batch by batch, without Spark: each operator gets what those before it put out."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa

from stateflow.operators.arrow_types import arrow_schema_of
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.graph import KeyedNode, Node, SourceNode, TransformNode
from stateflow.pipelines.held_back import comes_when_reached
from stateflow.pipelines.processes.operator_spec import MAIN
from stateflow.pipelines.ready.operators import ReadyOperator
from stateflow.pipelines.rows.row_type import RowType
from tests.operators.ready.driving import END, Driven

SECOND = 1_000_000


class Chained:
    """Each batch is run by fresh copies of the operators, which know nothing but their state, in shards that split and join."""

    def __init__(self, flow: Flow, chance: random.Random) -> None:
        self.flow = flow
        self._chance = chance
        self.operators: dict[str, Driven] = {}
        for node in flow.operators:
            assert isinstance(node.columnar, ReadyOperator)
            self.operators[node.uid] = Driven(
                node.columnar,
                chance.randrange(1, 3),
                waited=comes_when_reached(node),
                held_back=node.held_back,
            )
        self.rows: dict[str, list[dict[str, Any]]] = {node.uid: [] for node in flow.operators}

    def batch(self, sources: dict[str, list[dict[str, Any]]], watermark: int | None) -> None:
        tables: dict[int, pa.Table] = {}
        for node in self.flow.nodes:
            if isinstance(node, SourceNode):
                assert node.rows is not None
                tables[id(node)] = _table(sources.get(node.uid, []), node.rows)
            elif isinstance(node, KeyedNode):
                tables[id(node)] = self._operator(node, tables, watermark)
            elif node.inputs and not node.kind:
                parts = [tables[id(each.node)] for each in node.inputs]
                table = pa.concat_tables(part.select(parts[0].column_names) for part in parts)
                tables[id(node)] = _transformed(node, table)

    def _operator(self, node: KeyedNode, tables: dict[int, pa.Table], watermark: int | None) -> pa.Table:
        assert node.output is not None
        assert all(each.stream.output == MAIN for each in node.keyed)
        driven, given = self.operators[node.uid], [tables[id(each.stream.node)] for each in node.keyed]
        pieces = self._chance.randrange(1, 3)
        if len(given) == 1:
            found = driven.batch(given[0] if given[0].num_rows else None, watermark, pieces)
        else:
            found = driven.both(given[0], given[1], watermark, pieces)
        if self._chance.random() < 0.2:
            driven.rescale(self._chance.randrange(1, 4))
        self.rows[node.uid] += found
        return _table(found, node.output)

    @property
    def late(self) -> dict[str, int]:
        """The rows that were late, by operator."""
        counts = {uid: driven.counters.get("late_rows", 0) for uid, driven in self.operators.items()}
        return {uid: count for uid, count in counts.items() if count}


def _transformed(node: Node, table: pa.Table) -> pa.Table:
    if not isinstance(node, TransformNode):
        return table
    return node.function.of_arrow(table)  # type: ignore[attr-defined]


def _table(rows: list[dict[str, Any]], of: RowType) -> pa.Table:
    return pa.Table.from_pylist(rows, arrow_schema_of(of))


def run(
    flow: Flow, sources: dict[str, list[dict[str, Any]]], chance: random.Random, delay: int
) -> tuple[Chained, dict[str, list[dict[str, Any]]]]:
    """Runs rows of `ts` (in microseconds) in batches of random size, and drains the job. The watermark of a batch is `delay` behind the
    newest row of the batches before, of the source that is behind. Returns the rows, too, that were ahead of it: the others are split
    off at the source."""
    chained = Chained(flow, chance)
    ahead: dict[str, list[dict[str, Any]]] = {uid: [] for uid in sources}
    newest: dict[str, int] = {}
    cuts = chance.randrange(12)
    spans = {
        uid: [0, *sorted(chance.randrange(len(rows) + 1) for _ in range(cuts)), len(rows)]
        for uid, rows in sources.items()
    }
    watermark: int | None = None
    for batch in range(cuts + 1):
        if len(newest) == len(sources):
            lowest = min(newest.values()) - delay
            watermark = lowest if watermark is None else max(watermark, lowest)
        parts = {uid: rows[spans[uid][batch] : spans[uid][batch + 1]] for uid, rows in sources.items()}
        taken = {
            uid: [row for row in part if watermark is None or row["ts"] > watermark]
            for uid, part in parts.items()
        }
        chained.batch(taken, watermark)
        for uid, part in parts.items():
            ahead[uid] += taken[uid]
            if part:
                newest[uid] = max([row["ts"] for row in part] + ([newest[uid]] if uid in newest else []))
    if chance.random() < 0.5 and len(newest) == len(sources):
        # A batch without rows, for what is due.
        last = min(newest.values()) - delay
        chained.batch({}, last if watermark is None else max(watermark, last))
    chained.batch({}, END)
    return chained, ahead
