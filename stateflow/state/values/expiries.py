"""The expiries of many stored values at once; `serializers` documents the bytes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import itemgetter
from struct import Struct
from typing import Any

from stateflow.state.values.serializers import EXPIRES, Serializer

_i64 = Struct(">q")
_END = 9
_first = itemgetter(0)
_begin = itemgetter(slice(0, _END))

expiry_of = Serializer.expiry


def expires(raw: bytes | None) -> bool:
    """Whether this is a stored value that has an expiry, passed or not."""
    return raw is not None and raw[0] >= EXPIRES


def stamped(raws: list[bytes], expiry: int) -> list[bytes]:
    """Stored values with this expiry instead of the one they have or not."""
    stamp = _i64.pack(expiry)
    heads = {head: bytes((head | EXPIRES,)) + stamp for head in set(map(_first, raws))}
    if len(heads) == 1:
        ((head, begin),) = heads.items()
        at = _END if head & EXPIRES else 1
        return [begin + raw[at:] for raw in raws]
    return [heads[raw[0]] + raw[_END if raw[0] & EXPIRES else 1 :] for raw in raws]


def live(raws: Sequence[bytes | None], clock: int | None) -> tuple[Sequence[bytes | None], int | None]:
    """Stored values, None for those that have expired at or before `clock`; and the latest expiry, if all are there and have one."""
    if raws and None not in raws:
        known: Any = raws
        first, last = min(known), max(known)
        if first[0] >= EXPIRES and _in_order(first, last) and not has_expired(first, clock):
            return raws, expiry_of(last)  # none has expired if the first has not
    # The values of one batch share an expiry, so there are few beginnings to look at.
    begins = set(map(_begin, filter(None, raws)))
    dead = {begin for begin in begins if has_expired(begin, clock)}
    latest = None
    if begins and None not in raws and all(map(expires, begins)):
        latest = max(expiry for begin in begins if (expiry := expiry_of(begin)) is not None)
    return [None if raw is None or raw[:_END] in dead else raw for raw in raws] if dead else raws, latest


def _in_order(first: bytes, last: bytes) -> bool:
    """Whether values from `first` to `last` are ordered as their expiries are: behind one header, and none before 1970, whose
    numbers are negative and so behind all others."""
    return first[0] == last[0] and last[1:2] < b"\x80"


def plain(raws: Sequence[bytes | None]) -> list[bytes | None]:
    """Stored values without their expiries."""
    return [plain_value(raw) if raw is not None and raw[0] >= EXPIRES else raw for raw in raws]


def plain_value(raw: bytes) -> bytes:
    """A stored value without its expiry."""
    return bytes((raw[0] & ~EXPIRES,)) + raw[_END:] if raw and raw[0] >= EXPIRES else raw


def by_expiry(
    keys: Sequence[bytes], raws: Sequence[bytes | None], clock: int
) -> tuple[Sequence[bytes], list[tuple[bytes, bytes]]]:
    """The keys whose values have expired, and keys and values of those that expire later. Others are left out."""
    # Every pass is one of C's: there are few beginnings, and one look at each says what becomes of its values.
    held: Any = [raw or b"" for raw in raws] if None in raws else raws
    begins: list[bytes] = list(map(_begin, held))
    known = set(begins) - {b""}
    dead = {begin for begin in known if has_expired(begin, clock)}
    later = {begin for begin in known - dead if expires(begin)}
    gone = (
        keys
        if len(dead) == len(known) and b"" not in begins
        else list(compress(keys, map(dead.__contains__, begins)))
    )
    if not later:
        return gone, []
    left = map(later.__contains__, begins)
    return gone, [(key, raw) for key, raw in compress(zip(keys, raws, strict=True), left) if raw is not None]


def has_expired(raw: bytes, clock: int | None) -> bool:
    expiry = expiry_of(raw)
    return clock is not None and expiry is not None and expiry <= clock
