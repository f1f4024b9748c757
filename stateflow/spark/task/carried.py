"""Which columns the exchange sends to a task. What a task can tell from other columns would cost a tenth of the shuffle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stateflow.format.scalars import BY_NAME
from stateflow.pipelines.rows import RowType

GROUP_AT = 48
"""The lowest bit of the key group in a row's place."""


@dataclass(frozen=True, slots=True)
class Carried:
    """The place or the group comes first; then the parts of the key that no field repeats; then, if `late`, which rows are
    late; then the fields of the one input, or the side and a struct per input."""

    keys: tuple[int | None, ...]
    """For each part of the key the field that is the same value; None: the part has a column of its own."""
    late: bool = True
    """Whether a row can be late."""
    place: bool = True
    """Whether the first column is the number by which rows are sorted, with the key group in its upper bits, and not the
    group alone. Otherwise Spark computes that number anew whenever it compares two rows of a key."""
    mixed: bool = False
    """Whether Spark leaves the rows as they come: the task sorts them by the place alone, so that the rows of keys that share
    a place are mixed."""

    @property
    def own_keys(self) -> int:
        return self.keys.count(None)

    @property
    def late_index(self) -> int | None:
        return 1 + self.own_keys if self.late else None

    @property
    def fields_index(self) -> int:
        """Where the fields begin, or the side."""
        return 1 + self.own_keys + self.late

    @property
    def key_indices(self) -> tuple[int, ...]:
        own = iter(range(1, 1 + self.own_keys))
        return tuple(next(own) if field is None else self.fields_index + field for field in self.keys)


def everything(keys: int) -> Carried:
    """The group, every part of the key in a column of its own, and a flag per row."""
    return Carried((None,) * keys, place=False)


def groups_of(places: Any) -> Any:
    return places >> GROUP_AT


def carried(
    key_columns: Sequence[str],
    key_types: Sequence[str],
    rows: Sequence[RowType],
    *,
    late: bool,
    ordered: bool = False,
    place: bool = True,
) -> Carried:
    """What has to be sent. A field is a part of the key when it has the column's name and the very type of the key.

    `ordered`: the rows of a key have an order. `place`: the task wants the rows in the order of their places.
    """
    if len(rows) > 1:
        return Carried((None,) * len(key_types), late, place)
    places = {(field.name, field.type): place for place, field in enumerate(rows[0].fields)}
    named = zip(key_columns, key_types, strict=True)
    keys = tuple(places.get((column, BY_NAME[kind].spark)) for column, kind in named)
    return Carried(keys, late, place, mixed=place and not ordered)
