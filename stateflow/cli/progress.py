"""What a finished micro-batch looks like: a line for people, an object for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stateflow.cli.output import Heading, Piece, TextTable
from stateflow.cli.text import amount, harmless, moment, number, seconds, several, size
from stateflow.masking import all_masked

if TYPE_CHECKING:
    from stateflow.jobs.fresh import SinkTable
    from stateflow.pipelines.lost_rows import LostRows
    from stateflow.spark.loop import BatchReport
    from stateflow.spark.runner import RunReport


WIDTH = 100
"""Columns of a batch's line."""
BACKFILL_MS = 24 * 3600 * 1000
"""Input whose newest event is older than this is a backfill."""


def batch_document(report: BatchReport, job: str) -> dict[str, Any]:
    """One batch. Durations are milliseconds, times microseconds since 1970, sizes bytes."""
    record, noted = report.record, report.statistics
    metrics, operators = noted.get("metrics", {}), noted.get("operators", {})
    counters: dict[str, int] = {}
    for operator in operators.values():
        for name, count in operator.get("counters", {}).items():
            counters[name] = counters.get(name, 0) + count
    times = [s.event_time for s in record.sources.values() if s.event_time is not None]
    return {
        "event": "checkpoint",
        "job": job,
        "id": report.slot,
        "epoch": record.epoch,
        "input_free": report.input_free,
        "processed_rows": report.rows,
        "emitted_rows": sum(p.rows for p in record.sinks.values()),
        "sinks": {uid: p.rows for uid, p in record.sinks.items()},
        "rows_per_second": round(report.rows / report.duration, 1) if report.duration > 0 else 0.0,
        "keys": sum(int(o.get("keys", 0)) for o in operators.values()),
        "dead_letters": sum(int(o.get("dead_letters", 0)) for o in operators.values()),
        "state_size": record.state_size,
        "uploaded_bytes": int(metrics.get("uploaded_bytes", 0)),
        "compacted_bytes": int(metrics.get("compacted_bytes", 0)),
        "inlined_bytes": int(metrics.get("inlined_bytes", 0)),
        "end_to_end_duration": round(report.duration * 1000),
        "sync_duration": int(noted.get("evaluate_ms", 0)),
        "upload_duration": round(metrics.get("upload_s", 0.0) * 1000),
        "decide_duration": int(noted.get("decide_ms", 0)),
        "commit_duration": int(noted.get("commit_ms", 0)),
        "cache_hits": int(metrics.get("cache_hits", 0)),
        "cache_misses": int(metrics.get("cache_misses", 0)),
        "fetched_bytes": int(metrics.get("fetched_bytes", 0)),
        "watermark": record.watermark,
        "event_time": max(times) if times else None,
        "event_time_lag": max(0, record.now - max(times)) // 1000 if times else None,
        "counters": counters,
    } | {
        name: found
        for name, found in (
            ("batch_size", noted.get("batch_size", {}).get("streams")),
            ("waited", noted.get("waited")),
        )
        if found
    }


def batch_line(body: dict[str, Any]) -> str:
    """The figures that people look for, in `WIDTH` columns."""
    checkpoint, rows, rate = _begun(body)
    taken, state = seconds(body["end_to_end_duration"] / 1000), f"state {size(body['state_size'])}"
    rest = [*_event_time(body), *_dead_letters(body), *_late_rows(body)]
    for parts in ([rate, taken, state], [taken, state], [taken]):
        line = "  ".join([checkpoint, rows, *parts, *rest])
        if len(line) <= WIDTH:
            break
    return "  ".join(filter(None, (line, _sinks(body["sinks"], WIDTH - len(line) - 2))))


def full_line(body: dict[str, Any]) -> str:
    """All of it, on one line."""
    # What travels inside the record is new, too; compaction writes anew what was there before.
    new = body["uploaded_bytes"] + body["inlined_bytes"]
    compacted = min(new, body["compacted_bytes"])
    written = (
        f"{size(new - compacted)} flushed, {size(compacted)} compacted, {size(body['inlined_bytes'])} inline"
    )
    named = (("evaluate", "sync_duration"), ("upload", "upload_duration"), ("commit", "commit_duration"))
    phases = ", ".join(f"{name} {seconds(body[field] / 1000)}" for name, field in named)
    parts = [
        *_begun(body),
        several(body["keys"], "key"),
        f"state {size(body['state_size'])}",
        f"new {size(new)} ({written})",
        f"{seconds(body['end_to_end_duration'] / 1000)} ({phases})",
    ]
    if body["cache_hits"] or body["cache_misses"]:
        parts.append(f"cache {body['cache_hits']}/{body['cache_hits'] + body['cache_misses']}")
    if body["watermark"] is not None:
        parts.append(f"watermark {moment(body['watermark'])}")
    if body["event_time_lag"] is not None and not _is_backfill(body):
        parts.append(f"lag {seconds(body['event_time_lag'] / 1000)}")
    parts += [f"at most {_of_stream(each)}" for each in body.get("batch_size", ())]
    parts += [f"{uid} waits for {other}" for uid, other in body.get("waited", {}).items()]
    parts += _dead_letters(body)
    parts += [f"{name} {number(count)}" for name, count in body["counters"].items()]
    parts += filter(None, [_sinks(body["sinks"])])
    return "  ".join(parts)


def _begun(body: dict[str, Any]) -> tuple[str, str, str]:
    rows = "timers" if body["input_free"] else several(body["processed_rows"], "row")
    return f"chk {body['id']}", rows, f"{number(body['rows_per_second'])}/s"


def _is_backfill(body: dict[str, Any]) -> bool:
    """Whether the batch reads what happened long ago. Then the time from there to now tells nothing about the run."""
    lag = body["event_time_lag"]
    return lag is not None and lag >= BACKFILL_MS


def _event_time(body: dict[str, Any]) -> list[str]:
    watermark = body["watermark"]
    if watermark is None:
        return []
    text = moment(watermark)
    is_date = text[:1].isdigit()  # not of a drained job, whose watermark is the end of time
    if is_date and _is_backfill(body):
        return [f"backfill at {text[:10]}"]
    # While the run is at the newest events, everybody knows the day.
    known = is_date and body["event_time_lag"] is not None
    return [f"watermark {text[11:] if known else text}"]


def _of_stream(chosen: Mapping[str, Any]) -> str:
    """What a batch of the right size might take of a stream."""
    return f"{amount(chosen['most'], chosen['unit'])} of {chosen['source']}"


def _dead_letters(body: dict[str, Any]) -> list[str]:
    return [f"{number(body['dead_letters'])} dead letters"] if body["dead_letters"] else []


def _late_rows(body: dict[str, Any]) -> list[str]:
    """The rows that were late for operators, which count them."""
    # They load Arrow, and a command that only looks must not.
    from stateflow.pipelines.ready.operators import LATE_ROWS, PARTLY_LATE_ROWS

    counts = (
        (name, body["counters"].get(of, 0))
        for name, of in (("late", LATE_ROWS), ("partly late", PARTLY_LATE_ROWS))
    )
    return [f"{number(count)} {name}" for name, count in counts if count]


def _sinks(rows: Mapping[str, int], room: int | None = None) -> str:
    """The rows that each sink has got, as far as there is room."""
    named = [f"{uid} {number(count)}" for uid, count in rows.items()]
    texts = ["to " + ", ".join(named)] if named else []
    if len(named) > 1:
        texts.append(f"to {len(named)} sinks {number(sum(rows.values()))}")
    return next((text for text in texts if room is None or len(text) <= room), "")


def taken_document(job: str, parameters: Mapping[str, str]) -> dict[str, Any]:
    """The parameters that a run takes from the job's last record because nobody gave them, with secrets masked."""
    return {"event": "parameters", "job": job, "taken_over": all_masked(dict(sorted(parameters.items())))}


def taken_line(body: dict[str, Any]) -> str:
    pairs = (f"{name}={harmless(value)}" for name, value in body["taken_over"].items())
    parameters = ", ".join(pairs).replace("\n", "\\n")
    return f"{body['job']}: takes over from its last record {parameters}"


def run_document(report: RunReport) -> dict[str, Any]:
    return {
        "event": "summary",
        "job": report.job,
        "epoch": report.epoch,
        "batches": report.batches,
        "processed_rows": report.rows,
        "lastCheckpointId": report.checkpoint,
        "stopped": report.stopped,
        "watermarkHeld": _held(report),
        "lateRowsUnread": {lost.operator: lost.rows for lost in report.lost},
        "warnings": list(report.warnings),
    }


def _held(report: RunReport) -> dict[str, Any] | None:
    if report.held is None:
        return None
    body: dict[str, Any] = {"source": report.held.source, "since": report.held.since}
    return {**body, "partition": report.held.partition} if report.held.partition else body


def table_document(table: SinkTable) -> dict[str, Any]:
    return {
        "event": "table",
        "sink": table.sink,
        "rows": table.rows,
        "count": table.count,
        "ofFunction": table.of_function,
    }


def table_pieces(table: SinkTable) -> tuple[Piece, ...]:
    """What a sink of a fresh run was given, for people."""
    instead = ", which its function was not called with" if table.of_function else ""
    title = Heading(f"{table.sink}: {several(table.count, 'row')}{instead}")
    if not table.rows:
        return (title,)
    numbers = [
        name
        for name in table.columns
        if all(isinstance(row[name], int | float) for row in table.rows if row[name] is not None)
    ]
    shown = TextTable(
        table.columns, [[_cell(row[name]) for name in table.columns] for row in table.rows], right=numbers
    )
    more = table.count - len(table.rows)
    return (title, shown, *((f"and {several(more, 'row')} more",) if more else ()))


def _cell(value: Any) -> object:
    return "null" if value is None else value


def run_line(report: RunReport) -> str:
    at = f"at checkpoint {report.checkpoint}" if report.checkpoint is not None else "without a checkpoint"
    return (
        f"{report.job}: {report.stopped} {at} after {several(report.batches, 'batch', 'batches')} "
        f"and {several(report.rows, 'row')}{_holder(report)}{_lost(report)}"
        + "".join(f"\nwarning: {sentence}" for sentence in report.warnings)
    )


def _holder(report: RunReport) -> str:
    if report.held is None:
        return ""
    source, since, partition = report.held
    if partition:
        return f"; partition {partition} of source {source} holds the watermark back, whose last rows came at {moment(since)}"
    return f"; source {source} holds the watermark back, without rows since {moment(since)}"


def _lost(report: RunReport) -> str:
    if not report.lost:
        return ""
    count = sum(lost.rows for lost in report.lost)
    return f"; {several(count, 'late row')} went nowhere: read {', '.join(map(_unread, report.lost))}"


def _unread(lost: LostRows) -> str:
    sides = [f'.side("{side}")' for side in lost.sides]
    return f"{' or '.join(sides)} of {lost.operator}"
