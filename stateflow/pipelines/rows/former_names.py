"""Columns under their earlier names, `sf.field(aliases=[...])`: what is read may be older than the row class, or its maker."""

from __future__ import annotations

from collections.abc import Sequence

from stateflow.pipelines.rows.row_type import Field, RowType, quoted


def former_names(rows: RowType) -> list[tuple[Field, list[str]]]:
    """The fields with earlier names that no column has today."""
    names = {name.lower() for name in rows.names}
    former = (
        (field, [alias for alias in field.aliases if alias.lower() not in names]) for field in rows.fields
    )
    return [(field, aliases) for field, aliases in former if aliases]


def columns_to_read(rows: RowType) -> dict[str, str]:
    """The types of the columns by their names of today and their earlier names."""
    former = {name: field.type for field, names in former_names(rows) for name in names}
    return {**{field.name: field.type for field in rows.fields}, **former}


def as_of_today(rows: RowType) -> Sequence[str]:
    """SQL for each field over such columns."""
    former = {field.name: names for field, names in former_names(rows)}
    columns = ((name, (name, *former.get(name, ()))) for name in rows.names)
    return [f"coalesce({', '.join(map(quoted, names))}) as {quoted(name)}" for name, names in columns]
