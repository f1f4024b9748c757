"""Values as bytes: one header byte, an expiry and the number of a schema when there are such, the value.

    [xy00 0000 | code] [expiry micros i64, big-endian, when bit 7 is set] [number u8, when bit 6 is set] [value]

The code says how the value is written, so that a value can still be read after its state was widened:

    1 bool      one byte                     6 date      i32 days since 1970-01-01
    2 int       i64                          7 datetime  i64 microseconds since 1970-01-01 UTC
    3 float     f64                          8 decimal   its digits as text
    4 str       UTF-8                        9 structured: MessagePack, structs as maps by field name
    5 bytes     as they are                 10 custom: version u32, then whatever the user's function made
                                            11 columns, as `column_values` says
Only a state whose type has changed has numbers (`versions`). Fixed widths are little-endian. These bytes are frozen: stored state is made of them.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from struct import Struct
from struct import error as StructError
from typing import Any

import msgspec

from stateflow.errors import CorruptError, IncompatibleError, StateTypeError, UsageError
from stateflow.format.instants import day, days_since_epoch, instant, micros_since_epoch
from stateflow.format.scalars import BY_TYPE, CODED, Scalar
from stateflow.state.values.schema import schema_of
from stateflow.state.values.structured import no_float, structured_codec, wrong

BOOL, INT, FLOAT, STR, BYTES, DATE, DATETIME, DECIMAL = (scalar.code for scalar in CODED)
STRUCTURED, CUSTOM, RAW_CODE = 9, 10, 11
EXPIRES = 0x80

_i64, _f64, _i32, _u32 = Struct("<q"), Struct("<d"), Struct("<i"), Struct("<I")
_expiring = Struct(">Bq")
_EXPIRY_END = _expiring.size

Dumps = Callable[[Any], bytes]
Loads = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class Serializer:
    """How one declared type is stored. Bind `dumps` and `loads` to locals on hot paths."""

    schema: str
    code: int
    """The first byte of what it writes. The text of a type does not tell it: a scalar by another name, or with bounds, is MessagePack."""
    dumps: Dumps
    """dumps(value) -> header and value; a wrong type raises StateTypeError."""
    loads: Loads
    """loads(buf) -> a fresh value, whether or not it carries an expiry."""
    dumps_with_expiry: Callable[[Any, int], bytes]
    """dumps_with_expiry(value, expiry in microseconds since 1970)."""
    check: Callable[[Any], None]
    """check(value): raises StateTypeError, which names the declared type and the value."""
    evolved: bool = False
    """Whether it reads values of earlier types, too."""
    dumps_until: Callable[[int], Dumps] | None = None
    """dumps_until(expiry) -> a `dumps` whose values all have this expiry, as fast as without one; None where there is none."""

    @staticmethod
    def expiry(buf: bytes) -> int | None:
        """When the stored value expires, in microseconds since 1970; None for never."""
        return _expiring.unpack_from(buf)[1] if buf[0] & EXPIRES else None


@dataclass(frozen=True, slots=True)
class CustomSerializer:
    """A user's own way to store a type. `id` and `version` are recorded: a new layout needs a higher version."""

    id: str
    version: int
    dumps: Callable[[Any], bytes]
    loads: Callable[[bytes, int], Any]
    """loads(data, version that wrote it)"""

    def __post_init__(self) -> None:
        if not self.id or ":" in self.id or not 0 <= self.version < 1 << 32:
            raise UsageError(
                f"custom serializer {self.id!r} has version {self.version}: use an id without ':' and a version from 0"
            )


def serializer_for(type_hint: Any) -> Serializer:
    """The serializer of a declared type, or of a CustomSerializer."""
    if isinstance(type_hint, CustomSerializer):
        return _custom(type_hint)
    if isinstance(type_hint, Serializer):
        return type_hint
    if type_hint in _SCALARS:
        return _SCALARS[type_hint]
    schema = schema_of(type_hint)
    encode, decode = structured_codec(type_hint, schema)
    return _assembled(schema, STRUCTURED, encode, decode, type_hint)


def _assembled(
    schema: str, code: int, encode: Dumps, decode: Loads, hint: Any, damage: tuple[type[Exception], ...] = ()
) -> Serializer:
    """A serializer, made of two functions that write and read the value without its header; reading may raise `damage`."""
    header = bytes((code,))
    expiring = code | EXPIRES
    pack_expiring = _expiring.pack

    def dumps(value: Any) -> bytes:
        return header + encode(value)

    def loads(buf: bytes) -> Any:
        if not buf:
            raise damaged(buf, schema)
        try:
            if buf[0] == code:
                return decode(buf[1:])
            if buf[0] == expiring:
                return decode(buf[_EXPIRY_END:])
        except damage:
            raise damaged(buf, schema) from None
        return _widened(buf, hint, schema)

    def dumps_with_expiry(value: Any, expiry: int) -> bytes:
        return pack_expiring(expiring, expiry) + encode(value)

    def dumps_until(expiry: int) -> Dumps:
        begin = pack_expiring(expiring, expiry)
        return lambda value: begin + encode(value)

    def check(value: Any) -> None:
        encode(value)

    return Serializer(schema, code, dumps, loads, dumps_with_expiry, check, dumps_until=dumps_until)


def _number(scalar: Scalar, accept: Callable[[Any], Any]) -> Serializer:
    """Like `_assembled`, with header and value packed at once: these are called once per key and batch."""
    schema, code, kind = scalar.name, scalar.code, scalar.type
    form = Struct(f"<{scalar.form}")
    whole = Struct(f"<B{scalar.form}").pack
    read = form.unpack_from
    expiring = code | EXPIRES
    pack_expiring, pack_value = _expiring.pack, form.pack

    def dumps(value: Any) -> bytes:
        if value.__class__ is not kind:
            value = accept(value)
        try:
            return whole(code, value)
        except StructError:
            raise _too_big(value) from None

    def loads(buf: bytes) -> Any:
        try:
            if buf[0] == code:
                return read(buf, 1)[0]
            if buf[0] == expiring:
                return read(buf, _EXPIRY_END)[0]
        except DAMAGE:
            raise damaged(buf, schema) from None
        return _widened(buf, kind, schema)

    def dumps_with_expiry(value: Any, expiry: int) -> bytes:
        if value.__class__ is not kind:
            value = accept(value)
        try:
            return pack_expiring(expiring, expiry) + pack_value(value)
        except StructError:
            raise _too_big(value) from None

    def check(value: Any) -> None:
        dumps(value)

    return Serializer(schema, code, dumps, loads, dumps_with_expiry, check)


DAMAGE = (StructError, ValueError, IndexError, OverflowError, InvalidOperation)


def damaged(buf: bytes, schema: str) -> CorruptError:
    return CorruptError(
        f"a stored value is damaged: its bytes {buf[:40].hex() or '(none)'} cannot be read as {schema}; "
        "run `stateflow verify`"
    )


def _too_big(value: object) -> StateTypeError:
    return StateTypeError(f"expected int of 64 bits, got {value}: declare the state as Decimal or str")


def _as_int(value: Any) -> int:
    if not isinstance(value, bool) and isinstance(value, numbers.Integral):
        return operator.index(value)
    raise wrong("int", value)


def _as_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise wrong("float", value)
    try:
        number = float(value)
    except OverflowError:
        raise no_float(value) from None
    exact = operator.index(value) if isinstance(value, numbers.Integral) else value
    # A NaN of numpy's is not equal to itself either.
    if number != exact and value == value:
        raise no_float(value)
    return number


def _as_bool(value: Any) -> bytes:
    if isinstance(value, bool) or type(value).__name__ in {"bool", "bool_"}:
        return b"\1" if value else b"\0"
    raise wrong("bool", value)


def _of(kind: type[Any], expected: str, encode: Dumps, refused: tuple[type[Any], ...] = ()) -> Dumps:
    def checked(value: Any) -> bytes:
        if not isinstance(value, kind) or isinstance(value, refused):
            raise wrong(expected, value)
        return encode(value)

    return checked


def _text(value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise StateTypeError(f"expected text, got half a surrogate pair in {value!r}") from None


def _instant_bytes(value: datetime) -> bytes:
    try:
        micros = micros_since_epoch(value)
    except UsageError as error:
        raise StateTypeError(str(error)) from None
    # A Timestamp of pandas is a datetime, and may have nanoseconds.
    if value.__class__ is not datetime and getattr(value, "nanosecond", False):
        raise StateTypeError(
            f"expected datetime, got {type(value).__name__} {value}, whose nanoseconds would be lost: cut them off with "
            'value.floor("us"), or keep an int of nanoseconds'
        )
    return _i64.pack(micros)


def _scalar(scalar: Scalar, encode: Dumps) -> Serializer:
    return _assembled(scalar.name, scalar.code, encode, READERS[scalar.code], scalar.type, DAMAGE)


READERS: dict[int, Loads] = {
    BOOL: lambda body: body[0] == 1,
    INT: lambda body: _i64.unpack(body)[0],
    FLOAT: lambda body: _f64.unpack(body)[0],
    STR: lambda body: body.decode(),
    BYTES: lambda body: body,
    DATE: lambda body: day(_i32.unpack(body)[0]),
    DATETIME: lambda body: instant(_i64.unpack(body)[0]),
    DECIMAL: lambda body: Decimal(body.decode()),
}
"""By header code: reads the bytes behind the header and the expiry."""


def _widened(buf: bytes, hint: Any, schema: str) -> Any:
    """A value that was written when its state had another type."""
    code = buf[0] & ~EXPIRES
    body = buf[_EXPIRY_END if buf[0] & EXPIRES else 1 :]
    try:
        if code == STRUCTURED:
            return msgspec.msgpack.decode(body, type=hint)
        if code in READERS and hint is not None:
            return msgspec.convert(READERS[code](body), type=hint)
    except (msgspec.MsgspecError, TypeError) as error:
        raise IncompatibleError(
            f"a stored value does not fit the declared type {schema}: {error}; declare the old type again"
        ) from None
    except DAMAGE:
        code = 0
    if code == 0 or code > RAW_CODE:
        raise damaged(buf, schema)
    raise IncompatibleError(f"a stored value was written in another way (code {code}) than {schema} is")


_WRITERS: dict[Any, Dumps] = {
    bool: _as_bool,
    str: _of(str, "str", _text),
    bytes: _of(bytes, "bytes", bytes),
    date: _of(date, "date", lambda value: _i32.pack(days_since_epoch(value)), (datetime,)),
    datetime: _of(datetime, "datetime", _instant_bytes),
    Decimal: _of(Decimal, "Decimal", lambda value: str(value).encode()),
}
_SCALARS: dict[Any, Serializer] = {
    int: _number(BY_TYPE[int], _as_int),
    float: _number(BY_TYPE[float], _as_float),
    **{hint: _scalar(BY_TYPE[hint], encode) for hint, encode in _WRITERS.items()},
}


def _custom(custom: CustomSerializer) -> Serializer:
    version = _u32.pack(custom.version)

    def encode(value: Any) -> bytes:
        data = custom.dumps(value)
        if not isinstance(data, bytes):
            raise StateTypeError(
                f"custom serializer {custom.id!r} made {type(data).__name__} where bytes are needed"
            )
        return version + data

    def decode(body: bytes) -> Any:
        return custom.loads(body[4:], _u32.unpack_from(body)[0])

    return _assembled(f"custom:{custom.id}:{custom.version}", CUSTOM, encode, decode, None)
