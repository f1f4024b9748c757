"""Aggregates that users write: a Python call for every value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from stateflow.operators.arrow_types import arrow_type
from stateflow.operators.python_values import values_of
from stateflow.operators.ready.aggregates.partials import CountedRows, Parts
from stateflow.operators.ready.grouping.failed_groups import FailedCode
from stateflow.operators.ready.grouping.groups import Groups
from stateflow.pipelines.ready.aggregates import OwnCode
from stateflow.state.values.arrow.lossless import MISFITS, array_of, misfits
from stateflow.state.values.serializers import serializer_for

Failures = dict[int, tuple[str, Exception]]


class Own:
    """The partial of a group is its accumulator as bytes."""

    def __init__(self, code: OwnCode, result: str) -> None:
        self._code = code
        self._result = result

    def create(self, values: CountedRows, groups: Groups) -> Parts:
        code, dumps = self._code, serializer_for(self._code.state).dumps
        held: dict[int, Any] = {}
        failures: Failures = {}
        for group, value in zip(values.ids.tolist(), values_of(values.column), strict=True):
            if group in failures:
                continue
            function = "add"
            try:
                if group not in held:
                    function = "create"
                    held[group] = code.create()
                    function = "add"
                held[group] = code.add(held[group], value)
            except Exception as error:
                failures[group] = function, error
        encoded: list[bytes | None] = [None] * groups.size
        for group, accumulator in held.items():
            if group not in failures:
                try:
                    encoded[group] = dumps(accumulator)
                except Exception as error:
                    failures[group] = "add", error
        return [_unless(failures, lambda: pa.array(encoded, pa.large_binary()))]

    def merge(self, one: Parts, other: Parts) -> Parts:
        serializer = serializer_for(self._code.state)

        def merged(left: bytes | None, right: bytes | None) -> bytes | None:
            if left is None or right is None:
                return right if left is None else left
            return serializer.dumps(self._code.merge(serializer.loads(left), serializer.loads(right)))

        rows = zip(one[0].to_pylist(), other[0].to_pylist(), strict=True)
        failures: Failures = {}
        values = _each("merge", merged, rows, failures)
        return [_unless(failures, lambda: pa.array(values, pa.large_binary()))]

    def result(self, parts: Parts) -> Any:
        """The result for no values: that of an accumulator to which nothing was added."""
        code, loads, kind = self._code, serializer_for(self._code.state).loads, arrow_type(self._result)
        failures: Failures = {}

        def made(raw: bytes | None) -> Any:
            return code.create() if raw is None else loads(raw)

        held = _each("create", made, ((raw,) for raw in parts[0].to_pylist()), failures)
        values = _each("result", code.result, ((each,) for each in held), failures)
        return _unless(failures, lambda: _fitting(values, kind, failures))


def _each(
    name: str, function: Callable[..., Any], rows: Iterator[tuple[Any, ...]], failures: Failures
) -> list[Any]:
    out: list[Any] = []
    for group, row in enumerate(rows):
        value = None
        if group not in failures:
            try:
                value = function(*row)
            except Exception as error:
                failures[group] = name, error
        out.append(value)
    return out


def _fitting(values: list[Any], kind: Any, failures: Failures) -> Any:
    """The results as a column. Finds a result that does not have the type, so that the error can name its key."""
    try:
        return array_of(values, kind)
    except MISFITS:
        for group, error in misfits(values, kind):
            failures[group] = "result", TypeError(f"{values[group]!r} is no {kind}: {error}")
        return _unless(failures, lambda: pa.array(values, kind))


def _unless(failures: Failures, make: Callable[[], Any]) -> Any:
    if failures:
        raise FailedCode(failures)
    return make()
