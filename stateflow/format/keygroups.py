"""Which key group a key belongs to, and which subtask a key group belongs to.

The hash is Spark's `xxhash64`, bit for bit: the exchange computes it in the JVM, while tests, queries and edits
compute it here, and both must name the same key group for ever.
"""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from struct import Struct

import xxhash

from stateflow.errors import UsageError
from stateflow.format.instants import days_since_epoch, micros_since_epoch, unscaled_decimal

MAX_PARALLELISM_LIMIT = 32768
DEFAULT_MAX_PARALLELISM = 128
SEED = 42

_INT = Struct("<i").pack
_LONG = Struct("<q").pack
_digest = xxhash.xxh64_intdigest
_SIGN = 1 << 63
_WRAP = 1 << 64


def xxhash64(key: object) -> int:
    """Spark's `xxhash64(columns...)` of a key, signed; a tuple is several columns.

    An int is hashed as Spark's long, a Decimal as decimal(38,18), a datetime as a timestamp with time zone.
    """
    hashed = SEED
    for part in key if isinstance(key, tuple) else (key,):
        # A null column leaves the hash as it was; every other one is hashed with the hash so far as its seed.
        if part is not None:
            hashed = _digest(_hashed_bytes(part), hashed)
    return hashed - _WRAP if hashed >= _SIGN else hashed


def _hashed_bytes(part: object) -> bytes:
    match part:
        case bool():
            return _INT(part)
        case int():
            if not -_SIGN <= part < _SIGN:
                raise UsageError(f"key {part} does not fit into 64 bits: use a str or Decimal key")
            return _LONG(part)
        case str():
            return part.encode()
        case bytes():
            return part
        case datetime():
            return _LONG(micros_since_epoch(part))
        case date():
            return _INT(days_since_epoch(part))
        case Decimal():
            return hashed_decimal(part)
        case _:
            raise UsageError(
                f"{type(part).__name__} cannot be a key: use bool, int, str, bytes, date, datetime or Decimal"
            )


def hashed_decimal(value: Decimal) -> bytes:
    """Spark hashes a decimal of more than 18 digits as Java's BigInteger.toByteArray of the unscaled value, the shortest
    big-endian two's complement."""
    unscaled = unscaled_decimal(value)
    magnitude = unscaled if unscaled >= 0 else ~unscaled
    return unscaled.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


def key_group(key: object, max_parallelism: int) -> int:
    """The positive remainder of the hash, as Spark's `pmod`."""
    return xxhash64(key) % max_parallelism


def checked_max_parallelism(max_parallelism: int) -> int:
    if not 1 <= max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise UsageError(f"max_parallelism is {max_parallelism}: use 1 to {MAX_PARALLELISM_LIMIT}")
    return max_parallelism


def default_assignment(parallelism: int, max_parallelism: int) -> tuple[tuple[int, int], ...]:
    """Key groups (inclusive bounds) of each subtask: group g belongs to floor(g * parallelism / max)."""
    checked_max_parallelism(max_parallelism)
    if not 1 <= parallelism <= max_parallelism:
        raise UsageError(
            f"parallelism is {parallelism}: use 1 to {max_parallelism}, the operator's max_parallelism"
        )
    starts = [-(-subtask * max_parallelism // parallelism) for subtask in range(parallelism + 1)]
    return tuple((first, after - 1) for first, after in pairwise(starts))
