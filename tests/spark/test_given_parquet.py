"""Tables that pandas, polars and PyArrow wrote, as an import reads them: by the types that their files have."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from stateflow.errors import StateflowError, UsageError
from stateflow.spark.state_tables.failures import failed
from stateflow.spark.state_tables.parquet import parquet_frame
from tests.refusals.refusal import refused

AT = datetime(2026, 11, 20, 12, 0, 0, 123456, tzinfo=UTC)
EARLY = datetime(1955, 3, 1, 0, 0, 0, 1, tzinfo=UTC)
NANOS = pa.timestamp("ns", "UTC")


def rows_of(spark: SparkSession, path: Path) -> tuple[dict[str, str], list[dict[str, Any]]]:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    frame = parquet_frame(spark, str(path), "--table t.s=x")
    return dict(frame.dtypes), frame.toArrow().to_pylist()


def test_nanoseconds_of_pandas_and_polars_are_instants(spark: SparkSession, tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"user": [1, 2, 3], "value": pd.Series([AT, EARLY, None], dtype="datetime64[ns, UTC]")}
    )
    frame.to_parquet(tmp_path / "pandas.parquet")
    pl.from_pandas(frame).write_parquet(tmp_path / "polars.parquet")
    for name in ("pandas", "polars"):
        types, rows = rows_of(spark, tmp_path / f"{name}.parquet")
        assert types == {"user": "bigint", "value": "timestamp"}
        assert [row["value"] for row in rows] == [AT, EARLY, None]


def test_nanoseconds_are_found_however_deep_they_lie(spark: SparkSession, tmp_path: Path) -> None:
    kind = pa.struct(
        {
            "at": NANOS,
            "n": pa.int64(),
            "all": pa.list_(NANOS),
            "named": pa.map_(pa.string(), pa.struct({"last time": NANOS})),
        }
    )
    values = [
        {"at": AT, "n": 1, "all": [AT, None], "named": [("a", {"last time": EARLY})]},
        None,
        {"at": None, "n": None, "all": None, "named": None},
    ]
    pq.write_table(
        pa.table({"user": [1, 2, 3], "value": pa.array(values, kind)}), tmp_path / "nested.parquet"
    )
    types, rows = rows_of(spark, tmp_path / "nested.parquet")
    assert types["value"] == (
        "struct<at:timestamp,n:bigint,all:array<timestamp>,named:map<string,struct<last time:timestamp>>>"
    )
    assert [row["value"] for row in rows] == values


def test_an_instant_finer_than_a_microsecond_is_refused_and_not_cut(
    spark: SparkSession, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"value": pa.array([1_500], NANOS)}), tmp_path / "fine.parquet")
    with pytest.raises(Exception, match="an instant is finer") as caught:
        rows_of(spark, tmp_path / "fine.parquet")
    problem = failed("the table could not be loaded", caught.value)
    assert type(problem) is UsageError
    assert (
        str(problem) == "state has microseconds, and an instant is finer: round it; in nanoseconds it is 1500"
    )


@pytest.mark.parametrize("kind", [pa.time64("ns"), pa.time64("us"), pa.time32("ms")], ids=str)
def test_times_of_day_are_text_in_every_unit(spark: SparkSession, tmp_path: Path, kind: Any) -> None:
    values = [time(12, 34, 56, 789_000), None, time(0, 0), time(23, 59, 59, 1_000)]
    deep = pa.struct({"at": kind, "all": pa.list_(kind)})
    nested = [{"at": value, "all": [value, None]} for value in values]
    pq.write_table(
        pa.table({"value": pa.array(values, kind), "deep": pa.array(nested, deep)}),
        tmp_path / "times.parquet",
    )
    types, rows = rows_of(spark, tmp_path / "times.parquet")
    assert types == {"value": "string", "deep": "struct<at:string,all:array<string>>"}
    texts = ["12:34:56.789000", None, "00:00:00.000000", "23:59:59.001000"]
    assert [row["value"] for row in rows] == texts
    assert [row["deep"] for row in rows] == [{"at": text, "all": [text, None]} for text in texts]


def test_times_of_day_of_polars_are_read_and_cut_by_nobody(spark: SparkSession, tmp_path: Path) -> None:
    day = pl.DataFrame({"value": [time(1, 2, 3, 4)]})
    day.write_parquet(tmp_path / "day.parquet")
    assert rows_of(spark, tmp_path / "day.parquet")[1] == [{"value": "01:02:03.000004"}]
    pq.write_table(pa.table({"value": pa.array([1_500], pa.time64("ns"))}), tmp_path / "fine.parquet")
    with pytest.raises(Exception, match="a time of day is finer") as caught:
        rows_of(spark, tmp_path / "fine.parquet")
    problem = failed("the table could not be loaded", caught.value)
    assert type(problem) is UsageError
    assert (
        str(problem)
        == "state has microseconds, and a time of day is finer: round it; in nanoseconds it is 1500"
    )


def test_times_without_a_zone_stay_so_and_the_state_refuses_them(spark: SparkSession, tmp_path: Path) -> None:
    pd.DataFrame({"value": [pd.Timestamp("2026-11-20")]}).to_parquet(tmp_path / "naive.parquet")
    assert rows_of(spark, tmp_path / "naive.parquet")[0] == {"value": "timestamp_ntz"}


def test_what_spark_noted_in_a_file_before_it_was_edited_counts_no_more(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.sql("SELECT 1L AS user, 5L AS value, struct(2L AS n) AS held").write.parquet(f"{tmp_path}/spark")
    table = pq.read_table(tmp_path / "spark")
    assert b"org.apache.spark.sql.parquet.row.metadata" in table.schema.metadata
    value, held = pa.array([5.5]), pa.array([{"n": 2, "total": 1.5}])
    table = table.set_column(1, "value", value).set_column(2, "held", held)
    assert b"org.apache.spark.sql.parquet.row.metadata" in table.schema.metadata
    pq.write_table(table, tmp_path / "edited.parquet")
    types, rows = rows_of(spark, tmp_path / "edited.parquet")
    assert types == {"user": "bigint", "value": "double", "held": "struct<n:bigint,total:double>"}
    assert rows == [{"user": 1, "value": 5.5, "held": {"n": 2, "total": 1.5}}]


def test_all_files_of_a_folder_must_have_the_same_types(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "two files"
    folder.mkdir()
    pq.write_table(pa.table({"user": [1], "value": [{"n": 1}]}), folder / "a.parquet")
    pq.write_table(pa.table({"value": [{"n": 2}], "user": [2]}), folder / "b.parquet")
    assert len(rows_of(spark, folder)[1]) == 2, "the order of the columns does not matter"
    pq.write_table(pa.table({"user": [3], "value": [{"n": 3, "note": "x"}]}), folder / "b.parquet")
    with refused(UsageError, "b.parquet has the columns", "note:string", "write the table anew"):
        rows_of(spark, folder)


def test_a_file_that_is_no_parquet_is_named(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,value\n1,2\n")
    with refused(StateflowError, "--table t.s=x", "cannot be read as Parquet", "a.csv is not a Parquet file"):
        rows_of(spark, tmp_path)


def test_what_is_read_can_be_as_old_as_pandas_allows(spark: SparkSession, tmp_path: Path) -> None:
    # Nanoseconds end in 2262, and begin in 1677.
    ends = [datetime(1678, 1, 1, tzinfo=UTC), datetime(2262, 1, 1, tzinfo=UTC) - timedelta(microseconds=1)]
    pd.DataFrame({"value": pd.Series(ends, dtype="datetime64[ns, UTC]")}).to_parquet(
        tmp_path / "ends.parquet"
    )
    assert [row["value"] for row in rows_of(spark, tmp_path / "ends.parquet")[1]] == ends
