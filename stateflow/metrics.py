"""A run's metrics for other systems: Prometheus, OpenTelemetry, or none.

Names follow Flink where it has one: `lastCheckpointDuration` is `stateflow_last_checkpoint_duration_seconds` here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stateflow.distribution import DISTRIBUTION
from stateflow.errors import UnavailableError, UsageError

Report = Callable[[Mapping[str, Any]], None]
"""Reports the numbers of one finished batch, as `numbers` returns them."""


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


def numbers(
    checkpoint: int, duration: float, watermark: int | None, full_size: int, statistics: Mapping[str, Any]
) -> dict[str, float]:
    """The numbers of one batch. Counters of user code are named `user_<operator>_<name>`."""
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
    for uid, operator in operators.items():
        for name, count in operator["counters"].items():
            values[f"user_{uid}_{name}"] = count
    return values


def reporter(kind: str, job: str, port: int = 0) -> Report:
    """The function that reports to `none`, `prometheus` (served on loopback) or `opentelemetry` (the process's provider)."""
    if kind == "none":
        return lambda values: None
    if kind == "prometheus":
        return _prometheus(job, port)
    if kind == "opentelemetry":
        return _opentelemetry(job)
    raise UsageError(f"metrics={kind!r}: use none, prometheus or opentelemetry")


def _prometheus(job: str, port: int) -> Report:
    try:
        from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
    except ImportError:
        raise UsageError(
            f"metrics=prometheus needs the package prometheus-client: pip install '{DISTRIBUTION}[prometheus]'"
        ) from None
    registry = CollectorRegistry()
    instruments: dict[str, Any] = {}

    def instrument(measure: Measure) -> Any:
        if measure.name not in instruments:
            cls = Counter if measure.kind == "counter" else Gauge
            instruments[measure.name] = cls(
                f"stateflow_{_plain(measure.name)}", measure.doc, ["job"], registry=registry
            )
        return instruments[measure.name].labels(job)

    try:
        start_http_server(port, addr="127.0.0.1", registry=registry)
    except OSError as error:
        raise UnavailableError(
            f"metrics cannot be served on port {port}: {error}; choose another metrics_port"
        ) from error

    def report(values: Mapping[str, Any]) -> None:
        for measure, value in _measured(values):
            if measure.kind == "counter":
                instrument(measure).inc(value)
            else:
                instrument(measure).set(value)

    return report


def _opentelemetry(job: str) -> Report:
    try:
        from opentelemetry import metrics
    except ImportError:
        raise UsageError(
            f"metrics=opentelemetry needs the package opentelemetry-api: pip install '{DISTRIBUTION}[otel]'"
        ) from None
    meter = metrics.get_meter("stateflow")
    instruments: dict[str, Any] = {}

    def report(values: Mapping[str, Any]) -> None:
        for measure, value in _measured(values):
            if measure.name not in instruments:
                make = meter.create_counter if measure.kind == "counter" else meter.create_gauge
                instruments[measure.name] = make(f"stateflow.{measure.name}", description=measure.doc)
            instrument = instruments[measure.name]
            attributes = {"job": job}
            if measure.kind == "counter":
                instrument.add(value, attributes)
            else:
                instrument.set(value, attributes)

    return report


def _measured(values: Mapping[str, Any]) -> list[tuple[Measure, float]]:
    known = {m.name: m for m in MEASURES}
    return [
        (known.get(name) or Measure(name, "counter", "A counter of the user's own."), value)
        for name, value in values.items()
    ]


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else "_" for c in name)
