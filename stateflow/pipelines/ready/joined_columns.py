"""Where the columns of a joined row come from."""

from __future__ import annotations

from dataclasses import dataclass

LEFT, RIGHT, KEY = "left", "right", "key"


@dataclass(frozen=True)
class Filled:
    """Where the value of a column comes from, of an output row or of a pair that a condition is about."""

    field: str
    of: str
    """`LEFT`, `RIGHT` or `KEY`."""
    column: str
    """The column of that row; of `KEY` the name that the left input has for it."""
