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
from datetime import datetime
from decimal import Context, Decimal
from typing import Any, Literal

import msgspec
import pyarrow as pa

from stateflow.errors import UsageError
from stateflow.format.instants import FIRST_DAY, LAST_DAY, instant, unscaled_decimal
from stateflow.state.keys.arrow_types import INSTANT
from stateflow.state.values.arrow.packed_instants import NIL, are_instants, read_instants, write_instants

Mode = Literal["exact", "loose", "strict"]
"""Which stand-in for the declared type msgspec reads into.

exact: the fastest to take columns from; refuses fields that the type does not have
loose: the same, but ignores such fields, as the declared class does
strict: checks enums, literals, UUIDs and times; whatever it reads, the declared class reads
"""

_UNSET = msgspec.UNSET
_EXACT = Context(prec=100)


@dataclass(slots=True)
class Doubts:
    """Whether the columns lose a part of the stored value."""

    any: bool = False


@dataclass(frozen=True, slots=True)
class Writing:
    where: str
    lenient: bool = False
    """Write nil for a missing value that is required: for comparing, never for storing."""

    def wrong(self, path: str, how: str) -> UsageError:
        return UsageError(f"{self.where}: {path} {how}")


class TypeShape:
    """One type."""

    arrow: pa.DataType
    checked = False
    """Whether its Arrow column can hold values that the type cannot: then values are read back before they are stored."""
    doubtful = False
    """Whether its column loses a part of some values without `build` noticing."""
    opaque = False
    """Whether a part of it is kept as MessagePack."""

    def hint(self, mode: Mode) -> Any:
        raise NotImplementedError

    def build(self, values: Sequence[Any], doubts: Doubts) -> Any:
        """A column of the values that msgspec has read; None is null."""
        raise NotImplementedError

    def values(self, column: Any, writing: Writing, path: str) -> Sequence[Any]:
        """What msgspec writes, of a column without nulls."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Element:
    """Values of a shape as fields, items, keys or on their own."""

    shape: TypeShape
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


class SimpleShape(TypeShape):
    """Arrow takes the values as Python has them."""

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


class BoundedShape(SimpleShape):
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


class DateShape(SimpleShape):
    def values(self, column: Any, writing: Writing, path: str) -> Sequence[Any]:
        days = column.cast(pa.int32()).to_numpy(zero_copy_only=False)
        if len(days) and (days.min() < FIRST_DAY or days.max() > LAST_DAY):
            raise writing.wrong(path, "holds dates outside of the years 1 to 9999: correct them")
        return super().values(column, writing, path)


class DecimalShape(SimpleShape):
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


class InstantShape(TypeShape):
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


class OpaqueShape(TypeShape):
    """Values without a faithful Arrow type, as their MessagePack."""

    arrow = pa.binary()
    opaque = True

    def hint(self, mode: Mode) -> Any:
        return msgspec.Raw

    def build(self, values: Sequence[Any], doubts: Doubts) -> Any:
        return pa.array(
            [None if value is None or value == NIL else bytes(value) for value in values], type=pa.binary()
        )

    def values(self, column: Any, writing: Writing, path: str) -> Sequence[Any]:
        raws = column.to_pylist()
        for raw in raws:
            if not is_messagepack(raw):
                raise writing.wrong(
                    path, f"holds {raw[:20].hex()}, which is no MessagePack: leave it as it was read"
                )
        return list(map(msgspec.Raw, raws))


def is_messagepack(raw: bytes) -> bool:
    try:
        msgspec.msgpack.decode(raw, type=msgspec.Raw)
    except (msgspec.MsgspecError, ValueError):
        return False
    return True
