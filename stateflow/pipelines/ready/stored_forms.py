"""What values of a column mean in state, where the type of the state's own column does not say it.

A decimal is stored as its unscaled number and a date as its day, so a column that has changed between them, or the digits behind the
point, would be read as other values.
"""

from __future__ import annotations

from stateflow.format.scalars import FLOATS, INTEGERS
from stateflow.pipelines.rows.type_text import inside_of, normalised, size_of

PLAIN = "plain values"


def form_of(type_: str) -> str:
    """Empty where the state's column says it."""
    if (digits := size_of(type_)) is not None:
        return f"decimals with {digits[1]} digits behind the point"
    return "dates" if type_ == "date" else ""


def is_ambiguous(type_: str) -> bool:
    """Whether a column of another meaning is stored in the same type of state."""
    return bool(form_of(type_)) or type_ in (*INTEGERS, "binary")


def row_form(type_: str) -> str:
    """The same for whole rows side by side in bytes, where a decimal keeps its point. Nested values are read by today's type, so it is all of that."""
    if inside_of(type_)[0]:
        return normalised(type_)
    family = type_.partition("(")[0]
    return f"{family} values" if family in _UNSAID else PLAIN


_UNSAID = ("date", "decimal", "timestamp_ltz", "timestamp_ntz")
"""Types of columns that a record calls int, bytes or str, as it calls others."""


def is_same_form(recorded: str, now: str) -> bool:
    """Whether values are read as they were stored, as far as the record tells. Earlier ones told of a nested type which one it was, such as `struct values`."""
    return recorded in (now, f"{inside_of(now)[0]} values")


def packed_form(type_: str) -> str:
    """The same for values that lie side by side in bytes, of which the state's column says nothing."""
    if type_ in INTEGERS:
        return "whole numbers"
    if type_ in FLOATS:
        return "floats"
    return form_of(type_) or ("instants" if type_.startswith("timestamp") else f"{type_} values")
