"""One history line per record, with Flink's names where it has one, that outlives the record.

Lines of collected records are kept in segments of 256, so that months of history are a handful of objects.
Statistics decide nothing: a line lost to a crash in the wrong moment is a line missing on a page.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from stateflow.checkpoint.layout import JobLayout, origin_of
from stateflow.checkpoint.log import Log, Slot, read_log
from stateflow.checkpoint.records import Outcome, Record, decoder, total_size
from stateflow.checkpoint.retention import references
from stateflow.checkpoint.store import Store
from stateflow.errors import NotFoundError

SEGMENT = 256


class HistoryLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is told of one record; times (since 1970) and durations are milliseconds, as in Flink."""

    id: int
    """The slot."""
    kind: str
    status: str
    """IN_PROGRESS, COMPLETED, or ABANDONED when a sink was given up."""
    epoch: int = 0
    timeline: int = 1
    based_on: int | None = None
    """The record whose state it continues; 0 when that came from outside the job."""
    origin: str = ""
    """Of a restore: what it was restored from."""
    writer: str = ""
    run: str = ""
    dag_run: str = ""
    task: str = ""
    user: str = ""
    host: str = ""
    note: str = ""
    trigger_timestamp: int = 0
    latest_ack_timestamp: int = 0
    """When it was decided: every subtask had acknowledged."""
    end_to_end_duration: int = 0
    """From the trigger until every sink had it; 0 while in progress."""
    state_size: int = 0
    """Everything the record names: Flink's lastCheckpointFullSize."""
    checkpointed_size: int = 0
    """What the batch itself uploaded: Flink's lastCheckpointSize."""
    num_files: int = 0
    num_subtasks: int = 0
    processed_rows: int = 0
    emitted_rows: int = 0
    watermark: int | None = None
    sinks: dict[str, str] = {}
    metrics: dict[str, Any] = {}
    """Whatever else the run noted."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The gauges of a job, under Flink's names."""

    numberOfCompletedCheckpoints: int
    numberOfInProgressCheckpoints: int
    numberOfFailedCheckpoints: int
    """Abandoned ones: any other failed batch leaves no record."""
    lastCheckpointId: int | None = None
    lastCheckpointDuration: int | None = None
    lastCheckpointSize: int | None = None
    lastCheckpointFullSize: int | None = None
    lastCheckpointRestoreTimestamp: int | None = None


def history_line(record: Record, outcome: Outcome | None) -> HistoryLine:
    """The line of one record.

    Of the statistics of record and outcome, `trigger_timestamp` (milliseconds), `processed_rows`,
    `emitted_rows` and `checkpointed_size` have their own place; everything else is a metric.
    """
    noted = {**record.statistics, **(outcome.statistics if outcome else {})}
    decided = record.at // 1000
    trigger = int(noted.pop("trigger_timestamp", record.now // 1000 or decided))
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
        state_size=total_size(files.values()),
        checkpointed_size=int(noted.pop("checkpointed_size", sum(new))),
        num_files=len({(ref.base, ref.path) for ref in files.values() if ref.path}),
        num_subtasks=sum(len(operator.shards) for operator in record.operators.values()),
        processed_rows=int(noted.pop("processed_rows", 0)),
        emitted_rows=int(noted.pop("emitted_rows", sum(sink.rows for sink in record.sinks.values()))),
        watermark=record.watermark,
        sinks=dict(outcome.sinks) if outcome else {},
        metrics=noted,
    )


def history(store: Store, layout: JobLayout, *, log: Log | None = None) -> list[HistoryLine]:
    """Every record that ever stood, collected ones too, by slot."""
    lines: dict[int, HistoryLine] = {}
    for entry in store.list(layout.statistics):
        for line in _read(store, entry.path):
            lines[line.id] = line
    log = log or read_log(store, layout)
    for record in log.chain:
        slot = log.slots[record.slot]
        lines[record.slot] = history_line(record, slot.outcome if slot.complete else None)
    return [lines[slot] for slot in sorted(lines)]


def summary(lines: Iterable[HistoryLine]) -> Summary:
    """The gauges that the lines amount to."""
    lines = list(lines)
    checkpoints = [line for line in lines if line.kind == "checkpoint"]
    completed = [line for line in checkpoints if line.status != "IN_PROGRESS"]
    restores = [line for line in lines if line.kind == "restore" and line.status != "IN_PROGRESS"]
    last = completed[-1] if completed else None
    return Summary(
        numberOfCompletedCheckpoints=sum(line.status == "COMPLETED" for line in completed),
        numberOfInProgressCheckpoints=len(checkpoints) - len(completed),
        numberOfFailedCheckpoints=sum(line.status == "ABANDONED" for line in completed),
        lastCheckpointId=last.id if last else None,
        lastCheckpointDuration=last.end_to_end_duration if last else None,
        lastCheckpointSize=last.checkpointed_size if last else None,
        lastCheckpointFullSize=last.state_size if last else None,
        lastCheckpointRestoreTimestamp=restores[-1].latest_ack_timestamp if restores else None,
    )


def keep_history(store: Store, layout: JobLayout, log: Log, going: Iterable[int], *, epoch: int) -> None:
    """Writes the lines of records that are about to be deleted.

    A segment belongs to an epoch, so that a run and a collector beside it never overwrite each other's lines.
    A new epoch takes over the unfilled segments of those before it.
    """
    slots: list[Slot] = [log.slots[number] for number in going if number in log.slots]
    new = [history_line(s.record, s.outcome) for s in slots if s.record is not None and s.complete]
    if not new:
        return
    segments = [(path, _read(store, path)) for path in sorted(e.path for e in store.list(layout.statistics))]
    mine = [path for path, _ in segments if _epoch_of_segment(path) == epoch]
    open_ones = [(p, ls) for p, ls in segments if len(ls) < SEGMENT and _epoch_of_segment(p) <= epoch]
    lines = {line.id: line for _, held in open_ones for line in held}
    lines.update({line.id: line for line in new})
    ordered = [lines[slot] for slot in sorted(lines)]
    written = set()
    for at in range(0, len(ordered), SEGMENT):
        part = ordered[at : at + SEGMENT]
        path = layout.statistics_segment(epoch, part[0].id)
        if path in mine and path not in {p for p, _ in open_ones}:
            # A full segment begins with this very slot: a crash came between writing it and deleting the
            # record.
            part = list({**{x.id: x for x in _read(store, path)}, **{x.id: x for x in part}}.values())
        store.put(path, b"".join(msgspec.json.encode(line) + b"\n" for line in part))
        written.add(path)
    store.delete([path for path, _ in open_ones if path not in written])


def _epoch_of_segment(path: str) -> int:
    digits = path.rpartition("/")[2].partition("-")[0].removeprefix("e")
    return int(digits) if digits.isdigit() else 0


def _read(store: Store, path: str) -> list[HistoryLine]:
    try:
        text = store.read(path)
    except NotFoundError:
        return []  # taken over by a newer epoch since it was listed
    found = []
    for line in text.splitlines():
        try:
            found.append(decoder(HistoryLine).decode(line))
        except (msgspec.DecodeError, msgspec.ValidationError):
            continue  # a damaged line costs a row on a page, nothing else
    return found
