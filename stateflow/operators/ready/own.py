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


class Own:
    """The partial of a group is its accumulator as bytes."""

    def __init__(self, code: OwnCode, result: str) -> None:
        self._code = code
        self._result = result

    def create(self, values: Values, groups: Groups) -> Parts:
        code = self._code
        held: dict[int, Any] = {}
        for group, value in zip(values.ids.tolist(), values.column.to_pylist(), strict=True):
            held[group] = code.add(held[group] if group in held else code.create(), value)
        dumps = serializer_for(code.state).dumps
        encoded = [dumps(held[group]) if group in held else None for group in range(groups.size)]
        return [pa.array(encoded, pa.binary())]

    def merge(self, one: Parts, other: Parts) -> Parts:
        serializer = serializer_for(self._code.state)

        def merged(left: bytes | None, right: bytes | None) -> bytes | None:
            if left is None or right is None:
                return right if left is None else left
            return serializer.dumps(self._code.merge(serializer.loads(left), serializer.loads(right)))

        return [_each(merged, zip(one[0].to_pylist(), other[0].to_pylist(), strict=True), pa.binary())]

    def result(self, parts: Parts) -> Any:
        """Of no value at all: what comes out of an accumulator that nothing was added to."""
        code, loads = self._code, serializer_for(self._code.state).loads

        def result(raw: bytes | None) -> Any:
            return code.result(code.create() if raw is None else loads(raw))

        return _each(result, ((raw,) for raw in parts[0].to_pylist()), arrow_type(self._result))


def _each(function: Callable[..., Any], rows: Iterator[tuple[Any, ...]], kind: Any) -> Any:
    return pa.array([function(*row) for row in rows], kind)
