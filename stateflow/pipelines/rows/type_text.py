"""Parts of a type as Spark's DDL writes it, such as `array<struct<price:decimal(10,2)>>`."""

from __future__ import annotations

import re

from stateflow.format.scalars import COLUMN_TYPES

_DECIMAL = re.compile(r"decimal(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?", re.I)
_INSIDE = re.compile(r"(array|map|struct)\s*<(.*)>", re.I | re.S)
_FIELD = re.compile(r"(`(?:[^`]|``)*`|[^\s:`]+)(?:\s*:\s*|\s+)(.+)", re.S)


def parts_of_schema(text: str) -> list[str]:
    """The parts of a text between the commas that stand in no bracket, and in no name in backticks."""
    parts, depth, start, in_name = [], 0, 0, False
    for i, char in enumerate(text):
        in_name ^= char == "`"
        if in_name:
            continue
        depth += (char in "<(") - (char in ">)")
        if char == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]


def size_of(type: str) -> tuple[int, int] | None:
    """Precision and scale of a decimal."""
    match = _DECIMAL.fullmatch(type)
    return (int(match[1] or 10), int(match[2] or 0)) if match else None


def inside_of(type: str) -> tuple[str, str]:
    """Which kind of nested type it is, and what is between its brackets; both empty for a scalar."""
    match = _INSIDE.fullmatch(type.strip())
    return (match[1].lower(), match[2].strip()) if match else ("", "")


def fields_of(inside: str) -> list[tuple[str, str]]:
    """The fields of a struct, by what is between its brackets. Spark takes `name type` as well as `name:type`."""
    found = (_FIELD.fullmatch(part.strip()) for part in parts_of_schema(inside))
    return [(field[1].strip("`"), field[2]) for field in found if field is not None]


def same_type(one: str, other: str) -> bool:
    """Whether two texts are one type, however Spark's DDL lets them be written."""
    return normalised(one) == normalised(other)


def normalised(type: str) -> str:
    """The text that all spellings of a type share."""
    kind, inside = inside_of(type)
    if kind == "struct":
        return f"struct<{','.join(f'{name}:{normalised(of)}' for name, of in fields_of(inside))}>"
    if kind:
        return f"{kind}<{','.join(map(normalised, parts_of_schema(inside)))}>"
    word = re.sub(r"^(numeric|dec)\b", "decimal", "".join(type.split()).lower())
    if size := size_of(word):
        return f"decimal({size[0]},{size[1]})"
    return next((known.name for known in COLUMN_TYPES if word == known.alias), word)
