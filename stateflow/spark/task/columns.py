"""Between Arrow columns and Python rows, a column at a time.

Arrow's `to_pylist` builds a scalar object per value. Going through numpy is many times faster, so `to_pylist` remains
for values that numpy cannot hold.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.errors import UsageError
from stateflow.pipelines.rows import RowType

Values = list[Any]


def values_of(column: Any) -> Values:
    """A column as Python values: ints, floats, text, aware datetimes, dates, Decimals, lists, dicts, None."""
    kind = column.type
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_timestamp(kind):
        naive = column.cast(pa.timestamp("us")).to_numpy(zero_copy_only=False).tolist()
        return [None if v is None else v.replace(tzinfo=UTC) for v in naive]
    if column.null_count or pa.types.is_nested(kind):
        return _nullable(column)
    return column.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


def _nullable(column: Any) -> Values:
    kind = column.type
    if pa.types.is_nested(kind):
        return column.to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        # numpy would turn integers with nulls into floats.
        zero = pa.scalar(False if pa.types.is_boolean(kind) else 0, kind)
        filled = pc.fill_null(column, zero).to_numpy(zero_copy_only=False).tolist()
        valid = pc.is_valid(column).to_numpy(zero_copy_only=False).tolist()
        return [v if there else None for v, there in zip(filled, valid, strict=True)]
    return column.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


class RowReader:
    """Makes rows of one type from the columns that carry its fields."""

    def __init__(self, rows: RowType, columns: Sequence[int]) -> None:
        self._make = rows.make
        self._columns = tuple(columns)
        self._convert: tuple[Callable[[Any], Any] | None, ...] = tuple(
            _converter(f.hint, f.type) for f in rows.fields
        )

    def read(self, batch: Any) -> Values:
        """One row object per row of an Arrow batch (or struct array's flattened children)."""
        columns = []
        for index, convert in zip(self._columns, self._convert, strict=True):
            values = values_of(batch[index])
            columns.append(values if convert is None else [None if v is None else convert(v) for v in values])
        return list(map(self._make, *columns))


def _converter(hint: Any, spark_type: str) -> Callable[[Any], Any] | None:
    """From `to_pylist`'s dicts and pairs to the hinted types; None where the value is right already."""
    if spark_type.startswith("map<") and hint is None:
        return dict
    if not spark_type.startswith(("struct<", "array<", "map<")) or hint is None:
        return None
    if spark_type.startswith("map<"):
        return lambda value: msgspec.convert(dict(value), hint)
    return lambda value: msgspec.convert(value, hint)


class RowWriter:
    """Makes Arrow batches from rows that user code put out."""

    def __init__(self, rows: RowType, schema: pa.Schema, where: str) -> None:
        self._schema = schema
        self._where = where
        self._rows = rows
        self._get = [attrgetter(f.name) for f in rows.fields]
        self._nested = [pa.types.is_nested(field.type) for field in schema]

    def write(self, rows: Values) -> Any:
        """One batch. An error names the column and the value that does not fit."""
        columns = self._by_name(rows) if self._rows.typed else self._by_position(rows)
        arrays = []
        for field, values, nested in zip(self._schema, columns, self._nested, strict=True):
            try:
                if nested:
                    values = [_plain(value) for value in values]
                elif pa.types.is_integer(field.type):
                    _check_whole(values)
                elif pa.types.is_timestamp(field.type):
                    _check_zoned(values)
                arrays.append(pa.array(values, type=field.type, from_pandas=False))
            except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError, ValueError) as error:
                raise self._misfit(field, values, error) from error
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _by_name(self, rows: Values) -> list[Values]:
        try:
            return [list(map(get, rows)) for get in self._get]
        except AttributeError as error:
            wrong = next(r for r in rows if not all(hasattr(r, name) for name in self._rows.names))
            raise UsageError(
                f"{self._where} put out {wrong!r}, which is no {self._rows.name}: yield {self._rows.name}("
                f"{', '.join(self._rows.names)})"
            ) from error

    def _by_position(self, rows: Values) -> list[Values]:
        names = self._rows.names
        kinds = set(map(type, rows))
        if dict in kinds:
            rows = [self._from_dict(row) if isinstance(row, dict) else row for row in rows]
        if kinds & {str, bytes} or not set(map(_length, rows)) <= {len(names)}:
            wrong = next(row for row in rows if isinstance(row, (str, bytes)) or _length(row) != len(names))
            raise UsageError(
                f"{self._where} put out {wrong!r}, which is not {len(names)} values ({', '.join(names)})"
            )
        return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in names]

    def _from_dict(self, row: dict[str, Any]) -> tuple[Any, ...]:
        names = self._rows.names
        if not row.keys() <= set(names):
            unknown = ", ".join(repr(name) for name in row if name not in names)
            raise UsageError(
                f"{self._where} put out {unknown}, which it does not have: its columns are {', '.join(names)}"
            )
        return tuple(map(row.get, names))

    def _misfit(self, field: Any, values: Values, error: Exception) -> UsageError:
        for value in values:
            try:
                if pa.types.is_integer(field.type):
                    _check_whole([value])
                elif pa.types.is_timestamp(field.type):
                    _check_zoned([value])
                pa.array([value], type=field.type, from_pandas=False)
            except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError, ValueError):
                return UsageError(
                    f"{self._where} put out {value!r} in column {field.name!r}, which is a {field.type}: {error}"
                )
        return UsageError(f"{self._where}: column {field.name!r} does not fit {field.type}: {error}")


def _length(row: Any) -> int:
    try:
        return len(row)
    except TypeError:
        return -1


def _check_whole(values: Values) -> None:
    """Arrow would cut the fraction off silently."""
    if float in set(map(type, values)):
        for value in values:
            if isinstance(value, float) and not value.is_integer():
                raise ValueError("it has a fraction; round it, or declare the column as float")


def _check_zoned(values: Values) -> None:
    """Arrow would read a time without a zone as UTC, but it may be local time."""
    for value in values:
        if isinstance(value, datetime) and value.tzinfo is None:
            raise ValueError("it has no time zone; use datetime(..., tzinfo=UTC)")


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, bytes, int, float)):
        return value
    if dataclasses.is_dataclass(value) or isinstance(value, msgspec.Struct):
        names = getattr(value, "__struct_fields__", None) or [f.name for f in dataclasses.fields(value)]  # type: ignore[arg-type]
        return {name: _plain(getattr(value, name)) for name in names}
    if hasattr(value, "_asdict"):
        return {name: _plain(v) for name, v in value._asdict().items()}
    if isinstance(value, dict):
        return [(k, _plain(v)) for k, v in value.items()] if value else []
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value
