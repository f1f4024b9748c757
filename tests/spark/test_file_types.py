"""ORC and Parquet files whose own types are not those of the row class."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.pipelines.rows.file_types import unlike
from tests.refusals.refusal import refused
from tests.spark.pipelines import Workbench


@dataclass
class TypedItem:
    price: float


@dataclass
class TypedOrder:
    id: int
    amount: int | None = None
    day: date | None = None
    at: datetime | None = None
    price: Annotated[Decimal, "decimal(10,2)"] | None = None
    items: list[TypedItem] | None = None


@pytest.mark.parametrize(
    ("format", "column", "values", "named"),
    [
        ("orc", "amount", pa.array([1.9]), "double"),
        ("orc", "price", pa.array([Decimal("1.239")], pa.decimal128(12, 3)), "decimal(12,3)"),
        ("parquet", "day", pa.array([2026], pa.int32()), "int"),
    ],
)
def test_a_column_that_would_be_misread_fails_the_batch(
    bench: Workbench, tmp_path: Path, format: str, column: str, values: Any, named: str
) -> None:
    (tmp_path / "in").mkdir()
    out = sf.memory("own-types")
    out.clear()

    @sf.pipeline("own-types")
    def own_types(flow: sf.Flow) -> None:
        flow.source("orders", sf.files(str(tmp_path / "in"), format), TypedOrder).collect("out", out)

    write = orc.write_table if format == "orc" else pq.write_table
    fits = {"id": pa.array([1], pa.int32()), "items": pa.array([[{"price": 2.5}]])}
    write(pa.table(fits), str(tmp_path / "in" / f"a.{format}"))
    if format == "orc":
        (tmp_path / "in" / "empty.orc").touch()
    bench.run(own_types)
    assert [(row["id"], row["items"][0]["price"]) for row in out.rows] == [(1, 2.5)]
    write(pa.table({"id": [1], column: values}), str(tmp_path / "in" / f"b.{format}"))
    with refused(sf.IncompatibleError, "'orders'", f"b.{format}", repr(column), named, "TypedOrder"):
        bench.run(own_types)
    assert len(out.rows) == 1


ELSEWHERE = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from stateflow.spark.session.build import build_session
from tests.spark.test_file_types import elsewhere
spark = SparkSession.builder.master("local[1]").getOrCreate() if sys.argv[2:] else build_session("zone", master="local[1]")
elsewhere(spark, Path(sys.argv[1]))
"""


def elsewhere(spark: SparkSession, folder: Path) -> None:
    out = sf.memory("elsewhere")

    @sf.pipeline("elsewhere")
    def times(flow: sf.Flow) -> None:
        flow.source("orders", sf.files(str(folder / "in"), "orc"), TypedOrder).collect("out", out)

    said = ""
    try:
        Workbench(spark, folder).run(times)
    except sf.StateflowError as error:
        said = f"{type(error).__name__} {error}"
    sys.stdout.write(f"{said}\n{[str(row['at']) for row in out.rows]}\n")


@pytest.mark.slow
def test_a_time_without_a_zone_is_one_of_utc_wherever_the_machine_is(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    at = pa.array([datetime(2026, 7, 1, 12)], pa.timestamp("us"))
    orc.write_table(pa.table({"id": pa.array([1], pa.int32()), "at": at}), str(tmp_path / "in" / "a.orc"))
    env = {**os.environ, "TZ": "America/New_York"}

    def put_out(*of_another: str) -> str:
        command = [sys.executable, "-c", ELSEWHERE, str(tmp_path), *of_another]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout

    refused_there = put_out("a session of somebody else's")
    assert "IncompatibleError source 'orders': " in refused_there
    assert "America/New_York" in refused_there
    assert "--conf spark.executor.extraJavaOptions=-Duser.timezone=UTC" in refused_there
    assert "[]" in refused_there.splitlines()
    assert "['2026-07-01 12:00:00+00:00']" in put_out().splitlines()


@pytest.mark.parametrize(
    ("format", "have", "want"),
    [
        ("orc", "bigint", "int"),
        ("orc", "bigint", "timestamp"),
        ("orc", "timestamp", "date"),
        ("orc", "string", "bigint"),
        ("orc", "boolean", "bigint"),
        ("orc", "binary", "string"),
        ("orc", "double", "decimal(10,2)"),
        ("orc", "bigint", "decimal(10,2)"),
        ("parquet", "timestamp", "bigint"),
        ("parquet", "date", "bigint"),
        ("parquet", "date", "double"),
        ("parquet", "decimal(10,2)", "binary"),
        ("parquet", "int", "smallint"),
        ("orc", "array<struct<`a b`:double>>", "array<struct<`a b`:bigint>>"),
    ],
)
def test_types_that_are_not_read_as_declared(format: str, have: str, want: str) -> None:
    assert unlike(have, want, format, "c") is not None


@pytest.mark.parametrize(
    ("format", "have", "want"),
    [
        ("orc", "int", "bigint"),
        ("orc", "float", "double"),
        ("orc", "varchar(10)", "string"),
        ("orc", "timestamp with local time zone", "timestamp"),
        ("orc", "decimal(8,1)", "decimal(10,2)"),
        ("orc", "int", "decimal(12,2)"),
        ("parquet", "binary", "string"),
        ("parquet", "decimal(20,0)", "bigint"),
        ("parquet", "timestamp_ntz", "timestamp"),
        ("parquet", "void", "string"),
        ("orc", "struct<b:int,other:string>", "struct<B:bigint,c:string>"),
    ],
)
def test_types_that_keep_their_values(format: str, have: str, want: str) -> None:
    assert unlike(have, want, format, "c") is None
