"""Runs whose Delta table was replaced by another copy of it: refused where the copies had parted before the job's position."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.config.options import load
from stateflow.errors import DisagreementError
from stateflow.jobs.job import Job
from stateflow.spark.inputs.open_inputs import open_inputs
from stateflow.spark.sources.detours import detours
from stateflow.spark.sources.read_commits import OtherCopy
from tests.refusals.refusal import refused
from tests.spark import by_hand
from tests.spark.pipelines import ORDER, Order, Sum, Workbench, at
from tests.spark.sink_places import contents

pytestmark = pytest.mark.slow


def sums(table: Path, output: Path, anew: str = "") -> sf.Pipeline:
    """`anew` makes the uids of the source and of its operator others."""

    @sf.pipeline("sums")
    def sums(flow: sf.Flow) -> None:
        rows = flow.source(f"orders{anew}", sf.delta(str(table)), Order)
        rows.key_by("user", order_by="ts").process(f"sum{anew}", Sum).upsert(
            "sums", sf.delta(str(output)), keys=["user"]
        )

    return sums


def write(table: Path, *amounts: float) -> None:
    """A version of the table for each amount."""
    for amount in amounts:
        by_hand.append(table, [(1, "a", float(amount), at(amount))], by_hand.columns(ORDER))


def put_in_place(copy: Path, table: Path) -> None:
    shutil.rmtree(table)
    shutil.copytree(copy, table, copy_function=shutil.copy)  # with times of its own


@pytest.mark.parametrize("since", [1, 2], ids=["up to the job's position", "past it"])
def test_an_older_copy_that_was_written_on_is_refused_with_the_way_back(
    spark: SparkSession, bench: Workbench, tmp_path: Path, since: int
) -> None:
    table, output, pipeline = (
        tmp_path / "orders",
        tmp_path / "sums",
        sums(tmp_path / "orders", tmp_path / "sums"),
    )
    write(table, 1)
    bench.run(pipeline, retained_checkpoints=20)
    sound = bench.records("sums")[-1].slot
    shutil.copytree(table, tmp_path / "copy")
    write(table, 2)
    bench.run(pipeline, retained_checkpoints=20)
    put_in_place(tmp_path / "copy", table)
    write(table, *[4] * since)

    advised = f"`stateflow restore sums FILE --from checkpoint:{sound} --rewind-sinks`"
    with refused(DisagreementError, "'orders'", "version 1", str(table), advised):
        bench.run(pipeline, retained_checkpoints=20)

    given = {"checkpoint_dir": str(bench.folder / "root"), "cache_dir": str(bench.folder / "cache")}
    Job(str(bench.folder / "root"), "sums").restore(
        f"checkpoint:{sound}", pipeline, options=load(code=given, env={}, folder=tmp_path), rewind_sinks=True
    ).apply()
    assert bench.run(pipeline).warnings == ()
    assert contents(spark, str(output), "total") == [1 + 4 * since]


def test_another_copy_is_read_from_its_beginning_as_advised(
    spark: SparkSession, bench: Workbench, tmp_path: Path
) -> None:
    table, output = tmp_path / "orders", tmp_path / "sums"
    write(table, 1)
    shutil.copytree(table, tmp_path / "copy")
    write(table, 2)
    bench.run(sums(table, output))
    put_in_place(tmp_path / "copy", table)
    write(table, 4)
    with refused(DisagreementError, "a new uid", "--allow-non-restored-state"):
        bench.run(sums(table, output))
    bench.run(sums(table, output, anew="2"), allow_non_restored_state=True)
    assert contents(spark, str(output), "total") == [5]


def test_a_copy_with_the_same_commits_is_read_on(
    spark: SparkSession, bench: Workbench, tmp_path: Path
) -> None:
    table, output, pipeline = (
        tmp_path / "orders",
        tmp_path / "sums",
        sums(tmp_path / "orders", tmp_path / "sums"),
    )
    write(table, 1, 2)
    bench.run(pipeline)
    shutil.copytree(table, tmp_path / "copy", copy_function=shutil.copy)
    put_in_place(tmp_path / "copy", table)
    write(table, 4)
    assert bench.run(pipeline).warnings == ()
    assert contents(spark, str(output), "total") == [7]


@pytest.mark.parametrize("elsewhere", [False, True], ids=["read from the disk", "read by Delta"])
def test_the_commit_is_the_same_whoever_reads_it(
    spark: SparkSession, bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    if elsewhere:
        monkeypatch.setattr("stateflow.spark.sources.delta_log.local_log", lambda path: None)
    table, pipeline = tmp_path / "orders", sums(tmp_path / "orders", tmp_path / "sums")
    write(table, 1, 2)
    bench.run(pipeline)
    head = bench.records("sums")[-1].sources
    monkeypatch.undo()
    flow = pipeline.build({})
    inputs = open_inputs(spark, flow.sources, exactly_once=True)
    assert head["orders"].commits.keys() == {"0"}
    assert detours(spark, inputs.leaves, head, tmp_path / "before") == []
    newest = max((table / "_delta_log").glob("*.json"))
    newest.write_bytes(newest.read_bytes().replace(b"WRITE", b"MERGE"))
    [other] = detours(spark, inputs.leaves, head, tmp_path / "after")
    assert isinstance(other, OtherCopy)
    assert other.version == 1


def test_a_restore_that_takes_outputs_back_is_refused_before_anything_is_written(
    bench: Workbench, tmp_path: Path
) -> None:
    table, pipeline = tmp_path / "orders", sums(tmp_path / "orders", tmp_path / "sums")
    write(table, 1)
    shutil.copytree(table, tmp_path / "copy")
    write(table, 2)
    bench.run(pipeline, retained_checkpoints=20)
    first, *_, slot = (record.slot for record in bench.records("sums"))
    write(table, 8)
    bench.run(pipeline, retained_checkpoints=20)
    put_in_place(tmp_path / "copy", table)
    write(table, 4, 4, 4)
    slots = [record.slot for record in bench.records("sums")]
    given = {"checkpoint_dir": str(bench.folder / "root"), "cache_dir": str(bench.folder / "cache")}
    with refused(DisagreementError, "'orders'", "version 1", "an older copy", f"checkpoint:{first}"):
        Job(str(bench.folder / "root"), "sums").restore(
            f"checkpoint:{slot}",
            pipeline,
            options=load(code=given, env={}, folder=tmp_path),
            rewind_sinks=True,
        ).apply()
    assert [record.slot for record in bench.records("sums")] == slots
