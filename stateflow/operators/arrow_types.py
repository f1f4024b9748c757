"""The Arrow type of a column from the text of its Spark type. It is the type that Spark gives; the test harness has no Spark to
ask."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import pyarrow as pa

from stateflow.errors import UsageError
from stateflow.format.scalars import COLUMN_TYPES
from stateflow.pipelines.rows.row_type import RowType, row_type
from stateflow.pipelines.rows.type_text import inside_of, parts_of_schema, size_of
from stateflow.state.keys.arrow_types import wide

PIECE_BYTES = 1 << 30
"""Of a table that is put out at once; an array whose type is not wide holds twice as much."""
_PLAIN = {column.name: getattr(pa, column.arrow[0])(*column.arrow[1:]) for column in COLUMN_TYPES}


def arrow_schema_of(rows: RowType) -> pa.Schema:
    return pa.schema([(field.name, arrow_type(field.type)) for field in rows.fields])


def wide_schema(schema: pa.Schema) -> pa.Schema:
    """The same columns with wide types."""
    return pa.schema([field.with_type(wide(field.type)) for field in schema])


def wide_table(table: pa.Table) -> pa.Table:
    """The same rows with wide types. Texts and bytes are not copied, only where they begin."""
    return table.cast(wide_schema(table.schema))


def narrow_pieces(table: pa.Table) -> Iterator[pa.Table]:
    """The rows in as many tables as it takes for none to need wide types: most often the table as it is."""
    waiting = [table]
    while waiting:
        piece = waiting.pop()
        if piece.nbytes <= PIECE_BYTES or piece.num_rows < 2:
            # A slice has the offsets of its array, which may be too large: a copy of it has its own. User code puts out slices, too.
            is_slice = piece is not table or table.get_total_buffer_size() > PIECE_BYTES
            yield _copied(piece) if is_slice else piece
        else:
            half = piece.num_rows // 2
            waiting += [piece.slice(half), piece.slice(0, half)]


def _copied(table: pa.Table) -> pa.Table:
    return pa.table([column.combine_chunks() for column in table.columns], table.schema)


@cache
def arrow_type(text: str) -> pa.DataType:
    """The type that Spark's DDL text stands for."""
    kind, inside = inside_of(text)
    match kind:
        case "array":
            return pa.list_(arrow_type(inside))
        case "map":
            halves = parts_of_schema(inside)
            if len(halves) != 2:
                raise UsageError(f"map<{inside}> has no value type: write map<key,value>")
            return pa.map_(*map(arrow_type, halves))
        case "struct":
            return pa.struct([(field.name, arrow_type(field.type)) for field in row_type(inside).fields])
    # Only the row type's own columns have their aliases resolved: `long` inside an array is still `long`.
    name = row_type(f"value {text.strip()}").fields[0].type
    if size := size_of(name):
        return pa.decimal128(*size)
    if re.fullmatch(r"(var)?char\(\s*\d+\s*\)", name):
        return pa.string()
    if name not in _PLAIN:
        raise UsageError(
            f"the harness does not know the type {text!r}: leave output= out, and test it with Spark"
        )
    return _PLAIN[name]
