"""Maps whose keys are texts, as JSON has them: Spark would write bytes as the name of a Java object, and a date as a number."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DayTimeIntervalType, MapType, NullType, StructType

from stateflow.pipelines.rows.as_json import INSTANTS, has_key_that_is_no_text


def with_text_keys(column: Column, kind: DataType) -> Column:
    """The column with such keys as the texts that a query shows and takes: a tuple or a record is a JSON array of its parts."""
    if not has_key_that_is_no_text(kind.simpleString()):
        return column
    if isinstance(kind, MapType):
        if has_key_that_is_no_text(MapType(kind.keyType, NullType()).simpleString()):
            column = F.transform_keys(column, lambda key, _: _text(key, kind.keyType))
        return F.transform_values(column, lambda _, value: with_text_keys(value, kind.valueType))
    if isinstance(kind, ArrayType):
        return F.transform(column, lambda each: with_text_keys(each, kind.elementType))
    assert isinstance(kind, StructType), kind
    parts = (with_text_keys(column.getField(field.name), field.dataType).alias(field.name) for field in kind)
    return F.when(column.isNotNull(), F.struct(*parts))


def _text(key: Column, kind: DataType) -> Column:
    if isinstance(kind, StructType | ArrayType):
        return _json(key, kind)
    return F.from_json(F.concat(F.lit("["), _json(key, kind), F.lit("]")), "array<string>")[0]


def _json(part: Column, kind: DataType) -> Column:
    if isinstance(kind, StructType):
        parts = F.array(*(_json(part.getField(field.name), field.dataType) for field in kind))
    elif isinstance(kind, ArrayType):
        parts = F.transform(part, lambda each: _json(each, kind.elementType))
    else:
        text = _span(part) if isinstance(kind, DayTimeIntervalType) else part
        # Spark writes no JSON of a scalar alone.
        return F.regexp_extract(F.to_json(F.array(text), INSTANTS), r"(?s)^\[(.*)\]$", 1)
    # No part is null: a key with a part that may be None or left out makes bytes of its map.
    return F.concat(F.lit("["), F.array_join(parts, ","), F.lit("]"))


def _span(length: Column) -> Column:
    """As queries show a `timedelta`, days and seconds of ISO 8601: Spark would write SQL."""
    size = F.abs(length)
    day, hour, minute, second = (F.extract(F.lit(unit), size) for unit in ("DAY", "HOUR", "MINUTE", "SECOND"))
    seconds = (hour * 3600 + minute * 60 + second).cast("decimal(11,6)")
    digits = F.regexp_replace(seconds.cast("string"), r"\.?0+$", "")
    return F.concat(
        F.when(F.signum(length) < 0, "-P").otherwise("P"),
        F.when((day > 0) | (seconds == 0), F.concat(day, F.lit("D"))).otherwise(""),
        F.when(seconds > 0, F.concat(F.lit("T"), digits, F.lit("S"))).otherwise(""),
    )
