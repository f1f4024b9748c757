"""Structured values as MessagePack: dataclasses as maps by field name, restored as what was declared."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from datetime import datetime, time
from typing import Any, is_typeddict

import msgspec

from stateflow.errors import CorruptError, IncompatibleError, StateTypeError, UsageError
from stateflow.format.instants import micros_since_epoch
from stateflow.state.keys.text import shown
from stateflow.state.values.schema import type_name

# How MessagePack shows a datetime without a zone; one with a zone is eight bytes. Text may look like it as well,
# so a match only starts the walk through the value, which costs ten times the writing.
_ISO_INSTANT = re.compile(rb"\d\d-\d\dT\d\d:\d\d:\d\d")

_LISTS = (list, tuple, set, frozenset)
# Dates, UUIDs and Decimals are written as texts are, and a time without the seconds of its zone. An object of a subclass is written as
# one of the class that is declared. A field may be called `time`.
_RECORD = re.compile(r"\b(?:struct|namedtuple) ")
_WRITTEN_AS_ANOTHER = re.compile(rf"\bstr\b|\btime\b(?!\??:)|{_RECORD.pattern}")
_GOT_NONE = re.compile(r"Expected `(.+?)`, got `(?:None|null)`")


def structured_codec(hint: Any, schema: str) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    """The writer and the reader of values of `hint`; `schema` says what may be inside."""
    dated = "datetime" in schema
    try:
        read = msgspec.msgpack.Decoder(hint).decode
    except TypeError as error:
        raise UsageError(f"{type_name(hint)} cannot be kept in state: {error}") from None
    write = msgspec.msgpack.Encoder().encode
    declared = hint if isinstance(hint, type) and not hasattr(hint, "__args__") else None
    if is_typeddict(hint):
        declared = dict
    # Comparing objects costs more than writing again, so it is for those only that are written as others are. The class of the whole
    # value is looked at anyway.
    begin = 1 if declared is not None and _RECORD.match(schema) else 0
    compared = _WRITTEN_AS_ANOTHER.search(schema, begin) is not None

    def encode(value: Any) -> bytes:
        if declared is not None and value.__class__ is not declared:
            raise wrong(type_name(hint), value)
        try:
            data = write(value)
            if dated and _ISO_INSTANT.search(data):
                _refuse_unreadable(value)
            # Nothing else checks the fields, and a value that cannot be read back as it is must not be stored.
            again = read(data)
            if (compared or write(again) != data) and not _are_equal(value, again):
                _refuse_changed(value, again)
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


def _are_equal(value: Any, again: Any) -> bool:
    try:
        return bool(value == again)
    except Exception:  # what a class makes of == is its own affair
        return False


def _refuse_changed(value: Any, again: Any) -> None:
    """Refuses what would come back as another value. An int is a float that is equal to it, a list or a set is what it holds, and a text
    may stand for what the declared type reads in it."""
    if isinstance(again, float) and isinstance(value, int):
        if value != again:
            raise no_float(value)
    elif isinstance(value, str) and not isinstance(again, str):
        _refuse_unreadable(again)
    elif isinstance(value, Mapping) and isinstance(again, Mapping):
        if len(value) != len(again):
            raise _lost_keys(value, again)
        for (key, inner), (key_again, inner_again) in zip(value.items(), again.items(), strict=True):
            _refuse_changed(key, key_again)
            _refuse_changed(inner, inner_again)
    elif isinstance(value, _LISTS) and isinstance(again, (list, tuple)):
        if len(value) != len(again):
            raise _changed(value, again)
        for inner, inner_again in zip(value, again, strict=True):
            _refuse_changed(inner, inner_again)
    elif isinstance(value, _LISTS) and isinstance(again, (set, frozenset)):
        _refuse_changed_items(value, again)
    elif type(value) is type(again) and (names := _fields_of(again)):
        for name in names:
            _refuse_changed(getattr(value, name, None), getattr(again, name, None))
    elif not _are_same(value, again):
        raise _changed(value, again)
    elif isinstance(again, time) and not _are_equal(value, again):
        raise StateTypeError(
            f"the time {value} would come back as {again}, for the offset of its zone is stored in whole minutes: give it such a zone, or declare "
            "datetime, which is stored in UTC"
        )


def _refuse_changed_items(value: Any, again: Any) -> None:
    for inner in value:
        if inner in again or any(_are_same(inner, each) for each in again):
            continue
        raise no_float(inner) if isinstance(inner, int) else _changed(value, again)
    if len(value) != len(again):
        raise _changed(value, again)


def _are_same(value: Any, again: Any) -> bool:
    """Also where nothing is equal: a NaN, an hour that a clock shows twice."""
    if _are_equal(value, again):
        return True
    return type(value) is type(again) and msgspec.msgpack.encode(value) == msgspec.msgpack.encode(again)


def _changed(value: Any, again: Any) -> StateTypeError:
    kind, kind_again = type(value).__name__, type(again).__name__
    return StateTypeError(
        f"the {kind} {shown(value)} would come back as the {kind_again} {shown(again)}: "
        + (
            "let its class make the same of it each time, in __post_init__ and in what it declares"
            if kind == kind_again
            else f"store one of {kind_again}, or declare {kind}"
        )
    )


def _lost_keys(value: Mapping[Any, Any], again: Mapping[Any, Any]) -> StateTypeError:
    if any(isinstance(key, float) for key in again):
        return StateTypeError("two keys of a dict are one float: declare its keys as int, Decimal or str")
    lost = next(key for key in value if key not in again)
    return StateTypeError(f"a dict has the key {lost!r}, which would be lost: leave it out, or declare it")


def _fields_of(value: Any) -> tuple[str, ...]:
    """The names of the fields of a record: a dataclass, a Struct, a class of attrs. Nothing else has any."""
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if dataclasses.is_dataclass(value):
        return tuple(field.name for field in dataclasses.fields(value))
    return tuple(field.name for field in getattr(type(value), "__attrs_attrs__", ()))


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
    elif isinstance(value, _LISTS):
        for inner in value:
            _refuse_unreadable(inner)
    else:
        for name in _fields_of(value):
            _refuse_unreadable(getattr(value, name, None))
