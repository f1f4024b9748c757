"""`stateflow jobs`, `show` and `checkpoints`: what there is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import structs

from stateflow.cli.options import Invocation, JobName, command, flag, job_of, root_of
from stateflow.cli.output import Facts, Heading, Piece, TextTable
from stateflow.cli.text import amount, moment, number, seconds, several, size
from stateflow.errors import StateflowError, UsageError
from stateflow.masking import all_masked
from stateflow.quantities import age_text

if TYPE_CHECKING:
    from stateflow.checkpoint.statistics import HistoryLine
    from stateflow.config.options import Options
    from stateflow.format.records import Record
    from stateflow.observe.health import Health
    from stateflow.observe.status import JobStatus
    from stateflow.spark.sinks.sink_versions import DeliveredSlot

GRAPH_ROWS = 40
MISSED_BEATS = 2
"""A live run may be late by so many heartbeats."""
_BRIEF = ("name", "status", "epoch", "head", "pending", "timeline", "state_size", "watermark")


@command
def jobs(call: Invocation) -> None:
    """The jobs of a checkpoint root."""
    from stateflow.jobs.job import jobs as list_jobs
    from stateflow.observe.health import health_of
    from stateflow.storage.roots import open_store
    from stateflow.storage.transfer import at_distance

    options = call.options()
    place = root_of(options)

    def look(name: str) -> tuple[dict[str, Any], str]:
        """What there is to say of a job, and what ails it."""
        try:
            job = job_of(options, name)
            status = job.status()
        except StateflowError as error:
            # One damaged job must not hide the others.
            return {"name": name, "status": "UNREADABLE", "error": str(error)}, ""
        whole, health = asdict(_readable(status)), health_of(status, job.clock(), None)
        judged = {"health": health.state, "reason": health.reason}
        row = {**{field: whole[field] for field in _BRIEF}, **judged, **status.checkpoints}
        return row, "" if health.well else health.reason

    names = list_jobs(place, storage_options=options.storage_options)
    looked = at_distance(open_store(place, options.storage_options), look, names)
    found, unwell = [row for row, _ in looked], [reason for _, reason in looked if reason]
    rows = [
        (
            job["name"],
            job["status"],
            job.get("health"),
            job.get("head"),
            ", ".join(map(str, job.get("pending", ()))),
            job.get("numberOfCompletedCheckpoints"),
            size(job["state_size"]) if "state_size" in job else job.get("error"),
            job.get("epoch"),
        )
        for job in found
    ]
    columns = ("job", "status", "health", "checkpoint", "pending", "completed", "state", "epoch")
    numbers = ("checkpoint", "completed", "state", "epoch")
    call.output.answer({"root": place, "jobs": found}, TextTable(columns, rows, right=numbers), *unwell)


@command
def show(
    call: Invocation,
    job: JobName,
    schemas: Annotated[
        bool,
        flag(
            "--schemas", help="Every type of each state of which values may still be stored, and since when."
        ),
    ] = False,
    sizes: Annotated[
        bool,
        flag("--bytes", help="Live and expired bytes of each state, counted: it reads the whole state."),
    ] = False,
    as_of: Annotated[
        str,
        flag(
            "--as-of-slot",
            metavar="N|tag:NAME|TIME|latest",
            help="Which versions of the outputs belong together: what every sink had at this checkpoint.",
        ),
    ] = "",
) -> None:
    """One job: its newest checkpoint, operators, sources, sinks, and its history as a graph of timelines."""
    from stateflow.observe.health import health_of
    from stateflow.observe.timelines import audit

    if schemas + sizes + bool(as_of) > 1:
        raise UsageError("--schemas, --bytes and --as-of-slot each print something else: give one of them")
    options = call.options()
    if as_of:
        _show_versions(call, job, job_of(options, job).versions(as_of))
        return
    if sizes:
        _show_sizes(call, job, options)
        return
    found = job_of(options, job)
    if schemas:
        _show_schemas(call, job, found.log().head)
        return
    status, lines = _readable(found.status()), found.history()
    life = _sign_of_life(status, found.clock(), options.heartbeat_interval)
    acts = [structs.asdict(line) for line in audit(lines)]
    health = health_of(status, found.clock(), None)
    judged = {"health": health.state, "reason": health.reason}
    call.output.answer(
        {**asdict(status), **judged, "audit": acts, "history": list(map(_branch, lines))},
        *_shown(status, life, health),
        *_history(status, lines, {record.slot for record in found.log().chain}),
    )


def _readable(status: JobStatus) -> JobStatus:
    """The same without the values of secrets."""
    return replace(status, parameters=all_masked(status.parameters))


def _show_schemas(call: Invocation, job: str, head: Record | None) -> None:
    from stateflow.observe.schemas import stored_schemas

    rows = stored_schemas(head)
    call.output.answer(
        {"job": job, "checkpoint": head.slot if head else None, "schemas": [row.document() for row in rows]},
        TextTable(
            ("operator", "state", "schema", "introduced by", "type", "converted by"),
            [
                (
                    r.operator,
                    r.state,
                    f"{r.number}{' (today)' if r.today else ''}",
                    r.slot or "its first record",
                    r.type,
                    r.by,
                )
                for r in rows
            ],
        ),
    )


def _show_versions(call: Invocation, job: str, found: DeliveredSlot) -> None:
    sinks = found.sinks.values()
    read = [
        f'spark.read.format("delta").option("versionAsOf", {sink.version}).load({json.dumps(sink.target, ensure_ascii=False)})'
        for sink in sinks
        if sink.version is not None
    ]
    undone = [
        f"{sink.sink} has slot {slot} still, which a restore has undone"
        for sink in sinks
        for slot in sink.undone
    ]
    apart = ", ".join(dict.fromkeys(sink.sink for sink in sinks if sink.undone))
    together = f"these belong together, but for {apart}" if apart else "these belong together"
    lacking = [f"{sink.sink} lacks slot {slot}, which was abandoned" for sink in sinks for slot in sink.lacks]
    call.output.answer(
        {"job": job, "checkpoint": found.slot, "at": found.at, "sinks": [asdict(sink) for sink in sinks]},
        TextTable(
            ("sink", "target", "slot", "version", "no version because"),
            [(sink.sink, sink.target, sink.slot, sink.version, sink.why) for sink in sinks],
            right=("slot", "version"),
        ),
        *(["", *dict.fromkeys(read)] if read else ()),
        *lacking,
        *undone,
        note=f"checkpoint {found.slot} of {moment(found.at or None)}: {together}",
    )


def _show_sizes(call: Invocation, job: str, options: Options) -> None:
    """Live and expired bytes, counted entry by entry."""
    from stateflow.jobs.counting import newest_sizes

    slot, found = newest_sizes(call.job(job), options)
    columns = ("operator", "state", "entries", "live", "expired", "index")
    rows = [
        (s.operator, s.state, number(s.entries), *map(size, (s.live_bytes, s.expired_bytes, s.index_bytes)))
        for s in found
    ]
    call.output.answer(
        {"job": job, "checkpoint": slot, "states": [asdict(state) for state in found]},
        TextTable(columns, rows, right=columns[2:]),
        note=f"checkpoint {slot}; sizes before compression",
    )


def _branch(line: HistoryLine) -> dict[str, Any]:
    names = ("id", "kind", "status", "timeline", "based_on", "origin")
    return {name: getattr(line, name) for name in names}


def _history(status: JobStatus, lines: list[HistoryLine], kept: set[int]) -> Iterator[Piece]:
    from stateflow.observe.timelines import audit, graph

    rows = graph(lines, status.tags, status.head, kept)
    if not rows:
        return
    yield Heading("history")
    yield from rows[:GRAPH_ROWS]
    if len(rows) > GRAPH_ROWS:
        yield f"... and {len(rows) - GRAPH_ROWS} older rows; -o json has them all"
    acts = [
        (
            a.id,
            a.kind,
            moment(a.latest_ack_timestamp * 1000),
            f"{a.user}@{a.host}".strip("@"),
            a.origin,
            a.note,
        )
        for a in audit(lines)
    ]
    if acts:
        yield ""
        yield TextTable(("record", "act", "at", "by", "from", "note"), acts, right=("record",))


def _holder(held: dict[str, Any]) -> str:
    if not held:
        return ""
    if partition := held.get("partition"):
        return f", held back by partition {partition} of source {held['source']}, whose last rows came at {moment(held['since'])}"
    return f", held back by source {held['source']}, without rows since {moment(held['since'])}"


def _of_batch(status: JobStatus) -> Iterator[tuple[str, str]]:
    """What made the newest batch as large and as slow as it was, if anything did."""
    if status.batch_size:
        yield "batch size", _batch_size(status.batch_size)
    if status.waited:
        yield "waits", ", ".join(f"{uid} for {other}" for uid, other in status.waited.items())
    for operator in status.operators:
        if hot := operator.hot_key:
            where = f"in subtask {hot['subtask']} of {operator.parallelism}; the run's log names it"
            yield (
                "hot key",
                f"operator {operator.uid}: one key has about {hot['share']:.0%} of the newest batch's rows, {where}",
            )


def _batch_size(chosen: Mapping[str, Any]) -> str:
    """Of a run with a target: how long its newest batch took, and what it might take of each source."""
    took = "?" if chosen["duration_ms"] is None else seconds(chosen["duration_ms"] / 1000)
    target = seconds(chosen["target_ms"] / 1000)
    most = ", ".join(_stream(stream) for stream in chosen["streams"])
    return f"{several(chosen['rows'], 'row')} took {took} of {target}" + (f"; at most {most}" if most else "")


def _stream(chosen: Mapping[str, Any]) -> str:
    taken = f" (took {amount(chosen['took'], chosen['unit'])})" if chosen["took"] is not None else ""
    return f"{amount(chosen['most'], chosen['unit'])} of {chosen['source']}{taken}"


def _sign_of_life(status: JobStatus, now: int, interval: timedelta) -> str:
    """Describes the run, as far as it is known. A run that was killed a moment ago has left no word."""
    if status.heartbeat_at is None or status.status not in ("RUNNING", "LOST"):
        return status.status
    silence = now - status.heartbeat_at
    known = f"no heartbeat since {moment(status.heartbeat_at)}, {age_text(silence)} ago"
    if status.status == "LOST":
        return f"LOST, {known}"
    return known if timedelta(microseconds=silence) > MISSED_BEATS * interval else status.status


def _about(estimate: int | None) -> str | None:
    return None if estimate is None else f"~{size(estimate)}"


def _ttls(status: JobStatus) -> Iterator[Piece]:
    lives = [
        (o.uid, name, text, _about(o.live_bytes.get(name)), _about(o.expired_bytes.get(name)))
        for o in status.operators
        for name, text in o.ttl.items()
    ]
    if lives:
        columns = ("operator", "state", "lives until", "live", "expired")
        yield ""
        yield TextTable(columns, lives, right=columns[3:])
        expired = sum(o.expired for o in status.operators)
        rest = ", and more wait for the next batches" if any(o.expiring for o in status.operators) else ""
        yield f"{number(expired)} expired entries left with the newest batch{rest}"


def _place(owner: Mapping[str, Any]) -> str:
    warm = f", on its warm host {owner['warm_host']}" if owner.get("warm_host") else ""
    return f"{owner.get('host', '-')}{warm}"


def _shown(status: JobStatus, life: str, health: Health) -> Iterator[Piece]:
    owner = status.owner
    who = f"DAG run {owner['dag_run']}" if owner.get("dag_run") else f"run {str(owner.get('run', '-'))[:8]}"
    yield Facts(
        [
            ("job", f"{status.name} ({status.uuid})"),
            ("root", status.root),
            ("status", life),
            ("health", None if health.well else f"{health.state}: {health.reason}"),
            ("checkpoint", status.head),
            ("pending", ", ".join(map(str, status.pending))),
            ("epoch", f"{status.epoch}, {who} on {_place(owner)}" if status.epoch else None),
            ("last sign of life", moment(status.heartbeat_at)),
            ("timeline", status.timeline),
            ("watermark", f"{moment(status.watermark)}{_holder(status.watermark_held)}"),
            ("state", f"{size(status.state_size)} in {several(status.num_files, 'file')}"),
            *_of_batch(status),
            ("checkpoints", f"{status.checkpoints.get('numberOfCompletedCheckpoints', 0)} completed"),
            ("tags", ", ".join(f"{name} -> {slot}" for name, slot in status.tags.items())),
            ("other pins", ", ".join(f"{p['kind']} on {p['checkpoint']}" for p in status.pins)),
            (
                "parameters",
                ", ".join(f"{name}={value}" for name, value in status.parameters.items()),
            ),
        ]
    )
    yield from _operators(status)
    if status.sources:
        yield ""
        positions = [(s.uid, s.kind, s.position, moment(s.event_time)) for s in status.sources]
        yield TextTable(("source", "kind", "position", "newest event"), positions)
    if status.sinks:
        yield ""
        targets = [
            (s.uid, s.kind, f"{s.name} at {s.target}" if s.name else s.target, s.last_commit)
            for s in status.sinks
        ]
        yield TextTable(("sink", "kind", "target", "has"), targets)


def _operators(status: JobStatus) -> Iterator[Piece]:
    if status.operators:
        rows = [
            (
                o.uid,
                o.key,
                o.parallelism,
                o.max_parallelism,
                o.shards,
                f"~{number(o.entries)}",
                size(o.state_size),
                o.backend,
            )
            for o in status.operators
        ]
        columns = ("operator", "key", "parallelism", "max", "shards", "entries", "state", "backend")
        yield ""
        yield TextTable(columns, rows, right=columns[2:7])
        ready = [
            (o.uid, "; ".join(filter(None, (o.what, o.late, o.combiner)))) for o in status.operators if o.what
        ]
        if ready:
            yield ""
            yield TextTable(("operator", "what it is"), ready)
        states = [(o.uid, name, text) for o in status.operators for name, text in o.states.items()]
        yield ""
        yield TextTable(("operator", "state", "type"), states)
        yield from _ttls(status)


@command
def checkpoints(
    call: Invocation,
    job: JobName,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The newest so many records.")] = 20,
) -> None:
    """History of a job's records, collected ones too, newest first."""
    from stateflow.checkpoint.names import complete_records
    from stateflow.checkpoint.statistics import summary

    found = call.job(job)
    log = found.log()
    lines = found.history()
    gauges = structs.asdict(summary(lines))
    standing = {record.slot for record in log.chain}
    kept = {record.slot for record in complete_records(log)}
    newest = list(reversed(lines))[:limit]
    body = {
        "job": job,
        "counts": {
            "restored": sum(line.kind == "restore" for line in lines),
            "total": sum(line.kind == "checkpoint" for line in lines),
            "in_progress": gauges["numberOfInProgressCheckpoints"],
            "completed": gauges["numberOfCompletedCheckpoints"],
            "failed": gauges["numberOfFailedCheckpoints"],
        },
        "summary": gauges,
        "history": [{**structs.asdict(line), "discarded": line.id not in standing} for line in newest],
    }
    columns = (
        "id",
        "kind",
        "status",
        "kept",
        "at",
        "duration",
        "rows",
        "out",
        "uploaded",
        "state",
        "files",
        "sinks",
    )
    rows = [_row(line, kept) for line in newest]
    call.output.answer(body, TextTable(columns, rows, right=("id", *columns[5:11])))


def _row(line: HistoryLine, kept: set[int]) -> Sequence[object]:
    checkpoint = line.kind == "checkpoint"
    return (
        line.id,
        line.kind,
        line.status,
        "yes" if line.id in kept else "",
        moment(line.latest_ack_timestamp * 1000),
        seconds(line.end_to_end_duration / 1000) if checkpoint else None,
        number(line.processed_rows) if checkpoint else None,
        number(line.emitted_rows) if checkpoint else None,
        size(line.checkpointed_size) if checkpoint else None,
        size(line.state_size) if checkpoint else None,
        line.num_files if checkpoint else None,
        ", ".join(f"{uid} {came}" for uid, came in line.sinks.items()),
    )
