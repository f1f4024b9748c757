"""Kinds of sink at work: each makes a sink of a flow's declaration, and commits what a record prepared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from stateflow.checkpoint.writer import CommitPermit
from stateflow.errors import CorruptError, UsageError
from stateflow.format.records import Prepared, Record
from stateflow.pipelines.offers import loaded
from stateflow.pipelines.sink_kinds import SinkKind, kind_in_record, why_unknown
from stateflow.spark.sinks.base import CommitRequest, Committed, Sink
from stateflow.spark.sinks.slot import SinkSlot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def class_of(kind: SinkKind) -> type[Sink]:
    """The class that a kind names, loaded now."""
    try:
        found = loaded(kind.implementation)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"the kind of sink {kind.name!r} names {kind.implementation} as its class, which cannot be loaded: {error}; install "
            "the package with all that it needs"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Sink) and found.declared.name == kind.name):
        raise UsageError(
            f"the kind of sink {kind.name!r} names {kind.implementation} as its class, which is no Sink that declares it: let "
            "`declared` of a subclass of Sink be the kind"
        )
    return found


def commit(request: CommitRequest, permit: CommitPermit) -> Committed:
    """Makes visible what a decided record prepared for one sink: exactly once, however many runs call it.

    Only a record in the log gets a `permit`. "none" means that there was nothing to commit: the sink stays at its slot.
    """
    prepared, at = request.prepared, request.at
    if permit.slot != at.slot:
        raise TypeError(f"the permit is for record {permit.slot}, not for {at.slot}")
    kind = kind_in_record(prepared.kind)
    if kind is None:
        raise CorruptError(
            f"record {at.slot} of job {at.job_name!r} has a sink of unknown kind {prepared.kind!r}: "
            f"{why_unknown(prepared.kind) or 'run the job with the version of stateflow, and the packages, that wrote it'}"
        )
    request.still_owner()
    sink = class_of(kind)
    return sink.commit_rewind(request) if prepared.kind == kind.rewound_as else sink.commit(request)


def prepare_rewind(spark: SparkSession, prepared: Prepared, at: SinkSlot, last_slot: int | None) -> Prepared:
    """The way back of a sink's output as a record names it; `prepared` is the newest of the sink. One that cannot be gone fails here,
    before the record is decided."""
    kind = kind_in_record(prepared.kind)
    assert kind is not None, "the plan found that the output can be taken back"
    back_to = last_slot or 0
    way_back = class_of(kind).rewind(spark, prepared, replace(at, back_to=back_to), last_slot)
    return msgspec.structs.replace(way_back, back_to=back_to)


def _asked(prepared: Prepared) -> SinkKind | None:
    """The sink's kind, if its target says which slot it has. A user's function cannot be asked."""
    kind = kind_in_record(prepared.kind)
    return kind if kind is not None and kind.tells_slot and prepared.kind == kind.name else None


def needs_spark(record: Record) -> bool:
    return any(map(_asked, record.sinks.values()))


def delivered(spark: SparkSession | None, record: Record, job: str) -> Mapping[str, bool]:
    """Per sink uid, whether it has the record's output: `Job.abandon` asks before it gives the record up. `spark` may be None when no sink
    can be asked."""
    has_output = dict.fromkeys(record.sinks, False)
    for uid, prepared in record.sinks.items():
        if (kind := _asked(prepared)) is not None:
            assert spark is not None
            at = SinkSlot(record.job, job, uid, record.slot, record.epoch)
            slot = class_of(kind).last_slot(spark, prepared, at)
            has_output[uid] = slot is not None and slot >= record.slot
    return has_output
