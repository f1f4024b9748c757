"""Parts of a type as Spark's DDL writes it, such as `array<struct<price:decimal(10,2)>>`."""

from __future__ import annotations

import re

from stateflow.pipelines.rows.row_type import parts_of_schema

_DECIMAL = re.compile(r"decimal(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?", re.I)
_INSIDE = re.compile(r"(array|map|struct)\s*<(.*)>", re.I | re.S)


def size_of(type: str) -> tuple[int, int] | None:
    """Precision and scale of a decimal."""
    match = _DECIMAL.fullmatch(type)
    return (int(match[1] or 10), int(match[2] or 0)) if match else None


def inside_of(type: str) -> tuple[str, str]:
    """Which kind of nested type it is, and what is between its brackets; both empty for a scalar."""
    match = _INSIDE.fullmatch(type.strip())
    return (match[1].lower(), match[2].strip()) if match else ("", "")


def fields_of(inside: str) -> list[tuple[str, str]]:
    """The fields of a struct, by what is between its brackets."""
    parts = (part.partition(":") for part in parts_of_schema(inside))
    return [(name.strip().strip("`"), type.strip()) for name, _, type in parts]
