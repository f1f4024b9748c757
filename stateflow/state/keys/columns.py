"""Full keys of whole columns at once: the path of columnar operators, where a key may cost 50 ns, not 500."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.errors import UsageError
from stateflow.format.encoding import SIGN, prefix
from stateflow.format.scalars import KEY_TYPES, KEYS
from stateflow.state.keys.arrow_types import ARROW

Array = np.ndarray[Any, Any]

_DAY_SIGN = np.uint32(1 << 31)
_LONG_SIGN = np.uint64(SIGN)
_WORDS: dict[str, tuple[str, ...]] = {scalar.name: scalar.key_words for scalar in KEYS if scalar.key_words}
_ENCODED_FROM: dict[str, pa.DataType] = {
    name: ARROW[name] if name in _WORDS else pa.large_binary() for name in KEY_TYPES
}


def encode_columns(
    types: Sequence[str], columns: Sequence[Any], key_groups: Array, state_id: int, suffix: bytes
) -> list[bytes]:
    if all(name in _WORDS for name in types):
        return _fixed(types, columns, key_groups, state_id, suffix)
    parts = [_part(name, column) for name, column in zip(types, columns, strict=True)]
    heads = {group: prefix(group, state_id) for group in np.unique(key_groups).tolist()}
    groups = key_groups.tolist()
    if len(parts) == 1:
        return [heads[group] + part + suffix for group, part in zip(groups, parts[0], strict=True)]
    join = b"".join
    return [heads[group] + join(row) + suffix for group, *row in zip(groups, *parts, strict=True)]


def _fixed(
    types: Sequence[str], columns: Sequence[Any], key_groups: Array, state_id: int, suffix: bytes
) -> list[bytes]:
    """One structured array whose bytes are all keys, cut to pieces."""
    layout: list[tuple[str, str]] = [("group", ">u2"), ("state", ">u2")]
    values: list[Array] = []
    for name, column in zip(types, columns, strict=True):
        for field, value in zip(_WORDS[name], _flipped(name, column), strict=True):
            layout.append((f"part{len(values)}", field))
            values.append(value)
    layout.extend((f"suffix{index}", "u1") for index in range(len(suffix)))
    rows = np.empty(len(key_groups), dtype=layout)
    rows["group"], rows["state"] = key_groups, state_id
    for index, value in enumerate(values):
        rows[f"part{index}"] = value
    for index, byte in enumerate(suffix):
        rows[f"suffix{index}"] = byte
    raw, width = rows.tobytes(), rows.dtype.itemsize
    return [raw[start : start + width] for start in range(0, len(raw), width)]


def _part(name: str, column: Any) -> list[bytes]:
    """One part of every row, encoded."""
    if name not in _WORDS:
        return _escaped(name, column)
    rows = np.empty(len(column), dtype=[(f"f{i}", field) for i, field in enumerate(_WORDS[name])])
    for index, value in enumerate(_flipped(name, column)):
        rows[f"f{index}"] = value
    raw, width = rows.tobytes(), rows.dtype.itemsize
    return [raw[start : start + width] for start in range(0, len(raw), width)]


def _flipped(name: str, column: Any) -> tuple[Array, ...]:
    """The unsigned words of a fixed-width part."""
    if name == "int" and isinstance(column, np.ndarray) and column.dtype == np.int64:
        return (column.view(np.uint64) ^ _LONG_SIGN,)
    array = _arrow(name, column)
    if name == "bool":
        return (array.cast(pa.uint8()).to_numpy(),)
    if name == "date":
        return (array.cast(pa.int32()).to_numpy().view(np.uint32) ^ _DAY_SIGN,)
    if name == "decimal":
        # An empty array may have no buffer, or one of any size.
        raw = array.buffers()[1] if len(array) else b""
        words = np.frombuffer(raw, dtype="<u8", count=2 * len(array), offset=16 * array.offset if raw else 0)
        words = words.reshape(-1, 2)
        return words[:, 1] ^ _LONG_SIGN, words[:, 0]
    return (array.cast(pa.int64()).to_numpy().view(np.uint64) ^ _LONG_SIGN,)


def _escaped(name: str, column: Any) -> list[bytes]:
    array = _arrow(name, column)
    if not len(array):
        return []
    _, offsets_buffer, data = array.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype="<i8")[
        array.offset : array.offset + len(array) + 1
    ].tolist()
    raw = data.to_pybytes() if data is not None else b""
    if raw.find(b"\0", offsets[0], offsets[-1]) < 0:
        return [raw[start:end] + b"\0\1" for start, end in pairwise(offsets)]
    return [raw[start:end].replace(b"\0", b"\0\xff") + b"\0\1" for start, end in pairwise(offsets)]


def key_column(name: str, column: Any) -> Any:
    """One array of the key type's own Arrow type, without nulls."""
    return _arrow(name, column, ARROW[name])


def _arrow(name: str, column: Any, wanted: pa.DataType | None = None) -> Any:
    """One array of the type that the encoding starts from, without nulls."""
    wanted = wanted or _ENCODED_FROM[name]
    try:
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        elif not isinstance(column, pa.Array):
            column = pa.array(column, type=pa.string() if name == "str" else None, from_pandas=True)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if pa.types.is_timestamp(column.type) and column.type.tz is None:
            raise UsageError(
                "a key column of timestamps has no time zone, so it names no instants: give it one"
            )
        if name == "str" and not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            raise pa.ArrowInvalid(f"it holds {column.type}")
        if column.type != wanted:
            column = pc.cast(column, wanted)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise UsageError(f"a key column cannot be read as {name}: {error}") from None
    if column.null_count:
        raise UsageError(f"a key column holds {column.null_count} nulls: drop such rows or give them a value")
    return column
