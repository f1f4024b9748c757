"""Delta tables whose commits go through their catalog (feature `catalogManaged`), found by name.

Their newest commits may be in no log that a path leads to. Delta reads and writes such a table for whoever brings what the catalog
knows of it, and refuses everybody else.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stateflow.errors import IncompatibleError, NotFoundError
from stateflow.internals import internal
from stateflow.spark.internals.gateway import (
    JAVA_ERRORS,
    define_classes,
    failure_text,
    first_line,
)
from stateflow.spark.internals.java_names import java_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

_SOURCE = Path(__file__).parent / "ManagedTable.java"
_CLASS = "stateflow.ManagedTable"
_DELTAS_OWN = "org.apache.spark.sql.delta.sources.DeltaDataSource"
_NAME = "stateflowcatalogtable"
_BY_PATH = "DELTA_PATH_BASED_ACCESS_TO_CATALOG_MANAGED_TABLE_BLOCKED"


@internal(
    "org.apache.spark.sql.classic.SparkSession.getActiveSession()",
    "org.apache.spark.sql.classic.SparkSession.setActiveSession(SparkSession)",
    "org.apache.spark.sql.classic.SparkSession.clearActiveSession()",
    "org.apache.spark.sql.classic.SparkSession.sessionState()",
    "org.apache.spark.sql.internal.SessionState.catalogManager()",
    "org.apache.spark.sql.connector.catalog.CatalogManager.catalog(String)",
    "org.apache.spark.sql.connector.catalog.TableCatalog.loadTable(Identifier)",
    "org.apache.spark.sql.delta.catalog.DeltaTableV2.catalogTable()",
    "pyspark.sql.SparkSession._jsparkSession",
)
def managed_table(spark: SparkSession, parts: Sequence[str]) -> Any:
    """What the catalog knows of a table now: Delta's object of it. `parts`: its name with its catalog."""
    define_classes(spark, _SOURCE, _CLASS, _DELTAS_OWN)
    try:
        return java_names(spark).stateflow.ManagedTable.named(spark._jsparkSession, "/".join(parts))
    except JAVA_ERRORS as error:
        name = ".".join(parts)
        raise NotFoundError(
            f"the catalog does not open the table {name}, through which its commits go ({first_line(error)}): bring the catalog or the table "
            "back, and if it was renamed, give it this name until the run is through"
        ) from error


@internal(
    "org.apache.spark.sql.SQLContext.sparkSession()",
    "org.apache.spark.sql.delta.sources.DeltaDataSource.setCatalogTableOpt(Option)",
    "org.apache.spark.sql.delta.sources.DeltaDataSource.sourceSchema(SQLContext, Option, String, Map)",
    "org.apache.spark.sql.delta.sources.DeltaDataSource.createSource(SQLContext, String, Option, String, Map)",
)
def managed_stream(
    spark: SparkSession, parts: Sequence[str], path: str, options: Mapping[str, str]
) -> DataFrame:
    """The table as a stream of Delta's."""
    define_classes(spark, _SOURCE, _CLASS, _DELTAS_OWN)
    reader = spark.readStream.format(_CLASS).option(_NAME, "/".join(parts))
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load(path)


def refuse_path(error: BaseException, who: str, path: str) -> None:
    """IncompatibleError if Delta has refused a table because it was opened by its path. `who` begins the sentence."""
    if isinstance(error, JAVA_ERRORS) and _BY_PATH in failure_text(error):
        raise IncompatibleError(
            f"{who}the commits of the Delta table at {path} go through its catalog (feature catalogManaged), so that its path does not lead to the "
            "newest: name it as its catalog does, sf.table('catalog.schema.table')"
        ) from error
