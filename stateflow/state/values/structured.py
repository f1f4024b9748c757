"""Structured values as MessagePack: dataclasses as maps by field name, restored as what was declared."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from stateflow.errors import CorruptError, IncompatibleError, StateTypeError, UsageError
from stateflow.format.instants import micros_since_epoch
from stateflow.state.keys.text import shown
from stateflow.state.values.schema import type_name

# How MessagePack shows a datetime without a zone; one with a zone is eight bytes. Text may look like it as well,
# so a match only starts the walk through the value, which costs ten times the writing.
_ISO_INSTANT = re.compile(rb"\d\d-\d\dT\d\d:\d\d:\d\d")

# How MessagePack marks ints of eight bytes. Other bytes may look like it: of a value that is written again as it was, none was lost.
_UNSIGNED, _SIGNED = 0xCF, 0xD3

_GOT_NONE = re.compile(r"Expected `(.+?)`, got `(?:None|null)`")


def structured_codec(hint: Any, schema: str) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    """The writer and the reader of values of `hint`; `schema` says what may be inside."""
    dated, with_floats = "datetime" in schema, "float" in schema
    try:
        read = msgspec.msgpack.Decoder(hint).decode
    except TypeError as error:
        raise UsageError(f"{type_name(hint)} cannot be kept in state: {error}") from None
    write = msgspec.msgpack.Encoder().encode
    declared = hint if isinstance(hint, type) and not hasattr(hint, "__args__") else None

    def encode(value: Any) -> bytes:
        if declared is not None and value.__class__ is not declared:
            raise wrong(type_name(hint), value)
        try:
            data = write(value)
            if dated and _ISO_INSTANT.search(data):
                _refuse_unreadable(value)
            # Nothing else checks the fields, and a value that cannot be read back must not be stored.
            again = read(data)
            if with_floats and (_UNSIGNED in data or _SIGNED in data) and write(again) != data:
                _refuse_lost_digits(value, again)
        except StateTypeError:
            raise
        except msgspec.ValidationError as error:
            raise StateTypeError(
                f"expected {type_name(hint)}, but in the value {_lowered(str(error))}{_without_none(str(error))}"
            ) from None
        except OverflowError:
            if dated:
                _refuse_unreadable(value)
            raise StateTypeError(
                f"a value of {type_name(hint)} has an int beyond 64 bits, which is as far as state holds them: declare it there as Decimal or str"
            ) from None
        except (TypeError, ValueError) as error:
            raise StateTypeError(f"expected {type_name(hint)}, got {type(value).__name__}: {error}") from None
        return data

    def decode(body: bytes) -> Any:
        try:
            return read(body)
        except msgspec.ValidationError as error:
            raise IncompatibleError(
                f"a stored value does not fit {type_name(hint)}: {error}; give new fields a default and keep "
                "the types of old ones"
            ) from None
        except (msgspec.DecodeError, ValueError) as error:
            raise CorruptError(f"a stored {type_name(hint)} is damaged: {error}") from None

    return encode, decode


def wrong(expected: str, value: object) -> StateTypeError:
    return StateTypeError(f"expected {expected}, got {type(value).__name__}: {shown(value)}")


def no_float(value: Any) -> StateTypeError:
    return StateTypeError(
        f"expected float, got {type(value).__name__} {shown(value)}, which no float is equal to: declare int, Decimal or str, or round it "
        "yourself with float(value)"
    )


def _refuse_lost_digits(value: Any, again: Any) -> None:
    """Refuses an int in the place of a float if it would come back as another number."""
    if isinstance(again, float):
        if isinstance(value, int) and value != again:
            raise no_float(value)
    elif isinstance(value, Mapping) and isinstance(again, Mapping):
        if len(value) != len(again):
            raise StateTypeError("two keys of a dict are one float: declare its keys as int, Decimal or str")
        for (key, inner), (key_again, inner_again) in zip(value.items(), again.items(), strict=True):
            _refuse_lost_digits(key, key_again)
            _refuse_lost_digits(inner, inner_again)
    elif isinstance(value, (list, tuple)):
        for inner, inner_again in zip(value, again, strict=False):
            _refuse_lost_digits(inner, inner_again)
    elif isinstance(value, (set, frozenset)):
        for inner in value:
            if isinstance(inner, int) and inner not in again:
                raise no_float(inner)
    elif dataclasses.is_dataclass(value) or isinstance(value, msgspec.Struct):
        for name in _fields_of(value):
            _refuse_lost_digits(getattr(value, name), getattr(again, name))


def _fields_of(value: Any) -> tuple[str, ...]:
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    return tuple(field.name for field in dataclasses.fields(value))


def _lowered(message: str) -> str:
    return message[:1].lower() + message[1:]


def _without_none(message: str) -> str:
    """The advice about a None in the place of another value: rows have one where a column is null."""
    expected = _GOT_NONE.match(message)
    return f": declare `{expected[1]} | None`, or give it a value before it is stored" if expected else ""


def _refuse_unreadable(value: Any) -> None:
    """A datetime without a zone would be stored as text and come back as another instant elsewhere; one beyond the years of UTC would
    not come back."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise StateTypeError(
                f"expected datetime with a time zone, got {value.isoformat(sep=' ')}: "
                "give it one, for example value.replace(tzinfo=datetime.UTC)"
            )
        try:
            micros_since_epoch(value)
        except UsageError as error:
            raise StateTypeError(str(error)) from None
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            _refuse_unreadable(key)
            _refuse_unreadable(inner)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for inner in value:
            _refuse_unreadable(inner)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            _refuse_unreadable(getattr(value, field.name))
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            _refuse_unreadable(getattr(value, name))
