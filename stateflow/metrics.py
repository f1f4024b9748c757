"""A run's metrics for other systems: Prometheus, OpenTelemetry, or none.

Names follow Flink where it has one: `lastCheckpointDuration` is `stateflow_last_checkpoint_duration_seconds` here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from stateflow.distribution import DISTRIBUTION
from stateflow.errors import UnavailableError, UsageError
from stateflow.logs import waiting

_log = logging.getLogger(__name__)

Report = Callable[[Mapping[str, float], Mapping[tuple[str, str], float]], None]
"""Reports one finished batch: its numbers, as `numbers` returns them, and the counters of user code, as `user_counters` does."""
Warn = Callable[[str, str], object]
"""Takes a matter and a sentence about it, and says one sentence for each matter."""
_Put = Callable[["Measure", float, Mapping[str, str]], None]
"""Hands one number and its labels to the other system."""


@dataclass(frozen=True, slots=True)
class Measure:
    name: str
    kind: Literal["counter", "gauge"]
    doc: str


MEASURES = (
    Measure(
        "completed_checkpoints",
        "counter",
        "Checkpoints completed by this run (numberOfCompletedCheckpoints).",
    ),
    Measure(
        "failed_checkpoints",
        "counter",
        "Batches that failed and were tried again (numberOfFailedCheckpoints).",
    ),
    Measure("rows_in", "counter", "Rows read from sources (numRecordsIn)."),
    Measure("rows_out", "counter", "Rows that operators put out (numRecordsOut)."),
    Measure("keys", "counter", "Keys that user code was called for."),
    Measure("timers_fired", "counter", "Timers that fired."),
    Measure("entries_expired", "counter", "Entries of state that left because their ttl was over."),
    Measure("dead_letters", "counter", "Keys diverted because user code raised."),
    Measure("uploaded_bytes", "counter", "Bytes of state uploaded."),
    Measure("compacted_bytes", "counter", "Of these, bytes that compaction wrote."),
    Measure("fetched_bytes", "counter", "Bytes of state fetched into host caches."),
    Measure("cache_hits", "counter", "State files found in the host's cache."),
    Measure("cache_misses", "counter", "State files that had to be fetched."),
    Measure("last_checkpoint_id", "gauge", "The newest complete checkpoint (lastCompletedCheckpointId)."),
    Measure(
        "last_checkpoint_duration_seconds", "gauge", "The last batch, end to end (lastCheckpointDuration)."
    ),
    Measure(
        "last_checkpoint_full_size_bytes",
        "gauge",
        "All state of the last checkpoint (lastCheckpointFullSize).",
    ),
    Measure("last_checkpoint_size_bytes", "gauge", "What the last batch uploaded (lastCheckpointSize)."),
    Measure("last_checkpoint_rows", "gauge", "Rows that the last batch read."),
    Measure(
        "target_batch_duration_seconds", "gauge", "How long a batch shall take, by target_batch_duration."
    ),
    Measure("waiting_sources", "gauge", "Sources of which the last batch took nothing, by max_source_drift."),
    Measure(
        "hot_key_share",
        "gauge",
        "The largest share of an operator's rows that one key had in the last batch; 0 when no key is hot.",
    ),
    Measure("watermark_seconds", "gauge", "The watermark, in seconds since 1970 (currentInputWatermark)."),
)
USER_COUNTER = Measure("user_counter", "counter", "A counter of the user's own code, by operator.")
"""One measure for all of them. An operator and a counter have names that no other system takes in the name of a measure, and two of
them that differ could become one there; a label takes any text."""


def numbers(
    checkpoint: int, duration: float, watermark: int | None, full_size: int, statistics: Mapping[str, Any]
) -> dict[str, float]:
    """The numbers of one batch, without the counters of user code."""
    operators = statistics.get("operators", {})
    metrics = statistics.get("metrics", {})
    values: dict[str, float] = {
        "completed_checkpoints": 1,
        "failed_checkpoints": statistics.get("failed_tries", 0),
        "rows_in": statistics.get("processed_rows", 0),
        "rows_out": sum(o["rows_out"] for o in operators.values()),
        "keys": sum(o["keys"] for o in operators.values()),
        "timers_fired": sum(o["timers"] for o in operators.values()),
        "entries_expired": sum(o.get("expired", 0) for o in operators.values()),
        "dead_letters": sum(o["dead_letters"] for o in operators.values()),
        "last_checkpoint_id": checkpoint,
        "last_checkpoint_duration_seconds": duration,
        "last_checkpoint_full_size_bytes": full_size,
        "last_checkpoint_rows": statistics.get("processed_rows", 0),
        "hot_key_share": max(
            (o["hot_key"]["share"] for o in operators.values() if "hot_key" in o), default=0
        ),
        "waiting_sources": len(statistics.get("waited", ())),
        "last_checkpoint_size_bytes": metrics.get("uploaded_bytes", 0) + metrics.get("inlined_bytes", 0),
    }
    for name in ("uploaded_bytes", "compacted_bytes", "fetched_bytes", "cache_hits", "cache_misses"):
        values[name] = metrics.get(name, 0)
    if "batch_size" in statistics:
        values["target_batch_duration_seconds"] = statistics["batch_size"]["target_ms"] / 1000
    if watermark is not None:
        values["watermark_seconds"] = watermark / 1e6
    return values


def user_counters(statistics: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """The counters of user code in one batch, by operator and name."""
    return {
        (uid, name): count
        for uid, operator in statistics.get("operators", {}).items()
        for name, count in operator["counters"].items()
    }


@contextmanager
def reporter(kind: str, job: str, warn: Warn, port: int = 0) -> Iterator[Report]:
    """The function that reports to `none`, `prometheus` (served on loopback) or `opentelemetry` (the process's provider).

    A number that the other system does not take is warned of, and never raises: the batch is complete by then.
    """
    if kind == "none":
        yield lambda values, counters: None
    elif kind == "prometheus":
        with _prometheus(job, port) as put:
            yield _report(kind, job, put, warn)
    elif kind == "opentelemetry":
        yield _report(kind, job, _opentelemetry(), warn)
    else:
        raise UsageError(f"metrics={kind!r}: use none, prometheus or opentelemetry")


def _report(kind: str, job: str, put: _Put, warn: Warn) -> Report:
    known = {measure.name: measure for measure in MEASURES}

    def report(values: Mapping[str, float], counters: Mapping[tuple[str, str], float]) -> None:
        for name, value in values.items():
            one(f"the measure {name}", known[name], value, {"job": job})
        for (uid, name), value in counters.items():
            labels = {"job": job, "operator": uid, "counter": name}
            one(f"counter {name!r} of operator {uid!r}", USER_COUNTER, value, labels)

    def one(what: str, measure: Measure, value: float, labels: Mapping[str, str]) -> None:
        if measure.kind == "counter" and value < 0:
            warn(
                f"metrics: {what} fell",
                f"{what} fell by {-value} in a batch, and metrics={kind} leaves out what falls: count what goes away in a counter "
                "of its own",
            )
            return
        try:
            put(measure, value, labels)
        except Exception as error:
            warn(
                f"metrics: {what}",
                f"metrics={kind} did not take {what} ({type(error).__name__}: {error}), and the run went on without it: set "
                "metrics=none if you do not need it",
            )

    return report


@contextmanager
def _prometheus(job: str, port: int) -> Iterator[_Put]:
    try:
        from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
    except ImportError:
        raise UsageError(
            f"metrics=prometheus needs the package prometheus-client: pip install '{DISTRIBUTION}[prometheus]'"
        ) from None
    registry = CollectorRegistry()
    instruments: dict[str, Any] = {}

    def put(measure: Measure, value: float, labels: Mapping[str, str]) -> None:
        if measure.name not in instruments:
            cls = Counter if measure.kind == "counter" else Gauge
            instruments[measure.name] = cls(
                f"stateflow_{measure.name}", measure.doc, list(labels), registry=registry
            )
        instrument = instruments[measure.name].labels(**labels)
        if measure.kind == "counter":
            instrument.inc(value)
        else:
            instrument.set(value)

    try:
        server, thread = start_http_server(port, addr="127.0.0.1", registry=registry)
    except OSError as error:
        raise UnavailableError(
            f"metrics cannot be served on port {port}: {error}; choose another metrics_port"
        ) from error
    address = f"http://127.0.0.1:{server.server_port}/metrics"
    _log.info("the metrics of job %r are served at %s", job, address)
    # By default the port is any free one, so the user learns it here alone.
    waiting(f"serving metrics at {address}")
    try:
        yield put
    finally:
        # Without this the next run in the process could not have the port, and a scrape would get the numbers of this one.
        server.shutdown()
        server.server_close()
        thread.join()


def _opentelemetry() -> _Put:
    try:
        from opentelemetry import metrics
    except ImportError:
        raise UsageError(
            f"metrics=opentelemetry needs the package opentelemetry-api: pip install '{DISTRIBUTION}[otel]'"
        ) from None
    meter = metrics.get_meter("stateflow")
    instruments: dict[str, Any] = {}

    def put(measure: Measure, value: float, labels: Mapping[str, str]) -> None:
        if measure.name not in instruments:
            make = meter.create_counter if measure.kind == "counter" else meter.create_gauge
            instruments[measure.name] = make(f"stateflow.{measure.name}", description=measure.doc)
        if measure.kind == "counter":
            instruments[measure.name].add(value, dict(labels))
        else:
            instruments[measure.name].set(value, dict(labels))

    return put
