"""Records as a run would decide them, for tests of sinks: the log of one job, as far as one of its sinks sees it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stateflow.checkpoint.writer import CommitPermit
from stateflow.format.records import Owner, Prepared, Record, decode, encode
from stateflow.pipelines.sink_kinds import kind_of
from stateflow.pipelines.sinks import check_sink
from stateflow.spark.sinks.base import BatchFunction, CommitRequest, Committed, DeliveryMode, Sink
from stateflow.spark.sinks.kinds import class_of, commit
from stateflow.spark.sinks.slot import SinkSlot
from stateflow.spark.sinks.staging import Stager
from stateflow.storage.roots import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def make_sink(
    uid: str,
    mode: str,
    target: Any,
    options: Mapping[str, Any] | None = None,
    delivery: DeliveryMode = "exactly_once",
) -> Sink:
    """The sink that a flow declares as `stream.<mode>(uid, target, **options)`."""
    given = options or {}
    kind = kind_of(mode, target, f"sink {uid!r} ({mode})")
    check_sink(uid, kind, target, given)
    return class_of(kind)(target, given, delivery)


@dataclass
class SinkLog:
    """Decides a slot after the other, and commits what is decided as whoever finds the record does."""

    spark: SparkSession
    root: Path
    job: str = "3f2b6c1e-1111-4a6e-9d3f-0123456789ab"
    name: str = "orders"
    sink: str = "totals"
    last: int | None = None
    """The slot last committed to the sink."""
    slot: int = 0
    """The slot last decided."""
    late: tuple[int, ...] = ()
    """Abandoned slots that may have arrived all the same."""
    functions: Mapping[str, BatchFunction] = field(default_factory=dict)
    still_owner: Callable[[], None] = lambda: None
    writer: str = "w"
    """What is unique to the record; of a copy of the log another one."""

    @property
    def stage(self) -> Stager:
        return Stager(partial(open_store, str(self.root)), lambda: uuid.uuid4().hex)

    def at(self, slot: int | None = None) -> SinkSlot:
        number = slot or self.slot
        writer = f"{self.writer}{number}"
        return SinkSlot(self.job, self.name, self.sink, number, 1, self.late, writer, self.last)

    def prepare(self, sink: Sink, frame: DataFrame) -> Prepared:
        """The next slot's output, as it comes back from a store."""
        self.slot += 1
        prepared = sink.prepare(frame, self.at(), self.stage)
        sink.check(prepared, self.at(), self.stage)
        return self.stored(prepared)

    def stored(self, prepared: Prepared) -> Prepared:
        return self.recorded(prepared).sinks[self.sink]

    def recorded(self, prepared: Prepared) -> Record:
        record = Record(
            kind="checkpoint",
            job=self.job,
            slot=self.slot,
            epoch=1,
            writer="w",
            owner=Owner(run="r"),
            sinks={self.sink: msgspec.structs.replace(prepared, prev=self.last)},
        )
        return decode(encode(record), Record, "test")

    def commit(self, prepared: Prepared, slot: int | None = None) -> Committed:
        at = replace(self.at(slot), prev=prepared.prev)
        record = Record(
            kind="checkpoint", job=self.job, slot=at.slot, epoch=1, writer="w", owner=Owner(run="r")
        )
        permit = CommitPermit.to_carry_out(record)
        function = self.functions.get(at.sink)
        request = CommitRequest(prepared, at, self.spark, self.stage, self.still_owner, function)
        outcome = commit(request, permit)
        if outcome != "none":
            self.last = max(self.last or 0, at.slot)
        return outcome

    def deliver(self, sink: Sink, frame: DataFrame) -> Committed:
        return self.commit(self.prepare(sink, frame))
