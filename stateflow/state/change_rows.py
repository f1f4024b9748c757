"""Changed entries of a state as an Arrow table: the rows of its feed.

    the columns of the entry     as a table of the state has them: key, namespace, map_key, at, by
    added_slot, position         of a list: which batch appended the element, and where in it
    state, kind                  the state's name; put, delete, expire, restore, snapshot or evolve
    before, after                typed; null where there is no entry. Missing where entries have no columns
    slot, time                   of the batch

A column whose name the key has already is given an underscore behind it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from operator import ne
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from stateflow.errors import UsageError
from stateflow.format.records import StateSchema
from stateflow.format.scalars import SCALARS
from stateflow.state.backends.watched import WrittenEntries
from stateflow.state.keys.arrow_types import ARROW, INSTANT
from stateflow.state.tabular import COLUMNS, Key, StateTable
from stateflow.state.values.evolution.versions import marked, parted, todays_form
from stateflow.state.values.expiries import plain
from stateflow.state.values.serializers import Serializer

Kind = Literal["put", "delete", "expire", "restore", "snapshot", "evolve"]
_OF_ENTRIES = tuple(name for name in COLUMNS if name not in ("key_group", "value", "stored", "expires_at"))
_UNORDERED = re.compile(r"\b(?:set|frozenset|map)<|^custom:")
"""Types in which equal values may have several bytes."""
_OWN = {"slot": "added_slot"}
"""Columns of a state's table that are called otherwise here."""


class ChangedEntries(NamedTuple):
    """Entries that changed, column by column. Values are of today's type and have no expiry; None stands for no entry."""

    kinds: Sequence[Kind]
    keys: Sequence[bytes]
    before: Sequence[bytes | None]
    after: Sequence[bytes | None]

    def parts(self, most: int) -> Iterator[ChangedEntries]:
        """The same in parts of at most so many entries."""
        for begin in range(0, len(self.keys), most):
            part = slice(begin, begin + most)
            yield ChangedEntries(self.kinds[part], self.keys[part], self.before[part], self.after[part])


class ChangeRows:
    """The rows of the feed of one state."""

    def __init__(self, key: Key, name: str, schema: StateSchema) -> None:
        plain = msgspec.structs.replace(schema.written_anew(), ttl=None)
        # The key group is not a column here, so that their number does not matter.
        self._table = StateTable(key, 1, name, plain)
        self._state, self.state_id = name, schema.id
        table, names = self._table.schema, self._table.names
        self._entry_columns = [*(column for column, _ in key)]
        self._value = names.get("value")
        fields = [table.field(column) for column, _ in key]
        taken = {field.name.lower() for field in fields}

        def add(wanted: str, kind: pa.DataType) -> None:
            while wanted in taken:
                wanted += "_"
            taken.add(wanted)
            fields.append(pa.field(wanted, kind))

        for column in _OF_ENTRIES:
            if column in names:
                self._entry_columns.append(names[column])
                add(_OWN.get(column, column), table.field(names[column]).type)
        add("state", pa.string())
        add("kind", pa.string())
        if self._value is not None:
            kind = table.field(self._value).type
            add("before", kind)
            add("after", kind)
        add("slot", pa.int64())
        add("time", INSTANT)
        self.schema = pa.schema(fields)

    @property
    def entry_columns(self) -> Sequence[str]:
        """The columns that tell the entries apart."""
        return tuple(self.schema.names[: len(self._entry_columns)])

    @property
    def state_column(self) -> str:
        """The column of the state's name."""
        names: list[str] = self.schema.names
        return names[len(self._entry_columns)]

    @property
    def valued(self) -> bool:
        """Whether there are columns `before` and `after`, which stand before the last two."""
        return self._value is not None

    def rows(self, changes: ChangedEntries, slot: int, time: int) -> pa.RecordBatch:
        """One row per entry. One that had a value which nobody can read any more has none before."""
        kinds, keys, before, after = changes
        if not keys:
            return pa.RecordBatch.from_pylist([], schema=self.schema)
        names = self._table.schema.names
        of_keys = dict(zip(names, self._table.decode_keys(keys), strict=False))
        columns = [of_keys[name] for name in self._entry_columns]
        columns += [pa.repeat(self._state, len(keys)), pa.array(kinds, pa.string())]
        if self._value is not None:
            columns += [self.values(before, keys), self.values(after, keys)]
        columns += [pa.repeat(slot, len(keys)), pa.repeat(pa.scalar(time, INSTANT), len(keys))]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def values(self, raws: Sequence[bytes | None], keys: Sequence[bytes]) -> Any:
        """The column of values; null where there is none. `keys` name what is damaged."""
        there = [(key, raw) for key, raw in zip(keys, raws, strict=True) if raw is not None]
        if not there:
            return pa.nulls(len(raws), self._table.schema.field(self._value).type)
        values = self._table.read_values([key for key, _ in there], [raw for _, raw in there]).column
        if len(there) == len(raws):
            return values
        is_null = np.fromiter((raw is None for raw in raws), dtype=bool, count=len(raws))
        return values.take(pa.array(np.cumsum(~is_null) - 1, mask=is_null))


def changed(
    entries: WrittenEntries,
    todays: Callable[[Sequence[bytes | None]], Sequence[bytes | None]],
    same: Callable[[bytes, bytes], bool] | None = None,
) -> ChangedEntries:
    """What became of the entries, without those that are as they were.

    `todays` makes stored values those of today's type, without an expiry. `same` compares values of types that have several bytes
    for one value.
    """
    keys, before, after = entries.keys, todays(entries.before), todays(entries.after)
    differ = list(map(ne, before, after))
    if same is not None:
        differ = [
            other and (old is None or new is None or not same(old, new))
            for other, old, new in zip(differ, before, after, strict=True)
        ]
    if not all(differ):
        keys = list(compress(keys, differ))
        before, after = list(compress(before, differ)), list(compress(after, differ))
    kinds: list[Kind] = ["put"] * len(keys)
    if None in after:
        gone, expired = (place for place, new in enumerate(after) if new is None), entries.expired
        for place in gone:
            kinds[place] = "expire" if keys[place] in expired else "delete"
    return ChangedEntries(kinds, keys, before, after)


def ddl_of(kind: pa.DataType, where: str) -> str:
    """What Spark's DDL calls an Arrow type of states."""
    if pa.types.is_struct(kind):
        inside = ",".join(f"{_name(field.name)}:{ddl_of(field.type, where)}" for field in kind)
        return f"struct<{inside}>"
    if pa.types.is_list(kind):
        return f"array<{ddl_of(kind.value_type, where)}>"
    if pa.types.is_map(kind):
        return f"map<{ddl_of(kind.key_type, where)},{ddl_of(kind.item_type, where)}>"
    if kind not in _SPARK:
        raise UsageError(
            f"{where}: its values hold a {kind}, which no table has: keep it as a number or as text"
        )
    return _SPARK[kind]


_SPARK = {ARROW[scalar.name]: scalar.spark for scalar in SCALARS if scalar.spark} | {pa.int32(): "int"}


def _name(name: str) -> str:
    return name if name.isidentifier() else "`" + name.replace("`", "``") + "`"


_Raws = Sequence[bytes | None]


def todays_values(
    schema: StateSchema, serializer: Serializer | None
) -> tuple[Callable[[_Raws], _Raws], Callable[[bytes, bytes], bool] | None]:
    """How stored values become values of today's type without an expiry, and which are equal."""
    if serializer is None:
        today = todays_form(schema)
        return plain if today is None else lambda raws: plain(_each(today, raws)), None
    loads, dumps, version = serializer.loads, serializer.dumps, schema.version
    same = None
    if _UNORDERED.search(schema.value):
        same = lambda one, other: loads(marked(one, version)) == loads(marked(other, version))  # noqa: E731
    if not schema.evolved:
        return plain, same
    # A value of an earlier type may need code of the pipeline's to become one of today's.
    return lambda raws: _each(lambda raw: parted(dumps(loads(raw)))[2], raws), same


def _each(convert: Callable[[bytes], bytes], raws: _Raws) -> list[bytes | None]:
    return [None if raw is None else convert(raw) for raw in raws]
