"""Staged rows that the driver writes into a Delta table: it has what Spark's writer would have put there, and says no more of it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from stateflow.pipelines.inputs.tables import delta
from stateflow.spark.internals.delta_log import TableShape, Transaction
from stateflow.spark.sinks import driver_written
from stateflow.spark.sinks.delta_append import DeltaAppend
from stateflow.spark.sinks.driver_written import is_written_by_driver, statistics, write
from stateflow.testing.sink_log import SinkLog

COLUMNS = StructType([StructField("id", LongType()), StructField("v", StringType())])
SHAPE = TableShape("t", COLUMNS, (), {"delta.checkpointInterval": "100", "mine": "x"}, (), "f")


def with_column(**changes: Any) -> TableShape:
    field = {"name": "v", "dataType": StringType(), "nullable": True, "metadata": {}, **changes}
    return replace(SHAPE, schema=StructType([COLUMNS[0], StructField(**field)]))


@pytest.mark.parametrize(
    ("shape", "takes"),
    [
        (SHAPE, True),
        (replace(SHAPE, features=("appendOnly", "invariants", "changeDataFeed")), True),
        (with_column(metadata={"comment": "a note"}), True),
        (replace(SHAPE, partition_by=("v",)), False),
        (replace(SHAPE, features=("rowTracking",)), False),
        (replace(SHAPE, configuration={"delta.constraints.positive": "id > 0"}), False),
        (replace(SHAPE, configuration={"delta.columnMapping.mode": "name"}), False),
        (replace(SHAPE, configuration={"delta.dataSkippingNumIndexedCols": "1"}), False),
        (with_column(nullable=False), False),
        (with_column(dataType=LongType()), False),
        (with_column(metadata={"delta.generationExpression": "id"}), False),
        (with_column(name="V"), False),
        (replace(SHAPE, schema=StructType([*COLUMNS, StructField("w", LongType())])), False),
    ],
)
def test_what_a_table_asks_of_its_files_beyond_their_columns_spark_does(
    shape: TableShape, takes: bool
) -> None:
    assert is_written_by_driver(shape, COLUMNS) is takes


def test_bounds_are_those_that_every_reader_agrees_on() -> None:
    instants = [datetime(2024, 2, 29, 1, 2, 3, 4005), datetime(1900, 1, 1)]
    rows = pa.table(
        {
            "i": pa.array([3, None], pa.int32()),
            "text": ["b", "ä" * 33],
            "day": pa.array([date(2024, 2, 29), date(9999, 12, 31)]),
            "at": pa.array(instants, pa.timestamp("us", "UTC")),
            "local": pa.array(instants, pa.timestamp("us")),
            "part": [1.0, float("nan")],
            "inside": [{"a": 1}, None],
            "none": pa.nulls(2, pa.int64()),
        }
    )
    assert statistics(rows) == {
        "numRecords": 2,
        "minValues": {
            "i": 3, "text": "b", "day": "2024-02-29", "at": "1900-01-01T00:00:00.000Z", "local": "1900-01-01T00:00:00.000",
        },
        "maxValues": {"i": 3, "day": "9999-12-31", "at": "2024-02-29T01:02:03.005Z", "local": "2024-02-29T01:02:03.005"},
        "nullCount": {"i": 1, "text": 0, "day": 0, "at": 0, "local": 0, "part": 0, "none": 2},
    }  # fmt: skip
    many = pa.table({f"c{k}": [k] for k in range(40)})
    assert len((statistics(many) or {})["minValues"]) == 32


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()])
@pytest.mark.parametrize("micros", [-(1 << 62), -2_208_988_800_000_001, 253_402_300_800_000_000])
def test_times_that_readers_take_for_different_ones_are_left_to_spark(kind: pa.DataType, micros: int) -> None:
    number = micros // 86_400_000_000 if kind == pa.date32() else micros
    column = pa.array([number], pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
    assert statistics(pa.table({"t": column, "i": [1]})) is None
    assert statistics(pa.table({**{f"c{k}": [k] for k in range(40)}, "t": column})) is None


def test_a_file_has_nothing_of_floats_by_which_spark_would_skip_rows(tmp_path: Path) -> None:
    inside = pa.array([{"d": float("nan"), "a": 1}] * 100)
    rows = pa.table(
        {
            "i": list(range(100)),
            "d": [float("nan")] * 100,
            "f": pa.array([-0.0] * 100, pa.float32()),
            "in": inside,
        }
    )
    write(rows, tmp_path / "rows.parquet")
    group = pq.read_metadata(tmp_path / "rows.parquet").row_group(0)
    columns = {(column := group.column(place)).path_in_schema: column for place in range(group.num_columns)}
    assert [name for name, column in columns.items() if column.is_stats_set] == ["i"]
    assert [name for name, column in columns.items() if column.has_dictionary_page] == ["i"]
    assert {column.compression for column in columns.values()} == {"SNAPPY"}
    assert pq.read_table(tmp_path / "rows.parquet").schema == rows.schema


DDL = (
    "b byte, s short, i int, l long, f float, d double, t string, x binary, o boolean, m decimal(20,3), day date, at timestamp, "
    "local timestamp_ntz, many array<struct<a: int, t: string>>, pairs map<string, double>, one struct<a: long, at: timestamp, d: double>"
)
AT = datetime(2024, 2, 29, 12, 0, 0, 123456)
ROWS: list[tuple[Any, ...]] = [
    (1, 2, 3, 4, 0.5, -0.0, "ä" * 40, b"\x00\xff", True, None, date(2024, 2, 29), AT, AT, [(1, "x"), None], {"k": 1.0}, (1, AT, float("nan"))),
    (-1, -2, -3, 1 << 60, float("nan"), float("nan"), "", b"", False, None, date(1999, 1, 1), AT + timedelta(days=1), AT, [], {}, None),
    (None,) * 16,
]  # fmt: skip


def staged(spark: SparkSession, log: SinkLog, frame: DataFrame) -> DataFrame:
    """The rows as an operator's task leaves them for a sink, in one file for each partition."""
    return log.stage.read(spark, log.stage.write(frame, log.at(1)).files, frame.schema)


def opened(spark: SparkSession, path: Path, schema: StructType, **options: Any) -> DeltaAppend:
    sink = DeltaAppend(delta(str(path), **options))
    sink.open(spark, schema)
    return sink


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each time that Spark writes files of a table."""
    asked: list[str] = []
    write = Transaction.write

    def counted(self: Transaction, frame: DataFrame) -> list[str]:
        asked.append(self.log.path)
        return write(self, frame)

    monkeypatch.setattr(Transaction, "write", counted)
    return asked


@pytest.mark.slow
def test_a_table_has_the_rows_that_spark_would_have_written(
    spark: SparkSession, tmp_path: Path, log: SinkLog, jobs: list[str]
) -> None:
    frame = spark.createDataFrame(ROWS, DDL).repartition(2)
    tables = {}
    for name, rows in (("driver", staged(spark, log, frame)), ("spark", frame)):
        path, of_sink = tmp_path / name, replace(log, sink=name)
        prepared = of_sink.prepare(opened(spark, path, frame.schema), rows)
        assert prepared.rows == 3
        assert of_sink.commit(prepared) == "committed"
        assert of_sink.commit(prepared) == "already"
        tables[name] = spark.read.format("delta").load(str(path))
    assert jobs == [str(tmp_path / "spark")]
    assert len(list((tmp_path / "driver").glob("*.parquet"))) == 1
    assert tables["driver"].schema == tables["spark"].schema
    found, expected = (sorted(map(repr, tables[name].collect())) for name in ("driver", "spark"))
    assert found == expected
    # No condition finds another row, whatever of the statistics it lets Delta skip.
    conditions = [
        "l = 1152921504606846976", "f > 1e30", "d > 1e300", "d = 0", "one.d > 1e300", f"t = '{'ä' * 40}'", "t > 'ä'", "day = '1999-01-01'",
        "at >= timestamp'2024-03-01 12:00:00.123456Z'", "local = timestamp_ntz'2024-02-29 12:00:00.123456'", "i is null",
    ]  # fmt: skip
    counts = tables["spark"].selectExpr(*(f"count_if({each})" for each in conditions)).first()
    filtered = [tables["driver"].where(each).agg(F.count("*")) for each in conditions]
    assert [row[0] for row in reduce(DataFrame.unionAll, filtered).collect()] == list(counts or ())


def test_what_spark_says_of_a_file_the_driver_says_or_leaves_out(
    spark: SparkSession, tmp_path: Path, log: SinkLog, jobs: list[str]
) -> None:
    frame = spark.createDataFrame(
        [(1, "a", AT, date(2024, 1, 1)), (2, None, AT, None)], "n long, t string, at timestamp, day date"
    )
    said = []
    for name, rows in (("driver", staged(spark, log, frame.coalesce(1))), ("spark", frame.coalesce(1))):
        of_sink = replace(log, sink=name)
        prepared = of_sink.prepare(opened(spark, tmp_path / name, frame.schema), rows)
        [action] = prepared.payload["actions"]
        said.append(json.loads(json.loads(action)["add"]["stats"]))
    ours, theirs = said
    assert ours["maxValues"].pop("at") == "2024-02-29T12:00:00.124Z"
    assert theirs["maxValues"].pop("at") == "2024-02-29T12:00:00.123Z"
    theirs.pop("tightBounds", None)
    assert ours == theirs
    assert jobs == [str(tmp_path / "spark")]


def test_no_rows_need_no_job_whatever_the_table_asks(
    spark: SparkSession, path: Path, log: SinkLog, jobs: list[str]
) -> None:
    sink = opened(spark, path, COLUMNS, partition_by=("v",))
    assert log.deliver(sink, log.stage.read(spark, (), COLUMNS)) == "none"
    assert jobs == []
    began = len(spark.sparkContext.statusTracker().getJobIdsForGroup(None))
    assert log.stage.write(log.stage.read(spark, (), COLUMNS), log.at()).files == ()
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup(None)) == began


@pytest.mark.slow
def test_spark_writes_what_is_large_or_compressed_otherwise_or_has_gone_through_a_step(
    spark: SparkSession, path: Path, log: SinkLog, jobs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = spark.createDataFrame([(1, "a")], "id long, v string")
    sink, codec = opened(spark, path, COLUMNS), "spark.sql.parquet.compression.codec"
    log.deliver(sink, staged(spark, log, frame).where("id > 0"))
    assert len(jobs) == 1
    spark.conf.set(codec, "zstd")
    try:
        log.deliver(sink, staged(spark, log, frame))
    finally:
        spark.conf.unset(codec)
    assert len(jobs) == 2
    log.deliver(sink, staged(spark, log, frame))
    assert len(jobs) == 2
    for limit in ("MOST_BYTES", "MOST_IN_MEMORY"):
        with monkeypatch.context() as small:
            small.setattr(driver_written, limit, 10)
            log.deliver(sink, staged(spark, log, frame))
    assert len(jobs) == 4
    assert spark.read.format("delta").load(str(path)).count() == 5


def test_a_column_that_comes_before_the_commit_finds_the_rows(
    spark: SparkSession, path: Path, log: SinkLog, jobs: list[str]
) -> None:
    frame = spark.createDataFrame([(1, "a")], "id long, v string")
    prepared = log.prepare(opened(spark, path, COLUMNS), staged(spark, log, frame))
    assert jobs == []
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (w int)")
    assert log.commit(prepared) == "committed"
    assert [tuple(row) for row in spark.read.format("delta").load(str(path)).collect()] == [(1, "a", None)]
