"""When stored values expire, of many at once; `serializers` documents the bytes."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from struct import Struct

from stateflow.state.values.serializers import EXPIRES, Serializer

_i64 = Struct(">q")
_END = 9
_first = itemgetter(0)

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


def live(raws: Sequence[bytes | None], clock: int | None) -> Sequence[bytes | None]:
    """Stored values without their expiries, None for those that have expired at or before `clock`."""
    heads = set(map(_first, filter(None, raws)))
    if not any(head & EXPIRES for head in heads):
        return raws
    plain = {head: bytes((head & ~EXPIRES,)) for head in heads}
    if clock is not None and clock < 0:
        return [None if r is None or has_expired(r, clock) else _plain(r) for r in raws]
    # Bytes compare like the numbers that they are, except those before 1970, whose first byte is above 7F.
    limit = b"" if clock is None else _i64.pack(clock)
    if len(heads) == 1:
        (begin,) = plain.values()
        return [
            None if raw is None or raw[1:_END] <= limit or (limit and raw[1] > 0x7F) else begin + raw[_END:]
            for raw in raws
        ]
    return [None if r is None or (limit and has_expired(r, clock)) else _plain(r) for r in raws]


def told_apart(
    keys: Sequence[bytes], raws: Sequence[bytes | None], clock: int
) -> tuple[list[bytes], list[tuple[bytes, bytes]]]:
    """The keys whose values have expired, and keys and values of those that expire later. Others are left out."""
    if clock < 0:
        pairs = [(key, raw) for key, raw in zip(keys, raws, strict=True) if raw is not None and expires(raw)]
        return [key for key, raw in pairs if has_expired(raw, clock)], [
            (key, raw) for key, raw in pairs if not has_expired(raw, clock)
        ]
    limit = _i64.pack(clock)
    gone: list[bytes] = []
    later: list[tuple[bytes, bytes]] = []
    for key, raw in zip(keys, raws, strict=True):
        if raw is None or raw[0] < EXPIRES:
            continue
        if raw[1:_END] <= limit or raw[1] > 0x7F:
            gone.append(key)
        else:
            later.append((key, raw))
    return gone, later


def has_expired(raw: bytes, clock: int | None) -> bool:
    expiry = expiry_of(raw)
    return clock is not None and expiry is not None and expiry <= clock


def _plain(raw: bytes) -> bytes:
    return bytes((raw[0] & ~EXPIRES,)) + raw[_END:] if raw[0] & EXPIRES else raw
