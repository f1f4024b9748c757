"""Keys as bytes in value order, one at a time or a column at a time; `encoding` documents the bytes."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from struct import Struct
from struct import error as StructError
from typing import Any

import numpy as np

from stateflow.errors import CorruptError, UsageError
from stateflow.format.encoding import EMPTY_NAMESPACE, SIGN
from stateflow.format.instants import (
    day,
    days_since_epoch,
    instant,
    micros_since_epoch,
    scaled_decimal,
    unscaled_decimal,
)
from stateflow.format.scalars import KEY_TYPES
from stateflow.state.keys.columns import encode_columns

_u64 = Struct(">Q")
_u32 = Struct(">I")
_pack_u64 = _u64.pack
_pack_u32 = _u32.pack
_DAY_SIGN = 1 << 31
_DECIMAL_SIGN = 1 << 127
_BOOLS = (b"\x00", b"\x01")

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes, int], tuple[Any, int]]


class KeyCodec:
    """Encodes keys of one shape: a plain value for a single type, else a tuple, named when fields are given."""

    __slots__ = ("decode", "encode", "fields", "make", "types")

    encode: Encode
    """encode(key) -> its bytes."""
    decode: Decode
    """decode(buf, pos) -> the key that starts at `pos`, and the position after it."""
    make: Callable[..., Any]
    """make(*parts) -> the composite key of these parts."""

    def __init__(self, types: Sequence[str], fields: Sequence[str] = ()) -> None:
        unknown = [name for name in types if name not in KEY_TYPES]
        if unknown or not types:
            raise UsageError(
                f"{', '.join(unknown) or 'nothing'} cannot be a key type: use {', '.join(KEY_TYPES)}"
            )
        if fields and len(fields) != len(types):
            raise UsageError(f"a key has {len(types)} parts but {len(fields)} names: {', '.join(fields)}")
        self.types = tuple(types)
        self.fields = tuple(fields)
        self.make = _named(self.fields) if fields else _tuple
        if len(types) == 1:
            self.encode, self.decode = _PARTS[types[0]]
        else:
            self.encode, self.decode = _composite(self.types, getattr(self.make, "_make", tuple))

    def encode_many(
        self,
        columns: Sequence[Any],
        key_groups: np.ndarray[Any, Any],
        state_id: int,
    ) -> list[bytes]:
        """Full keys of whole columns (numpy or pyarrow, one per part), in the order of the rows."""
        if len(columns) != len(self.types):
            raise UsageError(f"a key of {len(self.types)} parts was given {len(columns)} columns")
        return encode_columns(self.types, columns, np.asarray(key_groups), state_id, EMPTY_NAMESPACE)

    def __repr__(self) -> str:
        return f"KeyCodec({self.types!r})"


def _wrong(expected: str, value: object) -> UsageError:
    if value is None:
        return UsageError(f"a key is null where {expected} was declared: drop such rows or give them a value")
    return UsageError(f"a key is {value!r} ({type(value).__name__}) where {expected} was declared")


def _short(buf: bytes) -> CorruptError:
    return CorruptError(f"the state key ...{buf.hex()} ends too early; run `stateflow verify`")


def _far(what: str) -> UsageError:
    """Spark has later and earlier ones than Python, and an operator keeps them as they are: nothing is damaged."""
    return UsageError(
        f"a state key holds a {what} outside of the years 1 to 9999, which Python has no value for: let the pipeline drop or correct "
        "such rows before the operator, or read its state as a table, with `stateflow state export`"
    )


def _encode_bool(value: Any) -> bytes:
    if value is True or value is False:
        return _BOOLS[value]
    if isinstance(value, np.bool_):
        return _BOOLS[bool(value)]
    raise _wrong("a bool", value)


def _decode_bool(buf: bytes, pos: int) -> tuple[bool, int]:
    if pos >= len(buf):
        raise _short(buf)
    return buf[pos] == 1, pos + 1


def _encode_int(value: Any) -> bytes:
    if value.__class__ is int:
        try:
            return _pack_u64(value + SIGN)
        except StructError:
            raise UsageError(f"key {value} does not fit into 64 bits: use a str or Decimal key") from None
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return _encode_int(int(value))
    raise _wrong("an int", value)


def _decode_int(buf: bytes, pos: int) -> tuple[int, int]:
    try:
        return _u64.unpack_from(buf, pos)[0] - SIGN, pos + 8
    except StructError:
        raise _short(buf) from None


def _encode_str(value: Any) -> bytes:
    if not isinstance(value, str):
        raise _wrong("a str", value)
    try:
        raw = value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"key {value!r} holds half a surrogate pair, which is no text: clean it") from None
    if b"\0" in raw:
        raw = raw.replace(b"\0", b"\0\xff")
    return raw + b"\0\1"


def _encode_bytes(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise _wrong("bytes", value)
    return bytes(value).replace(b"\0", b"\0\xff") + b"\0\1"


def _decode_bytes(buf: bytes, pos: int) -> tuple[bytes, int]:
    # 00 is always followed by FF (a zero) or 01 (the end), so the first 00 01 is the end.
    end = buf.find(b"\0\1", pos)
    if end < 0:
        raise _short(buf)
    raw = buf[pos:end]
    return (raw.replace(b"\0\xff", b"\0") if b"\0" in raw else raw), end + 2


def _decode_str(buf: bytes, pos: int) -> tuple[str, int]:
    raw, end = _decode_bytes(buf, pos)
    try:
        return raw.decode(), end
    except UnicodeDecodeError:
        raise CorruptError(f"the state key ...{buf.hex()} is not text; run `stateflow verify`") from None


def _encode_date(value: Any) -> bytes:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise _wrong("a date", value)
    return _pack_u32(days_since_epoch(value) + _DAY_SIGN)


def _decode_date(buf: bytes, pos: int) -> tuple[date, int]:
    try:
        return day(_u32.unpack_from(buf, pos)[0] - _DAY_SIGN), pos + 4
    except StructError:
        raise _short(buf) from None
    except (ValueError, OverflowError):
        raise _far("date") from None


def _encode_datetime(value: Any) -> bytes:
    if not isinstance(value, datetime):
        raise _wrong("a datetime", value)
    return _pack_u64(micros_since_epoch(value) + SIGN)


def _decode_datetime(buf: bytes, pos: int) -> tuple[datetime, int]:
    try:
        return instant(_u64.unpack_from(buf, pos)[0] - SIGN), pos + 8
    except StructError:
        raise _short(buf) from None
    except OverflowError:
        raise _far("timestamp") from None


def _encode_decimal(value: Any) -> bytes:
    if not isinstance(value, Decimal):
        raise _wrong("a Decimal", value)
    return (unscaled_decimal(value) + _DECIMAL_SIGN).to_bytes(16, "big")


def _decode_decimal(buf: bytes, pos: int) -> tuple[Decimal, int]:
    if pos + 16 > len(buf):
        raise _short(buf)
    return scaled_decimal(int.from_bytes(buf[pos : pos + 16], "big") - _DECIMAL_SIGN), pos + 16


_PARTS: dict[str, tuple[Encode, Decode]] = {
    "bool": (_encode_bool, _decode_bool),
    "int": (_encode_int, _decode_int),
    "str": (_encode_str, _decode_str),
    "bytes": (_encode_bytes, _decode_bytes),
    "date": (_encode_date, _decode_date),
    "datetime": (_encode_datetime, _decode_datetime),
    "decimal": (_encode_decimal, _decode_decimal),
}


def _tuple(*parts: Any) -> tuple[Any, ...]:
    return parts


def _named(fields: tuple[str, ...]) -> Callable[..., Any]:
    make: Any = namedtuple  # its fields are known only now
    return make("Key", fields, rename=True)  # type: ignore[no-any-return]


def _composite(types: tuple[str, ...], gather: Callable[[list[Any]], Any]) -> tuple[Encode, Decode]:
    encoders = [_PARTS[name][0] for name in types]
    decoders = [_PARTS[name][1] for name in types]
    count = len(types)

    def encode(key: Any) -> bytes:
        if not isinstance(key, tuple) or len(key) != count:
            raise _wrong(f"a tuple of {count} ({', '.join(types)})", key)
        return b"".join([part(value) for part, value in zip(encoders, key, strict=True)])

    def decode(buf: bytes, pos: int) -> tuple[Any, int]:
        values = []
        for part in decoders:
            value, pos = part(buf, pos)
            values.append(value)
        return gather(values), pos

    if all(name == "int" for name in types):
        pack = Struct(f">{count}Q").pack
        slow = encode

        def encode(key: Any) -> bytes:
            # A bool or a wrong length must not slip through the fast path.
            if isinstance(key, tuple) and len(key) == count and all(part.__class__ is int for part in key):
                try:
                    return pack(*[part + SIGN for part in key])
                except StructError:
                    pass
            return slow(key)

    return encode, decode
