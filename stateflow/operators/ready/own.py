"""Aggregates that users write: a Python call for every value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from stateflow.operators.arrow_types import arrow_type
from stateflow.operators.ready.groups import Groups
from stateflow.operators.ready.partials import Parts, Values
from stateflow.pipelines.aggregates import OwnCode
from stateflow.state.values.serializers import serializer_for


class FailedCode(Exception):
    """A function that users wrote raised `error` for the group of the index `group`."""

    def __init__(self, group: int, function: str, error: Exception) -> None:
        super().__init__(group, function, error)
        self.group, self.function, self.error = group, function, error


class Own:
    """The partial of a group is its accumulator as bytes."""

    def __init__(self, code: OwnCode, result: str) -> None:
        self._code = code
        self._result = result

    def create(self, values: Values, groups: Groups) -> Parts:
        code, dumps = self._code, serializer_for(self._code.state).dumps
        held: dict[int, Any] = {}
        for group, value in zip(values.ids.tolist(), values.column.to_pylist(), strict=True):
            try:
                held[group] = code.add(held[group] if group in held else code.create(), value)
            except Exception as error:
                raise FailedCode(group, "add", error) from error
        encoded: list[bytes | None] = [None] * groups.size
        for group, accumulator in held.items():
            try:
                encoded[group] = dumps(accumulator)
            except Exception as error:
                raise FailedCode(group, "add", error) from error
        return [pa.array(encoded, pa.binary())]

    def merge(self, one: Parts, other: Parts) -> Parts:
        serializer = serializer_for(self._code.state)

        def merged(left: bytes | None, right: bytes | None) -> bytes | None:
            if left is None or right is None:
                return right if left is None else left
            return serializer.dumps(self._code.merge(serializer.loads(left), serializer.loads(right)))

        rows = zip(one[0].to_pylist(), other[0].to_pylist(), strict=True)
        return [_each("merge", merged, rows, pa.binary())]

    def result(self, parts: Parts) -> Any:
        """Of no value at all: what comes out of an accumulator that nothing was added to."""
        code, loads = self._code, serializer_for(self._code.state).loads

        def result(raw: bytes | None) -> Any:
            return code.result(code.create() if raw is None else loads(raw))

        return _each("result", result, ((raw,) for raw in parts[0].to_pylist()), arrow_type(self._result))


def _each(name: str, function: Callable[..., Any], rows: Iterator[tuple[Any, ...]], kind: Any) -> Any:
    out = []
    for group, row in enumerate(rows):
        try:
            out.append(function(*row))
        except Exception as error:
            raise FailedCode(group, name, error) from error
    return pa.array(out, kind)
