"""Every kind of sink: how a flow's declaration becomes one, and how a record's is carried out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stateflow.errors import UsageError
from stateflow.pipelines.tables import DeltaTable
from stateflow.spark.sinks import delta_append, delta_rewind, delta_upsert, function, memory
from stateflow.spark.sinks.base import Commit, Delivery, Sink
from stateflow.spark.sinks.delta_append import DeltaAppend
from stateflow.spark.sinks.delta_upsert import DeltaUpsert
from stateflow.spark.sinks.function import FunctionSink
from stateflow.spark.sinks.memory import MemorySink, MemoryTable

COMMITS: dict[str, Commit] = {
    delta_append.KIND: delta_append.carry_out,
    delta_upsert.KIND: delta_upsert.carry_out,
    delta_rewind.KIND: delta_rewind.carry_out,
    function.KIND: function.carry_out,
    memory.KIND: memory.carry_out,
}
_TAKES = {
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
    given = {name: value for name, value in (options or {}).items() if value is not None}
    taken = {"keys", "order_by"} if mode == "upsert" else set()
    if unknown := sorted(set(given) - taken):
        raise UsageError(f"sink {uid!r} ({mode}) does not take {', '.join(unknown)}: leave it out")
    if mode == "append" and isinstance(target, DeltaTable):
        return DeltaAppend(target, delivery)
    if mode == "upsert" and isinstance(target, DeltaTable):
        return DeltaUpsert(target, given.get("keys", ()), given.get("order_by"), delivery)
    if mode == "function" and callable(target):
        return FunctionSink(target)
    if mode == "collect" and isinstance(target, MemoryTable):
        return MemorySink(target)
    raise UsageError(
        f"sink {uid!r} ({mode}) cannot write to {target!r}: give it {_TAKES.get(mode, 'a known mode')}"
    )
