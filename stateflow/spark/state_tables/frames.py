"""Tables of state as DataFrames that this process plans itself: for exports, restores, and `where` on keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from stateflow.errors import StateflowError
from stateflow.spark.state_tables.failures import library_error
from stateflow.spark.state_tables.snapshots import Snapshot, SnapshotOrigin
from stateflow.spark.state_tables.source import FORMAT, StateDataSource, arrow_of, rows_of, spark_schema
from stateflow.spark.state_tables.tables import Part, Table
from stateflow.spark.task.worker import marked

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_SOURCE = """
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
""".replace("FORMAT", FORMAT)


def read_state(spark: SparkSession, **options: Any) -> DataFrame:
    """`spark.read.format("stateflow")` with these options. Here `where` on key columns opens only the shards of its keys.

    Pass options with a dot in their name as a mapping: `read_state(spark, job="orders", ..., storage={...})`.
    """
    texts = {name: str(value) for name, value in options.items() if name != "storage"}
    texts |= {f"storage.{name}": str(value) for name, value in dict(options.get("storage") or {}).items()}
    spark.dataSource.register(StateDataSource)
    # Without this setting Spark refuses any Python source that takes filters.
    spark.conf.set(_PUSHDOWN, "true")
    jvm: Any = spark._jvm
    settings = jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap({**texts, "pushdown": "true"})
    sources = jvm.org.apache.spark.sql.execution.datasources.v2
    none = jvm.scala.Option.empty()
    source = sources.python.PythonDataSourceV2()
    source.setShortName(FORMAT)
    try:
        source_result = source.getOrCreateDataSourceInPython(FORMAT, settings, none)
    except AnalysisException as error:
        raise library_error(error) from error
    relation = sources.DataSourceV2Relation.create(_table(spark, source_result), none, none, settings, none)
    session: Any = spark._jsparkSession
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session, relation), spark)


def table_frame(spark: SparkSession, snapshot: Snapshot, operator: str, state: str) -> DataFrame:
    """All rows of one table, with a task for each part. Unlike the data source it starts no planning process."""
    table, parts = snapshot.table(operator, state)
    schema = spark_schema(table.schema)
    task = _ReadTask(table, tuple(parts), arrow_of(schema), snapshot.origin)
    # At least one task: Spark cuts off what follows an empty input, and an observation of it would never end.
    count = max(1, len(parts))
    return spark.range(0, count, 1, count).mapInArrow(task, schema)


@dataclass(frozen=True)
class _ReadTask:
    """The task that reads one part per partition."""

    table: Table
    parts: tuple[Part, ...]
    schema: pa.Schema
    origin: SnapshotOrigin

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    for part in self.parts[number : number + 1]:
                        yield from rows_of(self.table, part, self.schema, self.origin)
                except StateflowError as error:
                    raise marked(error) from error


def _table(spark: SparkSession, source_result: Any) -> Any:
    """Spark's table for a Python source. Every scan of it gets a source of its own."""
    jvm: Any = spark._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(_SOURCE)
    gateway: Any = spark.sparkContext._gateway
    arguments = gateway.new_array(jvm.java.lang.Object, 1)
    arguments[0] = source_result
    return compiler.getClassLoader().loadClass("StateflowTable").getConstructors()[0].newInstance(arguments)
