"""A job that begins on a table of another job is refused, and told where both shall write: the rows of both are in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.config.options import load
from stateflow.jobs.job import Job, jobs
from stateflow.spark.internals.delta_log import DeltaLog
from stateflow.spark.runner import RunReport, RunRequest, run
from stateflow.spark.shared_outputs import other_writers
from tests.connectors.iceberg_catalog import NAME, sql_catalog
from tests.refusals.refusal import refused
from tests.spark.pipelines import Workbench


@pytest.mark.parametrize(
    ("app_ids", "others"),
    [
        ([], []),
        (["somebody's job", "stateflow", "stateflow/alone"], []),
        (
            ["stateflow/b/two", "stateflow/a/one/more"],
            ["sink 'one/more' of the job with id a", "sink 'two' of the job with id b"],
        ),
        (["stateflow/me/two", "stateflow/a/one"], []),
    ],
)
def test_other_jobs_are_told_until_this_one_has_written(app_ids: list[str], others: list[str]) -> None:
    assert other_writers(dict.fromkeys(app_ids, ""), "me", dict) == others


def test_the_deleted_job_that_this_one_carries_on_is_no_other_one() -> None:
    writers = dict.fromkeys(["stateflow/a/rows", "stateflow/b/rows"], "")
    assert other_writers(writers, "me", dict, "a") == ["sink 'rows' of the job with id b"]


def test_a_job_is_told_by_its_name_where_the_target_or_the_root_keeps_it() -> None:
    def of_root() -> dict[str, str]:
        return {"a": "another", "b": "payments"}

    assert other_writers(
        {"stateflow/a/one": "orders", "stateflow/b/two": "", "stateflow/c/three": ""}, "me", of_root
    ) == [
        "sink 'one' of the job 'orders' with id a",
        "sink 'two' of the job 'payments' with id b",
        "sink 'three' of the job with id c",
    ]


@sf.pipeline("copied")
def copied(flow: sf.Flow, *, input: str, output: str, kind: str, uid: str = "rows") -> None:
    targets: dict[str, Any] = {
        "delta": sf.delta(output),
        "files": sf.files(output, "json"),
        "iceberg": sf.iceberg("shop.rows", catalog=NAME, create=True),
    }
    target = targets[kind]
    flow.source("rows", sf.files(input, "json"), "id long").append(uid, target)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Catalog]:
    with sql_catalog(tmp_path / "lake") as catalog:
        yield catalog


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "files", "iceberg"])
def test_a_second_job_on_one_target_begins_only_where_it_may_and_then_is_told_once(
    spark: SparkSession, tmp_path: Path, lake: Catalog, kind: str
) -> None:
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "1.json").write_text('{"id": 1}\n', encoding="utf-8")

    def ran(job: str, uid: str = "rows", **options_of_run: bool) -> RunReport:
        options = load(
            code={
                **options_of_run,
                "checkpoint_dir": str(tmp_path / "checkpoints"),
                "cache_dir": str(tmp_path / "cache"),
                "local_fsync": False,
            },
            env={},
            folder=tmp_path,
        )
        places = {name: str(tmp_path / name) for name in ("input", "output")}
        parameters = {**places, "kind": kind, "uid": uid}
        return run(RunRequest(copied, options, parameters, job=job, master="local[2]"))

    assert ran("one").warnings == ()
    assert ran("one").warnings == ()
    (tmp_path / "input" / "2.json").write_text('{"id": 2}\n', encoding="utf-8")
    renamed = ran("one", "copies")
    (told,) = renamed.warnings
    assert "sink 'copies' begins in " in told
    assert "where the job has written as sink 'rows': a run adds to those rows what comes from now on" in told
    assert renamed.rows == 1
    assert ran("one", "copies").warnings == ()
    with refused(sf.UsageError, "'rows' of this new job", "of the job 'one'", "shared_outputs=true"):
        ran("two")
    assert jobs(str(tmp_path / "checkpoints")) == ["one"]
    (told,) = ran("two", shared_outputs=True).warnings
    assert "has rows of another job (sink 'copies' of the job 'one' with id " in told
    assert ran("two").warnings == ()
    Job(str(tmp_path / "checkpoints"), "one").delete()
    with refused(sf.UsageError, "job 'one' was deleted", "choose another name"):
        ran("one")
    with refused(sf.UsageError, "another job has written", "a deleted one", "`stateflow restore`"):
        ran("another")
    Job(str(tmp_path / "checkpoints"), "two").delete()
    with refused(sf.UsageError, "another job has written", "with id"):
        ran("another")
    if kind == "files":
        return
    if kind == "delta":
        spark.sql(f"DELETE FROM delta.`{tmp_path / 'output'}`")
    else:
        lake.load_table("shop.rows").delete()
    assert ran("three").warnings == ()


@pytest.mark.slow
def test_a_job_that_is_renamed_as_the_page_says_goes_on_in_its_outputs_and_tells_of_nobody(
    spark: SparkSession, tmp_path: Path
) -> None:
    bench, table, savepoint = (
        Workbench(spark, tmp_path),
        str(tmp_path / "output"),
        str(tmp_path / "savepoint"),
    )

    def commit(text: str) -> None:
        (tmp_path / "input").mkdir(exist_ok=True)
        (tmp_path / "input" / f"{text}.json").write_text(f'{{"id": {text}}}\n', encoding="utf-8")

    @sf.pipeline("before")
    def flow(flow: sf.Flow) -> None:
        flow.source("rows", sf.files(str(tmp_path / "input"), "json"), "id long").append(
            "rows", sf.delta(table)
        )

    commit("1")
    bench.run(flow)
    bench.job("before").savepoint(to=savepoint)
    bench.job("before").delete()
    bench.job("after").restore(savepoint, flow, options=bench.options()).apply()
    commit("2")
    report = bench.run(flow, job="after")
    assert (report.rows, report.warnings) == (1, ())
    assert [row.id for row in spark.read.format("delta").load(table).orderBy("id").collect()] == [1, 2]


@pytest.mark.slow
def test_what_another_job_of_the_root_has_emptied_is_still_its_own_and_check_says_so(
    bench: Workbench, spark: SparkSession, tmp_path: Path
) -> None:
    """Right after a restore that rewinds the outputs, somebody types the job's name by hand."""
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "1.json").write_text('{"id": 1}\n', encoding="utf-8")
    places = {"input": str(tmp_path / "input"), "output": str(tmp_path / "output"), "kind": "delta"}
    bench.run(copied, places, job="one")
    spark.sql(f"DELETE FROM delta.`{tmp_path / 'output'}`")
    with refused(sf.UsageError, "'rows' of this new job", "sink 'rows' of the job 'one'"):
        bench.run(copied, places, job="oen")
    [said] = bench.job("oen").check(copied, places).warnings
    assert "sink 'rows' of the job 'one'" in said
    assert bench.job("one").check(copied, places).warnings == ()
    assert bench.run(copied, places | {"output": str(tmp_path / "own")}, job="oen").warnings == ()
    assert bench.run(copied, places, job="third", shared_outputs=True).warnings == ()


@pytest.mark.slow
def test_a_job_that_a_restore_begins_is_a_new_one_and_goes_on_where_its_snapshot_s_job_wrote(
    bench: Workbench, tmp_path: Path
) -> None:
    """Also where that job is gone with its root."""
    savepoint = str(tmp_path / "savepoint")
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "1.json").write_text('{"id": 1}\n', encoding="utf-8")

    def at(output: str) -> dict[str, str]:
        return {"input": str(tmp_path / "input"), "output": str(tmp_path / output), "kind": "delta"}

    bench.run(copied, at("one"), job="one")
    bench.run(copied, at("another"), job="another")
    bench.job("fork").restore(
        "latest", copied, at("another"), from_job="one", options=bench.options()
    ).apply()
    with refused(sf.UsageError, "'rows' of this new job", "'another' with id", "shared_outputs=true"):
        bench.run(copied, at("another"), job="fork")
    (told,) = bench.run(copied, at("another"), job="fork", shared_outputs=True).warnings
    assert "the job 'another' with id" in told

    bench.job("one").savepoint(to=savepoint)
    shutil.rmtree(tmp_path / "root")
    plan = bench.job("one").restore(savepoint, copied, at("one"), options=bench.options())
    assert any("another one of this name" in said and "come again" in said for said in plan.warnings)
    plan.apply()
    assert bench.run(copied, at("one"), job="one").warnings == ()


def test_a_table_that_was_just_created_is_asked_without_a_job_of_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup
    begun = []
    for number in range(3):  # what an earlier test has left may begin one meanwhile
        path = str(tmp_path / f"table-{number}")
        spark.createDataFrame([], "id long").write.format("delta").save(path)
        before = len(jobs(None))
        assert DeltaLog(spark, path).begin().app_ids() == []
        begun.append(len(jobs(None)) - before)
    assert 0 in begun
