"""Upserting into Delta: one row per key, merged once per slot; what can fail does before the decision."""

from __future__ import annotations

import shutil
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import stateflow as sf
from stateflow.errors import CorruptError, DisagreementError, FencedError, IncompatibleError, UsageError
from stateflow.pipelines.inputs.tables import delta
from stateflow.spark.sinks import delta_upsert, staging
from stateflow.spark.sinks.delta_upsert import DeltaUpsert
from stateflow.spark.sinks.same_task import then_in_arrow
from stateflow.testing.sink_log import SinkLog, make_sink
from tests.refusals.refusal import refused
from tests.spark import by_hand
from tests.spark.pipelines import Workbench
from tests.spark.sink_places import contents, versions

SCHEMA = "id long, at long, v string"


def rows(spark: SparkSession, *values: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(by_hand.arrow(values, by_hand.columns(SCHEMA)))


def opened(
    spark: SparkSession, path: Path, order_by: str | None = "at", delete_when: str | None = None
) -> DeltaUpsert:
    sink = of(path, order_by=order_by, delete_when=delete_when)
    sink.open(spark, rows(spark).schema)
    return sink


def of(path: Path, **options: Any) -> DeltaUpsert:
    return DeltaUpsert(delta(str(path)), {"keys": ["id"], **options})


@pytest.mark.slow
def test_a_key_keeps_its_newest_row_and_a_second_commit_changes_nothing(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    sink = opened(spark, path)
    log.deliver(sink, rows(spark, (1, 1, "a"), (2, 1, "b")))
    prepared = log.prepare(sink, rows(spark, (1, 5, "newest"), (1, 4, "older"), (3, 1, "c")))
    assert contents(spark, path) == [(1, 1, "a"), (2, 1, "b")]
    assert prepared.rows == 3
    assert [log.commit(prepared), log.commit(prepared)] == ["committed", "already"]
    assert contents(spark, path) == [(1, 5, "newest"), (2, 1, "b"), (3, 1, "c")]
    log.deliver(sink, rows(spark, (3, 2, "d")))

    def fenced() -> None:
        raise FencedError("epoch 2 has taken over")

    with pytest.raises(FencedError):
        replace(log, still_owner=fenced).commit(prepared, slot=2)
    assert contents(spark, path, "v") == ["b", "d", "newest"]


def test_rows_that_tie_are_decided_the_same_way_every_time(spark: SparkSession, path: Path) -> None:
    tied = [(1, 7, letter) for letter in "abcdefgh"]
    for order in (tied, tied[::-1]):
        frame = rows(spark, *order).repartition(3)
        assert [row["v"] for row in delta_upsert.newest(frame, ["id"], ["at"]).collect()] == ["h"]


def test_the_newest_row_is_found_whatever_its_columns_are_called(spark: SparkSession) -> None:
    frame = spark.sql("SELECT 1 AS id, 1 AS _SF_rank, 'old' AS __rank UNION ALL SELECT 1, 2, 'new'")
    found = delta_upsert.newest(frame, ["id"], ["_SF_rank"])
    assert (found.columns, [tuple(row) for row in found.collect()]) == (frame.columns, [(1, 2, "new")])


def test_rows_that_tie_and_hardly_differ_are_decided_the_same_way_too(spark: SparkSession) -> None:
    values = {"t": "timestamp_micros(0)", "n": "TIMESTAMP_NTZ'2026-01-01'", "d": "0.0D", "m": "map(X'00', 1)"}
    other = {
        "t": "timestamp_micros(1)",
        "n": "TIMESTAMP_NTZ'2026-01-01 00:00:00.000001'",
        "d": "-0.0D",
        "m": "map(X'01', 1)",
    }
    pairs = []
    for name in other:
        for one in (values[name], other[name]):
            columns = (
                f"{one if n == name else f'if(true, NULL, {value})'} AS {n}" for n, value in values.items()
            )
            pairs.append(f"SELECT '{name}' AS id, 7 AS at, {', '.join(columns)}")
    won = []
    for order in (pairs, pairs[::-1]):
        frame = spark.sql(" UNION ALL ".join(order)).coalesce(1)
        texts = [F.col(name).cast("string") for name in ("id", "t", "n", "d")]
        won.append(
            sorted(
                map(tuple, delta_upsert.newest(frame, ["id"], ["at"]).select(*texts, "m").collect()), key=str
            )
        )
    assert won[0] == won[1]
    assert len(won[0]) == 4


def test_two_merges_of_one_slot_that_race_apply_it_once(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    prepared = log.prepare(opened(spark, path), rows(spark, (1, 1, "a")))
    before, start = versions(path), threading.Barrier(2)
    outcomes: list[str] = []

    def race() -> None:
        start.wait()
        outcomes.append(log.commit(prepared))

    threads = [threading.Thread(target=race) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 2
    assert "committed" in outcomes
    assert versions(path) == before + 1
    assert contents(spark, path) == [(1, 1, "a")]


def test_duplicate_keys_without_an_order_fail_before_the_decision(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    sink = opened(spark, path, order_by=None)
    with refused(IncompatibleError, "2 rows of one batch", "have the key id=1", "order_by"):
        log.prepare(sink, rows(spark, (1, 1, "a"), (1, 2, "b"), (2, 1, "c")))
    log.slot = 0
    assert log.deliver(sink, rows(spark, (1, 1, "a"), (2, 1, "c"))) == "committed"


def test_a_table_that_only_takes_appends_is_refused_when_the_run_starts(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    log.deliver(opened(spark, path), rows(spark, (1, 1, "a")))
    prepared = log.prepare(opened(spark, path), rows(spark, (1, 2, "b")))
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.APPENDONLY' = 'TRUE')")
    with refused(IncompatibleError, "delta.appendOnly", "use append, or unset"):
        opened(spark, path)
    with refused(DisagreementError, "only takes appends now", "stateflow abandon orders 2"):
        log.commit(prepared)
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.appendOnly' = 'FALSE')")
    assert log.commit(prepared) == "committed"
    assert contents(spark, path) == [(1, 2, "b")]


def test_null_keys_fail_before_the_decision(spark: SparkSession, path: Path, log: SinkLog) -> None:
    with refused(IncompatibleError, "1 of the rows", "a null in the key column 'id'"):
        log.prepare(opened(spark, path), rows(spark, (None, 1, "a"), (2, 1, "c")))


@pytest.mark.parametrize("order_by", ["at", None])
def test_rows_that_cannot_break_anything_cost_no_job_but_the_one_that_stages_them(
    spark: SparkSession, path: Path, log: SinkLog, order_by: str | None
) -> None:
    spark.sql(f"CREATE TABLE delta.`{path}` (id long NOT NULL, at long, v string) USING delta")
    sink, context = opened(spark, path, order_by=order_by), spark.sparkContext
    frame = rows(spark, (1, None, "a"), (2, 1, None)).coalesce(1)
    group = f"prepare {path}"
    context.setJobGroup(group, "prepares an upsert")
    try:
        prepared = log.prepare(sink, frame)
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    assert len(context.statusTracker().getJobIdsForGroup(group)) == 1
    log.commit(prepared)
    assert contents(spark, path) == [(1, None, "a"), (2, 1, None)]


@dataclass
class Count:
    id: int
    n: int


@pytest.mark.slow
def test_an_operator_whose_rows_are_upserted_runs_in_the_job_and_the_process_that_stages_them(
    spark: SparkSession, bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    @sf.pipeline("counts")
    def counts(flow: sf.Flow) -> None:
        stream = flow.source("rows", bench.source("rows", "id long"), "id long").key_by("id")
        stream.aggregate("counted", Count, n=sf.count()).upsert("out", sf.delta(str(bench.folder / "out")))

    bench.rows("rows", [Count(1, 0), Count(2, 0), Count(1, 0)])
    bench.rows("rows", [Count(1, 0)])
    plans = []

    def planned(frame: DataFrame, *function: Any) -> DataFrame:
        plans.append(str((staged := then_in_arrow(frame, *function))._jdf.queryExecution().analyzed()))
        return staged

    monkeypatch.setattr(staging, "then_in_arrow", planned)
    bench.run(counts)
    assert contents(spark, bench.folder / "out") == [(1, 3), (2, 1)]
    assert [plan.count("MapInArrow") for plan in plans] == [1, 1]
    # An operator that has a job of its own would be among the steps.
    timings = [record.statistics["timings"] for record in bench.records("counts") if record.sinks]
    assert [[name for name in steps if "counted" in name] for steps in timings] == [[], []]
    assert all("prepare out" in steps for steps in timings)


@pytest.mark.slow
def test_rows_that_break_a_constraint_fail_before_the_decision(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    spark.sql(f"CREATE TABLE delta.`{path}` (id long, at long NOT NULL, v string) USING delta")
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT short CHECK (length(v) < 3)")
    sink = opened(spark, path)
    with refused(IncompatibleError, "NOT NULL column 'at'"):
        log.prepare(sink, rows(spark, (1, None, "a")))
    with refused(IncompatibleError, "broken the constraint 'short'"):
        log.prepare(sink, rows(spark, (1, 1, "long")))


def test_a_recreated_table_blocks_a_decided_record(spark: SparkSession, path: Path, log: SinkLog) -> None:
    prepared = log.prepare(opened(spark, path), rows(spark, (1, 1, "a")))
    shutil.rmtree(path)
    opened(spark, path)
    with refused(DisagreementError, "recreated", "stateflow abandon orders 1"):
        log.commit(prepared)


@pytest.mark.slow
def test_columns_that_the_output_lacks_keep_their_values(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    spark.sql(f"CREATE TABLE delta.`{path}` (id long, at long, v string, note string) USING delta")
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (1, 0, 'a', 'kept')")
    log.deliver(opened(spark, path), rows(spark, (1, 1, "b"), (2, 1, "c")))
    assert contents(spark, path) == [(1, 1, "b", "kept"), (2, 1, "c", None)]
    # Delta has merged them, in a session of its own.
    assert spark.conf.get(delta_upsert.APP_ID, None) is None
    assert spark.conf.get(delta_upsert.VERSION, None) is None


@pytest.mark.slow
@pytest.mark.parametrize("merges", ["the driver", "delta"])
def test_columns_may_have_names_with_dots_and_backticks(
    spark: SparkSession, path: Path, log: SinkLog, merges: str
) -> None:
    def named(*values: tuple[Any, ...]) -> DataFrame:
        kinds = "`i.d` long, `a``t` long, `x.y` string, x struct<y:int>"
        return spark.createDataFrame([(*each, (0,)) for each in values], kinds).coalesce(1)

    if merges == "delta":
        columns = "`i.d` BIGINT, `a``t` BIGINT, `x.y` STRING, x STRUCT<y: INT NOT NULL>"
        spark.sql(f"CREATE TABLE delta.`{path}` ({columns}) USING delta")
        spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    sink = DeltaUpsert(delta(str(path)), {"keys": ["i.d"], "order_by": "a`t"})
    sink.open(spark, named().schema)
    log.deliver(sink, named((1, 1, "a"), (2, 1, "b")))
    log.deliver(sink, named((1, 2, "older"), (1, 3, "newest")))
    assert [row[:3] for row in contents(spark, path)] == [(1, 3, "newest"), (2, 1, "b")]


@pytest.mark.slow
@pytest.mark.parametrize("vectors", ["false", "true"])
def test_a_path_may_have_a_backtick(spark: SparkSession, tmp_path: Path, log: SinkLog, vectors: str) -> None:
    path = tmp_path / "it's `odd`"
    target = delta(str(path), partition_by=["at"], options={"delta.enableDeletionVectors": vectors})
    sink = DeltaUpsert(target, {"keys": ["id"]})
    sink.open(spark, rows(spark).schema)
    log.deliver(sink, rows(spark, (1, 1, "a"), (2, 1, "b")))
    log.deliver(sink, rows(spark, (1, 2, "c")))
    assert contents(spark, path) == [(1, 2, "c"), (2, 1, "b")]
    detail = spark.sql(f"DESCRIBE DETAIL {target.in_sql}").first()
    assert detail is not None
    assert detail["partitionColumns"] == ["at"]
    assert detail["properties"].items() >= {
        "delta.checkpointInterval": "100", "delta.enableDeletionVectors": vectors
    }.items()  # fmt: skip


def test_a_damaged_staged_file_is_not_merged(spark: SparkSession, path: Path, log: SinkLog) -> None:
    prepared = log.prepare(opened(spark, path), rows(spark, (1, 1, "a")))
    staged = log.root / prepared.files[0].path
    body = bytearray(staged.read_bytes())
    body[len(body) // 2] ^= 1
    staged.write_bytes(bytes(body))
    with refused(CorruptError, "checksum"):
        log.commit(prepared)
    assert contents(spark, path) == []


@pytest.mark.slow
def test_a_row_for_which_the_condition_holds_deletes_its_key_once(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    sink = opened(spark, path, delete_when="v = 'gone'")
    log.deliver(sink, rows(spark, (1, 1, "a"), (2, 1, "b"), (3, 1, "c"), (4, 1, None)))
    change = [(1, 2, "gone"), (2, 3, "back"), (2, 2, "gone"), (3, 2, "late"), (3, 3, "gone"), (9, 1, "gone")]
    prepared = log.prepare(sink, rows(spark, *change))
    assert prepared.rows == 6
    assert [log.commit(prepared), log.commit(prepared)] == ["committed", "already"]
    # What is null does not hold, and a key that is not there is nothing to delete.
    assert contents(spark, path) == [(2, 3, "back"), (4, 1, None)]
    assert spark.read.format("delta").load(str(path)).columns == ["id", "at", "v"]


def test_a_row_that_deletes_breaks_no_constraint(spark: SparkSession, path: Path, log: SinkLog) -> None:
    spark.sql(f"CREATE TABLE delta.`{path}` (id long, at long NOT NULL, v string) USING delta")
    sink = opened(spark, path, delete_when="v = 'gone'")
    log.deliver(sink, rows(spark, (1, 1, "a"), (2, 1, "b")))
    log.deliver(sink, rows(spark, (1, None, "gone")))
    assert contents(spark, path) == [(2, 1, "b")]
    with refused(IncompatibleError, "a null in the key column 'id'"):
        log.prepare(sink, rows(spark, (None, 1, "gone")))


def test_a_condition_deletes_beside_what_a_stream_deletes_itself(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    schema = "id long, v string, _op string"
    sink = of(path, operation="_op", delete_when="v = 'gone'")
    first = spark.createDataFrame([(n, "a", "upsert") for n in (1, 2, 3)], schema)
    sink.open(spark, first.schema)
    log.deliver(sink, first)
    change = [(1, "a", "delete"), (2, "gone", "upsert"), (3, "b", "upsert")]
    log.deliver(sink, spark.createDataFrame(change, schema))
    assert contents(spark, path) == [(3, "b")]


@pytest.mark.parametrize("condition", [None, "v = 'gone'"])
def test_a_row_that_says_not_whether_it_deletes_is_refused(
    spark: SparkSession, path: Path, log: SinkLog, condition: str | None
) -> None:
    """A merge would lose it: as a delete of what it replaces, or as an insert that is none."""
    schema = "id long, v string, _op string"
    sink = of(path, operation="_op", **({"delete_when": condition} if condition else {}))
    first = spark.createDataFrame([(1, "a", "upsert")], schema)
    sink.open(spark, first.schema)
    log.deliver(sink, first)
    with refused(IncompatibleError, "1 of the rows", "a null in the column '_op'", "let transform() keep"):
        log.prepare(sink, spark.createDataFrame([(1, "b", None), (2, "gone", "upsert")], schema))
    assert contents(spark, path) == [(1, "a")]


def test_a_column_of_the_rows_may_have_the_name_of_the_mark(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    frame = spark.createDataFrame([(1, "delete"), (2, "gone")], "id long, _SF_op string")
    sink = of(path, delete_when="_SF_op = 'gone'")
    sink.open(spark, frame.schema)
    log.deliver(sink, frame)
    assert contents(spark, path) == [(1, "delete")]


def test_a_condition_that_does_not_fit_is_refused_when_the_run_starts(
    spark: SparkSession, path: Path
) -> None:
    with refused(UsageError, "delete_when", "column 'op'", "it has id, at, v"):
        opened(spark, path, delete_when="op = 'delete'")
    with pytest.raises(UsageError, match="does not take string and number"):
        opened(spark, path, delete_when="v = 1")
    assert not path.exists()


def test_columns_that_are_not_there_are_refused_when_the_run_starts(spark: SparkSession, path: Path) -> None:
    with refused(UsageError, "the upsert into", "names 'uid'", "['id', 'at', 'v']"):
        of(path, keys=["uid"]).open(spark, rows(spark).schema)
    with refused(UsageError, "has no key columns"):
        make_sink("totals", "upsert", delta(str(path)), {"keys": []})


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("map<string,int>", "map<string,int>"),
        ("struct<a:array<map<string,int>>>", "array<map"),
        ("variant", "variant"),
    ],
)
def test_keys_and_orders_that_nobody_compares_are_refused_when_the_run_starts(
    spark: SparkSession, path: Path, kind: str, shown: str
) -> None:
    schema = spark.createDataFrame([], f"id long, M {kind}").schema
    with refused(UsageError, "keys='m'", shown, "transform()", "tells rows apart"):
        of(path, keys=["id", "m"]).open(spark, schema)
    with refused(UsageError, "order_by='m'", shown, "transform()", "which row is newer"):
        of(path, order_by="m").open(spark, schema)
    assert not path.exists()


@pytest.mark.slow
def test_keys_and_orders_of_several_values_are_compared(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    schema = "k struct<a:int>, o array<int>, m map<string,int>"
    # The column that a refusal of a map as a key asks for.
    frame = spark.createDataFrame([((1,), [1], {"x": 1}), ((1,), [2], {"x": 1})], schema)
    frame = frame.withColumn("key", F.to_json("m"))
    sink = of(path, keys=["k", "key"], order_by="o")
    sink.open(spark, frame.schema)
    for _ in range(2):
        log.deliver(sink, frame)
    assert [(row[0], row[1]) for row in contents(spark, path)] == [((1,), [2])]
