"""Every kind of sink: how a flow's declaration becomes a sink, and which function commits what it prepared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from stateflow.checkpoint.writer import CommitPermit
from stateflow.errors import CorruptError, UsageError
from stateflow.format.records import Prepared
from stateflow.pipelines.tables import DeltaTable
from stateflow.spark.sinks import delta_append, delta_rewind, delta_upsert, function, memory
from stateflow.spark.sinks.base import BatchFunction, Commit, Committed, Delivery, Sink
from stateflow.spark.sinks.delta_append import DeltaAppend
from stateflow.spark.sinks.delta_upsert import DeltaUpsert
from stateflow.spark.sinks.function import FunctionSink
from stateflow.spark.sinks.memory import MemorySink, MemoryTable
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
_TARGETS = {
    "append": "delta(path)",
    "upsert": "delta(path)",
    "function": "a function of (frame, checkpoint_id)",
    "collect": "memory(name)",
}


def make_sink(
    uid: str,
    mode: str,
    target: Any,
    options: Mapping[str, Any] | None = None,
    delivery: Delivery = "exactly_once",
) -> Sink:
    """The sink that a flow declares as `stream.<mode>(uid, target, **options)`."""
    arguments = {name: value for name, value in (options or {}).items() if value is not None}
    accepted = {"keys", "order_by"} if mode == "upsert" else set()
    if unknown := sorted(set(arguments) - accepted):
        raise UsageError(f"sink {uid!r} ({mode}) does not take {', '.join(unknown)}: leave it out")
    if mode == "append" and isinstance(target, DeltaTable):
        return DeltaAppend(target, delivery)
    if mode == "upsert" and isinstance(target, DeltaTable):
        return DeltaUpsert(target, arguments.get("keys", ()), arguments.get("order_by"), delivery)
    if mode == "function" and callable(target):
        return FunctionSink(target)
    if mode == "collect" and isinstance(target, MemoryTable):
        return MemorySink(target)
    raise UsageError(
        f"sink {uid!r} ({mode}) cannot write to {target!r}: give it {_TARGETS.get(mode, 'a known mode')}"
    )


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
