"""What doctor, abandon and imports ask of Spark; forks and restores that write to tables, as they are typed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from demo.table import Orders, compared, read
from stateflow.config.options import load
from stateflow.errors import NotFoundError, StateflowError
from stateflow.format.records import Prepared
from stateflow.jobs.job import Job
from stateflow.spark.doctor import examine_spark, findings
from stateflow.spark.sinks.kinds import delivered, needs_spark
from stateflow.spark.state_tables.parquet import parquet_frame
from tests.cli.conftest import Command, Said
from tests.jobs.made import ORDERS, REPOSITORY, made_job
from tests.refusals.refusal import refused

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
    with refused(NotFoundError, f"--table balance.total={tmp_path}/no", "nothing at"):
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
            "there": Prepared(kind="delta_append", target=table),
            "nowhere": Prepared(kind="delta_upsert", target=str(tmp_path / "nothing")),
            "function": Prepared(kind="function", target="f"),
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


class Desk:
    """The orders example and a job that sums what it puts out, run and restored by commands."""

    def __init__(self, command: Command, folder: Path) -> None:
        self.command, self.folder = command, folder
        self.orders = Orders(folder / "orders")
        self.files = {
            "orders": f"{ORDERS}:orders",
            "sums": f"{REPOSITORY / 'tests' / 'airflow' / 'dags' / 'sums.py'}:sums",
        }

    def done(self, *arguments: object) -> Said:
        said = self.command(*arguments, "--checkpoint-dir", self.folder / "root", *self._places())
        assert said.code == 0, said.err
        return said

    def refused(self, *arguments: object) -> str:
        said = self.command(*arguments, "--checkpoint-dir", self.folder / "root", *self._places())
        assert said.code != 0
        return said.err

    def _places(self) -> list[object]:
        places = {"cache_dir": self.folder / "cache", "scratch_dir": self.folder / "scratch"}
        given = {**places, "retained_checkpoints": 20}
        return [part for name, value in given.items() for part in ("--option", f"{name}={value}")]

    def run(self, job: str, reads: str, *, code: str = "") -> None:
        """`code`: the job whose pipeline it runs, if not its own."""
        tables = ("-p", f"input={self.folder / reads}", "-p", f"output={self.table(job)}")
        self.done("run", self.files[code or job], "--job", job, *tables)

    def table(self, job: str) -> Path:
        return self.folder / f"of-{job}"

    def rows(self, *jobs: str) -> list[list[str]]:
        return [sorted(map(str, read(self.table(job)))) for job in jobs]


@pytest.fixture
def desk(spark: SparkSession, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setattr(sys, "path", [*sys.path])
    return Desk(command, tmp_path)


@pytest.mark.slow
def test_a_fork_that_begins_with_copies_has_what_its_origin_has(desk: Desk) -> None:
    desk.orders.add(2, 50)
    desk.run("orders", "orders")
    fork = (
        "restore", "copy", desk.files["orders"], "--from", "latest", "--from-job", "orders",
        "-p", f"output={desk.table('copy')}",
    )  # fmt: skip
    assert "copied from" not in desk.done(*fork).out
    planned = desk.done(*fork, "--clone-sinks", "-o", "json").json
    newest = len(list((desk.table("orders") / "_delta_log").glob("*.json"))) - 1
    assert [(sink["action"], sink["copy_version"]) for sink in planned["sinks"]] == [("copies", newest)]
    assert f"copied from version {newest} of {desk.table('orders')}" in desk.done(*fork, "--clone-sinks").out
    assert not desk.table("copy").exists(), "a plan writes nothing"
    assert "--clone-sinks" in desk.refused(
        "restore", "orders", desk.files["orders"], "--from", "latest", "--clone-sinks"
    )

    made = desk.done(*fork, "--clone-sinks", "--plan-digest", planned["digest"], "--yes", "-o", "json").json
    assert made["restored"]
    [original, copied] = desk.rows("orders", "copy")
    assert copied == original
    desk.orders.add(1, 50)
    desk.run("copy", "orders", code="orders")
    assert compared(desk.folder / "orders", desk.table("copy")).right, "as if it had read everything"
    assert desk.rows("orders") == [original]


@pytest.mark.slow
def test_what_a_plan_says_about_readers_is_what_takes_them_along(desk: Desk) -> None:
    desk.orders.add(1, 50)
    desk.run("orders", "orders")
    desk.run("sums", "of-orders")
    sound = desk.rows("orders", "sums")
    slot = Job(str(desk.folder / "root"), "orders").checkpoints()[-1].slot
    desk.orders.add(1, 50)
    desk.run("orders", "orders")
    desk.run("sums", "of-orders")
    back = (
        "restore",
        "orders",
        desk.files["orders"],
        "--from",
        f"checkpoint:{slot}",
        "--rewind-sinks",
    )
    [hint] = [line for line in desk.done(*back).out.splitlines() if line.startswith("  reader ")]
    options = hint.partition("take it along with `")[2].partition("`")[0].replace("FILE", desk.files["sums"])
    planned = desk.done(*back, *options.split(), "-o", "json").json
    assert [each["job"] for each in planned["with_readers"]] == ["sums"]
    alone = desk.done(*back, "-o", "json").json["digest"]
    for other in (alone, "0" * 64):
        said = desk.refused(*back, *options.split(), "--plan-digest", other, "--yes")
        assert "is not the one that was approved any more" in said
    done = desk.done(*back, *options.split(), "--plan-digest", planned["digest"], "--yes", "-o", "json").json
    assert list(done["records"]) == ["sums", "orders"]
    assert desk.rows("orders", "sums") == sound
