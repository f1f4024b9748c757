"""Savepoints of one's own making: state that a pipeline begins with, and state that was edited."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.checkpoint.pins import list_pins
from stateflow.errors import IncompatibleError, NotFoundError, StateflowError, UsageError
from stateflow.format.records import Owner
from stateflow.jobs.job import Job
from stateflow.jobs.savepoints import dispose_unfinished, unfinished_savepoints
from stateflow.savepoints.format import read_savepoint, verify_savepoint
from stateflow.savepoints.outputs import JobOutputs, outputs_of
from stateflow.spark.state_tables import build
from stateflow.spark.state_tables.build import BuildRequest, build_savepoint, still_read
from stateflow.spark.state_tables.frames import table_frame
from stateflow.spark.state_tables.snapshots import TableSnapshot, checkpoint_of, savepoint_at
from stateflow.storage.roots import open_store
from tests.refusals.refusal import refused
from tests.spark.pipelines import ORDER, Order, Sum, Workbench, at

ME = Owner(run="me")


def pipeline(bench: Workbench, name: str) -> sf.Pipeline:
    table = sf.memory(f"{bench.folder.name}-{name}")
    table.clear()

    @sf.pipeline(name)
    def sums(flow: sf.Flow) -> None:
        rows = flow.source("orders", bench.source("orders", ORDER), Order)
        rows.key_by("user", order_by="ts").process("sum", Sum).collect("totals", table)

    return sums


def totals(bench: Workbench, name: str) -> dict[int, float]:
    return {row["user"]: row["total"] for row in sf.memory(f"{bench.folder.name}-{name}").rows}


def job(bench: Workbench, name: str) -> Job:
    return Job(str(bench.folder / "root"), name)


def feed(bench: Workbench) -> None:
    bench.rows("orders", [Order(user, "a", 1.0, at(user)) for user in range(4)])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["canonical", "native"])
def test_a_pipeline_begins_with_state_that_came_from_somewhere_else(
    spark: SparkSession, bench: Workbench, kind: Any
) -> None:
    begins = pipeline(bench, f"begins-{kind}")
    history = spark.createDataFrame([(user, user * 100.0) for user in range(3)], "user long, value double")
    made = build_savepoint(
        spark,
        BuildRequest(
            begins, {"sum": {"total": history}}, str(bench.folder / "made"), bench.options(), ME, kind=kind
        ),
    )
    assert made.kind == kind
    assert sorted(p.name for p in bench.folder.glob("made*")) == ["made"], "what it was built in is gone"
    feed(bench)
    plan = job(bench, begins.name).restore(str(bench.folder / "made"), begins, options=bench.options())
    assert [source.verdict for source in plan.sources] == ["new"]
    plan.apply()
    bench.run(begins)
    assert totals(bench, begins.name) == {0: 1.0, 1: 101.0, 2: 201.0, 3: 1.0}


@pytest.mark.slow
def test_edited_state_goes_on_from_the_offsets_of_the_snapshot(spark: SparkSession, bench: Workbench) -> None:
    first = pipeline(bench, "first")
    feed(bench)
    bench.run(first)
    snapshot = checkpoint_of("first", "latest", bench.options())
    edited = (
        table_frame(spark, snapshot, "sum", "total")
        .where("user <> 3")
        .selectExpr("user", "case when user = 1 then 1000d else value end as value")
    )
    build_savepoint(
        spark,
        BuildRequest(
            first,
            {"sum": {"total": edited}},
            str(bench.folder / "edited"),
            bench.options(),
            ME,
            like=snapshot,
        ),
    )
    second = pipeline(bench, "second")
    plan = job(bench, "second").restore(str(bench.folder / "edited"), second, options=bench.options())
    assert [source.verdict for source in plan.sources] == ["resumes"]
    plan.apply()
    feed(bench)
    bench.run(second)
    assert totals(bench, "second") == {0: 2.0, 1: 1001.0, 2: 2.0, 3: 1.0}


class TestOutputs:
    """A savepoint with edited state says of its job's outputs what any other savepoint of that snapshot says."""

    def pipeline(self, bench: Workbench, name: str = "orders") -> sf.Pipeline:
        @sf.pipeline(name)
        def orders(flow: sf.Flow) -> None:
            files = sf.files(str(bench.folder / "orders"), "json", options={"maxFilesPerTrigger": "1"})
            rows = flow.source("orders", files, Order)
            sums = rows.key_by("user", order_by="ts").process("sum", Sum)
            sums.append("totals", sf.delta(str(bench.folder / "out")))
            flow.state_changes("sum").append("changes", sf.delta(str(bench.folder / "changes")))

        return orders

    def edited(
        self, bench: Workbench, like: TableSnapshot, name: str, *, all_keys: bool = False, **offsets: str
    ) -> str:
        """Of user 0 alone, unless `all_keys`."""
        url = str(bench.folder / name)
        kept = table_frame(bench.spark, like, "sum", "total")
        tables = {} if all_keys else {"sum": {"total": kept.where("user = 0")}}
        build_savepoint(
            bench.spark,
            BuildRequest(
                self.pipeline(bench),
                tables,
                url,
                bench.options(),
                ME,
                like=like,
                offsets=offsets,
                kind="native",
            ),
        )
        return url

    def outputs(self, url: str) -> JobOutputs:
        return outputs_of(read_savepoint(open_store(url)))

    def users(self, bench: Workbench) -> list[int]:
        table = bench.spark.read.format("delta").load(str(bench.folder / "out"))
        return sorted(row["user"] for row in table.collect())

    @pytest.mark.slow
    def test_no_row_is_lost_or_mixed_with_another_job_s(self, bench: Workbench) -> None:
        orders, made, options = self.pipeline(bench), job(bench, "orders"), bench.options()
        for user in range(3):
            bench.rows("orders", [Order(user, "a", 1.0, at(user))])
        bench.run(orders, retained_checkpoints=20)
        _, first, *_, last = made.checkpoints()
        native = made.savepoint("native", options=options, to=str(bench.folder / "native")).url
        known = self.outputs(native)
        like = checkpoint_of("orders", "latest", options)
        edited = self.edited(bench, like, "edited")
        again = self.edited(bench, savepoint_at(native, options), "again")
        moved = self.edited(bench, like, "moved", orders="2025-06-15T15:06:41+00:00")
        assert known.last_commits == {"totals": last.slot, "changes": last.slot}
        # The feed's table shows the state of before.
        assert self.outputs(edited) == self.outputs(again) == replace(known, feeds=())
        assert self.outputs(self.edited(bench, like, "kept", all_keys=True)) == known
        assert self.outputs(moved) == replace(known, feeds=(), last_commits=None)

        with refused(UsageError, "two jobs", "'totals'"):
            job(bench, "fork").restore(edited, self.pipeline(bench, "fork"), options=options)

        made.restore(f"checkpoint:{first.slot}", orders, options=options, rewind_sinks=True).apply()
        assert self.users(bench) == [0]
        for url in (native, edited, again, moved):
            with refused(IncompatibleError, "'totals'", f"to {last.slot}"):
                made.restore(url, orders, options=options)
        made.restore(edited, orders, options=options, rewind_sinks=True).apply()
        assert self.users(bench) == [0, 1, 2]


class Counted(sf.KeyedProcess[int, Order, Any]):
    """A later release of `Sum`, whose state has another name and type."""

    sum = sf.ValueState(float | None, aliases=["total"])

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        for row in rows:
            self.sum.value = (self.sum.value or 0.0) + row.amount
        yield key, self.sum.value


@pytest.mark.slow
@pytest.mark.parametrize("given", [False, True])
def test_an_import_takes_over_what_a_run_of_changed_code_would(
    spark: SparkSession, bench: Workbench, given: bool
) -> None:
    first = pipeline(bench, "first")
    feed(bench)
    bench.run(first)
    snapshot = checkpoint_of("first", "latest", bench.options())
    table = sf.memory(f"{bench.folder.name}-later")
    table.clear()

    @sf.pipeline("later")
    def later(flow: sf.Flow) -> None:
        rows = flow.source("orders", bench.source("orders", ORDER), Order)
        keyed = rows.key_by("user", order_by="ts")
        keyed.process("sum", Counted, output="user long, total double").collect("totals", table)

    tables = (
        {"sum": {"sum": spark.createDataFrame([(0, 5.0), (1, None)], "user long, value double")}}
        if given
        else {}
    )
    url = str(bench.folder / f"taken-{given}")
    build_savepoint(spark, BuildRequest(later, tables, url, bench.options(), ME, like=snapshot))
    plan = job(bench, "later").restore(url, later, options=bench.options())
    plan.apply()
    feed(bench)
    bench.run(later)
    expected = {0: 6.0, 1: 1.0, 2: 1.0, 3: 1.0} if given else {0: 2.0, 1: 2.0, 2: 2.0, 3: 2.0}
    assert {row["user"]: row["total"] for row in table.rows} == expected


class Renamed(sf.KeyedProcess[int, Order, Any]):
    """A later release of `Sum` that does not say which state it has renamed."""

    amount = sf.ValueState(float, default=0.0)

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        self.amount.value += sum(row.amount for row in rows)
        yield key, self.amount.value


@pytest.mark.slow
def test_a_pipeline_that_lacks_state_of_the_snapshot_is_refused_until_it_may_let_it_go(
    spark: SparkSession, bench: Workbench, caplog: pytest.LogCaptureFixture
) -> None:
    def orders(*processes: tuple[str, Any], source: str = "orders") -> sf.Pipeline:
        @sf.pipeline("orders")
        def build_orders(flow: sf.Flow) -> None:
            rows = flow.source(source, bench.source("orders", ORDER), Order)
            for uid, process in processes:
                shape = {} if process is Sum else {"output": "user long, total double"}
                made = rows.key_by("user").process(uid, process, **shape)
                made.collect(f"of-{uid}", sf.memory(f"{bench.folder.name}-{uid}"))

        return build_orders

    feed(bench)
    bench.run(orders(("sum", Sum), ("more", Sum)))
    snapshot = checkpoint_of("orders", "latest", bench.options())
    place = bench.folder / "made"
    frame = spark.createDataFrame([(0, 5.0)], "user long, value double")

    def request(found: sf.Pipeline, tables: Any = {}, **fields: Any) -> BuildRequest:  # noqa: B006
        return BuildRequest(found, tables, str(place), bench.options(), ME, like=snapshot, **fields)

    misspelt = orders(("sum", Sum), ("mroe", Sum))
    with refused(
        IncompatibleError, "'more'", "give an operator that uid again", "--allow-non-restored-state"
    ):
        build_savepoint(spark, request(misspelt, {"sum": {"total": frame}}))
    renamed = orders(("sum", Renamed), ("more", Sum))
    with refused(IncompatibleError, "operator 'sum'", "'total'", 'aliases=("total",)'):
        build_savepoint(spark, request(renamed))
    elsewhere = orders(("sum", Sum), ("more", Sum), source="order")
    with refused(IncompatibleError, "'orders'", "'order'", "--allow-non-restored-state"):
        build_savepoint(spark, request(elsewhere))
    assert not place.exists()
    build_savepoint(spark, request(renamed, {"sum": {"amount": frame}}))
    place.rename(bench.folder / "given")
    assert not caplog.records
    build_savepoint(spark, request(replace(misspelt, allow_non_restored_state=True)))
    (warning,) = caplog.messages
    assert "operator 'more'" in warning
    kept = savepoint_at(str(place), bench.options()).record.operators
    assert kept.keys() == {"sum"}


class Named(sf.KeyedProcess[int, Order, Any]):
    """A later release of `Sum`, whose state is of a type that no rule leads to."""

    total = sf.ValueState(str, default="")

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        self.total.value += "".join(row.sku for row in rows)
        yield key, self.total.value


class Listed(sf.KeyedProcess[int, Order, Any]):
    """Another one, whose state is of another kind, and has another name."""

    kinds = sf.MapState(str, int, aliases=["total"])

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        for row in rows:
            self.kinds[row.sku] = self.kinds.get(row.sku, 0) + 1
        yield key, str(dict(self.kinds.items()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("process", "state", "columns", "expected"),
    [
        (Named, "total", "user long, value string", {0: "xa", 1: "a", 2: "a", 3: "a"}),
        (
            Listed,
            "kinds",
            "user long, map_key string, value long",
            {0: "{'a': 1, 'x': 7}", 1: "{'a': 1}", 2: "{'a': 1}", 3: "{'a': 1}"},
        ),
    ],
)
def test_a_table_replaces_a_state_that_changed_by_no_rule(
    spark: SparkSession, bench: Workbench, process: Any, state: str, columns: str, expected: dict[int, str]
) -> None:
    first = pipeline(bench, "first")
    feed(bench)
    bench.run(first)
    snapshot = checkpoint_of("first", "latest", bench.options())
    table = sf.memory(f"{bench.folder.name}-later")
    table.clear()

    @sf.pipeline("later")
    def later(flow: sf.Flow) -> None:
        rows = flow.source("orders", bench.source("orders", ORDER), Order)
        keyed = rows.key_by("user", order_by="ts")
        keyed.process("sum", process, output="user long, total string").collect("totals", table)

    row = (0, "x") if state == "total" else (0, "x", 7)
    url = str(bench.folder / "taken")
    nothing = BuildRequest(later, {}, url, bench.options(), ME, like=snapshot)
    with refused(StateflowError, "put the"):
        build_savepoint(spark, nothing)
    frame = spark.createDataFrame([row], columns)
    build_savepoint(spark, replace(nothing, tables={"sum": {state: frame}}))
    job(bench, "later").restore(url, later, options=bench.options()).apply()
    feed(bench)
    bench.run(later)
    assert {row["user"]: row["total"] for row in table.rows} == expected


def test_tables_that_do_not_fit_leave_nothing_behind(spark: SparkSession, bench: Workbench) -> None:
    begins = pipeline(bench, "begins")
    keys = spark.createDataFrame([(1, 1.0)], "user long, value double")
    place = str(bench.folder / "made")
    for tables, error, words in (
        ({"sums": {"total": keys}}, NotFoundError, "its operators are: sum"),
        ({"sum": {"total": keys.withColumnRenamed("value", "sum")}}, StateflowError, "'sum'"),
        ({"sum": {"total": keys.selectExpr("user", "'x' as value")}}, StateflowError, "total"),
    ):
        with pytest.raises(error, match=words):
            build_savepoint(spark, BuildRequest(begins, tables, place, bench.options(), ME))
    assert list(bench.folder.glob("made*")) == []


def test_an_offset_that_the_source_cannot_begin_with_is_refused_before_anything_is_made(
    spark: SparkSession, bench: Workbench
) -> None:
    place, events = str(bench.folder / "made"), str(bench.folder / "events")
    spark.createDataFrame([], ORDER).write.format("delta").save(events)

    @sf.pipeline("begins")
    def begins(flow: sf.Flow, *, input: str) -> None:
        rows = flow.source("orders", sf.delta(input), Order)
        rows.key_by("user", order_by="ts").process("sum", Sum).collect("totals", sf.memory("begins"))

    def made(path: str = events, **offsets: str) -> None:
        keys = spark.createDataFrame([(1, 1.0)], "user long, value double")
        wanted = BuildRequest(
            begins, {"sum": {"total": keys}}, place, bench.options(), ME, {"input": path}, offsets=offsets
        )
        build_savepoint(spark, wanted)

    with refused(UsageError, "'garbage'", "source 'orders'", "a delta source"):
        made(orders="garbage")
    with refused(NotFoundError, "no source 'order'", "its sources are: orders"):
        made(order="garbage")
    nowhere = str(bench.folder / "nowhere")
    with refused(NotFoundError, "source 'orders'", f"no Delta table at {nowhere}"):
        made(nowhere, orders="garbage")
    assert list(bench.folder.glob("made*")) == []
    made(
        orders='{"sourceVersion":1,"reservoirId":"x","reservoirVersion":1,"index":-1,"isStartingVersion":false}'
    )


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0, 1 << 20])
def test_a_source_of_files_begins_behind_those_that_count_as_read(
    spark: SparkSession, bench: Workbench, threshold: int
) -> None:
    folder, place = bench.folder / "in", str(bench.folder / "made")
    folder.mkdir()
    for number in range(4):
        file = folder / f"{number} of 4.json"
        file.write_text(json.dumps({"user": 1, "amount": 2.0**number, "ts": "2026-01-01T00:00:00Z"}) + "\n")
        os.utime(file, (1_767_225_600 + number, 1_767_225_600 + number))

    @sf.pipeline("begins")
    def begins(flow: sf.Flow) -> None:
        rows = flow.source("orders", sf.files(str(folder), "json"), Order)
        rows.key_by("user").process("sum", Sum).collect("totals", sf.memory(f"{bench.folder.name}-begins"))

    keys = spark.createDataFrame([(1, 0.5)], "user long, value double")
    wanted = BuildRequest(
        begins, {"sum": {"total": keys}}, place, replace(bench.options(), inline_threshold=threshold), ME,
        offsets={"orders": "2026-01-01T00:00:01"},
    )  # fmt: skip
    build_savepoint(spark, wanted)
    job(bench, "begins").restore(place, begins, options=bench.options()).apply()
    bench.run(begins)
    assert totals(bench, "begins") == {1: 12.5}
    (folder / "later.json").write_text(json.dumps({"user": 1, "amount": 0.25, "ts": "2026-01-01T00:00:00Z"}))
    bench.run(begins)
    assert totals(bench, "begins") == {1: 12.75}


def test_what_a_killed_import_has_left_is_found_by_a_clean_up(
    spark: SparkSession, bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins = pipeline(bench, "begins")
    keys = spark.range(20_000).selectExpr("id as user", "rand(1) as value")
    folder = bench.folder / "root/_savepoints/begins/made"
    in_files = replace(bench.options(), inline_threshold=0)
    wanted = BuildRequest(begins, {"sum": {"total": keys}}, str(folder), in_files, ME)

    def killed(*_: object, **__: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(build, "create_canonical", killed)
        patch.setattr(build, "_remove_build", lambda store, building: None)
        with pytest.raises(RuntimeError, match="killed"):
            build_savepoint(spark, wanted)
    assert any(path.is_file() for path in folder.rglob("*"))
    assert unfinished_savepoints(job(bench, "begins")) == [f"file://{folder}"]
    assert dispose_unfinished(job(bench, "begins")).keys() == {f"file://{folder}"}
    assert not folder.exists()
    build_savepoint(spark, wanted)
    assert unfinished_savepoints(job(bench, "begins")) == []
    with refused(UsageError, "there is a savepoint in", "already"):
        build_savepoint(spark, wanted)
    inside = replace(wanted, to=str(bench.folder / "root/begins/made"))
    with refused(UsageError, "is no place", "job 'begins'"):
        build_savepoint(spark, inside)


@pytest.mark.parametrize("like", [True, False], ids=["like the job", "like nothing"])
def test_a_clean_up_leaves_an_import_alone_that_is_being_made(
    spark: SparkSession, bench: Workbench, like: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pipeline(bench, "first")
    feed(bench)
    bench.run(first)
    options = replace(bench.options(), inline_threshold=0)
    snapshot = checkpoint_of("first", "latest", options)
    total = table_frame(spark, snapshot, "sum", "total")
    place = bench.folder / "root/_savepoints/first/edited"
    wanted = BuildRequest(
        first,
        {"sum": {"total": total}},
        str(place),
        options,
        ME,
        like=snapshot if like else None,
        kind="native",
    )
    make, looks = build.create_native, []

    def beside_a_clean_up(*given: Any, **how: Any) -> Any:
        looks.append([path for path in place.rglob("*") if path.is_file()])
        assert dispose_unfinished(job(bench, "first")) == {}
        return make(*given, **how)

    monkeypatch.setattr(build, "create_native", beside_a_clean_up)
    build_savepoint(spark, wanted)
    assert all(looks)
    assert [f.text for f in verify_savepoint(open_store(str(place)), deep=True)] == []
    assert list_pins(job(bench, "first").store, job(bench, "first").layout) == []


def test_nothing_is_imported_to_where_a_clean_up_deletes_what_a_deleted_job_has_left(
    spark: SparkSession, bench: Workbench
) -> None:
    first = pipeline(bench, "first")
    feed(bench)
    bench.run(first)
    made = job(bench, "first").savepoint("native", options=bench.options())
    job(bench, "first").delete()
    like = savepoint_at(made.url, bench.options())
    total = table_frame(spark, like, "sum", "total")
    wanted = BuildRequest(
        first,
        {"sum": {"total": total}},
        str(bench.folder / "root/_savepoints/first/edited"),
        bench.options(),
        ME,
        like=like,
    )
    with refused(UsageError, "job 'first' is deleted", "choose a folder outside of"):
        build_savepoint(spark, wanted)
    build_savepoint(spark, replace(wanted, to=str(bench.folder / "edited")))


def test_an_operator_has_not_read_the_feed_of_a_state_that_is_made_anew() -> None:
    read = (("sum", "total"), ("sum", "largest"), ("counts", "n"))
    assert still_read(read, {"sum": {"total": None}}) == read[1:]
    assert still_read(read, {}) == read
