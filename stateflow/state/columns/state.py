"""State as columns: entries read and written in bulk; `column_values` documents the bytes of values, `keys` those of keys."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import chain, islice, repeat
from operator import is_
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.errors import CorruptError, StateTypeError, UsageError
from stateflow.format.encoding import GROUP_WIDTH, split, split_timer, state_range, timer_range
from stateflow.format.records import StateSchema
from stateflow.state.backends.base import Backend
from stateflow.state.columns.keys import EntryKeys, Key, SharedKeys, micros
from stateflow.state.columns.order import inverse, taken
from stateflow.state.expiry.index import Expiry
from stateflow.state.values.arrow.column_values import ColumnBytes, EvolvedColumnBytes
from stateflow.state.values.arrow.fitting import fitted
from stateflow.state.values.arrow.packed_instants import refuse_far
from stateflow.state.values.expiries import has_expired, live, plain, plain_value, stamped

BLOCK = 100_000
"""Entries in one table of due entries."""
BLOCK_BYTES = 128 << 20
"""With this many bytes of values such a table is full, however few entries it has."""
NOTHING = 1 << 63
"""Later than every instant: no entry is known to be there."""
UNKNOWN = -NOTHING
_is_none = partial(is_, None)


class ColumnState:
    """The state that columnar operators read and write. Keys are an Arrow array, or a table of the key's columns; `by`
    likewise."""

    def __init__(
        self,
        key: Key,
        schema: StateSchema,
        max_parallelism: int,
        where: str,
        expiry: Expiry | None = None,
        *,
        is_wide: bool = False,
    ) -> None:
        """With `is_wide` the tables that it gives have wide types."""
        self.schema: pa.Schema
        """Of the value columns."""
        self._where = where
        self._keys = EntryKeys(key, schema, max_parallelism, where, is_wide=is_wide)
        self._values = (
            EvolvedColumnBytes(schema, is_wide=is_wide)
            if schema.evolved
            else ColumnBytes(schema.value, is_wide=is_wide)
        )
        self.schema = self._values.schema
        self.entry_schema = pa.schema([*self._keys.schema, *self.schema])
        """Of the tables that `entries` and `due` give."""
        self.timed = schema.timed
        self._by = bool(schema.by)
        self._id = schema.id
        self._backend: Backend | None = None
        self._groups = range(0)
        self._earliest = NOTHING
        """No entry is earlier than this; perhaps none is as early."""
        self._certain = True
        """Whether there is an entry at `_earliest`, or none at all if it is NOTHING."""
        self.changed = False
        self.keys = 0
        self._last: tuple[list[Any], list[bytes], Any, bytes | None] | None = None
        self._expiry = expiry if expiry is not None and expiry.ttl is not None else None
        self._had_ttl = expiry is not None and expiry.ttl is None
        """Whether entries may have an expiry that counts no more."""
        self._found: tuple[list[bytes], Sequence[bytes | None]] | None = None
        """With a ttl: the last keys that were looked up, and what was stored."""

    def attach(
        self, backend: Backend, groups: range, earliest: int = UNKNOWN, *, empty: bool = False
    ) -> None:
        """Turns to another shard: it has these key groups, and no entry of a time before `earliest`, or none at all."""
        self._backend, self._groups = backend, groups
        self._earliest, self._certain = (NOTHING, True) if empty else (earliest, False)
        self.changed = False
        self._found = None

    def get(self, keys: Any, *, by: Any = None, at: Any = None) -> pa.Table:
        """The values of each key, in their order; null where there are none."""
        full, order = self._full(self._keys.parts(keys, by, at))
        table = self._values_of(full, self._look_up(full))
        self.keys += len(full)
        return table if order is None else table.take(pa.array(inverse(order)))

    def has(self, keys: Any, *, by: Any = None, at: Any = None) -> Any:
        """Whether there is an entry of each key: a boolean array in their order."""
        full, order = self._full(self._keys.parts(keys, by, at))
        there = np.array([raw is not None for raw in self._look_up(full)], dtype=bool)
        self.keys += len(full)
        return pa.array(there if order is None else there[inverse(order)])

    def put(self, keys: Any, values: Any = None, *, by: Any = None, at: Any = None) -> None:
        """Sets the columns of each key's entry. The same entry must not come twice."""
        parts = self._keys.parts(keys, by, at)
        full, order = self._full(parts)
        if self._last is not None and (twice := self._last[3]) is not None:
            raise UsageError(
                f"{self._where}: put() was given the entry of {self._named(twice)} twice in one table, and would keep one of them: give "
                "each entry once"
            )
        if values is None and not self.schema.names:
            values = pa.table({}).slice(0, 0)
        columns = self._fitting(values, len(full))
        if order is not None:
            columns = [taken(column, order) for column in columns]
        self._put(full, self._values.write(columns, len(full)))

    def shared(self, keys: Any, owners: Any, *, by: Any, at: Any = None) -> SharedKeys:
        """Entries that several states share apart from the state's id. `owners` has the key of each row of `by`. No key comes
        twice, and neither does an entry."""
        return self._keys.shared(keys, owners, by, at)

    def of_shared(self, shared: SharedKeys, chosen: Any) -> list[bytes]:
        """The full keys of this state's entries, sorted; of those that a mask chooses."""
        return shared.of(self._id, chosen)

    def lacks(self, full: list[bytes], column: str) -> Any:
        """A mask of the full keys: those without a value in a column, or without an entry."""
        raws = self._look_up(full)
        self.keys += len(full)
        missing = np.fromiter(map(_is_none, raws), dtype=bool, count=len(full))
        if not bool(missing.all()):
            there = [key for key, raw in zip(full, raws, strict=True) if raw is not None]
            values = self._values_of(there, [raw for raw in raws if raw is not None])[column]
            missing[~missing] = values.is_null().to_numpy()
        return missing

    def put_shared(self, full: list[bytes], value: pa.Table) -> None:
        """Sets the columns of the entries of full keys, which are sorted, to the one row of `value`."""
        self._put(full, self._values.write(self._fitting(value, 1), 1) * len(full))

    def _put(self, full: list[bytes], raw: list[bytes]) -> None:
        self._write(full, raw)
        self.changed = True
        if self.timed and full:
            earliest = min(self._time_of(full[0]), *self._first_times(full))
            if earliest < self._earliest:
                self._earliest, self._certain = earliest, True

    def delete(self, keys: Any, *, by: Any = None, at: Any = None) -> None:
        """Deletes each key's entry; of several entries per key without `by` all of them."""
        self._found = None
        if self._by and by is None:
            begins = sorted(set(self._keys.prefixes(keys, at)))
            self._check_groups(begins)
            gone = [key for entries in self._opened.scan_many(begins) for key, _ in entries]
            self._opened.write(zip(gone, repeat(None)))
        else:
            full, _ = self._full(self._keys.parts(keys, by, at))
            self._opened.write(zip(full, repeat(None)))
        self.changed = True
        self._certain = False

    def entries(self, keys: Any, *, at: Any = None, row: str | None = None) -> pa.Table:
        """All entries of the keys, key after key in the order given, those of a key in the order of `by`: the key's columns,
        `by`, the values. A column `row`, if it is named, tells which of the keys an entry is of."""
        given = self._keys.prefixes(keys, at)
        begins = sorted(set(given))
        self._check_groups(begins)
        found: list[tuple[bytes, bytes]] = []
        counts = np.empty(len(begins), dtype=np.int64)
        for index, entries in enumerate(self._opened.scan_many(begins)):
            own_entries = self._unexpired(entries)
            counts[index] = len(own_entries)
            found += own_entries
        # Nothing may be written while the backend scans.
        found = self._read(found)
        place = dict(zip(begins, range(len(begins)), strict=True))
        own = np.fromiter(map(place.__getitem__, given), dtype=np.int64, count=len(given))
        rows, numbers = _spans(np.cumsum(counts) - counts, counts, own)
        table = self._entries(found).take(pa.array(rows))
        self.keys += len(begins)
        return table if row is None else table.append_column(row, pa.array(numbers))

    def due(self, up_to: int | datetime) -> Iterator[pa.Table]:
        """The entries of times up to and including an instant, as tables of at most `BLOCK` rows, or fewer where these are large:
        key group after key group, in each in the order of time. What is written meanwhile is not seen."""
        return (table for table, _ in self.due_settled(up_to))

    def due_settled(self, up_to: int | datetime) -> Iterator[tuple[pa.Table, int]]:
        """The tables of `due`. With each comes the number of its first rows whose key groups, and so whose keys, no later table
        has."""
        limit = micros(up_to)
        self._check_timed("due")
        if self._earliest > limit:
            return
        scans = [self._opened.scan(*timer_range(group, self._id, limit)) for group in self._groups]
        found = chain.from_iterable(scans)
        ended = False
        while not ended:
            block, ended = _block(found)
            if block:
                last_group = block[-1][0][:GROUP_WIDTH]
                settled = len(block) if ended else bisect_left(block, (last_group,))
                yield self._entries(block), settled

    def delete_due(self, up_to: int | datetime) -> None:
        """Deletes the entries of times up to and including an instant: ranges, however many entries there are."""
        limit = micros(up_to)
        self._check_timed("delete_due")
        if self._earliest > limit:
            return
        for group in self._groups:
            self._opened.delete_range(*timer_range(group, self._id, limit))
        self.changed = True
        # What is left is later.
        self._earliest, self._certain = min(limit + 1, NOTHING), False

    def next_due(self) -> int | None:
        """The earliest time that an entry has; None when there is no entry."""
        self._check_timed("next_due")
        if not self._certain:
            first = [
                self._time_of(entry[0])
                for group in self._groups
                for entry in islice(self._opened.scan(*state_range(group, self._id)), 1)
            ]
            self._earliest, self._certain = min(first, default=NOTHING), True
        return None if self._earliest == NOTHING else self._earliest

    def _check_timed(self, method: str) -> None:
        if not self.timed:
            raise UsageError(
                f"{self._where}: {method}() is of timed states: declare it with sf.columns(..., timed=True)"
            )

    @property
    def _opened(self) -> Backend:
        assert self._backend is not None
        return self._backend

    def _look_up(self, full: list[bytes]) -> Sequence[bytes | None]:
        raws = self._opened.get_many(full)
        if self._expiry is None:
            return plain(raws) if self._had_ttl else raws
        unexpired = live(raws, self._expiry.clock)[0]
        if self._expiry.on_read:
            renewed = self._renewed([(key, raw) for key, raw in zip(full, unexpired, strict=True) if raw])
            raws = [renewed.get(key, raw) for key, raw in zip(full, raws, strict=True)]
        self._found = full, raws
        return plain(unexpired)

    def _unexpired(self, entries: Sequence[tuple[bytes, bytes]]) -> Sequence[tuple[bytes, bytes]]:
        if self._expiry is None:
            return entries
        clock = self._expiry.clock
        return [(key, raw) for key, raw in entries if not has_expired(raw, clock)]

    def _read(self, entries: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Entries without their expiries, which begin anew when reading renews them."""
        if self._expiry is None and not self._had_ttl:
            return entries
        if self._expiry is not None and self._expiry.on_read:
            self._renewed(entries)
        return [(key, plain_value(raw)) for key, raw in entries]

    def _renewed(self, entries: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
        """Stores live entries that were read with the expiry that they have from now on; gives those that got another."""
        expiry = self._expiry
        assert expiry is not None
        stored = stamped([raw for _, raw in entries], expiry.at) if entries else []
        changed = [(key, new, raw) for (key, raw), new in zip(entries, stored, strict=True) if new != raw]
        if changed:
            expiry.wrote(key for key, _, raw in changed if expiry.is_unnamed(raw))
            changes: list[tuple[bytes, bytes | None]] = [(key, new) for key, new, _ in changed]
            expiry.settle(self._opened, changes)
            self._opened.write(changes)
            self.changed = True
        return {key: new for key, new, _ in changed}

    def _write(self, full: list[bytes], raws: list[bytes]) -> None:
        expiry, found, self._found = self._expiry, self._found, None
        if expiry is None:
            self._opened.write(zip(full, raws, strict=True))
            return
        if found is not None and found[0] is full:
            expiry.wrote(k for k, raw in zip(full, found[1], strict=True) if expiry.is_unnamed(raw))
        else:
            expiry.wrote_over(full)
        changes: list[tuple[bytes, bytes | None]] = list(zip(full, stamped(raws, expiry.at), strict=True))
        expiry.settle(self._opened, changes)
        self._opened.write(changes)

    def _full(self, parts: list[Any]) -> tuple[list[bytes], Any]:
        """Full keys, sorted, and the order that sorts the given ones; None if they are sorted."""
        last = self._last
        if last is None or len(last[0]) != len(parts) or not all(map(_equal, last[0], parts)):
            # What was read is written back next, nearly always under the same keys.
            last = self._last = (list(map(_copied, parts)), *self._keys.sorted(parts))
        self._check_groups(last[1])
        return last[1], last[2]

    def _check_groups(self, full: list[bytes]) -> None:
        """UsageError for a key of another shard: what is put here would never be found, and what is there cannot be read. `full` is
        sorted, and begins with the key groups."""
        for key in (full[0], full[-1]) if full else ():
            if split(key).group not in self._groups:
                raise UsageError(
                    f"{self._where}: {self._named(key)} is no key of this table's rows, and its entries are elsewhere: use the keys of the "
                    "rows, or key the stream by what the state is kept for"
                )

    def _named(self, full: bytes) -> str:
        try:
            return ", ".join(repr(column[0].as_py()) for column in self._keys.decode([full]))
        except CorruptError:  # the beginning of a key, to which more belongs
            return f"key {full.hex()}"

    def _first_times(self, full: list[bytes]) -> list[int]:
        """The time of the first of the sorted keys in each key group."""
        firsts = [full[0]]
        heads = np.array(full, dtype="S2")
        firsts += [full[i] for i in (np.flatnonzero(heads[1:] != heads[:-1]) + 1).tolist()]
        return [self._time_of(key) for key in firsts]

    @staticmethod
    def _time_of(full_key: bytes) -> int:
        return split_timer(split(full_key).body)[0]

    def _entries(self, found: Sequence[tuple[bytes, bytes]]) -> pa.Table:
        if not found:
            return self.entry_schema.empty_table()
        keys, values = zip(*found, strict=True)
        columns = self._keys.decode(keys) + self._values_of(keys, values).columns
        return pa.table(columns, schema=self.entry_schema)

    def _values_of(self, full: Sequence[bytes], raws: Sequence[bytes | None]) -> pa.Table:
        """The values of full keys; one that is of an earlier type and cannot become one of today is named with its key."""
        try:
            return self._values.read(raws)
        except StateTypeError:
            for key, raw in zip(full, raws, strict=True):
                try:
                    self._values.read([raw])
                except StateTypeError as error:
                    raise StateTypeError(f"{self._where}, key {self._named(key)}: {error}") from error
            raise

    def _fitting(self, values: Any, count: int) -> list[Any]:
        """The value columns as arrays of their types. What a cast of Arrow's would make another value of is refused."""
        unfit = f"{self._where}: put() was given a table that does not fit the state's columns"
        try:
            given = [values.column(name) for name in self.schema.names]
        except (KeyError, AttributeError) as error:
            raise UsageError(f"{unfit}: {error}") from error
        columns = [
            fitted(column, kind, f"{unfit}: {name!r}")
            for column, name, kind in zip(given, self.schema.names, self.schema.types, strict=True)
        ]
        if any(len(column) != count for column in columns):
            raise UsageError(f"{self._where}: put() was given {count} keys and {len(values)} rows of values")
        for name, column in zip(self.schema.names, columns, strict=True):
            if pa.types.is_timestamp(column.type):
                refuse_far(column, f"{self._where}: the column {name!r} given to put()")
        return columns


def _block(found: Iterator[tuple[bytes, bytes]]) -> tuple[list[tuple[bytes, bytes]], bool]:
    """The next entries that make one table, and whether they are the last."""
    block: list[tuple[bytes, bytes]] = []
    size, more = 0, 1
    while len(block) < BLOCK and size < BLOCK_BYTES:
        some = list(islice(found, min(more, BLOCK - len(block))))
        if not some:
            return block, True
        block += some
        # To look after each entry would take longer than to read it; twice as many as before may be too many by half.
        size += sum(len(raw) for _, raw in some)
        more *= 2
    return block, False


def _spans(starts: Any, counts: Any, own: Any) -> tuple[Any, Any]:
    """The rows of the spans `own`, one span after the other; and for each row the index of its span in `own`."""
    lengths = counts[own]
    numbers = np.repeat(np.arange(len(own)), lengths)
    begins = np.cumsum(lengths) - lengths
    return np.arange(len(numbers)) + np.repeat(starts[own] - begins, lengths), numbers


def _copied(part: Any) -> Any:
    """A column whose memory nobody else has: user code may add to its own numpy array, and Arrow arrays are made of such without a copy."""
    return pa.concat_arrays([part]) if isinstance(part, pa.Array) else part.copy()


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, pa.Array):
        return isinstance(other, pa.Array) and bool(one.equals(other))
    return isinstance(other, np.ndarray) and bool(np.array_equal(one, other))
