"""The values of columnar operators: one per key, with a value or null for each column.

    [header 0x0B][null mask, u16 little-endian][the columns, fixed widths little-endian]     all columns fixed
    [header 0x0B][MessagePack array]                                                          otherwise

`FixedLayout` is the first form. In a table of the state the value is one struct column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.errors import UsageError
from stateflow.format.scalars import BY_NAME, FIXED_COLUMNS
from stateflow.state.keys.arrow_types import ARROW
from stateflow.state.values.headers import BadEntryError
from stateflow.state.values.nested_shapes import element_of
from stateflow.state.values.packed_instants import are_instants
from stateflow.state.values.schema_text import FieldText, OptionalText, ScalarText, StructText, read_columns
from stateflow.state.values.serializers import RAW_CODE, damaged
from stateflow.state.values.shapes import OpaqueShape
from stateflow.state.values.structured_values import StructuredValues
from stateflow.state.values.typed import ByteValues, ValueColumn, Values


def column_values(schema: str, where: str) -> Values:
    fields = read_columns(schema)
    record = StructText(
        "", tuple(FieldText(field.name, OptionalText(field.type)) for field in fields), by_position=True
    )
    element = element_of(record)
    if isinstance(element.shape, OpaqueShape):
        return ByteValues(schema, RAW_CODE, where)
    names = [field.type.name if isinstance(field.type, ScalarText) else "" for field in fields]
    if all(name in FIXED_COLUMNS for name in names):
        return FixedColumns(schema, where, [field.name for field in fields], names)
    return StructuredValues(schema, where, element, RAW_CODE)


class FixedLayout:
    """Values of one width: header, null mask and the columns, of which each has a type of `FIXED_COLUMNS`."""

    def __init__(self, types: Sequence[str]) -> None:
        self.types = [ARROW[name] for name in types]
        forms = [(f"c{index}", f"<{BY_NAME[name].form}") for index, name in enumerate(types)]
        self.rows = np.dtype([("header", "u1"), ("nulls", "<u2"), *forms])

    def read(self, rows: Any) -> list[Any]:
        """Each column of an array of `rows`, as Arrow has it."""
        columns = []
        for index, kind in enumerate(self.types):
            column = np.ascontiguousarray(rows[f"c{index}"])
            array = pa.array(
                column.astype(bool) if pa.types.is_boolean(kind) else column,
                mask=(rows["nulls"] >> index) & 1 == 1,
            )
            columns.append(array if array.type == kind else array.cast(kind))
        return columns

    def write(self, columns: Sequence[Any], count: int) -> list[bytes]:
        """One value per row of Arrow columns of `types`."""
        rows = np.zeros(count, dtype=self.rows)
        rows["header"] = RAW_CODE
        for index, (column, kind) in enumerate(zip(columns, self.types, strict=True)):
            if column.null_count:
                null = column.is_null().to_numpy(zero_copy_only=False)
                rows["nulls"] |= null.astype("<u2") << np.uint16(index)
                column = pc.fill_null(column, pa.scalar(0, pa.int64()).cast(kind))
            if pa.types.is_timestamp(kind):
                column = column.cast(pa.int64())
            rows[f"c{index}"] = column.to_numpy(zero_copy_only=False)
        raw, width = rows.tobytes(), self.rows.itemsize
        return [raw[at : at + width] for at in range(0, len(raw), width)]


class FixedColumns(Values):
    def __init__(self, schema: str, where: str, names: Sequence[str], types: Sequence[str]) -> None:
        super().__init__(schema, RAW_CODE, where)
        self._layout = FixedLayout(types)
        self._fields = list(map(pa.field, names, self._layout.types))
        self._instants = [index for index, name in enumerate(types) if name == "datetime"]
        self.arrow = pa.struct(self._fields)

    def read(self, values: Sequence[bytes]) -> ValueColumn:
        width = self._layout.rows.itemsize
        for index, raw in enumerate(values):
            if len(raw) != width or raw[0] != self.code:
                raise BadEntryError(index, damaged(raw, self.schema))
        rows = np.frombuffer(b"".join(values), dtype=self._layout.rows)
        for index in self._instants:
            readable = are_instants(rows[f"c{index}"]) | ((rows["nulls"] >> index) & 1 == 1)
            if not bool(readable.all()):
                raise BadEntryError(int(np.flatnonzero(~readable)[0]), damaged(b"", self.schema))
        return ValueColumn(pa.StructArray.from_arrays(self._layout.read(rows), fields=self._fields))

    def write(self, column: Any, stored: Any) -> list[bytes]:
        column = self._whole(column)
        children = [column.field(index) for index in range(len(self._fields))]
        for index in self._instants:
            micros = children[index].cast(pa.int64()).drop_null().to_numpy()
            if not bool(are_instants(micros).all()):
                raise UsageError(
                    f"{self.where}: value.{self._fields[index].name} holds instants outside of the years 1 to 9999: "
                    "correct them"
                )
        return self._layout.write(children, len(column))
