"""Header and expiry of many stored values, taken off and put back; `serializers` documents the bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from struct import Struct
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.errors import StateflowError
from stateflow.state.keys.arrow_types import INSTANT
from stateflow.state.values.serializers import EXPIRES, damaged

_expiring = Struct(">Bq")
_WIDTH = _expiring.size
_EXPIRY = np.dtype([("header", "u1"), ("expiry", ">i8")])
_first = itemgetter(0)


class BadEntryError(Exception):
    """One of many values is wrong; the caller, who knows its key, adds that to the sentence."""

    def __init__(self, index: int, error: StateflowError) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error


def split(
    values: Sequence[bytes], code: int, foreign: Callable[[bytes], bytes], schema: str
) -> tuple[list[bytes], Any]:
    """The values behind their headers, and an Arrow column of their expiries, None when none has one.

    `foreign(raw)` writes a value of another code as today's type, and gives what is behind its header then.
    """
    if not all(values):
        raise BadEntryError(values.index(b""), damaged(b"", schema))
    heads = set(map(_first, values))
    if heads == {code}:
        return [raw[1:] for raw in values], None
    if heads == {code | EXPIRES} and min(map(len, values)) >= _WIDTH:
        expiries = np.frombuffer(b"".join([raw[:_WIDTH] for raw in values]), dtype=_EXPIRY)["expiry"]
        return [raw[_WIDTH:] for raw in values], expiry_column(expiries)
    bodies: list[bytes] = []
    expiring: list[int | None] = []
    for index, raw in enumerate(values):
        head, expiry, at = raw[0], None, 1
        try:
            if head & EXPIRES:
                if len(raw) < _WIDTH:
                    raise damaged(raw, schema)
                expiry, at = _expiring.unpack_from(raw)[1], _WIDTH
            bodies.append(raw[at:] if head & ~EXPIRES == code else foreign(raw))
        except StateflowError as error:
            raise BadEntryError(index, error) from error
        expiring.append(expiry)
    return bodies, pa.array(expiring, type=pa.int64()).cast(INSTANT)


def expiry_column(micros: Any) -> Any:
    return pa.array(micros.astype(np.int64)).cast(INSTANT)


def with_expiries(values: list[bytes], expires: Any) -> list[bytes]:
    """Stored values that have no expiry, with those of an Arrow column; a null is none."""
    if expires.null_count == len(expires):
        return values
    pack = _expiring.pack
    return [
        raw if expiry is None else pack(raw[0] | EXPIRES, expiry) + raw[1:]
        for raw, expiry in zip(values, expires.cast(pa.int64()).to_pylist(), strict=True)
    ]
