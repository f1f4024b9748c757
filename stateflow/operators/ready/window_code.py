"""Code per window. The rows of a window are kept as an aggregate is: encoded, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from stateflow.errors import UserCodeError, placed
from stateflow.operators.arrow_types import arrow_schema_of
from stateflow.operators.engine import REPEATED
from stateflow.operators.output import RowWriter
from stateflow.operators.ready.dead_letters import dead_letter, put_out
from stateflow.operators.ready.groups import whole
from stateflow.operators.ready.ordered_values import ranks
from stateflow.pipelines.columnar import ColumnarContext, ColumnarOperator
from stateflow.pipelines.ready import WINDOW_END, WINDOW_START
from stateflow.pipelines.rows import Field
from stateflow.pipelines.window_process import ENCODED, WindowBounds, WindowCode

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
        names = [field.name for field in self._fields]
        names += [name for name, _ in self._order if name not in names]
        fields = [declared.rows.field(name) for name in names]
        self._kept = [field for field in fields if field is not None]
        self._schema = arrow_schema_of(declared.rows)
        self._writer = RowWriter(declared.output, arrow_schema_of(declared.output), declared.where)

    @cached_property
    def _decoder(self) -> Any:
        """Made in the task: it cannot travel there."""
        return msgspec.msgpack.Decoder(tuple[tuple(map(_kind, self._kept))])  # type: ignore[misc]

    def process(self, rows: pa.Table, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        columns = [rows[field.name].to_pylist() for field in self._kept]
        encode = msgspec.msgpack.encode
        made = [encode(row) for row in zip(*columns, strict=True)]
        framed = [len(row).to_bytes(4, "little") + row for row in made]
        rows = rows.append_column(ENCODED, pa.array(framed, pa.binary()))
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
        framed, at = [], 0
        while at < len(blob):
            size = int.from_bytes(blob[at : at + 4], "little")
            framed.append(blob[at + 4 : at + 4 + size])
            at += 4 + size
        framed.sort()
        values = [self._decoder.decode(each) for each in framed]
        codes = []
        for name, descends in self._order:
            place = next(i for i, field in enumerate(self._kept) if field.name == name)
            column = pa.array([row[place] for row in values], self._schema.field(name).type)
            code = ranks(whole(column))
            codes.append(-code if descends else code)
        count = len(self._fields)
        return [self._row(values[i][:count]) for i in np.lexsort(tuple(reversed(codes))).tolist()]

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
