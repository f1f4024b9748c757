"""Looks up keys whose blocks lie on the disk: many reads at once, or whole files in sequence first.

A disk gives one thread a fraction of the reads that it has: of 3 GB that were not in memory, one thread read 9,000 keys a
second, eight 45,000, and sixteen 55,000. RocksDB's asynchronous and direct reads changed nothing of that.

Only speed rests on this file: what is found, and the error of a damaged block, are the same without it.
"""

from __future__ import annotations

import os
import resource
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter, le
from pathlib import Path
from typing import Final

from rocksdict import Rdict

FIRST: Final = 128
"""Keys after which an opened shard is judged for the first time: at worst one thread spends ten milliseconds on them."""
PART: Final = 1024
"""Keys after which it is judged again."""
IN_FLIGHT: Final = 16
"""Reads at once. Thirty-two gave no more."""
_SHARE: Final = 256
"""Most keys of one share: no thread is left with many when the others are done."""
_FROM_DISK: Final = 256
"""Bytes read per key from which on threads pay. One thread reads a block, 8 KiB, in the time of thirty keys in memory."""
_PIECE: Final = 1 << 20
"""Bytes of one such read: systems read no more than some megabytes ahead."""

Values = list[bytes | None]


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A sorted file of an open database."""

    path: Path
    first: bytes
    last: bytes
    level: int
    entries: int
    size: int


class DiskReads:
    """The look-ups of one open shard."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._rate = 0.0
        """Bytes that were read for each of the last keys."""
        self._part = FIRST
        self._swept: set[Path] = set()

    def look_up(self, opened: Rdict, keys: list[bytes], in_memory: Callable[[list[bytes]], Values]) -> Values:
        """The values of `keys`, in their order. `in_memory` looks them up as is best when no disk is waited for."""
        values: Values = []
        while len(values) < len(keys) and not come_from_disk(self._rate):
            part = keys[len(values) : len(values) + self._part]
            before = bytes_read()
            values += in_memory(part)
            self._rate = (bytes_read() - before) / len(part)
            self._part = PART
        rest = keys[len(values) :]
        return values + self._at_once(opened, rest) if rest else values

    def _at_once(self, opened: Rdict, keys: list[bytes]) -> Values:
        if not all(map(le, keys, islice(keys, 1, None))):
            # The keys of a share shall lie beside each other.
            order = sorted(range(len(keys)), key=keys.__getitem__)
            values: Values = [None] * len(keys)
            for at, value in zip(order, self._at_once(opened, [keys[at] for at in order]), strict=True):
                values[at] = value
            return values
        files = [file for file in self._files(opened) if file.path not in self._swept]
        files = worth_sweeping(files, keys, self._rate)
        self._swept.update(file.path for file in files)
        with ThreadPoolExecutor(IN_FLIGHT, "disk-reads") as threads:
            sweeps: list[tuple[StoredFile, Future[None]]] = []
            shares = []
            for share in shares_of(keys):
                # They are queued before what waits for them, so that no thread waits for one that waits itself.
                while len(sweeps) < len(files) and files[len(sweeps)].first <= share[-1]:
                    file = files[len(sweeps)]
                    sweeps.append((file, threads.submit(_sweep, file.path)))
                needed = [sweep for file, sweep in sweeps if file.last >= share[0]]
                shares.append(threads.submit(_share, opened, share, needed))
            try:
                results = [share.result() for share in shares]
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                raise
        if not files:
            # What is read from now on may be in memory.
            self._rate = sum(read for _, read in results) / len(keys)
        return list(chain.from_iterable(found for found, _ in results))

    def _files(self, opened: Rdict) -> list[StoredFile]:
        return [
            StoredFile(
                self._directory / str(file["name"]).lstrip("/"),
                file["start_key"],
                file["end_key"],
                int(file["level"]),
                int(file["num_entries"]),
                int(file["size"]),
            )
            for file in opened.live_files()
        ]


def bytes_read() -> int:
    """How many bytes this thread has had read from disks. Time would tell less: on a busy machine memory looks slow, too.

    0 on systems that do not count it by thread: there all state counts as being in memory.
    """
    who = getattr(resource, "RUSAGE_THREAD", None)
    return 0 if who is None else resource.getrusage(who).ru_inblock * 512


def come_from_disk(rate: float) -> bool:
    """Whether keys are worth threads, if so many bytes were read for each of those before them."""
    return rate >= _FROM_DISK


def shares_of(keys: list[bytes]) -> list[list[bytes]]:
    """What each thread looks up at a time."""
    size = max(1, min(_SHARE, -(-len(keys) // IN_FLIGHT)))
    return [keys[at : at + size] for at in range(0, len(keys), size)]


def worth_sweeping(files: Sequence[StoredFile], keys: Sequence[bytes], rate: float) -> list[StoredFile]:
    """The files, in the order of their first keys, that have no more bytes than `rate` for each key in them. Reading such a file in
    sequence takes half of the CPU seconds, and no longer. Of files three times as large it took longer than many reads at once.

    `keys` are sorted. Where several runs reach over a key, it counts in each by the share of the entries that the run has.
    """
    runs: dict[object, int] = {}
    for file in files:
        runs[_run(file)] = runs.get(_run(file), 0) + file.entries
    total = sum(runs.values())
    chosen = []
    for file in files:
        within = bisect_right(keys, file.last) - bisect_left(keys, file.first)
        if within * runs[_run(file)] * rate >= file.size * total:
            chosen.append(file)
    return sorted(chosen, key=attrgetter("first"))


def _run(file: StoredFile) -> object:
    """Files of level 0 overlap, so each is a run of its own. Those of any other level are one run."""
    return file.path if file.level == 0 else file.level


def _share(opened: Rdict, keys: list[bytes], sweeps: Sequence[Future[None]]) -> tuple[Values, int]:
    for sweep in sweeps:
        sweep.result()
    before = bytes_read()
    # This lets other threads run while it reads.
    values: Values = opened[keys]  # type: ignore[index, assignment]
    return values, bytes_read() - before


def _sweep(path: Path) -> None:
    """Has the system read a file into its cache. It copies nothing to this process, which would take five times as long."""
    # A merge may have deleted the file; and what cannot be read is reported by the look-up that needs it.
    with suppress(OSError), path.open("rb", buffering=0) as file:
        size, number = os.fstat(file.fileno()).st_size, file.fileno()
        for at in range(0, size, _PIECE):
            os.posix_fadvise(number, at, _PIECE, os.POSIX_FADV_WILLNEED)
        for at in range(0, size, _PIECE):
            # This waits until it has been read.
            os.pread(number, 1, min(at + _PIECE, size) - 1)
