"""Properties that a pipeline gives its table, and that the table, which was there before, does not have: they count only for one that the
sink makes."""

from __future__ import annotations

from collections.abc import Mapping

from stateflow.spark.sinks.fit import altered


def unlike_properties(wanted: Mapping[str, str], there: Mapping[str, str]) -> dict[str, str]:
    """The wanted properties that have another value in the table, or none. Delta takes names and booleans in any case."""
    values = {name.lower(): value.lower() for name, value in there.items()}
    return {name: value for name, value in wanted.items() if values.get(name.lower()) != value.lower()}


def sentence(sink: str, table: str, in_sql: str, unlike: Mapping[str, str]) -> str:
    names = ", ".join(unlike)
    return (
        f"sink {sink!r} gives {table} properties that it does not have ({names}): they count when a sink makes the table, and this one "
        f"was there; set them with {altered(in_sql, unlike)}, or leave them out of options="
    )
