"""Keys as people and JSON write them: `42`, `2026-01-01`, `a,7`, `["a", 7]`, `{"user": "a", "day": 7}`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec

from stateflow.errors import UsageError
from stateflow.format.scalars import BY_NAME

Key = Sequence[tuple[str, str]]
"""The columns of a key and their types, as a record keeps them; names may be empty."""
_FINER = re.compile(r"[.,]\d{6}\d*[1-9]")
"""Digits behind the microseconds, which reading a time would drop."""
_LENIENT = {"bool": re.compile("true|false"), "int": re.compile("-?[0-9]+")}
"""Texts that are read as another type. What JSON says beyond that, such as 4.0, goes through a float, which is another key."""


def key_of_text(key: Key, text: str) -> Any:
    """A single key is the text itself; a composite one is JSON (array or object), or its parts with commas between."""
    if len(key) == 1:
        return _part(key[0], text)
    if text.lstrip()[:1] in ("[", "{"):
        try:
            plain = plain_of_json(text)
        except ValueError:
            raise UsageError(f"the key {shown(text)} is not JSON: {_shape(key)}") from None
        return key_of_plain(key, plain)
    return key_of_plain(key, text.split(","))


def key_of_plain(key: Key, value: Any) -> Any:
    """From what JSON can hold: a scalar, or for a composite key an array or an object by column."""
    if len(key) == 1:
        if isinstance(value, dict) and set(value) == {key[0][0]}:
            value = value[key[0][0]]
        elif isinstance(value, list) and len(value) == 1:
            value = value[0]
        return _part(key[0], value)
    if isinstance(value, dict) and set(value) == {name for name, _ in key}:
        value = [value[name] for name, _ in key]
    if not isinstance(value, list | tuple) or len(value) != len(key):
        raise UsageError(f"the key {shown(value)} does not have {len(key)} parts: {_shape(key)}")
    return tuple(_part(part, each) for part, each in zip(key, value, strict=True))


def plain_of_json(text: str) -> Any:
    """What a JSON text says, with its decimal numbers exact: as floats they would be other keys. ValueError if it is not JSON."""
    try:
        return json.loads(text, parse_float=Decimal)
    except (
        ArithmeticError,
        RecursionError,
    ) as error:  # an exponent that no Decimal has, or brackets without end
        raise ValueError(f"JSON beyond what can be read: {type(error).__name__}") from None


def forms_of_key(key: Key) -> str:
    """How such a key is written, for whoever has written one that nothing is stored under."""
    if len(key) > 1:
        parts = ", ".join(f"{name} {kind}".strip() for name, kind in key)
        return f"({parts}) as a JSON array, or its parts with commas between"
    name, kind = key[0]
    return f"{name} {kind}: {BY_NAME[kind].key_example}".strip()


def text_of_key(value: Any) -> str:
    """The text that `key_of_text` reads back: so JSON objects have the keys of maps."""
    if isinstance(value, str):
        return value
    plain = msgspec.to_builtins(value)
    return plain if isinstance(plain, str) else msgspec.json.encode(plain).decode()


def _part(part: tuple[str, str], value: Any) -> Any:
    name, kind = part
    # Only numbers and truth values are read leniently: a lenient datetime would take 5 for five seconds after 1970.
    lenient = isinstance(value, str) and kind in _LENIENT and _LENIENT[kind].fullmatch(value) is not None
    try:
        part_value = msgspec.convert(value, BY_NAME[kind].type, strict=not lenient)
    except (msgspec.ValidationError, OverflowError):
        part_value = None
    if part_value is None or (isinstance(part_value, datetime) and not _is_instant(part_value, value)):
        what = f"key column {name!r}" if name else "the key"
        # A number of JSON came as a Decimal, which nobody has written.
        as_written = shown(value) if not isinstance(value, Decimal) else str(value)[:80]
        raise UsageError(f"{what} is {kind}, and {as_written} is not one: write {BY_NAME[kind].key_example}")
    return part_value


def _is_instant(read: datetime, written: Any) -> bool:
    """Whether a key can be this moment: one with a zone, in the years 1 to 9999 of UTC, that has no digit behind microseconds."""
    if read.tzinfo is None or (isinstance(written, str) and _FINER.search(written)):
        return False
    try:
        read.astimezone(UTC)
    except OverflowError:
        return False
    return True


def _shape(key: Key) -> str:
    return f"write {forms_of_key(key)}"


def shown(value: Any) -> str:
    """A value as errors show it: cut when it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
