"""Tables that a catalog of Spark's names: a run asks once where each is, and goes on by that place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from stateflow.errors import IncompatibleError, NotFoundError, UsageError
from stateflow.pipelines.inputs.places import same_place
from stateflow.pipelines.inputs.tables import DeltaTable, parts_of, sql_name
from stateflow.spark.internals.gateway import JAVA_ERRORS, first_line

SESSION_CATALOG = "spark_catalog"
_CATALOGS = "spark.sql.catalog."
_ABSENT = frozenset(
    {
        "TABLE_OR_VIEW_NOT_FOUND",
        "SCHEMA_NOT_FOUND",
        "NO_SUCH_TABLE",
        "NO_SUCH_NAMESPACE",
        "DELTA_TABLE_NOT_FOUND",
    }
)
_GONE = frozenset({"DELTA_PATH_DOES_NOT_EXIST", "DELTA_MISSING_DELTA_TABLE", "PATH_NOT_FOUND"})
_VIEW = "EXPECT_TABLE_NOT_VIEW"
MANAGED_BY_CATALOG = "catalogManaged"
"""The feature of tables whose commits go through their catalog, and not through the log alone."""
PREVIEW = "catalogOwned-preview"
"""What the feature was called before its protocol was settled."""
_NEAR = 3
_FAILURES = (PySparkException, *JAVA_ERRORS)


def located(spark: SparkSession, table: DeltaTable, who: str) -> DeltaTable:
    """The table with its path and full name. The path is empty if a sink may still create the table. Messages name `who`."""
    table = replace(table, name=_whole_name(spark, table.name))
    parts = parts_of(table.name)
    _require_catalog(spark, parts, who, table.name)
    try:
        found = spark.sql(f"DESCRIBE DETAIL {sql_name(parts_of(table.name))}").first()
    except _FAILURES as error:
        condition = str(error.getCondition() or "") if isinstance(error, PySparkException) else ""
        if condition.startswith(_VIEW):
            raise UsageError(
                f"{who}: {table.name} is a view, and a run reads and writes tables: name the table that it is made of"
            ) from error
        if condition in _GONE:
            raise NotFoundError(
                f"{who}: the catalog knows {table.name}, and there is no Delta table at its place ({first_line(error)}): bring its files "
                f"back, or DROP TABLE {sql_name(parts_of(table.name))} and make it anew"
            ) from error
        if condition not in _ABSENT:
            raise UsageError(
                f"{who}: the catalog could not tell where the table {table.name} is: {first_line(error)}"
            ) from error
        alike = _alike(spark, parts)
        if table.create and alike is not None:
            return table
        raise NotFoundError(_absent(spark, table, who, alike)) from error
    assert found is not None
    return _at(table, found.asDict(), who)


def _at(table: DeltaTable, detail: dict[str, Any], who: str) -> DeltaTable:
    """The table at the place that DESCRIBE DETAIL tells. Pure."""
    if detail["format"] != "delta":
        raise UsageError(
            f"{who}: {table.name} is a table of {detail['format']}, and sf.table is for Delta tables: read its folder with sf.files, or "
            f"CONVERT TO DELTA {sql_name(parts_of(table.name))}"
        )
    features = set(detail["tableFeatures"] or ())
    if PREVIEW in features:
        raise IncompatibleError(
            f"{who}: the commits of {table.name} go through its catalog as a preview of Delta's had it (feature {PREVIEW}): copy it into a new "
            "table of the catalog, and name that one"
        )
    path = str(detail["location"])
    path = path.removeprefix("file:") if not path.startswith("file://") else path.removeprefix("file://")
    if table.location and not same_place(table.location, path):
        raise UsageError(
            f"{who}: {table.name} is at {path}, and the pipeline says location={table.location!r}: leave location= out to write there, or give "
            "the new table another name"
        )
    # In the case that the catalog has it in, where the catalog tells the name of a table as statements have it.
    told = str(detail["name"] or "")
    managed = MANAGED_BY_CATALOG in features
    return table.at(path, told if table.is_called(told) else table.name, managed=managed)


def _is_catalog(spark: SparkSession, name: str) -> bool:
    return name.lower() == SESSION_CATALOG or spark.conf.get(f"{_CATALOGS}{name}", None) is not None


def _whole_name(spark: SparkSession, name: str) -> str:
    """With its catalog."""
    parts = parts_of(name)
    return (
        name if len(parts) > 2 or _is_catalog(spark, parts[0]) else f"{spark.catalog.currentCatalog()}.{name}"
    )


def _require_catalog(spark: SparkSession, parts: tuple[str, ...], who: str, name: str) -> None:
    """UsageError for a catalog that is not configured. Spark would look for a schema of that name in its own."""
    catalog = parts[0]
    if catalog.lower() == SESSION_CATALOG:
        if len(parts) > 3:
            raise UsageError(
                f"{who}: {name} has {len(parts) - 1} parts behind {catalog}, which has schemas of tables: write {catalog}.schema.table"
            )
    elif not _is_catalog(spark, catalog):
        alike = get_close_matches(catalog, [SESSION_CATALOG], 1)
        step = (
            f"did you mean {alike[0]}?"
            if alike
            else f"set {_CATALOGS}{catalog} to its class, and what that needs, where Spark starts"
        )
        raise NotFoundError(f"{who}: there is no catalog {catalog!r} for the table {name}: {step}")


def _alike(spark: SparkSession, parts: tuple[str, ...]) -> list[str] | None:
    """Tables of the schema with a name like the missing one; None where there is no such schema."""
    schema = sql_name(parts[:-1])
    try:
        tables = [
            str(row["tableName"])
            for row in spark.sql(f"SHOW TABLES IN {schema}").collect()
            if not row["isTemporary"]
        ]
    except _FAILURES:
        return None
    return [".".join((*parts[:-1], name)) for name in near(parts[-1], tables)]


def near(name: str, known: Iterable[str]) -> list[str]:
    """The names that may have been meant."""
    by_small = {each.lower(): each for each in known}
    return [by_small[each] for each in get_close_matches(name.lower(), by_small, _NEAR)]


def _absent(spark: SparkSession, table: DeltaTable, who: str, alike: list[str] | None) -> str:
    parts = parts_of(table.name)
    what = f"{who}: there is no table {table.name}"
    if alike:
        return f"{what}: did you mean {' or '.join(alike)}?"
    if alike is not None:
        more = f", or give a sink's table create=True{_forgetful(spark, parts)}"
        return f"{what}: correct the name, let what writes the table run first{more}"
    schemas = near(parts[-2], _schemas(spark, parts[:-2]))
    schema = ".".join(parts[:-1])
    step = (
        f"did you mean {' or '.join(schemas)}?"
        if schemas
        else f"CREATE SCHEMA {sql_name(parts[:-1])}, or correct the name"
    )
    return f"{what}, since there is no schema {schema}: {step}"


def _schemas(spark: SparkSession, catalog: tuple[str, ...]) -> list[str]:
    try:
        return [str(row[0]) for row in spark.sql(f"SHOW SCHEMAS IN {sql_name(catalog)}").collect()]
    except _FAILURES:
        return []


def _forgetful(spark: SparkSession, parts: tuple[str, ...]) -> str:
    """What to know of a session catalog without a metastore: it is empty whenever Spark starts."""
    own = parts[0].lower() == SESSION_CATALOG
    if own and spark.conf.get("spark.sql.catalogImplementation") == "in-memory":
        return (
            " (Spark's own catalog is in memory here, so that each run begins with an empty one: set spark.sql.catalogImplementation=hive, and "
            "the metastore)"
        )
    return ""
