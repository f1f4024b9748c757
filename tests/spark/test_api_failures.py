"""Bad input and failing code: one sentence with the next step, and a job that is as it was."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import stateflow as sf
from stateflow.compatibility.flows import check_flow
from stateflow.errors import IncompatibleError, UserCodeError, user_frames
from stateflow.spark.inputs import open_inputs
from stateflow.spark.session.shipping import by_value
from tests.refusals.refusal import refused
from tests.spark import pipelines
from tests.spark.pipelines import LARGE, ORDER, Fragile, Order, Sum, Total, Workbench, at
from tests.spark.sink_places import contents


def order(user: int, sku: str = "a", amount: float = 1.0) -> Order:
    return Order(user, sku, amount, at(user))


@pytest.mark.slow
def test_a_batch_that_fails_changes_nothing_and_says_why(bench: Workbench) -> None:
    out = sf.memory("failing")
    out.clear()

    @sf.pipeline("failing")
    def failing(flow: sf.Flow) -> None:
        source = flow.source("in", bench.source("in", ORDER), Order)
        source.key_by("user", order_by="ts").process("fragile", Fragile, outputs=[LARGE]).collect("out", out)

    bench.rows("in", [order(1), order(2)])
    bench.run(failing)
    records = bench.states("failing")
    expected = {
        "bad": (
            "operator 'fragile' failed on key 4: ValueError: a bad sku with more lines (line ",
            sf.StateflowError,
        ),
        "wrong type": (
            "operator 'fragile', state 'total', key 4: expected float, got str: 'many'",
            sf.StateTypeError,
        ),
        "wrong element": (
            "operator 'fragile', state 'skus', key 4: expected str, got int: 5",
            sf.StateTypeError,
        ),
        "misfit": ("operator 'fragile' put out 'much' in column 'total', which is a double", sf.UsageError),
    }
    for sku, (message, kind) in expected.items():
        bench.rows("in", [order(1), order(3), order(4, sku), order(5)])
        with pytest.raises(kind) as caught:
            bench.run(failing)
        text = str(caught.value)
        assert text.startswith(message)
        assert "\n" not in text
        assert "Traceback" not in text
        assert "org.apache" not in text
        if sku == "bad":
            assert f'File "{inspect.getsourcefile(Fragile)}", line' in user_frames(caught.value)
        assert bench.states("failing") == records
        assert len(out.batches) == 1
        latest = max((bench.folder / "in").glob("*.json"))
        latest.unlink()
    # It carries on from where it was.
    bench.rows("in", [order(1), order(3)])
    bench.run(failing)
    assert [(r["user"], r["total"]) for r in sorted(out.batches[-1][1], key=lambda r: r["user"])] == [
        (1, 2.0),
        (3, 1.0),
    ]


def test_a_spark_that_cannot_measure_partitions_refuses_to_hold_the_watermark_per_partition(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the brokers are asked, of which there are none."""

    @sf.pipeline("apart")
    def apart(flow: sf.Flow) -> None:
        topic = sf.kafka("orders", bootstrap="nowhere.invalid:9092")
        orders = flow.source(
            "orders", topic, Order, event_time="ts", watermark=sf.per_partition("10 minutes")
        )
        orders.collect("out", sf.memory("apart"))

    monkeypatch.setattr(open_inputs, "can_measure_highest", lambda spark: False)
    with refused(
        IncompatibleError,
        "source 'orders'",
        "sf.per_partition(...) needs Spark 4.2",
        "upgrade Spark",
        "watermark='10 minutes'",
    ):
        open_inputs.open_inputs(bench.spark, apart.build().sources, exactly_once=True)


def test_dead_letters_divert_failing_keys_until_there_are_too_many(bench: Workbench) -> None:
    out, letters, large = sf.memory("dead-out"), sf.memory("dead-letters"), sf.memory("dead-large")
    for table in (out, letters, large):
        table.clear()
    log = bench.folder / "log"

    @sf.pipeline("dead")
    def dead(flow: sf.Flow, *, log: str, threshold: int = 3) -> None:
        source = flow.source("in", bench.source("in", ORDER), Order)
        totals = source.key_by("user", order_by=("ts", "-amount")).process(
            "fragile", Fragile, outputs=[LARGE], on_error="dead_letter", dead_letter_threshold=threshold
        )
        totals.collect("out", out)
        totals.dead_letters.collect("letters", letters)
        totals.side(LARGE).collect("large", large)

    bad = ["bad", "wrong type", "wrong element"]
    bench.rows("in", [order(n) for n in range(10)])
    bench.rows("in", [order(n, bad[n // 3]) if n in (2, 3, 6) else order(n) for n in range(10)]
               + [order(2, "last", 0.5)])  # fmt: skip
    bench.rows("in", [order(n) for n in range(10)])
    bench.run(dead, {"log": str(log)}, chunk_rows=3)
    totals = [{r["user"]: r["total"] for r in rows} for _, rows in out.batches]
    assert totals[0] == dict.fromkeys(range(10), 1.0)
    assert totals[1] == {n: 2.0 for n in range(10) if n not in (2, 3, 6)}
    assert totals[2] == {n: 2.0 if n in (2, 3, 6) else 3.0 for n in range(10)}
    assert sorted(r["user"] for r in large.batches[1][1]) == [n for n in range(10) if n not in (2, 3, 6)]
    found = {r["key"]: r for r in letters.rows}
    slots = [slot for slot, _ in out.batches]
    assert {k: (r["operator"], r["error"], r["row_count"], r["checkpoint_id"]) for k, r in found.items()} == {
        "2": ("fragile", "ValueError: a bad sku\nwith more lines", 2, slots[1]),
        "3": ("fragile", "StateTypeError: operator 'fragile', state 'total', key 3: expected float, got str: 'many'", 1,
              slots[1]),
        "6": ("fragile", "StateTypeError: operator 'fragile', state 'skus', key 6: expected str, got int: 5", 1, slots[1]),
    }  # fmt: skip
    assert '"sku":"bad"' in found["2"]["rows"]
    assert '"sku":"last"' in found["2"]["rows"]
    assert "pipelines.py" in found["2"]["traceback"]
    statistics = bench.reports[1].statistics["operators"]["fragile"]
    assert statistics["dead_letters"] == 3
    # open and close once per task: two tasks in each of three batches.
    told = log.read_text().split()
    assert (told.count("open"), told.count("close")) == (6, 6)
    before = bench.states("dead")
    bench.rows("in", [order(n, "bad") for n in range(4)])
    with refused(sf.StateflowError, "operator 'fragile'", "4 keys in one batch", "more than dead_lett"):
        bench.run(dead, {"log": str(log)})
    assert bench.states("dead") == before
    # With the threshold that the sentence names, the batch passes.
    bench.run(dead, {"log": str(log), "threshold": 4})
    assert sorted(r["key"] for r in letters.batches[-1][1]) == ["0", "1", "2", "3"]


def test_a_run_with_changed_code_repeats_the_batch_that_failed(bench: Workbench) -> None:
    out = sf.memory("repeated")
    out.clear()

    def pipeline_with(process: type[Fragile]) -> sf.Pipeline:
        @sf.pipeline("repeated")
        def repeated(flow: sf.Flow) -> None:
            source = flow.source("in", bench.source("in", ORDER), Order)
            source.key_by("user").process("fragile", process, outputs=[LARGE]).collect("out", out)

        return repeated

    class Tolerant(Fragile):
        def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
            for row in rows:
                self.total.value += row.amount
            yield Total(key, self.total.value)

    bench.rows("in", [order(1), order(2)])
    bench.run(pipeline_with(Fragile))
    bench.rows("in", [order(1), order(2, "bad", 3.0)])
    with refused(UserCodeError, "changed code repeats it", "divert such keys"):
        bench.run(pipeline_with(Fragile))
    bench.run(pipeline_with(Tolerant))
    assert sorted((r["user"], r["total"]) for r in out.batches[-1][1]) == [(1, 2.0), (2, 4.0)]


# ---- what does not fit is refused before anything is written ----

Declare = Callable[[sf.Flow, Workbench], Any]


def declared(declare: Declare, bench: Workbench, name: str = "bad") -> sf.Pipeline:
    @sf.pipeline(name)
    def bad(flow: sf.Flow) -> None:
        declare(flow, bench)

    return bad


def summed(source: sf.Stream, process: Any = Sum, **options: Any) -> sf.Stream:
    return source.key_by("user").process("sum", process, outputs=[LARGE], **options)


def good(flow: sf.Flow, bench: Workbench) -> None:
    summed(flow.source("in", bench.source("in", ORDER), Order)).append(
        "out", sf.delta(str(bench.folder / "out"))
    )


class Narrower(sf.KeyedProcess[int, Order, Total]):
    total = sf.ValueState(str, default="")

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any: ...


class AnySum(sf.KeyedProcess[Any, Any, Any]):
    total = sf.ValueState(float, default=0.0)

    def process(self, key: Any, rows: Any, ctx: sf.Context) -> Any: ...


class Both(sf.ConnectedProcess[Any, Any, Any, Any]):
    def process_left(self, key: Any, rows: Any, ctx: sf.Context) -> Any: ...

    def process_right(self, key: Any, rows: Any, ctx: sf.Context) -> Any: ...


class OtherKind(sf.KeyedProcess[int, Order, Total]):
    total = sf.ListState(float)

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any: ...


def narrower(flow: sf.Flow, bench: Workbench) -> None:
    summed(flow.source("in", bench.source("in", ORDER), Order), Narrower).collect("out", sf.memory("bad"))


def other_kind(flow: sf.Flow, bench: Workbench) -> None:
    summed(flow.source("in", bench.source("in", ORDER), Order), OtherKind).collect("out", sf.memory("bad"))


def other_key(flow: sf.Flow, bench: Workbench) -> None:
    source = flow.source("in", bench.source("in", ORDER), Order)
    source.key_by("sku").process("sum", Sum, outputs=[LARGE]).collect("out", sf.memory("bad"))


def cast_key(flow: sf.Flow, bench: Workbench) -> None:
    source = flow.source("in", bench.source("in", ORDER)).transform(
        lambda f: f.withColumn("user", F.col("user").cast("string"))
    )
    source.key_by("user").process("sum", AnySum, output="n long").collect("out", sf.memory("bad"))


def more_keys(flow: sf.Flow, bench: Workbench) -> None:
    source = flow.source("in", bench.source("in", ORDER), Order)
    source.key_by("user", "sku").process("sum", Sum, outputs=[LARGE]).collect("out", sf.memory("bad"))


def removed(flow: sf.Flow, bench: Workbench) -> None:
    flow.source("in", bench.source("in", ORDER), Order).collect("out", sf.memory("bad"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            narrower,
            "operator 'sum', state 'total': its type was float and is str now (float cannot become str by itself",
        ),
        (other_kind, "operator 'sum', state 'total': its kind was value and is list now"),
        (
            other_key,
            "operator 'sum' was keyed by 'user', which its rows still have, and is keyed by 'sku' now",
        ),
        (cast_key, "operator 'sum' was keyed by user (int) and its key is (str) now"),
        (more_keys, "operator 'sum' was keyed by user (int) and is keyed by user, sku now"),
        (
            removed,
            "pipeline 'bad' does not fit checkpoint 3: state of operator 'sum' has no operator in this pipeline",
        ),
    ],
)
def test_a_change_that_does_not_fit_the_state_is_refused(
    changed: Workbench, change: Declare, message: str
) -> None:
    before, records = changed.listing(), changed.records("bad")
    with pytest.raises(sf.IncompatibleError) as caught:
        changed.run(declared(change, changed))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert changed.listing() == before
    assert changed.records("bad") == records


@pytest.fixture(scope="module")
def changed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    """A job with state, which no test here changes."""
    by_value([pipelines])
    bench = Workbench(spark, tmp_path_factory.mktemp("changed"))
    bench.rows("in", [order(1), order(2)])
    bench.run(declared(good, bench))
    return bench


def missing_column(flow: sf.Flow, bench: Workbench) -> None:
    summed(flow.source("in", bench.source("few", "user long, sku string"), Order)).collect(
        "out", sf.memory("bad")
    )


def missing_in_transform(flow: sf.Flow, bench: Workbench) -> None:
    source = flow.source("in", bench.source("in", ORDER), Order).transform(lambda f: f.drop("amount"))
    summed(source).collect("out", sf.memory("bad"))


def missing_key(flow: sf.Flow, bench: Workbench) -> None:
    source = flow.source("in", bench.source("in", ORDER)).transform(lambda f: f.drop("user"))
    source.key_by("user").process("sum", Sum, outputs=[LARGE]).collect("out", sf.memory("bad"))


def missing_order(flow: sf.Flow, bench: Workbench) -> None:
    source = flow.source("in", bench.source("in", ORDER))
    source.key_by("user", order_by="when").process("sum", Sum, outputs=[LARGE]).collect(
        "out", sf.memory("bad")
    )


def failing_transform(flow: sf.Flow, bench: Workbench) -> None:
    source = flow.source("in", bench.source("in", ORDER)).transform(lambda f: f.select("nothing"))
    source.collect("out", sf.memory("bad"))


def aggregating_transform(flow: sf.Flow, bench: Workbench) -> None:
    def summed_up(frame: Any) -> Any:
        kept = frame.where("amount > 0")
        return kept.groupBy("user").sum("amount")

    flow.source("in", bench.source("in", ORDER)).transform(summed_up).collect("out", sf.memory("bad"))


def no_frame(flow: sf.Flow, bench: Workbench) -> None:
    source = flow.source("in", bench.source("in", ORDER)).transform(lambda f: 5)
    source.collect("out", sf.memory("bad"))


def no_stream(flow: sf.Flow, bench: Workbench) -> None:
    flow.source("in", lambda spark: spark.range(5)).collect("out", sf.memory("bad"))


def no_source(flow: sf.Flow, bench: Workbench) -> None:
    flow.source("in", lambda spark: spark.readStream.format("nothing").load("/x")).collect(
        "out", sf.memory("bad")
    )


def no_table(flow: sf.Flow, bench: Workbench) -> None:
    flow.source("in", sf.delta(str(bench.folder / "nowhere"))).collect("out", sf.memory("bad"))


def no_table_of_a_function(flow: sf.Flow, bench: Workbench) -> None:
    path = str(bench.folder / "nowhere")
    flow.source("in", lambda spark: spark.readStream.format("delta").load(path)).collect(
        "out", sf.memory("bad")
    )


def no_folder(flow: sf.Flow, bench: Workbench) -> None:
    path = str(bench.folder / "nowhere")
    flow.source("in", lambda spark: spark.readStream.schema("a int").json(path)).collect(
        "out", sf.memory("bad")
    )


def no_files(flow: sf.Flow, bench: Workbench) -> None:
    files = sf.files("/no/such/folder", "json")
    flow.source("in", files, "a int").collect("out", sf.memory("bad"))


def stateful(flow: sf.Flow, bench: Workbench) -> None:
    opened = bench.source("in", ORDER)
    flow.source("in", lambda spark: opened(spark).groupBy("user").count()).collect("out", sf.memory("bad"))


def no_event_time(flow: sf.Flow, bench: Workbench) -> None:
    source = flow.source("in", bench.source("in", ORDER), event_time="sku", watermark="1 minute")
    source.collect("out", sf.memory("bad"))


def misfit_sink(flow: sf.Flow, bench: Workbench) -> None:
    """The table has a text where a number goes."""
    path = str(bench.folder / "misfit")
    if not Path(path).exists():
        frame = bench.spark.createDataFrame([(1, "much")], "user long, total string")
        frame.write.format("delta").save(path)
    source = flow.source("in", bench.source("in", ORDER), Order)
    source.transform(lambda f: f.select("user", F.struct("sku").alias("total"))).append("out", sf.delta(path))


def other_keys(flow: sf.Flow, bench: Workbench) -> None:
    left = flow.source("in", bench.source("in", ORDER)).transform(
        lambda f: f.select(F.col("sku").alias("user"))
    )
    right = flow.source("more", bench.source("in", ORDER))
    left.key_by("user").connect(right.key_by("user")).process("both", Both, output="n long").collect(
        "out", sf.memory("bad")
    )


def wrong_target(flow: sf.Flow, bench: Workbench) -> None:
    flow.source("in", bench.source("in", ORDER)).append("out", "/some/path")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistake", "kind", "message"),
    [
        (
            missing_column,
            sf.IncompatibleError,
            "source 'in' has no column 'amount', which Order declares; it has user, sku",
        ),
        (
            missing_in_transform,
            sf.IncompatibleError,
            "operator 'sum' needs column 'amount', which its input does not have",
        ),
        (
            missing_key,
            sf.IncompatibleError,
            "operator 'sum' needs column 'user', which its input does not have; it has sku",
        ),
        (
            missing_order,
            sf.IncompatibleError,
            "operator 'sum' needs column 'when', which its input does not have",
        ),
        (failing_transform, sf.UsageError, "transform-1 fails on its input: "),
        (
            aggregating_transform,
            sf.UsageError,
            "transform-1 has an aggregation, which would see the rows of one batch only: ",
        ),
        (no_frame, sf.UsageError, "transform-1"),
        (no_stream, sf.UsageError, "source 'in' gives no streaming DataFrame: open it with spark.readStream"),
        (no_source, sf.UsageError, "source 'in' cannot be opened: "),
        (no_table, sf.NotFoundError, "source 'in': there is no Delta table at /"),
        (no_table_of_a_function, sf.NotFoundError, "source 'in' opens a Delta table that is not there"),
        (no_folder, sf.NotFoundError, "source 'in' opens what is not there: [PATH_NOT_FOUND]"),
        (
            no_files,
            sf.NotFoundError,
            "source 'in': there is no folder /no/such/folder: make it, or correct the path",
        ),
        (stateful, sf.UsageError, "source 'in': "),
        (
            no_event_time,
            sf.IncompatibleError,
            "source 'in': event-time column 'sku' is string, not a timestamp",
        ),
        (misfit_sink, sf.IncompatibleError, ""),
        (other_keys, sf.IncompatibleError, "operator 'both': its two inputs are keyed by different types"),
        (
            wrong_target,
            sf.UsageError,
            "sink 'out' (append) cannot write to '/some/path': give it delta(path)",
        ),
    ],
)
def test_a_mistake_is_told_before_the_job_exists(
    changed: Workbench, mistake: Declare, kind: type[sf.StateflowError], message: str
) -> None:
    before = changed.listing()
    with pytest.raises(kind) as caught:
        changed.run(declared(mistake, changed, "never"))
    text = str(caught.value)
    assert text.startswith(message)
    assert "\n" not in text
    assert "Traceback" not in text
    assert changed.listing() == before
    assert changed.records("never") == []
    assert not (changed.folder / "root" / "never").exists()


def test_a_transform_may_join_a_lookup_table_that_it_sums_up(bench: Workbench) -> None:
    out = sf.memory("looked-up")
    out.clear()

    def looking_up(flow: sf.Flow, bench: Workbench) -> None:
        rates = bench.spark.createDataFrame([(1, 2.0), (1, 3.0)], "user long, rate double")
        by_user = rates.groupBy("user").agg(F.max("rate").alias("rate"))
        source = flow.source("in", bench.source("in", ORDER), Order)
        source.transform(lambda f: f.join(by_user, "user").select("user", "rate")).collect("out", out)

    bench.rows("in", [order(1), order(2)])
    bench.run(declared(looking_up, bench))
    assert out.rows == [{"user": 1, "rate": 3.0}]


def test_state_may_be_dropped_on_purpose_and_a_name_may_change_with_an_alias(bench: Workbench) -> None:
    out = sf.memory("renamed")
    out.clear()

    class Renamed(sf.KeyedProcess[int, Order, Total]):
        balance = sf.ValueState(float, default=0.0, aliases=["total"])

        def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
            yield Total(key, self.balance.value)

    def renamed(flow: sf.Flow, bench: Workbench) -> None:
        summed(flow.source("in", bench.source("in", ORDER), Order), Renamed).collect("out", out)

    bench.rows("in", [order(1), order(2)])
    bench.run(declared(good, bench))
    bench.rows("in", [order(1)])
    bench.run(declared(renamed, bench))
    assert out.rows == [{"user": 1, "total": 1.0}]
    bench.rows("in", [order(1)])
    bench.run(declared(removed, bench), allow_non_restored_state=True)
    assert "sum" not in bench.records("bad")[-1].operators


def writing(bench: Workbench, name: str, mode: str, table: Path) -> sf.Pipeline:
    @sf.pipeline(name)
    def written(flow: sf.Flow) -> None:
        rows = flow.source("in", bench.source("in", ORDER), Order)
        if mode == "append":
            rows.append("out", sf.delta(str(table)))
        else:
            rows.upsert("out", sf.delta(str(table)), keys=["user"])

    return written


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_table_that_is_gone_is_not_made_anew(bench: Workbench, mode: str) -> None:
    table = bench.folder / "table"
    gone = writing(bench, f"gone-{mode}", mode, table)
    bench.rows("in", [order(1)])
    bench.run(gone)
    kept = table.rename(bench.folder / "kept")
    bench.rows("in", [order(2)])
    with refused(
        sf.DisagreementError,
        f"{table} is gone",
        "that it got slot",
        f"sink 'out' of job 'gone-{mode}'",
        "put it back",
    ):
        bench.run(gone)
    assert not table.exists()
    kept.rename(table)
    bench.run(gone)
    assert len(contents(bench.spark, table)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_sink_that_is_told_another_place_is_not_said_to_have_lost_its_table(
    bench: Workbench, mode: str
) -> None:
    table, mistaken, moved = (bench.folder / name for name in ("table", "tabel", "moved"))

    def into(place: Path) -> sf.Pipeline:
        return writing(bench, f"told-{mode}", mode, place)

    bench.rows("in", [order(1)])
    bench.run(into(table))
    bench.rows("in", [order(2)])
    with refused(
        sf.DisagreementError, f"job 'told-{mode}' wrote to {table} up", f"{mistaken} now", "correct the parameter",
        "its place now", "a new sink uid",
    ) as caught:  # fmt: skip
        bench.run(into(mistaken))
    assert "is gone" not in str(caught.value)
    assert not mistaken.exists()
    # The correction, and the place that a table was moved to.
    bench.run(into(table))
    bench.rows("in", [order(3)])
    bench.run(into(table.rename(moved)))
    assert len(contents(bench.spark, moved)) == 3


class Panic(BaseException):
    """As libraries in Rust raise: no Exception."""


@pytest.mark.parametrize("where", ["build", "source", "step", "batch", "function", "panic"])
def test_code_that_ends_the_process_fails_the_run_and_keeps_no_one_waiting(
    bench: Workbench, where: str
) -> None:
    @sf.pipeline("ending")
    def ending(flow: sf.Flow) -> None:
        if where == "build":
            sys.exit(0)
        ran = [False]

        def step(frame: Any) -> Any:
            if where == "step" or (where == "batch" and ran[0]):
                sys.exit(0)
            ran[0] = True
            return frame

        def function(frame: Any, delivery: Any) -> None:
            if where == "panic":
                raise Panic("index out of bounds")
            sys.exit(0)

        source = bench.source("in", ORDER)
        made = (lambda spark: sys.exit(0)) if where == "source" else source
        flow.source("in", made, Order).transform(step).for_each_batch("f", function)

    bench.rows("in", [order(1)])
    named = {
        "build": "pipeline 'ending' ends the process (SystemExit: 0 (line ",
        "function": "(SystemExit: 0)",
    }
    with pytest.raises(Panic if where == "panic" else sf.StateflowError) as caught:
        bench.run(ending)
    assert named.get(
        where, "index out" if where == "panic" else " ends the process (SystemExit: 0 (line "
    ) in str(caught.value)


def test_a_run_by_another_column_of_event_time_is_refused_until_time_begins_anew(bench: Workbench) -> None:
    def release(column: str | None) -> sf.Pipeline:
        @sf.pipeline("timed")
        def timed(flow: sf.Flow) -> None:
            given = {"event_time": column, "watermark": "1 minute"} if column else {}
            source = flow.source("in", bench.source("in", "created timestamp, processed timestamp"), **given)
            source.collect("out", sf.memory("timed"))

        return timed

    def times() -> tuple[str, int | None]:
        source = bench.records("timed")[-1].sources["in"]
        return source.time_column, source.event_time

    def minute(number: int) -> int:
        return round(at(number).timestamp() * 1e6)

    bench.rows("in", [{"created": at(1), "processed": at(90)}])
    bench.run(release("processed"))
    assert times() == ("processed", minute(90))
    bench.rows("in", [{"created": at(2), "processed": at(91)}])
    for without_time in (False, True):
        with refused(IncompatibleError, "source 'in'", "'processed'", "'created'", "--reset-watermark"):
            bench.run(release("created"))
        if not without_time:
            bench.run(release(None))
    bench.job("timed").restore(
        "latest", release("created"), options=bench.options(), reset_watermark=True
    ).apply()
    bench.rows("in", [{"created": at(3), "processed": at(92)}])
    bench.run(release("created"))
    assert times() == ("created", minute(3))


@dataclass
class Moments:
    created: datetime
    done: Annotated[datetime, sf.field(aliases=["processed"])]


@dataclass
class MomentsLater:
    created: datetime
    done: datetime


def test_a_batch_without_input_notes_todays_name_of_the_column_of_event_time(bench: Workbench) -> None:
    def release(column: str, rows: Any) -> sf.Pipeline:
        @sf.pipeline("renaming")
        def renaming(flow: sf.Flow) -> None:
            opened = bench.source("in", f"created timestamp, {column} timestamp")
            source = flow.source("in", opened, rows, event_time=column, watermark="1 minute")
            source.collect("out", sf.memory("renaming"))

        return renaming

    bench.rows("in", [{"created": at(1), "processed": at(90)}])
    bench.run(release("processed", None))
    bench.run(release("done", Moments), drain=True)
    assert [report.input_free for report in bench.reports] == [True]
    newest = bench.records("renaming")[-1]
    source = newest.sources["in"]
    assert (source.time_column, source.columns) == ("done", ("created", "done"))
    check_flow(release("done", MomentsLater).build(), newest)
