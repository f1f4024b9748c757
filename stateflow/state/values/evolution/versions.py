"""Stored values of a state whose type has changed: finds the schema that wrote a value, and converts the value to today's.

A record keeps every schema that may still have values, each with the number of the one that took its place. A value written
under number 0 has no mark, so a state that never changed is stored as it always was. `evolution` has the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec

from stateflow.errors import CorruptError, IncompatibleError
from stateflow.format.records import SchemaVersion, StateSchema
from stateflow.format.scalars import BY_NAME
from stateflow.state.values.evolution.decision import Evolution, RefusedError, evolution
from stateflow.state.values.evolution.evolved_columns import columns_converter, columns_evolution
from stateflow.state.values.plain import plain_reader
from stateflow.state.values.serializers import (
    CUSTOM,
    DAMAGE,
    EXPIRES,
    RAW_CODE,
    READERS,
    STRUCTURED,
    Loads,
    Serializer,
    damaged,
    serializer_for,
)

MARKED = 0x40
MOST = 255
"""The highest number of a schema."""

ConvertStored = Callable[[bytes], bytes]
"""A stored value without mark and expiry, as one of the next type."""

_EXPIRY_END = 9


def parted(raw: bytes) -> tuple[int, bytes, bytes]:
    """The number of the schema that wrote a value, its expiry as stored, and header and value without both."""
    head = raw[0]
    at = _EXPIRY_END if head & EXPIRES else 1
    number, begin = (raw[at], at + 1) if head & MARKED else (0, at)
    return number, raw[1:at], bytes((head & ~(EXPIRES | MARKED),)) + raw[begin:]


def marked(raw: bytes, number: int) -> bytes:
    """Marks a value with the number of the schema that wrote it."""
    if not number:
        return raw
    at = _EXPIRY_END if raw[0] & EXPIRES else 1
    return bytes((raw[0] | MARKED,)) + raw[1:at] + bytes((number,)) + raw[at:]


def versioned(base: Serializer, number: int, readers: dict[int, Loads]) -> Serializer:
    """`base`, whose values are marked with `number`; `readers` read header and value of earlier schemas."""
    code = base.code
    header, own = bytes((code,)), code | MARKED
    mark, mark_expiring, number_byte = bytes((own, number)), bytes((own | EXPIRES,)), bytes((number,))
    dumps_base, loads_base, dumps_expiring = base.dumps, base.loads, base.dumps_with_expiry
    first = loads_base if number == 0 else readers.get(0)

    def dumps(value: Any) -> bytes:
        return mark + dumps_base(value)[1:]

    def dumps_with_expiry(value: Any, expiry: int) -> bytes:
        raw = dumps_expiring(value, expiry)
        return mark_expiring + raw[1:_EXPIRY_END] + number_byte + raw[_EXPIRY_END:]

    def loads(buf: bytes) -> Any:
        if not buf:
            raise damaged(buf, base.schema)
        head = buf[0]
        if head < MARKED and first is not None:
            # Neither a mark nor an expiry, as most values were stored before their type first changed.
            return first(buf)
        if not head & MARKED and first is loads_base:
            return loads_base(buf)
        if head == own and buf[1:2] == number_byte:
            return loads_base(header + buf[2:])
        try:
            written, _, plain = parted(buf)
        except IndexError:
            raise damaged(buf, base.schema) from None
        if written == number:
            return loads_base(plain)
        reader = readers.get(written)
        if reader is None:
            raise unknown(written, base.schema)
        return reader(plain)

    if not number:
        return Serializer(base.schema, code, dumps_base, loads, dumps_expiring, base.check, evolved=True)
    return Serializer(base.schema, code, dumps, loads, dumps_with_expiry, base.check, evolved=True)


def unknown(number: int, schema: str) -> CorruptError:
    return CorruptError(
        f"a stored value was written under schema number {number} of its state, which the record does not have beside "
        f"{schema}; run `stateflow verify`"
    )


def code_of(schema: str) -> int:
    """The first byte of values of a type, where no code of the user's is there to write them."""
    if schema.startswith("custom:"):
        return CUSTOM
    if schema.startswith("columns{"):
        return RAW_CODE
    scalar = BY_NAME.get(schema)
    return scalar.code if scalar is not None and scalar.code else STRUCTURED


def followed(schema: StateSchema, version: SchemaVersion) -> Iterator[tuple[SchemaVersion, str]]:
    """The way of a version's values to today's type: each version with the text of the type that took its place."""
    numbered = {v.number: v for v in schema.versions}
    for _ in schema.versions:
        today = version.next == schema.version
        if not today and version.next not in numbered:
            raise unknown(version.next, schema.value)
        text = version.into or (schema.value if today else numbered[version.next].value)
        yield version, text
        if today:
            return
        version = numbered[version.next]
    # Whoever hands out a savepoint has written its record.
    raise CorruptError(
        f"the types {', '.join(v.value for v in schema.versions)} of a state follow each other in a circle"
    )


@lru_cache(maxsize=512)
def todays_form(schema: StateSchema) -> ConvertStored | None:
    """A function that makes any stored value of a state one of today's type, without a mark; None when every value is of it
    already.

    It needs no code of the pipeline. So it refuses values that only a function of `migrate=` converts.
    """
    if not schema.evolved:
        return None
    ways = {version.number: _way(schema, version) for version in schema.versions}
    number = schema.version

    def today(raw: bytes) -> bytes:
        try:
            written, expiry, plain = parted(raw)
        except IndexError:
            raise damaged(raw, schema.value) from None
        if written != number:
            way = ways.get(written)
            if way is None:
                raise unknown(written, schema.value)
            plain = way(plain)
        return bytes((plain[0] | EXPIRES,)) + expiry + plain[1:] if expiry else plain

    return today


def stored_reader(schema: StateSchema) -> Callable[[bytes], Any]:
    """A function that reads the stored values of a state as plain Python, whichever of its types they have."""
    read, today = plain_reader(schema), todays_form(schema)
    return read if today is None else lambda raw: read(today(raw))


def _way(schema: StateSchema, version: SchemaVersion) -> ConvertStored:
    converts: list[ConvertStored] = []
    for old, text in followed(schema, version):
        if old.migrated:
            return _needs_code(schema, version)
        try:
            convert = converter(old.value, text)
        except RefusedError as refusal:
            raise IncompatibleError(
                f"values of a state were stored as {old.value} and {refusal}: a newer stateflow wrote this, use that version"
            ) from None
        if convert is not None:
            converts.append(convert)

    def way(plain: bytes) -> bytes:
        for convert in converts:
            plain = convert(plain)
        return plain

    return way


def _needs_code(schema: StateSchema, version: SchemaVersion) -> ConvertStored:
    def refuse(plain: bytes) -> bytes:
        raise IncompatibleError(
            f"a value is still stored as {version.value}, and only migrate= in the pipeline's code makes {schema.value} of it: "
            "read it in a run, or make a native savepoint, which keeps it as it is"
        )

    return refuse


@lru_cache(maxsize=512)
def converter(old: str, new: str) -> ConvertStored | None:
    """Raises RefusedError; None when values stay as they are stored."""
    if old.startswith("columns{"):
        return columns_converter(old, new)
    found = evolution(old, new)
    code = code_of(new)
    if (found.convert is None and code_of(old) == code) or code == CUSTOM:
        return None
    change = found.convert or (lambda value: value)
    read = msgspec.msgpack.Decoder().decode
    write = _writer(new, code)

    def convert(plain: bytes) -> bytes:
        try:
            if plain[0] == STRUCTURED:
                return write(change(read(plain[1:])))
            return write(
                change(msgspec.to_builtins(READERS[plain[0]](plain[1:]), builtin_types=(bytes, datetime)))
            )
        except (*DAMAGE, msgspec.DecodeError, KeyError, TypeError, AttributeError):
            raise damaged(plain, old) from None

    return convert


def _writer(new: str, code: int) -> Callable[[Any], bytes]:
    if code == STRUCTURED:
        encode, header = msgspec.msgpack.Encoder().encode, bytes((STRUCTURED,))
        return lambda value: header + encode(value)
    kind = BY_NAME[new].type
    dumps = serializer_for(kind).dumps
    return lambda value: dumps(msgspec.convert(value, type=kind))


def changed(old: str, new: str) -> Evolution:
    """What the rules make of values of the old type. Raises RefusedError."""
    return columns_evolution(old, new) if new.startswith("columns{") else evolution(old, new)


def is_direct(schema: StateSchema, version: SchemaVersion) -> bool:
    """True if the reader of today's type reads a version's stored values, and gives the same values."""
    way = list(followed(schema, version))
    for place, (old, text) in enumerate(way):
        if old.migrated:
            return False
        try:
            found = evolution(old.value, text)
        except RefusedError:
            return False
        if not found.direct or (found.convert is not None and place < len(way) - 1):
            return False
    return True
