"""State as columns: one entry per key that holds a value for each named column, read and written in bulk.

[header 0x0B][null mask, u16 little-endian][the columns, fixed widths little-endian]     all columns fixed
[header 0x0B][MessagePack array]                                                          otherwise
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.errors import UsageError
from stateflow.format.keygroups import SEED, xxhash64
from stateflow.state.backends.base import Backend
from stateflow.state.keys.codec import KeyCodec

_HEADER = 0x0B
_FIXED: dict[Any, tuple[str, Any]] = {
    int: ("<i8", pa.int64()),
    float: ("<f8", pa.float64()),
    bool: ("u1", pa.bool_()),
    datetime: ("<i8", pa.timestamp("us", "UTC")),
}
_OTHER: dict[Any, Any] = {str: pa.string(), bytes: pa.binary()}
_MOST_COLUMNS = 16


class ColumnState:
    """What `process_arrow` reads and writes; keys are an Arrow array, or a table for composite keys."""

    def __init__(
        self, columns: Mapping[str, Any], codec: KeyCodec, state_id: int, max_parallelism: int, where: str
    ) -> None:
        if not columns or len(columns) > _MOST_COLUMNS:
            raise UsageError(f"{where}: state has 1 to {_MOST_COLUMNS} columns, not {len(columns)}")
        for name, hint in columns.items():
            if hint not in _FIXED and hint not in _OTHER:
                raise UsageError(
                    f"{where}: state column {name!r} is {hint!r}: use int, float, bool, datetime, str or bytes"
                )
        self._columns = dict(columns)
        self._codec = codec
        self._id = state_id
        self._max = max_parallelism
        self._where = where
        self._fixed = all(hint in _FIXED for hint in columns.values())
        self._layout = np.dtype(
            [
                ("header", "u1"),
                ("nulls", "<u2"),
                *((f"c{i}", _FIXED[h][0]) for i, h in enumerate(columns.values()) if h in _FIXED),
            ]
        )
        self.schema = pa.schema(
            [(n, (_FIXED[h][1] if h in _FIXED else _OTHER[h])) for n, h in columns.items()]
        )
        self.backend: Backend | None = None
        self.changed = False
        self.keys = 0
        self._last: tuple[list[Any], list[bytes], Any] | None = None

    def get(self, keys: Any) -> pa.Table:
        """The state of each key, in their order; null where there is none."""
        full, order = self._full(self._parts(keys))
        assert self.backend is not None
        found = self.backend.get_many(full)
        self.keys += len(full)
        table = self._decoded(found)
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        return table.take(pa.array(back))

    def put(self, keys: Any, values: pa.Table) -> None:
        """Sets every key's columns; a key must not come twice."""
        full, order = self._full(self._parts(keys))
        raw = self._encoded(values.take(pa.array(order)) if len(order) else values)
        assert self.backend is not None
        self.backend.write(zip(full, raw, strict=True))
        self.changed = True

    def delete(self, keys: Any) -> None:
        full, _ = self._full(self._parts(keys))
        assert self.backend is not None
        self.backend.write((key, None) for key in full)
        self.changed = True

    def _parts(self, keys: Any) -> list[Any]:
        columns = list(keys.columns) if isinstance(keys, (pa.Table, pa.RecordBatch)) else [keys]
        if len(columns) != len(self._codec.types):
            raise UsageError(
                f"{self._where}: the key has {len(self._codec.types)} columns, but {len(columns)} were given"
            )
        return [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns]

    def _full(self, parts: Sequence[Any]) -> tuple[list[bytes], Any]:
        """Full keys, sorted, and the order in which the given ones are sorted."""
        last = self._last
        if last is not None and len(last[0]) == len(parts) and all(map(pa.Array.equals, last[0], parts)):
            return last[1], last[2]
        full, order = self._sorted(parts)
        # What was read is written back next, nearly always under the same keys.
        self._last = (list(parts), full, order)
        return full, order

    def _sorted(self, parts: Sequence[Any]) -> tuple[list[bytes], Any]:
        if self._codec.types == ("int",):
            values = parts[0].to_numpy(zero_copy_only=False)
            groups = hash_longs(values) % self._max
            order = np.lexsort((values, groups))
            return self._codec.encode_many([values[order]], groups[order], self._id), order
        columns = [part.to_pylist() for part in parts]
        keys = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        groups = np.array([xxhash64(key) % self._max for key in keys], dtype=np.int64)
        full = self._codec.encode_many(parts, groups, self._id)
        by_key = sorted(range(len(full)), key=full.__getitem__)
        return [full[i] for i in by_key], np.array(by_key, dtype=np.int64)

    def _decoded(self, found: Sequence[bytes | None]) -> pa.Table:
        if not self._fixed:
            rows = [
                msgspec.msgpack.decode(raw[1:]) if raw is not None else [None] * len(self._columns)
                for raw in found
            ]
            columns: list[Any] = list(zip(*rows, strict=True)) if rows else [() for _ in self._columns]
            return pa.table(
                [pa.array(c, t) for c, t in zip(columns, self.schema.types, strict=True)], schema=self.schema
            )
        missing = b"\x0b\xff\xff" + bytes(self._layout.itemsize - 3)
        rows_ = np.frombuffer(
            b"".join([raw if raw is not None else missing for raw in found]), dtype=self._layout
        )
        arrays = []
        for i, (hint, kind) in enumerate(zip(self._columns.values(), self.schema.types, strict=True)):
            null = (rows_["nulls"] >> i) & 1 == 1
            values = np.ascontiguousarray(rows_[f"c{i}"])
            if hint is bool:
                values = values.astype(bool)
            array = pa.array(values, mask=null)
            arrays.append(array.cast(kind) if array.type != kind else array)
        return pa.table(arrays, schema=self.schema)

    def _encoded(self, values: pa.Table) -> list[bytes]:
        try:
            columns = [
                _whole(values.column(name)).cast(kind)
                for name, kind in zip(self._columns, self.schema.types, strict=True)
            ]
        except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UsageError(
                f"{self._where}: put() was given a table that does not fit the state's columns: {error}"
            ) from error
        if not self._fixed:
            lists = [column.to_pylist() for column in columns]
            return [bytes((_HEADER,)) + msgspec.msgpack.encode(row) for row in zip(*lists, strict=True)]
        rows = np.zeros(len(values), dtype=self._layout)
        rows["header"] = _HEADER
        for i, (column, hint) in enumerate(zip(columns, self._columns.values(), strict=True)):
            if column.null_count:
                rows["nulls"] |= (
                    pc.is_null(column).to_numpy(zero_copy_only=False).astype("<u2") << i
                ).astype("<u2")
                column = pc.fill_null(column, pa.scalar(0).cast(column.type))
            if hint is datetime:
                column = column.cast(pa.int64())
            rows[f"c{i}"] = column.to_numpy(zero_copy_only=False)
        raw, width = rows.tobytes(), self._layout.itemsize
        return [raw[at : at + width] for at in range(0, len(raw), width)]


def _whole(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def hash_longs(values: Any) -> Any:
    """Spark's xxhash64 of a column of longs."""
    with np.errstate(over="ignore"):
        p1, p2, p3 = (
            np.uint64(0x9E3779B185EBCA87),
            np.uint64(0xC2B2AE3D27D4EB4F),
            np.uint64(0x165667B19E3779F9),
        )
        p4, p5 = np.uint64(0x85EBCA77C2B2AE63), np.uint64(0x27D4EB2F165667C5)
        word = values.astype(np.int64).view(np.uint64) * p2
        word = ((word << np.uint64(31)) | (word >> np.uint64(33))) * p1
        mixed = (np.uint64(SEED) + p5 + np.uint64(8)) ^ word
        mixed = ((mixed << np.uint64(27)) | (mixed >> np.uint64(37))) * p1 + p4
        mixed ^= mixed >> np.uint64(33)
        mixed *= p2
        mixed ^= mixed >> np.uint64(29)
        mixed *= p3
        mixed ^= mixed >> np.uint64(32)
        return mixed.view(np.int64)
