"""RocksDB's Bloom filters, read without RocksDB: whether a table may have a key.

They take a hash of the key that no library has: a draft of XXH3, which RocksDB keeps since its files rest on it. Only speed rests on
this file: a key that a filter hides by mistake is found when RocksDB itself looks for it.
"""

from __future__ import annotations

from struct import unpack_from
from typing import Final

LONGEST: Final = 64
"""Bytes of a key for which the hash is known here. Longer ones may be in any table."""
_TRAILER = 5
_NEW_BLOOM = 0xFF
_MASK = (1 << 64) - 1
_PRIME32_1 = 0x9E3779B1
_PRIME64_1 = 0x9E3779B185EBCA87
_PRIME64_2 = 0xC2B2AE3D27D4EB4F
_PRIME64_3 = 0x165667B19E3779F9
_NEXT_PROBE = 0x9E3779B9
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c"
)
_WORDS = {at: int.from_bytes(_SECRET[at : at + 8], "little") for at in range(0, 64, 8)}


def may_have(filter_block: bytes, key_hash: int) -> bool:
    """Whether the filter lets the key with this hash pass. A filter of a kind that is not known lets all pass."""
    length = len(filter_block) - _TRAILER
    if length <= 0 or filter_block[length] != _NEW_BLOOM or filter_block[length + 1] != 0:
        return True
    shape = filter_block[length + 2]
    if shape >> 5 or length % 64:
        return True
    line = (((key_hash & 0xFFFFFFFF) * (length >> 6)) >> 32) << 6
    probe = key_hash >> 32
    for _ in range(shape & 31):
        bit = probe >> 23
        if not filter_block[line + (bit >> 3)] >> (bit & 7) & 1:
            return False
        probe = probe * _NEXT_PROBE & 0xFFFFFFFF
    return True


def hash_of(key: bytes) -> int | None:
    """None for a key that is too long to tell."""
    length = len(key)
    if length > LONGEST:
        return None
    if length > 16:
        return _long(key, length)
    if length > 8:
        (low,), (high,) = unpack_from("<Q", key), unpack_from("<Q", key, length - 8)
        low, high = low ^ _WORDS[0], high ^ _WORDS[8]
        return _avalanche(length + low + high + _folded(low, high))
    if length > 3:
        (low,), (high,) = unpack_from("<I", key), unpack_from("<I", key, length - 4)
        keyed = (low | high << 32) ^ _WORDS[0]
        mixed = (length + (keyed ^ keyed >> 51) * _PRIME32_1) & _MASK
        return _avalanche((mixed ^ mixed >> 47) * _PRIME64_2)
    if length:
        keyed = key[0] | key[length >> 1] << 8 | key[-1] << 16 | length << 24
        return _avalanche((keyed ^ (_WORDS[0] & 0xFFFFFFFF)) * _PRIME64_1)
    return 0


def _long(key: bytes, length: int) -> int:
    words = length * _PRIME64_1 + _mixed(key, 0, 0) + _mixed(key, length - 16, 16)
    if length > 32:
        words += _mixed(key, 16, 32) + _mixed(key, length - 32, 48)
    return _avalanche(words)


def _mixed(key: bytes, at: int, secret: int) -> int:
    low, high = unpack_from("<QQ", key, at)
    return _folded(low ^ _WORDS[secret], high ^ _WORDS[secret + 8])


def _folded(one: int, other: int) -> int:
    product = one * other
    return (product & _MASK) ^ product >> 64


def _avalanche(value: int) -> int:
    value &= _MASK
    value = (value ^ value >> 37) * _PRIME64_3 & _MASK
    return value ^ value >> 32
