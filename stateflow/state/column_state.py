"""State as columns: one entry per key, read and written in bulk; `column_values` documents the bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from stateflow.errors import UsageError
from stateflow.format.keygroups import key_group
from stateflow.format.scalars import BY_TYPE, FIXED_COLUMNS
from stateflow.state.backends.base import Backend
from stateflow.state.keys.arrow_types import ARROW
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.keys.hashing import key_groups_of
from stateflow.state.values.column_values import FixedLayout
from stateflow.state.values.serializers import RAW_CODE

_MOST_COLUMNS = 16


class ColumnState:
    """What `process_arrow` reads and writes; keys are an Arrow array, or a table for composite keys."""

    def __init__(
        self, columns: Mapping[str, Any], codec: KeyCodec, state_id: int, max_parallelism: int, where: str
    ) -> None:
        if not columns or len(columns) > _MOST_COLUMNS:
            raise UsageError(f"{where}: state has 1 to {_MOST_COLUMNS} columns, not {len(columns)}")
        types = []
        for name, hint in columns.items():
            scalar = BY_TYPE.get(hint)
            if scalar is None or not scalar.is_column:
                raise UsageError(
                    f"{where}: state column {name!r} is {hint!r}: use int, float, bool, datetime, str or bytes"
                )
            types.append(scalar.name)
        self._codec = codec
        self._id = state_id
        self._max = max_parallelism
        self._where = where
        self._layout = FixedLayout(types) if all(name in FIXED_COLUMNS for name in types) else None
        self.schema = pa.schema([(column, ARROW[name]) for column, name in zip(columns, types, strict=True)])
        self.backend: Backend | None = None
        self.changed = False
        self.keys = 0
        self._last: tuple[list[Any], list[bytes], Any] | None = None

    def get(self, keys: Any) -> pa.Table:
        """The state of each key, in their order; null where there is none."""
        full, order = self._full(self._parts(keys))
        assert self.backend is not None
        table = self._decoded(self.backend.get_many(full))
        self.keys += len(full)
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
            groups = key_groups_of(("int",), parts, self._max)
            order = np.lexsort((values, groups))
            return self._codec.encode_many([values[order]], groups[order], self._id), order
        columns = [part.to_pylist() for part in parts]
        keys = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        groups = np.array([key_group(key, self._max) for key in keys], dtype=np.int64)
        full = self._codec.encode_many(parts, groups, self._id)
        by_key = sorted(range(len(full)), key=full.__getitem__)
        return [full[i] for i in by_key], np.array(by_key, dtype=np.int64)

    def _decoded(self, values: Sequence[bytes | None]) -> pa.Table:
        if self._layout is not None:
            missing = bytes((RAW_CODE,)) + b"\xff\xff" + bytes(self._layout.rows.itemsize - 3)
            joined = b"".join([raw if raw is not None else missing for raw in values])
            rows = np.frombuffer(joined, dtype=self._layout.rows)
            return pa.table(self._layout.read(rows), schema=self.schema)
        width = len(self.schema)
        lists = [msgspec.msgpack.decode(raw[1:]) if raw is not None else [None] * width for raw in values]
        columns: list[Any] = list(zip(*lists, strict=True)) if lists else [()] * width
        return pa.table(
            [pa.array(c, t) for c, t in zip(columns, self.schema.types, strict=True)], schema=self.schema
        )

    def _encoded(self, values: pa.Table) -> list[bytes]:
        try:
            columns = [
                _whole(values.column(name)).cast(kind)
                for name, kind in zip(self.schema.names, self.schema.types, strict=True)
            ]
        except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UsageError(
                f"{self._where}: put() was given a table that does not fit the state's columns: {error}"
            ) from error
        if self._layout is not None:
            return self._layout.write(columns, len(values))
        lists = [column.to_pylist() for column in columns]
        return [bytes((RAW_CODE,)) + msgspec.msgpack.encode(row) for row in zip(*lists, strict=True)]


def _whole(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
