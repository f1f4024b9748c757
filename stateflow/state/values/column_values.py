"""The values of columnar operators as one struct column; `columnstate` documents the bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.errors import UsageError
from stateflow.state.values.headers import BadEntryError, damaged
from stateflow.state.values.nested_shapes import slot_of
from stateflow.state.values.packed_instants import INSTANT, are_instants
from stateflow.state.values.schema_text import Field, Optional, Plain, Record, read_columns
from stateflow.state.values.serializers import RAW_CODE
from stateflow.state.values.shapes import Opaque
from stateflow.state.values.structured_values import StructuredValues
from stateflow.state.values.typed import ByteValues, Read, Values

_FIXED: dict[str, tuple[str, pa.DataType]] = {
    "int": ("<i8", pa.int64()),
    "float": ("<f8", pa.float64()),
    "bool": ("u1", pa.bool_()),
    "datetime": ("<i8", INSTANT),
}


def column_values(schema: str, where: str) -> Values:
    fields = read_columns(schema)
    record = Record("", tuple(Field(field.name, Optional(field.type)) for field in fields), by_position=True)
    slot = slot_of(record)
    if isinstance(slot.shape, Opaque):
        return ByteValues(schema, RAW_CODE, where)
    names = [field.type.name if isinstance(field.type, Plain) else "" for field in fields]
    if all(name in _FIXED for name in names):
        return FixedColumns(schema, where, [field.name for field in fields], names)
    return StructuredValues(schema, where, slot, RAW_CODE)


class FixedColumns(Values):
    def __init__(self, schema: str, where: str, names: Sequence[str], types: Sequence[str]) -> None:
        super().__init__(schema, RAW_CODE, where)
        self._types = [_FIXED[name][1] for name in types]
        self._fields = [pa.field(name, kind) for name, kind in zip(names, self._types, strict=True)]
        self.arrow = pa.struct(self._fields)
        forms = [(f"c{index}", _FIXED[name][0]) for index, name in enumerate(types)]
        self._layout = np.dtype([("header", "u1"), ("nulls", "<u2"), *forms])

    def read(self, values: Sequence[bytes]) -> Read:
        width = self._layout.itemsize
        for index, raw in enumerate(values):
            if len(raw) != width or raw[0] != self.code:
                raise BadEntryError(index, damaged(raw, self.schema))
        rows = np.frombuffer(b"".join(values), dtype=self._layout)
        arrays = []
        for index, kind in enumerate(self._types):
            null = (rows["nulls"] >> index) & 1 == 1
            column = np.ascontiguousarray(rows[f"c{index}"])
            if pa.types.is_timestamp(kind) and not bool((are_instants(column) | null).all()):
                raise BadEntryError(
                    int(np.flatnonzero(~(are_instants(column) | null))[0]), damaged(b"", self.schema)
                )
            array = pa.array(column == 1 if pa.types.is_boolean(kind) else column, mask=null)
            arrays.append(array if array.type == kind else array.cast(kind))
        return Read(pa.StructArray.from_arrays(arrays, fields=self._fields))

    def write(self, column: Any, stored: Any) -> list[bytes]:
        column = self._whole(column)
        rows = np.zeros(len(column), dtype=self._layout)
        rows["header"] = self.code
        for index, kind in enumerate(self._types):
            child = column.field(index)
            if child.null_count:
                null = child.is_null().to_numpy(zero_copy_only=False)
                rows["nulls"] |= null.astype("<u2") << np.uint16(index)
                child = pc.fill_null(child, pa.scalar(0, pa.int64()).cast(kind))
            if pa.types.is_timestamp(kind):
                child = child.cast(pa.int64())
                if not bool(are_instants(child.to_numpy()).all()):
                    raise UsageError(
                        f"{self.where}: value.{self._fields[index].name} holds instants outside of the years 1 to 9999: "
                        "correct them"
                    )
            rows[f"c{index}"] = child.to_numpy(zero_copy_only=False)
        raw, width = rows.tobytes(), self._layout.itemsize
        return [raw[at : at + width] for at in range(0, len(raw), width)]
