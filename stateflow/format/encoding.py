"""The layout of full keys. Byte order is value order, so that a shard can be clipped, scanned and merged.

    state entry  [key group u16][state id u16][key][namespace][map key or list position]
    timer        [key group u16][state id u16][timestamp i64][key][namespace]          its queue
                 [key group u16][state id u16 + 1][key][namespace]                     per key; the value is the time
                 [key group u16][state id u16 + 1][key][namespace][timestamp i64]      of a timer with many times per key
    expiry       [key group u16][state id u16][timestamp i64]...                       see `expiry_blocks`
    columns      [key group u16][state id u16][timestamp i64 of a timed state][key][namespace][what tells entries apart]

Numbers are big-endian, signed ones with their sign bit flipped. Every part ends itself:

    bool 1 byte, date 4 (days), int 8, datetime 8 (micros), decimal 16 (unscaled, scale 18)
    str (UTF-8), bytes    each 00 becomes 00 FF, then 00 01 ends it
    namespace             00; or 01 and a value of the state's namespace type, written as a key is
    list position         [slot u64][position u32]: the record that appended it, and its place in that batch

These bytes are frozen: stored state is made of them.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from stateflow.errors import CorruptError

SIGN = 1 << 63

EMPTY_NAMESPACE = b"\x00"
NAMESPACE = b"\x01"
"""The first byte of a namespace that is not empty."""

_prefix = Struct(">HH")
_group = Struct(">H")
_u64 = Struct(">Q")
_position = Struct(">QI")

prefix = _prefix.pack
"""prefix(group, state_id): the bytes with which every entry of one state in one key group begins."""

GROUP_WIDTH = _group.size
PREFIX_WIDTH = _prefix.size
TIME_WIDTH = _u64.size


class Split(NamedTuple):
    group: int
    state_id: int
    body: bytes
    """Key, namespace and what follows; for a timer its timestamp first."""


def split(full_key: bytes) -> Split:
    if len(full_key) < PREFIX_WIDTH:
        raise CorruptError(f"the state key {full_key.hex()} is too short to be one; run `stateflow verify`")
    group, state_id = _prefix.unpack_from(full_key)
    return Split(group, state_id, full_key[PREFIX_WIDTH:])


def after(prefix_bytes: bytes) -> bytes:
    """The first byte string above everything that begins with `prefix_bytes`."""
    stripped = prefix_bytes.rstrip(b"\xff")
    if not stripped:
        raise ValueError("a prefix of FF bytes alone has no end")
    return stripped[:-1] + bytes((stripped[-1] + 1,))


def group_range(first: int, last: int) -> tuple[bytes, bytes]:
    """Begin and exclusive end of the entries of key groups `first..last`, inclusive."""
    return _group.pack(first), _group.pack(last + 1)


def state_range(group: int, state_id: int) -> tuple[bytes, bytes]:
    """Begin and exclusive end of one state's entries in one key group."""
    begin = _prefix.pack(group, state_id)
    return begin, after(begin)


def renumbered(key: bytes, state_id: int) -> bytes:
    """The same entry of a state that has another id."""
    return _prefix.pack(*_group.unpack_from(key), state_id) + key[PREFIX_WIDTH:]


def list_position(slot: int, position: int) -> bytes:
    """What follows the namespace of a list entry: appends of one batch never meet those of another."""
    return _position.pack(slot, position)


def encode_timestamp(micros: int) -> bytes:
    return _u64.pack(micros + SIGN)


def read_timestamp(encoded: bytes, at: int) -> int:
    """What `encode_timestamp` wrote at a place."""
    if len(encoded) < at + TIME_WIDTH:
        raise CorruptError(f"the state key ...{encoded.hex()} ends too early; run `stateflow verify`")
    micros: int = _u64.unpack_from(encoded, at)[0] - SIGN
    return micros


def timer_range(group: int, state_id: int, up_to: int) -> tuple[bytes, bytes]:
    """Begin and exclusive end of one key group's timers at or below `up_to`."""
    begin = _prefix.pack(group, state_id)
    if up_to >= SIGN - 1:
        return begin, after(begin)
    return begin, begin + _u64.pack(up_to + 1 + SIGN)


def split_timer(body: bytes) -> tuple[int, bytes]:
    """Timestamp and what follows it (key and namespace) of the body that `split` returns."""
    if len(body) < _u64.size:
        raise CorruptError(f"the timer ...{body.hex()} is too short to be one; run `stateflow verify`")
    return _u64.unpack_from(body)[0] - SIGN, body[_u64.size :]
