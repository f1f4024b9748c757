"""Batches of a job, run again on a fork: the same code gives no difference, and other code gives all of its own."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import stateflow as sf
from stateflow.checkpoint.pins import list_pins
from stateflow.errors import DisagreementError, NotFoundError, UsageError
from stateflow.jobs.job import Job
from stateflow.replay.comparison import ReplayReport
from stateflow.replay.listing import listing
from tests.refusals.refusal import refused
from tests.spark.pipelines import Workbench, at

pytestmark = pytest.mark.system


@dataclass
class Order:
    id: int
    user: int
    amount: float
    ts: datetime


@dataclass
class Total:
    user: int
    total: float
    luck: float
    asked_at: datetime


@dataclass
class Unlucky:
    """A total without a column."""

    user: int
    total: float
    asked_at: datetime


@dataclass
class Named:
    id: int
    user: int
    name: str | None


class Balance(sf.KeyedProcess[int, Order, Total]):
    total = sf.ValueState(float, default=0.0)
    seen = sf.ListState(int)
    remind = sf.Timer("event")

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        for row in rows:
            self.total.value += self.worth(row)
            self.seen.add(row.id)
        self.remind.set(row.ts + timedelta(minutes=1))
        yield Total(key, self.total.value, ctx.random.random(), ctx.now)

    def worth(self, row: Order) -> float:
        return row.amount

    @remind.fires
    def on_remind(self, key: int, when: datetime, ctx: sf.Context) -> Any:
        yield Total(key, -1.0, ctx.random.random(), ctx.now)


class Doubled(Balance):
    def worth(self, row: Order) -> float:
        return row.amount * 2 if row.user == 2 else row.amount


class Audited(Balance):
    """Its pipeline has one sink more."""


class Unsent(Balance):
    """Its pipeline lacks the sink of the upsert."""


class Shortened(sf.KeyedProcess[int, Order, Unlucky]):
    """Without a column, and without two of the states."""

    forgets = ("seen", "remind")
    total = sf.ValueState(float, default=0.0)

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        self.total.value += sum(row.amount for row in rows)
        yield Unlucky(key, self.total.value, ctx.now)


class Guessed(Balance):
    def worth(self, row: Order) -> float:
        return row.amount + random.random() if row.user == 3 else row.amount


class Sampled(Balance):
    """Its rows come from a step that is not deterministic."""


class Columnar(Balance):
    """Its pipeline has an operator over Arrow tables, which is not deterministic."""


class Stamped(Balance):
    """Steps behind it are not deterministic."""


def guesses(table: pa.Table, state: Any, ctx: Any) -> pa.Table:
    found = table.group_by("user").aggregate([("amount", "sum")])
    state.put(found["user"], pa.table({"total": pc.add(found["amount_sum"], random.random())}))
    return pa.table({"user": found["user"]})


class Ordered(Balance):
    """Its state has texts in the order of a set."""

    notes = sf.ValueState(str, default="")

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        yield from super().process(key, rows, ctx)
        self.notes.value = " ".join({f"user {key}", "of", "a", "set", "words", "in", "no", "order"})


class Forgetful(sf.KeyedProcess[int, Order, Total]):
    """Without two of the states."""

    total = sf.ValueState(float, default=0.0)

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        self.total.value += sum(row.amount for row in rows)
        yield Total(key, self.total.value, ctx.random.random(), ctx.now)


def names_of(keys: list[int]) -> list[dict[str, Any]]:
    Path(ASKED).write_text(Path(ASKED).read_text() + f"{keys}\n")
    return [{"name": f"user {key}"} for key in keys]


ASKED = "set by the fixture"


@dataclass
class Shop:
    spark: SparkSession
    bench: Workbench
    pipeline: Callable[..., sf.Pipeline]
    delivered: list[int] = field(default_factory=list)

    @property
    def job(self) -> Job:
        return Job(str(self.bench.folder / "root"), "shop")

    def replay(
        self, process: Any = Balance, first: Any = 0, last: Any = "latest", **request: Any
    ) -> ReplayReport:
        return self.job.replay(
            self.pipeline(process), first or self.slots[1], last, options=self.bench.options(), **request
        )

    @property
    def slots(self) -> list[int]:
        return [record.slot for record in self.bench.records("shop")]


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A job with four batches of orders, then an append, an upsert, a function and an enrichment."""
    from stateflow.spark.session.shipping import by_value
    from tests.replay import test_replaying
    from tests.spark import pipelines

    global ASKED
    bench = Workbench(spark, tmp_path_factory.mktemp("replay"))
    ASKED = test_replaying.ASKED = str(bench.folder / "asked")
    Path(ASKED).write_text("")
    by_value([pipelines, test_replaying])
    delivered: list[int] = []

    def pipeline(process: Any) -> sf.Pipeline:
        @sf.pipeline("shop")
        def orders(flow: sf.Flow) -> None:
            rows = flow.source(
                "orders",
                bench.source("orders", "id int, user int, amount double, ts timestamp"),
                Order,
                event_time="ts",
                watermark="0 seconds",
            )
            if process is Sampled:
                rows = rows.transform(lambda frame: frame.withColumn("amount", F.rand()), type=Order)
            totals = rows.key_by("user").process("balance", process)
            if process is Stamped:
                stamped = totals.transform(lambda frame: frame.withColumn("total", F.rand()), type=Total)
                stamped.append("stamped", sf.delta(str(bench.folder / "stamped")))
            if process is Columnar:
                guessed = rows.key_by("user").process_arrow(
                    "guesses", guesses, state={"total": float}, output="user int"
                )
                guessed.append("guessed", sf.delta(str(bench.folder / "guessed")))
            totals.append("totals", sf.delta(str(bench.folder / "totals")))
            if process is Audited:
                totals.append("audit", sf.delta(str(bench.folder / "audit")))
            last = totals.key_by("user").aggregate(
                "last", "user long, total double, n long", total=sf.sum("total"), n=sf.count()
            )
            if process is not Unsent:
                last.upsert("last", sf.delta(str(bench.folder / "last")), keys=["user"])
            named = rows.key_by("user").enrich("names", names_of, Named)
            named.for_each_batch("named", lambda frame, delivery: delivered.append(delivery.slot))

        return orders

    for minute in range(4):
        bench.rows(
            "orders",
            [
                Order(10 * minute + user, user, 1.0 + minute, at(2 * minute))
                for user in range(minute, minute + 3)
            ],
        )
    made = Shop(spark, bench, pipeline, delivered)
    bench.run(pipeline(Balance), retained_checkpoints=20)
    return made


def _listing(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "scratch" not in str(path) and "cache" not in path.parts
    }


def test_the_newest_batches_are_taken_from_one_look_at_the_log(shop: Shop) -> None:
    report = shop.replay(newest=2, compare=False, notes=["a note"])

    assert (report.first, report.last, report.batches) == (shop.slots[-2], shop.slots[-1], 2)
    assert report.notes == ["a note"]
    more = shop.replay(newest=1000, compare=False)
    assert (more.last, more.batches) == (report.last, len(shop.slots))
    assert "instead of 1000" in more.notes[0]
    assert list_pins(shop.job.store, shop.job.layout) == []


def test_the_same_code_gives_no_difference_publishes_nothing_and_leaves_nothing(shop: Shop) -> None:
    before, asked, delivered = _listing(shop.bench.folder), Path(ASKED).read_text(), list(shop.delivered)

    report = shop.replay(check=True)

    assert report.batches >= 3
    assert report.notes == ["no operator did anything else at a second try of its batches"]
    assert report.is_same, report.document()
    assert report.excess(0.0) == ""
    assert report.uncompared == []
    assert {uid: sink.before for uid, sink in report.sinks.items()} == {
        uid: sink.after for uid, sink in report.sinks.items()
    }
    assert all(sink.before for sink in report.sinks.values()), report.document()
    assert {(s.operator, s.state) for s in report.states} >= {
        ("balance", "total"),
        ("balance", "seen"),
        ("balance", "remind"),
        ("names", "answers"),
    }
    assert report.fork_bytes < 256 * 1024
    assert _listing(shop.bench.folder) == before
    assert (Path(ASKED).read_text(), shop.delivered) == (asked, delivered), "a replay calls nobody"


def test_other_code_is_shown_by_row_and_by_key(shop: Shop, tmp_path: Path) -> None:
    with listing(tmp_path / "changes.jsonl") as take:
        report = shop.replay(Doubled, changes=take)

    assert not report.is_same
    totals = report.sinks["totals"]
    assert {change.key["user"] for _, change in totals.changes} == {2}
    assert totals.counts == {"different": totals.changed}
    before = totals.changes[0][1].before
    after = totals.changes[0][1].after
    assert before is not None
    assert after is not None
    assert after["total"] > before["total"]
    assert {name: before[name] for name in ("luck", "asked_at")} == {
        name: after[name] for name in ("luck", "asked_at")
    }
    assert report.sinks["named"].changed == 0
    state = next(s for s in report.states if s.state == "total")
    assert [(c.key, c.kind) for c in state.changes] == [(2, "different")]
    assert state.changes[0].after > state.changes[0].before
    lines = [json.loads(line) for line in (tmp_path / "changes.jsonl").read_text().splitlines()]
    (listed,) = (line for line in lines if (line["operator"], line["state"]) == ("balance", "total"))
    assert (listed["sink"], listed["slot"], listed["key"], listed["after"]) == (
        None,
        report.last,
        2,
        state.changes[0].after,
    )
    assert len(lines) == sum(each.changed for each in (*report.sinks.values(), *report.states))
    assert "of sink 'totals' would be others, and max_changed=0.01 lets 0 pass" in report.excess(0.01)
    assert report.excess(1.0) == ""


def test_state_that_the_code_no_longer_declares_is_said_to_be_gone(shop: Shop) -> None:
    report = shop.replay(Forgetful, allow_non_restored_state=True)

    gone = {(s.operator, s.state) for s in report.states if s.note == "the state is gone"}
    assert gone == {("balance", "seen"), ("balance", "remind")}
    assert not report.is_same
    assert report.lets_go


def test_a_sink_that_is_new_is_compared_with_nothing_and_no_limit_counts_its_rows(shop: Shop) -> None:
    report = shop.replay(Audited)

    audit = report.sinks["audit"]
    assert (audit.before, audit.counts, audit.new_batches) == (0, {}, report.batches)
    assert audit.new_rows == report.sinks["totals"].after > 0
    assert not report.is_same
    assert report.excess(0.0) == ""
    assert "the pipeline had no sink 'audit' in" in report.notes[0]


def test_a_sink_that_the_code_lacks_has_all_its_rows_gone(shop: Shop, tmp_path: Path) -> None:
    with listing(tmp_path / "changes.jsonl") as take:
        report = shop.replay(Unsent, changes=take)

    last = report.sinks["last"]
    assert (last.after, last.counts, last.gone_batches) == (0, {"gone": last.before}, report.batches)
    assert last.before > 0
    assert not report.is_same
    assert "no sink 'last' any more" in report.notes[0]
    assert "the code has no sink 'last'" in report.excess(0.5)
    assert "max_changed=0.5" in report.excess(0.5)
    assert report.excess(1.0) == "", "as docs/time-machine.md says to whoever means it"
    assert len((tmp_path / "changes.jsonl").read_text().splitlines()) == last.before
    assert not shop.replay(Unsent, compare=False).sinks.get("last")


def test_a_column_that_the_code_lacks_makes_every_row_another_one(shop: Shop) -> None:
    report = shop.replay(Shortened)
    assert (report.lets_go, report.forgotten) == (False, {("balance", "seen"), ("balance", "remind")})

    totals = report.sinks["totals"]
    assert totals.columns_gone == ("luck",)
    assert totals.shortened > 0
    assert not report.is_same
    assert "sink 'totals'" in report.excess(0.5)
    assert "luck" in report.excess(0.5)
    assert report.excess(1.0) == ""


def test_from_the_jobs_first_batch_it_begins_with_nothing(shop: Shop) -> None:
    report = shop.replay(first=shop.slots[0])

    assert report.is_same, report.document()
    assert report.batches == len(shop.slots)


def test_the_jobs_first_batch_has_the_key_groups_and_subtasks_of_then(
    spark: SparkSession, tmp_path: Path
) -> None:
    bench = Workbench(spark, tmp_path)

    class Counted(sf.PartitionProcess[Order, Order]):
        count = sf.OperatorListState(int)

        def process(self, rows: Any, ctx: sf.Context) -> Any:
            passed = list(rows)
            self.count.update([sum(self.count.get()) + len(passed)])
            yield from passed

    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        # Its first record only tells where the source begins.
        source = sf.files(str(bench.folder / "orders"), "json", per_batch=1)
        rows = flow.source("orders", source, Order, event_time="ts", watermark="0 seconds")
        counted = rows.process_partition("counted", Counted)
        counted.key_by("user").process("balance", Balance).append(
            "totals", sf.delta(str(bench.folder / "totals"))
        )

    for n in range(2):
        bench.rows("orders", [Order(10 * n + user, user, 1.0, at(n)) for user in range(6)])
    bench.run(orders, retained_checkpoints=20, parallelism=2, max_parallelism=8)
    begins, first, *_ = (record.slot for record in bench.records("orders"))
    for today in ({"parallelism": 4}, {"parallelism": 1, "max_parallelism": 4}):
        for slot in (begins, first):
            report = bench.job("orders").replay(orders, slot, options=bench.options(**today))
            assert report.is_same, report.document()


@pytest.mark.parametrize(
    ("process", "where", "what"),
    [
        (Guessed, "operator 'balance'", "the rows that it puts out"),
        (Ordered, "operator 'balance'", "state 'notes'"),
        (Sampled, "operator 'balance' or a step before it", "the rows that it puts out"),
        (Columnar, "operator 'guesses'", "state 'columns'"),
        (Stamped, "the steps before sink 'stamped'", "rows"),
    ],
)
def test_what_is_not_deterministic_is_named_with_a_key_and_both_values(
    shop: Shop, process: Any, where: str, what: str
) -> None:
    report = shop.replay(process, check=True, compare=False, allow_non_restored_state=True)

    found = report.unsteady
    assert found is not None
    assert (found.where, found.what) == (where, what)
    if process is Guessed:
        assert found.key == {"user": 3}
    assert found.key is not None
    assert found.first != found.second


def test_what_cannot_be_replayed_is_refused_before_anything_is_computed(shop: Shop) -> None:
    with refused(NotFoundError, "checkpoint 99"):
        shop.replay(first=99)
    with refused(UsageError, "give an older one first"):
        shop.replay(first=shop.slots[2], last=shop.slots[1])

    first = shop.bench.folder / "orders" / "00002.json"
    away = first.rename(first.with_suffix(".away"))
    try:
        with refused(DisagreementError, "the input of checkpoint", "source 'orders'", "lacks 1 of 1 files"):
            shop.replay()
    finally:
        away.rename(first)


def test_an_upsert_by_another_order_is_compared_by_the_rows_that_win(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The rows that it is given are the same."""
    bench = Workbench(spark, tmp_path)

    def code(order_by: str) -> sf.Pipeline:
        @sf.pipeline("prices")
        def prices(flow: sf.Flow) -> None:
            rows = flow.source(
                "orders", bench.source("orders", "id int, user int, amount double, ts timestamp"), Order
            )
            rows.upsert("last", sf.delta(str(bench.folder / "last")), keys="user", order_by=order_by)

        return prices

    bench.rows("orders", [Order(1, 7, 1.0, at(0))])
    bench.run(code("id"), retained_checkpoints=20)
    bench.rows("orders", [Order(2, 7, 9.0, at(1)), Order(3, 7, 1.0, at(2)), Order(4, 8, 5.0, at(2))])
    bench.run(code("id"), retained_checkpoints=20)
    first = bench.records("prices")[1].slot
    reports = [
        bench.job("prices").replay(code(by), first, "latest", options=bench.options())
        for by in ("ID", "amount")
    ]
    assert reports[0].is_same
    assert (reports[0].sinks["last"].before, reports[1].sinks["last"].before) == (4, 3)
    [(_, change)] = reports[1].sinks["last"].changes
    assert (change.kind, change.key, change.before["amount"], change.after["amount"]) == (
        "different",
        {"user": 7},
        1.0,
        9.0,
    )
    assert "of sink 'last' would be others" in reports[1].excess(0.0)


def test_a_dead_letter_is_the_same_wherever_its_line_has_moved(spark: SparkSession, tmp_path: Path) -> None:
    bench = Workbench(spark, tmp_path)

    class Failing(Balance):
        def worth(self, row: Order) -> float:
            raise ValueError(f"no worth of {row.id}")

    class Moved(Balance):
        # A line more, and another place.
        def worth(self, row: Order) -> float:
            raise ValueError(f"no worth of {row.id}")

    class Otherwise(Balance):
        def worth(self, row: Order) -> float:
            raise ValueError(f"no value of {row.id}")

    def code(process: Any) -> sf.Pipeline:
        @sf.pipeline("letters")
        def letters(flow: sf.Flow) -> None:
            source = bench.source("orders", "id int, user int, amount double, ts timestamp")
            rows = flow.source("orders", source, Order, event_time="ts", watermark="0 seconds")
            totals = rows.key_by("user").process("balance", process, on_error="dead_letter")
            totals.append("totals", sf.delta(str(bench.folder / "totals")))
            totals.dead_letters.append("letters", sf.delta(str(bench.folder / "letters")))

        return letters

    for n in (1, 2):
        bench.rows("orders", [Order(n, n, 1.0, at(n))])
        bench.run(code(Failing), retained_checkpoints=20, dead_letter_threshold=5)
    first = bench.records("letters")[1].slot
    moved, otherwise = (
        bench.job("letters").replay(code(process), first, "latest", options=bench.options())
        for process in (Moved, Otherwise)
    )
    assert (moved.is_same, moved.sinks["letters"].before > 0) == (True, True)
    assert otherwise.sinks["letters"].changed


def test_a_batch_whose_output_was_given_up_is_compared_with_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    bench = Workbench(spark, tmp_path)
    broken: set[int] = set()

    def hook(frame: Any, delivery: Any) -> None:
        if delivery.slot in broken:
            raise RuntimeError("nobody takes it")

    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        source = bench.source("orders", "id int, user int, amount double, ts timestamp")
        rows = flow.source("orders", source, Order, event_time="ts", watermark="0 seconds")
        rows.key_by("user").process("balance", Balance).for_each_batch("told", hook)

    bench.rows("orders", [Order(1, 1, 1.0, at(1))])
    bench.run(orders, retained_checkpoints=20)
    first = bench.records("orders")[0].slot
    broken |= set(range(first + 1, first + 9))
    bench.rows("orders", [Order(2, 2, 1.0, at(2)), Order(3, 3, 1.0, at(2))])
    with pytest.raises(Exception, match="nobody takes it"):
        bench.run(orders, retained_checkpoints=20)
    slot = bench.job("orders").log().pending[-1].slot
    bench.job("orders").abandon(slot)
    broken.clear()
    bench.rows("orders", [Order(4, 1, 1.0, at(3))])
    bench.run(orders, retained_checkpoints=20)

    report = bench.job("orders").replay(orders, first, options=bench.options())
    told = report.sinks["told"]
    assert (report.is_same, report.excess(0.0)) == (True, ""), report.document()
    assert (told.abandoned_batches, told.abandoned_rows, told.before, told.after) == (1, 2, 4, 4)
    assert "was given up with `stateflow abandon`: the 2 rows" in report.notes[0]


class Silent(Balance):
    """It puts nothing out."""

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        self.total.value += sum(row.amount for row in rows)
        return []


@pytest.fixture
def plain(spark: SparkSession, tmp_path: Path) -> Workbench:
    return Workbench(spark, tmp_path)


def code_of(plain: Workbench, *sinks: str, process: Any = Balance) -> sf.Pipeline:
    @sf.pipeline("plain")
    def pipeline(flow: sf.Flow) -> None:
        source = plain.source("orders", "id int, user int, amount double, ts timestamp")
        rows = flow.source("orders", source, Order, event_time="ts", watermark="0 seconds")
        totals = rows.key_by("user").process("balance", process)
        for sink in sinks:
            totals.append(sink, sf.delta(str(plain.folder / sink)))

    return pipeline


def run_twice(plain: Workbench, code: sf.Pipeline) -> int:
    """The slot of the second batch."""
    for n in (1, 2):
        plain.rows("orders", [Order(n, n, 1.0, at(n))])
        plain.run(code, retained_checkpoints=20)
    return plain.records("plain")[-1].slot


def test_a_second_try_of_a_batch_whose_operator_puts_nothing_out_is_compared(plain: Workbench) -> None:
    code = code_of(plain, "first", "second", process=Silent)
    slot = run_twice(plain, code)
    report = plain.job("plain").replay(code, slot, options=plain.options(), check=True)
    assert (report.is_same, report.unsteady) == (True, None)


def test_the_first_sink_of_a_job_is_compared_with_nothing(plain: Workbench) -> None:
    slot = run_twice(plain, code_of(plain))
    report = plain.job("plain").replay(code_of(plain, "first"), slot, options=plain.options())
    first = report.sinks["first"]
    assert (first.new_batches, first.new_rows > 0, first.counts) == (1, True, {})
    assert report.excess(0.0) == ""


def test_the_last_sinks_that_a_job_itself_has_given_up_are_not_gone_by_the_code(plain: Workbench) -> None:
    slot = run_twice(plain, code_of(plain, "first"))
    plain.rows("orders", [Order(3, 3, 1.0, at(3))])
    plain.run(code_of(plain), retained_checkpoints=20, allow_non_restored_state=True)
    report = plain.job("plain").replay(code_of(plain), slot, options=plain.options())
    assert report.sinks == {}
    assert any("given up sink 'first'" in note for note in report.notes)
