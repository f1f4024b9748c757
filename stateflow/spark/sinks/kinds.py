"""The class of every kind of sink: it makes a sink of a flow's declaration, and commits what a record prepared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from stateflow.checkpoint.writer import CommitPermit
from stateflow.errors import CorruptError
from stateflow.format.records import Prepared
from stateflow.pipelines.sink_kinds import SinkKind, kind_in_record, kind_of
from stateflow.pipelines.sinks import check_sink
from stateflow.spark.sinks.base import BatchFunction, Committed, DeliveryMode, Sink
from stateflow.spark.sinks.delta_append import DeltaAppend
from stateflow.spark.sinks.delta_upsert import DeltaUpsert
from stateflow.spark.sinks.function import FunctionSink
from stateflow.spark.sinks.memory import MemorySink
from stateflow.spark.sinks.slot import SinkSlot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stateflow.spark.sinks.staging import Stager

SINKS: tuple[type[Sink], ...] = (DeltaAppend, DeltaUpsert, FunctionSink, MemorySink)
"""The class of every kind that `pipelines/sink_kinds.py` declares."""


def make_sink(
    uid: str,
    mode: str,
    target: Any,
    options: Mapping[str, Any] | None = None,
    delivery: DeliveryMode = "exactly_once",
) -> Sink:
    """The sink that a flow declares as `stream.<mode>(uid, target, **options)`."""
    given = options or {}
    check_sink(uid, mode, target, given)
    return class_of(kind_of(mode)).of(target, given, delivery)


def class_of(kind: SinkKind) -> type[Sink]:
    return next(sink for sink in SINKS if sink.declared is kind)


def commit(
    spark: SparkSession,
    prepared: Prepared,
    at: SinkSlot,
    permit: CommitPermit,
    still_owner: Callable[[], None],
    functions: Mapping[str, BatchFunction],
    stager: Stager,
) -> Committed:
    """Makes visible what a decided record prepared for one sink: exactly once, however many runs call it.

    Only a record in the log gets a `permit`. `still_owner` raises FencedError when a newer run owns the job.
    `functions` are the user's own sinks by uid; `stager` reads the files that the record names. "none" means that
    there was nothing to commit: the sink stays at its slot.
    """
    if permit.slot != at.slot:
        raise TypeError(f"the permit is for record {permit.slot}, not for {at.slot}")
    kind = kind_in_record(prepared.kind)
    if kind is None:
        raise CorruptError(
            f"record {at.slot} of job {at.job_name!r} has a sink of unknown kind {prepared.kind!r}: "
            "run the job with the version of stateflow that wrote it"
        )
    still_owner()
    sink = class_of(kind)
    act = sink.commit_rewind if prepared.kind == kind.rewound_as else sink.commit
    return act(spark, prepared, at, still_owner, functions, stager)


def prepare_rewind(
    spark: SparkSession, prepared: Prepared, at: SinkSlot, prev: int | None, last_slot: int | None
) -> Prepared:
    """The way back of a sink's output as a record names it; `prepared` is the newest of the sink. One that cannot be gone fails here,
    before the record is decided."""
    kind = kind_in_record(prepared.kind)
    assert kind is not None, "the plan found that the output can be taken back"
    return class_of(kind).rewind(spark, prepared, at, prev, last_slot)
