"""The files that a record names, and how it names those of savepoints.

A savepoint in the job's own root is named relative to the root. So a root that is moved takes its state along, and a copy
of a root has a savepoint of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from stateflow.format.records import FileRef, Record, Savepoint, Shard, total_size


def references(record: Record) -> Iterator[FileRef]:
    """Every file that a record names: state, sources' own logs, and what its sinks staged."""
    for operator in record.operators.values():
        yield from operator.files
    for source in record.sources.values():
        yield from source.files
    for prepared in record.sinks.values():
        yield from prepared.files


def with_references(record: Record, change: Callable[[FileRef], FileRef]) -> Record:
    """The record with every reference to state and source files changed, and without its sinks."""

    def moved(shard: Shard) -> Shard:
        return msgspec.structs.replace(shard, files=tuple(map(change, shard.files)))

    return msgspec.structs.replace(
        record,
        operators={
            uid: msgspec.structs.replace(o, shards=tuple(tuple(map(moved, task)) for task in o.shards))
            for uid, o in record.operators.items()
        },
        sources={
            uid: msgspec.structs.replace(s, files=tuple(map(change, s.files)))
            for uid, s in record.sources.items()
        },
        sinks={},
    )


def job_files(records: Iterable[Record]) -> dict[str, int]:
    """Path and size of every file under the job's root that the records name."""
    return {
        ref.path: ref.size for record in records for ref in references(record) if ref.path and not ref.base
    }


def state_bytes(savepoint: Savepoint) -> int:
    """All state of a savepoint: its files, what its record holds itself, and tables."""
    tables = (
        file.size for states in savepoint.tables.values() for files in states.values() for file in files
    )
    return total_size(references(savepoint.record)) + sum(tables)


def bases(records: Iterable[Record]) -> set[str]:
    """Savepoints, claimed by this job, whose files the records name."""
    return {ref.base for record in records for ref in references(record) if ref.base and ref.path}


def path_inside(url: str, root: str) -> str | None:
    """The path of a folder in a root, empty for the root itself; None when it is elsewhere."""
    url, root = url.rstrip("/"), root.rstrip("/")
    if url == root:
        return ""
    return url.removeprefix(f"{root}/") if url.startswith(f"{root}/") else None


def as_stored(record: Record, root: str) -> Record:
    """The record with savepoints in its own root named by their paths in there."""
    return _renamed(record, lambda base: path_inside(base, root) or base)


def as_read(record: Record, root: str) -> Record:
    """The record with every savepoint named by its URL."""
    return _renamed(record, lambda base: base if "://" in base else f"{root.rstrip('/')}/{base}")


def _renamed(record: Record, named: Callable[[str], str]) -> Record:
    names = {base: named(base) for base in bases([record])}
    if all(before == after for before, after in names.items()):
        return record

    def renamed(ref: FileRef) -> FileRef:
        return msgspec.structs.replace(ref, base=names[ref.base]) if ref.base else ref

    return msgspec.structs.replace(with_references(record, renamed), sinks=record.sinks)
