"""Spares Spark the measuring of Arrow batches that cannot become too large.

Before every row, Spark adds up how many bytes a batch has so far, so as to end it at spark.sql.execution.arrow.maxBytesPerBatch.
That took half as long as to make the batch. Where all columns have a fixed width, the limit in rows often comes first,
whatever is in them: then the sum changes nothing. Other columns are measured by the tasks that get them: where the rows of a
batch were narrow, the next batch goes without the sum. Its rows may be eight times as wide before an Arrow batch exceeds the limit,
and hundreds of times before one cannot be made. A run's first batch and a batch that failed are summed up again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from struct import calcsize
from typing import TYPE_CHECKING, Any

from stateflow.format.scalars import COLUMN_TYPES
from stateflow.spark.internals.frames import arrow_limits
from stateflow.spark.internals.plans import calls_python
from stateflow.spark.task.acks import WIDEST

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
NO_SUM = str(2**31 - 1)
"""The one limit that makes Spark add up nothing."""
ROOM = 8
"""How many times as wide as before rows may become until a batch exceeds the limit."""
_WIDTHS = {column.name: calcsize(f"<{column.form}") for column in COLUMN_TYPES if column.form} | {
    "decimal": 16
}


def bytes_of_row(frame: DataFrame) -> int | None:
    """The bytes that a row has in Arrow at most; None where a column has no fixed width."""
    widths = [_WIDTHS.get(field.dataType.simpleString().partition("(")[0]) for field in frame.schema.fields]
    # A column's marks of nulls are a bit per row.
    return sum(width + 1 for width in widths if width) if all(widths) else None


def stays_small(frame: DataFrame, widest: float = 0) -> bool:
    """True if batches of these rows `are_small`, and no other Python code of the same job gets Arrow batches."""
    return are_small(frame, widest) and not calls_python(frame)


def are_small(frame: DataFrame, widest: float = 0) -> bool:
    """True if a batch of as many of these rows as Spark allows has no more bytes than Spark allows. Columns without a fixed width
    are judged by earlier rows: none had more bytes than `widest`. 0: nobody knows how many."""
    rows, most = arrow_limits(frame.sparkSession)
    width = bytes_of_row(frame)
    return 0 < rows * (widest * ROOM if width is None else width) < most


def widest_of(statistics: Mapping[str, Any], uid: str) -> float:
    """The bytes of an operator's rows, of the widest batch, by a record's figures; 0 where they do not tell."""
    try:
        return float(statistics["operators"][uid]["metrics"][WIDEST])
    except (KeyError, TypeError, ValueError):
        return 0.0


@contextmanager
def unmeasured(frame: DataFrame, small: bool) -> Iterator[None]:
    """While a job of this frame runs, Spark adds up nothing if the batches stay `small`."""
    if not small:
        yield
        return
    conf = frame.sparkSession.conf
    before = conf.get(MOST_BYTES)
    conf.set(MOST_BYTES, NO_SUM)
    try:
        yield
    finally:
        conf.set(MOST_BYTES, str(before))
