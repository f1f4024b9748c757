"""Namespaces of many entries: takes them out of full keys into a column of their values, and puts them back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from stateflow.errors import IncompatibleError, StateflowError, UsageError
from stateflow.format.encoding import EMPTY_NAMESPACE, NAMESPACE
from stateflow.state.keys.arrow_types import ARROW
from stateflow.state.keys.codec import KeyCodec


def column_of_parts(types: Sequence[str]) -> pa.DataType:
    """The type of a column of values with parts of these types: of several parts a struct of _1, _2."""
    parts = [ARROW[kind] for kind in types]
    if len(parts) == 1:
        return parts[0]
    return pa.struct([pa.field(f"_{number}", part) for number, part in enumerate(parts, start=1)])


def split_namespaces(
    keys: Sequence[bytes], key: KeyCodec, at: int, namespace: KeyCodec, where: str
) -> tuple[list[bytes], list[Any]]:
    """The full keys as they would be in the empty namespace, and the namespace of each; None for the empty one. The key
    begins at `at`."""
    bare: list[bytes] = []
    values: list[Any] = []
    for full in keys:
        end = key.decode(full, at)[1]
        begins = full[end : end + 1]
        if begins == EMPTY_NAMESPACE:
            bare.append(full)
            values.append(None)
        elif begins == NAMESPACE:
            value, after = namespace.decode(full, end + 1)
            bare.append(full[:end] + EMPTY_NAMESPACE + full[after:])
            values.append(value)
        else:
            raise IncompatibleError(
                f"{where} holds the key {full.hex()}, whose namespace a newer stateflow wrote: use that version, or upgrade this "
                "one"
            )
    return bare, values


def array_of_namespaces(values: Sequence[Any], types: Sequence[str]) -> Any:
    if len(types) > 1:
        names = [f"_{number}" for number in range(1, len(types) + 1)]
        values = [None if value is None else dict(zip(names, value, strict=True)) for value in values]
    return pa.array(values, column_of_parts(types))


def values_of_column(column: Any, types: Sequence[str]) -> list[Any]:
    """Namespaces as user code has them, None where the column is null."""
    values: list[Any] = column.to_pylist()
    return values if len(types) == 1 else [None if v is None else tuple(v.values()) for v in values]


def with_namespaces(
    keys: Sequence[bytes], values: Sequence[Any], key: KeyCodec, at: int, namespace: KeyCodec, where: str
) -> list[bytes]:
    """Full keys that are written without namespaces, with those that they have."""
    out: list[bytes] = []
    for full, value in zip(keys, values, strict=True):
        if value is None:
            out.append(full)
            continue
        try:
            suffix = NAMESPACE + namespace.encode(value)
        except StateflowError as error:
            raise UsageError(f"{where}: as a namespace, {error}") from error
        end = key.decode(full, at)[1]
        out.append(full[:end] + suffix + full[end + 1 :])
    return out
