"""The rows that joins keep, as plain Python: for look-ups, which have neither the pipeline's code nor Arrow.

`operators/joins/row_blocks` writes them: a record of one width per row (time, columns of a fixed width, lengths of texts, null
bits, whether it has had a partner), and the texts behind each other. A test holds the two together.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

from stateflow.errors import CorruptError, UsageError
from stateflow.format.instants import day, instant
from stateflow.format.scalars import COLUMN_TYPES

BETWEEN = "|"
"""Between the columns of the left and of the right rows in a layout."""
_FORMS = {column.name: column.form for column in COLUMN_TYPES if column.form}
_TEXT = re.compile(r"string|binary|(var)?char\(.*\)")


def columns_of(layout: str) -> list[tuple[str, str]]:
    """Names and types of the columns; a comma inside of brackets belongs to a type."""
    parts: list[str] = []
    for part in layout.split(",") if layout else []:
        if parts and parts[-1].count("(") > parts[-1].count(")"):
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    return [tuple(part.split(":", 1)) for part in parts]  # type: ignore[misc]


@dataclass(frozen=True)
class KeptRow:
    at: int
    """Its time, in microseconds."""
    has_partner: bool
    columns: Mapping[str, Any]

    @property
    def time(self) -> datetime:
        """UsageError for one that Python has no datetime for."""
        return _time(self.at)


@dataclass(frozen=True)
class _Column:
    name: str
    place: int
    """Where it is among the columns, and so in the null bits."""
    finish: Callable[[Any], Any]


@dataclass(frozen=True)
class _Layout:
    record: struct.Struct
    fixed: Sequence[_Column]
    texts: Sequence[_Column]
    has_nulls: bool


def rows_of(layout: str, rows: bytes | None, texts: bytes | None) -> Iterator[KeptRow]:
    """The rows of a block that was written with these columns."""
    shape = _layout(layout)
    begin, held = 0, texts or b""
    try:
        for at, *values, matched in shape.record.iter_unpack(rows or b""):
            nulls = values.pop() if shape.has_nulls else b""
            columns = {}
            for column, value in zip(shape.fixed, values, strict=False):
                columns[column.name] = None if _is_null(nulls, column) else column.finish(value)
            for column, length in zip(shape.texts, values[len(shape.fixed) :], strict=True):
                text = held[begin : begin + length]
                begin += length
                columns[column.name] = None if _is_null(nulls, column) else column.finish(text)
            yield KeptRow(at, bool(matched), columns)
    except (struct.error, ValueError) as error:
        raise CorruptError(
            f"rows that a join keeps do not fit their columns {layout!r} ({error}); run `stateflow verify`"
        ) from None


@lru_cache(maxsize=64)
def _layout(layout: str) -> _Layout:
    fixed, texts, form = [], [], "<q"
    for place, (name, kind) in enumerate(columns_of(layout)):
        if _TEXT.fullmatch(kind):
            texts.append(_Column(name, place, bytes if kind == "binary" else bytes.decode))
        else:
            fixed.append(_Column(name, place, _finish(name, kind)))
            form += "16s" if kind.startswith("decimal") else _FORMS[kind]
    count = len(fixed) + len(texts)
    nulls = f"{-(-count // 8)}s" if count else ""
    return _Layout(struct.Struct(f"{form}{'i' * len(texts)}{nulls}B"), fixed, texts, bool(count))


def _is_null(nulls: bytes, column: _Column) -> bool:
    return bool(nulls[column.place >> 3] >> (column.place & 7) & 1)


def _finish(name: str, kind: str) -> Callable[[Any], Any]:
    if kind.startswith("decimal"):
        scale = int(kind.rstrip(")").partition(",")[2] or 0)
        return lambda raw: _decimal(raw, scale)
    where = f"a time outside of the years 1 to 9999 in the column {name!r}"
    if kind == "timestamp_ntz":
        return _within_years(where, lambda micros: instant(micros).replace(tzinfo=None))
    if kind.startswith("timestamp"):
        return _within_years(where, instant)
    return _within_years(where, day) if kind == "date" else _same


def _within_years(where: str, of: Callable[[int], Any]) -> Callable[[int], Any]:
    """Spark has later and earlier times than Python, and a join keeps them as they are: nothing is damaged."""

    def finish(value: int) -> Any:
        try:
            return of(value)
        except (ValueError, OverflowError):
            raise UsageError(
                f"a row that a join keeps has {where}, which a look-up cannot show: "
                "let the pipeline drop or correct such rows before the join"
            ) from None

    return finish


_time: Callable[[int], datetime] = _within_years("an event time outside of the years 1 to 9999", instant)


def _decimal(raw: bytes, scale: int) -> Decimal:
    unscaled = int.from_bytes(raw, "little", signed=True)
    # `scaleb` would round to the digits of the context.
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


def _same(value: Any) -> Any:
    return value
