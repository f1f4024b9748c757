"""Which column of today was which at the time of a record, where a renamed one has left its name to another. Pure."""

from __future__ import annotations

from collections.abc import Collection

from stateflow.pipelines.rows.row_type import Field, RowType


def reused_names(rows: RowType) -> dict[str, str]:
    """By former name of a column that another one has today, the column that had it."""
    return {
        alias: field.name
        for field in rows.fields
        for alias in field.aliases
        if alias in rows.names and alias != field.name
    }


def reused_since(rows: RowType, recorded: Collection[str]) -> dict[str, str]:
    """The same of names that the renamed column still had when rows had the `recorded` columns. Whoever had both told the two apart."""
    reused = reused_names(rows)
    was = {field.name: _former_name(field, recorded, reused) for field in rows.fields}
    return {old: name for old, name in reused.items() if was[name] == old}


def _former_name(field: Field, recorded: Collection[str], reused: Collection[str]) -> str | None:
    """What the column was called then. A name that nobody else has today tells it more surely than one that is reused."""
    names = (field.name, *(alias for alias in field.aliases if alias not in reused), *field.aliases)
    return next((name for name in names if name in recorded), None)
