"""Scans ranges of a RocksDB database together with the buffer in front of it, in key order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

from rocksdict import Rdict, RdictIter, ReadOptions

from stateflow.errors import CorruptError

_value = itemgetter(1)
_FEW = 16
"""Entries of the first list, for scans of which many want only one entry."""
_SWEEP = 10_000
_AHEAD = 4 << 20
"""Bytes of values that a list has at most, if they are as long as those of the list before."""
_REPAIRS = 2
"""How often a scan goes on after one: parts of its range may be missing, and then parts of the tables."""

Repair = Callable[[], None]
"""Brings parts of files that are missing, so that what could not be read can be."""


def swept(
    opened: Rdict, begin: bytes, end: bytes, repair: Repair | None = None
) -> Iterator[list[tuple[bytes, bytes]]]:
    """All entries of this moment, in lists. This takes half of the time of single steps, since Python makes none of them."""
    reading = ReadOptions()
    reading.set_iterate_upper_bound(end)
    # Both are views of now, and not of the first step.
    entries = opened.items(from_key=begin, read_opt=reading)
    later = [opened.iter(reading) for _ in range(1 if repair is None else 1 + _REPAIRS)]
    return _lists(begin, reading, entries, later, repair)


def _lists(
    begin: bytes,
    reading: ReadOptions,
    entries: Any,
    later: list[RdictIter],
    repair: Repair | None,
) -> Iterator[list[tuple[bytes, bytes]]]:
    """Keeps `reading` alive, which owns the upper bound: RocksDB has only a bare pointer to it, and without the bound a
    scan runs on into other keys and states."""
    last: bytes | None = None
    size = _FEW
    while chunk := list(islice(entries, size)):
        last = chunk[-1][0]
        yield chunk
        width = sum(map(len, map(_value, chunk))) // len(chunk)
        size = max(1, min(size * 8, _SWEEP, _AHEAD // (width + 1)))
    # `items` ends silently at a damaged block. An iterator that steps on from there reports it.
    at = later.pop()
    while True:
        at.seek(begin if last is None else last)
        if last is not None and at.valid():
            at.next()
        try:
            at.status()
        except Exception:
            if repair is None or not later:
                raise
            repair()
            # One that has read what was missing keeps it, also if another read has brought it since: it reads ahead.
            at = later.pop()
            continue
        if not at.valid():
            break
        # Of parts, another read may have brought what was missing when `items` ended.
        if repair is None:
            raise CorruptError("a scan ended before its end; run `stateflow verify`")
        chunk = _steps(at, size)
        last = chunk[-1][0]
        yield chunk
    del reading


def _steps(at: Any, count: int) -> list[tuple[bytes, bytes]]:
    entries: list[tuple[bytes, bytes]] = []
    while at.valid() and len(entries) < count:
        entries.append((at.key(), at.value()))
        at.next()
    return entries


def merged(
    stored: Iterator[tuple[bytes, bytes]], changed: Iterator[tuple[bytes, bytes | None]]
) -> Iterator[tuple[bytes, bytes]]:
    """Both in key order. A change replaces the stored entry, and a deletion leaves it out."""
    change = next(changed, None)
    for entry in stored:
        while change is not None and change[0] < entry[0]:
            if change[1] is not None:
                yield change  # type: ignore[misc]
            change = next(changed, None)
        if change is not None and change[0] == entry[0]:
            if change[1] is not None:
                yield change  # type: ignore[misc]
            change = next(changed, None)
        else:
            yield entry
    while change is not None:
        if change[1] is not None:
            yield change  # type: ignore[misc]
        change = next(changed, None)


def under(at: Any, begins: Sequence[bytes]) -> Iterator[list[tuple[bytes, bytes]]]:
    """The entries under each prefix, by one iterator of RocksDB's, `at`; the prefixes are sorted, and none begins another."""
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
