"""Looks up many sorted keys by walking over the entries between them.

A look-up costs a microsecond and a half, a step a fifth of one: when a batch touches a good part of the keys, walking
is several times faster. When the keys turn out to lie far apart, `walk` stops and leaves the rest to look-ups. When nearly
every entry is asked for, `sweep` reads all of them in one go, which costs half of walking: no step is Python's.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stateflow.format.encoding import after

STEPS = 8
"""Most entries that are passed over before the iterator is placed anew, which costs about as much as a look-up."""
GLANCE = 128
"""After this many keys `walk` judges whether walking pays."""
PREFIX = 4
"""Key group and state id: another state's entries are never walked over."""
SWEPT = 256
"""From so many keys of one state and key group on, a sweep pays."""

Entries = Callable[[bytes, bytes], Iterator[list[tuple[bytes, bytes]]]]
"""entries(begin, end): everything stored in a range, in lists."""


def walk_or_sweep(at: Any, entries: Entries, keys: Sequence[bytes]) -> list[bytes | None]:
    """The values of `keys`, which are sorted; only of the first ones when they lie far apart."""
    values: list[bytes | None] = []
    while len(values) < len(keys):
        begin = len(values)
        end = bisect_left(keys, after(keys[begin][:PREFIX]), begin)
        if end - begin < SWEPT:
            # So few keys are not worth a sweep, and neither are many such ranges.
            return values + walk(at, keys[begin:])
        values += sweep(entries, keys[begin:end])
        if len(values) < end:
            return values + walk(at, keys[len(values) :])
    return values


def sweep(entries: Entries, keys: Sequence[bytes]) -> list[bytes | None]:
    """The values of sorted keys; only of the first ones when most entries between them belong to other keys."""
    values: list[bytes | None] = []
    for chunk in entries(keys[0], keys[-1] + b"\0"):
        begin, end = len(values), bisect_right(keys, chunk[-1][0], len(values))
        values += map(dict(chunk).get, keys[begin:end])
        if 2 * (end - begin) < len(chunk) and end < len(keys):
            return values
    # No entry follows the ones read.
    values += [None] * (len(keys) - len(values))
    return values


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


def under(at: Any, begins: Sequence[bytes]) -> Iterator[list[tuple[bytes, bytes]]]:
    """The entries under each prefix; the prefixes are sorted, and none begins another."""
    step, key_of, value_of, seek = at.next, at.key, at.value, at.seek
    current: bytes | None = b""
    for begin in begins:
        if current is not None and current < begin:
            seek(begin)
            current = key_of()
        entries = []
        while current is not None and current.startswith(begin):
            entries.append((current, value_of()))
            step()
            current = key_of()
        yield entries
    # An iterator ends silently at a damaged block; its status reports it.
    at.status()
