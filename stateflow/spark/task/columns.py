"""From Arrow columns to Python rows, a column at a time; `operators/output.py` is the way back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from stateflow.errors import UsageError
from stateflow.operators.python_values import Values, values_of
from stateflow.pipelines.rows.row_type import RowType


class RowReader:
    """Makes rows of one type from the columns that carry its fields."""

    def __init__(self, rows: RowType, columns: Sequence[int]) -> None:
        self._make = rows.make
        self._columns = tuple(columns)
        self._convert: tuple[Callable[[Any], Any] | None, ...] = tuple(
            _converter(f.hint, f.type, f"field {f.name!r} of {rows.name}") for f in rows.fields
        )
        self._defaults = tuple(f.default for f in rows.fields)

    def read(self, batch: Any, known: Mapping[int, Values] = {}) -> Values:
        """One row object per row of an Arrow batch (or of its columns by their numbers). `known` has the values of
        fields that the caller has read already, by the field's place."""
        columns = []
        fields = zip(self._columns, self._convert, self._defaults, strict=True)
        for place, (index, convert, default) in enumerate(fields):
            if place in known:
                columns.append(known[place])
                continue
            column = batch[index]
            values = values_of(column)
            if convert is not None:
                values = [None if v is None else convert(v) for v in values]
            if default is not None and column.null_count:
                values = default.fill(values)
            columns.append(values)
        return list(map(self._make, *columns))


def _converter(hint: Any, spark_type: str, where: str) -> Callable[[Any], Any] | None:
    """From dicts and lists to the hinted types; None where the value is right already."""
    if not spark_type.startswith(("struct<", "array<", "map<")) or hint is None:
        return None

    def convert(value: Any) -> Any:
        try:
            return msgspec.convert(value, hint)
        except msgspec.ValidationError as error:
            raise UsageError(
                f"{where} does not fit its class: {error}; declare what may be missing as `| None` or with a default, or "
                "mend what is read"
            ) from error

    return convert
