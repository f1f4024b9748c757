"""Structured types as Arrow columns, without the classes that they were declared with.

    declared                                 Arrow
    bool int float str bytes                 bool, int64, double, string, binary
    date datetime                            date32, timestamp[us, UTC]
    timedelta decimal                        duration[us], decimal128(38, 18)
    time uuid                                string, as ISO and RFC 9562 write them
    enum literal                             string or int64
    list set frozenset tuple<T,...>          list
    tuple<A,B>                               struct of _1, _2
    struct namedtuple                        struct
    map                                      map
    optional                                 null
    everything else                          binary: its MessagePack

Everything else is: unions; a record inside itself; records without fields, or whose names differ in case only; maps
whose keys are one of these, optional, or have fields with defaults.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Context, Decimal
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any, Literal
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa

from stateflow.errors import UsageError
from stateflow.state import schema_text as text
from stateflow.state.instants import days_since_epoch, instant, unscaled_decimal
from stateflow.state.packed_instants import INSTANT, NIL, are_instants, read_instants, write_instants

Mode = Literal["exact", "loose", "strict"]
"""Which stand-in for the declared type msgspec reads into.

exact: what columns are fastest taken from; refuses fields that the type does not have
loose: the same, but passes over such fields, as the declared class does
strict: with enums, literals, UUIDs and times checked; what it reads, the declared class reads
"""
DECIMAL = pa.decimal128(38, 18)

_UNSET = msgspec.UNSET
_LEFT_OUT = msgspec.Raw(b"\xc0")
"""Stands for a field that was left out, by identity: Raw cannot be in a union with UNSET."""
_EXACT = Context(prec=100)
_FIRST_DAY, _LAST_DAY = days_since_epoch(date.min), days_since_epoch(date.max)


@dataclass(slots=True)
class Doubts:
    """Whether the columns that were built say all that was stored."""

    any: bool = False


@dataclass(frozen=True, slots=True)
class Writing:
    where: str
    lenient: bool = False
    """Put nil where a value is missing that must be there: to compare, not to store."""

    def wrong(self, path: str, how: str) -> UsageError:
        return UsageError(f"{self.where}: {path} {how}")


class Shape:
    """One type."""

    arrow: pa.DataType
    checked = False
    """Whether its Arrow column can hold what the type cannot, so that what is written is read back first."""
    doubtful = False
    """Whether columns that were built without a doubt may still say less than what was stored."""
    opaque = False
    """Whether a part of it is kept as MessagePack."""

    def hint(self, mode: Mode) -> Any:
        raise NotImplementedError

    def build(self, values: Sequence[Any], doubts: Doubts) -> Any:
        """A column of what msgspec read; None is null."""
        raise NotImplementedError

    def values(self, column: Any, writing: Writing, path: str) -> Sequence[Any]:
        """What msgspec writes, of a column without nulls."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for values of a shape."""

    shape: Shape
    optional: bool = False
    defaulted: bool = False
    """It may be left out."""

    def hint(self, mode: Mode) -> Any:
        hint = self.shape.hint(mode)
        return hint | None if self.optional and hint is not msgspec.Raw else hint

    def values(self, column: Any, writing: Writing, path: str) -> Sequence[Any]:
        """Nulls become None, or UNSET where a null says that the field is left out."""
        if not column.null_count:
            return self.shape.values(column, writing, path)
        if not (self.optional or self.defaulted or writing.lenient):
            raise writing.wrong(
                path, f"holds {column.null_count} nulls, but its type is not optional: fill them"
            )
        absent = _UNSET if self.defaulted and not self.optional else None
        there = column.is_valid().to_numpy(zero_copy_only=False).tolist()
        dense = iter(self.shape.values(column.drop_null(), writing, path))
        return [next(dense) if valid else absent for valid in there]


class Simple(Shape):
    """What Arrow takes as Python has it."""

    def __init__(self, hint: Any, arrow: pa.DataType, strict: Any = None) -> None:
        self.arrow = arrow
        self._hint = hint
        self._strict = hint if strict is None else strict
        self.checked = strict is not None

    def hint(self, mode: Mode) -> Any:
        return self._strict if mode == "strict" else self._hint

    def build(self, values: Sequence[Any], doubts: Doubts) -> Any:
        return pa.array(values, type=self.arrow)

    def values(self, column: Any, writing: Writing, path: str) -> Sequence[Any]:
        return column.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


class Bounded(Simple):
    """A type with values beyond those of its Arrow type, which become null: ints from 2**63, very long timedeltas."""

    def build(self, values: Sequence[Any], doubts: Doubts) -> Any:
        try:
            return pa.array(values, type=self.arrow)
        except (OverflowError, pa.ArrowInvalid):
            doubts.any = True
            return pa.array([value if self._fits(value) else None for value in values], type=self.arrow)

    def _fits(self, value: Any) -> bool:
        try:
            pa.scalar(value, type=self.arrow)
        except (OverflowError, pa.ArrowInvalid):
            return False
        return True


class Day(Simple):
    def values(self, column: Any, writing: Writing, path: str) -> Sequence[Any]:
        days = column.cast(pa.int32()).to_numpy(zero_copy_only=False)
        if len(days) and (days.min() < _FIRST_DAY or days.max() > _LAST_DAY):
            raise writing.wrong(path, "holds dates outside of the years 1 to 9999: correct them")
        return super().values(column, writing, path)


class DecimalText(Simple):
    """Decimals, which are stored as their digits: 1.50 is told from 1.5."""

    doubtful = True

    def build(self, values: Sequence[Any], doubts: Doubts) -> Any:
        try:
            return pa.array(values, type=self.arrow)
        except pa.ArrowInvalid:
            return pa.array([value if fits_decimal(value) else None for value in values], type=self.arrow)

    def values(self, column: Any, writing: Writing, path: str) -> Sequence[Any]:
        return decimal_texts(column)


def fits_decimal(value: Decimal | None) -> bool:
    try:
        return value is None or unscaled_decimal(value) is not None
    except UsageError:
        return False


def decimal_texts(column: Any) -> list[str]:
    """The shortest digits of each of a column of decimals."""
    return [
        str(_EXACT.create_decimal(digits).normalize(_EXACT))
        if "E" in digits
        else digits.rstrip("0").rstrip(".")
        for digits in column.cast(pa.string()).to_pylist()
    ]


class Instant(Shape):
    """Read and written as bytes; `hashed` ones, in keys of maps, as datetimes."""

    arrow = INSTANT

    def __init__(self, hashed: bool) -> None:
        self._hashed = hashed

    def hint(self, mode: Mode) -> Any:
        return datetime if self._hashed or mode == "strict" else msgspec.Raw

    def build(self, values: Sequence[Any], doubts: Doubts) -> Any:
        if self._hashed:
            return pa.array(values, type=INSTANT)
        return read_instants(
            [NIL if value is None else value for value in values] if None in values else values
        )

    def values(self, column: Any, writing: Writing, path: str) -> Sequence[Any]:
        micros = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
        if not bool(are_instants(micros).all()):
            raise writing.wrong(path, "holds instants outside of the years 1 to 9999: correct them")
        return list(map(instant, micros.tolist())) if self._hashed else write_instants(micros)


class Opaque(Shape):
    """What has no faithful Arrow type: its MessagePack."""

    arrow = pa.binary()
    opaque = True

    def hint(self, mode: Mode) -> Any:
        return msgspec.Raw

    def build(self, values: Sequence[Any], doubts: Doubts) -> Any:
        return pa.array(
            [None if value is None or value == b"\xc0" else value for value in map(_as_bytes, values)],
            type=pa.binary(),
        )

    def values(self, column: Any, writing: Writing, path: str) -> Sequence[Any]:
        raws = column.to_pylist()
        for raw in raws:
            if not is_messagepack(raw):
                raise writing.wrong(
                    path, f"holds {raw[:20].hex()}, which is no MessagePack: leave it as it was read"
                )
        return list(map(msgspec.Raw, raws))


def _as_bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def is_messagepack(raw: bytes) -> bool:
    try:
        msgspec.msgpack.decode(raw, type=msgspec.Raw)
    except (msgspec.MsgspecError, ValueError):
        return False
    return True


class Many(Shape):
    def __init__(self, item: Slot) -> None:
        self._item = item
        self.arrow = pa.list_(item.shape.arrow)
        _inherit(self, (item,))

    def hint(self, mode: Mode) -> Any:
        # Tuples, because keys of maps are hashed.
        return tuple[self._item.hint(mode), ...]  # type: ignore[misc]

    def build(self, values: Sequence[Any], doubts: Doubts) -> Any:
        values, mask = _filled(values, ())
        items = self._item.shape.build(list(chain.from_iterable(values)), doubts)
        return pa.ListArray.from_arrays(_offsets(values), items, type=self.arrow, mask=mask)

    def values(self, column: Any, writing: Writing, path: str) -> Sequence[Any]:
        offsets = column.offsets.to_numpy()
        items = column.values.slice(offsets[0], offsets[-1] - offsets[0])
        flat = tuple(self._item.values(items, writing, f"{path}[]"))
        return [flat[begin:end] for begin, end in pairwise((offsets - offsets[0]).tolist())]


class Map(Shape):
    def __init__(self, key: Slot, value: Slot) -> None:
        self._key, self._value = key, value
        self.arrow = pa.map_(key.shape.arrow, value.shape.arrow)
        _inherit(self, (key, value))

    def hint(self, mode: Mode) -> Any:
        return dict[self._key.hint(mode), self._value.hint(mode)]  # type: ignore[misc]

    def build(self, values: Sequence[Any], doubts: Doubts) -> Any:
        filled, mask = _filled(values, {})
        keys = self._key.shape.build(list(chain.from_iterable(filled)), doubts)
        if keys.null_count:
            # A key that does not fit its Arrow type: such a map cannot be shown.
            doubts.any = True
            return self.build([value if self._fits(value) else None for value in values], doubts)
        items = self._value.shape.build(list(chain.from_iterable(map(dict.values, filled))), doubts)
        return pa.MapArray.from_arrays(_offsets(filled), keys, items, type=self.arrow, mask=mask)

    def _fits(self, value: Any) -> bool:
        return value is not None and not self._key.shape.build(list(value), Doubts()).null_count

    def values(self, column: Any, writing: Writing, path: str) -> Sequence[Any]:
        offsets = column.offsets.to_numpy()
        begin, count = offsets[0], offsets[-1] - offsets[0]
        keys = self._key.values(column.keys.slice(begin, count), writing, f"{path}.key")
        items = self._value.values(column.items.slice(begin, count), writing, f"{path}.value")
        return [
            dict(zip(keys[at:end], items[at:end], strict=True))
            for at, end in pairwise((offsets - begin).tolist())
        ]


class Record(Shape):
    """Structs by field name; `by_position` named tuples and tuples."""

    def __init__(self, names: Sequence[str], slots: Sequence[Slot], by_position: bool) -> None:
        self._names = tuple(names)
        self._slots = tuple(slots)
        self._by_position = by_position
        self._attributes = tuple(f"f{index}" for index in range(len(names)))
        self._rename = dict(zip(self._attributes, names, strict=True))
        self._fields = [pa.field(name, slot.shape.arrow) for name, slot in zip(names, slots, strict=True)]
        self._read: dict[Mode, Any] = {}
        self.row = msgspec.defstruct(
            "Row",
            [(attribute, Any, _UNSET) for attribute in self._attributes],
            rename=self._rename,
            frozen=True,
            gc=False,
        )
        self.arrow = pa.struct(self._fields)
        _inherit(self, slots)

    def hint(self, mode: Mode) -> Any:
        if mode not in self._read:
            fields = [self._declared(*pair, mode) for pair in zip(self._attributes, self._slots, strict=True)]
            if not self._by_position:
                # Without this, a required field could not follow one with a default.
                fields.sort(key=len)
            self._read[mode] = msgspec.defstruct(
                "Record",
                fields,
                rename=self._rename,
                array_like=self._by_position,
                forbid_unknown_fields=mode == "exact",
                frozen=True,
                gc=False,
            )
        return self._read[mode]

    def _declared(self, attribute: str, slot: Slot, mode: Mode) -> tuple[Any, ...]:
        hint = slot.hint(mode)
        if not slot.defaulted:
            return attribute, hint
        if hint is msgspec.Raw:
            return attribute, hint, _LEFT_OUT
        if slot.optional or mode == "strict":
            return attribute, hint | msgspec.UnsetType, _UNSET
        return attribute, hint | None, None

    def build(self, values: Sequence[Any], doubts: Doubts) -> Any:
        mask = None
        try:
            columns = [list(map(attrgetter(attribute), values)) for attribute in self._attributes]
        except AttributeError:
            # Some are None.
            blank = self.row(*[None] * len(self._slots))
            mask = pa.array([value is None for value in values])
            values = [blank if value is None else value for value in values]
            columns = [list(map(attrgetter(attribute), values)) for attribute in self._attributes]
        arrays = [
            slot.shape.build(self._marked(slot, column, doubts), doubts)
            for slot, column in zip(self._slots, columns, strict=True)
        ]
        return pa.StructArray.from_arrays(arrays, fields=self._fields, mask=mask)

    def _marked(self, slot: Slot, column: list[Any], doubts: Doubts) -> list[Any]:
        """Fields that were left out become null, like those that are None: `stored` tells which."""
        if not (slot.defaulted and slot.optional):
            return column
        absent = _LEFT_OUT if slot.hint("exact") is msgspec.Raw else _UNSET
        if id(absent) not in map(id, column):
            return column
        doubts.any = True
        return [None if value is absent else value for value in column]

    def values(self, column: Any, writing: Writing, path: str) -> Sequence[Any]:
        columns = [
            slot.values(column.field(index), writing, f"{path}.{name}")
            for index, (name, slot) in enumerate(zip(self._names, self._slots, strict=True))
        ]
        if not self._by_position:
            return list(map(self.row, *columns))
        rows: list[tuple[Any, ...]] = list(zip(*columns, strict=True))
        if any(_UNSET in values for slot, values in zip(self._slots, columns, strict=True) if slot.defaulted):
            return [self._cut(row, writing, path) for row in rows]
        return rows

    def _cut(self, row: tuple[Any, ...], writing: Writing, path: str) -> tuple[Any, ...]:
        """Without the fields at its end that are left out."""
        end = len(row)
        while end and row[end - 1] is _UNSET:
            end -= 1
        if _UNSET not in row[:end]:
            return row[:end]
        if writing.lenient:
            return tuple(None if value is _UNSET else value for value in row[:end])
        name = self._names[row.index(_UNSET)]
        raise writing.wrong(
            f"{path}.{name}",
            "is null in front of fields that are not, and only the last ones can be left out: fill it",
        )


def _inherit(shape: Shape, slots: Sequence[Slot]) -> None:
    shape.checked = any(slot.shape.checked for slot in slots)
    shape.doubtful = any(slot.shape.doubtful for slot in slots)
    shape.opaque = any(slot.shape.opaque for slot in slots)


def _filled(values: Sequence[Any], empty: Any) -> tuple[Sequence[Any], Any]:
    """The values with something empty for None, and Arrow's mask of those."""
    if None not in values:
        return values, None
    return [empty if value is None else value for value in values], pa.array(
        [value is None for value in values]
    )


def _offsets(values: Sequence[Any]) -> Any:
    offsets = np.zeros(len(values) + 1, dtype=np.int32)
    np.cumsum(np.fromiter(map(len, values), dtype=np.int32, count=len(values)), out=offsets[1:])
    return pa.array(offsets)


class _NoKeyError(Exception):
    """The type cannot be the key of an Arrow map."""


def slot_of(tree: text.Tree, *, hashed: bool = False) -> Slot:
    """The place for values of a type; `hashed` when they are keys of a map."""
    optional = False
    while isinstance(tree, text.Optional):
        tree, optional = tree.item, True
    if isinstance(tree, text.Choice) and None in tree.values:
        tree = text.Choice(tree.name, tuple(member for member in tree.members if member[1] is not None))
        optional = True
    slot = Slot(_shape(tree, hashed), optional or tree == text.Plain("null"))
    if hashed and (slot.optional or isinstance(slot.shape, Opaque)):
        raise _NoKeyError
    return slot


def _shape(tree: text.Tree, hashed: bool) -> Shape:
    match tree:
        case text.Plain("datetime"):
            return Instant(hashed)
        case text.Plain(name) if name in _PLAIN:
            return _PLAIN[name]
        case text.Choice():
            kinds = set(map(type, tree.values))
            if kinds in ({str}, {int}):
                (kind,) = kinds
                return Simple(kind, pa.string() if kind is str else pa.int64(), Literal[tree.values])
        case text.Many():
            return Many(slot_of(tree.item, hashed=hashed))
        case text.Map():
            try:
                return Map(slot_of(tree.key, hashed=True), slot_of(tree.value, hashed=hashed))
            except _NoKeyError:
                return Opaque()
        case text.Tuple():
            names = [f"_{number}" for number in range(1, len(tree.items) + 1)]
            return _record([text.Field(*pair) for pair in zip(names, tree.items, strict=True)], True, hashed)
        case text.Record():
            return _record(tree.fields, tree.by_position, hashed)
    return Opaque()


def _record(fields: Sequence[text.Field], by_position: bool, hashed: bool) -> Shape:
    names = [field.name for field in fields]
    if not names or len({name.lower() for name in names}) < len(names):
        return Opaque()
    if hashed and any(field.defaulted for field in fields):
        raise _NoKeyError
    slots = []
    for index, field in enumerate(fields):
        # By position, only what is behind every required field can be missing.
        defaulted = field.defaulted and not (by_position and not all(f.defaulted for f in fields[index:]))
        slot = slot_of(field.type, hashed=hashed)
        slots.append(Slot(slot.shape, slot.optional, defaulted))
    return Record(names, slots, by_position)


_PLAIN: dict[str, Shape] = {
    "bool": Simple(bool, pa.bool_()),
    "int": Bounded(int, pa.int64()),
    "float": Simple(float, pa.float64()),
    "str": Simple(str, pa.string()),
    "bytes": Simple(bytes, pa.binary()),
    "date": Day(date, pa.date32()),
    "timedelta": Bounded(timedelta, pa.duration("us")),
    "decimal": DecimalText(Decimal, DECIMAL),
    "time": Simple(str, pa.string(), time),
    "uuid": Simple(str, pa.string(), UUID),
}
