"""Large tables of a shard of which the host gets only the parts that a batch reads.

A table begins as a file of its full size that is empty but for its tail: the index, the filter, what else RocksDB reads to open
it. Before RocksDB reads data, the blocks that it will read are fetched and written into the file.

Only speed rests on what is foreseen here. RocksDB checks each block's checksum, so a block that is missing is an error, and never
wrong entries: then all that is missing is fetched, and RocksDB reads again.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from stateflow.format.records import FileRef
from stateflow.state.backends.base import RemoteFiles
from stateflow.state.backends.blocks import TRAILER, BlockPlace
from stateflow.state.backends.corruption import translated
from stateflow.state.backends.line import AT_ONCE, whole_pays
from stateflow.state.backends.spans import Held, Span, coalesced, pieces
from stateflow.state.backends.tables import UNREADABLE, TableTail

TAIL: Final = 256 << 10
"""Bytes of a table's end that are fetched first. So many are carried in the time of a request; most tails are smaller."""
_REQUEST = 4 << 20
"""Most bytes of one request: as many requests as are on their way are held in memory."""
_PIECE = 8 << 20
"""Bytes of one request when all of a table is fetched."""
_PIECES_AT_ONCE = 4
"""How many of them are on their way, and in memory."""
_MANY = 64
"""Keys of one look-up from which on more will follow: tasks look up the keys of their rows in order, some thousand at a time."""
_JUDGED = 512
"""Keys or ranges after which what they need is judged."""


@dataclass(eq=False)
class _File:
    """A table that is not whole."""

    ref: FileRef
    path: Path
    descriptor: int
    held: Held = field(default_factory=Held)
    table: TableTail | None = None


@dataclass(frozen=True, slots=True)
class _LiveTable:
    """A table of the open database, whether it is whole or not."""

    first: bytes
    last: bytes
    file: _File | None


class PartialTables:
    """The tables of one shard that are not whole. It is not safe for several threads."""

    def __init__(self, remote: RemoteFiles) -> None:
        self._remote = remote
        self._files: list[_File] = []
        self._runs: list[list[_LiveTable]] = []
        """The tables, by sorted run, in the order of their keys. Those of a run do not overlap."""
        self._tombstones: list[tuple[bytes, bytes]] = []
        self._threads = ThreadPoolExecutor(AT_ONCE, "table-parts")
        self._spent = 0.0
        self.whole = False

    def add(self, ref: FileRef, target: Path) -> None:
        """Makes the file, with nothing in it yet."""
        # Open to the users that a fetched file is open to: several may share the cache that gets it in the end.
        descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._files.append(_File(ref, target, descriptor))
        os.ftruncate(descriptor, ref.size)

    def fetch_tails(self) -> None:
        """Fetches what RocksDB reads to open the tables."""
        if not self._files:
            self.whole = True
            return
        self._fetch([(file, (max(0, file.ref.size - TAIL), file.ref.size)) for file in self._files])
        try:
            begins = [(file, _tail(file, TAIL).begin()) for file in self._files]
            self._fetch(
                [(file, span) for file, at in begins for span in file.held.missing(at, file.ref.size)]
            )
            for file, at in begins:
                file.table = _tail(file, file.ref.size - at)
        except UNREADABLE:
            self.fill()

    def opened(self, live_files: Sequence[Mapping[str, Any]], directory: Path) -> None:
        """RocksDB has opened the tables in the directory, and says where each belongs."""
        if self.whole:
            return
        names = {file.path.name: file for file in self._files}
        runs: dict[object, list[_LiveTable]] = {}
        for each in live_files:
            name, level = _path(directory, each).name, int(each["level"])
            place = _LiveTable(each["start_key"], each["end_key"], names.get(name))
            runs.setdefault(level or name, []).append(place)
        self._runs = [sorted(run, key=lambda place: place.first) for run in runs.values()]
        # Most of them are in small tables, which are whole.
        self._tombstones = [stone for each in live_files for stone in _tombstones(_path(directory, each))]

    def deleted(self, begin: bytes, end: bytes) -> None:
        """A range of keys is deleted: RocksDB now goes on behind it when it comes upon it."""
        self._tombstones.append((begin, end))

    def need_keys(self, keys: Sequence[bytes]) -> None:
        """Fetches what RocksDB reads to look up these keys, which are sorted."""
        self._need((self._spans_of_key(key) for key in keys), many_to_come=len(keys) >= _MANY)

    def need_ranges(self, ranges: Iterable[tuple[bytes, bytes]]) -> None:
        """Fetches what RocksDB reads to scan from each begin to its end; a range without a length stands for the entry that follows."""
        self._need((self._spans_of_range(begin, end) for begin, end in ranges), many_to_come=False)

    def fill(self) -> None:
        """Fetches all that is missing, and has the files compared with their checksums."""
        if self.whole:
            return
        gap = self._remote.line.gap
        with ThreadPoolExecutor(_PIECES_AT_ONCE, "whole-tables") as threads, ThreadPoolExecutor(1) as checks:
            try:
                brought = [
                    (file, [threads.submit(self._bring, file, *piece) for piece in _pieces(file, gap)])
                    for file in self._files
                ]
                checked = []
                for file, futures in brought:
                    for future in futures:
                        future.result()
                    checked.append(checks.submit(self._remote.complete, file.ref, file.path))
                for check in checked:
                    check.result()
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                checks.shutdown(wait=False, cancel_futures=True)
                raise
        self.whole = True

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        for file in self._files:
            os.close(file.descriptor)
        self._files, self._runs = [], []

    def _need(self, needs: Iterator[list[tuple[_File, Span]]], many_to_come: bool) -> None:
        if self.whole:
            return
        wanted: dict[_File, list[Span]] = {}
        joined: list[tuple[_File, Span]] = []
        line = self._remote.line
        if size := line.probe(self._spent):
            self._fetch(self._any_missing(size))
        try:
            while some := list(islice(needs, _JUDGED)):
                for file, span in (each for every in some for each in every):
                    if missing := file.held.missing(*span):
                        wanted.setdefault(file, []).extend(missing)
                if not wanted:
                    continue
                joined = [
                    (file, piece)
                    for file, spans in wanted.items()
                    for span in coalesced(spans, line.gap)
                    for piece in pieces(span, _REQUEST)
                ]
                size = sum(end - begin for _, (begin, end) in joined)
                rest = sum(file.ref.size - file.held.size for file in self._files)
                share = _extent(joined) / rest if many_to_come else 1.0
                if whole_pays(line, self._spent, len(joined), size, rest, share):
                    return self.fill()
        except UNREADABLE:
            return self.fill()
        self._fetch(joined)

    def _any_missing(self, size: int) -> list[tuple[_File, Span]]:
        """As many pieces as are fetched at once, in the order of the bytes, of `size` bytes together if so many are missing."""
        every = (
            (file, piece)
            for file in self._files
            for span in file.held.missing(0, file.ref.size)
            for piece in pieces(span, size // AT_ONCE)
        )
        return list(islice(every, AT_ONCE))

    def _spans_of_key(self, key: bytes) -> list[tuple[_File, Span]]:
        found = []
        for run in self._runs:
            at = _first_reaching(run, key)
            if at < len(run) and run[at].first <= key:
                file = run[at].file
                if file is not None and file.table is not None and file.table.may_have(key):
                    found += _spans(file, file.table.blocks(key, key))
        return found

    def _spans_of_range(self, begin: bytes, end: bytes) -> list[tuple[_File, Span]]:
        found = list(self._spans_between(begin, end))
        for at in self._behind(begin, end):
            found += self._spans_between(at, at)
        return found

    def _behind(self, begin: bytes, end: bytes) -> set[bytes]:
        """Where deleted ranges end that a scan comes upon: RocksDB goes on there without reading what is in them. Where older tables
        have another deleted range at such an end, it goes on behind that one."""
        ends: set[bytes] = set()
        fresh = {last for first, last in self._tombstones if first <= end and last > begin}
        while fresh:
            ends |= fresh
            fresh = {last for at in fresh for first, last in self._tombstones if first <= at < last} - ends
        return ends

    def _spans_between(self, begin: bytes, end: bytes) -> Iterator[tuple[_File, Span]]:
        for run in self._runs:
            for at in range(_first_reaching(run, begin), len(run)):
                place = run[at]
                if place.file is not None and place.file.table is not None:
                    first = begin if place.first < begin else None
                    last = end if place.last >= end else None
                    yield from _spans(place.file, place.file.table.blocks(first, last))
                # Beyond its last block an iterator goes on to the next table.
                if place.first >= end or place.last > end:
                    break

    def _fetch(self, spans: Sequence[tuple[_File, Span]]) -> None:
        if not spans:
            return
        began = time.perf_counter()
        futures = [self._threads.submit(self._bring, file, *span) for file, span in spans]
        try:
            size = sum(future.result() for future in futures)
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        self._remote.line.measured(len(spans), size, time.perf_counter() - began)
        self._spent += self._remote.line.seconds(len(spans), size)
        for file, span in spans:
            file.held.add(*span)

    def _bring(self, file: _File, begin: int, end: int) -> int:
        body = self._remote.read(file.ref, begin, end - begin)
        try:
            _write(file.descriptor, body, begin)
        except OSError as error:
            raise translated(error, file.path.parent) from error
        return len(body)


def _write(descriptor: int, body: bytes, begin: int) -> None:
    left = memoryview(body)
    while left:
        written = os.pwrite(descriptor, left, begin)
        left, begin = left[written:], begin + written


def _tail(file: _File, length: int) -> TableTail:
    length = min(length, file.ref.size)
    return TableTail(os.pread(file.descriptor, length, file.ref.size - length), file.ref.size)


def _path(directory: Path, live_file: Mapping[str, Any]) -> Path:
    return directory / str(live_file["name"]).lstrip("/")


def _tombstones(path: Path) -> list[tuple[bytes, bytes]]:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL))
        body = file.read()
    try:
        return [(begin[:-8], end) for begin, end in TableTail(body, size).tombstones()]
    except UNREADABLE:
        return []


def _pieces(file: _File, gap: int) -> Iterator[Span]:
    """What is missing of the file, in the order of its bytes."""
    for span in coalesced(file.held.missing(0, file.ref.size), gap):
        yield from pieces(span, _PIECE)


def _extent(spans: Iterable[tuple[_File, Span]]) -> int:
    """The bytes from the first to the last of the spans in each file."""
    ends: dict[_File, Span] = {}
    for file, (begin, end) in spans:
        first, last = ends.get(file, (begin, end))
        ends[file] = min(first, begin), max(last, end)
    return sum(last - first for first, last in ends.values())


def _first_reaching(run: Sequence[_LiveTable], key: bytes) -> int:
    """The first table of the run that does not end before the key."""
    return bisect_left(run, key, key=lambda place: place.last)


def _spans(file: _File, blocks: Sequence[BlockPlace]) -> list[tuple[_File, Span]]:
    """Data blocks follow each other without a gap."""
    return [(file, (blocks[0].offset, blocks[-1].offset + blocks[-1].size + TRAILER))] if blocks else []
