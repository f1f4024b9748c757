"""Looking up many sorted keys by walking over the entries between them.

A look-up costs a microsecond and a half, a step a fifth of one: when a batch touches a good part of the keys, walking
is several times faster. When the keys turn out to lie far apart, `walk` stops and leaves the rest to look-ups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

STEPS = 8
"""Entries that are passed over before the iterator is placed anew; that costs about as much as a look-up."""
GLANCE = 128
"""Keys after which it is judged whether walking pays."""
PREFIX = 4
"""Key group and state id: another state's entries are never walked over."""


def walk(at: Any, keys: Sequence[bytes]) -> list[bytes | None]:
    """The values of `keys`, which are sorted; only of the first ones when walking does not pay."""
    values: list[bytes | None] = []
    append = values.append
    step, key_of, value_of, seek = at.next, at.key, at.value, at.seek
    placed = 0
    seek(keys[0])
    current = key_of()
    for key in keys:
        if current is not None and current < key:
            if current[:PREFIX] == key[:PREFIX]:
                for _ in range(STEPS):
                    step()
                    current = key_of()
                    if current is None or current >= key:
                        break
            if current is not None and current < key:
                placed += 1
                if placed * 4 > len(values) and len(values) > GLANCE:
                    return values
                seek(key)
                current = key_of()
        append(value_of() if current == key else None)
    return values
