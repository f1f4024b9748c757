"""Whether rows fit a Delta table. A run checks it at its start: later, a decided record would be stuck on it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import xxhash

from stateflow.errors import IncompatibleError
from stateflow.pipelines.rows.misfits import failed_batch
from stateflow.pipelines.rows.row_type import quoted, text_in_sql
from stateflow.spark.internals.delta_log import TableShape
from stateflow.spark.sinks.table_rules import GENERATED
from stateflow.spark.sources.catalog_tables import PREVIEW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

PHYSICAL = "delta.columnMapping.physicalName"
WIDER: dict[str, tuple[str, ...]] = {
    "tinyint": ("smallint", "int", "bigint", "float", "double"),
    "smallint": ("int", "bigint", "float", "double"),
    "int": ("bigint", "double"),
    "float": ("double",),
    "date": ("timestamp_ntz",),
}
"""Casts that lose nothing."""
_CHANGED = {
    "string": "{0} in ('', '__HIVE_DEFAULT_PARTITION__')",
    "binary": "not is_valid_utf8(cast({0} as string)) or cast({0} as string) in ('', '__HIVE_DEFAULT_PARTITION__')",
    # Delta writes a time as a text of the session's time zone, where one hour of the year comes twice, and has no year before 1.
    "timestamp": "year({0}) < 1 or not (cast(cast({0} as string) as timestamp) <=> {0})",
}
"""Values of partitions, by type, that are read back as null, as other bytes or as other times."""
_IN_UTC = ", run in UTC (spark.sql.session.timeZone) if it is of an hour that comes twice"


def check_fit(schema: StructType, table: TableShape, target: str, in_sql: str) -> None:
    """IncompatibleError, naming every column, unless rows of `schema` can be written to the table. `in_sql`: as statements name it."""
    for field in table.schema.fields:
        if any(name.startswith("delta.identity.") for name in field.metadata):
            raise IncompatibleError(
                f"{target} has the identity column {field.name!r}, which a sink cannot fill: drop it or "
                "write to a table without one"
            )
    if PREVIEW in table.features:
        raise IncompatibleError(
            f"{target} has commits that its catalog manages as a preview of Delta's had it, which a sink cannot take part in: "
            "write to a table without them"
        )
    columns = {field.name.lower(): field for field in table.schema.fields}
    problems: list[str] = []
    names: set[str] = set()
    absent: list[StructField] = []
    for field in schema.fields:
        name = field.name.lower()
        if name in names:
            problems.append(f"{field.name!r} comes twice")
        names.add(name)
        if name not in columns:
            problems.append(f"{field.name!r} is not in the table")
            absent.append(field)
        elif not _castable(field.dataType, columns[name].dataType):
            problems.append(
                f"{field.name!r} is {_text(field.dataType)}, there {_text(columns[name].dataType)}"
            )
    for name, field in columns.items():
        if name not in names and not field.nullable and GENERATED not in field.metadata:
            problems.append(f"{field.name!r} is missing and NOT NULL there")
    missing = [
        column
        for column in table.partition_by
        if column.lower() not in names and GENERATED not in columns[column.lower()].metadata
    ]
    problems.extend(f"{column!r} is missing and the table is partitioned by it" for column in missing)
    if problems:
        types = {field.name: sql_type(field.dataType) for field in absent}
        statement = f": {added_by(types.items(), in_sql)}" if absent else ""
        raise IncompatibleError(
            f"the output does not fit {target}: {'; '.join(problems)}; change the output or alter the table{statement}"
        )


def added_by(columns: Iterable[tuple[str, str]], table: str) -> str:
    """The statement that gives a table, as statements name it, columns of these names and types."""
    definitions = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns)
    return f"ALTER TABLE {table} ADD COLUMNS ({definitions})"


def altered(table: str, properties: Mapping[str, str]) -> str:
    """The statement that gives a table properties."""
    pairs = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    return f"ALTER TABLE {table} SET TBLPROPERTIES ({pairs})"


def renamed_by(names: Mapping[str, str], table: str) -> str:
    """The statements that give columns of a table other names, by the names that they have."""
    mapped = altered(table, {"delta.columnMapping.mode": "name"})
    renamed = (
        f"ALTER TABLE {table} RENAME COLUMN {quoted(old)} TO {quoted(new)}" for old, new in names.items()
    )
    return "; ".join((mapped, *renamed))


def sql_type(kind: DataType) -> str:
    """A type as a statement names it; unlike `simpleString`, with fields of any name."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, ArrayType):
        return f"ARRAY<{sql_type(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{sql_type(kind.keyType)}, {sql_type(kind.valueType)}>"
    if isinstance(kind, StructType):
        fields = (f"{quoted(field.name)}: {sql_type(field.dataType)}" for field in kind.fields)
        return f"STRUCT<{', '.join(fields)}>"
    return kind.simpleString().upper()


def cast_to(frame: DataFrame, table: TableShape, target: str, goes: str = "false") -> DataFrame:
    """`frame` cast to the table's types; what the table does not have stays. Casting adds no shuffle, so its last stage stays
    the last. The batch fails at a value that the table would hold as another one, but for rows that only delete, which `goes` tells."""
    from pyspark.sql import functions

    columns = {field.name.lower(): field for field in table.schema.fields}
    matches = [(field, columns.get(field.name.lower(), field)) for field in frame.schema.fields]
    parts = {column.lower() for column in table.partition_by}
    held = {
        mine.name
        for mine, _ in matches
        if mine.name.lower() in parts and _kind(_text(mine.dataType)) in _CHANGED
    }
    if not held and all(_text(mine.dataType) == _text(theirs.dataType) for mine, theirs in matches):
        return frame
    columns_of = {
        mine.name: functions.expr(_as_partition(mine.name, _text(mine.dataType), target, goes))
        if mine.name in held
        else functions.col(quoted(mine.name))
        # Of a struct with a field that may not be null there, a cast to the very same type would be refused.
        if _text(mine.dataType) == _text(theirs.dataType)
        else functions.col(quoted(mine.name)).cast(theirs.dataType)
        for mine, theirs in matches
    }
    return frame.select(*(column.alias(name) for name, column in columns_of.items()))


def _as_partition(name: str, type_: str, target: str, goes: str) -> str:
    """SQL for a column by which the table is partitioned. The table's log has its values as texts, and some of them stand for null there."""
    column = quoted(name)
    kind = _kind(type_)
    quote, begin_bytes, begin_time = map(text_in_sql, ("'", "X'", "TIMESTAMP'"))
    texts = {
        "string": f"{quote}, {column}",
        "binary": f"{begin_bytes}, hex({column})",
        "timestamp": f"{begin_time}, cast({column} as string), date_format({column}, 'XXX')",
    }
    text = f"concat({texts[kind]}, {quote})"
    before = text_in_sql(f"{target} is partitioned by {name!r} and would hold the value ")
    behind = text_in_sql(
        " of a row as another one, which Delta's partitions do not tell apart: no row was written; put out another value for such rows where the "
        f"operator puts them out{_IN_UTC if kind == 'timestamp' else ''}, or partition by another column"
    )
    fails = failed_batch(f"concat({before}, {text}, {behind})")
    return f"if(({_CHANGED[kind].format(column)}) and not ({goes}), cast({fails} as {type_}), {column})"


def column_marks(table: TableShape, columns: Iterable[str]) -> dict[str, str]:
    """A hash per column of how data files hold it. While marks are equal, older files still read the same."""
    by_name = {field.name.lower(): field for field in table.schema.fields}
    return {c.lower(): _mark(by_name[c.lower()]) for c in columns if c.lower() in by_name}


def _mark(field: StructField) -> str:
    # Column mapping lets a dropped name be given to another column: the physical name tells them apart.
    physical = str(field.metadata.get(PHYSICAL, field.name))
    return xxhash.xxh3_64_hexdigest(
        json.dumps([physical, field.dataType.jsonValue()], sort_keys=True).encode()
    )


def _kind(type_: str) -> str:
    """Texts with a collation are texts, too."""
    return type_.partition(" collate")[0]


def _text(kind: DataType) -> str:
    return kind.simpleString().lower()


def _castable(mine: DataType, theirs: DataType) -> bool:
    return _text(mine) == _text(theirs) or _text(theirs) in WIDER.get(_text(mine), ())
