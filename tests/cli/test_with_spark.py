"""What doctor, abandon and imports ask of Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from stateflow.config.options import load
from stateflow.errors import NotFoundError, StateflowError
from stateflow.format.records import Prepared
from stateflow.spark.doctor import examine_spark, findings
from stateflow.spark.sinks.delivered import delivered, needs_spark
from stateflow.spark.state_tables.parquet import parquet_frame
from tests.jobs.made import made_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_session_and_its_executors_are_looked_at(spark: SparkSession, tmp_path: Path) -> None:
    options = load(env={}, folder=tmp_path)
    found = {f.check.split(" on ")[0]: f for f in examine_spark(options, master=None, conf={})}
    assert set(found) == {"spark session", "delta", "executor"}
    assert {f.verdict for f in found.values()} == {"ok"}


def test_a_table_that_is_not_there_or_no_parquet_is_named_as_it_was_typed(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(NotFoundError, match=f"--table balance.total={tmp_path}/no: there is nothing at"):
        parquet_frame(spark, f"{tmp_path}/no", f"--table balance.total={tmp_path}/no")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StateflowError, match="cannot be read as Parquet: "):
        parquet_frame(spark, f"{tmp_path}/empty", "--table balance.total=empty")


def test_an_executor_without_the_library_or_with_another_python_fails() -> None:
    good = {
        "host": "a", "executor": "1", "python": "3.11.1", "stateflow": "0.1", "rocksdict": "0.3", "scratch": "", "skew": 0.0,
    }  # fmt: skip
    bare = {**good, "host": "b", "stateflow": "missing: No module named 'stateflow'", "python": "3.9.2"}
    late = {**good, "host": "c", "skew": 90.0}
    full = {**good, "host": "d", "scratch": "No space left on device"}
    verdicts = {f.check: (f.verdict, f.found) for f in findings([good, bare, late, full])}
    assert verdicts["executor on a"][0] == "ok"
    assert verdicts["executor on b"][0] == "fail"
    assert "No module named 'stateflow'" in verdicts["executor on b"][1]
    assert "Python 3.9.2" in verdicts["executor on b"][1]
    assert verdicts["executor on c"] == ("warn", "its clock is off by 90.0 s")
    assert verdicts["executor on d"][0] == "fail"


def test_a_table_is_asked_whether_it_has_a_records_output(spark: SparkSession, tmp_path: Path) -> None:
    job = made_job(tmp_path / "root", batches=1)
    job.batch(carried_out=False)
    record = job.writer._log.decided
    assert record is not None
    table = str(tmp_path / "table")

    def has(slot: int | None) -> dict[str, bool]:
        if slot is not None:
            writer = spark.range(1).write.format("delta").mode("append")
            app = f"stateflow/{record.job}/there"
            writer.option("txnAppId", app).option("txnVersion", slot).save(table)
        sinks = {
            "there": Prepared(kind="delta_append", target=table, prev=None),
            "nowhere": Prepared(kind="delta_upsert", target=str(tmp_path / "nothing"), prev=None),
            "function": Prepared(kind="function", target="f", prev=None),
        }
        asked = msgspec.structs.replace(record, sinks=sinks)
        assert needs_spark(asked)
        return dict(delivered(spark, asked, "orders"))

    nobody = {"there": False, "nowhere": False, "function": False}
    assert has(None) == nobody
    assert has(record.slot - 1) == nobody
    assert has(record.slot) == {**nobody, "there": True}


def test_a_record_of_functions_alone_needs_no_spark(tmp_path: Path) -> None:
    job = made_job(tmp_path / "root", batches=1)
    job.batch(carried_out=False, kind="function")
    record = job.writer._log.decided
    assert record is not None
    assert not needs_spark(record)
    assert delivered(None, record, "orders") == {"totals": False}
