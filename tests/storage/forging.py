"""Other bytes with the size and the XXH3 of given ones, made by arithmetic: what a forger would put in their place."""

from __future__ import annotations

import xxhash

SIZE = 32
_WORD = (1 << 64) - 1
# What XXH3 mixes into the first 32 bytes, as the algorithm defines it.
_SECRET = bytes.fromhex("b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f")


def _words(of: bytes, at: int) -> tuple[int, int]:
    return int.from_bytes(of[at : at + 8], "little"), int.from_bytes(of[at + 8 : at + 16], "little")


def _mixed(content: bytes, at: int) -> int:
    (low, high), (first, second) = _words(content, at), _words(_SECRET, at)
    product = (low ^ first) * (high ^ second)
    return (product & _WORD) ^ (product >> 64)


def twin(content: bytes, beginning: bytes) -> bytes:
    """32 bytes that begin with the 16 of `beginning`, and have the XXH3 of the 32 bytes `content`."""
    assert (len(content), len(beginning)) == (SIZE, 16)
    wanted = (_mixed(content, 0) + _mixed(content, 16) - _mixed(beginning, 0)) & _WORD
    first, second = _words(_SECRET, 16)
    # One factor is made 1, so that the product is what is wanted.
    made = beginning + (first ^ 1).to_bytes(8, "little") + (second ^ wanted).to_bytes(8, "little")
    assert made != content
    assert xxhash.xxh3_64_hexdigest(made) == xxhash.xxh3_64_hexdigest(content)
    return made
