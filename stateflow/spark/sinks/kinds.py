"""Every kind of sink: how a flow's declaration becomes one, and how a record's is carried out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from stateflow.errors import CorruptError
from stateflow.format.records import Prepared
from stateflow.pipelines.step_checks import check_sink
from stateflow.spark.sinks import delta_append, delta_rewind, delta_upsert, function, memory
from stateflow.spark.sinks.base import BatchFunction, Commit, Committed, Delivery, Sink
from stateflow.spark.sinks.delta_append import DeltaAppend
from stateflow.spark.sinks.delta_upsert import DeltaUpsert
from stateflow.spark.sinks.function import FunctionSink
from stateflow.spark.sinks.memory import MemorySink
from stateflow.spark.sinks.slot import SinkSlot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stateflow.checkpoint.writer import CommitPermit
    from stateflow.spark.sinks.staging import Stager

COMMITS: dict[str, Commit] = {
    delta_append.KIND: delta_append.carry_out,
    delta_upsert.KIND: delta_upsert.carry_out,
    delta_rewind.KIND: delta_rewind.carry_out,
    function.KIND: function.carry_out,
    memory.KIND: memory.carry_out,
}


def make_sink(
    uid: str,
    mode: str,
    target: Any,
    options: Mapping[str, Any] | None = None,
    delivery: Delivery = "exactly_once",
) -> Sink:
    """The sink that a flow declares as `stream.<mode>(uid, target, **options)`."""
    given = options or {}
    check_sink(uid, mode, target, given)
    if mode == "append":
        return DeltaAppend(target, delivery)
    if mode == "upsert":
        return DeltaUpsert(target, given["keys"], given.get("order_by"), delivery)
    return FunctionSink(target) if mode == "function" else MemorySink(target)


def commit(
    spark: SparkSession,
    prepared: Prepared,
    place: SinkSlot,
    permit: CommitPermit,
    still_owner: Callable[[], None],
    functions: Mapping[str, BatchFunction],
    stage: Stager,
) -> Committed:
    """Makes what a decided record prepared visible, exactly once however often and by whomever it is called.

    `permit` can only be had for a record that stands. `still_owner` raises FencedError when a newer run owns
    the job. `functions` are the user's own sinks by uid; `stage` reads the files that the record names.
    "none" means that there was nothing to commit: the sink stays at the slot that it was at.
    """
    if permit.slot != place.slot:
        raise TypeError(f"the permit is for record {permit.slot}, not for {place.slot}")
    carry_out = COMMITS.get(prepared.kind)
    if carry_out is None:
        raise CorruptError(
            f"record {place.slot} of job {place.job_name!r} has a sink of unknown kind {prepared.kind!r}: "
            "carry it out with the version of stateflow that wrote it"
        )
    still_owner()
    return carry_out(spark, prepared, place, still_owner, functions, stage)
