"""A job as its store shows it, read so that a job with ten thousand records is held in a few megabytes.

Records are decoded once and slimmed to what the log's rules and the history need. What only a look at one record needs is
read when somebody looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property, partial
from sys import intern
from typing import TypeVar

import msgspec

from stateflow.checkpoint.control import Heartbeat, read_heartbeat, read_progress
from stateflow.checkpoint.log import BodyCache, Log, SlotContent, assemble, read_epochs, read_identity
from stateflow.checkpoint.pins import list_pins
from stateflow.checkpoint.statistics import HistoryLine, history_line
from stateflow.errors import CorruptError, IncompatibleError, NotFoundError
from stateflow.format.layout import JobLayout, slot_of
from stateflow.format.records import FileRef, Outcome, Owner, Record, decode
from stateflow.format.references import with_references
from stateflow.observe.status import JobStatus, status_of
from stateflow.observe.timelines import Span, audit, spans
from stateflow.storage.store import Store
from stateflow_ui.lines import Lines, SegmentReader, Slimmer, lines_of
from stateflow_ui.readers import Readers

NEAR_RECORDS, MOST_RECORDS = 200, 20_000
"""How many of the newest records a look from afar, and one at the job's own pages, reads."""
_TOP = 4
"""Among so many of the newest records is the head."""
_LISTINGS = 3
_FEW = 8
T = TypeVar("T")


@dataclass(frozen=True)
class JobFacts:
    """Everything that is known of a job at one moment."""

    conn_id: str
    status: JobStatus
    log: Log
    """Of slim records, but for the head."""
    lines: Lines
    heartbeat: Heartbeat | None
    as_of: int
    """Microseconds since 1970."""
    whole: bool
    """Whether it goes as far back as is ever held; else only the newest records were read."""
    unreadable: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.status.name

    @cached_property
    def kept(self) -> frozenset[int]:
        return frozenset(record.slot for record in self.log.chain)

    @cached_property
    def spans(self) -> list[Span]:
        return list(spans(self.lines.held, self.status.tags, self.status.head, self.kept))

    @cached_property
    def audit(self) -> list[HistoryLine]:
        return audit(self.lines.held)


@dataclass(frozen=True, slots=True)
class _Held:
    """What is held of one record's folder, and of which objects, by name and size, it was made."""

    made_of: tuple[tuple[str, int], ...]
    slot: SlotContent
    line: tuple[HistoryLine, bytes] | None
    unreadable: tuple[str, ...] = ()


class JobReader:
    """Reads one job again and again; only what has changed since is fetched. One reading at a time."""

    def __init__(
        self,
        conn_id: str,
        store: Store,
        name: str,
        *,
        patience: float,
        clock: Callable[[], int],
        fetchers: Readers,
    ) -> None:
        self.store, self.layout = store, JobLayout(name)
        self._conn_id, self._patience, self._clock, self._fetchers = conn_id, patience, clock, fetchers
        self._slimmer = Slimmer()
        self._segments = SegmentReader(store, self.layout, self._slimmer)
        self._uuid = ""
        self._owners: dict[Owner, Owner] = {}
        self._held: dict[int, _Held] = {}
        self._full: dict[int, Record] = {}
        self._pins: BodyCache = {}
        self._made_of: list[tuple[HistoryLine, bytes]] = []
        self._lines = Lines(())

    def read(self, *, whole: bool) -> JobFacts:
        """NotFoundError when there is no such job (any more)."""
        log, unreadable, standing_all = self._read_log(MOST_RECORDS if whole else NEAR_RECORDS)
        head = self._full_head(log)
        epoch = log.newest_epoch
        heartbeat = read_heartbeat(self.store, self.layout, epoch)
        collected, all_segments = self._segments.read(whole=whole)
        lines = self._merged(log, collected)
        now = self._clock()
        status = status_of(
            head,
            self.store.url,
            heartbeat=heartbeat,
            progress=read_progress(self.store, self.layout, epoch),
            pins=list_pins(self.store, self.layout, cache=self._pins),
            lines=lines.held,
            now=now,
            patience=round(self._patience * 1e6),
        )
        return JobFacts(
            conn_id=self._conn_id,
            status=status,
            log=head,
            lines=lines,
            heartbeat=heartbeat,
            as_of=now,
            whole=whole or (standing_all and all_segments),
            unreadable=unreadable,
        )

    def record(self, slot: int) -> tuple[Record, Outcome | None] | None:
        """One record, without the bytes that travel inside it; None when it was collected."""
        pending, metadata = self.layout.pending(slot), self.layout.metadata(slot)
        try:
            record = _light(decode(self.store.read(pending), Record, pending))
        except NotFoundError:
            return None
        try:
            outcome = decode(self.store.read(metadata), Outcome, metadata)
        except NotFoundError:
            return record, None
        return record, outcome if outcome.record == record.writer else None

    def _read_log(self, most: int) -> tuple[Log, tuple[str, ...], bool]:
        identity = read_identity(self.store, self.layout)
        if identity is None:
            raise NotFoundError(f"there is no job {self.layout.job!r} in {self.store.url} (any more)")
        if identity.uuid != self._uuid:
            # Made anew under an old name: objects of the same names and sizes may be others.
            self._uuid, self._held, self._full = identity.uuid, {}, {}
            self._segments = SegmentReader(self.store, self.layout, self._slimmer)
        for _ in range(_LISTINGS):
            epochs = read_epochs(self.store, self.layout)
            listed, all_of_them = self._listed(most)
            self._hold(listed)
            slots = {number: held.slot for number, held in self._held.items()}
            unreadable = tuple(path for held in self._held.values() for path in held.unreadable)
            log = assemble(self.layout.job, identity, epochs, slots, unreadable)
            lowest = min(slots, default=0)
            # Below what was read there is no gap, only what was not asked for.
            if not [gap for gap in log.gaps if all_of_them or gap >= lowest]:
                break
        return log, unreadable, all_of_them

    def _listed(self, most: int) -> tuple[dict[int, list[tuple[str, str, int]]], bool]:
        folders: dict[int, list[tuple[str, str, int]]] = {}
        for entry in self.store.list(self.layout.log):
            if (found := slot_of(entry.path)) is not None:
                folders.setdefault(found[0], []).append((found[1], entry.path, entry.size))
        chosen = sorted(folders)[-most:]
        return {number: folders[number] for number in chosen}, len(chosen) == len(folders)

    def _hold(self, listed: dict[int, list[tuple[str, str, int]]]) -> None:
        tops = set(sorted(listed)[-_TOP:])
        made_of = {
            number: tuple(sorted((intern(name), size) for name, _, size in objects))
            for number, objects in listed.items()
        }
        known = {
            number: held
            for number in listed
            if (held := self._held.get(number)) is not None and held.made_of == made_of[number]
        }
        new = [number for number in listed if number not in known]
        for number, held, record in self._each(lambda n: self._slot(n, listed[n], made_of[n]), new):
            known[number] = held
            if record is not None and number in tops:
                self._full[number] = _light(record)
        self._held = {number: known[number] for number in listed}

    def _slot(
        self, number: int, objects: list[tuple[str, str, int]], made_of: tuple[tuple[str, int], ...]
    ) -> tuple[int, _Held, Record | None]:
        paths = {name: path for name, path, _ in objects}
        unreadable: list[str] = []
        record = self._body(paths.get("_pending"), Record, unreadable)
        outcome = self._body(paths.get("_metadata"), Outcome, unreadable)
        slot = SlotContent(
            number=number,
            record=record and self._slim(record),
            outcome=outcome and msgspec.structs.replace(outcome, statistics={}, owner=None),
            marks=tuple(name for name in paths if name.startswith("_dead-")),
            doomed=any(name.startswith("_doomed-") for name in paths),
        )
        line = None
        if record is not None:
            line = self._slimmer.slim(history_line(record, outcome if slot.complete else None))
        return number, _Held(made_of, slot, line, tuple(unreadable)), record

    def _body(self, path: str | None, kind: type[T], unreadable: list[str]) -> T | None:
        if path is None:
            return None
        try:
            return decode(self.store.read(path), kind, path)  # type: ignore[type-var]
        except NotFoundError:
            return None  # collected since it was listed
        except (CorruptError, IncompatibleError):
            unreadable.append(path)
            return None

    def _slim(self, record: Record) -> Record:
        return msgspec.structs.replace(
            record,
            owner=self._owners.setdefault(record.owner, record.owner),
            operators={},
            sources={},
            sinks={},
            statistics={},
            parameters={},
            versions={},
        )

    def _full_head(self, log: Log) -> Log:
        """The log with its head as it was written."""
        head = log.head
        if head is None:
            return log
        full = self._full.get(head.slot)
        if full is None:
            found = self.record(head.slot)
            if found is None:
                return log  # collected since; the next reading finds another
            full = found[0]
        self._full = {head.slot: full}
        slots = dict(log.slots)
        old = slots[head.slot]
        slots[head.slot] = SlotContent(old.number, full, old.outcome, old.marks, old.doomed)
        chain = tuple(full if record.slot == head.slot else record for record in log.chain)
        return Log(log.job, log.identity, log.epochs, slots, log.unreadable, chain, log.gaps)

    def _merged(self, log: Log, collected: list[tuple[HistoryLine, bytes]]) -> Lines:
        standing = [line for record in log.chain if (line := self._held[record.slot].line) is not None]
        made_of = [*collected, *standing]
        before = self._made_of
        if len(made_of) != len(before) or any(
            one is not two for one, two in zip(made_of, before, strict=True)
        ):
            self._made_of, self._lines = made_of, lines_of(collected, standing)
        return self._lines

    def _each(self, work: Callable[[int], T], numbers: Iterable[int]) -> list[T]:
        """All of them; from a store that is far away, several at a time."""
        numbers = list(numbers)
        if len(numbers) <= _FEW or self.store.local_root is not None:
            return [work(number) for number in numbers]
        return together(work, numbers, self._fetchers)


def _light(record: Record) -> Record:
    """The record without the bytes that travel inside it: what is told of it are names and sizes."""

    def lighter(ref: FileRef) -> FileRef:
        return ref if ref.data is None else msgspec.structs.replace(ref, data=None)

    light = with_references(record, lighter)
    sinks = {
        uid: msgspec.structs.replace(prepared, payload={}, files=tuple(map(lighter, prepared.files)))
        for uid, prepared in record.sinks.items()
    }
    operators = {
        uid: msgspec.structs.replace(
            state,
            operator_states={
                name: msgspec.structs.replace(held, parts=()) for name, held in state.operator_states.items()
            },
        )
        for uid, state in light.operators.items()
    }
    return msgspec.structs.replace(light, operators=operators, sinks=sinks)


def together(work: Callable[[int], T], numbers: Iterable[int], readers: Readers) -> list[T]:
    """In the order of the numbers. The first failure is raised, and what has not begun then is left out."""
    failures: list[Exception] = []

    def one(number: int, future: Future[T]) -> None:
        try:
            if failures:
                raise failures[0]
            future.set_result(work(number))
        except Exception as error:
            failures.append(error)
            future.set_exception(error)

    futures: list[Future[T]] = []
    for number in numbers:
        futures.append(Future())
        readers.submit(partial(one, number, futures[-1]))
    return [future.result() for future in futures]
