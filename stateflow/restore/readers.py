"""Finds the jobs of the root that have read output which a restore would undo, and the checkpoint that each would have to go
back to. A reader that goes back takes its own outputs back, too, so its readers have to follow. A job's record says what it has
read, and a table's log says what it held. Nothing here needs Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from stateflow.checkpoint.handle import JobHandle
from stateflow.checkpoint.log import Log, list_jobs, read_log
from stateflow.checkpoint.names import require_checkpoint
from stateflow.errors import StateflowError
from stateflow.format.records import Prepared, SourceState
from stateflow.format.source_offsets import NOTHING, kind_of
from stateflow.pipelines.sink_kinds import rewindable
from stateflow.restore.visible import quoted
from stateflow.spark.sinks.delta_rewind import find_rewind
from stateflow.spark.sinks.slot import SinkSlot
from stateflow.spark.sources.delta_log import SourceLog, log_beside
from stateflow.spark.sources.delta_offset import DeltaOffset
from stateflow.spark.sources.delta_restores import (
    Detour,
    TableRestore,
    UndoneRead,
    newest_like,
    next_step,
    restore_at,
)

OpenTable = Callable[[str], SourceLog | None]
"""Opens the log of the table at a path; None when this process cannot read it."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A job that has read what would be undone."""

    job: str
    source: str
    table: str
    """The output that it reads."""
    of: str
    """The job whose output it is."""
    first: int
    """The first version that would be undone."""
    back_to: int | None
    """Its newest checkpoint from before it read any of that; None when none is left."""


@dataclass(frozen=True, slots=True)
class Readers:
    found: tuple[Reader, ...] = ()
    """The readers of the job's own outputs first, then their readers, and so on."""
    unknown: tuple[str, ...] = ()
    """A sentence for each thing that could not be looked at."""
    of_feeds: tuple[str, ...] = ()
    """A sentence for each job that has read it as changes, and gets what is undone as changes, too."""


@dataclass(frozen=True, slots=True)
class _Undone:
    """A table that would go back."""

    job: str
    table: str
    restore: TableRestore
    restored: Callable[[int], TableRestore | None]
    """The commit of a version, if it has taken the table back before."""

    def step_of(self, position: DeltaOffset) -> Detour | UndoneRead | None:
        """What a reader there would do about it, and about what took the table back before."""
        earlier = map(self.restored, range(position.version, self.restore.version))
        return next_step(position, [*(each for each in earlier if each is not None), self.restore])


def readers_of(job: JobHandle, last_commits: Mapping[str, int], sinks: Iterable[str]) -> Readers:
    """The readers of these sinks of `job`, if the outputs after `last_commits` are undone."""
    logs, unreadable = _other_logs(job)

    def open_table(path: str) -> SourceLog | None:
        return log_beside(path, job.store, job.storage_options)

    return find_readers(job.log(), last_commits, sinks, logs, open_table, unreadable)


def find_readers(
    log: Log,
    last_commits: Mapping[str, int],
    sinks: Iterable[str],
    others: Mapping[str, Log],
    open_table: OpenTable,
    unknown: Sequence[str] = (),
) -> Readers:
    """As `readers_of`, from the logs of the jobs."""
    notes = list(unknown)
    search = _Search(others, open_table, notes)
    own = search.undone(log, last_commits, sinks)
    back: dict[str, int | None] = {}
    while True:
        undone = dict(own)
        for name, slot in back.items():
            if slot is not None:
                undone |= search.undone_by(others[name], slot)
        found = search.readers(undone)
        further = {reader.job: reader.back_to for reader in found}
        if further == back:
            return Readers(
                tuple(_in_order(log.job, found)),
                tuple(dict.fromkeys(notes)),
                tuple(search.of_feeds(undone, back)),
            )
        back = further


class _Search:
    def __init__(self, others: Mapping[str, Log], open_table: OpenTable, notes: list[str]) -> None:
        self.others, self.notes = others, notes
        self._open = open_table
        self._tables: dict[str, SourceLog | None] = {}

    def undone_by(self, log: Log, slot: int) -> dict[str, _Undone]:
        """What going back to a checkpoint would undo in the job's outputs."""
        sinks = [uid for uid, prepared in log.newest_sinks.items() if rewindable(prepared)]
        return self.undone(log, require_checkpoint(log, slot).last_commits, sinks)

    def undone(self, log: Log, last_commits: Mapping[str, int], sinks: Iterable[str]) -> dict[str, _Undone]:
        """By the id of the table."""
        found = {}
        newest = log.newest_sinks
        for uid in sinks:
            prepared = newest.get(uid)
            table = str(prepared.payload.get("table", "")) if prepared is not None else ""
            read = [at.version for _, _, at in self._positions(table)] if table else []
            if prepared is None or not read:
                continue  # nobody reads it
            restore = self._restore(log, uid, prepared, last_commits.get(uid), max(0, min(read) - 1))
            if restore is not None:
                own = self._tables[prepared.target]
                assert own is not None  # it has told what would be undone
                restored = cache(partial(restore_at, own.read))
                found[table] = _Undone(log.job, prepared.target, restore, restored)
        return found

    def _restore(
        self, log: Log, uid: str, prepared: Prepared, last: int | None, known: int
    ) -> TableRestore | None:
        """The commit that would take the table back; None when there is nothing to undo. `known`: a version that the table
        has."""
        assert log.identity is not None
        where = prepared.target
        if where not in self._tables:
            self._tables[where] = self._open(where)
        table = self._tables[where]
        app = SinkSlot(log.identity.uuid, log.job, uid, 0, 0).app_id
        try:
            if table is None:
                raise StateflowError("its log cannot be read from here")
            if table.may_have(_newest(table, known) + 1):
                raise StateflowError(
                    "its catalog may have newer commits, which the table's log does not have yet"
                )
            version, undone = find_rewind(table.commit, _newest(table, known), app, last, prepared)
        except (StateflowError, ValueError) as error:
            self.notes.append(f"who has read {where} is not known: {error}")
            return None
        if not undone:
            return None
        newest = _newest(table, known)
        return TableRestore(newest + 1, newest_like(table.read, version, newest + 1))

    def readers(self, undone: Mapping[str, _Undone]) -> list[Reader]:
        found = []
        for name, log in self.others.items():
            if log.head is None:
                continue
            hit = list(_touched(log.head.sources, undone))
            if not hit:
                continue
            back = next(
                (c.slot for c in reversed(log.checkpoints) if not any(_touched(c.sources, undone))), None
            )
            for uid, table, restore in hit:
                first = (restore.kept if restore.kept is not None else -1) + 1
                found.append(Reader(name, uid, table.table, table.job, first, back))
        return found

    def of_feeds(self, undone: Mapping[str, _Undone], back: Collection[str]) -> Iterator[str]:
        """Of jobs that are not `back`, and so read on from where they are."""
        for name, log in self.others.items():
            if log.head is None or name in back:
                continue
            for uid, table, _ in _touched(log.head.sources, undone, of_feeds=True):
                yield (
                    f"job {quoted(name)} has read {quoted(table.table)} of job {quoted(table.job)} as changes (source {quoted(uid)}), also some of "
                    "what would be undone: its next run gets what is undone as changes, too, and it stays where it is"
                )

    def _positions(self, table: str) -> Iterator[tuple[str, str, DeltaOffset]]:
        for name, log in self.others.items():
            for uid, at, _ in _offsets(log.head.sources if log.head is not None else {}):
                if at.table == table:
                    yield name, uid, at


def _touched(
    sources: Mapping[str, SourceState], undone: Mapping[str, _Undone], *, of_feeds: bool = False
) -> Iterator[tuple[str, _Undone, TableRestore]]:
    """The sources that have read what would be undone, or is already, and the restore that undoes it. A source of a table's change feed
    gets what is undone as changes; `of_feeds` asks for those instead."""
    for uid, at, of_feed in _offsets(sources):
        table = undone.get(at.table) if of_feed == of_feeds else None
        step = table.step_of(at) if table is not None else None
        if table is not None and isinstance(step, UndoneRead):
            yield uid, table, step.restore


def _offsets(sources: Mapping[str, SourceState]) -> Iterator[tuple[str, DeltaOffset, bool]]:
    """The positions in Delta tables, and whether each is one in the table's change feed."""
    for uid, state in sources.items():
        for place, line in enumerate(state.lines):
            if line != NOTHING and kind_of(line) == "delta":
                yield uid, DeltaOffset.parse(line), place in state.change_feeds


def _newest(table: SourceLog, known: int) -> int:
    """The newest version: a table's versions have no gap."""
    version = known
    while table.commit(version + 1) is not None:
        version += 1
    return version


def _in_order(first: str, found: Sequence[Reader]) -> Iterator[Reader]:
    """The readers in an order in which each comes after the jobs whose output it reads, unless they read each other."""
    left, ordered = list(found), {first}
    while left:
        now = [reader for reader in left if reader.of in ordered] or left
        yield from now
        ordered |= {reader.job for reader in now}
        left = [reader for reader in left if reader not in now]


def _other_logs(job: JobHandle) -> tuple[dict[str, Log], list[str]]:
    logs: dict[str, Log] = {}
    unreadable = []
    for name in list_jobs(job.store):
        if name == job.name:
            continue
        try:
            handle = JobHandle.at(job.root, name, job.storage_options)
            log = read_log(handle.store, handle.layout)
            log.require_identity()
            logs[name] = log
        except StateflowError as error:
            unreadable.append(f"whether job {name!r} has read what would be undone is not known: {error}")
    return logs, unreadable
