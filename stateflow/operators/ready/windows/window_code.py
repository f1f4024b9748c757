"""Code per window. The rows of a window are kept as an aggregate is: encoded, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from stateflow.errors import IncompatibleError, StateTypeError, UsageError, UserCodeError, placed
from stateflow.operators.arrow_types import arrow_schema_of, arrow_type
from stateflow.operators.engine import REPEATED
from stateflow.operators.output import RowWriter, returned
from stateflow.operators.python_values import values_of
from stateflow.operators.ready.aggregates.row_frames import Names, framed_rows, heading, runs_of_rows
from stateflow.operators.ready.grouping.dead_letters import Produced, dead_letter, put_out
from stateflow.operators.ready.grouping.groups import whole
from stateflow.operators.ready.grouping.ordered_values import in_order, ranks
from stateflow.pipelines.processes.columnar import ColumnarContext, ColumnarOperator
from stateflow.pipelines.ready.aggregates import kept_as
from stateflow.pipelines.ready.operators import WINDOW_END, WINDOW_START
from stateflow.pipelines.ready.window_process import ENCODED, WindowBounds, WindowCode
from stateflow.pipelines.rows.row_type import Field
from stateflow.state.values.evolution.decision import exact_float
from stateflow.state.values.evolution.evolved_columns import earlier_names

READ_AT_ONCE = 4 << 20
"""Bytes of windows whose rows are read together."""
_PYTHON = {
    "date": date,
    "timestamp": datetime,
    "timestamp_ltz": datetime,
    "timestamp_ntz": datetime,
    "binary": bytes,
}


_BEFORE = (
    "restore a checkpoint of before the column was a float, or give the operator another uid, under which it "
    "begins anew"
)


class CodePerWindow(ColumnarOperator):
    """Hands the windows that `inner` puts out to user code."""

    def __init__(self, declared: WindowCode, inner: ColumnarOperator) -> None:
        assert declared.code_rows is not None
        self.states = inner.states
        self.waits = inner.waits
        self._inner = inner
        self._declared = declared
        self._diverts = declared.diverts
        self._code = declared.code()
        self._fields = declared.code_rows.fields
        self._make = declared.code_rows.make
        self._order = [(by.removeprefix("-"), by.startswith("-")) for by in declared.order]
        self._kept = declared.kept
        self._renamed = declared.renamed
        self._names = tuple(field.name for field in self._kept)
        self._floats = [place for place, field in enumerate(self._kept) if kept_as(field.type) is float]
        self._waits_alone = "waiting" in inner.states
        self._schema = arrow_schema_of(declared.rows)
        self._writer = RowWriter(declared.output, arrow_schema_of(declared.output), declared.where)

    @cached_property
    def _readers(self) -> dict[Names, Callable[[bytes], tuple[Any, ...]]]:
        """The reader of rows with these columns. The task makes it, because it cannot be pickled."""
        return {}

    def _reader(self, names: Names) -> Callable[[bytes], tuple[Any, ...]]:
        if names not in self._readers:
            self._readers[names] = self._reader_of(names)
        return self._readers[names]

    @cached_property
    def _decoder(self) -> Any:
        """Reads many rows with the columns of today at once."""
        return msgspec.msgpack.Decoder(list[tuple[tuple(map(_kind, self._kept))]])  # type: ignore[misc]

    @cached_property
    def _converters(self) -> list[tuple[int, Callable[[Any], Any]]]:
        made = ((place, _converter(field)) for place, field in enumerate(self._fields))
        return [(place, convert) for place, convert in made if convert is not None]

    def _reader_of(self, names: Names) -> Callable[[bytes], tuple[Any, ...]]:
        sources = [*earlier_names(self._names, self._renamed, names).values()]
        kinds: dict[str, Any] = {
            source: _kind(field) for field, source in zip(self._kept, sources, strict=True) if source
        }
        decode = msgspec.msgpack.Decoder(tuple[tuple(kinds.get(name, Any) for name in names)]).decode  # type: ignore[misc]
        places = [None if source is None else names.index(source) for source in sources]
        defaults = [field.default for field in self._kept]

        def read(row: bytes) -> tuple[Any, ...]:
            before = decode(row)
            values = [None if place is None else before[place] for place in places]
            # As a row from the source whose column is null.
            return tuple(
                default.values(1)[0] if value is None and default is not None else value
                for value, default in zip(values, defaults, strict=True)
            )

        return read

    def process(self, rows: pa.Table, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        columns = [values_of(whole(rows[field.name])) for field in self._kept]
        made = list(map(msgspec.msgpack.Encoder().encode, zip(*columns, strict=True)))
        # Rows of a window of a count wait one by one.
        encoded = framed_rows(made, heading(self._names) if self._waits_alone else b"")
        rows = rows.append_column(ENCODED, encoded)
        yield from self._called(self._inner.process(rows, states, ctx), ctx)

    def fire(self, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        yield from self._called(self._inner.fire(states, ctx), ctx)

    def next_due(self, states: Mapping[str, Any]) -> int | None:
        return self._inner.next_due(states)

    def _called(self, pieces: Any, ctx: ColumnarContext) -> Produced:
        for piece in pieces or ():
            if isinstance(piece, tuple):
                yield piece
            else:
                yield from self._windows(piece, ctx)

    def _windows(self, closed: pa.Table, ctx: ColumnarContext) -> Produced:
        names = self._declared.key_columns
        keys: list[Any] = closed[names[0]].to_pylist()
        if len(names) > 1:
            keys = list(zip(*(closed[name].to_pylist() for name in names), strict=True))
        bounds = (values_of(whole(closed[name])) for name in (WINDOW_START, WINDOW_END))
        out: list[Any] = []
        dead: list[tuple[Any, ...]] = []
        values = self._writer.values
        for key, start, end, rows in zip(keys, *bounds, self._rows(closed[ENCODED].to_pylist()), strict=True):
            window = WindowBounds(start, end)
            try:
                produced = self._code.process(key, window, rows, ctx)
                if produced is not None:
                    out += list(map(values, returned(self._declared.uid, produced)))
            except Exception as raised:
                error = self._writer.explained(raised)
                if not self._diverts and isinstance(error, UsageError):
                    raise error from raised
                if not self._diverts:
                    raise UserCodeError(
                        f"{self._declared.where} failed for key {key!r} and the window from {start.isoformat()} to "
                        f"{end.isoformat()}: {placed(error)}: {REPEATED}"
                    ) from error
                dead.append(dead_letter(self._declared.uid, key, "", error, rows, ctx))
        if out:
            yield pa.Table.from_batches([self._writer.write(out)])
        yield from put_out(dead)

    def _rows(self, blobs: Sequence[bytes]) -> Iterator[list[Any]]:
        """The rows of each window in their order; of those at the same place the one whose bytes are smaller comes first. Windows
        are read many at once, as most have few rows."""
        begin = 0
        while begin < len(blobs):
            end, size = begin, 0
            while end < len(blobs) and (end == begin or size + len(blobs[end]) <= READ_AT_ONCE):
                size += len(blobs[end])
                end += 1
            yield from self._read(blobs[begin:end])
            begin = end

    def _read(self, blobs: Sequence[bytes]) -> Iterator[list[Any]]:
        runs, counts = runs_of_rows(blobs, self._names)
        values = [row for names, rows in runs for row in self._decoded(rows, names)]
        for place in self._floats:
            if int in {type(row[place]) for row in values}:
                values = [self._with_float(row, place) for row in values]
        encoded = [row for _, rows in runs for row in rows]
        order = self._ordered(values, encoded, np.repeat(np.arange(len(blobs)), counts))
        columns = list(zip(*(values[place] for place in order), strict=True))[: len(self._fields)]
        for place, convert in self._converters:
            columns[place] = tuple(map(convert, columns[place]))
        made = list(map(self._make, *columns))
        for end, count in zip(accumulate(counts), counts, strict=True):
            yield made[end - count : end]

    def _with_float(self, row: tuple[Any, ...], place: int) -> tuple[Any, ...]:
        """A row of before its column became a float."""
        value = row[place]
        if type(value) is not int:
            return row
        try:
            return (*row[:place], exact_float(value, _BEFORE), *row[place + 1 :])
        except StateTypeError as error:
            raise StateTypeError(
                f"{self._declared.where}, column {self._names[place]!r} of the rows of open windows: {error}"
            ) from None

    def _ordered(
        self, values: Sequence[tuple[Any, ...]], encoded: Sequence[bytes], windows: Any
    ) -> list[int]:
        codes = [windows]
        for name, descends in self._order:
            place = self._names.index(name)
            code = ranks(whole(pa.array([row[place] for row in values], self._schema.field(name).type)))
            codes.append(-code if descends else code)
        order, begins = in_order(codes)
        places: list[int] = order.tolist()
        if not begins.all():
            for begin, end in pairwise([*np.flatnonzero(begins).tolist(), len(places)]):
                if end - begin > 1:
                    places[begin:end] = sorted(places[begin:end], key=encoded.__getitem__)
        return places

    def _decoded(self, rows: list[bytes], names: Names) -> list[tuple[Any, ...]]:
        try:
            if names == self._names:
                array = b"\xdd" + len(rows).to_bytes(4, "big")
                read: list[tuple[Any, ...]] = self._decoder.decode(array + b"".join(rows))
                return read
            return list(map(self._reader(names), rows))
        except msgspec.ValidationError as error:
            raise IncompatibleError(
                f"{self._declared.where}: rows of open windows were kept with columns {', '.join(names)}, and do not fit those of "
                f"today ({error}): put the type back until these windows are closed, or give the operator a new uid"
            ) from None


def _kind(field: Field) -> Any:
    """The type that MessagePack is decoded to, with dates and decimals as text."""
    if field.type.startswith("decimal"):
        return Decimal | None
    if field.type in _PYTHON:
        return _PYTHON[field.type] | None
    return int | None if kept_as(field.type) is int else Any


def _converter(field: Field) -> Callable[[Any], Any] | None:
    """Converts what MessagePack holds into the value of a field; None where they are the same."""
    if field.type == "timestamp_ntz":
        return _in_utc
    if "<" not in field.type:
        return None
    kind, hint = arrow_type(field.type), field.hint
    prepare = (_pairs if pa.types.is_nested(kind.key_type) else dict) if pa.types.is_map(kind) else None

    def convert(value: Any) -> Any:
        if value is None:
            return None
        value = value if prepare is None else prepare(value)
        return value if hint is None else msgspec.convert(value, hint)

    return convert


def _in_utc(value: datetime | None) -> datetime | None:
    """Rows were once kept with the text of such a time."""
    return value if value is None or value.tzinfo is not None else value.replace(tzinfo=UTC)


def _pairs(value: list[Any]) -> list[Any]:
    return list(map(tuple, value))
