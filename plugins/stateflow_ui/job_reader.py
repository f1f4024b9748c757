"""A job as its store shows it, read so that a job with ten thousand records takes a few megabytes of memory.

The library reads and assembles the log and the history; this module says what stays in memory of each record. A page that
looks at one record reads that record again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeVar

import msgspec

from stateflow.checkpoint.control import Heartbeat, begun_by_restore, read_heartbeat, read_progress
from stateflow.checkpoint.log import BodyCache, Log, SlotCache, SlotContent, read_if_there, read_log
from stateflow.checkpoint.pins import list_pins
from stateflow.checkpoint.statistics import (
    INPUT_FREE,
    HistoryLine,
    SegmentCache,
    history_line,
    merged,
    read_segments,
)
from stateflow.errors import NotFoundError
from stateflow.format.layout import JobLayout
from stateflow.format.records import CATALOG_NAME, FileRef, Outcome, Owner, Prepared, Record
from stateflow.format.references import as_read, with_references
from stateflow.observe.status import JobStatus, newest_that_read, status_of
from stateflow.observe.timelines import Span, audit, spans
from stateflow.storage.store import Entry, Store
from stateflow_ui.history_lines import MOST_LINES, Lines, LineSlimmer, SlimLine, newest_segments
from stateflow_ui.reader_threads import ReaderThreads

NEAR_RECORDS, MOST_RECORDS = 200, 20_000
"""How many of the newest records the list of jobs, and a job's own pages, read."""
_NEAR_SEGMENTS = 2
"""How many of the newest segments of the history the list of jobs reads."""
_TOP = 4
"""The head is among so many of the newest records."""
_LISTINGS = 3
"""How often one reading lists a torn log: the next reading is seconds away."""
_FEW = 8
_FOR_TIMERS = {INPUT_FREE: True}
T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class JobFacts:
    """Everything that the pages know of a job at one moment."""

    conn_id: str
    status: JobStatus
    log: Log
    """Of slim records, except those that a status shows."""
    lines: Lines
    heartbeat: Heartbeat | None
    as_of: int
    """Microseconds since 1970."""
    whole: bool
    """Whether it reaches as far back as the pages ever read; else only the newest records were read."""

    @property
    def name(self) -> str:
        return self.status.name

    @property
    def unreadable(self) -> tuple[str, ...]:
        return self.log.unreadable

    @cached_property
    def standing(self) -> frozenset[int]:
        """Slots whose records have not been collected."""
        return frozenset(record.slot for record in self.log.chain)

    @cached_property
    def spans(self) -> list[Span]:
        return list(spans(self.lines.all, self.status.tags, self.status.head, self.standing))

    @cached_property
    def audit(self) -> list[HistoryLine]:
        return audit(self.lines.all)


class JobReader:
    """Reads one job again and again and fetches only what has changed. One thread at a time calls it."""

    def __init__(
        self,
        conn_id: str,
        store: Store,
        name: str,
        *,
        patience: float,
        clock: Callable[[], int],
        fetchers: ReaderThreads,
    ) -> None:
        self.store, self.layout = store, JobLayout(name)
        self._conn_id, self._patience, self._clock, self._fetchers = conn_id, patience, clock, fetchers
        self._slimmer = LineSlimmer()
        self._slots = SlotCache(self._slim, self.each)
        self._segments: SegmentCache = {}
        self._pins: BodyCache = {}
        self._uuid = ""
        self._owners: dict[Owner, Owner] = {}
        self._sinks: dict[tuple[tuple[str, str, str, str], ...], dict[str, Prepared]] = {}
        self._slot_lines: dict[int, tuple[SlotContent, SlimLine]] = {}
        self._whole_records: dict[int, Record] = {}
        """The newest few records, and those that a status shows, without the bytes inside them."""
        self._sources: list[HistoryLine] = []
        """The lines from which `_lines` was made."""
        self._lines = Lines(())

    def read(self, *, whole: bool) -> JobFacts:
        """NotFoundError when there is no such job (any more)."""
        most = MOST_RECORDS if whole else NEAR_RECORDS
        log = read_log(self.store, self.layout, slots=self._slots, newest=most, listings=_LISTINGS)
        log.require_identity()
        if log.identity is None:
            raise NotFoundError(f"there is no job {self.layout.job!r} in {self.store.url} (any more)")
        if log.identity.uuid != self._uuid:
            # A job made anew under an old name may have other bodies under the same names, and of the same sizes.
            self._uuid, self._segments = log.identity.uuid, {}
        self._slot_lines = {
            number: self._slot_lines[number] for number in log.slots if number in self._slot_lines
        }
        log = self._with_whole_records(log)
        epoch = log.newest_epoch
        heartbeat = read_heartbeat(self.store, self.layout, epoch)
        lines, every_segment = self._history(log, whole)
        now = self._clock()
        status = status_of(
            log,
            self.store.url,
            heartbeat=heartbeat,
            progress=read_progress(self.store, self.layout, epoch),
            pins=list_pins(self.store, self.layout, cache=self._pins),
            lines=lines.all,
            now=now,
            patience=round(self._patience * 1e6),
            begun_by_restore=log.head is None and begun_by_restore(self.store, self.layout),
        )
        return JobFacts(
            conn_id=self._conn_id,
            status=status,
            log=log,
            lines=lines,
            heartbeat=heartbeat,
            as_of=now,
            whole=whole or (log.whole and every_segment),
        )

    def record(self, slot: int) -> tuple[Record, Outcome | None] | None:
        """One record, without the bytes that travel inside it; None when it was collected."""
        record = read_if_there(self.store, self.layout.pending(slot), Record)
        if record is None:
            return None
        outcome = read_if_there(self.store, self.layout.metadata(slot), Outcome)
        own = outcome if outcome is not None and outcome.record == record.writer else None
        return as_read(_light(record), self.store.url), own

    def whole_record(self, slot: int) -> Record | None:
        """One record with all that is in it; None when it was collected."""
        record = read_if_there(self.store, self.layout.pending(slot), Record)
        return None if record is None else as_read(record, self.store.url)

    def _history(self, log: Log, whole: bool) -> tuple[Lines, bool]:
        """The lines, and whether every segment was read."""
        unread = 0

        def choose(entries: Sequence[Entry]) -> Sequence[Entry]:
            nonlocal unread
            chosen = newest_segments(entries) if whole else entries[-_NEAR_SEGMENTS:]
            unread = len(entries) - len(chosen)
            return chosen

        segments = read_segments(
            self.store, self.layout, choose=choose, cache=self._segments, slim=self._slimmer.slim
        )
        standing = [
            entry[1] for record in log.chain if (entry := self._slot_lines.get(record.slot)) is not None
        ]
        sources = [*(line for segment in segments for line in segment.lines), *standing]
        if len(sources) != len(self._sources) or any(map(_is_other, sources, self._sources)):
            self._sources, self._lines = sources, Lines(merged(segments, standing)[-MOST_LINES:])
        return self._lines, not unread

    def _slim(self, slot: SlotContent) -> SlotContent:
        """What the log's rules need. The line for the history is made here, where the record is still whole."""
        record, outcome = slot.record, slot.outcome
        if record is None:
            self._slot_lines.pop(slot.number, None)
        else:
            line = self._slimmer.slim(history_line(record, outcome if slot.complete else None))
            self._slot_lines[slot.number] = (slot, line)
            self._note_whole(slot.number, record)
            record = self._slim_record(record)
        if outcome is not None:
            outcome = msgspec.structs.replace(outcome, statistics={}, owner=None)
        return replace(slot, record=record, outcome=outcome, paths=())

    def _slim_record(self, record: Record) -> Record:
        return msgspec.structs.replace(
            record,
            owner=self._owners.setdefault(record.owner, record.owner),
            operators={},
            sources={},
            sinks=self._named_sinks(record),
            statistics=_FOR_TIMERS if record.statistics.get(INPUT_FREE) else {},
            parameters={},
            versions={},
        )

    def _named_sinks(self, record: Record) -> dict[str, Prepared]:
        """Where the outputs went: all that a status tells of those before its head. Most records share one."""
        named = {
            uid: Prepared(sink.kind, sink.target, prev=None, payload=_shown_payload(sink))
            for uid, sink in record.sinks.items()
        }
        return self._sinks.setdefault(
            tuple((uid, sink.kind, sink.target, sink.name) for uid, sink in named.items()), named
        )

    def _note_whole(self, number: int, record: Record) -> None:
        # Slots arrive newest first, from several threads: the dictionary may be a few records larger for a moment.
        newest = sorted(self._whole_records)[-_TOP:]
        if len(newest) < _TOP or number >= newest[0]:
            self._whole_records[number] = _light(record)

    def _with_whole_records(self, log: Log) -> Log:
        """The log with the records that a status shows as they were written: the head, and the newest one that read something."""
        shown = {each.slot: each for each in (log.head, newest_that_read(log)) if each is not None}
        whole = {slot: record for slot, slim in shown.items() if (record := self._whole(slim)) is not None}
        self._whole_records = whole
        slots = {slot: replace(log.slots[slot], record=record) for slot, record in whole.items()}
        chain = tuple(whole.get(each.slot, each) for each in log.chain)
        return replace(log, slots={**log.slots, **slots}, chain=chain)

    def _whole(self, slim: Record) -> Record | None:
        """None when it was collected since; the next reading finds another one."""
        record = self._whole_records.get(slim.slot)
        if record is not None and (record.job, record.writer) == (slim.job, slim.writer):
            return record
        body = self.record(slim.slot)
        return None if body is None else body[0]

    def each(self, work: Callable[[T], U], items: Sequence[T]) -> Iterable[U]:
        """All of them; from a store that is far away, several at a time."""
        if len(items) <= _FEW or self.store.local_root is not None:
            return map(work, items)
        return together(work, items, self._fetchers)


def _is_other(one: object, two: object) -> bool:
    return one is not two


def _shown_payload(sink: Prepared) -> dict[str, str]:
    """What the pages show of it."""
    return {CATALOG_NAME: sink.name} if sink.name else {}


def _light(record: Record) -> Record:
    """The record without the bytes that travel inside it: the pages show names and sizes."""

    def lighter(ref: FileRef) -> FileRef:
        return ref if ref.data is None else msgspec.structs.replace(ref, data=None)

    light = with_references(record, lighter)
    sinks = {
        uid: msgspec.structs.replace(
            prepared, payload=_shown_payload(prepared), files=tuple(map(lighter, prepared.files))
        )
        for uid, prepared in record.sinks.items()
    }
    operators = {
        uid: msgspec.structs.replace(
            operator,
            operator_states={
                name: msgspec.structs.replace(state, parts=())
                for name, state in operator.operator_states.items()
            },
        )
        for uid, operator in light.operators.items()
    }
    return msgspec.structs.replace(light, operators=operators, sinks=sinks)


def together(work: Callable[[T], U], items: Iterable[T], threads: ReaderThreads) -> list[U]:
    """The results in the order of the items. The first failure is raised, and work that has not begun by then is left out."""
    failures: list[Exception] = []

    def one(item: T, future: Future[U]) -> None:
        try:
            if failures:
                raise failures[0]
            future.set_result(work(item))
        except Exception as error:
            failures.append(error)
            future.set_exception(error)

    futures: list[Future[U]] = []
    for item in items:
        futures.append(Future())
        threads.submit(partial(one, item, futures[-1]))
    return [future.result() for future in futures]
