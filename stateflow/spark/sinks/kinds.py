"""Every kind of sink: how a flow's declaration becomes a sink, and which function commits what it prepared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from stateflow.checkpoint.writer import CommitPermit
from stateflow.errors import CorruptError
from stateflow.format.records import Prepared
from stateflow.pipelines.step_checks import check_sink
from stateflow.spark.sinks import delta_append, delta_rewind, delta_upsert, function, memory
from stateflow.spark.sinks.base import BatchFunction, Commit, Committed, DeliveryMode, Sink
from stateflow.spark.sinks.delta_append import DeltaAppend
from stateflow.spark.sinks.delta_upsert import DeltaUpsert
from stateflow.spark.sinks.function import FunctionSink
from stateflow.spark.sinks.memory import MemorySink
from stateflow.spark.sinks.slot import SinkSlot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stateflow.spark.sinks.staging import Stager

COMMITS: dict[str, Commit] = {
    delta_append.KIND: delta_append.commit,
    delta_upsert.KIND: delta_upsert.commit,
    delta_rewind.KIND: delta_rewind.commit,
    function.KIND: function.commit,
    memory.KIND: memory.commit,
}


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
    if mode == "append":
        return DeltaAppend(target, delivery)
    if mode == "upsert":
        return DeltaUpsert(
            target,
            given["keys"],
            given.get("order_by"),
            delivery,
            given.get("operation") or "",
            given.get("delete_when"),
        )
    return FunctionSink(target) if mode == "function" else MemorySink(target)


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
    commit_kind = COMMITS.get(prepared.kind)
    if commit_kind is None:
        raise CorruptError(
            f"record {at.slot} of job {at.job_name!r} has a sink of unknown kind {prepared.kind!r}: "
            "run the job with the version of stateflow that wrote it"
        )
    still_owner()
    return commit_kind(spark, prepared, at, still_owner, functions, stager)
