"""The types in the footers of ORC and Parquet files, column by column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.types import DataType

from stateflow.internals import internal
from stateflow.spark.internals.file_systems import hadoop_conf
from stateflow.spark.internals.gateway import JAVA_ERRORS
from stateflow.spark.internals.java_names import java_names
from stateflow.spark.internals.parquet_footers import ParquetFooters

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ORC = "org.apache.orc"


class OwnTypes:
    """Asks files of a format for their columns. Only the file's end is read; several threads may ask at once."""

    def __init__(self, spark: SparkSession, format: str) -> None:
        """Opens nothing yet."""
        self._jvm: Any = java_names(spark)
        self._conf = hadoop_conf(spark)
        self._footers = ParquetFooters(spark) if format == "parquet" else None
        self._known: dict[str, dict[str, DataType]] = {}

    @internal("org.apache.hadoop.fs.Path(URI)", "org.apache.hadoop.fs.Path.getFileSystem(Configuration)")
    def of(self, url: str) -> str | dict[str, DataType]:
        """The columns of a file: of ORC as it writes its schema. None of a file that is empty or gone."""
        try:
            return self._of_orc(url) if self._footers is None else self._of_parquet(self._footers, url)
        except JAVA_ERRORS:
            path = self._path(url)
            system = path.getFileSystem(self._conf)
            if system.exists(path) and system.getFileStatus(path).getLen():
                raise
            return {}

    def _path(self, url: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._jvm.java.net.URI(url))

    @internal(
        f"{_ORC}.OrcFile.readerOptions(Configuration)",
        f"{_ORC}.OrcFile.createReader(Path, OrcFile$ReaderOptions)",
        f"{_ORC}.Reader.getSchema()",
    )
    def _of_orc(self, url: str) -> str:
        """The schema of an ORC file, as ORC writes it."""
        orc = self._jvm.org.apache.orc.OrcFile
        reader = orc.createReader(self._path(url), orc.readerOptions(self._conf))
        try:
            return str(reader.getSchema().toString())
        finally:
            reader.close()

    def _of_parquet(self, footers: ParquetFooters, url: str) -> dict[str, DataType]:
        schema = footers.schema(url)
        text = str(schema.toString())
        if text not in self._known:
            self._known[text] = self._columns(footers, schema)
        return self._known[text]

    def _columns(self, footers: ParquetFooters, schema: Any) -> dict[str, DataType]:
        columns: dict[str, DataType] = {}
        for field in schema.getFields():
            try:
                converted = footers.as_spark_reads(schema.getName(), [field])
            except JAVA_ERRORS:
                continue  # Spark does not read it as anything.
            columns[str(field.getName())] = converted.fields[0].dataType
        return columns
