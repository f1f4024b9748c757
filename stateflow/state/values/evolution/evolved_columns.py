"""Columns added to and removed from the state of a columnar operator; `column_values` documents the bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from struct import Struct
from types import MappingProxyType
from typing import Any

import msgspec

from stateflow.format.instants import micros_since_epoch
from stateflow.format.records import StateSchema
from stateflow.format.scalars import BY_NAME, FIXED_COLUMNS, SHORT_MASK
from stateflow.state.values.evolution.decision import (
    Evolution,
    RefusedError,
    evolution,
    exact_float,
    refuse_taken_alias,
)
from stateflow.state.values.plain import plain_reader
from stateflow.state.values.schema_text import ScalarText, UnreadableText, read_columns
from stateflow.state.values.serializers import RAW_CODE

_ADVICE = "declare the column as int again, or give the operator another uid, under which it begins anew"


def columns_evolution(
    old: str, new: str, aliases: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> Evolution:
    """Columns are told by name: those that are new are null, and those that are gone are lost. Earlier names stand in the text of
    the new type, or in `aliases`. Raises RefusedError."""
    before, now = _columns(old), _columns(new)
    found = _sources(old, new, aliases)
    changes = [
        f"column {name} was {source}" if source else f"column {name} is new"
        for name, source in found.items()
        if source != name
    ]
    losses = [f"column {name} is gone" for name in before if name not in found.values()]
    for name, source in found.items():
        if source and before[source] != now[name]:
            try:
                evolution(before[source], now[name])
            except RefusedError:
                raise RefusedError(
                    f"column {name}: {before[source]} cannot become {now[name]} by itself, because values could be lost"
                ) from None
            changes.append(f"column {name}: {before[source]} becomes {now[name]}")
    places = [list(before).index(source) for source in found.values() if source]
    alike = ("columns change places",) if places != sorted(places) else ()
    moved_from = tuple((name, source) for name, source in found.items() if source != name)
    return Evolution(lambda value: value, False, (*changes, *losses), tuple(losses), alike, moved_from)


def _sources(old: str, new: str, aliases: Mapping[str, Sequence[str]]) -> dict[str, str | None]:
    """For each column what it was called; None for a new one."""
    before, now = _columns(old), _columns(new)
    known = {field.name: (*field.aliases, *aliases.get(field.name, ())) for field in read_columns(new)}
    for name in now:
        if name not in before:
            refuse_taken_alias(f"column {name}", name, known[name], before, now)
    return earlier_names(now, known, before)


def earlier_names(
    now: Collection[str], aliases: Mapping[str, Sequence[str]], before: Collection[str]
) -> dict[str, str | None]:
    """The stored name of each column: its own name, or else an alias. Rows with a former name alone are of before that column was renamed,
    whatever has got its name since."""
    former: dict[str, str] = {}
    for name in now:
        known = aliases.get(name, ()) if name not in before else ()
        if alias := next((each for each in known if each in before and each not in former.values()), ""):
            former[name] = alias
    own = {name: name for name in now if name in before and name not in former.values()}
    return {name: former.get(name, own.get(name)) for name in now}


def columns_converter(old: str, new: str) -> Callable[[bytes], bytes] | None:
    """From stored values of the old columns to those of the new ones."""
    columns_evolution(old, new)
    if old == new:
        return None
    read = plain_reader(StateSchema(id=0, kind="columns", value=old))
    now, sources = _columns(new), _sources(old, new, {})
    write = _writer(list(now.values()))
    numbers = [kind == "float" for kind in now.values()]

    def convert(plain: bytes) -> bytes:
        values = read(plain)
        row = [None if source is None else values[source] for source in sources.values()]
        return write(
            [
                exact_float(value, _ADVICE) if number and type(value) is int else value
                for value, number in zip(row, numbers, strict=True)
            ]
        )

    return convert


def _columns(written: str) -> dict[str, str]:
    try:
        fields = read_columns(written)
    except UnreadableText as error:
        raise RefusedError(f"{error}, so it cannot be compared") from None
    return {field.name: field.type.name if isinstance(field.type, ScalarText) else "" for field in fields}


def _writer(kinds: Sequence[str]) -> Callable[[Sequence[Any]], bytes]:
    if not all(kind in FIXED_COLUMNS for kind in kinds):
        header = bytes((RAW_CODE,))
        return lambda row: header + msgspec.msgpack.encode(row)
    mask = "H" if len(kinds) <= SHORT_MASK else "Q"
    layout = Struct(f"<B{mask}" + "".join(BY_NAME[kind].form for kind in kinds))

    def write(row: Sequence[Any]) -> bytes:
        nulls = sum(1 << at for at, value in enumerate(row) if value is None)
        return layout.pack(RAW_CODE, nulls, *map(_fixed, row))

    return write


def _fixed(value: Any) -> Any:
    if value is None:
        return 0
    return micros_since_epoch(value) if isinstance(value, datetime) else value
