"""Reads stored values as plain Python, one at a time, without the classes of their declaration: for look-ups. A value with an
Arrow type looks as in the table of the state; but a set is sorted, for equal ones may be stored in any order. A value without
one (a union, a record inside itself) is read as MessagePack has it, and the values of a custom serializer stay bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime
from functools import partial
from math import inf, isfinite
from struct import Struct
from typing import Any, NotRequired, TypedDict, Union

import msgspec

from stateflow.errors import IncompatibleError
from stateflow.format.instants import instant
from stateflow.format.records import StateSchema
from stateflow.format.scalars import BY_NAME, CODED, FIXED_COLUMNS, SCALARS, SHORT_MASK
from stateflow.state.values import schema_text as text
from stateflow.state.values.expiries import plain_value
from stateflow.state.values.serializers import (
    CUSTOM,
    DAMAGE,
    EXPIRES,
    RAW_CODE,
    READERS,
    STRUCTURED,
    damaged,
)

ReadPlain = Callable[[bytes], Any]
_Finish = Callable[[Any], Any] | None
"""Turns the value that msgspec read into the one to show; None when they are the same."""

_BEHIND_EXPIRY = 9
_HINTS: dict[str, Any] = {
    **{scalar.name: scalar.type for scalar in SCALARS},
    "time": str,
    "uuid": str,
    "null": None,
}
_CODES = {scalar.name: scalar.code for scalar in CODED}
_ORDERED = (int, str, bytes, date, datetime)
"""Of two different values of these types one is always the smaller one."""
_in_bytes = msgspec.msgpack.Encoder(order="deterministic").encode
_NO_NUMBERS = {inf: "Infinity", -inf: "-Infinity"}


def plain_reader(schema: StateSchema) -> ReadPlain:
    """The reader of a state's stored values, with or without an expiry."""
    if schema.kind == "columns":
        read = _columns_reader(schema.value)
        return lambda raw: read(plain_value(raw))
    if schema.value.startswith("custom:"):
        return partial(_read, schema.value, 0, None, None)
    hint, finish = _hint(_tree(schema.value))
    return partial(
        _read, schema.value, _CODES.get(schema.value, STRUCTURED), msgspec.msgpack.Decoder(hint), finish
    )


def jsonable(value: Any) -> Any:
    """As JSON has it: instants and decimals are texts, bytes Base64, keys of dicts texts, and so are floats that JSON
    does not know. A dict whose keys would be the same texts is a list of pairs, sorted."""
    if value is None or value.__class__ in (int, str, bool):
        return value
    if value.__class__ is float:
        return value if isfinite(value) else _NO_NUMBERS.get(value, "NaN")
    if isinstance(value, dict):
        shown = {_key_text(key): jsonable(one) for key, one in value.items()}
        if len(shown) == len(value):
            return shown
        return sorted(([jsonable(key), jsonable(one)] for key, one in value.items()), key=msgspec.json.encode)
    if isinstance(value, list | tuple):
        return [jsonable(one) for one in value]
    return msgspec.to_builtins(value)


def comparable(value: Any) -> Any:
    """Equal for equal values alone. In Python NaN is not equal to itself, and 1 is equal to True."""
    if value.__class__ is bool:
        return bool, value
    if value.__class__ is float and value != value:
        return float, "NaN"
    if isinstance(value, dict):
        return {comparable(key): comparable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return tuple(map(comparable, value))
    return value


def _key_text(key: Any) -> str:
    plain = key if key.__class__ is str else jsonable(key)
    return plain if isinstance(plain, str) else msgspec.json.encode(plain).decode()


def _tree(written: str) -> text.Tree:
    try:
        return text.read_schema(written)
    except text.UnreadableText as error:
        raise IncompatibleError(f"{error}: a newer stateflow wrote it, use that version") from None


def _read(schema: str, expected: int, decoder: Any, finish: _Finish, raw: bytes) -> Any:
    try:
        code = raw[0] & ~EXPIRES
        body = raw[_BEHIND_EXPIRY if raw[0] & EXPIRES else 1 :]
        if code in (CUSTOM, RAW_CODE):
            return body
        if code == STRUCTURED:
            value = decoder.decode(body)
        else:
            value = READERS[code](body)
            if code == expected:
                return value
            # Written when the state had another type.
            value = msgspec.convert(value, decoder.type)
        return value if finish is None else finish(value)
    except msgspec.ValidationError as error:
        raise IncompatibleError(
            f"a stored value does not fit the type {schema} of its state: {error}"
        ) from None
    except (*DAMAGE, KeyError, AttributeError, msgspec.DecodeError):
        raise damaged(raw, schema) from None


def _hint(tree: text.Tree, *, hashed: bool = False) -> tuple[Any, _Finish]:
    """The type that msgspec reads; `hashed` ones are keys of maps, which stay hashable."""
    match tree:
        case text.ScalarText(name):
            return _HINTS[name], None
        case text.OptionalText(item):
            hint, finish = _hint(item, hashed=hashed)
            return Union[hint, None], finish and _or_none(finish)  # noqa: UP007
        case text.ListText(kind, item):
            gather: Callable[[Any], Any] = tuple if hashed else list
            hint, finish = _hint(item, hashed=hashed)
            several = tuple[hint, ...] if hashed else list[hint]  # type: ignore[valid-type]
            if kind in ("set", "frozenset"):
                return several, partial(_sorted, gather, finish or _same)
            return several, finish and partial(_each, gather, finish)
        case text.TupleText(items):
            fields = [text.FieldText(f"_{number}", item) for number, item in enumerate(items, 1)]
            return _by_position(fields, hashed) if items else (list[Any], None)
        case text.MapText(key, value):
            return _map(*_hint(key, hashed=True), *_hint(value))
        case text.StructText(_, fields, True):
            return _by_position(fields, hashed)
        case text.StructText(_, fields) if hashed:
            return _positions(fields, True, array_like=False)
        case text.StructText(name, fields):
            return _struct(name, fields)
    return Any, None


def _map(key: Any, finish_key: _Finish, value: Any, finish: _Finish) -> tuple[Any, _Finish]:
    if finish_key is None and finish is None:
        return dict[key, value], None
    first, second = finish_key or _same, finish or _same
    return dict[key, value], lambda pairs: {first(k): second(v) for k, v in pairs.items()}


def _each(gather: Callable[[Any], Any], finish: Callable[[Any], Any], values: Any) -> Any:
    return gather(map(finish, values))


def _sorted(gather: Callable[[Any], Any], finish: Callable[[Any], Any], values: Any) -> Any:
    found = list(map(finish, values))
    if len({each.__class__ for each in found}) == 1 and found[0].__class__ in _ORDERED:
        return gather(sorted(found))
    return gather(sorted(found, key=_in_bytes))


def _same(value: Any) -> Any:
    return value


def _struct(name: str, fields: Sequence[text.FieldText]) -> tuple[Any, _Finish]:
    hints: dict[str, Any] = {}
    finishes: list[tuple[str, Callable[[Any], Any]]] = []
    for field in fields:
        hint, finish = _hint(field.type)
        hints[field.name] = NotRequired[hint] if field.defaulted else hint
        if finish is not None:
            finishes.append((field.name, finish))
    names = [field.name for field in fields]
    whole = not any(field.defaulted for field in fields)

    def finished(value: dict[str, Any]) -> dict[str, Any]:
        for field, finish in finishes:
            if field in value:
                value[field] = finish(value[field])
        return value if whole else {field: value.get(field) for field in names}

    # TypedDict is a function of values here, which type checkers do not follow.
    make: Any = TypedDict
    return make(name, hints), None if whole and not finishes else finished


def _by_position(fields: Sequence[text.FieldText], hashed: bool) -> tuple[Any, _Finish]:
    shape, take = _positions(fields, hashed, array_like=True)
    if hashed:
        return shape, take
    names = [field.name for field in fields]
    return shape, lambda value: dict(zip(names, take(value), strict=True))


def _positions(
    fields: Sequence[text.FieldText], hashed: bool, *, array_like: bool
) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """A struct of these fields, and what gives its values in their order."""
    declared: list[Any] = []
    finishes: list[Callable[[Any], Any]] = []
    for number, field in enumerate(fields):
        hint, finish = _hint(field.type, hashed=hashed)
        # Where a default may stand in, nothing is known of it here.
        declared.append((f"f{number}", Union[hint, None], None) if field.defaulted else (f"f{number}", hint))  # noqa: UP007
        finishes.append(_or_none(finish or _same))
    shape = msgspec.defstruct(
        "Positions",
        declared,
        array_like=array_like,
        frozen=True,
        rename={f"f{number}": field.name for number, field in enumerate(fields)},
        kw_only=True,
    )
    names = [f"f{number}" for number in range(len(fields))]
    return shape, lambda value: tuple(
        finish(getattr(value, name)) for name, finish in zip(names, finishes, strict=True)
    )


def _or_none(finish: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else finish(value)


def _columns_reader(written: str) -> ReadPlain:
    """Reads stored values of several columns, in the form of `column_values.py`."""
    try:
        columns = [(field.name, field.type) for field in text.read_columns(written)]
    except text.UnreadableText as error:
        raise IncompatibleError(f"{error}: a newer stateflow wrote it, use that version") from None
    names = [name for name, _ in columns]
    kinds = [kind.name if isinstance(kind, text.ScalarText) else "" for _, kind in columns]
    if all(kind in FIXED_COLUMNS for kind in kinds):
        mask = "H" if len(kinds) <= SHORT_MASK else "Q"
        layout = Struct(f"<B{mask}" + "".join(BY_NAME[kind].form for kind in kinds))
        read: Callable[[bytes], Sequence[Any]] = partial(_fixed, layout, kinds)
    else:
        hint: Any = tuple[tuple(Union[_HINTS.get(kind, Any), None] for kind in kinds)]  # type: ignore[misc] # noqa: UP007
        decode = msgspec.msgpack.Decoder(hint).decode
        read = lambda raw: decode(raw[1:])  # noqa: E731

    def reader(raw: bytes) -> dict[str, Any]:
        try:
            return dict(zip(names, read(raw), strict=True))
        except (*DAMAGE, msgspec.MsgspecError):
            raise damaged(raw, written) from None

    return reader


def _fixed(layout: Struct, kinds: Sequence[str], raw: bytes) -> list[Any]:
    _, nulls, *values = layout.unpack(raw)
    return [
        None if nulls >> at & 1 else _FROM_FIXED[kind](value)
        for at, (kind, value) in enumerate(zip(kinds, values, strict=True))
    ]


_FROM_FIXED: dict[str, Callable[[Any], Any]] = {"bool": bool, "int": int, "float": float, "datetime": instant}
