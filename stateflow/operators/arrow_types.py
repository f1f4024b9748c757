"""The Arrow type of a column from the text of its Spark type. It is the type that Spark gives; the test harness has no Spark to
ask."""

from __future__ import annotations

import re
from functools import cache

import pyarrow as pa

from stateflow.errors import UsageError
from stateflow.format.scalars import COLUMN_TYPES
from stateflow.pipelines.rows.row_type import RowType, row_type

_PLAIN = {column.name: getattr(pa, column.arrow[0])(*column.arrow[1:]) for column in COLUMN_TYPES}


def arrow_schema_of(rows: RowType) -> pa.Schema:
    return pa.schema([(field.name, arrow_type(field.type)) for field in rows.fields])


@cache
def arrow_type(text: str) -> pa.DataType:
    """The type that Spark's DDL text stands for."""
    word, _, inside = text.strip().partition("<")
    inside = inside.rstrip()[:-1]
    match word.strip().lower():
        case "array":
            return pa.list_(arrow_type(inside))
        case "map":
            key, value = _halves(inside)
            return pa.map_(arrow_type(key), arrow_type(value))
        case "struct":
            return pa.struct([(field.name, arrow_type(field.type)) for field in row_type(inside).fields])
    # Only the row type's own columns have their aliases resolved: `long` inside an array is still `long`.
    name = row_type(f"value {word}").fields[0].type
    if sized := re.fullmatch(r"decimal\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", name):
        return pa.decimal128(int(sized[1]), int(sized[2] or 0))
    if re.fullmatch(r"(var)?char\(\s*\d+\s*\)", name):
        return pa.string()
    if name not in _PLAIN:
        raise UsageError(
            f"the harness does not know the type {text!r}: leave output= out, and test it with Spark"
        )
    return _PLAIN[name]


def _halves(text: str) -> tuple[str, str]:
    """A map's key and value types. The comma that stands in no bracket separates them."""
    depth = 0
    for i, char in enumerate(text):
        depth += (char in "<(") - (char in ">)")
        if char == "," and depth == 0:
            return text[:i], text[i + 1 :]
    raise UsageError(f"map<{text}> has no value type: write map<key,value>")
