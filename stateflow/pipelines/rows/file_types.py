"""Which types of a file's own columns Spark's readers of ORC and Parquet take as a row class declares them, with no value changed.

ORC converts any type into any other, cuts 1.9 to 1, and makes a null of what it cannot convert. Parquet refuses most, but reads what is
stored: the microseconds of a time for a field of `int`, and a number for the days of a date.
"""

from __future__ import annotations

from stateflow.format.scalars import COLUMN_TYPES
from stateflow.pipelines.rows.type_text import fields_of, inside_of, parts_of_schema, same_type, size_of

_FAMILIES = {name: column.family for column in COLUMN_TYPES for name in (column.name, column.alias) if name}
_FAMILIES["timestamp with local time zone"] = "time"
_DIGITS = {
    "tinyint": 3, "byte": 3, "smallint": 5, "short": 5, "int": 10, "integer": 10, "bigint": 19, "long": 19,
}  # fmt: skip
"""The most that an integer has, by its type."""
_UNKNOWN = "void"
"""What a column without any value is of."""
_UNSIGNED = (20, 0)
"""What Spark calls Parquet's unsigned numbers of 64 bits, and reads as an `int`, too. It refuses decimals that are stored as such."""


def unlike(have: str, want: str, format: str, path: str) -> tuple[str, str, str] | None:
    """The column, or the field inside of it, that would be misread, with both types; None where all values stay what they are."""
    have, want = have.strip(), want.strip()
    kind, of = inside_of(have)
    wanted, inside = inside_of(want)
    if kind != wanted:
        return None if have == _UNKNOWN else (path, have, want)
    if kind == "struct":
        there = {name.lower(): type for name, type in fields_of(of)}
        both = (
            (name, there[name.lower()], type) for name, type in fields_of(inside) if name.lower() in there
        )
        found = (unlike(own, type, format, f"{path}.{name}") for name, own, type in both)
        return next(filter(None, found), None)
    if kind:
        pairs = zip(parts_of_schema(of), parts_of_schema(inside), strict=True)
        return next(filter(None, (unlike(own, type, format, path) for own, type in pairs)), None)
    return (
        None if same_type(have, want) or _is_read(have.lower(), want.lower(), format) else (path, have, want)
    )


def _is_read(have: str, want: str, format: str) -> bool:
    if have == _UNKNOWN:
        return True
    of, into = size_of(have), size_of(want)
    if into is not None:
        digits, scale = of or (_DIGITS.get(have, 0), 0)
        return digits > 0 and scale <= into[1] and digits - scale <= into[0] - into[1]
    if of is not None:
        return want == "double" or (format == "parquet" and of == _UNSIGNED and want in ("bigint", "long"))
    family, wanted = _family(have), _family(want)
    if family == wanted == "int":
        return _DIGITS[have] <= _DIGITS[want]
    if family == "bytes":
        # Old writers of Parquet do not say that bytes are a text.
        return wanted == "bytes" or (wanted == "text" and format == "parquet")
    if family == "int":
        return wanted in ("double", "text")
    if family == "single":
        return wanted == "double"
    return family is not None and (family == wanted or (family, wanted) == ("text", "bytes"))


def _family(type: str) -> str | None:
    return "text" if type.startswith(("char(", "varchar(")) else _FAMILIES.get(type)
