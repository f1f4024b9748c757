"""Arrow types by the text of Spark types: the same as Spark's own."""

from __future__ import annotations

import pytest
from pyspark.sql import types as T

from stateflow.errors import UsageError
from stateflow.operators.arrow_types import arrow_schema_of
from stateflow.pipelines.rows.row_type import row_type
from stateflow.spark.internals.frames import arrow_schema

SPOT = T.StructType([T.StructField("x", T.LongType()), T.StructField("Y", T.StringType())])


@pytest.mark.parametrize(
    ("text", "theirs"),
    [
        ("boolean", T.BooleanType()),
        ("byte", T.ByteType()),
        ("smallint", T.ShortType()),
        ("integer", T.IntegerType()),
        ("long", T.LongType()),
        ("real", T.FloatType()),
        ("double", T.DoubleType()),
        ("string", T.StringType()),
        ("binary", T.BinaryType()),
        ("date", T.DateType()),
        ("timestamp", T.TimestampType()),
        ("timestamp_ntz", T.TimestampNTZType()),
        ("decimal(10, 2)", T.DecimalType(10, 2)),
        ("decimal(5)", T.DecimalType(5, 0)),
        ("decimal", T.DecimalType(10, 0)),
        ("array<long>", T.ArrayType(T.LongType())),
        ("array<struct<x:long,Y:string>>", T.ArrayType(SPOT)),
        ("map<string,array<decimal(10,2)>>", T.MapType(T.StringType(), T.ArrayType(T.DecimalType(10, 2)))),
        ("map<decimal(4, 1), map<int,long>>",
         T.MapType(T.DecimalType(4, 1), T.MapType(T.IntegerType(), T.LongType()))),
        ("struct<a:struct<x:bigint,Y:string>,b:map<int,date>>",
         T.StructType([T.StructField("a", SPOT), T.StructField("b", T.MapType(T.IntegerType(), T.DateType()))])),
    ],
)  # fmt: skip
def test_a_type_is_what_spark_makes_of_it(text: str, theirs: T.DataType) -> None:
    expected = arrow_schema(T.StructType([T.StructField("value", theirs)]))
    assert arrow_schema_of(row_type(f"value {text}")) == expected


@pytest.mark.parametrize("text", ["variant", "map<string>", "interval"])
def test_a_type_that_is_not_known_is_named(text: str) -> None:
    with pytest.raises(UsageError, match=text):
        arrow_schema_of(row_type(f"value {text}"))
