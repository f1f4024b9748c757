"""Moving immutable files between stores, many at once.

Between two stores on one disk it makes hard links, and inside one bucket the service copies: this process reads no byte.
Between other stores, and inside HDFS, it reads each file, and stores it; the log says how many bytes that were.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import xxhash

from stateflow.errors import CorruptError, NotFoundError, StateflowError
from stateflow.storage.beneath import ANYBODY, permissions
from stateflow.storage.files import Digests, checksum, digests
from stateflow.storage.local import LocalStore
from stateflow.storage.scratch import scratch_folder
from stateflow.storage.store import PIECE, Store, checked_path, takes_a_trip

_log = logging.getLogger(__name__)

THREADS = 8
ASKERS = 16
"""Small questions to a distant store at a time. Each waits, and carries little."""
CHUNK = 16 << 20
"""Bytes that one request to an object store reads."""

Copy = Callable[[str, str], int | None]
"""It returns the bytes that went through this process, and None when it copies nothing, because this file has to be read."""
_WORTH_A_WARNING = 1 << 30
"""Bytes between two distant stores that went through this process."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One file to store elsewhere, under a new, unique name."""

    source: Store
    source_path: str
    target_path: str
    size: int
    xxh3: str
    offset: int | None = None
    """Where the file begins inside a container at `source_path`; None when it is a file of its own."""
    sha256: bytes = b""
    """Empty when the record has none: then XXH3 alone is compared."""


def transfer(
    items: Sequence[Transfer],
    target: Store,
    *,
    scratch: Path,
    threads: int = THREADS,
    progress: Callable[[int], object] = lambda size: None,
    verify: bool = True,
) -> None:
    """Stores every item, and compares all sizes before it returns. It calls `progress` with the bytes of each finished item.

    With `verify` it also compares the checksums of every file that this process reads. After an error no copy is under
    way any more, but some targets may exist: the caller, who chose their names, removes them.
    """
    copies: dict[int, Copy | None] = {}
    through = Counter[str]()
    for item in items:
        checked_path(item.source_path)  # anybody may have written the savepoint that names this path
        if id(item.source) not in copies:
            copies[id(item.source)] = copy_inside(item.source, target)
    turn = threading.Lock()
    with scratch_folder(scratch) as folder:

        def move(numbered: tuple[int, Transfer]) -> None:
            number, item = numbered
            copy = copies[id(item.source)] if item.offset is None else None
            here = None if copy is None else copy(item.source_path, item.target_path)
            if here is None:
                _carry(item, target, folder / str(number), verify)
                here = item.size if item.source.local_root is target.local_root is None else 0
            with turn:
                through[item.source.url] += here

        at_once(move, enumerate(items), threads, lambda numbered: progress(numbered[1].size))
    _compare_sizes(items, target)
    for url, size in (+through).items():
        _log.log(
            logging.WARNING if size >= _WORTH_A_WARNING else logging.INFO,
            "copied %s bytes from %s to %s through this machine, since no store copied them itself",
            f"{size:,}",
            url,
            target.url,
        )


S = TypeVar("S")
T = TypeVar("T")


def at_distance(store: Store, work: Callable[[S], T], items: Sequence[S]) -> list[T]:
    """What `work`, which asks the store, answers for each item: several at once where each answer takes a trip, else in turn."""
    if len(items) < 2 or not takes_a_trip(store):
        return list(map(work, items))
    with ThreadPoolExecutor(ASKERS, "stateflow-asking") as pool:
        return list(pool.map(work, items))


def at_once(
    work: Callable[[T], Any],
    items: Iterable[T],
    threads: int = THREADS,
    done: Callable[[T], object] = lambda item: None,
) -> None:
    """Calls `work` for all items. After the first failure it begins no further item, waits for those under way, and raises
    that failure."""
    items = list(items)
    if threads <= 1 or len(items) <= 1:
        for item in items:
            work(item)
            done(item)
        return
    turn = threading.Condition()
    failed, under_way = False, 0

    def one(item: T) -> None:
        nonlocal failed, under_way
        with turn:
            if failed:
                return
            under_way += 1
        try:
            work(item)
            with turn:
                done(item)
        except BaseException:
            failed = True
            raise
        finally:
            with turn:
                under_way -= 1
                turn.notify_all()

    with ThreadPoolExecutor(threads, "stateflow-transfer") as pool:
        try:
            for future in [pool.submit(one, item) for item in items]:
                future.result()
        except BaseException:  # also when this thread was interrupted
            with turn:
                failed = True
                # The pool does not know of a thread in whose start a signal was raised.
                turn.wait_for(lambda: not under_way)
            raise


def copy_inside(source: Store, target: Store) -> Copy | None:
    """A function that copies between two stores without reading the file; None when there is no such way."""
    if source is target:
        return target.copy
    if isinstance(source, LocalStore) and isinstance(target, LocalStore):
        if _device(source.local_root) == _device(target.local_root):
            return lambda path, to: 0 if target.take(source, path, to, copy=False) else None  # a hard link
        return None
    if source.local_root is None and target.local_root is None:
        # Imported here for the reason given in `open_store`.
        from stateflow.storage.objects import copier

        return copier(source, target)
    return None


def read_through(
    source: Store,
    path: str,
    start: int,
    size: int,
    xxh3: str,
    chunk: int = CHUNK,
    *,
    sha256: bytes = b"",
) -> Iterator[bytes | memoryview]:
    """The bytes of a file, or of a file inside a container, in pieces. A piece is valid until the next one is read.

    CorruptError at the end when the bytes do not match `xxh3` and `sha256`. An empty one is not compared.
    """
    digest, strong = xxhash.xxh3_64(), hashlib.sha256()
    at = 0
    for piece in _pieces(source, path, start, size, chunk):
        at += len(piece)
        if xxh3:
            digest.update(piece)
        if sha256:
            strong.update(piece)
        yield piece
    if at < size:
        raise CorruptError(f"{source.url}/{path} ends after {start + at} bytes instead of {start + size}")
    if (xxh3 and digest.hexdigest() != xxh3) or (sha256 and strong.digest() != sha256):
        raise _damaged(source, path)


def _pieces(source: Store, path: str, start: int, size: int, chunk: int) -> Iterator[bytes | memoryview]:
    if not isinstance(source, LocalStore):
        at = 0
        while at < size and (piece := source.read_range(path, start + at, min(chunk, size - at))):
            at += len(piece)
            yield piece
        return
    buffer = memoryview(bytearray(min(max(size, 1), PIECE)))
    with source.open(path) as file:
        file.seek(start)
        while size > 0 and (count := file.readinto(buffer[: min(size, len(buffer))])):
            size -= count
            yield buffer[:count]


def permissions_of(store: Store, path: str) -> int:
    """The permissions for a copy of a stored file. An object has none."""
    if not isinstance(store, LocalStore):
        return ANYBODY
    with store.open(path) as file:
        return permissions(file.fileno())


def _carry(item: Transfer, target: Store, local: Path, verify: bool) -> None:
    source, path, xxh3 = item.source, item.source_path, item.xxh3 if verify else ""
    sha256 = item.sha256 if verify else b""
    start, size, mode = item.offset or 0, item.size, ANYBODY
    if isinstance(source, LocalStore):
        with source.open(path) as file:
            mode = permissions(file.fileno())
            if item.offset is None:
                # The size on disk, so that the comparison notices a file of another size.
                size = os.fstat(file.fileno()).st_size
    if isinstance(target, LocalStore) and (item.offset is not None or isinstance(source, LocalStore)):
        target.write(
            item.target_path, lambda: read_through(source, path, start, size, xxh3, sha256=sha256), mode
        )
        return
    if item.offset is None and isinstance(source, LocalStore):
        with source.open(path) as file:
            # By its descriptor: by now the name may lead to another file, or to a link.
            there = Path(f"/dev/fd/{file.fileno()}")
            _compare(item, there, verify)
            target.upload(there, item.target_path)
        return
    try:
        if item.offset is None:
            source.download(path, local)
            _compare(item, local, verify)
        else:
            with local.open("xb") as out:
                out.writelines(read_through(source, path, start, size, xxh3, sha256=sha256))
        target.upload(local, item.target_path)
    finally:
        local.unlink(missing_ok=True)


def _compare(item: Transfer, local: Path, verify: bool) -> None:
    if not verify:
        return
    if item.sha256:
        same = digests(local) == Digests(item.size, item.xxh3, item.sha256)
    else:
        same = checksum(local) == (item.size, item.xxh3)
    if not same:
        raise _damaged(item.source, item.source_path)


def _damaged(source: Store, path: str) -> CorruptError:
    return CorruptError(
        f"{source.url}/{path} does not have the size and checksum that were recorded: run `stateflow verify`"
    )


def _compare_sizes(items: Sequence[Transfer], target: Store) -> None:
    folders: dict[str, list[Transfer]] = {}
    for item in items:
        folders.setdefault(item.target_path.rpartition("/")[0], []).append(item)
    for some in folders.values():
        # Lists only names with the common beginning: the folder may hold many more.
        sizes = {entry.path: entry.size for entry in target.list(_beginning([i.target_path for i in some]))}
        for item in some:
            size = sizes.get(item.target_path)
            if size is None:
                raise StateflowError(
                    f"{target.url}/{item.target_path} was deleted while it was stored: run again"
                )
            if size != item.size:
                raise CorruptError(
                    f"{item.source.url}/{item.source_path} gave {size} bytes instead of {item.size}: run `stateflow verify`"
                )


def _beginning(paths: Sequence[str]) -> str:
    """The common beginning of all paths."""
    low, high = min(paths), max(paths)
    return low[: next((at for at, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))]


def _device(folder: Path) -> int:
    """The file system of a folder, or of the folder that it would be made in."""
    for at in (folder, *folder.parents):
        try:
            return at.stat().st_dev
        except FileNotFoundError:
            continue
    raise NotFoundError(f"{folder} has no parent that exists")
