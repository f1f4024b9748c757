"""Which columns the exchange sends to a task. What a task can tell from other columns would cost a tenth of the shuffle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stateflow.format.scalars import BY_NAME
from stateflow.pipelines.rows.row_type import RowType

GROUP_AT = 48
"""The lowest bit of the key group in a row's place."""


@dataclass(frozen=True, slots=True)
class Carried:
    """The place or the group comes first; then the parts of the key that no field repeats; then, if `late`, which rows are
    late; then the fields of the one input, or the side and the columns that several inputs share."""

    keys: tuple[int | None, ...]
    """For each part of the key the field that is the same value; None: the part has a column of its own."""
    late: bool = True
    """Whether a row can be late."""
    place: bool = True
    """True if the first column is the number that sorts the rows, with the key group in its upper bits, and not the group alone.
    Otherwise Spark computes that number anew whenever it compares two rows of a key."""
    mixed: bool = False
    """Whether Spark leaves the rows as they come: the task sorts them by the place alone, so that the rows of keys that share
    a place are mixed."""
    sides: tuple[tuple[int, ...], ...] = ()
    """With several inputs: per input, the column of each of its fields. A row is of one input, so one column serves a field of
    every input."""
    shared: tuple[str, ...] = ()
    """The types of the columns behind the side."""

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
    def shared_index(self) -> int:
        """Where the columns begin that several inputs share."""
        return self.fields_index + 1

    @property
    def key_indices(self) -> tuple[int, ...]:
        own = iter(range(1, 1 + self.own_keys))
        return tuple(next(own) if field is None else self.fields_index + field for field in self.keys)


def everything(keys: int) -> Carried:
    """The group, every part of the key in a column of its own, and a flag per row, of one input."""
    return Carried((None,) * keys, place=False)


def carried(
    key_columns: Sequence[Sequence[str]],
    key_types: Sequence[str],
    rows: Sequence[RowType],
    *,
    late: bool,
    ordered: bool = False,
    place: bool = True,
) -> Carried:
    """The columns that the exchange sends of each input. A field is a part of the key when it has the column's name and the very
    type of the key.

    `ordered`: the rows of a key have an order. `place`: the task wants the rows in the order of their places.
    """
    named = [
        [(column, BY_NAME[kind].spark) for column, kind in zip(columns, key_types, strict=True)]
        for columns in key_columns
    ]
    if len(rows) > 1:
        return _of_several(named, rows, late, place)
    fields = {(field.name, field.type): index for index, field in enumerate(rows[0].fields)}
    return Carried(tuple(map(fields.get, named[0])), late, place, mixed=place and not ordered)


def _of_several(
    named: Sequence[Sequence[tuple[str, str]]], rows: Sequence[RowType], late: bool, place: bool
) -> Carried:
    """Every part of the key has its column. A field that is a part of the key is read from there; any other has the first column
    of its type that no field of its input has yet."""
    bare = Carried((None,) * len(named[0]), late, place)
    shared: list[str] = []
    sides = []
    for parts, row in zip(named, rows, strict=True):
        free = list(range(len(shared)))
        columns = []
        for field in row.fields:
            if (field.name, field.type) in parts:
                columns.append(1 + parts.index((field.name, field.type)))
                continue
            found = next((column for column in free if shared[column] == field.type), None)
            if found is None:
                found = len(shared)
                shared.append(field.type)
            else:
                free.remove(found)
            columns.append(bare.shared_index + found)
        sides.append(tuple(columns))
    return replace(bare, sides=tuple(sides), shared=tuple(shared))
