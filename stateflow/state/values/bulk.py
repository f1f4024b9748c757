"""Many values of one serializer at once: a call per chunk instead of one per key, where the layout allows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.format.scalars import BY_NAME
from stateflow.state.values.packed_instants import datetimes_of, micros_of
from stateflow.state.values.serializers import EXPIRES, Serializer

DumpsMany = Callable[[list[Any]], list[bytes]]
LoadsMany = Callable[[Sequence[bytes | None], Any], list[Any]]
"""loads_many(raw values, what stands for a missing one)"""

_WIDTH = 9
_ACCEPTED = {"int": ({int},), "float": ({float}, {float, int}, {int}), "datetime": ({datetime},)}


def bulk(serializer: Serializer) -> tuple[DumpsMany, LoadsMany]:
    """`(dumps_many, loads_many)`; values that need a closer look go one by one, so errors are the serializer's."""
    dumps, loads = serializer.dumps, serializer.loads

    def dumps_each(values: list[Any]) -> list[bytes]:
        return [dumps(value) for value in values]

    def loads_each(raws: Sequence[bytes | None], missing: Any) -> list[Any]:
        return [missing if raw is None else loads(raw) for raw in raws]

    if serializer.evolved or serializer.schema not in _ACCEPTED:
        return dumps_each, loads_each
    scalar, accepted = BY_NAME[serializer.schema], _ACCEPTED[serializer.schema]
    code, layout = scalar.code, np.dtype([("header", "u1"), ("value", f"<{scalar.form}")])
    blank = bytes((code,)) + bytes(_WIDTH - 1)
    instants = serializer.schema == "datetime"

    def dumps_many(values: list[Any]) -> list[bytes]:
        if set(map(type, values)) not in accepted:
            return dumps_each(values)
        rows = np.empty(len(values), dtype=layout)
        try:
            rows["value"] = micros_of(values).cast(pa.int64()) if instants else values
        except (OverflowError, ValueError):
            return dumps_each(values)
        rows["header"] = code
        raw = rows.tobytes()
        return [raw[at : at + _WIDTH] for at in range(0, len(raw), _WIDTH)]

    expiring = np.dtype([("header", "u1"), ("expiry", ">i8"), ("value", f"<{scalar.form}")])
    blank_expiring = bytes((code | EXPIRES,)) + bytes(expiring.itemsize - 1)

    def loads_many(raws: Sequence[bytes | None], missing: Any) -> list[Any]:
        first = next(filter(None, raws), blank)
        plain = first[0] < EXPIRES
        filler, kind = (blank, layout) if plain else (blank_expiring, expiring)
        joined = b"".join([filler if raw is None else raw for raw in raws])
        if len(joined) != kind.itemsize * len(raws):
            return loads_each(raws, missing)
        rows = np.frombuffer(joined, dtype=kind)
        if (rows["header"] != filler[0]).any():
            return loads_each(raws, missing)
        try:
            values: list[Any] = datetimes_of(rows["value"]) if instants else rows["value"].tolist()
        except ValueError:
            return loads_each(raws, missing)
        for index, raw in enumerate(raws):
            if raw is None:
                values[index] = missing
        return values

    return dumps_many, loads_many
