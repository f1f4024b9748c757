"""From partners to output rows: filled by name over whole columns, or by a function of the user's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.errors import StateflowError, UserCodeError, placed
from stateflow.operators.arrow_types import arrow_schema_of
from stateflow.operators.joins.arrivals import Came
from stateflow.operators.joins.pairs import MOST, Times, pairs
from stateflow.operators.joins.partners import Partners, side_column
from stateflow.operators.joins.row_blocks import Rows
from stateflow.operators.joins.row_state import SideOfBlocks
from stateflow.operators.python_values import values_of
from stateflow.operators.ready.grouping.dead_letters import key_of
from stateflow.operators.ready.grouping.groups import whole
from stateflow.pipelines.ready.joined_columns import KEY, LEFT, RIGHT, Filled
from stateflow.pipelines.ready.joins import JoinOperator, Side
from stateflow.state.values.arrow.lossless import MISFITS, array_of, misfits

Places = Any
"""Indices of rows; an array of Arrow with nulls where a row has no partner, or one of numpy."""


class JoinedRows:
    """Makes the output of one join."""

    def __init__(self, declared: JoinOperator) -> None:
        self._declared = declared
        self._filled = declared.filled or tuple(
            Filled(name, KEY if name in declared.left.key else LEFT, name) for name in declared.output.names
        )
        self._schema = arrow_schema_of(declared.output)
        self._partners = Partners(declared)

    def rows(self, keys: pa.Table, left: Rows, at_left: Places, right: Rows, at_right: Places) -> pa.Table:
        """`keys` has the key of each output row, `at_left` and `at_right` the two rows that make it."""
        if self._declared.function is not None:
            return self._called(keys, left, at_left, right, at_right)
        at = {LEFT: (left, _indices(at_left)), RIGHT: (right, _indices(at_right))}
        columns = {each.field: self._column(each, keys, at) for each in self._filled}
        return pa.table(columns) if columns else pa.table({}).slice(0, 0)

    def alone(self, side: int, keys: pa.Table, left: Rows, right: Rows, places: Any) -> pa.Table:
        """Rows of one side (0 is the left one), by their places, without partners; `keys` has the key of each."""
        nobody = pa.nulls(len(places), pa.int64())
        at_left, at_right = (places, nobody) if side == 0 else (nobody, places)
        return self.rows(keys, left, at_left, right, at_right)

    def with_partner(self, keys: pa.Table, left: Came, right: Rows, partner: Any) -> Iterator[pa.Table]:
        """Left rows with one partner each. Where the partner's number is below zero there is none, and an outer join puts the
        row out alone."""
        partner = self._partners.of_each(keys, left.owners, left.rows, right, partner)
        places = np.arange(len(partner))
        if not self._declared.puts_out_left:
            places = np.flatnonzero(partner >= 0)
        for begin in range(0, len(places), MOST):
            some = places[begin : begin + MOST]
            at_right = pa.array(partner[some], mask=partner[some] < 0)
            yield self.rows(keys.take(pa.array(left.owners[some])), left.rows, some, right, at_right)

    def without_key(self, rows: tuple[tuple[pa.Table, Rows], tuple[pa.Table, Rows]]) -> Iterator[pa.Table]:
        """The output of rows with a null in their key, each beside its key: they have no partners."""
        (left_keys, left), (right_keys, right) = rows
        if len(left) and self._declared.puts_out_left:
            yield self.alone(0, left_keys, left, right, np.arange(len(left)))
        if len(right) and self._declared.puts_out_right:
            yield self.alone(1, right_keys, left, right, np.arange(len(right)))

    def of_windows(self, keys: pa.Table, left: SideOfBlocks, right: SideOfBlocks) -> Iterator[pa.Table]:
        """The rows of closed windows. Each side has a block per window; `keys` has the key and the bounds of each window."""
        declared = self._declared
        matched = np.zeros(len(left.blocks), dtype=bool), np.zeros(len(right.blocks), dtype=bool)
        # In a window all rows of a key are partners, as if they had one time.
        times = [Times(side.blocks, np.zeros(len(side.blocks), dtype=np.int64)) for side in (left, right)]
        for some_left, some_right in pairs(times[0], times[1], 0, 0):
            at_left, at_right = self._partners.among(
                keys, left.blocks[some_left], left.rows, some_left, right.rows, some_right
            )
            matched[0][at_left], matched[1][at_right] = True, True
            if not declared.is_of_left_alone:
                owners = pa.array(left.blocks[at_left])
                yield self.rows(keys.take(owners), left.rows, at_left, right.rows, at_right)
        if declared.puts_out_left or declared.how == "semi":
            places = np.flatnonzero(matched[0] if declared.how == "semi" else ~matched[0])
            yield self.alone(0, keys.take(pa.array(left.blocks[places])), left.rows, right.rows, places)
        if declared.puts_out_right:
            places = np.flatnonzero(~matched[1])
            yield self.alone(1, keys.take(pa.array(right.blocks[places])), left.rows, right.rows, places)

    def _column(self, each: Filled, keys: pa.Table, at: dict[str, tuple[Rows, Any]]) -> Any:
        if each.of == KEY:
            return keys[each.column]
        if each.of in at:
            rows, places = at[each.of]
            side = self._declared.left if each.of == LEFT else self._declared.right
            return side_column(rows, side, each.column).take(places)
        _, places = at[each.of.removesuffix(f"_{KEY}")]
        return whole(keys[each.column]).take(pa.array(np.arange(len(keys)), mask=_is_null(places)))

    def _called(self, keys: pa.Table, left: Rows, at_left: Places, right: Rows, at_right: Places) -> pa.Table:
        declared = self._declared
        lefts = _objects(declared.left, declared.left.key, declared.left.key, keys, left, at_left)
        rights = _objects(declared.right, declared.right.key, declared.left.key, keys, right, at_right)
        made = []
        for place, (one, other) in enumerate(zip(lefts, rights, strict=True)):
            try:
                made.append(declared.function(one, other))  # type: ignore[misc]
            except StateflowError:
                raise
            except Exception as error:
                raise UserCodeError(
                    f"join {declared.uid!r} failed on key {self._key(keys, place)!r}: {placed(error)}: nothing of "
                    "the batch was stored, and it is run again"
                ) from error
        return pa.table([self._made(field, made, keys) for field in self._schema], schema=self._schema)

    def _made(self, field: Any, made: list[Any], keys: pa.Table) -> Any:
        """A column of the function's results. The error for a value of another type names the key."""
        try:
            values = [_value(row, field.name) for row in made]
        except KeyError:
            lacking = [isinstance(row, dict) and field.name not in row for row in made]
            if True not in lacking:
                raise
            place = lacking.index(True)
            raise UserCodeError(
                f"join {self._declared.uid!r}: the function gave {made[place]!r} on key {self._key(keys, place)!r}, which lacks "
                f"{field.name!r}: give every column a value, None where there is none; nothing of the batch was stored"
            ) from None
        try:
            return array_of(values, field.type)
        except MISFITS:
            place, error = next(misfits(values, field.type))
            raise UserCodeError(
                f"join {self._declared.uid!r}: the function gave {values[place]!r} for {field.name!r} on key "
                f"{self._key(keys, place)!r}, which is no {field.type}: {error}; nothing of the batch was stored, and a run with "
                "changed code repeats it"
            ) from error

    def _key(self, keys: pa.Table, place: int) -> Any:
        return key_of(keys.select(self._declared.key_columns), place)


def _objects(
    side: Side, key: Sequence[str], named: Sequence[str], keys: pa.Table, rows: Rows, places: Places
) -> list[Any]:
    """The row of each place as users know it; None where there is none."""
    indices = _indices(places)
    if not len(rows):
        return [None] * len(indices)
    columns = []
    for field in side.rows.fields:
        if field.name in key:
            columns.append(keys[named[key.index(field.name)]].to_pylist())
            continue
        column = values_of(side_column(rows, side, field.name).take(indices))
        # Rows that were kept before the class had the field have a null there.
        columns.append(column if field.default is None else field.default.fill(column))
    there = indices.is_valid().to_pylist()
    values = zip(*columns, strict=True)
    return [side.rows.make(*each) if is_there else None for each, is_there in zip(values, there, strict=True)]


def _indices(places: Places) -> Any:
    return places if isinstance(places, pa.Array) else pa.array(places)


def _is_null(places: Any) -> Any:
    return places.is_null().to_numpy(zero_copy_only=False)


def _value(row: Any, name: str) -> Any:
    return row[name] if isinstance(row, dict) else getattr(row, name)
