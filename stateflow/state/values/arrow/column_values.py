"""The values of columnar operators: one per entry, with a value or null for each column.

    [header 0x0B][null mask][the columns, fixed widths little-endian]     all columns fixed
    [header 0x0B][MessagePack array]                                      otherwise

The null mask is a little-endian u16, with more than 16 columns a u64. `FixedLayout` is the first form. In a table of the
state the value is one struct column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import is_
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.format.records import StateSchema
from stateflow.format.scalars import BY_NAME, FIXED_COLUMNS, SHORT_MASK
from stateflow.state.keys.arrow_types import ARROW, wide
from stateflow.state.values.arrow.headers import BadEntryError, split
from stateflow.state.values.arrow.nested_shapes import element_of
from stateflow.state.values.arrow.packed_instants import are_instants, refuse_far
from stateflow.state.values.arrow.packed_rows import packed_rows
from stateflow.state.values.arrow.shapes import OpaqueShape
from stateflow.state.values.arrow.structured_values import StructuredValues
from stateflow.state.values.arrow.typed import ByteValues, ValueColumn, Values
from stateflow.state.values.evolution.versions import marked, todays_form
from stateflow.state.values.schema_text import FieldText, OptionalText, ScalarText, StructText, read_columns
from stateflow.state.values.serializers import EXPIRES, RAW_CODE, damaged


def column_values(schema: str, where: str) -> Values:
    fields = read_columns(schema)
    record = StructText(
        "", tuple(FieldText(field.name, OptionalText(field.type)) for field in fields), by_position=True
    )
    element = element_of(record)
    if fields and isinstance(element.shape, OpaqueShape):
        return ByteValues(schema, RAW_CODE, where)
    names = [field.type.name if isinstance(field.type, ScalarText) else "" for field in fields]
    if all(name in FIXED_COLUMNS for name in names):
        return FixedColumns(schema, where, [field.name for field in fields], names)
    return StructuredValues(schema, where, element, RAW_CODE)


class ColumnBytes:
    """The values of one state as operators read and write them: many at once, as columns."""

    def __init__(self, schema: str, *, is_wide: bool = False) -> None:
        """With `is_wide` the columns have wide types."""
        fields = read_columns(schema)
        types = [field.type.name if isinstance(field.type, ScalarText) else "" for field in fields]
        kinds = [wide(ARROW[kind]) if is_wide else ARROW[kind] for kind in types]
        self.schema = pa.schema([(field.name, kind) for field, kind in zip(fields, kinds, strict=True)])
        self._fixed = FixedLayout(types) if all(name in FIXED_COLUMNS for name in types) else None
        count = len(types)
        self._head = bytes((RAW_CODE,)) + msgspec.msgpack.encode([None] * count)[: -count or None]

    def read(self, values: Sequence[bytes | None]) -> pa.Table:
        """A row per value; nulls where there is none."""
        if self._fixed is not None:
            blank = self._fixed.blank
            joined = b"".join([raw if raw is not None else blank for raw in values])
            return pa.table(
                self._fixed.read(np.frombuffer(joined, dtype=self._fixed.rows)), schema=self.schema
            )
        there = [raw for raw in values if raw is not None]
        table = self._read_all(there)
        if len(there) == len(values):
            return table
        # Most keys that are asked for may have no value: those that have one are read, and put in their places.
        is_null = np.fromiter(map(_is_none, values), dtype=bool, count=len(values))
        return table.take(pa.array(np.cumsum(~is_null) - 1, mask=is_null))

    def _read_all(self, values: Sequence[bytes]) -> pa.Table:
        # Without the heads of their arrays the columns of all values are one array, which is read at once.
        begin, count = len(self._head), len(self.schema)
        head = b"\xdd" + (count * len(values)).to_bytes(4, "big")
        cells = msgspec.msgpack.decode(b"".join([head, *[raw[begin:] for raw in values]]))
        return pa.table(
            [pa.array(cells[i::count], kind) for i, kind in enumerate(self.schema.types)], schema=self.schema
        )

    def write(self, columns: Sequence[Any], count: int) -> list[bytes]:
        """One value per row of arrays of the schema's types."""
        if self._fixed is not None:
            return self._fixed.write(columns, count)
        return packed_rows(self._head, columns, count)


class EvolvedColumnBytes(ColumnBytes):
    """Of a state whose columns have changed since some of its values were written. Reads values of every schema that the record has,
    and marks the values that it writes."""

    def __init__(self, schema: StateSchema, *, is_wide: bool = False) -> None:
        super().__init__(schema.value, is_wide=is_wide)
        today = todays_form(schema)
        assert today is not None
        self._today, self._number = today, schema.version

    def read(self, values: Sequence[bytes | None]) -> pa.Table:
        today = self._today
        return super().read([None if raw is None else today(raw) for raw in values])

    def write(self, columns: Sequence[Any], count: int) -> list[bytes]:
        number = self._number
        return [marked(raw, number) for raw in super().write(columns, count)]


class FixedLayout:
    """Values of one width: header, null mask and the columns. Every column has a type of `FIXED_COLUMNS`."""

    def __init__(self, types: Sequence[str]) -> None:
        self.types = [ARROW[name] for name in types]
        forms = [(f"c{index}", f"<{BY_NAME[name].form}") for index, name in enumerate(types)]
        self._mask = np.uint16 if len(types) <= SHORT_MASK else np.uint64
        self.rows = np.dtype([("header", "u1"), ("nulls", np.dtype(self._mask).newbyteorder("<")), *forms])
        nulls = np.iinfo(self._mask).max
        blank = np.zeros(1, dtype=self.rows)
        blank["header"], blank["nulls"] = RAW_CODE, nulls
        self.blank: bytes = blank.tobytes()
        """A value with a null in every column."""

    def read(self, rows: Any) -> list[Any]:
        """Each column of an array of `rows`, as Arrow has it."""
        columns = []
        for index, kind in enumerate(self.types):
            column = np.ascontiguousarray(rows[f"c{index}"])
            array = pa.array(
                column.astype(bool) if pa.types.is_boolean(kind) else column,
                mask=self.is_null(rows, index),
            )
            columns.append(array if array.type == kind else array.cast(kind))
        return columns

    def is_null(self, rows: Any, index: int) -> Any:
        return (rows["nulls"] >> self._mask(index)) & self._mask(1) == 1

    def write(self, columns: Sequence[Any], count: int) -> list[bytes]:
        """One value per row of Arrow columns of `types`."""
        rows = np.zeros(count, dtype=self.rows)
        rows["header"] = RAW_CODE
        for index, (column, kind) in enumerate(zip(columns, self.types, strict=True)):
            if column.null_count:
                null = column.is_null().to_numpy(zero_copy_only=False)
                rows["nulls"] |= null.astype(self._mask) << self._mask(index)
                column = pc.fill_null(column, pa.scalar(0, pa.int64()).cast(kind))
            if pa.types.is_timestamp(kind):
                column = column.cast(pa.int64())
            rows[f"c{index}"] = column.to_numpy(zero_copy_only=False)
        return rows.view(f"V{self.rows.itemsize}").tolist()


_is_none = partial(is_, None)

NO_COLUMNS = "columns{}"
BLANK = FixedLayout(()).write((), 1)[0]
"""The value of an entry without columns: that it is there says enough."""


def _foreign(schema: str) -> Callable[[bytes], bytes]:
    """There is one way to write columns: anything else is damage."""

    def refuse(raw: bytes) -> bytes:
        raise damaged(raw, schema)

    return refuse


class FixedColumns(Values):
    def __init__(self, schema: str, where: str, names: Sequence[str], types: Sequence[str]) -> None:
        super().__init__(schema, RAW_CODE, where)
        self._layout = FixedLayout(types)
        self._fields = list(map(pa.field, names, self._layout.types))
        self._instants = [index for index, name in enumerate(types) if name == "datetime"]
        self.arrow = pa.struct(self._fields)

    def read(self, values: Sequence[bytes]) -> ValueColumn:
        expires = None
        if any(raw and raw[0] == self.code | EXPIRES for raw in values):
            bodies, expires = split(values, self.code, _foreign(self.schema), self.schema)
            head = bytes((self.code,))
            values = [head + body for body in bodies]
        width = self._layout.rows.itemsize
        for index, raw in enumerate(values):
            if len(raw) != width or raw[0] != self.code:
                raise BadEntryError(index, damaged(raw, self.schema))
        rows = np.frombuffer(b"".join(values), dtype=self._layout.rows)
        for index in self._instants:
            readable = are_instants(rows[f"c{index}"]) | self._layout.is_null(rows, index)
            if not bool(readable.all()):
                raise BadEntryError(int(np.flatnonzero(~readable)[0]), damaged(b"", self.schema))
        column = pa.StructArray.from_arrays(self._layout.read(rows), fields=self._fields)
        return ValueColumn(column, expires)

    def write(self, column: Any, stored: Any) -> list[bytes]:
        column = self._whole(column)
        children = [column.field(index) for index in range(len(self._fields))]
        for index in self._instants:
            refuse_far(children[index], f"{self.where}: value.{self._fields[index].name}")
        return self._layout.write(children, len(column))
