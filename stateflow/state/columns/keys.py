"""The full keys of a columnar state's entries, in bulk; `format/encoding.py` documents the bytes.

[key group][state id][key][namespace]                 one entry per key
[key group][state id][key][namespace][by]             several per key, in the order of `by`
[key group][state id][time][key][namespace][by]       timed: what is due is a range of each key group
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.errors import UsageError
from stateflow.format.encoding import EMPTY_NAMESPACE
from stateflow.format.instants import micros_since_epoch
from stateflow.format.records import StateSchema
from stateflow.state.columns.layout import TIME
from stateflow.state.columns.order import inverse, order_of, sort_words, taken, tied_rows
from stateflow.state.keys.arrow_bytes import Array
from stateflow.state.keys.arrow_types import ARROW, INSTANT, wide
from stateflow.state.keys.columns import encode_columns, key_column, lengthened, of_state
from stateflow.state.keys.hashing import key_groups_of
from stateflow.state.keys.parts import KeyParts

Key = Sequence[tuple[str, str]]
"""Names and types of a key's columns."""


@dataclass(frozen=True)
class SharedKeys:
    """The keys of entries that several states have under the same keys and `by`, sorted."""

    full: Any
    """As an Arrow array of large binaries, of one of the states."""
    order: Array | None
    """The order that sorts the given keys; None if they are sorted."""

    def of(self, state_id: int, chosen: Array | None) -> list[bytes]:
        """Those of a state; `chosen` is a mask of them."""
        return of_state(self.full if chosen is None else self.full.filter(pa.array(chosen)), state_id)


class EntryKeys:
    """Turns columns into full keys of one state, and full keys into columns."""

    def __init__(
        self, key: Key, schema: StateSchema, max_parallelism: int, where: str, *, is_wide: bool = False
    ) -> None:
        """With `is_wide` the columns that `decode` gives have wide types."""
        self._key = tuple(key)
        self._types = [kind for _, kind in key]
        self._by = schema.by
        self._timed = schema.timed
        self._id = schema.id
        self._max = max_parallelism
        self._where = where
        types = {kind: wide(ARROW[kind]) if is_wide else ARROW[kind] for kind in ARROW}
        fields = [pa.field(name, types[kind]) for name, kind in key]
        if schema.timed:
            fields.append(pa.field(TIME, INSTANT))
        fields += [pa.field(name, types[kind]) for name, kind in schema.by]
        self.schema = pa.schema(fields)
        """Of the columns that `decode` gives."""

    def parts(self, keys: Any, by: Any, at: Any) -> list[Any]:
        """The columns of keys, times and `by`, checked: one array each."""
        parts = self._columns(keys, self._key, "the key")
        count = len(parts[0])
        if self._timed:
            parts.append(self._times(at, count))
        elif at is not None:
            raise UsageError(f"{self._where}: the state is not timed, but was given `at`: leave it out")
        if self._by:
            if by is None:
                names = ", ".join(name for name, _ in self._by)
                raise UsageError(f"{self._where}: an entry is one of a key and {names}: give `by`")
            parts += self._columns(by, self._by, "`by`")
        elif by is not None:
            raise UsageError(
                f"{self._where}: the state has no `by` columns, but was given some: leave them out"
            )
        for part in parts:
            if len(part) != count:
                raise UsageError(
                    f"{self._where}: was given {count} keys, and {len(part)} of what goes with them"
                )
        return parts

    def prefixes(self, keys: Any, at: Any) -> list[bytes]:
        """The bytes with which all entries of a key begin, in the order of the keys."""
        parts = self._columns(keys, self._key, "the key")
        if self._timed:
            if at is None:
                raise UsageError(
                    f"{self._where}: a timed state is ordered by time before the key: give `at`, or keep an index by key in "
                    "another state"
                )
            parts.append(self._times(at, len(parts[0])))
        return self._encoded(*self._laid_out(parts))

    def sorted(self, parts: Sequence[Any]) -> tuple[list[bytes], Array | None, bytes | None]:
        """The full keys of the rows of `parts`, sorted; the rows' indices in that order, None if they were sorted; and a key that comes
        twice, if one does."""
        groups, types, columns = self._laid_out(parts)
        words, exact = sort_words(types, columns, groups)
        order = order_of(words)
        if order is not None:
            groups, columns = groups[order], [taken(column, order) for column in columns]
        full = self._encoded(groups, types, columns)
        tied = tied_rows(words, order)
        if tied is None:
            return full, order, None
        places = np.flatnonzero(tied)
        if exact:
            return full, order, full[places[0]]
        full, order = _settled(full, order, places)
        return full, order, next((full[at] for at in places[1:].tolist() if full[at] == full[at - 1]), None)

    def shared(self, keys: Any, owners: Array, by: Any, at: Any) -> SharedKeys:
        """An entry per row of `by`, of the key that `owners` tells; `keys` and `at` have different rows only."""
        parts = self._columns(keys, self._key, "the key")
        if self._timed:
            parts.append(self._times(at, len(parts[0])))
        begins, order, _ = self.sorted(parts)
        places = owners if order is None else inverse(order)[owners]
        types = [kind for _, kind in self._by]
        columns = self._columns(by, self._by, "`by`")
        # What the entries of a key begin with begins no other entry, so that the places of these beginnings sort as they do.
        words, exact = sort_words(types, columns, places)
        order = order_of(words)
        if order is not None:
            places, columns = places[order], [taken(column, order) for column in columns]
        full = lengthened(pa.array(begins, pa.large_binary()).take(pa.array(places)), types, columns)
        tied = None if exact else tied_rows(words, order)
        if tied is not None:
            keys, order = _settled(full.to_pylist(), order, np.flatnonzero(tied))
            full = pa.array(keys, pa.large_binary())
        return SharedKeys(full, order)

    def _laid_out(self, parts: Sequence[Any]) -> tuple[Array, list[str], list[Any]]:
        """Key groups, and the parts in the order of a full key."""
        width = len(self._types)
        key, rest = list(parts[:width]), list(parts[width:])
        groups = key_groups_of(self._types, key, self._max)
        types, columns = list(self._types), key
        if self._timed:
            types, columns = ["int", *types], [rest.pop(0), *columns]
        if rest:
            # The empty namespace is written as the bool False is.
            types += ["bool", *(kind for _, kind in self._by)]
            columns += [np.zeros(len(groups), dtype=bool), *rest]
        return groups, types, columns

    def _encoded(self, groups: Array, types: list[str], columns: list[Any]) -> list[bytes]:
        whole = len(types) > len(self._types) + self._timed
        return encode_columns(types, columns, groups, self._id, b"" if whole else EMPTY_NAMESPACE)

    def decode(self, full: Sequence[bytes]) -> list[Any]:
        """The columns of `schema` of full keys; there is at least one."""
        parts = KeyParts(full, self._where)
        parts.group()
        parts.state_id()
        at = [parts.part("datetime")] if self._timed else []
        columns = [parts.part(kind) for kind in self._types] + at
        parts.namespace()
        columns += [parts.part(kind) for _, kind in self._by]
        parts.end()
        return [
            column if column.type == kind else column.cast(kind)
            for column, kind in zip(columns, self.schema.types, strict=True)
        ]

    def _columns(self, given: Any, wanted: Key, what: str) -> list[Any]:
        columns = list(given.columns) if isinstance(given, (pa.Table, pa.RecordBatch)) else [given]
        if len(columns) != len(wanted):
            raise UsageError(
                f"{self._where}: {what} has {len(wanted)} columns, but {len(columns)} were given"
            )
        arrays = []
        for column, (name, kind) in zip(columns, wanted, strict=True):
            try:
                arrays.append(key_column(kind, column))
            except UsageError as error:
                raise UsageError(f"{self._where}, column {name!r}: {error}") from None
        return arrays

    def _times(self, at: Any, count: int) -> Any:
        """Microseconds since the epoch, from `at`: one time for all entries, or one for each."""
        if at is None:
            raise UsageError(
                f"{self._where}: the state is timed: give `at`, an instant for all entries or one for each"
            )
        if isinstance(at, (int, datetime, np.integer)):
            return np.full(count, micros(at), dtype=np.int64)
        if isinstance(at, np.ndarray) and at.dtype == np.int64:
            return at
        column = at.combine_chunks() if isinstance(at, pa.ChunkedArray) else pa.array(at)
        if pa.types.is_timestamp(column.type):
            column = key_column("datetime", column)
        if column.null_count:
            raise UsageError(
                f"{self._where}: `at` holds {column.null_count} nulls: give every entry its time"
            )
        return column.cast(pa.int64()).to_numpy()


def _settled(full: list[bytes], order: Array | None, places: Array) -> tuple[list[bytes], Array | None]:
    """Sorts the keys at `places` by all of their bytes. So far only a part was compared, and in it these keys agree."""
    again = sorted(places.tolist(), key=full.__getitem__)
    if again == places.tolist():
        return full, order
    order = np.arange(len(full)) if order is None else order
    keys = [full[i] for i in again]
    order[places] = order[again]
    for place, key in zip(places.tolist(), keys, strict=True):
        full[place] = key
    return full, order


def micros(at: int | datetime | np.integer[Any]) -> int:
    """An instant, as a datetime or in microseconds."""
    return micros_since_epoch(at) if isinstance(at, datetime) else int(at)
