"""Reads Parquet of other programs by the types in its files. Spark writes notes about types into a file and believes them
later, and PyArrow copies them into the next file even if the columns have changed. Besides, Spark reads neither nanoseconds,
which pandas uses for instants, nor times of day, which polars has in nanoseconds and DuckDB in microseconds: tables of state
have those as text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from stateflow.errors import ERROR_MARK, NotFoundError, UsageError
from stateflow.pipelines.rows.row_type import quoted
from stateflow.spark.internals.file_systems import AT_ONCE
from stateflow.spark.internals.gateway import JAVA_ERRORS
from stateflow.spark.internals.parquet_footers import TIME_OF_DAY, FooterTypes, types_of_footer
from stateflow.spark.state_tables.failures import failed

_NANOS_AS_LONG = "spark.sql.legacy.parquet.nanosAsLong"

_DAY_PARTS = {"MILLIS": 10**3, "MICROS": 10**6, "NANOS": 10**9}
"""Parts of a second, in Parquet's times of day."""


def parquet_frame(spark: SparkSession, path: str, what: str) -> DataFrame:
    """A user's Parquet table, of one file or of a folder. `what` names it in errors. It sets an option of the session."""
    spark.conf.set(_NANOS_AS_LONG, "true")
    try:
        # Only lists the files, as Spark would for any format.
        files = sorted(spark.read.format("binaryFile").load(path).inputFiles())
        if not files:
            spark.read.parquet(path)  # says in its own words that it finds nothing
        read, meant = _types(spark, files, what)
        frame = spark.read.schema(read).parquet(path)
    except (PySparkException, *JAVA_ERRORS) as error:
        if isinstance(error, PySparkException) and error.getCondition() == "PATH_NOT_FOUND":
            raise NotFoundError(f"{what}: there is nothing at {path}; check where it points to") from error
        raise failed(f"{what} cannot be read as Parquet", error) from error
    columns = {field.name: field.dataType for field in meant}
    return frame.select(
        *(
            _meant(F.col(quoted(field.name)), field.dataType, columns.get(field.name, field.dataType)).alias(
                field.name
            )
            for field in frame.schema
        )
    )


def _types(spark: SparkSession, files: list[str], what: str) -> FooterTypes:
    """Those of all files, which must have the same."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        footers = list(pool.map(partial(types_of_footer, spark), files))
    for file, footer in zip(files, footers, strict=True):
        if _sorted(footer[1]) != _sorted(footers[0][1]):
            raise UsageError(
                f"{what}: {file} has the columns {footer[1].simpleString()} and {files[0]} has "
                f"{footers[0][1].simpleString()}: write the table anew with the same types in all its files"
            )
    return footers[0]


def _sorted(kind: StructType) -> list[tuple[str, str]]:
    return sorted((field.name, field.dataType.simpleString()) for field in kind)


def _meant(column: Column, read: DataType, meant: DataType) -> Column:
    """The column with instants and times of day where Spark has read numbers."""
    if read == meant:
        return column
    if isinstance(read, LongType | IntegerType) and isinstance(meant, StructType):
        return _text_of_day(column, _DAY_PARTS[meant[0].name.removeprefix(TIME_OF_DAY)])
    if isinstance(read, LongType) and isinstance(meant, TimestampType | TimestampNTZType):
        micros = F.timestamp_micros(F.call_function("div", column, F.lit(1000)))
        return (
            F.when(column.isNull() | (F.pmod(column, F.lit(1000)) == 0), micros)
            .otherwise(_refused(_FINER, column))
            .cast(meant)
        )
    if isinstance(read, ArrayType) and isinstance(meant, ArrayType):
        return F.transform(column, lambda item: _meant(item, read.elementType, meant.elementType))
    if isinstance(read, MapType) and isinstance(meant, MapType):
        keyed = F.transform_keys(column, lambda key, _: _meant(key, read.keyType, meant.keyType))
        return F.transform_values(keyed, lambda _, value: _meant(value, read.valueType, meant.valueType))
    assert isinstance(read, StructType)
    assert isinstance(meant, StructType)
    fields: Iterable[Column] = (
        _meant(column.getField(one.name), one.dataType, other.dataType).alias(one.name)
        for one, other in zip(read, meant, strict=True)
    )
    return F.when(column.isNotNull(), F.struct(*fields))


def _text_of_day(column: Column, parts: int) -> Column:
    """A time of day as tables have it, from parts of a second since midnight."""
    seconds, rest = F.call_function("div", column, F.lit(parts)), F.pmod(column, F.lit(parts))
    micros = F.call_function("div", rest * 10**6, F.lit(parts))
    hours, minutes = (
        F.call_function("div", seconds, F.lit(3600)),
        F.call_function("div", seconds, F.lit(60)) % 60,
    )
    text = F.format_string("%02d:%02d:%02d.%06d", hours, minutes, seconds % 60, micros)
    finer = _refused(_FINER_TIME, column)
    # format_string would turn a null into the text "null".
    return F.when(column.isNull(), F.lit(None).cast("string")).otherwise(
        F.when(micros * parts == rest * 10**6, text).otherwise(finer)
    )


def _refused(words: str, value: Column) -> Column:
    """Fails at a row as a task of ours would, with the words and the value."""
    body = json.dumps({"type": "UsageError", "message": f"{words}@"})
    before, _, after = f"{ERROR_MARK}{body}".partition("@")
    return F.raise_error(F.concat(F.lit(before), value.cast("string"), F.lit(after)))


_FINER = "state has microseconds, and an instant is finer: round it; in nanoseconds it is "
_FINER_TIME = "state has microseconds, and a time of day is finer: round it; in nanoseconds it is "
