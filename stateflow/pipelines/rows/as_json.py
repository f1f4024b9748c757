"""Rows as objects of JSON, in Spark's SQL: one way for all who write them, which Spark's reader takes back as they were."""

from __future__ import annotations

from collections.abc import Sequence

from stateflow.pipelines.rows.row_type import quoted, text_in_sql

_OPTIONS = {
    # Spark's own formats would leave out what is below a millisecond.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
    "ignoreNullFields": "false",
}


def as_json(columns: Sequence[str]) -> str:
    """An expression for these columns as one object."""
    options = ", ".join(f"'{name}', {text_in_sql(value)}" for name, value in _OPTIONS.items())
    return f"to_json(struct({', '.join(map(quoted, columns))}), map({options}))"
