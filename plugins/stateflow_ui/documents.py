"""What the pages show of jobs: times are milliseconds since 1970, sizes are bytes. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import msgspec

from stateflow.checkpoint.statistics import summary
from stateflow.errors import CorruptError, StateflowError
from stateflow.format.instants import END_OF_TIME
from stateflow.masking import all_masked
from stateflow.observe.health import Health, health_of
from stateflow.observe.status import JobStatus
from stateflow_ui.cached_value import CacheState
from stateflow_ui.catalog import JobState, RootState
from stateflow_ui.charts import percentiles, rate, recent
from stateflow_ui.history_lines import of_dag_run
from stateflow_ui.job_reader import JobFacts
from stateflow_ui.stale_after import StaleAfter

_log = logging.getLogger(__name__)

RECENT = 50
_RATE_OVER = 10
_TIMES = ("created_at", "heartbeat_at", "head_at", "last_checkpoint_at", "looked_at", "watermark")


def overview(
    roots: Sequence[RootState], jobs: Sequence[JobState], now: int, stale: StaleAfter, dag_run: str = ""
) -> dict[str, Any]:
    """All jobs, or with `dag_run` (`DAG` or `DAG/RUN`) those that it wrote one of the newest records of. `now` is microseconds."""
    chosen = [job for job in jobs if not dag_run or _written_by(job.facts.value, dag_run)]
    return {
        "now": now // 1000,
        "roots": [
            {"conn_id": root.conn_id, "root": root.root, "error": root.error or None, "read": root.read}
            for root in roots
        ],
        "jobs": [_shown_row(job, now, stale) for job in chosen],
        "problem": stale.problem or None,
    }


def _written_by(facts: JobFacts | None, dag_run: str) -> bool:
    if facts is None:
        return False
    lines = (line.dag_run for line in reversed(facts.lines.all))
    return any(of_dag_run(written, dag_run) for written in (facts.status.owner.get("dag_run", ""), *lines))


def _shown_row(job: JobState, now: int, stale: StaleAfter) -> msgspec.Raw:
    """A job's row, as JSON. Whoever writes into one job's folder must not stop the list of all jobs."""
    try:
        return msgspec.Raw(msgspec.json.encode(_row(job, now, stale)))
    except Exception:
        _log.exception("job %r of connection %r cannot be shown", job.name, job.conn_id)
        error = CorruptError(
            f"job {job.name!r} has a value that no page can show: run `stateflow verify {job.name}`; the API server's "
            "log names the value"
        )
        return msgspec.Raw(msgspec.json.encode(_unread(job, replace(job.facts, error=error))))


def _row(job: JobState, now: int, stale: StaleAfter) -> dict[str, Any]:
    facts = job.facts.value
    if facts is None:
        return _unread(job, job.facts)
    status = facts.status
    health = judged(facts, now, stale)
    last = facts.lines.checkpoints[-1] if facts.lines.checkpoints else None
    return {
        "conn_id": job.conn_id,
        "job": job.name,
        "status": status.status,
        "health": health.state,
        "reason": health.reason,
        "head": status.head,
        "last_checkpoint_at": millis(status.last_checkpoint_at),
        "last_duration": last.end_to_end_duration if last else None,
        "age": None if health.age is None else health.age // 1000,
        "fresh_at": millis(health.fresh_at),
        "lag": lag(status, now),
        "lag_unit": "ms",
        "watermark": millis(status.watermark),
        "watermark_held": _held(status),
        "state_size": status.state_size,
        "num_files": status.num_files,
        "running": status.status == "RUNNING",
        "epoch": status.epoch,
        "dag_run": status.owner.get("dag_run") or None,
        "task": status.owner.get("task") or None,
        "machine": status.owner.get("host") or None,
        "warm_host": status.owner.get("warm_host") or None,
        "pending": status.pending,
        "rows_per_second": rate(facts.lines.checkpoints[-_RATE_OVER:])
        if status.status == "RUNNING"
        else None,
        "outcome": outcome(facts),
        "recent": recent(facts.lines, RECENT),
        "as_of": facts.as_of // 1000,
        "error": _sentence(job.facts.error),
    }


def _unread(job: JobState, known: CacheState[JobFacts]) -> dict[str, Any]:
    """A job that is listed and could not be read, or not yet."""
    failed = known.error is not None
    return {
        "conn_id": job.conn_id,
        "job": job.name,
        "status": "UNREADABLE" if failed else "READING",
        "health": "unreadable" if failed else "new",
        "reason": _sentence(known.error) or f"job {job.name!r} is being read",
        **dict.fromkeys(
            (
                *(
                    "head",
                    "last_checkpoint_at",
                    "last_duration",
                    "age",
                    "fresh_at",
                    "lag",
                    "watermark",
                    "watermark_held",
                ),
                *(
                    "state_size",
                    "num_files",
                    "epoch",
                    "dag_run",
                    "task",
                    "machine",
                    "warm_host",
                    "rows_per_second",
                    "outcome",
                    "as_of",
                ),
            )
        ),
        "lag_unit": "ms",
        "running": False,
        "pending": [],
        "recent": {"t": [], "duration": [], "full": []},
        "error": _sentence(known.error),
    }


def job(facts: JobFacts, now: int, stale: StaleAfter, error: str) -> dict[str, Any]:
    """One job; the caller adds what the user may do with it."""
    health = judged(facts, now, stale)
    return {
        "now": now // 1000,
        "as_of": facts.as_of // 1000,
        "partial": not facts.whole,
        "error": error or _unreadable(facts),
        "health": health.state,
        "reason": health.reason,
        "age": None if health.age is None else health.age // 1000,
        "fresh_at": millis(health.fresh_at),
        "lag": lag(facts.status, now),
        "lag_unit": "ms",
        "outcome": outcome(facts),
        "status": status_document(facts.status),
        "summary": msgspec.structs.asdict(summary(facts.lines.all)),
        "percentiles": percentiles(facts.lines.columns),
    }


def status_document(status: JobStatus) -> dict[str, Any]:
    document = asdict(status)
    for name in _TIMES:
        document[name] = millis(document[name])
    for source in document["sources"]:
        source["event_time"] = millis(source["event_time"])
    for pin in document["pins"]:
        pin["at"] = millis(pin["at"])
    if "at" in document["progress"]:
        document["progress"]["at"] = millis(document["progress"]["at"])
    document["watermark_held"] = _held(status)
    document["parameters"] = masked(document["parameters"])
    return document


def _held(status: JobStatus) -> dict[str, Any] | None:
    """The source that holds the watermark back, or the partition of it, and since when it has had no rows."""
    held = status.watermark_held
    return {**held, "since": held["since"] // 1000} if held else None


def masked(parameters: dict[str, str]) -> dict[str, str]:
    """Parameters of a pipeline, as a plan shows them, and without what Airflow takes for a secret or knows to be one."""
    from stateflow_ui.internals import redact

    return {name: str(redact(value, name)) for name, value in all_masked(parameters).items()}


def judged(facts: JobFacts, now: int, stale: StaleAfter) -> Health:
    # Whether it runs was seen when it was read; only its age grows by itself.
    return health_of(facts.status, max(now, facts.as_of), stale.of(facts.name))


def lag(status: JobStatus, now: int) -> int | None:
    """How far event time is behind the clock: Flink's currentEventTimeLag, in milliseconds."""
    if status.watermark is None or status.watermark >= END_OF_TIME:
        return None
    return (now - status.watermark) // 1000


def outcome(facts: JobFacts) -> dict[str, Any] | None:
    """How the newest run ended, when it noted that."""
    beat = facts.heartbeat
    if beat is None or not beat.ended or beat.outcome is None:
        return None
    return {**msgspec.structs.asdict(beat.outcome), "at": beat.at // 1000}


def history(facts: JobFacts, before: int | None, limit: int, kind: str, dag_run: str) -> dict[str, Any]:
    lines, following = facts.lines.page(before, limit, kind, dag_run)
    return {
        "lines": [facts.lines.document(line) for line in lines],
        "total": len(facts.lines.all),
        "next": following,
        "partial": not facts.whole,
    }


def millis(micros: int | None) -> int | None:
    return None if micros is None else micros // 1000


def _unreadable(facts: JobFacts) -> str | None:
    damage = facts.status.damage
    return f"{damage}: run `stateflow verify {facts.name}`" if damage else None


def _sentence(error: StateflowError | None) -> str | None:
    return str(error) if error is not None else None
