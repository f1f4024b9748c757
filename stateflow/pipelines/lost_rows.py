"""Late rows that nobody reads: operators count them, and they are nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stateflow.pipelines.graph import Graph
from stateflow.pipelines.processes.operator_spec import DEAD_LETTERS
from stateflow.pipelines.ready.operators import LATE_ROWS, ReadyOperator


@dataclass(frozen=True)
class LostRows:
    """The late rows of an operator whose late output nobody reads."""

    operator: str
    sides: tuple[str, ...]
    """The outputs that would have had them."""
    rows: int


def lost_rows(graph: Graph, operators: Mapping[str, Mapping[str, Any]]) -> list[LostRows]:
    """The rows that a batch lost. `operators` has the batch's notes by the operator's uid. A join counts the late rows of both
    inputs together, so a join whose left late rows alone are read is left out.
    """
    lost = []
    for node in graph.operators:
        if not isinstance(node.columnar, ReadyOperator):
            continue
        rows = int(operators.get(node.uid, {}).get("counters", {}).get(LATE_ROWS, 0))
        sides = tuple(name for name in node.sides if name != DEAD_LETTERS)
        if rows and sides and set(sides) <= set(graph.unread_sides(node)):
            lost.append(LostRows(node.uid, sides, rows))
    return lost


def added(before: Mapping[str, LostRows], lost: list[LostRows]) -> dict[str, LostRows]:
    """By operator: what several batches lost together."""
    total = dict(before)
    for each in lost:
        known = total.get(each.operator)
        total[each.operator] = LostRows(
            each.operator, each.sides, each.rows + (known.rows if known is not None else 0)
        )
    return total
