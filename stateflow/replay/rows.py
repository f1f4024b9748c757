"""Two tables of rows, compared whatever their order: which rows are gone, new, or different under the same key. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.state.values.arrow.digits import cast_by_digits, with_scalars
from stateflow.state.values.plain import jsonable

GONE, NEW, DIFFERENT = "gone", "new", "different"
_NULL, _SEPARATOR = "\x00", "\x1f"
_ESCAPED = {"\\": "\\\\", _NULL: "\\0", _SEPARATOR: "\\1"}
"""In texts of rows, so that no value looks like a null, or like two values."""
_AS_JSON = (
    pa.types.is_nested,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
    pa.types.is_dictionary,
)
"""Of values that Arrow does not write as text."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """One row that is not as it was."""

    kind: str
    """gone, new, different"""
    key: dict[str, Any]
    """By the names of the key columns; empty where the rows have no key."""
    before: dict[str, Any] | None
    after: dict[str, Any] | None


@dataclass(frozen=True)
class RowChanges:
    """How rows differ from those that were."""

    before: int = 0
    """Rows that there were."""
    after: int = 0
    changes: tuple[RowChange, ...] = ()
    columns_gone: tuple[str, ...] = ()
    columns_new: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    """By kind."""
    shortened: int = 0
    """Rows that are as they were but for values in columns that are gone."""
    retyped: tuple[str, ...] = ()
    """Columns whose old type cannot hold the new values, each with both types."""

    @property
    def changed(self) -> int:
        return sum(self.counts.values())


def compared(before: pa.Table, after: pa.Table, key: Sequence[str]) -> RowChanges:
    """Compares the columns that both have, with the types that `before` has where these hold the new values. Rows that are there twice
    count twice."""
    ours = {name.lower(): name for name in after.column_names}
    theirs = {name.lower(): name for name in before.column_names}
    common = [name for lower, name in ours.items() if lower in theirs]
    pairs = {name: _alike(before[theirs[name.lower()]], after[name]) for name in common}
    old = pa.table({name: pair.before for name, pair in pairs.items()})
    new = pa.table({name: pair.after for name, pair in pairs.items()})
    old_extra, new_extra = _surplus(_texts(old), _texts(new))
    changes = tuple(
        _paired(old.take(pa.array(old_extra)), new.take(pa.array(new_extra)), _known(key, common))
    )
    counts = {kind: n for kind in (GONE, NEW, DIFFERENT) if (n := sum(c.kind == kind for c in changes))}
    gone = [name for lower, name in theirs.items() if lower not in ours and _has_values(before[name])]
    return RowChanges(
        before.num_rows,
        after.num_rows,
        changes,
        tuple(gone),
        tuple(name for lower, name in ours.items() if lower not in theirs),
        counts,
        _with_values(before.select(gone), old_extra),
        tuple(
            f"{name} from {before[theirs[name.lower()]].type} to {after[name].type}"
            for name, pair in pairs.items()
            if pair.retyped
        ),
    )


def _with_values(columns: pa.Table, besides: np.ndarray[Any, Any]) -> int:
    """How many rows have a value in any of the columns, besides those of some places."""
    has = np.zeros(columns.num_rows, dtype=bool)
    for column in columns.columns:
        has |= column.is_valid().to_numpy()
    has[besides] = False
    return int(has.sum())


def _has_values(column: pa.ChunkedArray) -> bool:
    """A column that the table has and the rows never had is null in all of them."""
    return bool(column.null_count < len(column))


def _known(key: Sequence[str], columns: Sequence[str]) -> list[str]:
    names = {name.lower(): name for name in columns}
    found = [names[name.lower()] for name in key if name.lower() in names]
    return found if len(found) == len(key) else []


class _Pair(NamedTuple):
    """A column of both sides."""

    before: pa.ChunkedArray
    after: pa.ChunkedArray
    retyped: bool = False
    """Whether the type that the target has does not hold the new values."""


def _alike(before: pa.ChunkedArray, after: pa.ChunkedArray) -> _Pair:
    """Both with one type: as the target would have stored the new values, unless that loses something of them."""
    if before.type.equals(after.type):
        return _Pair(before, after)
    if (stored := _as(before.type, after)) is not None:
        return _Pair(before, stored)
    widened = _as(after.type, before)
    return _Pair(before if widened is None else widened, after, retyped=True)


def _as(kind: pa.DataType, column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """The column with another type; None where that loses something. Arrow's check for losses knows none of booleans, decimals and texts,
    and Arrow drops the fields of a struct that the other type does not have."""
    if column.null_count == len(column):
        return pa.chunked_array([pa.nulls(len(column), kind)], kind)
    if _fields(column.type) != _fields(kind):
        return None
    try:
        cast = cast_by_digits(column, kind)
        # A float is stored as the nearest one of its type, whatever code has made it, and wherever in a value it is.
        rounded = with_scalars(
            column.type, kind, lambda own, other: other if _are_floats(own, other) else own
        )
        given, back = cast_by_digits(column, rounded), cast_by_digits(cast, rounded)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    # NaN is unequal to itself, and has a text.
    return cast if back.equals(given) or _text(back).equals(_text(given)) else None


def _are_floats(*kinds: pa.DataType) -> bool:
    return all(map(pa.types.is_floating, kinds))


def _fields(kind: pa.DataType) -> Any:
    """The names of the fields of structs inside a type, as deep as they go."""
    if pa.types.is_map(kind):
        return [_fields(kind.key_type), _fields(kind.item_type)]
    inside = [kind.field(place) for place in range(kind.num_fields)]
    if pa.types.is_struct(kind):
        return sorted((field.name, _fields(field.type)) for field in inside)
    return [_fields(field.type) for field in inside]


def _texts(table: pa.Table) -> pa.Array:
    """Each row as a text that is equal for equal rows alone."""
    if not table.num_columns:
        return pa.array([""] * table.num_rows, pa.large_string())
    columns = [_text(table[name]) for name in table.column_names]
    return pc.binary_join_element_wise(*columns, pa.scalar(_SEPARATOR, pa.large_string()))


def _text(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks) if whole.num_chunks else pa.array([], whole.type)
    if any(is_kind(whole.type) for is_kind in _AS_JSON):
        texts = pa.array(
            [None if value is None else _json(_with_dicts(value)) for value in whole.to_pylist()],
            pa.large_string(),
        )
    else:
        texts = whole.cast(pa.large_string())
    if pa.types.is_string(whole.type) or pa.types.is_large_string(whole.type):
        for mark, written in _ESCAPED.items():
            texts = pc.replace_substring(texts, mark, written)
    return pc.fill_null(texts, pa.scalar(_NULL, pa.large_string()))


def _json(value: Any) -> str:
    return json.dumps(jsonable(value), sort_keys=True, default=str)


def _with_dicts(value: Any) -> Any:
    """The value with its maps as dicts, whose entries have no order. Arrow gives lists of pairs, which stay, sorted, where no dict can have
    such keys."""
    if isinstance(value, dict):
        return {name: _with_dicts(each) for name, each in value.items()}
    if not isinstance(value, list):
        return value
    if not value or not isinstance(value[0], tuple):
        return [_with_dicts(each) for each in value]
    pairs = [(_with_dicts(key), _with_dicts(each)) for key, each in value]
    try:
        return dict(pairs)
    except TypeError:
        return sorted(pairs, key=_json)


def _surplus(before: pa.Array, after: pa.Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The places of the rows of each side that the other one lacks."""
    codes = pa.chunked_array([before, after], pa.large_string()).combine_chunks()
    if isinstance(codes, pa.ChunkedArray):
        codes = pa.concat_arrays(codes.chunks)
    numbers = codes.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    old, new = numbers[: len(before)], numbers[len(before) :]
    size = int(numbers.max()) + 1 if len(numbers) else 0
    old_count, new_count = np.bincount(old, minlength=size), np.bincount(new, minlength=size)
    return _last(old, old_count - new_count), _last(new, new_count - old_count)


def _last(codes: np.ndarray[Any, Any], surplus: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Of each code as many places as its surplus says, the last ones."""
    places = np.flatnonzero(surplus[codes] > 0) if len(codes) else np.array([], dtype=np.int64)
    if not len(places):
        return places
    own = codes[places]
    order = np.argsort(own, kind="stable")[::-1]
    ranked = own[order]
    starts = np.r_[0, np.flatnonzero(np.diff(ranked)) + 1]
    rank = np.arange(len(ranked)) - np.repeat(starts, np.diff(np.r_[starts, len(ranked)]))
    return np.sort(places[order][rank < surplus[ranked]])


def _paired(old: pa.Table, new: pa.Table, key: Sequence[str]) -> Iterator[RowChange]:
    """A row that is gone and a new one of the same key are one row that is different."""
    waiting: dict[str, list[dict[str, Any]]] = {}
    for row in map(_with_dicts, old.to_pylist()):
        waiting.setdefault(_key_text(row, key), []).append(row)
    rest: list[RowChange] = []
    for row in map(_with_dicts, new.to_pylist()):
        partners = waiting.get(_key_text(row, key)) if key else None
        named = {name: row[name] for name in key}
        if partners:
            rest.append(RowChange(DIFFERENT, named, partners.pop(0), row))
        else:
            rest.append(RowChange(NEW, named, None, row))
    for rows in waiting.values():
        yield from (RowChange(GONE, {name: row[name] for name in key}, row, None) for row in rows)
    yield from rest


def _key_text(row: dict[str, Any], key: Sequence[str]) -> str:
    return _json([row[name] for name in key]) if key else ""
