"""Stored values as a typed Arrow column and back, from the text of a type alone.

A value that was written while its state had another type is read as today's type.

Structured values and decimals have a second column, `stored`: the bytes behind the header where the typed value loses a
part of them, and null elsewhere. A field that was left out reads as None, 1.50 as 1.5; integers from 2**63 and decimals
beyond decimal(38,18) read as null. These bytes are written back unless the typed value was changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from stateflow.errors import IncompatibleError, StateflowError, UsageError
from stateflow.format.instants import FIRST_DAY, LAST_DAY
from stateflow.format.scalars import BY_NAME, Scalar
from stateflow.state.keys.arrow_bytes import Array
from stateflow.state.keys.arrow_types import ARROW, DECIMAL
from stateflow.state.values.arrow.headers import BadEntryError, expiry_column, split
from stateflow.state.values.arrow.packed_instants import are_instants
from stateflow.state.values.arrow.shapes import DecimalShape, Doubts, Element, Writing, fits_decimal
from stateflow.state.values.evolution.versions import marked
from stateflow.state.values.serializers import BOOL, EXPIRES, RAW_CODE, damaged, serializer_for


class ValueColumn(NamedTuple):
    column: Any
    expires: Any = None
    """None when no value has an expiry."""
    stored: Any = None
    """None when the column loses nothing."""


class Values:
    """The values of one state."""

    arrow: pa.DataType
    doubtful = False
    """Whether there is a column `stored`."""

    def __init__(self, schema: str, code: int, where: str) -> None:
        self.schema = schema
        self.code = code
        self.where = where

    def read(self, values: Sequence[bytes]) -> ValueColumn:
        """Raises BadEntryError."""
        raise NotImplementedError

    def write(self, column: Any, stored: Any) -> list[bytes]:
        """Values without an expiry, of a column of type `arrow`; `stored` is None or a binary column."""
        raise NotImplementedError

    def foreign(self, raw: bytes) -> bytes:
        """The bytes behind the header of a value of another code, after it is written as today's type."""
        code = raw[0] & ~EXPIRES
        if not BOOL <= code <= RAW_CODE:
            raise damaged(raw, self.schema)
        raise IncompatibleError(
            f"a stored value was written in another way (code {code}) than {self.schema} is"
        )

    def _whole(self, column: Any) -> Any:
        if column.null_count:
            raise UsageError(f"{self.where}: value holds {column.null_count} nulls: drop such rows")
        return column


class Scalars(Values):
    """Values without MessagePack."""

    def __init__(self, scalar: Scalar, where: str) -> None:
        super().__init__(scalar.name, scalar.code, where)
        self.arrow = ARROW[scalar.name]
        self._serializer = serializer_for(scalar.type)

    def foreign(self, raw: bytes) -> bytes:
        return self._serializer.dumps(self._serializer.loads(raw))[1:]


class FixedValues(Scalars):
    """Values of one width: read and written as one array."""

    def __init__(self, scalar: Scalar, where: str) -> None:
        super().__init__(scalar, where)
        self._hint = scalar.type
        form = f"<{scalar.form}"
        self._form = np.dtype(form)
        self._plain = np.dtype([("header", "u1"), ("value", form)])
        self._expiring = np.dtype([("header", "u1"), ("expiry", ">i8"), ("value", form)])

    def read(self, values: Sequence[bytes]) -> ValueColumn:
        widths = set(map(len, values))
        for layout, head in ((self._plain, self.code), (self._expiring, self.code | EXPIRES)):
            if widths == {layout.itemsize}:
                rows = np.frombuffer(b"".join(values), dtype=layout)
                if bool((rows["header"] == head).all()):
                    expires = expiry_column(rows["expiry"]) if layout is self._expiring else None
                    return ValueColumn(self._column(rows["value"], values), expires)
        bodies, expires = split(values, self.code, self.foreign, self.schema)
        width = self._form.itemsize
        for index, body in enumerate(bodies):
            if len(body) != width:
                raise BadEntryError(index, damaged(values[index], self.schema))
        return ValueColumn(self._column(np.frombuffer(b"".join(bodies), dtype=self._form), values), expires)

    def _column(self, raw: Array, values: Sequence[bytes]) -> Any:
        if self._hint is bool:
            return pa.array(raw == 1)
        outside = np.flatnonzero(~self._known(raw))
        if len(outside):
            raise BadEntryError(int(outside[0]), damaged(values[int(outside[0])], self.schema))
        array = pa.array(np.ascontiguousarray(raw))
        return array if array.type == self.arrow else array.cast(self.arrow)

    def _known(self, raw: Array) -> Array:
        """Where Python has such an instant or date."""
        if self._hint is datetime:
            return are_instants(raw)
        if self._hint is date:
            return (raw >= FIRST_DAY) & (raw <= LAST_DAY)
        return np.ones(len(raw), dtype=bool)

    def write(self, column: Any, stored: Any) -> list[bytes]:
        column = self._whole(column)
        if self._hint in (date, datetime):
            column = column.cast(pa.int32() if self._hint is date else pa.int64())
        rows = np.empty(len(column), dtype=self._plain)
        rows["header"] = self.code
        rows["value"] = column.to_numpy(zero_copy_only=False)
        if not bool(self._known(rows["value"]).all()):
            raise UsageError(f"{self.where}: value holds times outside of the years 1 to 9999: correct them")
        raw, width = rows.tobytes(), self._plain.itemsize
        return [raw[at : at + width] for at in range(0, len(raw), width)]


class ByteValues(Values):
    """Values that stay bytes: what a custom serializer made, and columns that have no Arrow type."""

    arrow = pa.binary()

    def read(self, values: Sequence[bytes]) -> ValueColumn:
        bodies, expires = split(values, self.code, self.foreign, self.schema)
        return ValueColumn(pa.array(bodies, type=pa.binary()), expires)

    def write(self, column: Any, stored: Any) -> list[bytes]:
        header = bytes((self.code,))
        return [header + body for body in bodies_of(self._whole(column))]


class TextValues(Scalars):
    """Text and bytes."""

    def read(self, values: Sequence[bytes]) -> ValueColumn:
        bodies, expires = split(values, self.code, self.foreign, self.schema)
        return ValueColumn(
            text_column(bodies, self) if self.schema == "str" else pa.array(bodies, pa.binary()), expires
        )

    def write(self, column: Any, stored: Any) -> list[bytes]:
        header = bytes((self.code,))
        return [header + body for body in bodies_of(self._whole(column).cast(pa.binary()))]


class DoubtfulValues(Values):
    """Values with a column `stored` beside the typed one."""

    doubtful = True

    def read_bodies(self, bodies: Sequence[bytes]) -> tuple[Any, bool]:
        """The typed column of the bytes behind the headers, and whether it may lose a part of them."""
        raise NotImplementedError

    def write_bodies(self, column: Any, *, lenient: bool) -> list[bytes]:
        """What is behind the headers. `lenient` is for comparing: forbidden nulls are no error then."""
        raise NotImplementedError

    def read(self, values: Sequence[bytes]) -> ValueColumn:
        bodies, expires = split(values, self.code, self.foreign, self.schema)
        column, doubts = self.read_bodies(bodies)
        return ValueColumn(column, expires, self._unsaid(column, bodies) if doubts else None)

    def _unsaid(self, column: Any, bodies: Sequence[bytes]) -> Any:
        """The stored bytes of each value that the column would not give back."""
        written = self.write_bodies(column, lenient=True)
        return pa.array(
            [None if body == said else body for body, said in zip(bodies, written, strict=True)],
            type=pa.binary(),
        )

    def write(self, column: Any, stored: Any) -> list[bytes]:
        header = bytes((self.code,))
        if stored is None or stored.null_count == len(stored):
            return [header + body for body in self.write_bodies(column, lenient=False)]
        bodies: list[bytes | None] = stored.to_pylist()
        doubted = [index for index, body in enumerate(bodies) if body is not None]
        known = [bodies[index] for index in doubted]
        try:
            before, _ = self.read_bodies(known)  # type: ignore[arg-type]
        except BadEntryError as error:
            raise UsageError(
                f"{self.where}: stored holds bytes that are no value: leave them as they were read, or null ({error.error})"
            ) from error
        now = self.write_bodies(column.take(pa.array(doubted)), lenient=True)
        for index, said, meant in zip(doubted, now, self.write_bodies(before, lenient=True), strict=True):
            if said != meant:
                bodies[index] = None
        fresh = [index for index, body in enumerate(bodies) if body is None]
        written = self.write_bodies(column.take(pa.array(fresh, type=pa.int64())), lenient=False)
        for index, body in zip(fresh, written, strict=True):
            bodies[index] = body
        return [header + body for body in bodies if body is not None]


class DecimalValues(DoubtfulValues, Scalars):
    def __init__(self, scalar: Scalar, where: str) -> None:
        Scalars.__init__(self, scalar, where)
        self._element = Element(DecimalShape(Decimal, DECIMAL))

    def read_bodies(self, bodies: Sequence[bytes]) -> tuple[Any, bool]:
        texts = text_column(bodies, self)
        try:
            return texts.cast(DECIMAL), True
        except pa.ArrowInvalid:
            return self._element.shape.build(
                list(map(self._decimal, range(len(bodies)), bodies)), Doubts()
            ), True

    def _decimal(self, index: int, body: bytes) -> Decimal | None:
        try:
            value = Decimal(body.decode())
        except InvalidOperation:
            raise BadEntryError(index, damaged(body, self.schema)) from None
        return value if fits_decimal(value) else None

    def write_bodies(self, column: Any, *, lenient: bool) -> list[bytes]:
        texts = self._element.values(column, Writing(self.where, lenient), "value")
        return [b"" if digits is None else digits.encode() for digits in texts]


class EvolvedValues(Values):
    """Values of a state whose type has changed: each is made one of today's type first."""

    def __init__(self, values: Values, today: Callable[[bytes], bytes], version: int) -> None:
        super().__init__(values.schema, values.code, values.where)
        self.arrow, self.doubtful = values.arrow, values.doubtful
        self._values, self._today, self._version = values, today, version

    def read(self, values: Sequence[bytes]) -> ValueColumn:
        today, of_today = self._today, []
        for index, raw in enumerate(values):
            try:
                of_today.append(today(raw))
            except StateflowError as error:
                raise BadEntryError(index, error) from error
        return self._values.read(of_today)

    def write(self, column: Any, stored: Any) -> list[bytes]:
        number = self._version
        return [marked(raw, number) for raw in self._values.write(column, stored)]


def bodies_of(column: Any) -> list[bytes]:
    return column.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


def text_column(bodies: Sequence[bytes], values: Values) -> Any:
    try:
        return pa.array(bodies, type=pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        for index, body in enumerate(bodies):
            try:
                body.decode()
            except UnicodeDecodeError:
                raise BadEntryError(index, damaged(body, values.schema)) from None
        raise


def scalars(schema: str, where: str) -> Values | None:
    """The values of a type that is stored without MessagePack; None for all others."""
    scalar = BY_NAME.get(schema)
    if scalar is None or not scalar.code:
        return None
    if scalar.form:
        return FixedValues(scalar, where)
    return (DecimalValues if scalar.type is Decimal else TextValues)(scalar, where)
