"""Appending to Delta: every slot's rows are in the table once, whatever happens between its phases."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from delta.tables import DeltaTable, DeltaTableBuilder
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from stateflow.errors import DisagreementError, FencedError, IncompatibleError, UsageError
from stateflow.pipelines.inputs.tables import delta
from stateflow.spark.internals.delta_log import DeltaLog
from stateflow.spark.sinks import delta_append
from stateflow.spark.sinks.base import DeliveryMode
from stateflow.spark.sinks.delta_append import DeltaAppend
from stateflow.spark.task.failures import translated
from stateflow.testing.sink_log import SinkLog, make_sink
from tests.refusals.refusal import refused
from tests.spark import by_hand
from tests.spark.sink_places import contents, versions


def numbers(spark: SparkSession, *values: int) -> DataFrame:
    return spark.createDataFrame(by_hand.arrow([(v,) for v in values], {"n": "long"}))


def opened(spark: SparkSession, path: Path, schema: str = "n long", **options: object) -> DeltaAppend:
    sink = DeltaAppend(delta(str(path), **options))  # type: ignore[arg-type]
    sink.open(spark, spark.createDataFrame([], schema).schema)
    return sink


def forget_what_is_fresh() -> None:
    """As another process would see it."""
    delta_append._unvacuumed.clear()


def fenced() -> None:
    raise FencedError("epoch 2 has taken over")


@pytest.mark.slow
def test_rows_show_only_once_they_are_committed(spark: SparkSession, path: Path, log: SinkLog) -> None:
    sink = opened(spark, path)
    log.prepare(sink, numbers(spark, 9))
    log.slot -= 1  # the batch fails before its record
    prepared = log.prepare(sink, numbers(spark, 1, 2))
    assert prepared.rows == 2
    with pytest.raises(FencedError):
        replace(log, still_owner=fenced).commit(prepared)
    assert contents(spark, path, "n") == []
    # Writers of their own may come in between, and another run commits what a dead one prepared.
    numbers(spark, 100).write.format("delta").mode("append").save(str(path))
    forget_what_is_fresh()
    assert [log.commit(prepared) for _ in range(3)] == ["committed", "already", "already"]
    assert contents(spark, path, "n") == [1, 2, 100]
    before = versions(path)
    assert log.deliver(sink, numbers(spark)) == "none"
    assert versions(path) == before
    assert log.deliver(sink, numbers(spark, 3)) == "committed"
    with pytest.raises(FencedError):
        replace(log, still_owner=fenced).commit(prepared, slot=1)
    assert contents(spark, path, "n") == [1, 2, 3, 100]


def test_rows_are_counted_also_where_delta_collects_no_statistics(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    """A replay would take them for none, and say that code which drops them changes nothing."""
    plain = spark.newSession()
    plain.conf.set("spark.databricks.delta.stats.collect", "false")
    sink = opened(spark, path)
    for rows in ((1, 2, 3), ()):
        prepared = log.prepare(sink, numbers(plain, *rows))
        assert "numRecords" not in str(prepared.payload["actions"])
        assert prepared.rows == len(rows)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["append", "upsert"])
def test_of_two_copies_of_a_log_only_one_gets_its_rows_in_and_the_other_hears_of_it(
    spark: SparkSession, path: Path, log: SinkLog, kind: str
) -> None:
    sink = make_sink("totals", kind, delta(str(path)), {"keys": ("n",)} if kind == "upsert" else None)
    sink.open(spark, numbers(spark, 1).schema)
    log.deliver(sink, numbers(spark, 1))
    copy = replace(log, writer="c")
    mine, theirs = log.prepare(sink, numbers(spark, 2)), copy.prepare(sink, numbers(spark, 3))
    assert copy.commit(theirs) == "committed"
    assert copy.commit(theirs) == "already"
    for newest in (2, 3):
        with refused(DisagreementError, f"has slot {newest} of this job", "slot 1 was last committed"):
            log.commit(mine)
        # Nor is a record prepared.
        log.slot = 1
        with pytest.raises(DisagreementError, match="put back from a copy"):
            log.prepare(sink, numbers(spark, 2))
        copy.deliver(sink, numbers(spark, newest + 2))
    assert contents(spark, path, "n") == [1, 3, 4, 5]


def test_two_commits_of_one_slot_that_race_add_its_rows_once(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    sink = opened(spark, path)
    for value in range(3):
        prepared = log.prepare(sink, numbers(spark, value))
        start = threading.Barrier(2)
        outcomes: list[str] = []

        def race(start: threading.Barrier = start, outcomes: list[str] = outcomes) -> None:
            start.wait()
            outcomes.append(log.commit(prepared))  # noqa: B023

        threads = [threading.Thread(target=race) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["already", "committed"]
    assert contents(spark, path, "n") == [0, 1, 2]


def test_a_commit_that_loses_the_race_after_reading_the_slot_looks_again(
    spark: SparkSession, path: Path, log: SinkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = log.prepare(opened(spark, path), numbers(spark, 1))
    plain = delta_append.current_actions
    calls: list[str] = []

    def paused(*arguments: object) -> list[str]:
        if not calls:
            calls.append("paused")
            assert log.commit(prepared) == "committed"
        return plain(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(delta_append, "current_actions", paused)
    assert log.commit(prepared) == "already"
    assert contents(spark, path, "n") == [1]


def test_the_history_names_the_record_and_counts_its_rows(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    log.deliver(opened(spark, path), numbers(spark, 1, 2, 3))
    entry = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").first()
    assert entry is not None
    assert entry["operation"] == "STREAMING UPDATE"
    assert entry["operationParameters"]["epochId"] == "1"
    assert entry["operationParameters"]["queryId"] == f"stateflow/{log.job}/totals"
    assert entry["operationMetrics"]["numOutputRows"] == "3"
    assert int(entry["operationMetrics"]["numOutputBytes"]) > 0


def test_jobs_with_one_sink_uid_share_a_table_also_one_recreated_under_an_old_name(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    sink = opened(spark, path)
    other = SinkLog(spark, log.root, job="99999999-3333-4a6e-9d3f-0123456789ab", name="refunds")
    mine, theirs = log.prepare(sink, numbers(spark, 1)), other.prepare(sink, numbers(spark, 2))
    assert other.commit(theirs) == "committed"
    assert [log.commit(mine), log.commit(mine)] == ["committed", "already"]
    log.deliver(sink, numbers(spark, 3))
    again = SinkLog(spark, log.root, job="77777777-2222-4a6e-9d3f-0123456789ab")
    assert again.deliver(sink, numbers(spark, 100)) == "committed"
    assert contents(spark, path, "n") == [1, 2, 3, 100]


def test_another_table_than_that_of_the_log_is_refused(spark: SparkSession, path: Path, log: SinkLog) -> None:
    sink = opened(spark, path)
    log.deliver(sink, numbers(spark, 1))
    with pytest.raises(DisagreementError, match="path changed"):
        log.prepare(opened(spark, path.with_name("moved")), numbers(spark, 2))
    log.slot = 7  # the sink is left out for some slots, and comes back
    assert log.deliver(sink, numbers(spark, 8)) == "committed"
    with pytest.raises(DisagreementError, match="none was last committed"):
        replace(log, last=None).prepare(sink, numbers(spark, 9))
    prepared = log.prepare(sink, numbers(spark, 9))
    shutil.rmtree(path)
    opened(spark, path)
    with pytest.raises(DisagreementError, match=r"recreated.*stateflow abandon orders 9"):
        log.commit(prepared)
    with refused(DisagreementError, "no slot of this job", "slot 8", "sink 'totals'"):
        log.prepare(sink, numbers(spark, 10))
    assert contents(spark, path, "n") == []


def test_a_table_restored_behind_the_log_is_found_before_the_decision(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    sink = opened(spark, path)
    log.deliver(sink, numbers(spark, 1))
    kept = path.with_name("kept")
    shutil.copytree(path, kept)
    log.deliver(sink, numbers(spark, 2))
    shutil.rmtree(path)
    kept.rename(path)
    spark.sql("CLEAR CACHE")
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    with pytest.raises(DisagreementError, match=r"has slot 1.*slot 2 was last committed"):
        log.prepare(sink, numbers(spark, 3))


@pytest.mark.slow
def test_vacuumed_data_files_are_not_committed(spark: SparkSession, path: Path, log: SinkLog) -> None:
    sink = opened(spark, path)
    log.deliver(sink, numbers(spark, 1))
    prepared = log.prepare(sink, numbers(spark, 2))
    forget_what_is_fresh()
    listed = {file.rpartition("/")[2] for file in spark.read.format("delta").load(str(path)).inputFiles()}
    for file in path.glob("*.parquet"):
        if file.name not in listed:
            file.unlink()
    with refused(DisagreementError, "1 of 1 data files", "vacuumed", "stateflow abandon"):
        log.commit(prepared)
    assert contents(spark, path, "n") == [1]


def test_a_column_added_after_the_decision_does_not_stop_the_commit(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    prepared = log.prepare(opened(spark, path), numbers(spark, 1, 2))
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (note string)")
    assert log.commit(prepared) == "committed"
    assert log.commit(prepared) == "already"
    assert contents(spark, path) == [(1, None), (2, None)]


@pytest.mark.slow
def test_a_column_given_another_meaning_after_the_decision_stops_the_commit(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    sink = opened(spark, path, "n long, m long", options={"delta.columnMapping.mode": "name"})
    prepared = log.prepare(sink, spark.createDataFrame([(1, 2)], "n long, m long"))
    spark.sql(f"ALTER TABLE delta.`{path}` DROP COLUMN m")
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (m long)")
    with pytest.raises(DisagreementError, match=r"columns m .*changed"):
        log.commit(prepared)
    assert contents(spark, path) == []


@pytest.mark.slow
def test_a_constraint_added_after_the_decision_is_kept(spark: SparkSession, path: Path, log: SinkLog) -> None:
    sink = opened(spark, path)
    good, bad = log.prepare(sink, numbers(spark, 5)), numbers(spark, -5)
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT positive CHECK (n > 0)")
    assert log.commit(good) == "committed"
    spark.sql(f"ALTER TABLE delta.`{path}` DROP CONSTRAINT positive")
    prepared = log.prepare(sink, bad)
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT positive CHECK (n > 0)")
    with pytest.raises(DisagreementError, match="break a constraint"):
        log.commit(prepared)
    assert contents(spark, path, "n") == [5]


def test_rows_that_break_a_constraint_fail_before_the_decision(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    spark.sql(f"CREATE TABLE delta.`{path}` (n long NOT NULL, m long) USING delta")
    spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT positive CHECK (m > 0)")
    sink = opened(spark, path, "n long, m long")
    for row in ((None, 1), (1, -1)):
        with pytest.raises(Exception, match=r"(?i)constraint|null"):
            sink.prepare(spark.createDataFrame([row], "n long, m long"), log.at(1), log.stage)
    assert contents(spark, path) == []
    assert log.deliver(sink, spark.createDataFrame([(1, 1)], "n long, m long")) == "committed"


FEATURES = {
    "delta.columnMapping.mode": "name", "delta.enableChangeDataFeed": "true", "delta.enableRowTracking": "true",
    "delta.enableInCommitTimestamps": "true", "delta.autoOptimize.optimizeWrite": "true",
}  # fmt: skip


@pytest.mark.slow
def test_tables_with_features_take_rows_once(spark: SparkSession, path: Path, log: SinkLog) -> None:
    sink = opened(spark, path, options=FEATURES)
    for value in range(2):
        prepared = log.prepare(sink, numbers(spark, 10 * value, 10 * value + 1))
        assert [log.commit(prepared), log.commit(prepared)] == ["committed", "already"]
    assert contents(spark, path, "n") == [0, 1, 10, 11]


@pytest.mark.slow
def test_rows_deleted_by_deletion_vectors_stay_deleted(spark: SparkSession, path: Path, log: SinkLog) -> None:
    sink = opened(spark, path, options={"delta.enableDeletionVectors": "true"})
    log.deliver(sink, numbers(spark, 0, 1).coalesce(1))
    prepared = log.prepare(sink, numbers(spark, 2))
    spark.sql(f"DELETE FROM delta.`{path}` WHERE n = 0")
    assert log.commit(prepared) == "committed"
    assert contents(spark, path, "n") == [1, 2]


def test_generated_columns_are_filled(spark: SparkSession, path: Path, log: SinkLog) -> None:
    (
        DeltaTable.create(spark)
        .location(str(path))
        .addColumn("n", "long")
        .addColumn("double", "long", generatedAlwaysAs="n * 2")
        .execute()
    )
    log.deliver(opened(spark, path), numbers(spark, 4))
    assert contents(spark, path) == [(4, 8)]


def test_identity_columns_are_refused_when_the_run_starts(spark: SparkSession, path: Path) -> None:
    from delta.tables import IdentityGenerator

    (
        DeltaTable.create(spark)
        .location(str(path))
        .addColumn("n", "long")
        .addColumn("id", "long", generatedAlwaysAs=IdentityGenerator())
        .execute()
    )
    with pytest.raises(IncompatibleError, match="identity column 'id'"):
        opened(spark, path)


@pytest.mark.slow
def test_partitioned_tables_are_created_and_written(spark: SparkSession, path: Path, log: SinkLog) -> None:
    sink = opened(spark, path, "day string, n long", partition_by=["day"])
    rows = spark.createDataFrame([("mon", 1), ("tue", 2), (None, 3)], "day string, n long")
    log.deliver(sink, rows)
    assert sorted(contents(spark, path, "n")) == [1, 2, 3]
    assert DeltaLog(spark, str(path)).begin().shape().partition_by == ("day",)
    prepared = log.prepare(sink, rows)
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (note string)")
    forget_what_is_fresh()
    assert log.commit(prepared) == "committed"
    assert spark.read.format("delta").load(str(path)).where("day = 'tue'").count() == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "value", "named"),
    [
        ("string", "''", "the value '' of a row"), ("string", "'__HIVE_DEFAULT_PARTITION__'", "'__HIVE_DEFAULT_PARTITION__'"),
        ("binary", "X''", "the value X'' of a row"), ("binary", "X'61FF'", "the value X'61FF' of a row"),
    ],
)  # fmt: skip
def test_a_value_that_partitions_do_not_hold_fails_the_batch(
    spark: SparkSession, path: Path, log: SinkLog, kind: str, value: str, named: str
) -> None:
    sink = opened(spark, path, f"part {kind}, n long", partition_by=["part"])
    with pytest.raises(Exception, match="no row was written") as caught:
        log.prepare(sink, spark.sql(f"SELECT {value} AS part, 1L AS n"))
    error = translated(caught.value)
    assert isinstance(error, IncompatibleError)
    assert named in str(error)
    assert "is partitioned by 'part'" in str(error)
    held = spark.sql(
        "SELECT cast(part AS binary) AS part, n FROM VALUES ('a', 1L), (NULL, 2L), (' ', 3L), ('null', 4L) AS t(part, n)"
    )
    log.slot -= 1
    log.deliver(sink, held.selectExpr(f"cast(part AS {kind}) AS part", "n"))
    there = spark.read.format("delta").load(str(path)).selectExpr("cast(part AS string)", "n").orderBy("n")
    assert [tuple(row) for row in there.collect()] == [("a", 1), (None, 2), (" ", 3), ("null", 4)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("2024-10-27 01:30:00.000001Z", "TIMESTAMP'2024-10-27 02:30:00.000001+01:00'"),
        ("0000-06-01 00:00:00Z", "TIMESTAMP'0000-06-01 00:53:28"),
    ],
)
def test_a_time_that_partitions_do_not_hold_fails_the_batch(
    spark: SparkSession, path: Path, log: SinkLog, value: str, named: str
) -> None:
    """In Berlin an hour of October comes twice."""
    schema, zone = "part timestamp, n long", spark.conf.get("spark.sql.session.timeZone")
    sink = opened(spark, path, schema, partition_by=["part"])

    def row(value: str, n: int) -> DataFrame:
        return spark.sql(f"SELECT TIMESTAMP'{value}' AS part, {n}L AS n")

    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        with pytest.raises(Exception, match="no row was written") as caught:
            log.prepare(sink, row(value, 1))
        said = str(translated(caught.value))
        assert named in said
        assert "run in UTC (spark.sql.session.timeZone)" in said
        log.slot -= 1
        log.deliver(sink, row("2024-10-27 00:30:00Z", 2))
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    there = [(1729989000, 2)]
    if value > "1":
        log.deliver(sink, row(value, 1))
        there.insert(0, (1729992600, 1))
    rows = spark.read.format("delta").load(str(path)).selectExpr("unix_seconds(part)", "n").orderBy("n")
    assert [tuple(row) for row in rows.collect()] == there


def test_output_that_does_not_fit_is_refused_with_every_column(spark: SparkSession, path: Path) -> None:
    spark.sql(f"CREATE TABLE delta.`{path}` (n long, m string, must int NOT NULL) USING delta")
    with pytest.raises(IncompatibleError) as caught:
        opened(spark, path, "n string, m string, extra int")
    for part in (
        "'n' is string, there bigint",
        "'extra' is not in the table",
        "'must' is missing and NOT NULL",
    ):
        assert part in str(caught.value)


@pytest.mark.system
def test_the_refusal_prints_the_statement_that_adds_the_columns(
    spark: SparkSession, tmp_path: Path, log: SinkLog
) -> None:
    path = tmp_path / "a `quoted` table"
    log.deliver(opened(spark, path), numbers(spark, 1))
    schema = "n long, channel string, `a``b` decimal(10,2), s struct<`x-y`:int,Z:array<timestamp>>, m map<string,date>"
    with pytest.raises(IncompatibleError) as caught:
        opened(spark, path, schema)
    statement = str(caught.value).partition("alter the table: ")[2]
    assert statement.startswith("ALTER TABLE delta.`")
    assert "(`channel` STRING, `a``b` DECIMAL(10,2), " in statement
    spark.sql(statement)
    sink = opened(spark, path, schema)
    log.deliver(sink, spark.createDataFrame([(2, "web", None, None, None)], schema))
    rows = spark.read.format("delta").load(str(path)).orderBy("n").select("n", "channel").collect()
    assert [tuple(row) for row in rows] == [(1, None), (2, "web")]


def test_narrower_types_are_widened_to_the_tables(spark: SparkSession, path: Path, log: SinkLog) -> None:
    spark.sql(f"CREATE TABLE delta.`{path}` (n long, x double) USING delta")
    sink = opened(spark, path, "N int, x float")
    log.deliver(sink, spark.createDataFrame([(1, 0.5)], "N int, x float"))
    assert contents(spark, path) == [(1, 0.5)]


def test_another_partitioning_than_the_tables_is_refused(spark: SparkSession, path: Path) -> None:
    opened(spark, path, "a string, b string, n long", partition_by=["a"])
    with pytest.raises(IncompatibleError, match=r"partitioned by \['a'\], not by \['b'\]"):
        opened(spark, path, "a string, b string, n long", partition_by=["b"])


@pytest.mark.slow
def test_the_slot_is_found_without_the_checksum_file(spark: SparkSession, path: Path, log: SinkLog) -> None:
    sink = opened(spark, path)
    prepared = log.prepare(sink, numbers(spark, 1))
    log.commit(prepared)
    for file in (path / "_delta_log").glob("*.crc"):
        file.unlink()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    assert DeltaLog(spark, str(path)).begin().slot_of(log.at().app_id) == 1
    assert log.commit(prepared) == "already"
    assert log.deliver(sink, numbers(spark, 2)) == "committed"


def test_at_least_once_appends_without_transaction_versions(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    sink = DeltaAppend(delta(str(path)), delivery="at_least_once")
    sink.open(spark, numbers(spark).schema)
    prepared = log.prepare(sink, numbers(spark, 1))
    assert [log.commit(prepared), log.commit(prepared)] == ["committed", "committed"]
    assert contents(spark, path, "n") == [1]
    assert DeltaLog(spark, str(path)).begin().slot_of(log.at().app_id) is None


@pytest.mark.slow
def test_a_job_may_go_from_at_least_once_back_to_exactly_once(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    prepared = None

    def run(delivery: DeliveryMode, *values: int) -> str:
        nonlocal prepared
        sink = DeltaAppend(delta(str(path)), delivery=delivery)
        sink.last_prepared = prepared
        sink.open(spark, numbers(spark).schema)
        prepared = log.prepare(sink, numbers(spark, *values))
        return log.commit(prepared)

    assert run("at_least_once", 1) == "committed"
    assert run("exactly_once", 2) == "committed"
    assert run("at_least_once", 3) == "committed"
    assert run("exactly_once") == "none"
    assert run("exactly_once", 5) == "committed"
    assert prepared is not None
    assert log.commit(prepared) == "already"
    log.last = 9
    with refused(DisagreementError, "slot 5", "slot 9"):
        run("exactly_once", 6)
    assert contents(spark, path, "n") == [1, 2, 3, 5]


def test_s3_without_a_client_of_it_is_refused_under_exactly_once(spark: SparkSession) -> None:
    sink = DeltaAppend(delta("s3n://bucket/table"))
    refused = r"(?s)needs commits that no other driver can overwrite, and Hadoop does not open it \(.*s3n.*spark.delta.logStore.s3n.impl="
    with pytest.raises(UsageError, match=refused):
        sink.open(spark, numbers(spark).schema)


def test_the_stage_that_computes_the_rows_writes_them_even_where_tables_ask_for_a_shuffle(
    spark: SparkSession, path: Path, log: SinkLog
) -> None:
    sink = opened(spark, path, options={"delta.autoOptimize.optimizeWrite": "true"})
    frame = spark.range(4, numPartitions=4).selectExpr("id as n")
    assert len(log.prepare(sink, frame).payload["actions"]) == 4


def test_a_table_that_a_run_creates_writes_its_own_checkpoints_seldom_unless_told_otherwise(
    spark: SparkSession, path: Path
) -> None:
    opened(spark, path)
    interval = DeltaLog(spark, str(path)).begin().shape().configuration["delta.checkpointInterval"]
    assert interval == "100"
    other = path.with_name("other")
    opened(spark, other, options={"delta.checkpointInterval": "7"})
    assert DeltaLog(spark, str(other)).begin().shape().configuration["delta.checkpointInterval"] == "7"


@pytest.mark.parametrize("made", [True, False])
def test_a_table_that_another_first_run_is_just_creating_is_waited_for(
    spark: SparkSession, path: Path, log: SinkLog, monkeypatch: pytest.MonkeyPatch, *, made: bool
) -> None:
    execute, failures = DeltaTableBuilder.execute, [2]

    def sometimes(builder: DeltaTableBuilder) -> DeltaTable:
        if failures[0]:
            failures[0] -= 1
            if made and not failures[0]:
                execute(builder)
            raise AnalysisException("[DELTA_TABLE_NOT_FOUND] Delta table doesn't exist")
        return execute(builder)

    monkeypatch.setattr(DeltaTableBuilder, "execute", sometimes)
    assert log.deliver(opened(spark, path), numbers(spark, 1, 2)) == "committed"
    assert contents(spark, path) == [(1,), (2,)]


def test_a_table_that_cannot_be_created_is_no_matter_of_waiting(
    spark: SparkSession, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(builder: DeltaTableBuilder) -> DeltaTable:
        raise AnalysisException("no")

    monkeypatch.setattr(DeltaTableBuilder, "execute", never)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(AnalysisException, match="no"):
        opened(spark, path)
