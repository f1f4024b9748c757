"""The types in the footers of Parquet files, in place of the notes that Spark left there."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from stateflow.internals import internal
from stateflow.spark.internals.file_systems import hadoop_conf
from stateflow.spark.internals.java_names import java_names

FooterTypes = tuple[StructType, StructType]
"""The types by which Spark reads the columns, and the types that are meant. They differ where Spark reads nanoseconds and times
of day as numbers."""
TIME_OF_DAY = "time of day in "
"""Prefix of the only field of a struct that stands for a time of day; the unit follows."""
_PARQUET = "org.apache.parquet"


@internal(
    "pyspark.sql.SparkSession._jsparkSession",
    f"{_PARQUET}.hadoop.util.HadoopInputFile.fromPath(Path, Configuration)",
    f"{_PARQUET}.hadoop.ParquetFileReader.open(InputFile)",
    f"{_PARQUET}.schema.MessageType(String, List)",
    f"{_PARQUET}.schema.GroupType(Type$Repetition, String, List)",
    f"{_PARQUET}.schema.GroupType.withNewFields(List)",
    f"{_PARQUET}.schema.Types.primitive(PrimitiveType$PrimitiveTypeName, Type$Repetition)",
    f"{_PARQUET}.schema.LogicalTypeAnnotation.timestampType(boolean, LogicalTypeAnnotation$TimeUnit)",
    "org.apache.spark.sql.execution.datasources.parquet.ParquetToSparkSchemaConverter(SQLConf)",
    "org.apache.spark.sql.execution.datasources.parquet.ParquetToSparkSchemaConverter.convert(MessageType)",
)
def types_of_footer(spark: SparkSession, file: str) -> FooterTypes:
    """The types of one file. Only the file's end is read."""
    jvm: Any = java_names(spark)
    hadoop, parquet = jvm.org.apache.hadoop.fs, jvm.org.apache.parquet
    source = parquet.hadoop.util.HadoopInputFile.fromPath(
        hadoop.Path(jvm.java.net.URI(file)), hadoop_conf(spark)
    )
    reader = parquet.hadoop.ParquetFileReader.open(source)
    try:
        schema = reader.getFileMetaData().getSchema()
    finally:
        reader.close()
    converter = jvm.org.apache.spark.sql.execution.datasources.parquet.ParquetToSparkSchemaConverter(
        spark._jsparkSession.sessionState().conf()
    )
    read, meant = (
        parquet.schema.MessageType(schema.getName(), _fields(jvm, schema, meant=kind))
        for kind in (False, True)
    )
    return _converted(converter, read), _converted(converter, meant)


def _fields(jvm: Any, group: Any, *, meant: bool) -> Any:
    """The fields of a group of Parquet's, with times of day as numbers; as they are meant, with microseconds where they have
    nanoseconds, and with times of day as groups that tell their unit."""
    made = jvm.java.util.ArrayList()
    for field in group.getFields():
        annotated = "" if not field.isPrimitive() else str(field.getLogicalTypeAnnotation())
        if not field.isPrimitive():
            field = field.asGroupType().withNewFields(_fields(jvm, field.asGroupType(), meant=meant))
        elif annotated.startswith("TIME("):
            field = _time_of_day(jvm, field, annotated[5:].split(",")[0], meant=meant)
        elif meant and annotated.startswith("TIMESTAMP(NANOS,"):
            annotation = jvm.org.apache.parquet.schema.LogicalTypeAnnotation
            utc = field.getLogicalTypeAnnotation().isAdjustedToUTC()
            micros = annotation.timestampType(utc, annotation.TimeUnit.MICROS)
            field = getattr(_plain(jvm, field), "as")(micros).named(field.getName())
        made.add(field)
    return made


def _plain(jvm: Any, field: Any) -> Any:
    """A builder of the field as what it is stored as."""
    return jvm.org.apache.parquet.schema.Types.primitive(field.getPrimitiveTypeName(), field.getRepetition())


def _time_of_day(jvm: Any, field: Any, unit: str, *, meant: bool) -> Any:
    if not meant:
        return _plain(jvm, field).named(field.getName())
    number = jvm.java.util.ArrayList()
    number.add(_plain(jvm, field).named(f"{TIME_OF_DAY}{unit}"))
    return jvm.org.apache.parquet.schema.GroupType(field.getRepetition(), field.getName(), number)


def _converted(converter: Any, schema: Any) -> StructType:
    return StructType.fromJson(json.loads(converter.convert(schema).json()))
