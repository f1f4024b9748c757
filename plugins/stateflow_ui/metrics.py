"""All jobs as Prometheus reads them: what Airflow's API server knows, in one scrape, also of jobs that do not run. Pure.

Runs can serve metrics of their own (docs/configuration.md, `metrics`); those have other names, so that a sum counts nothing
twice.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from stateflow.format.instants import END_OF_TIME
from stateflow.observe.health import HealthState
from stateflow.observe.status import JobStatus
from stateflow_ui.catalog import JobState, RootState
from stateflow_ui.charts import rate
from stateflow_ui.documents import judged
from stateflow_ui.history_lines import Lines
from stateflow_ui.job_reader import JobFacts
from stateflow_ui.stale_after import StaleAfter

_log = logging.getLogger(__name__)

LABEL = "stateflow_job"
"""Not `job`: that is Prometheus' own label of whatever it scrapes, and it renames another's."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
HEALTH_STATES: tuple[HealthState, ...] = get_args(HealthState)
_RECENT, _RATE_OVER = 50, 10
_QUANTILES = (0.5, 0.95, 1.0)

Sample = tuple[Mapping[str, str], float]


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    doc: str


ROOT_UP = Metric("stateflow_root_up", "1 when the connection's root can be read, else 0.")
ROOT_JOBS = Metric("stateflow_root_jobs", "Jobs of the root.")
READABLE = Metric("stateflow_job_readable", "1 when the job's log could be read and is whole, else 0.")
READ_AT = Metric("stateflow_job_read_timestamp_seconds", "When the job was last read.")
HEALTH = Metric(
    "stateflow_job_health",
    "1 for the state that the job is in: ok, new, stale, failed, lost, blocked or unreadable.",
)
RUNNING = Metric("stateflow_job_running", "1 while a run shows that it lives.")
EPOCH = Metric("stateflow_job_epoch", "Number of the newest run attempt.")
HEARTBEAT = Metric("stateflow_job_heartbeat_timestamp_seconds", "The newest run's last sign of life.")
CREATED = Metric("stateflow_job_created_timestamp_seconds", "When the job was made.")
PENDING = Metric("stateflow_job_pending_records", "Records decided and not carried out.")
LAST_ID = Metric("stateflow_job_last_checkpoint_id", "The newest complete checkpoint.")
LAST_AT = Metric("stateflow_job_last_checkpoint_timestamp_seconds", "When it was taken.")
FRESH_AT = Metric(
    "stateflow_job_fresh_timestamp_seconds",
    "When the job last had all that its sources held, as far as is known.",
)
DURATION = Metric(
    "stateflow_job_last_checkpoint_duration_seconds", "The last batch, end to end (lastCheckpointDuration)."
)
RECENT_DURATION = Metric(
    "stateflow_job_recent_checkpoint_duration_seconds", f"Quantiles over the last {_RECENT} checkpoints."
)
SIZE = Metric(
    "stateflow_job_last_checkpoint_size_bytes", "What the last batch uploaded (lastCheckpointSize)."
)
STATE = Metric("stateflow_job_state_bytes", "All state of the newest checkpoint (lastCheckpointFullSize).")
FILES = Metric("stateflow_job_state_files", "Files that it consists of.")
ROWS = Metric("stateflow_job_last_checkpoint_rows", "Rows that the last batch read.")
RATE = Metric("stateflow_job_rows_per_second", f"Over the last {_RATE_OVER} checkpoints, while the job runs.")
TARGET = Metric(
    "stateflow_job_target_batch_duration_seconds", "How long a batch shall take, by target_batch_duration."
)
LIMIT = Metric(
    "stateflow_job_batch_limit",
    "What the last batch might take of a source, in rows, bytes or files, by target_batch_duration.",
)
WAITING = Metric(
    "stateflow_job_waiting_source",
    "1 for a source of which the last batch took nothing, by max_source_drift.",
)
HOT_KEY = Metric(
    "stateflow_job_hot_key_share",
    "The share of an operator's rows that one key had in the last batch; absent when no key is hot.",
)
WATERMARK = Metric("stateflow_job_watermark_seconds", "The watermark, in seconds since 1970.")
ABANDONED = Metric(
    "stateflow_job_abandoned_checkpoints", f"Among the last {_RECENT}, those of which a sink was given up."
)
EXIT_CODE = Metric(
    "stateflow_job_last_run_exit_code",
    "How the newest run ended; absent while it runs, or when it did not say.",
)

METRICS = (
    *(ROOT_UP, ROOT_JOBS, READABLE, READ_AT, HEALTH, RUNNING, EPOCH, HEARTBEAT, CREATED, PENDING),
    *(LAST_ID, LAST_AT, FRESH_AT, DURATION, RECENT_DURATION, SIZE, STATE, FILES, ROWS, RATE),
    *(TARGET, LIMIT, WAITING, HOT_KEY, WATERMARK, ABANDONED, EXIT_CODE),
)


def page(roots: Sequence[RootState], jobs: Sequence[JobState], now: int, stale: StaleAfter) -> str:
    """Prometheus' text format. `now` is microseconds since 1970."""
    samples: dict[str, list[Sample]] = {metric.name: [] for metric in METRICS}
    for root in roots:
        samples[ROOT_UP.name].append(({"conn_id": root.conn_id}, float(root.read and not root.error)))
        if root.read:
            count = sum(job.conn_id == root.conn_id for job in jobs)
            samples[ROOT_JOBS.name].append(({"conn_id": root.conn_id}, float(count)))
    for job in jobs:
        labels = {"conn_id": job.conn_id, LABEL: job.name}
        measured = _measured(job, now, stale)
        facts = job.facts.value
        whole = job.facts.error is None and facts is not None and not facts.status.damage
        readable = whole and measured is not None
        samples[READABLE.name].append((labels, float(readable)))
        for metric, more, value in measured or ():
            samples[metric.name].append(({**labels, **more}, value))
    return "".join(_family(metric, samples[metric.name]) for metric in METRICS if samples[metric.name])


def _measured(
    job: JobState, now: int, stale: StaleAfter
) -> list[tuple[Metric, Mapping[str, str], float]] | None:
    """A job's samples; None when one of its values is no number. Whoever writes into one job's folder must not stop the
    metrics of all jobs."""
    if job.facts.value is None:
        return []
    try:
        samples = list(_samples(job.facts.value, now, stale))
        for _, _, value in samples:
            _number(value)
    except Exception:
        _log.exception("job %r of connection %r cannot be measured", job.name, job.conn_id)
        return None
    return samples


def _samples(
    facts: JobFacts, now: int, stale: StaleAfter
) -> Iterator[tuple[Metric, Mapping[str, str], float]]:
    status, health = facts.status, judged(facts, now, stale)
    for state in HEALTH_STATES:
        yield HEALTH, {"state": state}, float(state == health.state)
    numbers: dict[Metric, float | None] = {
        READ_AT: facts.as_of / 1e6,
        RUNNING: status.status == "RUNNING",
        EPOCH: status.epoch,
        CREATED: status.created_at / 1e6,
        PENDING: len(status.pending),
        LAST_ID: status.head,
        STATE: status.state_size,
        FILES: status.num_files,
        HEARTBEAT: _seconds(status.heartbeat_at),
        LAST_AT: _seconds(status.last_checkpoint_at),
        FRESH_AT: _seconds(health.fresh_at),
        WATERMARK: None if (status.watermark or 0) >= END_OF_TIME else _seconds(status.watermark),
        RATE: rate(facts.lines.checkpoints[-_RATE_OVER:]) if status.status == "RUNNING" else None,
        ABANDONED: sum(line.status == "ABANDONED" for line in facts.lines.all[-_RECENT:]),
        EXIT_CODE: _exit_code(facts),
    }
    for metric, value in numbers.items():
        if value is not None:
            yield metric, {}, float(value)
    yield from _chosen(status)
    yield from _batches(facts.lines)


def _chosen(status: JobStatus) -> Iterator[tuple[Metric, Mapping[str, str], float]]:
    if status.batch_size:
        yield TARGET, {}, status.batch_size["target_ms"] / 1000
        # A source may have several streams, and a scrape has each label once.
        limits: Counter[tuple[str, str]] = Counter()
        for stream in status.batch_size["streams"]:
            limits[stream["source"], stream["unit"]] += stream["most"]
        for (source, unit), most in limits.items():
            yield LIMIT, {"source": source, "unit": unit}, most
    for source, other in status.waited.items():
        yield WAITING, {"source": source, "waits_for": other}, 1.0
    for operator in status.operators:
        if operator.hot_key:
            labels = {"operator": operator.uid, "subtask": str(operator.hot_key["subtask"])}
            yield HOT_KEY, labels, operator.hot_key["share"]


def _batches(lines: Lines) -> Iterator[tuple[Metric, Mapping[str, str], float]]:
    recent = lines.checkpoints[-_RECENT:]
    if not recent:
        return
    last = recent[-1]
    yield DURATION, {}, last.end_to_end_duration / 1000
    yield SIZE, {}, last.checkpointed_size
    yield ROWS, {}, last.processed_rows
    ordered = sorted(line.end_to_end_duration for line in recent)
    for quantile in _QUANTILES:
        rank = max(1, math.ceil(round(len(ordered) * quantile, 6))) - 1
        yield RECENT_DURATION, {"quantile": f"{quantile:g}"}, ordered[rank] / 1000


def _exit_code(facts: JobFacts) -> int | None:
    beat = facts.heartbeat
    return beat.outcome.exit_code if beat is not None and beat.ended and beat.outcome is not None else None


def _seconds(micros: int | None) -> float | None:
    return None if micros is None else micros / 1e6


def _family(metric: Metric, samples: Sequence[Sample]) -> str:
    head = f"# HELP {metric.name} {metric.doc}\n# TYPE {metric.name} gauge\n"
    return head + "".join(f"{metric.name}{_labels(labels)} {_number(value)}\n" for labels, value in samples)


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
