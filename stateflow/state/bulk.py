"""Many values of one serializer at once: a call per chunk instead of one per key, where the layout allows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stateflow.state.values.serializers import FLOAT, INT, Serializer

DumpsMany = Callable[[list[Any]], list[bytes]]
LoadsMany = Callable[[Sequence[bytes | None], Any], list[Any]]
"""loads_many(raw values, what stands for a missing one)"""

_WIDTH = 9
_LAYOUTS = {
    "int": (INT, np.dtype([("header", "u1"), ("value", "<i8")]), ({int},)),
    "float": (FLOAT, np.dtype([("header", "u1"), ("value", "<f8")]), ({float}, {float, int}, {int})),
}


def bulk(serializer: Serializer) -> tuple[DumpsMany, LoadsMany]:
    """`(dumps_many, loads_many)`; values that need a closer look go one by one, so errors are the serializer's."""
    dumps, loads = serializer.dumps, serializer.loads

    def dumps_each(values: list[Any]) -> list[bytes]:
        return [dumps(value) for value in values]

    def loads_each(found: Sequence[bytes | None], missing: Any) -> list[Any]:
        return [missing if raw is None else loads(raw) for raw in found]

    if serializer.schema not in _LAYOUTS:
        return dumps_each, loads_each
    code, layout, accepted = _LAYOUTS[serializer.schema]
    blank = bytes((code,)) + bytes(_WIDTH - 1)

    def dumps_many(values: list[Any]) -> list[bytes]:
        if set(map(type, values)) not in accepted:
            return dumps_each(values)
        rows = np.empty(len(values), dtype=layout)
        try:
            rows["value"] = values
        except OverflowError:
            return dumps_each(values)
        rows["header"] = code
        raw = rows.tobytes()
        return [raw[at : at + _WIDTH] for at in range(0, len(raw), _WIDTH)]

    def loads_many(found: Sequence[bytes | None], missing: Any) -> list[Any]:
        joined = b"".join([blank if raw is None else raw for raw in found])
        if len(joined) != _WIDTH * len(found):
            return loads_each(found, missing)
        rows = np.frombuffer(joined, dtype=layout)
        if (rows["header"] != code).any():
            return loads_each(found, missing)
        values: list[Any] = rows["value"].tolist()
        for index, raw in enumerate(found):
            if raw is None:
                values[index] = missing
        return values

    return dumps_many, loads_many
