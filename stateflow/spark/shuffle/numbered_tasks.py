"""Rows to tasks by number: a row whose expression says 3 comes to task 3, in every Spark.

Spark 4.1 has `repartitionById` for that. Spark 4.0 places rows by a hash alone, and each number has to be replaced by
another one whose hash leads to its task.
"""

from __future__ import annotations

from functools import cache

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

_SEED = 42
"""Spark's own, for placing rows and for `hash()`."""
_BITS = 0xFFFFFFFF


def to_tasks(frame: DataFrame, tasks: int, task: str) -> DataFrame:
    """The rows in so many tasks, each in the one that the SQL expression `task` numbers, from 0."""
    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(tasks, F.expr(task))
    if tasks == 1:
        return frame.repartition(1)
    numbers = ",".join(map(str, numbers_of_tasks(tasks)))
    return frame.repartition(tasks, F.expr(f"element_at(array({numbers}), ({task}) + 1)"))


@cache
def numbers_of_tasks(tasks: int) -> tuple[int, ...]:
    """For each task, a number that Spark places there: the lowest one."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < tasks:
        found.setdefault(murmur3(number) % tasks, number)
        number += 1
    return tuple(found[task] for task in range(tasks))


def murmur3(number: int) -> int:
    """Spark's `hash()` of an int."""
    mixed = number * 0xCC9E2D51 & _BITS
    mixed = _rotated(mixed, 15) * 0x1B873593 & _BITS
    state = _rotated(_SEED ^ mixed, 13) * 5 + 0xE6546B64 & _BITS
    state ^= 4  # bytes of an int
    state = (state ^ state >> 16) * 0x85EBCA6B & _BITS
    state = (state ^ state >> 13) * 0xC2B2AE35 & _BITS
    state ^= state >> 16
    return state - (1 << 32) if state >> 31 else state


def _rotated(bits: int, by: int) -> int:
    return (bits << by | bits >> 32 - by) & _BITS
