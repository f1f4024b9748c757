"""Outputs that somebody has put back from a copy, and the job that is taken back to where they stand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.errors import DisagreementError
from stateflow.spark.internals.gateway import java_names
from tests.refusals.refusal import refused
from tests.spark.pipelines import ORDER, Order, Workbench, at
from tests.spark.sink_places import contents


def put_back(spark: SparkSession, copy: Path, folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    java_names(spark).org.apache.spark.sql.delta.DeltaLog.clearCache()


def lines(folder: Path) -> list[Any]:
    latest = json.loads((folder / "_latest.json").read_text())
    return sorted(
        json.loads(line)["user"]
        for file in latest["files"]
        for line in (folder / file["path"]).read_text().splitlines()
    )


def two_outputs(bench: Workbench) -> tuple[Path, Path, sf.Pipeline]:
    """A table, a folder, and the pipeline that writes to both."""
    table, folder = bench.folder / "table", bench.folder / "folder"

    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        rows = flow.source("orders", bench.source("orders", ORDER), Order)
        rows.append("table", sf.delta(str(table)))
        rows.append("folder", sf.files(str(folder), "json"))

    return table, folder, orders


@pytest.mark.slow
def test_a_job_follows_outputs_that_were_put_back_from_a_copy(spark: SparkSession, bench: Workbench) -> None:
    table, folder, orders = two_outputs(bench)
    job = bench.job("orders")
    for user in (1, 2):
        bench.rows("orders", [Order(user, "a", 1.0, at(user))])
        bench.run(orders, retained_checkpoints=20)
        if user == 1:
            copies = {name: shutil.copytree(name, f"{name}-copy") for name in (table, folder)}
            slot = job.checkpoints()[-1].slot
    for name, copy in copies.items():
        put_back(spark, Path(copy), name)
    bench.rows("orders", [Order(3, "a", 1.0, at(3))])
    way = f"--from checkpoint:{slot} --rewind-sinks"
    with refused(DisagreementError, f"has slot {slot}", "restore orders", way) as caught:
        bench.run(orders)
    assert "abandon" not in str(caught.value), "no record is decided"
    options = bench.options(retained_checkpoints=20)
    job.restore(f"checkpoint:{slot}", orders, options=options, rewind_sinks=True).apply()
    bench.run(orders)
    assert lines(folder) == [1, 2, 3]
    assert sorted(row[0] for row in contents(spark, table)) == [1, 2, 3]


@pytest.mark.slow
def test_a_job_follows_outputs_of_different_slots_to_the_oldest_of_them(
    spark: SparkSession, bench: Workbench
) -> None:
    table, folder, orders = two_outputs(bench)
    job, slots = bench.job("orders"), list[int]()
    # One backup is of the first run, the other one of the second.
    for user, kept in ((1, table), (2, folder), (3, None), (4, None)):
        bench.rows("orders", [Order(user, "a", 1.0, at(user))])
        bench.run(orders, retained_checkpoints=20)
        slots.append(job.checkpoints()[-1].slot)
        if kept is not None:
            shutil.copytree(kept, f"{kept}-copy")
    for place in (table, folder):
        put_back(spark, Path(f"{place}-copy"), place)
    bench.rows("orders", [Order(5, "a", 1.0, at(5))])
    options = bench.options(retained_checkpoints=20)

    def follow(slot: int) -> None:
        job.restore(f"checkpoint:{slot}", orders, options=options, rewind_sinks=True).apply()

    # From whichever refusal one begins, the restores that they name lead to the oldest.
    with refused(DisagreementError, "--rewind-sinks"):
        bench.run(orders)
    with refused(DisagreementError, f"has slot {slots[0]}", f"--from checkpoint:{slots[0]} --rewind-sinks"):
        follow(slots[1])
    follow(slots[0])
    bench.run(orders)
    assert lines(folder) == [1, 2, 3, 4, 5]
    assert sorted(row[0] for row in contents(spark, table)) == [1, 2, 3, 4, 5]
