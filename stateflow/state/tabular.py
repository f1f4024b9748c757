"""The entries of a state as an Arrow table, and a table as entries again.

    key_group             of the key; recomputed on the way back
    the key's columns     by their names
    namespace             of a state that has namespaces; null for the empty one. Of timers: as text
    map_key               of a map; a struct of _1, _2 when it has several parts
    slot, position        of a list: which record appended the element, and where in its batch
    timer, at             of timers: which one, and when it fires; `at` also of timed columnar states
    by                    of a columnar state with several entries per key: a struct of what tells them apart
    value                 typed (`shapes`, `typed`); missing where entries have no columns
    stored                the bytes, where `value` loses a part of them (`typed`)
    expires_at            when the state has a ttl; without one, nobody reads expiries, and they are dropped

A column whose name the key has already is given an underscore behind it. Neither side needs the classes that the state
was declared with: keys come from their types, values from the text of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.errors import CorruptError, UsageError
from stateflow.format.encoding import EMPTY_NAMESPACE, PREFIX_WIDTH, SIGN, TIME_WIDTH, state_range
from stateflow.format.records import OperatorState, StateSchema
from stateflow.state.keys.arrow_types import ARROW, INSTANT
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.keys.columns import encode_columns
from stateflow.state.keys.hashing import key_groups_of
from stateflow.state.keys.parts import KeyParts
from stateflow.state.keys.text import key_of_text, text_of_key
from stateflow.state.namespace_columns import (
    array_of_namespaces,
    column_of_parts,
    split_namespaces,
    values_of_column,
    with_namespaces,
)
from stateflow.state.values.arrow.column_values import BLANK, NO_COLUMNS, column_values
from stateflow.state.values.arrow.fitting import fitted
from stateflow.state.values.arrow.headers import BadEntryError, with_expiries
from stateflow.state.values.arrow.nested_shapes import element_of
from stateflow.state.values.arrow.packed_instants import are_instants
from stateflow.state.values.arrow.shapes import Element, OpaqueShape
from stateflow.state.values.arrow.structured_values import StructuredValues
from stateflow.state.values.arrow.typed import ByteValues, EvolvedValues, ValueColumn, Values, scalars
from stateflow.state.values.evolution.versions import todays_form
from stateflow.state.values.schema_text import UnreadableText, read_schema
from stateflow.state.values.serializers import CUSTOM

TIMERS = "_timers"
"""The table of all timers of an operator."""
COLUMNS = (
    "key_group",
    "namespace",
    "map_key",
    "slot",
    "position",
    "timer",
    "at",
    "by",
    "value",
    "stored",
    "expires_at",
)
"""The columns of tables beside those of the key."""

_LIST_POSITIONS = 1 << 32
_PER_KEY = 1
"""A timer's second state id, whose entries say when the timer of a key fires."""

Key = Sequence[tuple[str, str]]


class _Table:
    """The base of state tables and timer tables."""

    schema: pa.Schema
    names: Mapping[str, str]
    """From each of COLUMNS that the table has to its name there."""

    def __init__(self, key: Key, max_parallelism: int, where: str) -> None:
        self.key = tuple(key)
        self.where = where
        self._max = max_parallelism
        self._types = [kind for _, kind in key]
        self._codec = KeyCodec(self._types)

    def _lay_out(self, columns: Mapping[str, pa.DataType]) -> None:
        taken = {name.lower() for name, _ in self.key}
        names: dict[str, str] = {}
        for column in ("key_group", *columns):
            names[column] = column
            while names[column] in taken:
                names[column] += "_"
        self.names = names
        fields = [pa.field(names["key_group"], pa.int32())]
        fields += [pa.field(name, ARROW[kind]) for name, kind in self.key]
        fields += [pa.field(names[column], kind) for column, kind in columns.items()]
        self.schema = pa.schema(fields)

    def check(self, schema: pa.Schema) -> None:
        """Raises UsageError unless tables of this schema can be encoded, as far as types tell."""
        unknown = [name for name in schema.names if name not in self.schema.names]
        if unknown:
            raise UsageError(
                f"{self.where}: the table has a column {unknown[0]!r}, which is none of {', '.join(self.schema.names)}: "
                "rename or drop it"
            )
        self.encode(pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema))

    def encode(self, batch: pa.RecordBatch) -> tuple[list[bytes], list[bytes]]:
        raise NotImplementedError

    def _column(
        self, batch: Any, name: str, kind: pa.DataType, *, needed: bool = True, nullable: bool = False
    ) -> Any:
        """A column of the batch in the type of the schema; None when it may be missing and is."""
        index = batch.schema.get_all_field_indices(name)
        if len(index) != 1:
            if not index and not needed:
                return None
            count = f"{len(index)} columns" if index else "no column"
            raise UsageError(f"{self.where}: the table has {count} {name!r}: it needs one, of type {kind}")
        column = fitted(batch.column(index[0]), kind, f"{self.where}: {name}")
        if needed and not nullable and column.null_count:
            raise UsageError(f"{self.where}: {name} holds {column.null_count} nulls: drop such rows")
        return column

    def _keys(self, batch: Any) -> tuple[list[Any], Any]:
        """The columns of the key, and the key groups."""
        columns = [self._column(batch, name, ARROW[kind]) for name, kind in self.key]
        return columns, key_groups_of(self._types, columns, self._max)

    def _instants(self, at: Any) -> Any:
        """Times in microseconds, if Python can represent all of them."""
        micros = at.cast(pa.int64()).to_numpy(zero_copy_only=False)
        if not bool(are_instants(micros).all()):
            raise UsageError(
                f"{self.where}: {self.names['at']} holds instants outside of the years 1 to 9999: correct them"
            )
        return micros

    def _shown(self, key: bytes, at: int) -> object:
        try:
            return self._codec.decode(key, at)[0]
        except (CorruptError, UsageError):  # a date that Python does not have, too
            return key.hex()


class StateTable(_Table):
    """One state of an operator as a table."""

    def __init__(self, key: Key, max_parallelism: int, name: str, schema: StateSchema) -> None:
        super().__init__(key, max_parallelism, f"state {name!r}")
        self.name = name
        self._id = schema.id
        self._kind = schema.kind
        self._ttl = schema.ttl is not None
        self._values = values_of(schema, self.where)
        self._map_types = schema.map_key.split(",") if schema.kind == "map" else []
        self._timed = schema.timed
        self._by = [kind for _, kind in schema.by]
        self._namespace_types = schema.namespace.split(",") if schema.namespace else []
        columns: dict[str, pa.DataType] = {}
        if self._timed:
            columns["at"] = INSTANT
        if self._namespace_types:
            columns["namespace"] = column_of_parts(self._namespace_types)
        if self._by:
            columns["by"] = pa.struct([pa.field(name, ARROW[kind]) for name, kind in schema.by])
        if self._map_types:
            columns["map_key"] = column_of_parts(self._map_types)
        if schema.kind == "list":
            columns["slot"] = columns["position"] = pa.int64()
        self._valued = schema.value != NO_COLUMNS
        if self._valued:
            columns["value"] = self._values.arrow
        if self._values.doubtful:
            columns["stored"] = pa.binary()
        if self._ttl:
            columns["expires_at"] = INSTANT
        self._lay_out(columns)

    def ranges(self, first: int, last: int) -> Iterator[tuple[bytes, bytes]]:
        """The ranges to scan for the entries of key groups `first..last`, inclusive: one per key group."""
        for group in range(first, last + 1):
            yield state_range(group, self._id)

    def decode(self, keys: Sequence[bytes], values: Sequence[bytes]) -> pa.RecordBatch:
        """The table of entries of this state, in their order. `keys` are full keys."""
        if not keys:
            return _empty(self.schema)
        columns = self.decode_keys(keys)
        read = self.read_values(keys, values)
        if self._valued:
            columns.append(read.column)
        if self._values.doubtful:
            columns.append(pa.nulls(len(keys), pa.binary()) if read.stored is None else read.stored)
        if self._ttl:
            columns.append(pa.nulls(len(keys), INSTANT) if read.expires is None else read.expires)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def decode_keys(self, keys: Sequence[bytes]) -> list[Any]:
        """The columns of the entries' keys, which come first in the table."""
        namespaces: list[Any] = []
        if self._namespace_types:
            namespace = KeyCodec(self._namespace_types)
            keys, namespaces = split_namespaces(keys, self._codec, PREFIX_WIDTH, namespace, self.where)
        parts = KeyParts(keys, self.where)
        columns = [pa.array(parts.group())]
        if bool((parts.state_id() != self._id).any()):
            raise UsageError(f"{self.where} has id {self._id}, but was given entries of another state")
        at = [parts.part("datetime")] if self._timed else []
        columns += [parts.part(kind) for kind in self._types] + at
        parts.namespace()
        if self._namespace_types:
            columns.append(array_of_namespaces(namespaces, self._namespace_types))
        if self._by:
            by = [parts.part(kind) for kind in self._by]
            columns.append(pa.StructArray.from_arrays(by, fields=list(self._field("by").type)))
        if self._map_types:
            map_parts = [parts.part(kind) for kind in self._map_types]
            map_key = self.schema.field(self.names["map_key"]).type
            columns.append(
                map_parts[0]
                if len(map_parts) == 1
                else pa.StructArray.from_arrays(map_parts, fields=list(map_key))
            )
        if self._kind == "list":
            columns += map(pa.array, parts.list_position())
        parts.end()
        return columns

    def read_values(self, keys: Sequence[bytes], values: Sequence[bytes]) -> ValueColumn:
        """The values alone. `keys` name what is damaged."""
        try:
            return self._values.read(values)
        except BadEntryError as bad:
            shown = self._shown(keys[bad.index], PREFIX_WIDTH + (TIME_WIDTH if self._timed else 0))
            raise type(bad.error)(f"{self.where}, key {shown!r}: {bad.error}") from bad

    def encode(self, batch: pa.RecordBatch) -> tuple[list[bytes], list[bytes]]:
        """Full keys and stored values, in the order of the rows. `key_group`, `namespace`, `stored` and `expires_at` may be
        missing.
        Columns that the schema does not have are ignored here: `check` refuses them."""
        columns, groups = self._keys(batch)
        types, suffix = list(self._types), EMPTY_NAMESPACE
        if self._timed:
            # A window may end behind the last instant that Python has.
            ends = self._own(batch, "at").cast(pa.int64()).to_numpy(zero_copy_only=False)
            types, columns = ["int", *types], [ends, *columns]
        if self._by or self._map_types or self._kind == "list":
            # The empty namespace is written as the bool False is, what follows it like further parts of the key.
            types, suffix = [*types, "bool"], b""
            columns.append(np.zeros(len(batch), dtype=bool))
        if self._by:
            types += self._by
            columns += self._parts(self._own(batch, "by"), "by")
        if self._map_types:
            column = self._own(batch, "map_key")
            types += self._map_types
            columns += [column] if len(self._map_types) == 1 else self._parts(column, "map_key")
        if self._kind == "list":
            types += ["int", "date"]
            columns += self._list_position(batch)
        keys = encode_columns(types, columns, groups, self._id, suffix)
        if self._namespace_types:
            keys = self._with_namespaces(keys, batch)
        if not self._valued:
            return keys, [BLANK] * len(keys)
        value = self._own(batch, "value", nullable=True)
        stored = self._own(batch, "stored", needed=False) if self._values.doubtful else None
        values = self._values.write(value, stored)
        if self._ttl:
            expires = self._own(batch, "expires_at", needed=False)
            if expires is not None:
                values = with_expiries(values, expires)
        return keys, values

    def _with_namespaces(self, keys: list[bytes], batch: Any) -> list[bytes]:
        column = self._own(batch, "namespace", needed=False)
        if column is None or column.null_count == len(keys):
            return keys
        values = values_of_column(column, self._namespace_types)
        namespace = KeyCodec(self._namespace_types)
        return with_namespaces(keys, values, self._codec, PREFIX_WIDTH, namespace, self.where)

    def _field(self, column: str) -> Any:
        return self.schema.field(self.names[column])

    def _own(self, batch: Any, column: str, *, needed: bool = True, nullable: bool = False) -> Any:
        name = self.names[column]
        return self._column(batch, name, self.schema.field(name).type, needed=needed, nullable=nullable)

    def _parts(self, column: Any, what: str) -> list[Any]:
        """The fields of a struct that is a part of keys."""
        parts = [column.field(index) for index in range(column.type.num_fields)]
        for field, part in zip(column.type, parts, strict=True):
            if part.null_count:
                raise UsageError(
                    f"{self.where}: {self.names[what]}.{field.name} holds {part.null_count} nulls: drop such rows"
                )
        return parts

    def _list_position(self, batch: Any) -> list[Any]:
        """A list position as an int and a date of a key. Encoding these flips their sign bits, which are flipped here first."""
        slots = self._own(batch, "slot").to_numpy()
        positions = self._own(batch, "position").to_numpy()
        if len(slots) and (slots.min() < 0 or positions.min() < 0 or positions.max() >= _LIST_POSITIONS):
            raise UsageError(
                f"{self.where}: {self.names['slot']} and {self.names['position']} number the elements of a list: use "
                f"slots from 0, and positions from 0 to {_LIST_POSITIONS - 1}"
            )
        days = (positions.astype(np.uint32) ^ np.uint32(1 << 31)).view(np.int32)
        return [
            (slots.view(np.uint64) ^ np.uint64(SIGN)).view(np.int64),
            pa.array(days).cast(pa.date32()),
        ]


class TimerTable(_Table):
    """All timers of an operator as a table: a row for each that is set."""

    def __init__(self, key: Key, max_parallelism: int, timers: Mapping[str, StateSchema]) -> None:
        super().__init__(key, max_parallelism, "timers")
        self._ids = {name: schema.id for name, schema in timers.items()}
        self._many = {name for name, schema in timers.items() if schema.many}
        self._namespaces = {
            name: schema.namespace.split(",") for name, schema in timers.items() if schema.namespace
        }
        # Timers may have namespaces of different types, so they are text, as a query takes them.
        columns = {"timer": pa.string(), **({"namespace": pa.string()} if self._namespaces else {})}
        self._lay_out({**columns, "at": INSTANT})

    def ranges(self, first: int, last: int) -> Iterator[tuple[bytes, bytes]]:
        """A range per key group and timer, over the queues: the entries per key say the same."""
        for group in range(first, last + 1):
            for state_id in sorted(self._ids.values()):
                yield state_range(group, state_id)

    def decode(self, keys: Sequence[bytes], values: Sequence[bytes]) -> pa.RecordBatch:
        """The table of entries of the timers' queues, in their order."""
        if not keys:
            return _empty(self.schema)
        namespaces: list[str | None] = []
        if self._namespaces:
            keys, namespaces = self._split(keys)
        parts = KeyParts(keys, self.where)
        groups, ids = parts.group(), parts.state_id()
        names = pa.array(list(self._ids), type=pa.string())
        own_ids = np.array(list(self._ids.values()))
        order = np.argsort(own_ids)
        places = np.searchsorted(own_ids[order], ids).clip(max=len(own_ids) - 1)
        if bool((own_ids[order][places] != ids).any()):
            raise UsageError(f"{self.where} were given entries that are in no timer's queue")
        at = parts.part("datetime")
        columns = [parts.part(kind) for kind in self._types]
        parts.namespace()
        parts.end()
        columns.append(names.take(pa.array(order[places])))
        if self._namespaces:
            columns.append(pa.array(namespaces, pa.string()))
        return pa.RecordBatch.from_arrays([pa.array(groups), *columns, at], schema=self.schema)

    def _split(self, keys: Sequence[bytes]) -> tuple[list[bytes], list[str | None]]:
        """The keys without their namespaces, and these as text."""
        codecs = {self._ids[name]: KeyCodec(types) for name, types in self._namespaces.items()}
        bare: list[bytes] = []
        texts: list[str | None] = []
        for full in keys:
            codec = codecs.get(int.from_bytes(full[2:PREFIX_WIDTH], "big"))
            value = None
            if codec is not None:
                at = PREFIX_WIDTH + TIME_WIDTH
                [full], [value] = split_namespaces([full], self._codec, at, codec, self.where)
            bare.append(full)
            texts.append(None if value is None else text_of_key(value))
        return bare, texts

    def encode(self, batch: pa.RecordBatch) -> tuple[list[bytes], list[bytes]]:
        """Both entries of each timer: first those of the queues, then those per key, each in the order of the rows."""
        columns, groups = self._keys(batch)
        names = self._column(batch, self.names["timer"], pa.string()).to_pylist()
        unknown = set(names) - set(self._ids)
        if unknown:
            raise UsageError(
                f"{self.where}: there is no timer {min(unknown)!r}: there are {', '.join(map(repr, self._ids))}"
            )
        micros = self._instants(self._column(batch, self.names["at"], INSTANT))
        ids = [self._ids[name] for name in names]
        queue = encode_columns(["int", *self._types], [micros, *columns], groups, 0, EMPTY_NAMESPACE)
        per_key = encode_columns(self._types, columns, groups, 0, EMPTY_NAMESPACE)
        if self._namespaces:
            namespaces = self._namespaces_of(batch, names)
            queue = self._with_namespaces(queue, namespaces, names, PREFIX_WIDTH + TIME_WIDTH)
            per_key = self._with_namespaces(per_key, namespaces, names, PREFIX_WIDTH)
        raw = micros.astype(">i8").tobytes()
        values = [raw[at : at + 8] for at in range(0, len(raw), 8)]
        for row, name in enumerate(names if self._many else ()):
            if name in self._many:
                # The time is a part of the key, so that there can be many.
                per_key[row], values[row] = per_key[row] + queue[row][PREFIX_WIDTH:][:TIME_WIDTH], b""
        keys = [
            key[:2] + state_id.to_bytes(2, "big") + key[4:]
            for key, state_id in zip((*queue, *per_key), (*ids, *(i + _PER_KEY for i in ids)), strict=True)
        ]
        return keys, [b""] * len(queue) + values

    def _namespaces_of(self, batch: Any, names: Sequence[str]) -> list[Any]:
        """The namespace of each row as user code has it; None for the empty one."""
        column = self._column(batch, self.names["namespace"], pa.string(), needed=False)
        values: list[Any] = []
        for name, text in zip(
            names, [None] * len(names) if column is None else column.to_pylist(), strict=True
        ):
            types = self._namespaces.get(name)
            if text is not None and types is None:
                raise UsageError(
                    f"{self.where}: timer {name!r} has no namespaces, but a row has {text!r}: leave it null"
                )
            values.append(None if text is None else key_of_text([("", kind) for kind in types or ()], text))
        return values

    def _with_namespaces(
        self, keys: list[bytes], values: Sequence[Any], names: Sequence[str], at: int
    ) -> list[bytes]:
        codecs = {name: KeyCodec(types) for name, types in self._namespaces.items()}
        return [
            full
            if value is None
            else with_namespaces([full], [value], self._codec, at, codecs[name], self.where)[0]
            for full, value, name in zip(keys, values, names, strict=True)
        ]


def tables_of(operator: OperatorState) -> dict[str, StateTable | TimerTable]:
    """The tables of an operator by state, and TIMERS when it has any."""
    tables: dict[str, StateTable | TimerTable] = {}
    timers = {name: schema for name, schema in operator.states.items() if schema.kind == "timer"}
    for name, schema in operator.states.items():
        if schema.kind == "timer":
            continue
        if timers and name == TIMERS:
            raise UsageError(f"a state is named {TIMERS!r}, as the table of all timers is: rename it")
        tables[name] = StateTable(operator.key, operator.max_parallelism, name, schema)
    if timers:
        tables[TIMERS] = TimerTable(operator.key, operator.max_parallelism, timers)
    return tables


def values_of(schema: StateSchema, where: str) -> Values:
    """How the values of a state are read and written."""
    values, today = _todays_values(schema, where), todays_form(schema)
    return values if today is None else EvolvedValues(values, today, schema.version)


def _todays_values(schema: StateSchema, where: str) -> Values:
    if schema.kind == "columns":
        return column_values(schema.value, where)
    if schema.value.startswith("custom:"):
        return ByteValues(schema.value, CUSTOM, where)
    plain = scalars(schema.value, where)
    if plain is not None:
        return plain
    try:
        element = element_of(read_schema(schema.value))
    except UnreadableText:
        # Names that the text's own signs are part of.
        element = Element(OpaqueShape())
    return StructuredValues(schema.value, where, element)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)
