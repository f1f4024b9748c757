"""Records as a run would decide them, for tests of sinks."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from stateflow.checkpoint.writer import CommitPermit
from stateflow.format.records import Owner, Prepared, Record, decode, encode
from stateflow.spark.internals.delta_log import Transaction
from stateflow.spark.sinks import BatchFunction, Committed, Sink, SinkSlot, commit
from stateflow.spark.sinks.staging import Stager
from stateflow.storage.roots import open_store


@dataclass
class Log:
    """The log of one job, as far as its sinks see it."""

    spark: SparkSession
    root: Path
    job: str = "3f2b6c1e-1111-4a6e-9d3f-0123456789ab"
    name: str = "orders"
    sink: str = "totals"
    last: int | None = None
    slot: int = 0
    functions: Mapping[str, BatchFunction] = field(default_factory=dict)
    still_owner: Callable[[], None] = lambda: None
    writer: str = "w"
    """What is unique to the record; of a copy of the log another one."""

    @property
    def stage(self) -> Stager:
        return Stager(partial(open_store, str(self.root)), lambda: uuid.uuid4().hex)

    def at(self, slot: int | None = None) -> SinkSlot:
        return SinkSlot(
            self.job, self.name, self.sink, slot or self.slot, 1, record=f"{self.writer}{slot or self.slot}"
        )

    def prepare(self, sink: Sink, frame: DataFrame) -> Prepared:
        """The next slot's output, as it comes back from a store."""
        self.slot += 1
        prepared = sink.prepare(frame, self.at(), self.last, self.stage)
        return self.recorded(prepared).sinks[self.sink]

    def recorded(self, prepared: Prepared) -> Record:
        record = Record(
            kind="checkpoint",
            job=self.job,
            slot=self.slot,
            epoch=1,
            writer="w",
            owner=Owner(run="r"),
            sinks={self.sink: prepared},
        )
        return decode(encode(record), Record, "test")

    def commit(self, prepared: Prepared, slot: int | None = None) -> Committed:
        at = self.at(slot)
        record = Record(
            kind="checkpoint", job=self.job, slot=at.slot, epoch=1, writer="w", owner=Owner(run="r")
        )
        permit = CommitPermit.to_carry_out(record)
        outcome = commit(self.spark, prepared, at, permit, self.still_owner, self.functions, self.stage)
        if outcome != "none":
            self.last = max(self.last or 0, at.slot)
        return outcome

    def deliver(self, sink: Sink, frame: DataFrame) -> Committed:
        return self.commit(self.prepare(sink, frame))


def contents(spark: SparkSession, path: Path | str, *columns: str) -> list[Any]:
    """The rows of a Delta table, sorted; plain values when there is one column."""
    rows = spark.read.format("delta").load(str(path)).select(*columns or ["*"]).collect()
    return sorted(row[0] if len(columns) == 1 else tuple(row) for row in rows)


def versions(path: Path) -> int:
    """How many commits a table has had."""
    return len(list((path / "_delta_log").glob("*.json")))


def while_writing(monkeypatch: pytest.MonkeyPatch, first: Callable[[], Any]) -> None:
    """Lets another writer commit once, after this one has begun its transaction and before it commits."""
    write, waiting = Transaction.write, [first]

    def slowly(self: Transaction, frame: DataFrame) -> list[str]:
        if waiting:
            waiting.pop()()
        return write(self, frame)

    monkeypatch.setattr(Transaction, "write", slowly)
