"""Columns of a row class that are of the message and not in its value: `kafka_key`, `kafka_offset` and the like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stateflow.connectors import Field, RowType, UsageError, suggestion

if TYPE_CHECKING:
    import pyarrow as pa

PREFIX = "kafka_"
KEY, HEADERS, DELETED = "kafka_key", "kafka_headers", "kafka_deleted"
MESSAGE = "_sf_message"
"""The column with all of a message, as Spark's source gives it."""
PARSED, REASON = "_sf_parsed", "_sf_reason"
"""The columns with the fields of its value, and with why there are none."""
MADE = "_sf_made"
"""The column with the value that a row becomes, where Spark cannot make it."""


def type_of_parsed(columns: Mapping[str, str]) -> str:
    """Spark's type of the column `PARSED`, whose fields have these types."""
    inside = ",".join(f"`{name}`:{type}" for name, type in columns.items())
    return f"struct<{inside}>"


def with_parsed(batch: pa.RecordBatch, parsed: pa.Array, reasons: Sequence[str | None]) -> pa.RecordBatch:
    """The batch with two more columns: the fields of the value, and why there are none."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays(
        [*batch.columns, parsed, pa.array(reasons, pa.string())], [*batch.schema.names, PARSED, REASON]
    )


def zigzag(data: bytes, at: int) -> tuple[int, int]:
    """The number that is written there with as few bytes as it needs, and the position behind it."""
    byte = data[at]
    at += 1
    found, shift = byte & 0x7F, 7
    while byte & 0x80:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        shift += 7
    return (found >> 1) ^ -(found & 1), at


_INTEGERS = frozenset({"int", "bigint", "long", "integer"})
_HEADER_NAMES = f"transform({MESSAGE}.headers, h -> h.key)"
_LAST_OF_EACH = f"filter({MESSAGE}.headers, (h, k) -> not array_contains(slice({_HEADER_NAMES}, k + 2, size({MESSAGE}.headers)), h.key))"
_PAIRS = f"transform({_LAST_OF_EACH}, h -> struct(h.key, {{value}}))"
_MAP = f"coalesce(map_from_entries({_PAIRS}), map())"


@dataclass(frozen=True, slots=True)
class _MessageColumn:
    types: Mapping[str, str]
    """By Spark's type of the field: the SQL that gives it."""
    declared: str
    """The types in Python's words."""


_COLUMNS: Mapping[str, _MessageColumn] = {
    "kafka_topic": _MessageColumn({"string": f"{MESSAGE}.topic"}, "str"),
    "kafka_partition": _MessageColumn(dict.fromkeys(_INTEGERS, f"{MESSAGE}.partition"), "int"),
    "kafka_offset": _MessageColumn(dict.fromkeys(_INTEGERS, f"{MESSAGE}.offset"), "int"),
    "kafka_timestamp": _MessageColumn({"timestamp": f"{MESSAGE}.timestamp"}, "datetime"),
    "kafka_value": _MessageColumn({"binary": f"{MESSAGE}.value"}, "bytes"),
    DELETED: _MessageColumn({"boolean": f"{MESSAGE}.value is null"}, "bool"),
    HEADERS: _MessageColumn(
        {
            "map<string,binary>": _MAP.format(value="h.value"),
            "map<string,string>": _MAP.format(value="make_valid_utf8(cast(h.value as string))"),
            "array<struct<key:string,value:binary>>": f"coalesce({MESSAGE}.headers, array())",
        },
        "dict[str, bytes], dict[str, str], or a list of a class with key: str and value: bytes",
    ),
}


PARTS = {name.removeprefix(PREFIX): name for name in (KEY, *_COLUMNS) if name not in ("kafka_value", DELETED)}
"""What is of the message, by the name that Spark's source has for it. `value` is not among them: many rows have one of their own."""


def of_message(rows: RowType) -> dict[str, Field]:
    """The fields that the message itself gives, by name."""
    return {field.name: field for field in rows.fields if field.name.startswith(PREFIX)}


def check_columns(where: str, rows: RowType) -> None:
    """UsageError for a field of such a name that no message has, or of another type."""
    for name, field in of_message(rows).items():
        if name == KEY:
            continue
        if name not in _COLUMNS:
            known = (KEY, *_COLUMNS)
            raise UsageError(
                f"{where}: a message has no {name!r}, which {rows.name} declares{suggestion(name, known) or ': it has ' + ', '.join(known)}; other "
                f"fields may not begin with {PREFIX!r}"
            )
        if field.type not in _COLUMNS[name].types:
            raise UsageError(
                f"{where}: {name} of {rows.name} is a {field.type}, and it has to be {_COLUMNS[name].declared}"
            )


def sql_of(field: Field) -> str:
    """SQL for a field that is not the key, over a column `MESSAGE`."""
    return f"cast({_COLUMNS[field.name].types[field.type]} as {field.type})"
