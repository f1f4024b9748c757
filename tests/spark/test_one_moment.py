"""A report over three tables of a job never sees half a batch, whenever it asks which versions belong together."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import stateflow as sf
from stateflow.errors import NotFoundError, StateflowError
from stateflow.jobs.job import Job
from stateflow.pipelines.delivery import Delivery
from stateflow.spark import carry_out
from stateflow.spark.state_tables.source import register
from tests.spark.pipelines import ORDER, Order, Sum, Workbench, at

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sinks.md"
TABLES = ("bills", "latest", "log")


class Died(RuntimeError):
    """The run ends here."""


@dataclass
class Report:
    """Per order, of which a batch has one for each of three users, whether each table has it."""

    bench: Workbench
    seen: list[tuple[int, ...]] = field(default_factory=list)
    """What the tables had, report by report: the batches in each."""

    @property
    def job(self) -> Job:
        return self.bench.job("orders")

    @property
    def pipeline(self) -> sf.Pipeline:
        bench = self.bench

        @sf.pipeline("orders")
        def orders(flow: sf.Flow) -> None:
            rows = flow.source("orders", bench.source("orders", ORDER), Order)
            rows.append("bills", sf.delta(str(bench.folder / "bills")))
            totals = rows.key_by("user", order_by="ts").process("sum", Sum)
            totals.upsert("latest", sf.delta(str(bench.folder / "latest")), keys=["user"])
            totals.append("log", sf.delta(str(bench.folder / "log")))

        return orders

    def feed(self, batches: range) -> None:
        """Each order is of 1, so that a user's total is the number of batches."""
        for batch in batches:
            self.bench.rows("orders", [Order(user, "a", 1.0, at(batch)) for user in range(3)])

    def read(self, as_of: str | int = "latest") -> tuple[int, ...]:
        """The batches that each table has at a moment."""
        sinks = self.job.versions(as_of).sinks
        assert tuple(sinks) == TABLES
        spark = self.bench.spark
        bills, latest, log = (sinks[name].read(spark) for name in TABLES)
        users = [row["total"] for row in latest.collect()]
        assert len(set(users)) <= 1
        found = bills.count() // 3, int(users[0] if users else 0), log.count() // 3
        self.seen.append(found)
        return found


@pytest.fixture
def report(spark: SparkSession, bench: Workbench) -> Report:
    return Report(bench)


def around_commits(monkeypatch: pytest.MonkeyPatch, then: Callable[[str], Any]) -> None:
    """Calls `then` after each sink's commit."""
    commit = carry_out.commit

    def watched(request: Any, permit: Any) -> Any:
        came = commit(request, permit)
        then(request.at.sink)
        return came

    monkeypatch.setattr(carry_out, "commit", watched)


def the_moments_are_a_table_for_sql(report: Report) -> None:
    """As the page says."""
    spark = report.bench.spark
    register(spark)
    root = report.bench.folder / "root"
    text = PAGE.read_text(encoding="utf-8")
    [made] = re.findall(r"^```sql\n(CREATE .*?)^```", text, re.M | re.S)
    view, asked = made.replace("/data/checkpoints", str(root)).replace("'shop'", "'orders'").split(";")
    spark.sql(view)
    assert {row["slot"] for row in spark.sql(asked).collect()} == {report.job.versions().slot}
    [function] = re.findall(r"^```python\n(def report.*?)^```", text, re.M | re.S)
    names: dict[str, Any] = {"sf": sf}
    exec(function.replace('"shop"', '"orders"'), names)
    assert names["report"](spark, str(root)).count() == 6  # two orders of each user, with its total
    rows = spark.sql("SELECT * FROM _stateflow_versions ORDER BY slot, sink").collect()
    slots = [record.slot for record in report.job.checkpoints()]
    assert [(row["slot"], row["sink"]) for row in rows] == [(slot, name) for slot in slots for name in TABLES]
    for row in rows:
        expected = report.job.versions(row["slot"]).sinks[row["sink"]]
        assert (row["job"], row["path"], row["version"], row["why"]) == (
            "orders",
            expected.target,
            expected.version,
            "",
        )
    times = {row["slot"]: row["time"] for row in rows}
    assert sorted(times, key=times.__getitem__) == slots
    read = spark.read.format("stateflow").option("checkpoint_dir", str(root)).option("job", "orders")
    one = read.option("versions", "true").option("at", slots[0]).load()
    assert {row["slot"] for row in one.collect()} == {slots[0]}
    with pytest.raises(Exception, match="option operator does not go with option versions"):
        read.option("versions", "true").option("operator", "sum").load()


@pytest.mark.slow
def test_a_reader_beside_the_job_sees_whole_batches_and_sql_has_the_moments(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    report.feed(range(1))
    report.bench.run(report.pipeline)
    first = report.job.versions().slot
    around_commits(monkeypatch, lambda sink: report.read())
    report.feed(range(1, 2))
    report.bench.run(report.pipeline)
    # While the three sinks commit, the batch before is the newest that all have.
    assert report.seen == [(1, 1, 1)] * 3
    assert report.read() == (2, 2, 2)
    assert report.read(first) == (1, 1, 1)
    the_moments_are_a_table_for_sql(report)


@pytest.mark.slow
def test_a_run_that_ends_between_two_commits_leaves_the_batch_before_for_readers(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    report.feed(range(1))
    report.bench.run(report.pipeline)
    first = report.job.versions().slot
    report.feed(range(1, 2))
    committed: list[str] = []

    def die(sink: str) -> None:
        committed.append(sink)
        raise Died

    with monkeypatch.context() as patched:
        around_commits(patched, die)
        with pytest.raises(StateflowError):
            report.bench.run(report.pipeline)
    half = report.job.log().pending[-1].slot
    assert len(committed) == 1
    assert report.read() == (1, 1, 1)
    with pytest.raises(NotFoundError, match="not every sink has its output yet"):
        report.read(half)
    report.bench.run(report.pipeline, takeover=True)
    assert report.read() == report.read(half) == (2, 2, 2)
    # A rewind is a moment of its own, and the slots that it took back keep theirs.
    report.job.restore(
        f"checkpoint:{first}", report.pipeline, options=report.bench.options(), rewind_sinks=True
    ).apply()
    assert report.read() == (1, 1, 1)
    assert report.read(half) == (2, 2, 2)


@pytest.mark.slow
def test_a_function_finds_the_batch_in_the_tables_before_it(spark: SparkSession, bench: Workbench) -> None:
    tables = [str(bench.folder / name) for name in ("one", "two")]
    seen = []

    def tell(frame: DataFrame, delivery: Delivery) -> None:
        seen.append((frame.count(), *(spark.read.format("delta").load(table).count() for table in tables)))

    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        rows = flow.source("orders", bench.source("orders", ORDER), Order)
        for number, table in enumerate(tables):
            rows.append(f"table{number}", sf.delta(table))
        rows.for_each_batch("told", tell)

    for batch in range(3):
        bench.rows("orders", [Order(1, "a", 1.0, at(batch))])
        bench.run(orders)
    assert seen == [(1, number, number) for number in (1, 2, 3)]
