"""What a Delta table asks of its rows beyond their types: values that are there, lengths of texts, constraints, values that it generates.

Delta looks at that as it writes, which for an upsert is after the decision. So whoever prepares rows for one asks here before.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from stateflow.errors import IncompatibleError
from stateflow.pipelines.rows.row_type import quoted
from stateflow.spark.internals.delta_log import TableShape

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField

GENERATED = "delta.generationExpression"
_LENGTHS = "__CHAR_VARCHAR_TYPE_STRING"
"""Spark's key for the type of a column with CHAR or VARCHAR in it: to everybody else they are strings."""
_INVARIANT = "delta.invariants"
"""Delta's key for a condition on a column, which its older versions could give one."""


def may_break(counted: Mapping[str, int], shape: TableShape) -> bool:
    """True if somebody has to look at the rows. The tasks that staged them have counted the nulls of each column, and mostly there are none."""
    nulls = {name.lower(): count for name, count in counted.items()}
    return bool(shape.constraints) or any(
        GENERATED in field.metadata
        or (
            field.name.lower() in nulls
            and (
                (not field.nullable and nulls[field.name.lower()] > 0)
                or not {_LENGTHS, _INVARIANT}.isdisjoint(field.metadata)
                or asks_within(field.dataType)
            )
        )
        for field in shape.schema.fields
    )


def asks_within(kind: DataType) -> bool:
    """Whether a field of a struct may not be null, or has a condition."""
    return any(
        not field.nullable or _INVARIANT in field.metadata or asks_within(field.dataType)
        for field in getattr(kind, "fields", ())
    )


def violations(rows: DataFrame, shape: TableShape, target: str) -> tuple[DataFrame, dict[str, Column]]:
    """What rows may have that the table refuses, each with the condition that such a row fulfils; and the rows, with the columns that the
    table generates for them. IncompatibleError where it depends on columns that the rows lack."""
    from pyspark.sql import functions as F

    written = {name.lower() for name in rows.columns}
    for field in shape.schema.fields:
        if GENERATED in field.metadata and field.name.lower() not in written:
            rows = _with_generated(rows, field, target)
    present = {name.lower() for name in rows.columns}
    fields = [field for field in shape.schema.fields if field.name.lower() in present]
    conditions: dict[str, Column] = {}
    checks = {f"the constraint {name!r}": text for name, text in shape.constraints.items()}
    for path, field in _nested(fields):
        name, column = ".".join(path), F.col(".".join(map(quoted, path)))
        if not field.nullable:
            conditions[f"a null in the NOT NULL column {name!r}"] = column.isNull()
        if _INVARIANT in field.metadata:
            checks[f"the condition of the column {name!r}"] = _invariant(field.metadata[_INVARIANT])
    for field in fields:
        kind = declared_type(field)
        longer = _longer(F.col(quoted(field.name)), kind)
        if longer is not None:
            what = f"a longer text than the column {field.name!r} takes ({kind.simpleString()})"
            conditions[what] = longer
        if GENERATED in field.metadata and field.name.lower() in written:
            text = field.metadata[GENERATED]
            condition = ~F.expr(f"{quoted(field.name)} <=> ({text})")
            if not _is_computable(rows, condition):
                raise IncompatibleError(
                    f"the column {field.name!r} of {target} is generated ({text}) from columns that the upsert does not write: write them, "
                    f"or leave {field.name!r} out"
                )
            conditions[f"another value in {field.name!r} than the table generates ({text})"] = condition
    for what, text in checks.items():
        condition = ~F.coalesce(F.expr(text).cast("boolean"), F.lit(False))
        if not _is_computable(rows, condition):
            raise IncompatibleError(
                f"{what} of {target} ({text}) needs columns that the upsert does not write: write them, or drop the constraint"
            )
        conditions[f"broken {what} ({text})"] = condition
    return rows, conditions


def declared_type(field: StructField) -> DataType:
    """A column's type, with the CHAR and VARCHAR in it."""
    from pyspark.sql.types import DataType

    text = field.metadata.get(_LENGTHS)
    return DataType.fromDDL(text) if text else field.dataType


def padded(frame: DataFrame, shape: TableShape, keys: Collection[str]) -> DataFrame:
    """The frame with the texts of keys filled up with blanks where their columns are CHAR. Delta stores such texts as they come, and shows them
    filled up: a merge would not find `ab` in a table that shows `ab   `, and take `ab` and `ab ` of one batch for two keys."""
    from pyspark.sql import functions as F

    named = {key.lower() for key in keys}
    filled = {
        field.name.lower(): _filled(F.col(quoted(field.name)), declared_type(field))
        for field in shape.schema.fields
        if _LENGTHS in field.metadata and field.name.lower() in named
    }
    if all(column is None for column in filled.values()):
        return frame
    columns = {name: filled.get(name.lower()) for name in frame.columns}
    return frame.select(
        *(F.col(quoted(name)) if column is None else column.alias(name) for name, column in columns.items())
    )


def _nested(
    fields: Iterable[StructField], parents: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], StructField]]:
    """The columns and all fields of structs, each with its path. Delta asks nothing of what lies in arrays and maps."""
    for field in fields:
        path = (*parents, field.name)
        yield path, field
        yield from _nested(getattr(field.dataType, "fields", ()), path)


def _longer(column: Column, kind: DataType) -> Column | None:
    """Whether a text is longer than its type says, blanks at its end, too, as Delta counts them; None where no type says it."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, CharType, MapType, StructType, VarcharType

    if isinstance(kind, CharType | VarcharType):
        return F.length(column) > kind.length
    parts: list[Column | None] = []
    if isinstance(kind, StructType):
        parts = [_longer(column.getField(field.name), field.dataType) for field in kind.fields]
    elif isinstance(kind, ArrayType):
        parts = [_any_longer(column, kind.elementType)]
    elif isinstance(kind, MapType):
        parts = [
            _any_longer(F.map_keys(column), kind.keyType),
            _any_longer(F.map_values(column), kind.valueType),
        ]
    known = [part for part in parts if part is not None]
    return reduce(or_, known) if known else None


def _any_longer(array: Column, kind: DataType) -> Column | None:
    from pyspark.sql import functions as F

    if _longer(array, kind) is None:
        return None

    def longer(value: Column) -> Any:
        return _longer(value, kind)

    return F.exists(array, longer)


def _filled(column: Column, kind: DataType) -> Column | None:
    """The value with its CHARs filled up with blanks; None where the type has none. Maps stay: no key of an upsert is one."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, CharType, StructType

    if isinstance(kind, CharType):
        # What is too long is not cut off: the table refuses it.
        is_short = F.length(column) < kind.length
        return F.when(is_short, F.rpad(column, kind.length, " ")).otherwise(column)
    if isinstance(kind, StructType):
        parts = {field.name: _filled(column.getField(field.name), field.dataType) for field in kind.fields}
        whole = column
        for name, part in parts.items():
            whole = whole if part is None else whole.withField(quoted(name), part)
        return None if all(part is None for part in parts.values()) else whole
    if isinstance(kind, ArrayType) and _filled(column, kind.elementType) is not None:
        element = kind.elementType

        def filled(value: Column) -> Any:
            return _filled(value, element)

        return F.transform(column, filled)
    return None


def _with_generated(rows: DataFrame, field: StructField, target: str) -> DataFrame:
    """The rows with a column that the table computes. Where it needs what they lack, nobody can tell its values."""
    from pyspark.sql import functions as F

    text = field.metadata[GENERATED]
    column = F.expr(text).cast(field.dataType)
    if _is_computable(rows, column):
        return rows.withColumn(field.name, column)
    if not field.nullable:
        raise IncompatibleError(
            f"the NOT NULL column {field.name!r} of {target} is generated ({text}) from columns that the upsert does not write: write them, "
            "or drop NOT NULL"
        )
    return rows


def _invariant(text: str) -> str:
    return str(json.loads(text)["expression"]["expression"])


def _is_computable(rows: DataFrame, column: Column) -> bool:
    try:
        rows.select(column)
    except Exception:
        return False
    return True
