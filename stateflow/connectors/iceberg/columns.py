"""Columns of an output and those of an Iceberg table: which fit without loss, and which a new table gets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from stateflow.connectors import IncompatibleError, UsageError

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyspark.sql.types import StructType

    from stateflow.connectors.iceberg.table import PartitionColumn

_FITTING = {
    "byte": ("int", "long"),
    "short": ("int", "long"),
    "integer": ("int", "long"),
    "long": ("long",),
    "float": ("float", "double"),
    "double": ("double",),
    "boolean": ("boolean",),
    "string": ("string",),
    "varchar": ("string",),
    "char": ("string",),
    "binary": ("binary",),
    "date": ("date",),
    "timestamp": ("timestamptz",),
    "timestamp_ntz": ("timestamp",),
}
"""By Spark's name of a type, types of Iceberg that hold all of its values; the first is that of a new table."""


def made_schema(rows: StructType, keys: Sequence[str], what: str) -> Schema:
    """The columns of a new table. The keys of an upsert take no nulls, and identify its rows to other engines."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField

    ids, own = count(1), {key.lower() for key in keys}
    fields = [
        NestedField(next(ids), each.name, _made(each.dataType, ids, f"column {each.name!r} of the output for {what}"), each.name.lower() in own)
        for each in rows
    ]  # fmt: skip
    return Schema(*fields, identifier_field_ids=[field.field_id for field in fields if field.required])


def made_partitions(schema: Schema, partitions: Sequence[PartitionColumn], what: str) -> PartitionSpec:
    """By what a new table is partitioned."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import parse_transform

    fields, names = [], {name.lower(): name for name in schema.column_names}
    for number, each in enumerate(partitions):
        name = names.get(each.column.lower())
        if name is None:
            raise UsageError(
                f"{what}: partition_by names {each.column!r}, which is not among the columns {list(names.values())}"
            )
        source, transform = schema.find_field(name), parse_transform(each.transform)
        if not transform.can_transform(source.field_type):
            raise UsageError(
                f"{what}: partition_by wants the {each.transform} of {each.column!r}, which is {source.field_type}"
            )
        own = each.name(name)
        if own != name and own in names.values():
            raise UsageError(
                f"{what}: partition_by makes partitions {own!r} of {name!r}, and a column has that name already: give the column another name, or "
                f"partition by {own!r} itself"
            )
        fields.append(PartitionField(source.field_id, 1000 + number, transform, own))
    return PartitionSpec(*fields)


def written_schema(rows: StructType, table: Schema, what: str) -> Schema:
    """The columns of a data file that has such rows, with the table's names and ids, in the order of the rows. IncompatibleError names
    all that does not fit."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField

    problems: list[str] = []
    exact = {field.name: field for field in table.fields}
    folded = {field.name.lower(): field for field in table.fields}
    fields = []
    for each in rows:
        there = exact.get(each.name) or folded.get(each.name.lower())
        if there is None:
            problems.append(f"it has no column {each.name!r}{_added(each.name, each.dataType)}")
            continue
        kind = _matched(each.dataType, there.field_type, repr(there.name), problems)
        fields.append(NestedField(there.field_id, there.name, kind, there.required))
    written = {field.field_id for field in fields}
    problems += [
        f"its column {field.name!r} is required, and the output does not have it: add it, or make the column optional"
        for field in table.fields
        if field.required and field.field_id not in written
    ]
    if problems:
        raise IncompatibleError(f"{what} does not fit its output: {'; '.join(problems)}")
    return Schema(*fields)


def _made(kind: Any, ids: Iterator[int], what: str) -> Any:
    """Iceberg's type for one of Spark's."""
    from pyiceberg.types import DecimalType, ListType, MapType, NestedField, StructType

    match kind.typeName():
        case "decimal":
            return DecimalType(kind.precision, kind.scale)
        case "array":
            own = next(ids)
            return ListType(own, _made(kind.elementType, ids, what), element_required=False)
        case "map":
            key, value = next(ids), next(ids)
            return MapType(
                key,
                _made(kind.keyType, ids, what),
                value,
                _made(kind.valueType, ids, what),
                value_required=False,
            )
        case "struct":
            return StructType(
                *(
                    NestedField(next(ids), each.name, _made(each.dataType, ids, what), required=False)
                    for each in kind
                )
            )
    fitting = _FITTING.get(kind.typeName())
    if fitting is None:
        raise IncompatibleError(
            f"{what} is {kind.simpleString()}, and Iceberg has no type for it: let a transform() before the sink make text or a number of it"
        )
    return _plain(fitting[0])


def _plain(name: str) -> Any:
    from pyiceberg.types import IcebergType

    return IcebergType.model_validate(name)


def _matched(kind: Any, there: Any, path: str, problems: list[str]) -> Any:
    """The type that a data file has for such values in a column of the table: nested fields in the order of the rows."""
    from pyiceberg.types import DecimalType, ListType, MapType, StructType

    match kind.typeName():
        case "decimal" if isinstance(there, DecimalType):
            if there.scale >= kind.scale and there.precision - there.scale >= kind.precision - kind.scale:
                return there
        case "array" if isinstance(there, ListType):
            _refuse_nulls(kind.containsNull and there.element_required, f"{path}.element", problems)
            inner = _matched(kind.elementType, there.element_type, f"{path}.element", problems)
            return ListType(there.element_id, inner, element_required=there.element_required)
        case "map" if isinstance(there, MapType):
            _refuse_nulls(kind.valueContainsNull and there.value_required, f"{path}.value", problems)
            key = _matched(kind.keyType, there.key_type, f"{path}.key", problems)
            value = _matched(kind.valueType, there.value_type, f"{path}.value", problems)
            return MapType(there.key_id, key, there.value_id, value, value_required=there.value_required)
        case "struct" if isinstance(there, StructType):
            return _struct(kind, there, path, problems)
        case name if str(there) in _FITTING.get(name, ()):
            return there
    problems.append(_misfit(kind, there, path))
    return there


def _struct(kind: Any, there: Any, path: str, problems: list[str]) -> Any:
    from pyiceberg.types import NestedField, StructType

    fields, own = [], {field.name: field for field in there.fields}
    for each in kind:
        field = own.pop(each.name, None)
        if field is None:
            problems.append(f"{path} has no field {each.name!r}")
            continue
        where = f"{path}.{each.name}"
        _refuse_nulls(each.nullable and field.required, where, problems)
        inner = _matched(each.dataType, field.field_type, where, problems)
        fields.append(NestedField(field.field_id, field.name, inner, field.required))
    problems += [
        f"{path}.{name} is required, and the output does not have it"
        for name, field in own.items()
        if field.required
    ]
    return StructType(*fields)


def _refuse_nulls(refused: bool, path: str, problems: list[str]) -> None:
    if refused:
        problems.append(f"{path} takes no nulls, and the output may have some: make it optional")


def _misfit(kind: Any, there: Any, path: str) -> str:
    if kind.typeName() == "timestamp" and str(there) == "timestamp":
        return (
            f"its column {path} has times without a zone, and those of the output are instants: cast them to timestamp_ntz, or give the table a "
            "column of timestamptz"
        )
    return f"its column {path} is {there}, which does not hold every {kind.simpleString()}: cast the output, or alter the column"


def _added(name: str, kind: Any) -> str:
    try:
        made = _made(kind, count(1), name)
    except IncompatibleError:
        return ""
    from pyiceberg.types import PrimitiveType

    return f" (ALTER TABLE ... ADD COLUMN {name} {made})" if isinstance(made, PrimitiveType) else ""
