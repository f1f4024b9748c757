"""Many values of one serializer at once: a call per chunk instead of one per key, where the layout allows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.format.scalars import BY_NAME
from stateflow.state.values.arrow.packed_instants import datetimes_of, micros_of
from stateflow.state.values.expiries import stamped
from stateflow.state.values.serializers import EXPIRES, Serializer

DumpsMany = Callable[[list[Any]], list[bytes]]
LoadsMany = Callable[[Sequence[bytes | None], Any], list[Any]]
"""loads_many(raw values, what stands for a missing one)"""

_ACCEPTED = {"int": ({int},), "float": ({float}, {float, int}, {int}), "datetime": ({datetime},)}

_LONG = 2.0**53
"""From here on there are ints that no float is equal to."""


def bulk(serializer: Serializer) -> tuple[DumpsMany, LoadsMany]:
    """`(dumps_many, loads_many)`; values that need a closer look go one by one, so errors are the serializer's."""
    dumps, loads = serializer.dumps, serializer.loads

    def dumps_each(values: list[Any]) -> list[bytes]:
        return [dumps(value) for value in values]

    def loads_each(raws: Sequence[bytes | None], missing: Any) -> list[Any]:
        return [missing if raw is None else loads(raw) for raw in raws]

    if serializer.evolved or serializer.schema not in _ACCEPTED:
        return dumps_each, loads_each
    scalar, instants = BY_NAME[serializer.schema], serializer.schema == "datetime"
    code, layout, expiring = scalar.code, _layout(scalar.form), _expiring_layout(scalar.form)
    blank = bytes((code,)) + bytes(layout.itemsize - 1)

    def dumps_many(values: list[Any]) -> list[bytes]:
        rows = _rows(serializer.schema, layout, values)
        if rows is None:
            return dumps_each(values)
        rows["header"] = code
        return _cut(rows)

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


def bulk_until(serializer: Serializer) -> Callable[[list[Any], int], list[bytes]]:
    """dumps_many(values, expiry) for values that share an expiry. Numbers get it as they are packed: to put it into
    the finished bytes took as long again."""
    dumps_many, _ = bulk(serializer)
    if serializer.evolved or serializer.schema not in _ACCEPTED:
        return lambda values, expiry: stamped(dumps_many(values), expiry)
    scalar = BY_NAME[serializer.schema]
    header, layout = scalar.code | EXPIRES, _expiring_layout(scalar.form)

    def dumps_many_until(values: list[Any], expiry: int) -> list[bytes]:
        rows = _rows(serializer.schema, layout, values)
        if rows is None:
            return stamped(dumps_many(values), expiry)
        rows["header"], rows["expiry"] = header, expiry
        return _cut(rows)

    return dumps_many_until


def _layout(form: str) -> Any:
    return np.dtype([("header", "u1"), ("value", f"<{form}")])


def _expiring_layout(form: str) -> Any:
    return np.dtype([("header", "u1"), ("expiry", ">i8"), ("value", f"<{form}")])


def _rows(schema: str, layout: Any, values: list[Any]) -> Any:
    """The values in place, headers to be filled in; None where each needs a closer look."""
    kinds = set(map(type, values))
    if kinds not in _ACCEPTED[schema]:
        return None
    rows = np.empty(len(values), dtype=layout)
    try:
        rows["value"] = micros_of(values).cast(pa.int64()) if schema == "datetime" else values
    except (OverflowError, ValueError):
        return None
    if schema == "float" and int in kinds and (np.abs(rows["value"]) >= _LONG).any():
        return None
    return rows


def _cut(rows: Any) -> list[bytes]:
    raw, width = rows.tobytes(), rows.dtype.itemsize
    return [raw[at : at + width] for at in range(0, len(raw), width)]
