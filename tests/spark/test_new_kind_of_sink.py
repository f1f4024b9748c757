"""A kind of sink that the library does not have: it is declared, and has a class, and everything else follows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import stateflow as sf
from stateflow.errors import UsageError
from stateflow.format.records import Prepared
from stateflow.jobs.job import Job
from stateflow.pipelines import sink_kinds, sinks
from stateflow.pipelines.sink_kinds import SinkKind
from stateflow.spark.sinks import BatchFunction, Committed, DeliveryMode, Sink, SinkSlot, kinds
from tests.spark.pipelines import ORDER, Order, Sum, Workbench, at

LINES = SinkKind(
    name="lines", mode="lines", takes="a folder, as a Path", accepts=lambda target: isinstance(target, Path)
)


class LinesSink(Sink):
    """A file of JSON lines for each slot."""

    declared = LINES

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def of(cls, target: Path, options: Mapping[str, Any], delivery: DeliveryMode) -> LinesSink:
        return cls(target)

    def open(self, spark: SparkSession, schema: StructType) -> None:
        self._folder.mkdir(exist_ok=True)

    def prepare(self, frame: DataFrame, at: SinkSlot, prev: int | None, stager: Any) -> Prepared:
        lines = sorted(frame.toJSON().collect())
        return Prepared(
            kind=LINES.name, target=str(self._folder), prev=prev, payload={"lines": lines}, rows=len(lines)
        )

    @staticmethod
    def commit(
        spark: SparkSession,
        prepared: Prepared,
        at: SinkSlot,
        still_owner: Callable[[], None],
        functions: Mapping[str, BatchFunction],
        stager: Any,
    ) -> Committed:
        file = Path(prepared.target) / f"{at.slot:04}.json"
        if file.exists():
            return "already"
        file.write_text("".join(f"{line}\n" for line in prepared.payload["lines"]))
        return "committed"


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sink_kinds.KINDS, LINES.name, LINES)
    monkeypatch.setattr(kinds, "SINKS", (*kinds.SINKS, LinesSink))


def pipeline(bench: Workbench) -> sf.Pipeline:
    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        rows = flow.source("orders", bench.source("input", ORDER), Order)
        totals = rows.key_by("user", order_by="ts").process("sum", Sum)
        sinks.add_sink(totals, "out", "lines", bench.folder / "out", {})

    return orders


def written(bench: Workbench) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for file in sorted((bench.folder / "out").iterdir())
        for line in file.read_text().splitlines()
    ]


def test_its_rows_are_committed_once_over_runs(spark: SparkSession, bench: Workbench) -> None:
    bench.rows("input", [Order(1, "tea", 1.0, at(0)), Order(2, "tea", 2.0, at(1))])
    bench.run(pipeline(bench))
    first = written(bench)
    assert len(first) == 2
    bench.rows("input", [Order(1, "tea", 4.0, at(2))])
    bench.run(pipeline(bench))
    bench.run(pipeline(bench))
    assert written(bench)[:2] == first
    assert len(written(bench)) == 3
    head = Job(str(bench.folder / "root"), "orders").log().head
    assert head is not None
    assert head.sinks["out"].kind == "lines"


def test_a_target_that_does_not_fit_is_refused_with_what_fits(bench: Workbench) -> None:
    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        rows = flow.source("orders", bench.source("input", ORDER), Order)
        sinks.add_sink(rows, "out", "lines", "out", {})

    with pytest.raises(
        UsageError, match=r"'out' \(lines\) cannot write to 'out': give it a folder, as a Path"
    ):
        orders.build({})


def test_what_it_cannot_do_is_refused_in_a_sentence(spark: SparkSession) -> None:
    slot = SinkSlot("uuid", "orders", "out", 3, 1)
    prepared = Prepared(kind="lines", target="/out", prev=None, payload={"lines": []})
    assert not sink_kinds.rewindable(prepared)
    with pytest.raises(UsageError, match="cannot be taken back: restore without --rewind-sinks"):
        kinds.prepare_rewind(spark, prepared, slot, None, 2)
