"""The types in the footers of ORC and Parquet files, column by column."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import DataType, StructType

from stateflow.internals import internal
from stateflow.spark.internals.file_systems import hadoop_conf
from stateflow.spark.internals.gateway import JAVA_ERRORS
from stateflow.spark.internals.java_names import java_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ORC = "org.apache.orc"
_PARQUET = "org.apache.parquet"
_SOURCES = "org.apache.spark.sql.execution.datasources"


class OwnTypes:
    """Asks files of a format for their columns. Only the file's end is read; several threads may ask at once."""

    @internal(
        f"{_SOURCES}.parquet.ParquetToSparkSchemaConverter(SQLConf)",
        "pyspark.sql.SparkSession._jsparkSession",
    )
    def __init__(self, spark: SparkSession, format: str) -> None:
        """Opens nothing yet."""
        self._jvm: Any = java_names(spark)
        self._conf = hadoop_conf(spark)
        self._is_orc = format == "orc"
        self._known: dict[str, dict[str, DataType]] = {}
        sql_conf = spark._jsparkSession.sessionState().conf()
        self._converter = (
            self._jvm.org.apache.spark.sql.execution.datasources.parquet.ParquetToSparkSchemaConverter(
                sql_conf
            )
        )

    @internal("org.apache.hadoop.fs.Path(URI)", "org.apache.hadoop.fs.Path.getFileSystem(Configuration)")
    def of(self, url: str) -> str | dict[str, DataType]:
        """The columns of a file: of ORC as it writes its schema. None of a file that is empty or gone."""
        path = self._jvm.org.apache.hadoop.fs.Path(self._jvm.java.net.URI(url))
        try:
            return self.of_orc(path) if self._is_orc else self.of_parquet(path)
        except JAVA_ERRORS:
            system = path.getFileSystem(self._conf)
            if system.exists(path) and system.getFileStatus(path).getLen():
                raise
            return {}

    @internal(
        f"{_ORC}.OrcFile.readerOptions(Configuration)",
        f"{_ORC}.OrcFile.createReader(Path, OrcFile$ReaderOptions)",
        f"{_ORC}.Reader.getSchema()",
    )
    def of_orc(self, path: Any) -> str:
        """The schema of an ORC file, as ORC writes it."""
        orc = self._jvm.org.apache.orc.OrcFile
        reader = orc.createReader(path, orc.readerOptions(self._conf))
        try:
            return str(reader.getSchema().toString())
        finally:
            reader.close()

    @internal(
        f"{_PARQUET}.hadoop.util.HadoopInputFile.fromPath(Path, Configuration)",
        f"{_PARQUET}.hadoop.ParquetFileReader.open(InputFile)",
        f"{_PARQUET}.schema.MessageType(String, List)",
        f"{_SOURCES}.parquet.ParquetToSparkSchemaConverter.convert(MessageType)",
    )
    def of_parquet(self, path: Any) -> dict[str, DataType]:
        """The columns of a Parquet file."""
        hadoop = self._jvm.org.apache.parquet.hadoop
        reader = hadoop.ParquetFileReader.open(hadoop.util.HadoopInputFile.fromPath(path, self._conf))
        try:
            schema = reader.getFileMetaData().getSchema()
        finally:
            reader.close()
        text = str(schema.toString())
        if text not in self._known:
            self._known[text] = self._columns(schema)
        return self._known[text]

    def _columns(self, schema: Any) -> dict[str, DataType]:
        columns: dict[str, DataType] = {}
        for field in schema.getFields():
            one = self._jvm.java.util.ArrayList()
            one.add(field)
            message = self._jvm.org.apache.parquet.schema.MessageType(schema.getName(), one)
            try:
                converted = StructType.fromJson(json.loads(self._converter.convert(message).json()))
            except JAVA_ERRORS:
                continue  # Spark does not read it as anything.
            columns[str(field.getName())] = converted.fields[0].dataType
        return columns
