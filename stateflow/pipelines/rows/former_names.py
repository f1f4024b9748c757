"""Columns under their earlier names, `sf.field(aliases=[...])`: what is read may be older than the row class, or its maker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stateflow.pipelines.rows.row_type import Field, RowType, nested_in, quoted, row_type, text_in_sql
from stateflow.pipelines.rows.type_text import inside_of, parts_of_schema


def former_names(rows: RowType) -> list[tuple[Field, list[str]]]:
    """The fields with earlier names that no column has today."""
    names = {name.lower() for name in rows.names}
    former = (
        (field, [alias for alias in field.aliases if alias.lower() not in names]) for field in rows.fields
    )
    return [(field, aliases) for field, aliases in former if aliases]


def has_former_names(rows: RowType) -> bool:
    """Whether a field of the class, or of a class inside of it, has an earlier name."""
    return bool(former_names(rows)) or any(_has_inside(field.hint) for field in rows.fields)


def columns_to_read(rows: RowType) -> dict[str, str]:
    """The types of the columns by their names of today and their earlier names."""
    types = {field.name: _type_to_read(field.hint, field.type) for field in rows.fields}
    return types | {name: types[field.name] for field, names in former_names(rows) for name in names}


def as_of_today(rows: RowType) -> Sequence[str]:
    """SQL for each field over such columns."""
    return [f"{sql} as {quoted(name)}" for name, sql in _values(rows, "", 0).items()]


def _values(rows: RowType, before: str, depth: int) -> dict[str, str]:
    """SQL for each field by its name of today, where `before` stands before the names that were read."""
    former = {field.name: names for field, names in former_names(rows)}
    found = {}
    for field in rows.fields:
        names = [before + quoted(name) for name in (field.name, *former.get(field.name, ()))]
        found[field.name] = _value(field.hint, f"coalesce({', '.join(names)})", depth)
    return found


def _value(hint: Any, sql: str, depth: int) -> str:
    if not _has_inside(hint):
        return sql
    kind, of = nested_in(hint)
    each = f"v{depth}"
    if kind == "list":
        return f"transform({sql}, {each} -> {_value(of, each, depth + 1)})"
    if kind == "dict":
        return f"transform_values({sql}, (n{depth}, {each}) -> {_value(of, each, depth + 1)})"
    values = _values(row_type(of), f"{sql}.", depth).items()
    pairs = ", ".join(f"{text_in_sql(name)}, {value}" for name, value in values)
    return f"if({sql} is null, null, named_struct({pairs}))"


def _type_to_read(hint: Any, type: str) -> str:
    if not _has_inside(hint):
        return type
    kind, of = nested_in(hint)
    _, inside = inside_of(type)
    if kind == "list":
        return f"array<{_type_to_read(of, inside)}>"
    if kind == "dict":
        key, value = parts_of_schema(inside)
        return f"map<{key},{_type_to_read(of, value.strip())}>"
    fields = columns_to_read(row_type(of)).items()
    return f"struct<{','.join(f'{quoted(name)}:{each}' for name, each in fields)}>"


def _has_inside(hint: Any) -> bool:
    """Whether a class inside of a type has a field with an earlier name."""
    kind, of = nested_in(hint)
    return has_former_names(row_type(of)) if kind == "record" else bool(kind) and _has_inside(of)
