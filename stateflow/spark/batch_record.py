"""The record of a batch: what its tasks and sinks have reported, and what was read, in the form in which it is decided. No I/O."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from stateflow.checkpoint.draft import Draft
from stateflow.distribution import installed_version
from stateflow.format.records import Prepared, Record, SourceState
from stateflow.pipelines.parameters import as_texts
from stateflow.spark.batches.batch import Batch
from stateflow.spark.inputs.observations import Observation
from stateflow.spark.inputs.watermark import Holder


@dataclass(frozen=True)
class MadeBy:
    """What every record of a run says of its making."""

    parameters: dict[str, str]
    versions: dict[str, str]

    @classmethod
    def of(cls, parameters: Mapping[str, Any], code: Mapping[str, str]) -> MadeBy:
        """`code`: which version of the pipeline's own code runs."""
        own = {"python": platform.python_version(), "stateflow": installed_version()}
        packages = {name: version(name) for name in ("pyspark", "rocksdict")}
        return cls(as_texts(parameters), {**own, **packages, **code})


def job_time(clock: int, parent: Record | None) -> int:
    """The time of a record that continues `parent`, when the clock says `clock`. It never goes back."""
    return max(clock, parent.now if parent else 0)


def record_of(
    batch: Batch,
    prepared: Mapping[str, Prepared],
    observed: Mapping[str, Observation],
    positions: Mapping[str, SourceState],
    made_by: MadeBy,
    notes: Mapping[str, Any],
    *,
    final: bool,
) -> Draft:
    """What is to be decided. `notes`: what the run adds to the batch's own figures."""
    moment, parent = batch.attempt.moment, batch.attempt.parent
    own = batch.statistics
    return Draft(
        "checkpoint",
        sources=dict(positions),
        operators=batch.operators,
        sinks=dict(prepared),
        feeds=batch.shown(prepared),
        timeline=parent.timeline if parent else 1,
        shift=moment.shift,
        now=moment.now,
        seed=moment.seed,
        watermark=moment.watermark,
        parameters=made_by.parameters,
        versions=made_by.versions,
        statistics={
            "trigger_timestamp": moment.now // 1000,
            "processed_rows": rows_of(observed),
            "input_free": batch.attempt.input_free,
            "source_rows": {uid: seen.rows for uid, seen in observed.items()},
            "sink_rows": {uid: sink.rows for uid, sink in prepared.items()},
            **own,
            **notes,
            "checkpointed_size": int(
                own["metrics"].get("uploaded_bytes", 0) + own["metrics"].get("inlined_bytes", 0)
            ),
        },
        final=final,
    )


def held_by(holder: Holder | None) -> dict[str, Any]:
    """What a record notes of that which holds the watermark back."""
    if holder is None:
        return {}
    noted = {"watermark_held_by": holder.source, "watermark_held_since": holder.since}
    return {**noted, "watermark_held_partition": holder.partition} if holder.partition else noted


def rows_of(observed: Mapping[str, Observation]) -> int:
    return sum(seen.rows for seen in observed.values())
