"""Makes Arrow batches of the rows of user code. A run and the test harness share it, so that both take the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from operator import attrgetter
from typing import Any

import pyarrow as pa

from stateflow.errors import UsageError, own_frames
from stateflow.operators.lossless import MISFITS, array_of, misfits
from stateflow.operators.snapshots import changeable, snapshot
from stateflow.pipelines.processes.operator_spec import MAIN, OperatorSpec
from stateflow.pipelines.rows.row_type import RowType

Values = list[Any]
_INT64 = 1 << 63
_PLAIN = (str, bytes, int, float, date, Decimal)


def returned(uid: str, got: Any) -> Iterable[Any]:
    """The rows that user code returned; one row in the place of many would be taken apart into its parts."""
    if (
        isinstance(got, (str, bytes, bytearray, dict))
        or hasattr(got, "_fields")
        or not hasattr(got, "__iter__")
    ):
        raise UsageError(
            f"operator {uid!r} returned {got!r}, which is one value and not many rows: yield each row, or return a list "
            "of rows"
        )
    return got  # type: ignore[no-any-return]


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
        self._changeable = [place for place, field in enumerate(schema) if changeable(field.type)]
        self._row = self._row_values()
        self.values = self._snapshot if self._changeable else self._row

    def _row_values(self) -> Callable[[Any], tuple[Any, ...]]:
        if not self._rows.typed:
            return self._single if self._count == 1 else _by_position(self._count, self._other_row)
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
        return list(map(list, zip(*taken, strict=True))) or [[] for _ in self._rows.fields]

    def _other_row(self, row: Any) -> tuple[Any, ...]:
        if isinstance(row, dict):
            return self._from_dict(row)
        if isinstance(row, (str, bytes)) or _length(row) != self._count:
            names = ", ".join(self._rows.names)
            raise UsageError(f"{self._where} put out {row!r}, which is not {self._count} values ({names})")
        return tuple(row)

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
        fields = getattr(row, "_fields", None)
        if fields is not None and fields != (name,) and pa.types.is_struct(kind):
            return row
        if not isinstance(row, (tuple, list)):
            return row
        if len(row) != 1:
            raise UsageError(
                f"{self._where} put out {row!r}, which is not one value ({name}): put out the value itself"
            )
        return row[0]

    def _from_dict(self, row: dict[str, Any]) -> tuple[Any, ...]:
        names = self._rows.names
        if not row.keys() <= set(names):
            unknown = ", ".join(repr(name) for name in row if name not in names)
            raise UsageError(
                f"{self._where} put out {unknown}, which it does not have: its columns are {', '.join(names)}"
            )
        return tuple(map(row.get, names))

    def _misfit(self, field: Any, values: Values, error: Exception) -> UsageError:
        for place, _ in misfits(values, field.type):
            return UsageError(
                f"{self._where} put out {values[place]!r} in column {field.name!r}, which is a {field.type}: {error}: convert the "
                "value in the code, or declare a type that holds it"
            )
        return UsageError(f"{self._where}: column {field.name!r} does not fit {field.type}: {error}")


def _by_position(count: int, other: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], tuple[Any, ...]]:
    def values(row: Any) -> tuple[Any, ...]:
        return row if type(row) is tuple and len(row) == count else other(row)

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


def _length(row: Any) -> int:
    try:
        return len(row)
    except TypeError:
        return -1
