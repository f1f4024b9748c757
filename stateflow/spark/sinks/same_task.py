"""Python code behind Python code in one task. Spark would run each `mapInArrow` in a process of its own, and between the two make
rows of the Arrow batches, and Arrow batches of the rows."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Function = Callable[[Iterator[Any]], Iterator[Any]]

_made: WeakKeyDictionary[DataFrame, tuple[DataFrame, Function]] = WeakKeyDictionary()
"""By frame what it was made of, as long as somebody has it."""


def map_in_arrow(frame: DataFrame, function: Function, schema: str) -> DataFrame:
    """`frame.mapInArrow`, which `then_in_arrow` can go on from; the function is a generator's."""
    made = frame.mapInArrow(function, schema)
    _made[made] = frame, function
    return made


def then_in_arrow(frame: DataFrame, function: Function, schema: str) -> DataFrame:
    """`frame.mapInArrow`: in the same process, if the frame came from `map_in_arrow` and nothing was done with it since. The function goes by
    the places of columns."""
    of = _made.get(frame)
    if of is None:
        return with_plain_names(frame).mapInArrow(function, schema)
    before, first = of
    return before.mapInArrow(partial(_both, first, function), schema)


def with_plain_names(frame: DataFrame) -> DataFrame:
    """The frame with other names of its columns, if PySpark's `mapInArrow` finds one of them by no name: a dot stands for a field there."""
    if not any(set(".`") & set(name) for name in frame.columns):
        return frame
    return frame.toDF(*(f"c{place}" for place in range(len(frame.columns))))


def _both(first: Function, then: Function, batches: Iterator[Any]) -> Iterator[Any]:
    # If the second fails, the first has files and a database to close.
    with closing(cast("Generator[Any]", first(batches))) as made:
        yield from then(made)
