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


class ParquetFooters:
    """Reads the ends of Parquet files. Take one for many files: to make Java's options anew costs three times as much as a footer."""

    @internal(
        f"{_PARQUET}.HadoopReadOptions.builder(Configuration)",
        "org.apache.spark.sql.execution.datasources.parquet.ParquetToSparkSchemaConverter(SQLConf)",
        "pyspark.sql.SparkSession._jsparkSession",
    )
    def __init__(self, spark: SparkSession) -> None:
        """Opens nothing yet."""
        self.jvm: Any = java_names(spark)
        self._conf = hadoop_conf(spark)
        self._options = self.jvm.org.apache.parquet.HadoopReadOptions.builder(self._conf).build()
        parquet = self.jvm.org.apache.spark.sql.execution.datasources.parquet
        self._converter = parquet.ParquetToSparkSchemaConverter(spark._jsparkSession.sessionState().conf())

    @internal(
        "org.apache.hadoop.fs.Path(URI)",
        f"{_PARQUET}.hadoop.util.HadoopInputFile.fromPath(Path, Configuration)",
        f"{_PARQUET}.hadoop.ParquetFileReader.open(InputFile, ParquetReadOptions)",
    )
    def schema(self, file: str) -> Any:
        """A file's schema, in Java."""
        hadoop = self.jvm.org.apache.parquet.hadoop
        path = self.jvm.org.apache.hadoop.fs.Path(self.jvm.java.net.URI(file))
        source = hadoop.util.HadoopInputFile.fromPath(path, self._conf)
        reader = hadoop.ParquetFileReader.open(source, self._options)
        try:
            return reader.getFileMetaData().getSchema()
        finally:
            reader.close()

    @internal(
        f"{_PARQUET}.schema.MessageType(String, List)",
        "org.apache.spark.sql.execution.datasources.parquet.ParquetToSparkSchemaConverter.convert(MessageType)",
    )
    def as_spark_reads(self, name: str, fields: list[Any]) -> StructType:
        """The types by which Spark reads these fields of a schema."""
        message = self.jvm.org.apache.parquet.schema.MessageType(name, fields)
        return StructType.fromJson(json.loads(self._converter.convert(message).json()))


@internal(
    f"{_PARQUET}.schema.GroupType(Type$Repetition, String, List)",
    f"{_PARQUET}.schema.GroupType.withNewFields(List)",
    f"{_PARQUET}.schema.Types.primitive(PrimitiveType$PrimitiveTypeName, Type$Repetition)",
    f"{_PARQUET}.schema.LogicalTypeAnnotation.timestampType(boolean, LogicalTypeAnnotation$TimeUnit)",
)
def types_of_footer(spark: SparkSession, file: str) -> FooterTypes:
    """The types of one file. Only the file's end is read."""
    footers = ParquetFooters(spark)
    schema = footers.schema(file)
    read, meant = (
        footers.as_spark_reads(schema.getName(), _fields(footers.jvm, schema, meant=kind))
        for kind in (False, True)
    )
    return read, meant


def _fields(jvm: Any, group: Any, *, meant: bool) -> list[Any]:
    """The fields of a group of Parquet's, with times of day as numbers; as they are meant, with microseconds where they have
    nanoseconds, and with times of day as groups that tell their unit."""
    made = []
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
        made.append(field)
    return made


def _plain(jvm: Any, field: Any) -> Any:
    """A builder of the field as what it is stored as."""
    return jvm.org.apache.parquet.schema.Types.primitive(field.getPrimitiveTypeName(), field.getRepetition())


def _time_of_day(jvm: Any, field: Any, unit: str, *, meant: bool) -> Any:
    if not meant:
        return _plain(jvm, field).named(field.getName())
    number = _plain(jvm, field).named(f"{TIME_OF_DAY}{unit}")
    return jvm.org.apache.parquet.schema.GroupType(field.getRepetition(), field.getName(), [number])
