"""Structured values as a column: one call reads the MessagePack of a whole batch, and columns are taken from that.

A value that is MessagePack but does not fit its type is null in the typed column and kept in `stored`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from stateflow.errors import IncompatibleError, UsageError
from stateflow.format.scalars import CODED
from stateflow.state.keys.text import shown
from stateflow.state.values.arrow.headers import BadEntryError
from stateflow.state.values.arrow.shapes import Doubts, Element, OpaqueShape, Writing, is_messagepack
from stateflow.state.values.arrow.typed import DoubtfulValues, ValueColumn
from stateflow.state.values.serializers import EXPIRES, STRUCTURED, damaged, serializer_for

_SCALARS = {scalar.code: serializer_for(scalar.type) for scalar in CODED}
"""By header code: what reads a value that was written when its type was a scalar."""
_MISFITS = (msgspec.MsgspecError, ValueError, OverflowError, TypeError)
_NOTHING: Any = object()


class StructuredValues(DoubtfulValues):
    def __init__(self, schema: str, where: str, element: Element, code: int = STRUCTURED) -> None:
        super().__init__(schema, code, where)
        self._element = element
        self._shape = element.shape
        self.arrow = element.shape.arrow
        self.doubtful = code == STRUCTURED and not isinstance(element.shape, OpaqueShape)
        exact = element.hint("exact")
        self._raw = exact is msgspec.Raw
        self._number = element.shape.hint("exact") in (int, float)
        # A header is a number in MessagePack, too: values with their headers are an array of twice as many elements,
        # which saves cutting the headers off.
        self._headed = _all(exact if self._raw or self._number else int | exact)
        self._exact = _all(exact)
        self._loose = _all(element.hint("loose"))
        self._strict = element.hint("strict")
        self._encode = msgspec.msgpack.Encoder().encode

    def read(self, values: Sequence[bytes]) -> ValueColumn:
        try:
            parts = self._headed(_array(2 * len(values), values))
            if self._are_headers(parts[::2]):
                doubts = Doubts(self._shape.doubtful)
                column = self._built(parts[1::2], doubts)
                return ValueColumn(
                    column, None, self._unsaid(column, [raw[1:] for raw in values]) if doubts.any else None
                )
        except _MISFITS:
            pass
        # Some have an expiry, or are not of today's type.
        return super().read(values)

    def _are_headers(self, heads: list[Any]) -> bool:
        if self._raw:
            return b"".join(heads) == bytes((self.code,)) * len(heads)
        return heads.count(self.code) == len(heads)

    def _built(self, values: list[Any], doubts: Doubts) -> Any:
        if not self._number and int in set(map(type, values)):
            raise ValueError("a number among other values")
        return self._shape.build(values, doubts)

    def read_bodies(self, bodies: Sequence[bytes]) -> tuple[Any, bool]:
        for decode, doubtful in ((self._exact, self._shape.doubtful), (self._loose, True)):
            doubts = Doubts(doubtful)
            try:
                return self._shape.build(decode(_array(len(bodies), bodies)), doubts), doubts.any
            except _MISFITS:
                pass
        return self._shape.build(list(map(self._one, range(len(bodies)), bodies)), Doubts()), True

    def _one(self, index: int, body: bytes) -> Any:
        value = self._fitting(body)
        if value is _NOTHING and not self._shape.opaque:
            # In another form, such as a UUID as bytes: what the declared class would read and write again.
            with suppress(*_MISFITS):
                value = self._fitting(self._encode(msgspec.msgpack.decode(body, type=self._strict)))
        if value is not _NOTHING:
            return value
        if self.doubtful and is_messagepack(body):
            return None
        raise BadEntryError(index, damaged(body, self.schema))

    def _fitting(self, body: bytes) -> Any:
        try:
            (value,) = self._loose(_array(1, (body,)))
            self._shape.build([value], Doubts())
        except _MISFITS:
            return _NOTHING
        return value

    def foreign(self, raw: bytes) -> bytes:
        code = raw[0] & ~EXPIRES
        if code not in _SCALARS or self.code != STRUCTURED:
            return super().foreign(raw)
        value = _SCALARS[code].loads(raw)
        if isinstance(self._shape, OpaqueShape):
            return self._encode(value)
        try:
            return self._encode(msgspec.convert(value, type=self._strict))
        except (msgspec.MsgspecError, TypeError) as error:
            raise IncompatibleError(
                f"a stored value does not fit the declared type {self.schema}: {error}; declare the old type again"
            ) from None

    def write_bodies(self, column: Any, *, lenient: bool) -> list[bytes]:
        values = self._element.values(column, Writing(self.where, lenient), "value")
        bodies = list(map(self._encode, values))
        if self._shape.checked and not lenient:
            self._check(bodies)
        return bodies

    def _check(self, bodies: list[bytes]) -> None:
        """Refuses values that could not be read back."""
        try:
            _all(self._strict)(_array(len(bodies), bodies))
        except msgspec.MsgspecError:
            for body in bodies:
                try:
                    msgspec.msgpack.decode(body, type=self._strict)
                except msgspec.MsgspecError as error:
                    raise UsageError(
                        f"{self.where}: value holds {shown(msgspec.msgpack.decode(body))}, which is no {self.schema}: {error}"
                    ) from None
            raise


def _all(hint: Any) -> Callable[[bytes], list[Any]]:
    return msgspec.msgpack.Decoder(list[hint]).decode


def _array(count: int, parts: Sequence[bytes]) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + b"".join(parts)
