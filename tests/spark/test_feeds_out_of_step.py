"""A feed whose table has fallen behind the state: every way goes on, and the rows up to each slot are those of a plain model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import stateflow as sf
from stateflow.checkpoint.log import read_log
from stateflow.cli.main import app
from stateflow.format.layout import JobLayout
from stateflow.jobs.job import Job
from stateflow.storage.roots import open_store
from tests.spark.pipelines import ORDER, Order, Sum, Workbench, at
from tests.spark.sink_places import contents

AUDITED = "user long, kind string, slot long"


class Audit(sf.KeyedProcess[int, Any, Any]):
    rows = sf.ValueState(int, default=0)

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        for row in rows:
            self.rows.value += 1
            yield key, row.kind, row.slot


class Scene:
    """A job with a feed, and a model of it: what each user has spent, by slot."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.bench = spark, Workbench(spark, folder)
        self.files: list[list[int]] = []
        self.model: dict[int, tuple[int, dict[int, float]]] = {0: (0, {})}
        """By slot the files read so far, and the sums."""
        self.pipeline = self.declared("changes")
        self.warnings: list[str] = []

    def declared(self, *sinks: str, uid: str = "sum", audits: Sequence[str] = ()) -> sf.Pipeline:
        """A feed with these sinks, and with operators that count its rows."""
        bench = self.bench

        @sf.pipeline("orders")
        def orders(flow: sf.Flow) -> None:
            rows = flow.source("orders", bench.source("orders", ORDER), Order)
            sums = rows.key_by("user").process(uid, Sum)
            sums.collect("sums", sf.memory("feeds-out-of-step"))
            if sinks or audits:
                feed = flow.state_changes(uid, state="total")
                for sink in sinks:
                    feed.append(sink, sf.delta(str(bench.folder / sink.partition("-")[0])))
                for audit in audits:
                    feed.key_by("user").process(audit, Audit, output=AUDITED).collect(
                        audit, sf.memory(f"feed-{audit}")
                    )

        self.pipeline = orders
        return orders

    @property
    def job(self) -> Job:
        return Job(str(self.bench.folder / "root"), "orders")

    @property
    def options(self) -> Any:
        return self.bench.options()

    def batch(self, *users: int, **given: Any) -> int:
        self.files.append(list(users))
        self.bench.rows("orders", [Order(user, "a", 1.0 + user, at(len(self.files))) for user in users])
        return self.run(**given)

    def run(self, **given: Any) -> int:
        found = self.bench.run(self.pipeline, retained_checkpoints=50, **given)
        self.warnings = [each for each in found.warnings if "the feed of" in each]
        log = read_log(open_store(str(self.bench.folder / "root")), JobLayout("orders"))
        for record in log.chain:
            if record.slot in self.model or not record.carries_state:
                continue
            assert record.based_on is not None or not self.model.keys() - {0}
            read, sums = self.model[record.based_on or 0]
            if record.statistics.get("processed_rows"):
                sums = dict(sums)
                for user in self.files[read]:
                    sums[user] = sums.get(user, 0.0) + 1.0 + user
                read += 1
            self.model[record.slot] = read, sums
        return max(self.model)

    def restore(self, slot: int, **options: Any) -> int:
        return int(
            self.job.restore(f"checkpoint:{slot}", self.pipeline, options=self.options, **options)
            .apply()
            .checkpoint
        )

    def rows(self, table: str = "changes") -> list[Any]:
        return contents(self.spark, self.bench.folder / table, "user", "slot", "kind", "before", "after")

    def shown(self, slot: int, table: str = "changes") -> dict[int, float]:
        """The feed's rows up to a slot, applied in order to nothing."""
        held: dict[int, float] = {}
        rows = sorted((row for row in self.rows(table) if row[1] <= slot), key=lambda row: row[1])
        assert len({row[:2] for row in rows}) == len(rows), "one row per key and slot"
        for user, _, kind, before, after in rows:
            assert held.get(user) == before, (user, rows)
            held.pop(user, None)
            if kind not in ("delete", "expire"):
                held[user] = after
        return held

    def is_right(self, slot: int, table: str = "changes") -> bool:
        assert self.shown(slot, table) == self.model[slot][1], (slot, self.rows(table))
        return not self.warnings

    def replayed(self, slot: int) -> Mapping[str, Any]:
        """The batch again, with the same code: the rows of each sink then and now."""
        report = self.job.replay(self.pipeline, slot, slot, options=self.options)
        assert report.is_same, report.document()
        return {uid: (sink.before, sink.after) for uid, sink in report.sinks.items()}


@pytest.fixture
def scene(spark: SparkSession, tmp_path: Path) -> Scene:
    from stateflow.spark.session.shipping import by_value
    from tests.spark import pipelines

    by_value([pipelines])
    return Scene(spark, tmp_path)


@pytest.mark.slow
def test_a_rewind_to_a_restore_that_left_the_table_alone_is_told_and_replays_alike(scene: Scene) -> None:
    first = scene.batch(0, 1)
    scene.batch(0, 2)
    restored = scene.restore(first)
    (scene.bench.folder / "orders" / "00002.json").unlink()
    scene.files.pop()
    told = scene.batch(3)
    assert scene.is_right(told)
    assert {row[0]: row[2] for row in scene.rows() if row[1] == restored} == {0: "restore", 2: "delete"}
    assert scene.replayed(told)["changes"] == (3, 3)
    # Back to the first restore: its table lacked then what the batch behind it has told.
    again = scene.restore(restored, rewind_sinks=True)
    assert scene.run() > again
    assert scene.is_right(max(scene.model))
    assert scene.is_right(again)


@pytest.mark.slow
def test_a_feed_that_was_out_of_the_pipeline_or_whose_sink_is_renamed_goes_on(scene: Scene) -> None:
    scene.declared()
    scene.batch(0, 1)
    scene.declared("changes")
    begun = scene.batch(0)
    assert scene.is_right(begun)
    assert [row[2] for row in scene.rows() if row[1] < begun] == ["snapshot", "snapshot"]
    scene.declared()
    missed = scene.batch(0, 2)
    scene.declared("changes-renamed")
    told = scene.batch(2)
    assert scene.is_right(missed)
    assert scene.is_right(told)
    assert sorted(row[0] for row in scene.rows() if row[1] == missed) == [0, 2]
    assert scene.replayed(told)["changes-renamed"] == (3, 3)
    # A second table later gets what changes from now on, and the run says so.
    scene.declared("changes-renamed", "second")
    told = scene.batch(1)
    assert (
        "its tables (second) show the entries that batches change from now on, and no others"
        in scene.warnings[0]
    )
    scene.warnings.clear()
    assert scene.is_right(told)


class SumOfAnyRows(sf.KeyedProcess[int, Any, Any]):
    total = sf.ValueState(float, default=0.0)

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        self.total.value += sum(row.amount for row in rows)
        yield key, self.total.value


def with_customers(frame: Any) -> Any:
    return frame.withColumnRenamed("user", "customer")


@pytest.mark.slow
def test_a_feed_goes_on_from_before_its_key_columns_were_renamed(scene: Scene) -> None:
    bench, changes = scene.bench, sf.memory("feed-of-customers")
    changes.clear()

    def declared(key: str, feed: bool) -> sf.Pipeline:
        @sf.pipeline("customers")
        def customers(flow: sf.Flow) -> None:
            rows = flow.source("orders", bench.source("orders", ORDER), Order)
            if key == "customer":
                rows = rows.transform(with_customers, ORDER.replace("user", "customer"))
            sums = rows.key_by(key).process("sum", SumOfAnyRows, output="key long, total double")
            sums.collect("sums", sf.memory("sums-of-customers"))
            if feed:
                flow.state_changes("sum", state="total").collect("changes", changes)

        return customers

    for number, (key, feed) in enumerate([("user", True), ("customer", False), ("customer", True)]):
        bench.rows("orders", [Order(number, "a", 2.0, at(number))])
        found = bench.run(declared(key, feed), retained_checkpoints=50)
        assert not [each for each in found.warnings if "the feed of" in each]
    told = sorted((row.get("user", row.get("customer")), row["after"]) for row in changes.rows)
    assert told == [(0, 2.0), (1, 2.0), (2, 2.0)]


@pytest.mark.slow
def test_an_operator_that_reads_a_feed_begins_with_the_whole_state_or_is_named(scene: Scene) -> None:
    first, second = sf.memory("feed-first"), sf.memory("feed-second")
    first.clear()
    second.clear()
    scene.declared()
    before = scene.batch(0, 1)
    scene.declared(audits=["first"])
    begun = scene.batch(0)
    assert not scene.warnings
    expected = [(0, "put", begun), (0, "snapshot", before), (1, "snapshot", before)]
    assert sorted((row["user"], row["kind"], row["slot"]) for row in first.rows) == expected
    # A restore takes its own state along, so that it has had the rows of what is restored and no others.
    scene.batch(1)
    scene.restore(begun)
    scene.run()
    assert not scene.warnings
    scene.declared(audits=["first", "second"])
    scene.batch(0)
    (warning,) = scene.warnings
    assert (
        "its readers (operator 'second') show the entries that batches change from now on, and no others"
        in warning
    )
    assert [row["user"] for row in second.rows] == [0]
    scene.batch(0)
    assert not scene.warnings, "it is said once"
    # Without the feed in between, it has missed rows, and its own state says nothing of which.
    scene.declared()
    scene.batch(1, allow_non_restored_state=True)
    scene.declared(audits=["second"])
    scene.batch(1)
    assert not scene.warnings, "its state went with it, and it begins again"
    assert sorted(row["user"] for row in second.rows if row["kind"] == "snapshot") == [0, 1]


def test_a_feed_of_another_operator_in_the_same_table_is_named(scene: Scene) -> None:
    scene.batch(0, 1)
    scene.declared("changes", uid="sums-anew")
    scene.batch(2, allow_non_restored_state=True)
    (warning,) = scene.warnings
    assert "begins in tables (changes) that still show state 'total' of operator 'sum'" in warning
    scene.batch(2)
    assert not scene.warnings, "it is said once"


@pytest.mark.slow
def test_what_an_erasure_says_of_the_feeds_tables_is_done_and_the_feed_goes_on(scene: Scene) -> None:
    scene.batch(0, 1)
    scene.batch(1, 2)
    root = scene.bench.folder / "root"
    words = ("state", "erase", "orders", "1", "--yes", "--checkpoint-dir", str(root))
    said = CliRunner().invoke(
        app, list(words), env={"STATEFLOW_CACHE_DIR": str(scene.bench.folder / "cache")}
    )
    assert said.exit_code == 0, said.output
    advice = re.search(r"VACUUM\): (.+) in (.+)", said.output)
    assert advice is not None, said.output
    condition, table = advice.groups()
    DeltaTable.forPath(scene.spark, table).delete(condition)
    head = scene.job.log().head
    assert head is not None
    scene.model[head.slot] = (2, {0: 1.0, 2: 3.0})
    told = scene.batch(2)
    assert (
        "its tables (changes) still have those of the erased key, which have to be deleted there"
        in scene.warnings[0]
    )
    scene.warnings.clear()
    assert scene.is_right(told)
    assert {row[0] for row in scene.rows()} == {0, 2}
    scene.batch(1)
    assert scene.is_right(scene.batch(0, 1))
