"""Runs that read a Delta table which goes back: they go round what they have not read, and refuse to add to what they have."""

from __future__ import annotations

import json
import re
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.config.options import load
from stateflow.errors import DisagreementError
from stateflow.jobs.job import Job
from stateflow.spark.loop import BatchReport
from stateflow.spark.runner import RunRequest, run
from tests.refusals.refusal import lacking, refused
from tests.spark import by_hand
from tests.spark.pipelines import ORDER, Order, Sum, Workbench, at
from tests.spark.sink_places import contents


def reader(
    bench: Workbench, uid: str = "orders", output: Any = None, operator: str = "sum", **options: Any
) -> sf.Pipeline:
    """Sums what it reads, in memory if no other output is named."""
    table = str(bench.folder / "orders")

    @sf.pipeline("reader")
    def reader(flow: sf.Flow) -> None:
        rows = flow.source(uid, sf.delta(table, options={"maxFilesPerTrigger": 1, **options}), Order)
        totals = rows.key_by("user", order_by="ts").process(operator, Sum)
        if output is None:
            totals.collect("latest", memory(bench))
        else:
            totals.upsert("latest", output, keys=["user"])

    return reader


def memory(bench: Workbench) -> Any:
    return sf.memory(f"latest-{bench.folder.name}")


def write(folder: Path, *amounts: float) -> None:
    """A version of the table for each amount."""
    for amount in amounts:
        row = (1, "a", float(amount), at(amount))
        by_hand.append(folder / "orders", [row], by_hand.columns(ORDER))


def go_back(folder: Path, version: int) -> None:
    by_hand.go_back(folder / "orders", version)


@pytest.fixture(scope="module")
def history(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table that had orders of 1, 2, 4 and 8 in a version each, went back to version 1, and then had one of 16."""
    folder = tmp_path_factory.mktemp("history")
    write(folder, 1, 2, 4, 8)
    # Here by Delta itself. `go_back` writes what that writes.
    spark.sql(f"RESTORE TABLE delta.`{folder / 'orders'}` TO VERSION AS OF 1")
    write(folder, 16)
    return folder / "orders"


@dataclass
class Past:
    """A copy of that table, as it stood at a version and goes on from there."""

    history: Path
    table: Path

    def goes_on_to(self, version: int) -> None:
        log = self.table / "_delta_log"
        if not log.exists():
            shutil.copytree(self.history, self.table, ignore=shutil.ignore_patterns("_delta_log"))
            log.mkdir()
        for number in range(version + 1):
            for file in sorted((self.history / "_delta_log").glob(f"*{number:020d}.*")):
                if not (log / file.name).exists():
                    shutil.copy2(file, log / file.name)


@pytest.fixture
def past(history: Path, bench: Workbench) -> Past:
    return Past(history, bench.folder / "orders")


def total(bench: Workbench) -> float:
    return float(memory(bench).rows[-1]["total"])


@pytest.mark.slow
def test_a_reader_that_begins_at_a_table_that_went_back_reads_it_as_it_is_and_goes_on(
    bench: Workbench, past: Past
) -> None:
    pipeline = reader(bench)
    past.goes_on_to(4)  # the newest version took it back
    report = bench.run(pipeline)
    assert (total(bench), report.rows, report.warnings) == (3, 2, ())
    past.goes_on_to(5)
    assert (bench.run(pipeline).rows, total(bench)) == (1, 19)


@pytest.mark.slow
def test_versions_that_were_undone_before_they_were_read_are_left_out(bench: Workbench, past: Past) -> None:
    pipeline = reader(bench)
    past.goes_on_to(0)
    bench.run(pipeline)
    past.goes_on_to(5)

    report = bench.run(pipeline)

    assert total(bench) == 19
    [warning] = report.warnings
    assert warning == (
        f"source 'orders': version 4 took the Delta table file:{bench.folder}/orders back (RESTORE); nothing of what that undid had "
        "been read, so the source goes on behind it"
    )
    write(bench.folder, 32)
    assert bench.run(pipeline).warnings == ()
    assert total(bench) == 51


@pytest.mark.slow
def test_a_bounded_run_ends_where_the_table_stood_before_it_went_back(bench: Workbench, past: Past) -> None:
    pipeline = reader(bench)
    past.goes_on_to(5)

    def until(version: int) -> str:
        code = {"checkpoint_dir": str(bench.folder / "root"), "cache_dir": str(bench.folder / "cache")}
        return run(RunRequest(pipeline, load(code=code, env={}, folder=bench.folder), until=version)).stopped

    # A first run with a bound takes the table as it stood then.
    until(0)
    assert total(bench) == 1
    assert until(3) == "the bound was reached"
    assert total(bench) == 3
    until(5)
    assert total(bench) == 19


@pytest.mark.slow
def test_rows_that_were_read_and_undone_are_refused_at_once_with_the_way_back(
    spark: SparkSession, bench: Workbench, past: Past
) -> None:
    latest = str(bench.folder / "latest")
    pipeline = reader(bench, output=sf.delta(latest))
    past.goes_on_to(1)
    bench.run(pipeline, retained_checkpoints=20)
    sound = bench.records("reader")[-1].slot
    past.goes_on_to(3)
    bench.run(pipeline, retained_checkpoints=20)
    past.goes_on_to(5)
    slots = [record.slot for record in bench.records("reader")]

    with pytest.raises(DisagreementError) as caught:
        bench.run(pipeline, retained_checkpoints=20)

    assert str(caught.value) == (
        f"source 'orders' has read the versions from 2 to 3 of the Delta table file:{bench.folder}/orders, which version 4 undid: "
        "it took the table back (RESTORE), and what the job has made of these rows is wrong now; take the job back to checkpoint "
        f"{sound}, from before it read them (`stateflow restore reader FILE --from checkpoint:{sound} --rewind-sinks`), or, to let "
        "that stand, give the source a new uid and startingVersion=5, and run once with --allow-non-restored-state"
    )
    assert [record.slot for record in bench.records("reader")] == slots
    # Delta's own advice would count the undone rows twice where they are written again.
    with pytest.raises(DisagreementError, match="has read the versions from 2 to 3"):
        bench.run(reader(bench, output=sf.delta(latest), skipChangeCommits="true"))

    went_back = (past.table / "_delta_log" / f"{4:020d}.json").read_text(encoding="utf-8")
    for undone in (
        action["remove"] for action in map(json.loads, went_back.splitlines()) if "remove" in action
    ):
        (past.table / undone["path"]).unlink()  # as VACUUM does
    given = {"checkpoint_dir": str(bench.folder / "root"), "cache_dir": str(bench.folder / "cache")}
    job = Job(str(bench.folder / "root"), "reader")
    job.restore(
        f"checkpoint:{sound}",
        pipeline,
        options=load(code=given, env={}, folder=bench.folder),
        rewind_sinks=True,
    ).apply()
    assert contents(spark, latest, "total") == [3]
    bench.run(pipeline)
    assert contents(spark, latest, "total") == [19]


@pytest.mark.slow
def test_who_lets_undone_rows_stand_goes_on_behind_them_as_advised(bench: Workbench, past: Past) -> None:
    past.goes_on_to(2)
    bench.run(reader(bench))
    go_back(bench.folder, 1)
    write(bench.folder, 16)
    with pytest.raises(DisagreementError) as caught:
        bench.run(reader(bench))
    version = re.search(r"new uid and startingVersion=(\d+), and run once with --allow-", str(caught.value))
    assert version is not None
    renamed = reader(bench, "orders-2", startingVersion=version[1])
    bench.run(renamed, allow_non_restored_state=True)
    assert total(bench) == 1 + 2 + 4 + 16
    write(bench.folder, 32)
    bench.run(renamed)
    assert total(bench) == 1 + 2 + 4 + 16 + 32


@pytest.mark.slow
def test_a_source_that_is_read_anew_into_kept_state_counts_twice_and_says_so_and_how_to_undo_it(
    bench: Workbench,
) -> None:
    write(bench.folder, 1, 2)
    bench.run(reader(bench))
    again = bench.run(reader(bench, "anew"), allow_non_restored_state=True)
    assert total(bench) == 2 * 3
    [warning] = again.warnings
    assert (
        "source 'anew' is read from its beginning, and operator 'sum' keeps what it has counted of source 'orders'"
        in warning
    )
    assert "give the operators behind the source new uids, and the source another one again" in warning
    renamed = reader(bench, "anew-2", operator="sum-2")
    [dropped] = bench.run(renamed, allow_non_restored_state=True).warnings
    assert lacking(dropped, ("the state of operator 'sum'", "is dropped")) == []
    assert total(bench) == 3


def test_a_table_that_goes_back_under_a_query_is_told_with_the_same_sentence(
    bench: Workbench, past: Past
) -> None:
    pipeline = reader(bench)
    past.goes_on_to(1)
    seen: list[BatchReport] = []

    def listen(report: BatchReport) -> None:
        seen.append(report)
        if sum(each.rows for each in seen) == 2:
            go_back(bench.folder, 0)

    code = {
        "checkpoint_dir": str(bench.folder / "root"),
        "cache_dir": str(bench.folder / "cache"),
        "trigger": "until-stopped",
    }
    with refused(DisagreementError, "has read version 1 of", "the Delta table"):
        run(RunRequest(pipeline, load(code=code, env={}, folder=bench.folder), listener=listen))


def test_a_query_goes_on_by_itself_when_nothing_undone_was_read(bench: Workbench, past: Past) -> None:
    pipeline = reader(bench)
    past.goes_on_to(0)
    seen: list[BatchReport] = []
    stop = threading.Event()

    def listen(report: BatchReport) -> None:
        seen.append(report)
        rows = sum(each.rows for each in seen)
        if rows == 1 and len(seen) == 1:
            # The query is not asked for its next batch before this one is done.
            write(bench.folder, 2)
            go_back(bench.folder, 0)
            write(bench.folder, 16)
        if rows >= 2:
            stop.set()

    code = {
        "checkpoint_dir": str(bench.folder / "root"),
        "cache_dir": str(bench.folder / "cache"),
        "trigger": "until-stopped",
    }
    pipeline = reader(bench, maxFilesPerTrigger=100)
    run(RunRequest(pipeline, load(code=code, env={}, folder=bench.folder), listener=listen, stop=stop))
    assert total(bench) == 17


def test_a_source_may_begin_among_versions_that_were_undone(bench: Workbench, past: Past) -> None:
    past.goes_on_to(5)
    bench.run(reader(bench, startingVersion=3))
    assert total(bench) == 16


@pytest.mark.slow
def test_a_change_feed_tells_its_reader_itself(spark: SparkSession, bench: Workbench, tmp_path: Path) -> None:
    table = str(tmp_path / "orders")
    properties = "delta.enableChangeDataFeed = true"
    spark.sql(
        f"CREATE TABLE delta.`{table}` ({ORDER.replace(' long', ' BIGINT')}) USING delta TBLPROPERTIES ({properties})"
    )
    changes: list[str] = []

    @sf.pipeline("feed")
    def feed(flow: sf.Flow) -> None:
        rows = flow.source("orders", sf.delta(table, options={"readChangeFeed": "true"}))
        rows.collect("out", sf.memory("feed"))

    write(bench.folder, 1, 2)
    bench.run(feed)
    go_back(bench.folder, 1)
    report = bench.run(feed)
    assert report.rows == 1
    assert changes == []
