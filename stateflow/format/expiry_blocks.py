"""The index of a state's expiries: which entries to look at when a time has come. Frozen bytes.

    block     [key group u16][index id u16][due i64][slot u64][position u32]  ->  the entries' keys
    progress  [key group u16][index id u16][0 i64]                            ->  how far a sweep has come

The index has a state id of its own. A block names entries that were written with one expiry, or at least not after it;
the entry itself knows when it expires. `due` is encoded as a timer's time is, slot and position say which record wrote
the block and number its blocks. Its value has the keys without their first four bytes, which the block's own key and the
record tell:

    [0 u8][width u32][keys of that width]
    [1 u8][count u32][length u32 of each][keys]

A progress entry has the number of the sweep, whether it is through, and the last key that it has seen:

    [sweep u32][through u8][key]

Numbers are big-endian.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from struct import Struct, iter_unpack, unpack_from
from struct import error as StructError
from typing import NamedTuple

from stateflow.errors import CorruptError
from stateflow.format.encoding import PREFIX_WIDTH, encode_timestamp, list_position, prefix

AT_ONCE = -(1 << 63)
"""The due time of entries that were written before there was a watermark to count from."""

_head = Struct(">BI")
_progress = Struct(">IB")
_DUE_WIDTH = 8
_EQUAL, _MIXED = 0, 1


def block_key(group: int, index_id: int, due: int, slot: int, position: int) -> bytes:
    return prefix(group, index_id) + encode_timestamp(due) + list_position(slot, position)


def is_block(full_key: bytes) -> bool:
    """Whether an entry of an index is a block, not a sweep's progress."""
    return len(full_key) > PREFIX_WIDTH + _DUE_WIDTH


def block(keys: Sequence[bytes]) -> bytes:
    """The value of a block. `keys` come without group and state id, at least one."""
    widths = set(map(len, keys))
    if len(widths) == 1:
        return _head.pack(_EQUAL, widths.pop()) + b"".join(keys)
    lengths = Struct(f">{len(keys)}I").pack(*map(len, keys))
    return _head.pack(_MIXED, len(keys)) + lengths + b"".join(keys)


def keys_of(value: bytes, begin: bytes = b"") -> list[bytes]:
    """The keys that a block names, each with `begin` in front of it."""
    try:
        kind, number = _head.unpack_from(value)
        at = _head.size
        if kind == _EQUAL and number and (len(value) - at) % number == 0:
            # A third less time than slice by slice.
            return [begin + key for (key,) in iter_unpack(f"{number}s", memoryview(value)[at:])]
        if kind == _MIXED:
            lengths = unpack_from(f">{number}I", value, at)
            at += 4 * number
            ends = list(accumulate(lengths, initial=at))
            if ends[-1] == len(value):
                return [begin + value[a:b] for a, b in pairwise(ends)]
    except StructError:
        pass
    raise CorruptError(f"a block of expiries is damaged: {value[:40].hex()}; run `stateflow verify`")


class SweepProgress(NamedTuple):
    """How far the sweep of one key group has come."""

    sweep: int
    through: bool
    key: bytes
    """Without group and state id; empty at the beginning."""


def progress_key(group: int, index_id: int) -> bytes:
    return prefix(group, index_id) + bytes(_DUE_WIDTH)


def encode_progress(progress: SweepProgress) -> bytes:
    return _progress.pack(progress.sweep, progress.through) + progress.key


def decode_progress(value: bytes) -> SweepProgress:
    try:
        sweep, through = _progress.unpack_from(value)
    except StructError:
        raise CorruptError(
            f"the progress of a sweep is damaged: {value[:40].hex()}; run `stateflow verify`"
        ) from None
    return SweepProgress(sweep, bool(through), value[_progress.size :])
