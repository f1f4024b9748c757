"""A kind of sink that another package brings: it is declared, and has a class, and everything else follows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import stateflow as sf
from stateflow.connectors import CommitRequest, Committed, Sink, SinkKind, SinkSlot, Stager
from stateflow.errors import UsageError
from stateflow.format.records import Prepared
from stateflow.jobs.job import Job
from stateflow.pipelines import offers, sink_kinds
from stateflow.spark.sinks import kinds
from tests.refusals.refusal import refused
from tests.spark.pipelines import ORDER, Order, Sum, Workbench, at

LINES = SinkKind(
    name="lines",
    mode="append",
    takes="a folder, as a Path",
    accepts=lambda target: isinstance(target, Path),
    implementation=f"{__name__}:LinesSink",
    place=lambda target: f"lines:{target}",
)


class LinesSink(Sink):
    """A file of JSON lines for each slot."""

    declared = LINES
    target: Path

    def open(self, spark: SparkSession, schema: StructType) -> None:
        self.target.mkdir(exist_ok=True)

    def prepare(self, frame: DataFrame, at: SinkSlot, stager: Stager) -> Prepared:
        lines = sorted(frame.toJSON().collect())
        return Prepared(kind=LINES.name, target=str(self.target), payload={"lines": lines}, rows=len(lines))

    @staticmethod
    def commit(request: CommitRequest) -> Committed:
        prepared = request.prepared
        file = Path(prepared.target) / f"{request.at.slot:04}.json"
        if file.exists():
            return "already"
        file.write_text("".join(f"{line}\n" for line in prepared.payload["lines"]))
        return "committed"


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    offer = offers.Offer(offers.SINKS, LINES.name, f"{__name__}:LINES", "lines-for-stateflow")
    monkeypatch.setattr(offers, "installed", lambda group: (offer,))


def pipeline(bench: Workbench) -> sf.Pipeline:
    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        rows = flow.source("orders", bench.source("input", ORDER), Order)
        totals = rows.key_by("user", order_by="ts").process("sum", Sum)
        totals.append("out", bench.folder / "out")

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
        rows.append("out", 5)

    with refused(UsageError, "'out' (append)", "5: ", "delta(path)", "a folder, as a Path"):
        orders.build({})


def test_two_sinks_cannot_write_to_one_place_of_it(bench: Workbench) -> None:
    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        rows = flow.source("orders", bench.source("input", ORDER), Order)
        rows.append("one", Path("/out"))
        rows.append("two", Path("/out"))

    with refused(UsageError, "'one' and 'two'", "lines:/out", "give each one"):
        orders.build({})


def test_what_it_cannot_do_is_refused_in_a_sentence(spark: SparkSession) -> None:
    slot = SinkSlot("uuid", "orders", "out", 3, 1)
    prepared = Prepared(kind="lines", target="/out", prev=None, payload={"lines": []})
    assert not sink_kinds.rewindable(prepared)
    with refused(UsageError, "cannot be taken back", "without --rewind-sinks"):
        kinds.prepare_rewind(spark, prepared, slot, 2)
