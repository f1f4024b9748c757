"""Makes Arrow batches of the rows of user code. A run and the test harness share it, so that both take the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from operator import attrgetter, itemgetter
from typing import Any

import pyarrow as pa

from stateflow.errors import UsageError, own_frames
from stateflow.operators.snapshots import changeable
from stateflow.pipelines.processes.operator_spec import MAIN, OperatorSpec
from stateflow.pipelines.rows.row_type import RowType
from stateflow.state.copied import snapshot
from stateflow.state.values.arrow.lossless import MISFITS, array_of, misfits

Values = list[Any]
_INT64 = 1 << 63
_PLAIN = (str, bytes, int, float, date, Decimal)


def returned(uid: str, got: Any) -> Iterable[Any]:
    """The rows that user code returned; one row in the place of many would be taken apart into its parts."""
    if (
        isinstance(got, (str, bytes, bytearray, dict))
        or _names_of(got) is not None
        or not hasattr(got, "__iter__")
    ):
        raise UsageError(
            f"operator {uid!r} returned {got!r}, which is one value and not many rows: yield each row, or return a list "
            "of rows"
        )
    return got  # type: ignore[no-any-return]


def null_refused(where: str, column: str) -> UsageError:
    return UsageError(
        f"{where} put out None in column {column!r}, which its output declares as not null: put out a value, or take 'not null' from "
        "the output"
    )


def writers(spec: OperatorSpec, schemas: Mapping[str, pa.Schema]) -> dict[str, RowWriter]:
    """One per output of an operator, its main one and those to the side, with the names that errors give them."""
    rows = {MAIN: spec.output, **spec.sides}
    where = f"operator {spec.uid!r}"
    return {
        name: RowWriter(rows[name], schema, where if name == MAIN else f"{where}, side output {name!r}")
        for name, schema in schemas.items()
    }


class RowWriter:
    """Takes the rows of an output apart, each as user code puts it out, and makes Arrow batches of their values.

    User code may put out one object again and again, or change it afterwards: each row counts as it was when it was put out.
    """

    values: Callable[[Any], tuple[Any, ...]]
    """The values of a row, a tuple in the order of the columns. Nearly all rows go through here, so it is C where it can be."""

    def __init__(self, rows: RowType, schema: pa.Schema, where: str) -> None:
        self._schema = schema
        self._where = where
        self._rows = rows
        self._count = len(rows.fields)
        self._names = frozenset(rows.names)
        self._changeable = [place for place, field in enumerate(schema) if changeable(field.type)]
        self._never_null = [rows.names.index(name) for name in rows.never_null]
        self._by_names: dict[tuple[str, ...], Callable[[Any], tuple[Any, ...]]] = {}
        """What takes the named tuples of these names."""
        self._known: dict[type, Callable[[Any], tuple[Any, ...]]] = {}
        """What takes the named tuples of a class that has come already."""
        self._row = self._row_values()
        self.values = self._snapshot if self._changeable else self._row

    def _row_values(self) -> Callable[[Any], tuple[Any, ...]]:
        if not self._rows.typed:
            return (
                self._single if self._count == 1 else _by_position(self._count, self._known, self._other_row)
            )
        return self._single_field if self._count == 1 else attrgetter(*self._rows.names)

    def _single_field(self, row: Any) -> tuple[Any, ...]:
        return (getattr(row, self._rows.names[0]),)

    def _snapshot(self, row: Any) -> tuple[Any, ...]:
        values = list(self._row(row))
        for place in self._changeable:
            values[place] = snapshot(values[place])
        return tuple(values)

    def explained(self, error: Exception) -> Exception:
        """The error of `values`, in words for the user; every other error as it is."""
        names = self._rows.names
        if not isinstance(error, AttributeError) or error.name not in names or own_frames(error):
            return error
        return UsageError(
            f"{self._where} put out {error.obj!r}, which is no {self._rows.name}: yield {self._rows.name}("
            f"{', '.join(names)})"
        )

    def taken(self, rows: Iterable[Any]) -> list[tuple[Any, ...]]:
        """Many rows at once."""
        try:
            return list(map(self.values, rows))
        except AttributeError as error:
            raise self.explained(error) from error

    def write(self, taken: Sequence[tuple[Any, ...]]) -> Any:
        """One batch of rows that `values` has taken apart. An error names the column and the value that does not fit."""
        columns = self._columns(taken)
        arrays = []
        for field, values in zip(self._schema, columns, strict=True):
            try:
                arrays.append(array_of(values, field.type))
            except MISFITS as error:
                raise self._misfit(field, values, error) from error
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def check(self, taken: Sequence[tuple[Any, ...]]) -> None:
        """Raises what `write` would."""
        for field, values in zip(self._schema, self._columns(taken), strict=True):
            if not _surely_fit(values, field.type):
                try:
                    array_of(values, field.type)
                except MISFITS as error:
                    raise self._misfit(field, values, error) from error

    def _columns(self, taken: Sequence[tuple[Any, ...]]) -> list[Values]:
        columns: list[Values] = list(map(list, zip(*taken, strict=True))) or [[] for _ in self._rows.fields]
        for place in self._never_null:
            if any(value is None for value in columns[place]):
                raise null_refused(self._where, self._rows.names[place])
        return columns

    def _other_row(self, row: Any) -> tuple[Any, ...]:
        if isinstance(row, dict):
            return self._from_dict(row)
        fields = _names_of(row)
        if fields is not None:
            return self._by_name(row, fields)
        if isinstance(row, (tuple, list)) and len(row) == self._count:
            return tuple(row)
        raise self._no_row(row)

    def _no_row(self, row: Any) -> UsageError:
        names = ", ".join(self._rows.names)
        return UsageError(
            f"{self._where} put out {row!r}, which is not {self._count} values ({names}) in their order: put out a tuple, a list or a dict"
        )

    def _by_name(self, row: Any, fields: tuple[str, ...]) -> tuple[Any, ...]:
        if len(row) != len(fields):
            # A Row may have fewer values than names.
            raise self._no_row(row)
        taken = self._by_names.get(fields) or self._taker_of(row, fields)
        if hasattr(type(row), "_fields"):
            self._known[type(row)] = taken
        return taken(row)

    def _taker_of(self, row: Any, fields: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
        """Taken by their places, the values of a named tuple would go under the names of others, and types may fit."""
        names = self._rows.names
        if sorted(fields) != sorted(names):
            raise UsageError(
                f"{self._where} put out {row!r}, a named tuple of {', '.join(fields)}, and its columns are {', '.join(names)}: yield a "
                "plain tuple, tuple(row), or one whose fields are the columns"
            )
        taken = self._by_names[fields] = tuple if fields == names else itemgetter(*map(fields.index, names))
        return taken

    def _single(self, row: Any) -> tuple[Any, ...]:
        """The value of the only column: bare, or wrapped in a row of one."""
        return (self._bare(row) if isinstance(row, (tuple, list, dict)) else row,)

    def _bare(self, row: Any) -> Any:
        """A list is the value of an array column, a dict that of a map or struct, a named tuple that of a struct. Other
        tuples and lists are rows, and so is a dict of the column's name."""
        kind, name = self._schema.field(0).type, self._rows.names[0]
        if isinstance(row, dict):
            if not (pa.types.is_map(kind) or pa.types.is_struct(kind)):
                return self._from_dict(row)[0]
            wrapped = row.keys() == {name} and not isinstance(row[name], _PLAIN)
            return row[name] if wrapped else row
        if isinstance(row, list) and pa.types.is_list(kind):
            return row
        fields = _names_of(row)
        if fields is not None and fields != (name,):
            if pa.types.is_struct(kind):
                return row
            if len(fields) == 1:
                return self._by_name(row, fields)
        if len(row) != 1:
            raise UsageError(
                f"{self._where} put out {row!r}, which is not one value ({name}): put out the value itself"
            )
        return row[0]

    def _from_dict(self, row: dict[str, Any]) -> tuple[Any, ...]:
        if row.keys() != self._names:
            raise self._other_columns(row)
        return tuple([row[name] for name in self._rows.names])

    def _other_columns(self, row: dict[str, Any]) -> UsageError:
        names = self._rows.names
        if unknown := ", ".join(repr(name) for name in row if name not in names):
            return UsageError(
                f"{self._where} put out {unknown}, which it does not have: its columns are {', '.join(names)}"
            )
        lacking = ", ".join(repr(name) for name in names if name not in row)
        return UsageError(
            f"{self._where} put out {row!r}, which lacks {lacking}: give every column a value, None where there is none"
        )

    def _misfit(self, field: Any, values: Values, error: Exception) -> UsageError:
        for place, _ in misfits(values, field.type):
            return UsageError(
                f"{self._where} put out {values[place]!r} in column {field.name!r}, which is a {field.type}: {error}: convert the "
                "value in the code, or declare a type that holds it"
            )
        return UsageError(f"{self._where}: column {field.name!r} does not fit {field.type}: {error}")


def _by_position(
    count: int,
    known: Mapping[type, Callable[[Any], tuple[Any, ...]]],
    other: Callable[[Any], tuple[Any, ...]],
) -> Callable[[Any], tuple[Any, ...]]:
    def other_than_tuple(row: Any) -> tuple[Any, ...]:
        kind = type(row)
        return tuple(row) if kind is list and len(row) == count else known.get(kind, other)(row)

    def values(row: Any) -> tuple[Any, ...]:
        return row if type(row) is tuple and len(row) == count else other_than_tuple(row)

    return values


def _surely_fit(values: Values, kind: Any) -> bool:
    """True if the values are plain and Arrow need not look at them, which takes ten times as long for a few values. Arrow's
    first look also imports pandas for a second, and no test of a single class should wait for that."""
    there = [value for value in values if value is not None]
    if pa.types.is_int64(kind):
        return all(type(value) is int and -_INT64 <= value < _INT64 for value in there)
    if pa.types.is_string(kind):
        return all(type(value) is str and value.isascii() for value in there)
    if pa.types.is_timestamp(kind):
        return kind.unit == "us" and all(type(value) is datetime and value.tzinfo is UTC for value in there)
    plain = bool if pa.types.is_boolean(kind) else float if pa.types.is_float64(kind) else None
    return plain is not None and all(type(value) is plain for value in there)


def _names_of(row: Any) -> tuple[str, ...] | None:
    """The names of a tuple's values: of one that has names, or of a Row of Spark's."""
    if type(row) is tuple or not isinstance(row, tuple):
        return None
    fields = getattr(row, "__fields__", None) or getattr(row, "_fields", None)
    return None if fields is None else tuple(fields)
