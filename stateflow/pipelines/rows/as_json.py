"""Rows as objects of JSON, in Spark's SQL: one way for all who write them, which Spark's reader takes back as they were."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from stateflow.errors import IncompatibleError
from stateflow.pipelines.rows.row_type import quoted, text_in_sql

INSTANTS = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
"""How text has them: Spark's own formats would leave out what is below a millisecond."""
_OPTIONS = {
    **INSTANTS,
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
    "ignoreNullFields": "false",
}
_KEY_THAT_IS_NO_TEXT = re.compile(r"map<(binary|date|timestamp|struct<|array<|map<|interval)")


def as_json(columns: Sequence[str]) -> str:
    """An expression for these columns as one object."""
    return value_as_json(f"struct({', '.join(map(quoted, columns))})")


def value_as_json(nested: str) -> str:
    """An expression for a struct, an array or a map."""
    return f"to_json({nested}, {_options()})"


def from_json(text: str, columns: Iterable[tuple[str, str]]) -> str:
    """An expression for the struct of these columns, by names and types, that `as_json` has written as `text`."""
    schema = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns)
    return f"from_json({text}, {text_in_sql(schema)}, {_options()})"


def _options() -> str:
    options = ", ".join(f"'{name}', {text_in_sql(value)}" for name, value in _OPTIONS.items())
    return f"map({options})"


def check_as_json(what: str, columns: Iterable[tuple[str, str]]) -> None:
    """IncompatibleError for a column, by name and type, with maps whose keys Spark would write as nobody reads them: bytes as the name
    of a Java object, a date as a number."""
    for name, kind in columns:
        if has_key_that_is_no_text(kind):
            raise IncompatibleError(
                f"column {name!r} is {kind}, and JSON in {what} has texts alone as the keys of a map: make texts of them in a transform() before the sink"
            )


def has_key_that_is_no_text(kind: str) -> bool:
    """Whether a type, as Spark writes it, has such maps."""
    return _KEY_THAT_IS_NO_TEXT.search(kind) is not None
