"""Native savepoints: the files of a checkpoint, as its state backend wrote them, copied to a folder of their own.

On the same disk a copy is a hard link. In the same bucket the service copies. Small files can be packed into containers;
these are read and written by this process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from stateflow.errors import CorruptError, NotFoundError, UsageError
from stateflow.format.layout import JobLayout, savepoint_state_file
from stateflow.format.records import FileRef, Record, Savepoint
from stateflow.format.references import references, with_references
from stateflow.savepoints.publish import SavepointFacts, deleted_unless_stored, publish, require_vacant
from stateflow.storage.beneath import ANYBODY
from stateflow.storage.scratch import scratch_folder
from stateflow.storage.store import Store
from stateflow.storage.transfer import (
    THREADS,
    Transfer,
    at_once,
    permissions_of,
    read_through,
    transfer,
)

CONTAINER_BYTES = 256 << 20
CONTAINER = ".pack"


@dataclass(frozen=True, slots=True)
class Content:
    """One file of the savepoint, and the state files in it: one, or several in a container."""

    path: str
    refs: tuple[FileRef, ...]

    @property
    def size(self) -> int:
        return sum(ref.size for ref in self.refs)


def create_native(
    source_root: Store,
    layout: JobLayout,
    record: Record,
    target: Store,
    facts: SavepointFacts,
    *,
    ids: Callable[[], str],
    clock: Callable[[], int],
    open_base: Callable[[str], Store],
    scratch: Path,
    max_files: int = 0,
    progress: Callable[[str, int, int], object] = lambda what, done, total: None,
    threads: int = THREADS,
) -> Savepoint:
    """Makes a savepoint in the folder `target`, of a complete record that the caller has pinned.

    `max_files` limits the number of files: the smallest state files are packed into containers. After an error, or after
    a crash at any point, the folder holds no savepoint and the caller can try again.
    """
    if max_files < 0:
        raise UsageError(
            f"max_files={max_files} is not a number of files: use 1 or more, or 0 not to pack any"
        )
    require_vacant(target)
    attempt = ids()
    contents = planned(distinct(record), max_files, attempt)
    report = _Progress(progress, sum(content.size for content in contents))

    def store_of(ref: FileRef) -> Store:
        return open_base(ref.base) if ref.base else source_root

    with deleted_unless_stored(target, [content.path for content in contents]):
        try:
            transfer(
                [
                    Transfer(
                        store_of(ref), ref.path, content.path, ref.size, ref.xxh3, ref.offset, ref.sha256
                    )
                    for content in contents
                    if len(content.refs) == 1
                    for ref in content.refs
                ],
                target,
                scratch=scratch,
                threads=threads,
                progress=report,
            )
            _pack(contents, target, store_of, scratch, threads, report)
        except (NotFoundError, CorruptError) as error:
            raise CorruptError(
                f"savepoint {facts.name!r} cannot be made, because checkpoint {record.slot} of job {layout.job!r} is damaged: {error}"
            ) from error
    savepoint = facts.savepoint("native", layout.job, _moved(record, contents), id=ids(), at=clock())
    sizes = {content.path: content.size for content in contents}
    return publish(target, savepoint, sizes, owner=facts.owner, clock=clock)


def distinct(record: Record) -> list[FileRef]:
    """Every file that a savepoint of the record has to contain, once."""
    by_place: dict[tuple[str, str, int], FileRef] = {}
    for ref in references(msgspec.structs.replace(record, sinks={})):
        if ref.path:
            by_place.setdefault(ref.place, ref)
    return list(by_place.values())


def planned(refs: Sequence[FileRef], max_files: int, attempt: str) -> list[Content]:
    """The files of the savepoint, and which state files go into each. Pure."""
    return [
        Content(savepoint_state_file(attempt, number, _suffix(group)), tuple(group))
        for number, group in enumerate(grouped(refs, max_files), 1)
    ]


def grouped(
    refs: Sequence[FileRef], max_files: int, container_bytes: int = CONTAINER_BYTES
) -> list[list[FileRef]]:
    """The files in at most `max_files` groups (0: each file alone). Only as many of the smallest as needed share a group.

    A group is larger than `container_bytes` only when `max_files` allows no other way.
    """
    if not max_files or len(refs) <= max_files:
        return [[ref] for ref in refs]
    by_size = sorted(refs, key=lambda ref: (ref.size, _text(ref)))
    while True:
        groups: list[list[FileRef]] = [[]]
        filled = 0
        for count, ref in enumerate(by_size, 1):
            if filled + ref.size > container_bytes:
                groups.append([])
                filled = 0
            groups[-1].append(ref)
            filled += ref.size
            if len(groups) + len(by_size) - count <= max_files:
                return [*groups, *([alone] for alone in by_size[count:])]
        container_bytes *= 2


def _pack(
    contents: Sequence[Content],
    target: Store,
    store_of: Callable[[FileRef], Store],
    scratch: Path,
    threads: int,
    progress: Callable[[int], object],
) -> None:
    containers = [content for content in contents if len(content.refs) > 1]
    if not containers:
        return
    with scratch_folder(scratch) as folder:

        def pack(content: Content) -> None:
            local = folder / PurePosixPath(content.path).name
            # Who may read a container may read all of it.
            narrowest = ANYBODY
            for ref in content.refs:
                narrowest &= permissions_of(store_of(ref), ref.path)
            with os.fdopen(os.open(local, os.O_WRONLY | os.O_CREAT | os.O_EXCL, narrowest), "wb") as file:
                for ref in content.refs:
                    start = ref.offset or 0
                    file.writelines(
                        read_through(store_of(ref), ref.path, start, ref.size, ref.xxh3, sha256=ref.sha256)
                    )
            target.upload(local, content.path)
            local.unlink()

        # Two at a time: each needs room for a whole container in the scratch folder.
        at_once(pack, containers, min(threads, 2), lambda content: progress(content.size))


def _moved(record: Record, contents: Sequence[Content]) -> Record:
    places: dict[tuple[str, str, int], tuple[str, int | None]] = {}
    for content in contents:
        position = 0
        for ref in content.refs:
            places[ref.place] = content.path, position if len(content.refs) > 1 else None
            position += ref.size

    def moved(ref: FileRef) -> FileRef:
        if not ref.path:
            return ref
        path, offset = places[ref.place]
        return msgspec.structs.replace(ref, base="", path=path, offset=offset)

    record = with_references(record, moved)
    operators = {uid: msgspec.structs.replace(o, hosts=()) for uid, o in record.operators.items()}
    return msgspec.structs.replace(record, operators=operators)


class _Progress:
    """Adds up the bytes that were copied. Only one thread calls it at a time."""

    def __init__(self, report: Callable[[str, int, int], object], total: int) -> None:
        self._report = report
        self._total = total
        self._done = 0
        report("copying files", 0, total)

    def __call__(self, size: int) -> None:
        self._done += size
        self._report("copying files", self._done, self._total)


def _text(ref: FileRef) -> str:
    return f"{ref.base} {ref.path} {ref.offset or 0:020d}"


def _suffix(group: Sequence[FileRef]) -> str:
    if len(group) > 1:
        return CONTAINER
    suffix = PurePosixPath(group[0].name).suffix
    return suffix if suffix[1:].isalnum() else ".bin"
