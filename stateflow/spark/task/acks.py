"""Acknowledgements: one ack per operator and subtask, which the task reports through a Spark accumulator.

Spark applies an accumulator exactly once per task of a result stage, together with that attempt's result. So the
shards in an ack and the written rows come from the same attempt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from pyspark import AccumulatorParam

from stateflow.errors import StateflowError
from stateflow.format.records import FileRef, Shard

WIDEST = "max_row_bytes"
"""The metric of an ack that says how wide the rows were that the task took and put out."""


class Ack(msgspec.Struct, frozen=True, omit_defaults=True):
    subtask: int
    attempt: int
    """Spark's task attempt id, unique in the application."""
    shards: tuple[Shard, ...]
    staged: dict[str, FileRef | None] = {}
    """Per output the file that holds this subtask's rows; None when it has no rows."""
    elements: dict[str, tuple[bytes, ...]] = {}
    """Operator state."""
    rows_in: int = 0
    taken: int = 0
    """Rows that came through the exchange; a combined one counts once."""
    hot_key: str = ""
    """The key that most of them have, as text."""
    hot_rows: int = 0
    """How many of them have it, about."""
    rows_out: int = 0
    keys: int = 0
    groups: int = 0
    """Combined rows that the operator's rows made, or would have made, if the operator can be combined."""
    dead_letters: int = 0
    timers: int = 0
    expired: int = 0
    """Entries that left because their ttl was over."""
    counters: dict[str, int] = {}
    """User metrics."""
    metrics: dict[str, float] = {}
    """The library's own: bytes, cache hits, timings."""


class AckList(AccumulatorParam):  # type: ignore[type-arg]
    """Collects encoded acks."""

    def zero(self, value: list[bytes]) -> list[bytes]:
        return []

    def addInPlace(self, value1: list[bytes], value2: list[bytes]) -> list[bytes]:
        value1.extend(value2)
        return value1


def collected(operator: str, parallelism: int, encoded: list[bytes]) -> list[Ack]:
    """One ack per subtask, in order; anything else fails the batch."""
    by_subtask: dict[int, Ack] = {}
    for body in encoded:
        ack = msgspec.msgpack.decode(body, type=Ack)
        if ack.subtask in by_subtask and by_subtask[ack.subtask] != ack:
            raise StateflowError(
                f"operator {operator!r}: subtask {ack.subtask} was acknowledged by two attempts "
                f"({by_subtask[ack.subtask].attempt} and {ack.attempt}); the batch is tried again"
            )
        by_subtask[ack.subtask] = ack
    missing = [n for n in range(parallelism) if n not in by_subtask]
    if missing:
        raise StateflowError(
            f"operator {operator!r}: subtasks {missing} ran without an acknowledgement; the batch is tried again"
        )
    return [by_subtask[n] for n in range(parallelism)]


def summed(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The sum of each metric; of one called `max_...` the highest value."""
    metrics: dict[str, float] = {}
    for name, value in (item for part in parts for item in part.items()):
        if name.startswith("max_"):
            metrics[name] = max(metrics.get(name, 0), value)
        else:
            metrics[name] = metrics.get(name, 0) + value
    return metrics


def total(acks: list[Ack]) -> dict[str, Any]:
    """Sums over subtasks."""
    counters: Counter[str] = Counter()
    for ack in acks:
        counters.update(ack.counters)
    return {
        "rows_in": sum(a.rows_in for a in acks),
        "rows_out": sum(a.rows_out for a in acks),
        "keys": sum(a.keys for a in acks),
        "dead_letters": sum(a.dead_letters for a in acks),
        "timers": sum(a.timers for a in acks),
        "expired": sum(a.expired for a in acks),
        "metrics": summed(ack.metrics for ack in acks),
        "counters": dict(counters),
    }
