"""Whether a batch is combined before the exchange: decided from what the batch before measured.

A batch that is not combined counts its groups as well, so that the operator needs no trial batches to find out that
combining has come to pay.
"""

from __future__ import annotations

from typing import Any

import msgspec

BEGINS, STAYS = 8.0, 6.0
"""Rows per group: combining begins with the first number, and ends below the second. In between nothing changes, so that a
stream near the border does not change with every batch."""
FEWEST_ROWS = 20_000
"""Below this number of rows the second shuffle costs more than the rows that it saves."""


class Combined(msgspec.Struct, frozen=True):
    """What a batch measured of an operator. A record keeps it among its statistics."""

    rows: int
    groups: int
    combined: bool
    """Whether the batch was combined."""

    @property
    def rows_per_group(self) -> float:
        return self.rows / max(self.groups, 1)


def combines(last: Combined | None) -> bool:
    """Whether to combine the next batch. A first batch is combined: nobody knows yet whether that pays, and it can gain more
    than it can cost."""
    if last is None:
        return True
    if last.rows < FEWEST_ROWS:
        return False
    return last.rows_per_group >= (STAYS if last.combined else BEGINS)


def measured(last: Combined | None, rows: int, groups: int, *, combined: bool) -> Combined | None:
    """The measurements after a batch. A batch without rows changes nothing."""
    return Combined(rows, groups, combined) if rows and groups else last


def noted(statistics: Any, uid: str) -> Combined | None:
    """What a record's statistics say about an operator. Other programs may have written anything there."""
    notes = statistics.get("combiner") if isinstance(statistics, dict) else None
    try:
        return msgspec.convert(notes.get(uid), Combined) if isinstance(notes, dict) else None
    except msgspec.ValidationError:
        return None


def as_note(known: Combined) -> dict[str, Any]:
    note: dict[str, Any] = msgspec.to_builtins(known)
    return note
