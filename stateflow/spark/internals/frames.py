"""Frames that PySpark's public methods do not make, and the types of their columns in Arrow."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas import types

from stateflow.internals import internal
from stateflow.spark.internals.gateway import made
from stateflow.spark.internals.java_names import java_names

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_DATASETS = "org.apache.spark.sql.classic"
_SOURCES = "org.apache.spark.sql.execution.datasources.v2"


@internal(
    "pyspark.sql.pandas.types.to_arrow_schema(schema)",
    where_missing="before 4.2 there is no `timezone`: PySpark takes UTC",
)
def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of Spark rows: timestamps in microseconds UTC."""
    options: Any = {"timezone": "UTC"} if "timezone" in signature(types.to_arrow_schema).parameters else {}
    return types.to_arrow_schema(schema, **options)


@internal("pyspark.sql.pandas.types.from_arrow_schema(arrow_schema)")
def spark_schema(schema: pa.Schema) -> StructType:
    """Spark's types for those of Arrow."""
    return types.from_arrow_schema(schema)


@internal("pyspark.sql.SparkSession._jsparkSession", f"{_DATASETS}.SparkSession.cloneSession()")
def cloned_session(spark: SparkSession) -> SparkSession:
    """A session that begins with the settings and views of this one, and then has its own. PySpark's `newSession` copies
    neither."""
    from pyspark.sql import SparkSession

    return SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())


@internal(
    "pyspark.sql.SparkSession._jsparkSession",
    f"{_DATASETS}.SparkSession.sessionState()",
    "org.apache.spark.sql.internal.SessionState.conf()",
    "org.apache.spark.sql.internal.SQLConf.arrowMaxRecordsPerBatch()",
    "org.apache.spark.sql.internal.SQLConf.arrowMaxBytesPerBatch()",
    where_missing="Arrow batches are measured",
    otherwise=lambda: (0, 0),
)
def arrow_limits(spark: SparkSession) -> tuple[int, int]:
    """How many rows and bytes an Arrow batch may have; no rows: as many as come. The settings are text, such as `64m`."""
    conf = spark._jsparkSession.sessionState().conf()
    return int(conf.arrowMaxRecordsPerBatch()), int(conf.arrowMaxBytesPerBatch())


_TABLE = """
import java.lang.reflect.Field;
import java.util.EnumSet;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceCreationResult;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
public class StateflowTable implements Table, SupportsRead {
  private final PythonDataSourceCreationResult made;
  public StateflowTable(PythonDataSourceCreationResult made) { this.made = made; }
  public String name() { return "FORMAT"; }
  public StructType schema() { return made.schema(); }
  public Set capabilities() { return EnumSet.of(TableCapability.BATCH_READ); }
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    PythonDataSourceV2 own = new PythonDataSourceV2();
    own.setShortName("FORMAT");
    try {
      Field chosen = PythonDataSourceV2.class.getDeclaredField("dataSourceInPython");
      chosen.setAccessible(true);
      chosen.set(own, made);
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException(error);
    }
    return new PythonTable(own, "FORMAT", made.schema()).newScanBuilder(options);
  }
}
"""


@internal(
    "pyspark.sql.SparkSession._jsparkSession",
    f"{_SOURCES}.python.PythonDataSourceV2.setShortName(String)",
    f"{_SOURCES}.python.PythonDataSourceV2.getOrCreateDataSourceInPython(String, CaseInsensitiveStringMap, Option)",
    f"{_SOURCES}.python.PythonDataSourceV2.dataSourceInPython",
    f"{_SOURCES}.python.PythonDataSourceCreationResult.schema()",
    f"{_SOURCES}.python.PythonTable(PythonDataSourceV2, String, StructType)",
    f"{_SOURCES}.python.PythonTable.newScanBuilder(CaseInsensitiveStringMap)",
    "org.apache.spark.sql.connector.catalog.SupportsRead.newScanBuilder(CaseInsensitiveStringMap)",
    "org.apache.spark.sql.connector.catalog.Table.capabilities()",
    "org.apache.spark.sql.connector.catalog.TableCapability.BATCH_READ",
    f"{_SOURCES}.DataSourceV2Relation$.create(Table, Option, Option, CaseInsensitiveStringMap[, Option])",
    f"{_DATASETS}.Dataset.ofRows(SparkSession, LogicalPlan)",
)
def python_source(spark: SparkSession, format: str, options: dict[str, str]) -> DataFrame:
    """A frame of a registered data source in Python. Each of its scans gets a source of its own, because Spark's plan of such a
    source keeps the conditions of one scan for the next.
    """
    from pyspark.sql import DataFrame

    sql = java_names(spark).org.apache.spark.sql
    settings = sql.util.CaseInsensitiveStringMap(options)
    sources = sql.execution.datasources.v2
    none = java_names(spark).scala.Option.empty()
    source = sources.python.PythonDataSourceV2()
    source.setShortName(format)
    source_result = source.getOrCreateDataSourceInPython(format, settings, none)
    table = made(spark, _TABLE.replace("FORMAT", format), "StateflowTable", source_result)
    # Spark 4.0 does not know the last argument, the time that is travelled to.
    arguments = [table, none, none, settings, *([] if spark.version.startswith("4.0.") else [none])]
    relation = sources.DataSourceV2Relation.create(*arguments)
    session: Any = spark._jsparkSession
    return DataFrame(sql.classic.Dataset.ofRows(session, relation), spark)
