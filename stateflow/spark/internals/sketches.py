"""The highest value of each key in one pass, however many keys there are: Spark's aggregate into a sketch, and what a sketch says."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from stateflow.errors import IncompatibleError
from stateflow.internals import internal
from stateflow.spark.internals.java_names import java_names

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

_AGGREGATE = "tuple_sketch_agg_double"
_SKETCHES = "org.apache.datasketches.tuple"
_SIZE = 16
"""The binary logarithm of how many keys a sketch holds. It grows with its keys, so that much room costs nothing."""
_SEED = 9001
"""The default seed of the sketch library."""
_EXACT = 1 << 53
"""Up to here a double is every whole number."""


def can_measure_highest(spark: SparkSession) -> bool:
    """Whether Spark has the aggregate, as it has since 4.2."""
    return spark.catalog.functionExists(_AGGREGATE)


def highest_by_key(key: str, value: str) -> Column:
    """An aggregate of the highest `value` of each `key`, both SQL of whole numbers. A key whose values are all null is in it, too."""
    return F.expr(
        f"{_AGGREGATE}({key}, coalesce(cast({value} as double), double('-infinity')), {_SIZE}, 'max')"
    )


@internal(
    f"{_SKETCHES}.Sketches.heapifySketch(Memory, SummaryDeserializer)",
    f"{_SKETCHES}.Sketch.isEstimationMode()",
    f"{_SKETCHES}.Sketch.iterator()",
    f"{_SKETCHES}.TupleSketchIterator.next()",
    f"{_SKETCHES}.TupleSketchIterator.getHash()",
    f"{_SKETCHES}.TupleSketchIterator.getSummary()",
    f"{_SKETCHES}.adouble.DoubleSummary.getValue()",
    f"{_SKETCHES}.adouble.DoubleSummaryDeserializer()",
    "org.apache.datasketches.memory.Memory.wrap(byte[])",
    "org.apache.datasketches.hash.MurmurHash3.hash(long, long)",
    seen_in=("pyspark 4.2.0",),
)
def values_by_key(spark: SparkSession, sketch: bytes, keys: Iterable[int]) -> dict[int, int | None]:
    """What `highest_by_key` measured: of each key that had rows its highest value; None if all were null. `keys` are those that there can be: a
    sketch keeps a hash of each.

    A value beyond 2**53 is one that a double has, and not above the true one.
    """
    names = java_names(spark).org.apache.datasketches
    deserializer = names.tuple.adouble.DoubleSummaryDeserializer()
    found = names.tuple.Sketches.heapifySketch(names.memory.Memory.wrap(sketch), deserializer)
    if found.isEstimationMode():
        raise IncompatibleError(
            f"a batch has rows of more than {1 << _SIZE} keys, of which no sketch tells each"
        )
    by_hash = {_hash(names, key): key for key in keys}
    values: dict[int, int | None] = {}
    entries = found.iterator()
    while entries.next():
        if (key := by_hash.get(entries.getHash())) is None:
            raise IncompatibleError("a batch has rows of a key that its position does not have")
        values[key] = _whole(entries.getSummary().getValue())
    return values


_hashes: dict[int, int] = {}


def _hash(names: Any, key: int) -> int:
    """As a sketch has it."""
    if key not in _hashes:
        _hashes[key] = (names.hash.MurmurHash3.hash(key, _SEED)[0] % (1 << 64)) >> 1
    return _hashes[key]


def _whole(value: float) -> int | None:
    if value == -math.inf:
        return None
    return int(value) if abs(value) <= _EXACT else int(math.nextafter(value, -math.inf))
