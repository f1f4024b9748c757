"""The history of a job: one line per record, which outlives the record. Names are Flink's where Flink has one.

Lines of collected records go into segments of up to 256, so that months of history are a handful of objects. A segment never
changes: a collector deletes one that is not full only after it has copied its lines into another. So no line is lost when
two collectors run at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import xxhash

from stateflow.checkpoint.log import LISTINGS, Log, SlotContent, read_log
from stateflow.errors import NotFoundError
from stateflow.format.instants import END_OF_TIME
from stateflow.format.layout import JobLayout, first_slot_of, origin_of, segment_of
from stateflow.format.records import MOST, Count, Micros, Outcome, Record, decoder, total_size
from stateflow.format.references import references
from stateflow.storage.store import Entry, Store

SEGMENT = 256
CONTINUED_SLOT = "continued_slot"
"""Among the statistics of a restore from a savepoint of the job itself: the slot whose state that has."""
CONTINUED_JOB = "continued_job"
"""Among the statistics of a restore that begins a job: the id of the job whose snapshot it is of."""
POSITIONS = "positions"
"""Among the statistics of a checkpoint that puts sources somewhere and reads nothing: which."""
UNDONE_BY = "undone_by"
"""Among those of such a checkpoint whose sources go on behind what their tables have undone: by source, the version that undid it."""
FAILED_TRIES = "failed_tries"
"""Among those of a checkpoint: how many tries of its batch failed."""
INPUT_FREE = "input_free"
"""Among those of a checkpoint: whether its batch had timers alone."""
READ_OF_LINES = (CONTINUED_SLOT, FAILED_TRIES)
"""The metrics of a line that the functions below read: whoever keeps a line without the others gets the same answers."""
LONGEST_UID = 255
"""Most characters of a source's uid that are taken from a batch's note; a run may have noted anything."""
_LONGEST_PARTITION = 260
"""A topic has a name of up to 249 letters, a partition a number of up to ten digits."""
Millis = Annotated[int, msgspec.Meta(ge=0, le=END_OF_TIME // 1000)]


class HistoryLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One record in the history. Times (since 1970) and durations are milliseconds, as in Flink."""

    id: Count
    """The slot."""
    kind: str
    status: str
    """IN_PROGRESS, COMPLETED, or ABANDONED when a sink was given up."""
    epoch: Count = 0
    timeline: Count = 1
    based_on: Count | None = None
    """The record whose state it continues; 0 when its state came from outside the job."""
    origin: str = ""
    """For a restore: where the state came from."""
    writer: str = ""
    run: str = ""
    dag_run: str = ""
    task: str = ""
    user: str = ""
    host: str = ""
    note: str = ""
    trigger_timestamp: Millis = 0
    latest_ack_timestamp: Millis = 0
    """When it was decided: every subtask had acknowledged."""
    end_to_end_duration: Count = 0
    """From the trigger until every sink had the output; 0 while in progress."""
    state_size: Count = 0
    """Everything the record names: Flink's lastCheckpointFullSize."""
    checkpointed_size: Count = 0
    """What the batch itself uploaded: Flink's lastCheckpointSize."""
    num_files: Count = 0
    num_subtasks: Count = 0
    processed_rows: Count = 0
    emitted_rows: Count = 0
    watermark: Micros | None = None
    sinks: dict[str, str] = {}
    metrics: dict[str, Any] = {}
    """All other statistics of the run."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The gauges of a job, under Flink's names."""

    numberOfCompletedCheckpoints: int
    numberOfInProgressCheckpoints: int
    numberOfFailedCheckpoints: int
    """Batches that failed and were tried again, and abandoned checkpoints. What ended its run leaves no record: that run's
    outcome says so."""
    lastCheckpointId: int | None = None
    lastCheckpointDuration: int | None = None
    lastCheckpointSize: int | None = None
    lastCheckpointFullSize: int | None = None
    lastCheckpointRestoreTimestamp: int | None = None


def history_line(record: Record, outcome: Outcome | None) -> HistoryLine:
    """The line of one record.

    The statistics `trigger_timestamp` (milliseconds), `processed_rows`, `emitted_rows` and `checkpointed_size` of the
    record and the outcome have fields of their own. All others become metrics.
    """
    statistics = {**record.statistics, **(outcome.statistics if outcome else {})}
    decided = max(0, record.at // 1000)
    trigger = min(
        END_OF_TIME // 1000, _number(statistics, "trigger_timestamp", record.now // 1000 or decided)
    )
    files = {ref.place: ref for ref in references(record)}
    new = [
        ref.size
        for ref in files.values()
        if not ref.base and (not ref.path or origin_of(ref.path) == (record.epoch, record.slot))
    ]
    abandoned = outcome is not None and "abandoned" in outcome.sinks.values()
    return HistoryLine(
        id=record.slot,
        kind=record.kind,
        status="ABANDONED" if abandoned else "COMPLETED" if outcome else "IN_PROGRESS",
        epoch=record.epoch,
        timeline=record.timeline,
        based_on=record.based_on,
        origin=record.origin,
        writer=record.writer,
        run=record.owner.run,
        dag_run=record.owner.dag_run,
        task=record.owner.task,
        user=record.owner.user,
        host=record.owner.host,
        note=record.owner.note,
        trigger_timestamp=trigger,
        latest_ack_timestamp=decided,
        end_to_end_duration=max(0, outcome.at // 1000 - trigger) if outcome else 0,
        state_size=min(MOST, total_size(files.values())),
        checkpointed_size=_number(statistics, "checkpointed_size", sum(new)),
        num_files=len({(ref.base, ref.path) for ref in files.values() if ref.path}),
        num_subtasks=sum(len(operator.shards) for operator in record.operators.values()),
        processed_rows=_number(statistics, "processed_rows", 0),
        emitted_rows=_number(statistics, "emitted_rows", sum(sink.rows for sink in record.sinks.values())),
        watermark=record.watermark,
        sinks=dict(outcome.sinks) if outcome else {},
        metrics=statistics,
    )


def held(noted: Mapping[str, Any]) -> dict[str, Any]:
    """The source that held the watermark back after a batch, or the partition of it, and when that last had rows, from what the batch
    noted; empty if nothing did."""
    source, since = noted.get("watermark_held_by"), noted.get("watermark_held_since")
    if not isinstance(source, str) or not isinstance(since, int):
        return {}
    if len(source) > LONGEST_UID or not 0 <= since <= MOST:
        return {}
    partition = noted.get("watermark_held_partition")
    if not isinstance(partition, str) or not 0 < len(partition) <= _LONGEST_PARTITION:
        return {"source": source, "since": since}
    return {"source": source, "since": since, "partition": partition}


def _number(statistics: dict[str, Any], name: str, default: int) -> int:
    """A number taken out of the statistics, where a run may have written anything."""
    value = statistics.pop(name, default)
    return int(value) if isinstance(value, int | float) and 0 <= value <= MOST else min(default, MOST)


def history(store: Store, layout: JobLayout, *, log: Log | None = None) -> list[HistoryLine]:
    """A line for every record that ever was in the chain, also for collected ones, by slot."""
    # The log is read first: a record that is collected afterwards has its line in a segment by then.
    log = log or read_log(store, layout)
    return merged(read_segments(store, layout), standing_lines(log))


def standing_lines(log: Log) -> list[HistoryLine]:
    """The lines of the records that are still there. It reads no line of a collected record."""
    slots = [log.slots[record.slot] for record in log.chain]
    return [history_line(s.record, s.outcome if s.complete else None) for s in slots if s.record is not None]


def merged(segments: Iterable[Segment], standing: Iterable[HistoryLine]) -> list[HistoryLine]:
    """All lines, ascending by slot. For a record that is still there, its own line replaces the segment's."""
    lines = {line.id: line for segment in segments for line in segment.lines}
    lines.update({line.id: line for line in standing})
    return [lines[slot] for slot in sorted(lines)]


def taken_back(lines: Sequence[HistoryLine]) -> tuple[range, ...]:
    """The slots that the job's state does not continue, because restores went back behind them; as far as the history tells."""
    by_slot = {line.id: line for line in lines}
    ranges: list[range] = []
    line = lines[-1] if lines else None
    # A damaged line that names a later slot would lead in a circle.
    while line is not None and (base := continued(line)) and base < line.id:
        ranges.append(range(base + 1, line.id))
        line = by_slot.get(base)
    return tuple(each for each in ranges if each)


def continued_job(record: Record | None) -> str:
    """The id of the job with whose snapshot the record began this one; empty for every other record."""
    return str(record.statistics.get(CONTINUED_JOB, "")) if record is not None else ""


def continued(line: HistoryLine) -> int:
    """The slot of the job's own whose state a record continues; 0 for none."""
    noted = line.metrics.get(CONTINUED_SLOT) if line.kind == "restore" else None
    return line.based_on or (noted if isinstance(noted, int) else 0)


def summary(lines: Iterable[HistoryLine]) -> Summary:
    """The gauges, computed from the lines."""
    lines = list(lines)
    checkpoints = [line for line in lines if line.kind == "checkpoint"]
    completed = [line for line in checkpoints if line.status != "IN_PROGRESS"]
    restores = [line for line in lines if line.kind == "restore" and line.status != "IN_PROGRESS"]
    last = completed[-1] if completed else None
    return Summary(
        numberOfCompletedCheckpoints=sum(line.status == "COMPLETED" for line in completed),
        numberOfInProgressCheckpoints=len(checkpoints) - len(completed),
        numberOfFailedCheckpoints=sum(_failed(line) for line in checkpoints),
        lastCheckpointId=last.id if last else None,
        lastCheckpointDuration=last.end_to_end_duration if last else None,
        lastCheckpointSize=last.checkpointed_size if last else None,
        lastCheckpointFullSize=last.state_size if last else None,
        lastCheckpointRestoreTimestamp=restores[-1].latest_ack_timestamp if restores else None,
    )


def _failed(line: HistoryLine) -> int:
    tries = line.metrics.get(FAILED_TRIES, 0)
    return (line.status == "ABANDONED") + (min(tries, MOST) if isinstance(tries, int) and tries > 0 else 0)


def keep_history(store: Store, layout: JobLayout, log: Log, removals: Iterable[int]) -> None:
    """Writes the lines of records that are about to be deleted, together with those of unfilled segments."""
    slots: list[SlotContent] = [log.slots[number] for number in removals if number in log.slots]
    new = [history_line(s.record, s.outcome) for s in slots if s.record is not None and s.complete]
    if not new:
        return
    # A damaged segment stays as it is: the operator may put it back from a copy of the store.
    unfilled = [
        segment
        for segment in read_segments(store, layout, choose=_maybe_unfilled)
        if segment.sound and len(segment.lines) < SEGMENT
    ]
    lines = {line.id: line for segment in unfilled for line in segment.lines}
    lines.update({line.id: line for line in new})
    ordered = [lines[slot] for slot in sorted(lines)]
    paths = set()
    for at in range(0, len(ordered), SEGMENT):
        part = ordered[at : at + SEGMENT]
        body = b"".join(msgspec.json.encode(line) + b"\n" for line in part)
        path = layout.statistics_segment(part[0].id, len(part), xxhash.xxh3_64_hexdigest(body))
        store.put(path, body)
        paths.add(path)
    store.delete([segment.path for segment in unfilled if segment.path not in paths])


def damaged_segments(store: Store, layout: JobLayout) -> list[str]:
    """Paths of the segments whose content does not match their name."""
    return [segment.path for segment in read_segments(store, layout) if not segment.sound]


@dataclass(frozen=True, slots=True)
class Segment:
    """One object of the history: lines of collected records."""

    path: str
    lines: tuple[HistoryLine, ...]
    sound: bool
    """Whether its content matches its name."""


SegmentCache = MutableMapping[tuple[str, int], Segment]
"""Segments by path and size. Reading drops those that it did not choose."""


def read_segments(
    store: Store,
    layout: JobLayout,
    *,
    choose: Callable[[Sequence[Entry]], Sequence[Entry]] = lambda entries: entries,
    cache: SegmentCache | None = None,
    slim: Callable[[HistoryLine], HistoryLine] = lambda line: line,
) -> list[Segment]:
    """The history's segments, ascending by slot. It reads those that `choose` selects.

    It lists again when a collector has moved the lines of a listed segment to another one.
    """
    segments: SegmentCache = {} if cache is None else cache
    for _ in range(LISTINGS):
        listed = sorted(store.list(layout.statistics), key=lambda entry: first_slot_of(entry.path))
        chosen = [(entry.path, entry.size) for entry in choose(listed)]
        for key in chosen:
            if key not in segments and (segment := _read(store, key[0], slim)) is not None:
                segments[key] = segment
        for key in segments.keys() - set(chosen):
            del segments[key]
        if len(segments) == len(chosen):
            break
    return [segments[key] for key in chosen if key in segments]


def _maybe_unfilled(entries: Sequence[Entry]) -> list[Entry]:
    return [e for e in entries if (named := segment_of(e.path)) is None or named[0] < SEGMENT]


def _read(store: Store, path: str, slim: Callable[[HistoryLine], HistoryLine]) -> Segment | None:
    """None when a collector has moved its lines to another segment since the listing."""
    try:
        body = store.read(path)
    except NotFoundError:
        return None
    named = segment_of(path)
    sound = named is None or named[1] == xxhash.xxh3_64_hexdigest(body)
    lines = []
    for line in body.splitlines():
        try:
            lines.append(slim(decoder(HistoryLine).decode(line)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            sound = False  # a damaged line costs a row on a page
    return Segment(path, tuple(lines), sound)
