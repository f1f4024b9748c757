"""Code per window. The rows of a window are kept as an aggregate is: encoded, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from stateflow.errors import IncompatibleError, UserCodeError, placed
from stateflow.operators.arrow_types import arrow_schema_of
from stateflow.operators.engine import REPEATED
from stateflow.operators.output import RowWriter
from stateflow.operators.ready.dead_letters import dead_letter, put_out
from stateflow.operators.ready.groups import whole
from stateflow.operators.ready.ordered_values import ranks
from stateflow.operators.ready.row_frames import Names, framed, frames, heading
from stateflow.pipelines.columnar import ColumnarContext, ColumnarOperator
from stateflow.pipelines.ready import WINDOW_END, WINDOW_START
from stateflow.pipelines.rows import Field
from stateflow.pipelines.window_process import ENCODED, WindowBounds, WindowCode
from stateflow.state.values.evolved_columns import earlier_name

Produced = Iterator[pa.Table | tuple[str, pa.Table]]
_PYTHON = {"date": date, "timestamp": datetime, "binary": bytes}


class CodePerWindow(ColumnarOperator):
    """Hands the windows that `inner` puts out to user code."""

    def __init__(self, declared: WindowCode, inner: ColumnarOperator) -> None:
        assert declared.given is not None
        self.states = inner.states
        self.waits = inner.waits
        self._inner = inner
        self._declared = declared
        self._diverts = declared.on_error == "dead_letter"
        self._code = declared.code()
        self._fields = declared.given.fields
        self._make = declared.given.make
        self._order = [(by.removeprefix("-"), by.startswith("-")) for by in declared.order]
        self._kept = declared.kept
        self._renamed = declared.renamed
        self._names = tuple(field.name for field in self._kept)
        self._waits_alone = "waiting" in inner.states
        self._schema = arrow_schema_of(declared.rows)
        self._writer = RowWriter(declared.output, arrow_schema_of(declared.output), declared.where)

    @cached_property
    def _readers(self) -> dict[Names, Callable[[bytes], tuple[Any, ...]]]:
        """What reads rows with these columns. Made in the task: it cannot travel there."""
        return {}

    def _reader(self, names: Names) -> Callable[[bytes], tuple[Any, ...]]:
        if names not in self._readers:
            self._readers[names] = self._reader_of(names)
        return self._readers[names]

    def _reader_of(self, names: Names) -> Callable[[bytes], tuple[Any, ...]]:
        sources = [
            earlier_name(field.name, self._renamed[field.name], names, self._names) for field in self._kept
        ]
        kinds: dict[str, Any] = {
            source: _kind(field) for field, source in zip(self._kept, sources, strict=True) if source
        }
        decode = msgspec.msgpack.Decoder(tuple[tuple(kinds.get(name, Any) for name in names)]).decode  # type: ignore[misc]
        if names == self._names:
            return decode
        places = [None if source is None else names.index(source) for source in sources]
        defaults = [field.default for field in self._kept]

        def read(row: bytes) -> tuple[Any, ...]:
            before = decode(row)
            values = [None if place is None else before[place] for place in places]
            # As a row from the source, in which the column is null.
            return tuple(
                default.values(1)[0] if value is None and default is not None else value
                for value, default in zip(values, defaults, strict=True)
            )

        return read

    def process(self, rows: pa.Table, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        columns = [rows[field.name].to_pylist() for field in self._kept]
        encode = msgspec.msgpack.encode
        made = [encode(row) for row in zip(*columns, strict=True)]
        # Rows of a window of a count wait one by one.
        before = heading(self._names) if self._waits_alone else b""
        encoded = [before + framed(row) for row in made]
        rows = rows.append_column(ENCODED, pa.array(encoded, pa.binary()))
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
        bounds = (closed[name].to_pylist() for name in (WINDOW_START, WINDOW_END))
        out: list[Any] = []
        dead: list[tuple[Any, ...]] = []
        for key, start, end, blob in zip(keys, *bounds, closed[ENCODED].to_pylist(), strict=True):
            window, rows = WindowBounds(start, end), self._rows(blob)
            try:
                out += self._code.process(key, window, rows, ctx) or ()
            except Exception as error:
                if not self._diverts:
                    raise UserCodeError(
                        f"{self._declared.where} failed for key {key!r} and the window from {start.isoformat()} to "
                        f"{end.isoformat()}: {placed(error)}: {REPEATED}"
                    ) from error
                dead.append(dead_letter(self._declared.uid, key, "", error, rows, ctx))
        if out:
            yield pa.Table.from_batches([self._writer.write(out)])
        yield from put_out(dead)

    def _rows(self, blob: bytes) -> list[Any]:
        """The rows in their order; of those at the same place the one whose bytes are smaller comes first."""
        values = [self._decoded(row, names) for row, names in sorted(frames(blob, self._names))]
        codes = []
        for name, descends in self._order:
            place = next(i for i, field in enumerate(self._kept) if field.name == name)
            column = pa.array([row[place] for row in values], self._schema.field(name).type)
            code = ranks(whole(column))
            codes.append(-code if descends else code)
        count = len(self._fields)
        return [self._row(values[i][:count]) for i in np.lexsort(tuple(reversed(codes))).tolist()]

    def _decoded(self, row: bytes, names: Names) -> tuple[Any, ...]:
        try:
            return self._reader(names)(row)
        except msgspec.ValidationError as error:
            raise IncompatibleError(
                f"{self._declared.where}: rows of open windows were kept with columns {', '.join(names)}, and do not fit those of "
                f"today ({error}): put the type back until these windows are closed, or give the operator a new uid"
            ) from None

    def _row(self, values: tuple[Any, ...]) -> Any:
        return self._make(
            *(_converted(value, field) for value, field in zip(values, self._fields, strict=True))
        )


def _kind(field: Field) -> Any:
    """What MessagePack is decoded to: it has dates and decimals as text."""
    if field.type.startswith("decimal"):
        return Decimal | None
    return _PYTHON[field.type] | None if field.type in _PYTHON else Any


def _converted(value: Any, field: Field) -> Any:
    if value is None or "<" not in field.type:
        return value
    if field.type.startswith("map<"):
        value = dict(value)
    return value if field.hint is None else msgspec.convert(value, field.hint)
