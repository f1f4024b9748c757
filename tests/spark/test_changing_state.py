"""A release that changes state, in real runs: the next run, savepoints of both kinds, tables, queries, and the way back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.jobs.job import Job
from stateflow.observe.schemas import stored_schemas
from stateflow.spark.state_tables.frames import table_frame
from stateflow.spark.state_tables.snapshots import checkpoint_of
from tests.refusals.refusal import refused
from tests.spark.pipelines import ORDER, Order, Workbench, at


@dataclass
class Seen:
    orders: int
    sum: int
    gone: str = "x"


@dataclass
class SeenNow:
    orders: int
    total: Annotated[float, sf.field(aliases=["sum"])]
    note: str = "-"


class Before(sf.KeyedProcess[int, Order, Any]):
    seen = sf.ValueState(Seen)
    skus = sf.ListState(Seen)
    per = sf.MapState(str, int, ttl="9999 days")
    cents = sf.ReducingState(int, max)
    first = sf.OperatorListState(int)

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        for row in rows:
            before = self.seen.value or Seen(0, 0)
            self.seen.value = Seen(before.orders + 1, before.sum + int(row.amount))
            self.skus.add(self.seen.value)
            self.per[row.sku] = self.per.get(row.sku, 0) + 1
            self.cents.add(int(row.amount))
            self.first.add(key)
        yield key, repr(self.seen.value)


def to_text(old: int) -> str:
    return f"{old} cents"


class Now(sf.KeyedProcess[int, Order, Any]):
    customer = sf.ValueState(SeenNow, aliases=["seen"])
    skus = sf.ListState(SeenNow)
    per = sf.MapState(str, Decimal, ttl="9999 days")
    cents = sf.ReducingState(str, max, migrate=to_text)
    first = sf.OperatorListState(float)

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        for row in rows:
            before = self.customer.value or SeenNow(0, 0.0)
            self.customer.value = SeenNow(before.orders + 1, before.total + row.amount, before.note)
            self.per[row.sku] = self.per.get(row.sku, Decimal(0)) + 1
            self.cents.add("0")
        yield (
            key,
            repr(
                (
                    self.customer.value,
                    self.skus.get(),
                    dict(self.per),
                    self.cents.get(),
                    sorted(self.first.get()),
                )
            ),
        )


def summed(column: str) -> Any:
    def function(table: pa.Table, state: Any, ctx: Any) -> pa.Table:
        keys = pc.unique(table["user"].combine_chunks())
        before = state.get(keys)
        added = [
            (one or 0) + pc.sum(table.filter(pc.equal(table["user"], key))["amount"]).as_py()
            for one, key in zip(before["n"].to_pylist(), keys.to_pylist(), strict=True)
        ]
        values = {"n": pa.array(added, before.schema.field("n").type)}
        state.put(keys, pa.table({**values, column: pa.nulls(len(keys), before.schema.field(column).type)}))
        return pa.table({"user": keys, "n": pa.array(added, pa.float64())})

    return function


def job_of(bench: Workbench, process: Any, columns: dict[str, Any], extra: str) -> sf.Pipeline:
    told, sums = sf.memory(f"{bench.folder.name}-told"), sf.memory(f"{bench.folder.name}-sums")

    @sf.pipeline("changing")
    def changing(flow: sf.Flow) -> None:
        keyed = flow.source("orders", bench.source("orders", ORDER), Order).key_by("user", order_by="ts")
        keyed.process("seen", process, output="user long, text string").collect("told", told)
        keyed.process_arrow("columns", summed(extra), state=columns, output="user long, n double").collect(
            "sums", sums
        )

    return changing


def feed(bench: Workbench, *users: int) -> None:
    bench.rows("orders", [Order(user, "tea", 2.0, at(user)) for user in users])


def last(bench: Workbench, which: str) -> list[dict[str, Any]]:
    return sf.memory(f"{bench.folder.name}-{which}").batches[-1][1]


def introduced_before(job: Job, slot: int) -> int:
    return max(record.slot for record in job.log().checkpoints if record.slot < slot)


@pytest.mark.system
@pytest.mark.parametrize("backend", ["rocksdb", "memory"])
def test_a_release_changes_state_and_everything_goes_on(
    bench: Workbench, spark: SparkSession, backend: str
) -> None:
    before = job_of(bench, Before, {"n": int, "gone": bool}, "gone")
    now = job_of(bench, Now, {"n": float, "new": str}, "new")
    job = Job(str(bench.folder / "root"), "changing")
    feed(bench, 1, 2, 3)
    bench.run(before, backend=backend)
    native = job.savepoint("native", options=bench.options(), name="native")
    canonical = job.savepoint("canonical", options=bench.options(), name="canonical")
    checked = job.check(now)
    assert checked.compatible
    states = {name: text for each in checked.operators for name, text in each.states.items()}
    assert states["cents"].startswith("kept, evolves by migrate to_text")
    assert states["customer"].startswith("renamed from seen, evolves by rules")
    assert states["customer"].endswith("loses values: field gone is gone")
    assert "int becomes float" in states["first"]

    def text(key: int, orders: int, keys: list[float]) -> str:
        stored = [SeenNow(1, 2.0, "-")]
        return repr((SeenNow(orders, 2.0 * orders, "-"), stored, {"tea": Decimal(orders)}, "2 cents", keys))

    feed(bench, 1, 2)
    bench.run(now, backend=backend)
    assert {row["user"]: row["text"].split(", [SeenNow")[0] for row in last(bench, "told")} == {
        key: text(key, 2, []).split(", [SeenNow")[0] for key in (1, 2)
    }
    assert {row["user"]: row["n"] for row in last(bench, "sums")} == {1: 4.0, 2: 4.0}
    head = job.log().head
    assert head is not None
    introduced = {(s.state, s.number): s.slot for s in stored_schemas(head)}
    assert introduced["customer", 0] == 0
    assert introduced["customer", 1] == head.slot
    # A key that was written by either release, as tables show it.
    snapshot = checkpoint_of("changing", "latest", bench.options())
    shown = {
        row["user"]: row["value"].asDict()
        for row in table_frame(spark, snapshot, "seen", "customer").collect()
    }
    assert shown == {
        1: {"orders": 2, "total": 4.0, "note": "-"}, 2: {"orders": 2, "total": 4.0, "note": "-"},
        3: {"orders": 1, "total": 2.0, "note": None},
    }  # fmt: skip
    with pytest.raises(sf.IncompatibleError, match=r"only migrate= in the pipeline's code"):
        job.savepoint("canonical", options=bench.options(), name="refused")
    # Older code cannot read an alias back, and says where to go.
    refused = job.check(before)
    assert f"restore a checkpoint below {head.slot}" in refused.problems[0]
    assert refused.problems[0].endswith(
        f"the newest of them is checkpoint:{introduced_before(job, head.slot)}"
    )
    # From before the release, with the code of after it.
    for kind, made in (("native", native), ("canonical", canonical)):
        fork = Job(str(bench.folder / "root"), f"fork-{kind}")
        plan = fork.restore(made.url, now, options=bench.options())
        assert "evolves by migrate to_text" in str(plan)
        plan.apply()
        fork.run(now, options=bench.options())
        assert {row["user"] for row in last(bench, "told")} == {1, 2}
        assert all("'2 cents'" in row["text"] for row in last(bench, "told"))
        assert {row["user"]: row["n"] for row in last(bench, "sums")} == {1: 4.0, 2: 4.0}
    # What only rules convert becomes one type again in a canonical savepoint.
    feed(bench, 1, 2, 3)
    bench.run(now, backend=backend)
    anew = job.savepoint("canonical", options=bench.options(), name="anew")
    fork = Job(str(bench.folder / "root"), "anew")
    fork.restore(anew.url, now, options=bench.options()).apply()
    made_anew = fork.log().head
    assert made_anew is not None
    assert {schema.number for schema in stored_schemas(made_anew)} == {0}
    feed(bench, 3)
    fork.run(now, options=bench.options())
    assert "SeenNow(orders=3, total=6.0" in last(bench, "told")[0]["text"]


def adding(kept: dict[str, Any]) -> Any:
    """A process class with these states, which counts in the first of each kind."""

    def process(self: Any, key: int, rows: Any, ctx: sf.Context) -> Any:
        value = getattr(self, next(iter(kept)))
        value.value += len(list(rows))
        yield key, str(value.value)

    return type("Adding", (sf.KeyedProcess,), {**kept, "process": process})


def test_a_release_of_before_a_renaming_does_not_take_another_state_of_the_old_name(
    bench: Workbench, tmp_path: Path
) -> None:
    out = sf.memory(f"{tmp_path.name}-reused")

    def release(**states: Any) -> sf.Pipeline:
        @sf.pipeline("reused")
        def reused(flow: sf.Flow) -> None:
            keyed = flow.source("orders", bench.source("orders", ORDER), Order).key_by("user")
            keyed.process("op", adding(states), output="user long, text string").collect("out", out)

        return reused

    def value(**options: Any) -> Any:
        return sf.ValueState(int, default=0, **options)

    elements = sf.OperatorListState
    for pipeline in (
        release(total=value(), seen=elements(int)),
        release(money=value(aliases=["total"]), met=elements(int, aliases=["seen"])),
        release(money=value(), total=value(), met=elements(int), seen=elements(int)),
    ):
        feed(bench, 1)
        bench.run(pipeline)
    assert out.batches[-1][1] == [{"user": 1, "text": "3"}]
    job = Job(str(bench.folder / "root"), "reused")
    head = job.log().head
    for old, kept in {
        "total": release(total=value(), met=elements(int)),
        "seen": release(money=value(), seen=elements(int)),
    }.items():
        feed(bench, 1)
        with pytest.raises(sf.IncompatibleError, match=f"was called '{old}' in an earlier release"):
            bench.run(kept)
    assert job.log().head == head
    bench.run(release(money=value(), met=elements(int)))
    assert out.batches[-1][1] == [{"user": 1, "text": "5"}]


@dataclass
class PerUser:
    user: int
    total: float


@pytest.mark.system
def test_an_option_that_the_state_was_made_with_is_refused_before_a_byte_is_written(bench: Workbench) -> None:

    def totals(**aggregates: Any) -> sf.Pipeline:
        @sf.pipeline("options")
        def options(flow: sf.Flow) -> None:
            keyed = flow.source("orders", bench.source("orders", ORDER), Order).key_by("user")
            keyed.aggregate("totals", PerUser, **aggregates).collect("out", sf.memory(bench.folder.name))

        return options

    before, after = totals(total=sf.sum("amount")), totals(total=sf.max("amount"))
    feed(bench, 1, 2)
    bench.run(before)
    job = Job(str(bench.folder / "root"), "options")
    head = job.log().head
    assert head is not None
    assert head.operators["totals"].options["aggregate 'total'"] == "sum(amount)"
    native = job.savepoint("native", options=bench.options(), name="native")
    canonical = job.savepoint("canonical", options=bench.options(), name="canonical")
    feed(bench, 1)
    files = bench.listing()
    with refused(sf.IncompatibleError, "'total'", "was sum(amount)", "is max"):
        bench.run(after)
    assert job.log().head == head
    assert [path for path in bench.listing() if path not in files] == []
    for made in (native, canonical):
        fork = Job(str(bench.folder / "root"), f"fork-of-{made.url.rsplit('/')[-1]}")
        with pytest.raises(sf.IncompatibleError, match=r"its aggregate 'total' was sum\(amount\)"):
            fork.restore(made.url, after, options=bench.options())
        fork.restore(made.url, before, options=bench.options()).apply()
        restored = fork.log().head
        assert restored is not None
        assert restored.operators["totals"].options == head.operators["totals"].options
    bench.run(before)


@dataclass
class Sold:
    user: int


@dataclass
class SoldNow:
    user: int
    channel: str = "web"


class Sales(sf.KeyedProcess[int, Order, Sold]):
    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        yield from (Sold(row.user) for row in rows)


class SalesNow(sf.KeyedProcess[int, Order, SoldNow]):
    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        yield from (SoldNow(row.user) for row in rows)


@pytest.mark.system
def test_after_the_printed_statement_a_run_goes_on_with_a_column_more(bench: Workbench) -> None:
    tables = bench.folder / "sold out", bench.folder / "told"

    def sales(process: Any) -> sf.Pipeline:
        @sf.pipeline("sales")
        def pipeline(flow: sf.Flow) -> None:
            keyed = flow.source("in", bench.source("in", ORDER), Order).key_by("user")
            sold = keyed.process("sales", process)
            for uid, table in zip(("out", "told"), tables, strict=True):
                sold.append(uid, sf.delta(str(table)))

        return pipeline

    bench.rows("in", [Order(1, "tea", 1.0, at(0))])
    bench.run(sales(Sales))
    bench.rows("in", [Order(2, "tea", 1.0, at(0))])
    with pytest.raises(sf.StateflowError, match="'channel' is not in the table") as caught:
        bench.run(sales(SalesNow))
    of_each = str(caught.value).split("; the output does not fit ")
    statements = [text.partition("alter the table: ")[2] for text in of_each]
    told = Job(str(bench.folder / "root"), "sales").check(sales(SalesNow)).problems
    assert [text.partition("alter the table: ")[2] for text in told] == statements
    for table, statement in zip(tables, statements, strict=True):
        assert table.name in statement
        bench.spark.sql(statement)
    assert Job(str(bench.folder / "root"), "sales").check(sales(SalesNow)).problems == []
    bench.run(sales(SalesNow))
    bench.rows("in", [Order(3, "tea", 1.0, at(0))])
    bench.run(sales(Sales))
    for table in tables:
        rows = bench.spark.read.format("delta").load(str(table)).orderBy("user").collect()
        assert [tuple(row) for row in rows] == [(1, None), (2, "web"), (3, None)]


@dataclass
class Bought:
    """An order whose columns have other names."""

    user: int
    item: Annotated[str, sf.field(aliases=["sku"])]
    price: Annotated[float, sf.field(aliases=["amount"])]
    ts: datetime


class Listed(sf.WindowProcess[int, Any, Any]):
    def process(self, key: int, window: sf.WindowBounds, rows: list[Any], ctx: Any) -> Any:
        yield key, " ".join(getattr(row, "item", "") or row.sku for row in rows)


@pytest.mark.system
def test_what_operators_keep_of_a_renamed_column_outlives_the_release_and_savepoints(
    bench: Workbench,
) -> None:

    def kept(rows: Any, schema: str, item: str, price: str) -> sf.Pipeline:
        @sf.pipeline("renaming")
        def renaming(flow: sf.Flow) -> None:
            orders = bench.source("orders", schema)
            source = flow.source("orders", orders, rows, event_time="ts", watermark="0 seconds")
            keyed = source.key_by("user")
            out = {
                "latest": source.key_by("user", order_by=price).latest("latest"),
                "top": keyed.top("top", 2, by=f"-{price}", per=item).changes_as_rows(op="op"),
                "count": keyed.window(sf.count_window(2)).aggregate(
                    "count", "user long, total double", total=sf.sum(price)
                ),
                "code": keyed.window(sf.tumbling("1 hour")).process("code", Listed, output="user long, text string"),
            }  # fmt: skip
            for name, stream in out.items():
                stream.collect(name, sf.memory(f"{bench.folder.name}-{name}"))

        return renaming

    before = kept(Order, ORDER, "sku", "amount")
    now = kept(Bought, "user long, item string, price double, ts timestamp", "item", "price")
    bench.rows("orders", [Order(1, "tea", 5.0, at(1)), Order(2, "jam", 7.0, at(2))])
    bench.rows("orders", [Order(9, "-", 0.0, at(3))])
    bench.run(before)
    job = Job(str(bench.folder / "root"), "renaming")
    made = [job.savepoint(kind, options=bench.options(), name=kind) for kind in ("native", "canonical")]  # type: ignore[arg-type]
    checked = job.check(now)
    assert checked.compatible, checked.problems
    said = " ".join(text for each in checked.operators for text in each.states.values())
    assert said.count("was row_amount") == 3
    assert "column item was sku" in said
    assert "loses" not in said
    bench.rows("orders", [Bought(1, "rum", 6.0, at(20)), Bought(2, "ale", 1.0, at(21))])
    bench.rows("orders", [Bought(9, "-", 0.0, at(90))])

    def outcome() -> dict[str, Any]:
        found = {
            name: sf.memory(f"{bench.folder.name}-{name}") for name in ("latest", "top", "count", "code")
        }
        rows = {
            name: sorted(
                tuple(row.values()) for _, batch in table.batches for row in batch if row["user"] != 9
            )
            for name, table in found.items()
        }
        for table in found.values():
            table.clear()
        return rows

    outcome()
    bench.run(now)
    wanted = outcome()
    assert [row[:3] for row in wanted["latest"]] == [(1, "rum", 6.0)], "the larger price is the newest"
    assert [(row[0], row[1], row[4]) for row in wanted["top"]] == [
        (1, "rum", 1),
        (1, "tea", 2),
        (2, "ale", 2),
    ]
    assert wanted["count"] == [(1, 11.0), (2, 8.0)]
    assert wanted["code"] == [(1, "tea rum"), (2, "jam ale")]
    for savepoint in made:
        fork = Job(str(bench.folder / "root"), f"fork-{savepoint.url.rsplit('/')[-1]}")
        fork.restore(savepoint.url, now, options=bench.options()).apply()
        fork.run(now, options=bench.options())
        assert outcome() == wanted


@dataclass
class Takings:
    user: int
    takings: Annotated[float, sf.field(aliases=["amount"])]
    ts: datetime
    sku: str = ""


@pytest.mark.system
def test_after_the_printed_statements_an_upsert_goes_on_under_the_new_name(bench: Workbench) -> None:
    table = bench.folder / "newest"

    def newest(rows: type, name: str) -> sf.Pipeline:
        @sf.pipeline("newest")
        def pipeline(flow: sf.Flow) -> None:
            source = flow.source("in", bench.source(name, ORDER), Order if rows is Order else None)
            if rows is not Order:
                source = source.transform(lambda frame: frame.withColumnRenamed("amount", "takings"), rows)
            source.key_by("user", order_by="ts").latest("newest").upsert("out", sf.delta(str(table)))

        return pipeline

    bench.rows("in", [Order(1, "tea", 1.0, at(0)), Order(2, "tea", 2.0, at(0))])
    bench.run(newest(Order, "in"))
    bench.rows("in", [Order(1, "tea", 5.0, at(1))])
    job = Job(str(bench.folder / "root"), "newest")
    [told] = job.check(newest(Takings, "in")).problems
    for statement in told.partition("alter the table: ")[2].split("; "):
        bench.spark.sql(statement)
    assert job.check(newest(Takings, "in")).problems == []
    bench.run(newest(Takings, "in"))
    rows = bench.spark.read.format("delta").load(str(table)).orderBy("user")
    assert "amount" not in rows.columns
    assert [(row["user"], row["takings"]) for row in rows.collect()] == [(1, 5.0), (2, 2.0)]
