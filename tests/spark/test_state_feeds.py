"""State as a feed on Spark: applied to nothing it gives the state at every slot, across kinds of state, runs, rescales and rewinds."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.config.options import load
from stateflow.format.records import Owner, Record
from stateflow.jobs.erasure import plan_erase
from stateflow.jobs.job import Job
from stateflow.spark.sinks.memory import MemorySink
from stateflow.state.backends.choice import open_backend
from stateflow.state.backends.watched import WrittenEntries
from stateflow.state.change_rows import ChangeRows, changed
from stateflow.state.tabular import tables_of
from stateflow.state.values.expiries import plain
from tests.jobs.builder import JobBuilder
from tests.jobs.operators import operator_of
from tests.spark.pipelines import ORDER, VISIT, Everything, Order, Sum, Visit, Workbench, at
from tests.spark.sink_places import contents

FED = ("profile", "weights", "perhaps", "pages", "per_day")
OF_BATCHES = ("kind", "before", "after", "slot", "time")


def visits(batch: int, users: int = 8) -> list[Visit]:
    pages = ["home", "cart", "search", "clear"]
    return [
        Visit(user, pages[(user * 7 + batch + n) % (4 if n == 1 else 3)], user + n / 4, at(batch * 600 + n))
        for user in range(users)
        for n in range(2)
        if (user + batch) % 3
    ]


def entry(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(value for name, value in row.items() if name not in OF_BATCHES)


def stored(bench: Workbench, record: Record, uid: str, state: str) -> dict[tuple[Any, ...], Any]:
    """The state that a record names, as the rows of a feed would have given it."""
    if uid not in record.operators:
        return {}
    operator, found = record.operators[uid], {}
    rows = ChangeRows(operator.key, state, operator.states[state])
    root = bench.folder / "root"
    for number, shard in enumerate(each for subtask in operator.shards for each in subtask):
        folder = bench.folder / f"opened-{record.slot}-{state}-{number}"
        backend = open_backend(load(folder=bench.folder))(shard.backend)(
            shard, folder, lambda ref: root / ref.path
        )
        for begin, end in tables_of(operator)[state].ranges(shard.first, shard.last):
            entries = dict(backend.scan(begin, end))
            if entries:
                written = WrittenEntries(list(entries), [None] * len(entries), list(entries.values()), ())
                for row in rows.rows(changed(written, plain), 0, 0).to_pylist():
                    found[entry(row)] = row["after"]
        backend.close()
    return found


@pytest.mark.slow
def test_applied_to_nothing_the_feed_is_the_state_at_every_slot(
    bench: Workbench, fed: tuple[sf.Pipeline, Mapping[str, Any]]
) -> None:
    pipeline, feeds = fed
    for batch in range(4):
        bench.rows("visits", visits(batch))
        if batch in (1, 3):
            bench.run(pipeline, parallelism=2 + batch)
    for state, feed in feeds.items():
        is_the_state_at_every_slot(bench, "fed", state, feed)
    assert kinds_of(feeds) == {"put", "delete"}


def is_the_state_at_every_slot(bench: Workbench, job: str, state: str, feed: Any) -> None:
    """Applied to nothing in the order of slots, and each row goes on from the one before it."""
    records = {record.slot: record for record in bench.records(job)}
    for slot, rows in feed.batches:
        assert {row["slot"] for row in rows if row["kind"] == "put"} <= {slot}
    by_slot: dict[int, list[Any]] = {}
    for row in feed.rows:
        by_slot.setdefault(row["slot"], []).append(row)
    held: dict[tuple[Any, ...], Any] = {}
    for slot in sorted(by_slot.keys() | records.keys()):
        rows = by_slot.get(slot, [])
        assert len({entry(row) for row in rows}) == len(rows)
        for row in rows:
            assert held.get(entry(row)) == row["before"]
            held.pop(entry(row), None)
            if row["kind"] not in ("delete", "expire"):
                held[entry(row)] = row["after"]
        if slot in records:
            expected = stored(bench, records[slot], "everything", state)
            assert str(sorted(held.items(), key=str)) == str(sorted(expected.items(), key=str)), (state, slot)


def kinds_of(feeds: Mapping[str, Any]) -> set[str]:
    return {row["kind"] for feed in feeds.values() for row in feed.rows}


@pytest.fixture
def fed(bench: Workbench) -> tuple[sf.Pipeline, Mapping[str, Any]]:
    """A pipeline whose states have feeds, and what these have put out."""
    feeds = {state: sf.memory(f"feed-{state}") for state in FED}
    for feed in feeds.values():
        feed.clear()

    @sf.pipeline("fed")
    def fed(flow: sf.Flow) -> None:
        rows = flow.source("visits", bench.source("visits", VISIT), Visit)
        rows.key_by("user", order_by="ts").process("everything", Everything)
        for state in FED:
            flow.state_changes("everything", state=state).collect(state, feeds[state])

    return fed, feeds


def restored(bench: Workbench, pipeline: sf.Pipeline, slot: int, **options: Any) -> None:
    job = Job(str(bench.folder / "root"), pipeline.name)
    job.restore(f"checkpoint:{slot}", pipeline, options=bench.options(), **options).apply()


def fails_at(monkeypatch: pytest.MonkeyPatch, step: str, call: int) -> None:
    """Once, at so many calls of a step of the sinks."""
    calls, right = itertools.count(1), getattr(MemorySink, step)

    def wrong(*given: Any) -> Any:
        if next(calls) == call:
            raise ConnectionError(f"an accident at {step} {call}")
        return right(*given)

    monkeypatch.setattr(MemorySink, step, staticmethod(wrong) if step == "commit" else wrong)


@pytest.mark.slow
def test_a_restore_that_leaves_the_table_alone_is_told_by_the_batch_behind_it(
    bench: Workbench, fed: tuple[sf.Pipeline, Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, feeds = fed
    for batch in range(4):
        bench.rows("visits", visits(batch))
    bench.run(pipeline, parallelism=2, retained_checkpoints=20)
    slots = [record.slot for record in bench.records("fed")]
    restored(bench, pipeline, slots[2])
    # A second one before the next batch, and other key groups in each subtask.
    restored(bench, pipeline, slots[1], parallelism=3)
    bench.rows("visits", visits(5))
    bench.run(pipeline, retained_checkpoints=20)
    for state, feed in feeds.items():
        is_the_state_at_every_slot(bench, "fed", state, feed)
    assert kinds_of(feeds) == {"put", "delete", "restore"}
    # Nothing is told twice. Behind a restore to before the first batch the state is empty.
    bench.rows("visits", visits(6))
    bench.run(pipeline, retained_checkpoints=20)
    for state, feed in feeds.items():
        is_the_state_at_every_slot(bench, "fed", state, feed)
    restored(bench, pipeline, slots[0])
    # The batch behind it fails once before its record is decided, and once between the commits of its sinks.
    for step in ("prepare", "commit"):
        with monkeypatch.context() as accident:
            fails_at(accident, step, 3)
            with pytest.raises(Exception, match=f"an accident at {step} 3"):
                bench.run(pipeline, retained_checkpoints=20)
    bench.run(pipeline, retained_checkpoints=20)
    for state, feed in feeds.items():
        is_the_state_at_every_slot(bench, "fed", state, feed)


@pytest.mark.slow
def test_an_erased_key_is_not_told_and_the_next_run_warns(
    bench: Workbench, fed: tuple[sf.Pipeline, Mapping[str, Any]]
) -> None:
    pipeline, feeds = fed
    for batch in range(2):
        bench.rows("visits", visits(batch))
    bench.run(pipeline, retained_checkpoints=20)
    plan_erase(Job(str(bench.folder / "root"), "fed"), "4", bench.options()).apply(Owner(run="officer"))
    told = {state: len(feed.rows) for state, feed in feeds.items()}
    bench.rows("visits", [visit for visit in visits(4) if visit.user != 4])
    warnings = [
        each for each in bench.run(pipeline, retained_checkpoints=20).warnings if "the feed of" in each
    ]
    assert len(warnings) == len(feeds)
    assert "its tables (pages) still have those of the erased key" in str(warnings)
    for state, feed in feeds.items():
        assert all(row["user"] != 4 and row["kind"] != "restore" for row in feed.rows[told[state] :])
    bench.rows("visits", visits(5))
    assert not [each for each in bench.run(pipeline).warnings if "the feed of" in each], "it is said once"


@pytest.mark.slow
def test_spark_finds_the_rows_of_an_erased_key_whatever_its_columns_are_called(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = JobBuilder(tmp_path / "root")
    key = (("order id", "int"), ("sel`ect", "str"))
    made.decide(operators={"balance": operator_of((), key=key)})
    name = r"x\'y"
    plan = plan_erase(made.opened(), json.dumps([7, name]), made.options(), absent=True)
    rows = spark.createDataFrame([(7, name, 1), (7, "z", 2), (8, name, 3)], ["order id", "sel`ect", "n"])
    assert [row["n"] for row in rows.where(plan.conditions["balance"]).collect()] == [1]


@dataclass
class Spent:
    amount: float = 0.0


@dataclass
class SpentWithCount:
    amount: float = 0.0
    orders: int = 7


@pytest.mark.slow
def test_a_type_that_changes_values_is_told_once_for_every_entry(bench: Workbench) -> None:
    changes = sf.memory("feed-evolved")
    changes.clear()

    def declared(kind: type[Any]) -> sf.Pipeline:
        class Sums(sf.KeyedProcess):
            spent = sf.ValueState(kind, default=kind)

            def process(self, key: Any, rows: Any, ctx: Any) -> Any:
                spent = self.spent.value
                spent.amount += sum(row.amount for row in rows)
                self.spent.value = spent
                yield from ()

        @sf.pipeline("evolved")
        def evolved(flow: sf.Flow) -> None:
            rows = flow.source("orders", bench.source("orders", ORDER), Order)
            rows.key_by("user").process("sums", Sums, output="user long")
            flow.state_changes("sums").collect("changes", changes)

        return evolved

    bench.rows("orders", [Order(user, "a", 1.0, at(user)) for user in range(3)])
    bench.run(declared(Spent))
    changes.clear()
    bench.rows("orders", [Order(1, "b", 1.0, at(60))])
    bench.run(declared(SpentWithCount))
    told = {(row["user"], row["kind"], str(row["before"]), str(row["after"])) for row in changes.rows}
    old, new = "{'amount': %s, 'orders': None}", "{'amount': %s, 'orders': 7}"
    assert {each[:2] for each in told} == {(0, "evolve"), (1, "put"), (2, "evolve")}
    assert (0, "evolve", old % "1.0", new % "1.0") in told
    assert len(changes.rows) == 3
    changes.clear()
    bench.rows("orders", [Order(2, "c", 1.0, at(120))])
    bench.run(declared(SpentWithCount))
    assert [(row["user"], row["kind"]) for row in changes.rows] == [(2, "put")], "nothing is told twice"


@pytest.mark.system
def test_a_table_of_the_state_as_it_is_now_outlives_a_restore(spark: SparkSession, bench: Workbench) -> None:
    """Also a sink that does not go back is warned of, when another table of the feed does."""
    calls: list[Any] = []

    def deliver(rows: Any, delivery: int) -> None:
        calls.append(delivery)

    def declared(beside: bool) -> sf.Pipeline:
        @sf.pipeline("orders")
        def orders(flow: sf.Flow) -> None:
            rows = flow.source("orders", bench.source("orders", ORDER), Order)
            rows.key_by("user", order_by="ts").process("sum", Sum)
            feed = flow.state_changes("sum", state="total")
            target = sf.delta(str(bench.folder / "current"))
            gone = "kind in ('delete', 'expire')"
            feed.upsert("current", target, keys="user", delete_when=gone, order_by="slot")
            if beside:
                feed.append("changes", sf.delta(str(bench.folder / "changes")))
                feed.for_each_batch("calls", deliver)

        return orders

    def current() -> list[Any]:
        return contents(spark, bench.folder / "current", "user", "after")

    def batch(pipeline: sf.Pipeline, number: int, *users: int) -> list[str]:
        bench.rows("orders", [Order(user, "a", 1.0 + user, at(number)) for user in users])
        return [
            each for each in bench.run(pipeline, retained_checkpoints=20).warnings if "the feed of" in each
        ]

    orders = declared(False)
    batch(orders, 0, 0, 1)
    early = bench.records("orders")[-1].slot
    batch(orders, 1, 0, 1, 2)
    restored(bench, orders, early)
    (bench.folder / "orders" / "00002.json").unlink()
    # Two rows have key 0: of the restore and of the batch. The other keys have the restore's alone.
    assert batch(orders, 2, 0) == []
    assert current() == [(0, 2.0), (1, 2.0)]
    beside = declared(True)
    (begins,) = batch(beside, 3, 0)
    assert "has no rows for the state of slot" in begins
    assert (
        "its tables (calls, changes) show the entries that batches change from now on, and no others"
        in begins
    )
    middle = bench.records("orders")[-1].slot
    batch(beside, 4, 0)
    restored(bench, beside, middle, rewind_sinks=True)
    warned = batch(beside, 5, 1)
    assert len(warned) == 1
    assert "its tables (calls) show the state as of slot" in warned[0]
    assert "others of its readers are up to date with another slot" in warned[0]


def test_a_columnar_operator_and_a_second_sink_read_what_the_tasks_have_staged(bench: Workbench) -> None:
    out, changes, again = (sf.memory(f"columnar-{name}") for name in ("out", "changes", "again"))
    for each in (out, changes, again):
        each.clear()

    def total(rows: pa.Table, state: Any, ctx: Any) -> pa.Table:
        sums = rows.group_by("user").aggregate([("seconds", "sum")])
        known = state.get(sums["user"])["total"].fill_null(0.0)
        state.put(sums["user"], pa.table({"total": pc.add(known, sums["seconds_sum"])}))
        return sums.select(["user"])

    @sf.pipeline("columnar-feed")
    def columnar(flow: sf.Flow) -> None:
        rows = flow.source("visits", bench.source("visits", VISIT), Visit)
        made = rows.key_by("user").process_arrow("sums", total, state={"total": float}, output="user long")
        feed = flow.state_changes("sums")
        feed.collect("changes", changes)
        made.collect("out", out)
        feed.transform(lambda rows: rows.where("user < 3")).collect("again", again)

    for batch in range(2):
        bench.rows("visits", visits(batch))
    bench.run(columnar)
    held: dict[int, Any] = {}
    for row in changes.rows:
        assert held.get(row["user"]) == row["before"]
        held[row["user"]] = row["after"]
    expected: dict[int, float] = {}
    for visit in (*visits(0), *visits(1)):
        expected[visit.user] = expected.get(visit.user, 0.0) + visit.seconds
    assert {user: value["total"] for user, value in held.items()} == expected
    assert again.rows == [row for row in changes.rows if row["user"] < 3]
    assert {row["user"] for row in out.rows} == set(expected)


@pytest.mark.system
def test_a_restore_takes_the_feed_back_with_the_other_outputs(spark: SparkSession, bench: Workbench) -> None:
    def feed() -> list[Any]:
        return contents(spark, bench.folder / "changes", "user", "slot", "kind", "before", "after")

    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        rows = flow.source("orders", bench.source("orders", ORDER), Order)
        totals = rows.key_by("user", order_by="ts").process("sum", Sum)
        totals.append("log", sf.delta(str(bench.folder / "log")))
        flow.state_changes("sum", state="total").append("changes", sf.delta(str(bench.folder / "changes")))

    def batch(number: int) -> None:
        bench.rows("orders", [Order(user, "a", 1.0 + user, at(number)) for user in range(3)])
        bench.run(orders, retained_checkpoints=20)

    for number in range(2):
        batch(number)
    early, at_two = bench.records("orders")[-1].slot, feed()
    batch(2)
    assert len(feed()) == 9
    restored(bench, orders, early, rewind_sinks=True)
    assert feed() == at_two
    bench.run(orders, retained_checkpoints=20)
    rows = feed()
    assert len(rows) == 9
    for user in range(3):
        own = sorted((row[1], row[3], row[4]) for row in rows if row[0] == user)
        assert [after for _, _, after in own[:-1]] == [before for _, before, _ in own[1:]]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["a fork with a copy of the table", "a rename that goes on in the table"])
def test_slots_of_a_feed_never_fall_in_its_table(spark: SparkSession, bench: Workbench, way: str) -> None:
    def declared(name: str, folder: str) -> sf.Pipeline:
        @sf.pipeline(name)
        def orders(flow: sf.Flow) -> None:
            rows = flow.source("orders", bench.source("orders", ORDER), Order)
            rows.key_by("user").process("sum", Sum).collect("sums", sf.memory(f"feed-of-{name}"))
            flow.state_changes("sum", state="total").append(
                "changes", sf.delta(str(bench.folder / folder / "changes"))
            )

        return orders

    def batch(pipeline: sf.Pipeline, amount: float) -> None:
        bench.rows("orders", [Order(1, "a", amount, at(int(amount)))])
        bench.run(pipeline, retained_checkpoints=20)

    def state_shown(folder: str) -> float:
        rows = contents(spark, bench.folder / folder / "changes", "slot", "after")
        newest = max(slot for slot, _ in rows)
        [shown] = {after for slot, after in rows if slot == newest}
        return float(shown)

    old = declared("orders", "out")
    for amount in (1.0, 2.0, 3.0):
        batch(old, amount)
    root, options = str(bench.folder / "root"), bench.options(retained_checkpoints=20)
    job = Job(root, "orders")
    if way.startswith("a fork"):
        new, folder = declared("fork", "copy"), "copy"
        Job(root, "fork").restore("latest", new, options=options, from_job="orders", clone_sinks=True).apply()
    else:
        new, folder = declared("renamed", "out"), "out"
        made = job.savepoint("native", options=options, name="moved", to=str(bench.folder / "moved"))
        job.delete()
        Job(root, "renamed").restore(made.url, new, options=options).apply()
    total = 6.0
    for amount in (5.0, 6.0):
        batch(new, amount)
        total += amount
        assert state_shown(folder) == total
    # A restore within the job takes nothing back of the order either.
    moved = Job(root, "fork" if folder == "copy" else "renamed")
    early = moved.checkpoints()[-2].slot
    moved.restore(f"checkpoint:{early}", new, options=options).apply()
    batch(new, 7.0)
    assert state_shown(folder) == total + 7.0
