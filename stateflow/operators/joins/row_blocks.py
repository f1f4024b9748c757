"""Rows as bytes, many of them in one value of state.

    rows     a record of one width per row: time, matched, null bits, columns of a fixed width, lengths of texts
    texts    the texts of the rows, row after row; missing when no column is a text

Both are written and read for all blocks at once: a block is a slice of what numpy sees as one array. A look-up reads a single
block without numpy (`state/values/kept_rows`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.errors import IncompatibleError
from stateflow.operators.arrow_types import arrow_type
from stateflow.operators.ready.grouping.groups import whole
from stateflow.operators.ready.grouping.packed import bytes_of
from stateflow.pipelines.ready.joins import Side
from stateflow.state.keys.arrow_bytes import decimal_words, of_decimal_words, put_together, taken_apart
from stateflow.state.keys.arrow_types import wide
from stateflow.state.values.evolution.evolved_columns import earlier_names
from stateflow.state.values.kept_rows import columns_of

_AT, _MATCHED, _NULLS = "at", "matched", "nulls"
_BYTES = pa.large_binary()


@dataclass(frozen=True)
class Rows:
    """Rows of one side of a join."""

    at: Any
    """Their times, in microseconds."""
    matched: Any
    """Whether each has had a partner."""
    columns: pa.Table

    def take(self, places: Any) -> Rows:
        columns = self.columns.take(pa.array(places)) if self.columns.num_columns else self.columns
        return Rows(self.at[places], self.matched[places], columns)

    def __len__(self) -> int:
        return len(self.at)


def both(one: Rows, other: Rows) -> Rows:
    return Rows(
        np.concatenate((one.at, other.at)),
        np.concatenate((one.matched, other.matched)),
        pa.concat_tables([one.columns, other.columns]),
    )


@dataclass(frozen=True)
class EncodedBlocks:
    """Encoded rows: a value per block."""

    rows: Any
    texts: Any


class RowBlocks:
    """Writes and reads rows with these columns. A column is a name and the text of its Spark type."""

    def __init__(
        self,
        columns: Sequence[tuple[str, str]],
        aliases: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        """`aliases` are what columns were called before, by name."""
        self.aliases = aliases
        self.text = ",".join(f"{name}:{kind}" for name, kind in columns)
        """The columns as text, kept beside a block: later code may have other columns."""
        self.types = [arrow_type(kind) for _, kind in columns]
        """As people know them."""
        self.schema = pa.schema(
            [(name, wide(kind)) for (name, _), kind in zip(columns, self.types, strict=True)]
        )
        kinds = list(self.schema.types)
        self._texts = [place for place, kind in enumerate(kinds) if _is_text(kind)]
        # What is wide comes first, so that most reads are aligned.
        self._fixed = [place for place in range(len(kinds)) if place not in self._texts]
        forms: list[Any] = [(f"c{place}", _form(kinds[place])) for place in self._fixed]
        forms += [(f"c{place}", "<i4") for place in self._texts]
        if kinds:
            forms.append((_NULLS, "u1", (-(-len(kinds) // 8),)))
        self._record = np.dtype([(_AT, "<i8"), *forms, (_MATCHED, "u1")])

    @classmethod
    def of_side(cls, side: Side) -> RowBlocks:
        return cls([(f.name, f.type) for f in side.kept], {f.name: f.aliases for f in side.kept})

    def write(self, rows: Rows, ends: Any) -> EncodedBlocks:
        """`ends` are where each block ends among the rows, ascending; rows of a block lie together."""
        count = len(rows)
        records = np.zeros(count, dtype=self._record)
        records[_AT], records[_MATCHED] = rows.at, rows.matched
        columns = [whole(column) for column in rows.columns.columns]
        for place, column in enumerate(columns):
            if column.null_count:
                null = column.is_null().to_numpy(zero_copy_only=False)
                records[_NULLS][:, place >> 3] |= null.astype(np.uint8) << (place & 7)
        for place in self._fixed:
            records[f"c{place}"] = _numbers(columns[place], self._record[f"c{place}"])
        bounds = np.concatenate(([0], ends))
        blocks = put_together(bounds * self._record.itemsize, records)
        if not self._texts:
            return EncodedBlocks(blocks, pa.nulls(len(ends), _BYTES))
        offsets, data = _interleaved([columns[place] for place in self._texts])
        width = len(self._texts)
        lengths = np.diff(offsets).reshape(count, width)
        for number, place in enumerate(self._texts):
            records[f"c{place}"] = lengths[:, number]
        return EncodedBlocks(
            put_together(bounds * self._record.itemsize, records),
            put_together(offsets[bounds * width], data),
        )

    def read(self, blocks: EncodedBlocks) -> tuple[Rows, Any]:
        """The rows of all blocks, and how many each has; a block may be null."""
        sizes, data = bytes_of(whole(blocks.rows))
        records = data.view(self._record)
        columns: list[Any] = [None] * len(self.schema)
        for place in self._fixed:
            column = np.ascontiguousarray(records[f"c{place}"])
            columns[place] = _array(column, self.schema.types[place], self._null(records, place))
        if self._texts:
            self._read_texts(records, blocks.texts, columns)
        at = np.ascontiguousarray(records[_AT])
        rows = Rows(at, records[_MATCHED].astype(bool), pa.table(columns, schema=self.schema))
        return rows, sizes // self._record.itemsize

    def read_as(self, blocks: EncodedBlocks, where: str, now: RowBlocks) -> tuple[Rows, Any]:
        """The rows with the columns that they have now."""
        rows, counts = self.read(blocks)
        columns, sources = [], earlier_names(now.schema.names, now.aliases, self.schema.names)
        for field in now.schema:
            source = sources[field.name]
            if source is None:
                columns.append(pa.nulls(len(rows), field.type))
                continue
            place = self.schema.get_field_index(source)
            try:
                columns.append(rows.columns.column(place).cast(field.type))
            except pa.ArrowException as error:
                raise IncompatibleError(
                    f"{where}: rows that wait have column {source!r} as {self.types[place]}, and the pipeline has it "
                    f"as {now.types[now.schema.get_field_index(field.name)]} ({error}): keep the type until they are joined, or give the operator a new uid"
                ) from error
        return Rows(rows.at, rows.matched, pa.table(columns, schema=now.schema)), counts

    def _null(self, records: Any, place: int) -> Any:
        return (records[_NULLS][:, place >> 3] >> (place & 7)) & 1 == 1

    def _read_texts(self, records: Any, texts: Any, columns: list[Any]) -> None:
        width, count = len(self._texts), len(records)
        lengths = np.empty((count, width), dtype=np.int64)
        for number, place in enumerate(self._texts):
            lengths[:, number] = records[f"c{place}"]
        _, data = bytes_of(whole(texts))
        bounds = np.concatenate(([0], np.cumsum(lengths.reshape(-1))))
        items = put_together(bounds, data)
        for number, place in enumerate(self._texts):
            null = self._null(records, place)
            wanted = np.arange(number, count * width, width)
            column = items.take(pa.array(wanted, mask=null)) if width > 1 or bool(null.any()) else items
            columns[place] = column.cast(self.schema.types[place])


@lru_cache(maxsize=64)
def blocks_with(columns: str) -> RowBlocks:
    """Of rows whose columns are kept as this text."""
    return RowBlocks(columns_of(columns))


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def _form(kind: Any) -> str:
    if pa.types.is_boolean(kind):
        return "u1"
    if pa.types.is_decimal(kind):
        return "V16"
    return f"<{'f' if pa.types.is_floating(kind) else 'i'}{kind.bit_width // 8}"


def _numbers(column: Any, form: Any) -> Any:
    """The values of a column of a fixed width. The bytes in place of a null mean nothing."""
    kind = column.type
    if pa.types.is_decimal(kind):
        return decimal_words(column).view(form)[:, 0]
    if pa.types.is_temporal(kind):
        column = column.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    if column.null_count:
        column = column.fill_null(False if pa.types.is_boolean(kind) else 0)
    return column.to_numpy(zero_copy_only=False)


def _array(values: Any, kind: Any, null: Any) -> Any:
    if pa.types.is_decimal(kind):
        column = of_decimal_words(values, kind)
        return column.take(pa.array(np.arange(len(values)), mask=null)) if bool(null.any()) else column
    if pa.types.is_boolean(kind):
        return pa.array(values.astype(bool), mask=null)
    column = pa.array(values, mask=null)
    return column.view(kind) if pa.types.is_temporal(kind) else column


def _interleaved(columns: Sequence[Any]) -> tuple[Any, Any]:
    """Texts row after row: where each begins and ends, and all their bytes."""
    count = len(columns[0])
    items = [column.cast(_BYTES) for column in columns]
    items = [column.fill_null(b"") if column.null_count else column for column in items]
    one = items[0]
    if len(items) > 1:
        order = np.arange(count * len(items)).reshape(len(items), count).T.reshape(-1)
        one = pa.concat_arrays(items).take(pa.array(order))
    return taken_apart(one)
