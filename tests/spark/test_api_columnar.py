"""Columnar operators with several states and entries that are due: a run on Spark does what the harness does."""

from __future__ import annotations

import random
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.jobs.job import Job
from stateflow.spark.session.shipping import by_value
from stateflow.testing import ColumnarHarness
from tests.operators import columnar_operators
from tests.operators.columnar_operators import LATE, Click, Minute, PerMinute, matched
from tests.refusals.refusal import refused
from tests.spark import pipelines
from tests.spark.pipelines import Workbench, at

CLICK, NAME = "user long, page string, ts timestamp", "id long, name string"
DELAY = timedelta(minutes=2)
BATCHES = 5


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Workbench:
    by_value([pipelines, columnar_operators, sys.modules[__name__]])
    return Workbench(spark, tmp_path)


def clicks(batch: int) -> list[Click]:
    chance = random.Random(batch)
    return [
        Click(chance.randrange(9), chance.choice("abc"), at(3 * batch + chance.randrange(-8, 12) / 2))
        for _ in range(60)
    ]


def ordered(rows: list[Any]) -> list[Any]:
    return sorted(rows, key=repr)


@pytest.mark.slow
def test_a_run_puts_out_what_the_harness_puts_out_over_restarts_and_rescales(bench: Workbench) -> None:
    made, late = sf.memory("columnar-made"), sf.memory("columnar-late")
    made.clear()
    late.clear()

    @sf.pipeline("clicks")
    def pipeline(flow: sf.Flow) -> None:
        source = flow.source("in", bench.source("in", CLICK), Click, event_time="ts", watermark=DELAY)
        out = source.key_by("user").process_arrow("minutes", PerMinute(), output=Minute, outputs=[LATE])
        out.collect("made", made)
        out.side(LATE).collect("late", late)

    harness = ColumnarHarness(PerMinute(), Click, key="user", output=Minute, outputs=[LATE], event_time="ts")
    newest = None
    for batch in range(BATCHES):
        bench.rows("in", clicks(batch))
        # A batch has one watermark: rows are judged by it, and then what is due comes out.
        harness.watermark = None if newest is None else newest - DELAY
        harness.rows(*clicks(batch))
        newest = max([*(click.ts for click in clicks(batch)), *([newest] if newest else [])])
        if batch in (1, 3):
            bench.run(pipeline, parallelism=4 if batch == 1 else 2)
    assert newest is not None
    bench.run(pipeline, parallelism=3)
    harness.advance(newest - DELAY)
    bench.run(pipeline)
    rows = [Minute(r["user"], r["page"], r["end"], r["clicks"]) for r in made.rows]
    assert ordered(rows) == ordered(harness.output)
    assert ordered([r["ts"] for r in late.rows]) == ordered([click.ts for click in harness.side(LATE)])
    assert harness.side(LATE)
    assert len(rows) > 100
    _as_tables(bench, pipeline, harness)


def test_none_in_a_column_that_is_declared_as_not_null_fails_the_batch(bench: Workbench) -> None:
    def passed_on(table: pa.Table, state: Any, ctx: sf.ColumnarContext) -> pa.Table:
        return table

    made = sf.memory("columnar-not-null")
    made.clear()

    @sf.pipeline("not-null")
    def pipeline(flow: sf.Flow) -> None:
        keyed = flow.source("in", bench.source("in", NAME), NAME).key_by("id")
        same = keyed.process_arrow(
            "same", passed_on, state={"n": int}, output="id long, name string not null"
        )
        same.collect("made", made)

    bench.rows("in", [{"id": 1, "name": "a"}])
    bench.run(pipeline)
    bench.rows("in", [{"id": 2, "name": None}])
    with refused(sf.UsageError, "operator 'same'", "None in column 'name'", "declares as not null"):
        bench.run(pipeline)
    assert [row["id"] for row in made.rows] == [1]


def _as_tables(bench: Workbench, pipeline: sf.Pipeline, harness: ColumnarHarness) -> None:
    """What is open is in a savepoint of tables, from which the job carries on like the one without it."""
    job = Job(str(bench.folder / "root"), "clicks")
    url = str(bench.folder / "canonical")
    job.savepoint("canonical", to=url)
    left = [entry for block in harness.state("open").due(1 << 62) for entry in block.to_pylist()]
    assert left
    record = bench.records("clicks")[-1]
    earliest = [s.next_event_timer for task in record.operators["minutes"].shards for s in task]
    assert min(at for at in earliest if at is not None) == harness.state("open").next_due()


@pytest.mark.slow
def test_two_inputs_reach_columnar_code_as_two_tables(bench: Workbench) -> None:
    table = sf.memory("columnar-matched")
    table.clear()

    @sf.pipeline("matched")
    def pipeline(flow: sf.Flow) -> None:
        left = flow.source("clicks", bench.source("clicks", CLICK), Click).key_by("user")
        right = flow.source("names", bench.source("names", NAME), NAME).key_by("id")
        left.connect(right).process_arrow(
            "match", matched, state={"name": str}, output="page string, name string"
        ).collect("out", table)

    bench.rows("names", [{"id": n, "name": f"user {n}"} for n in range(5)])
    bench.rows("clicks", [Click(n, f"page {n}", at(0)) for n in range(8)])
    bench.run(pipeline)
    wanted = [(f"page {n}", f"user {n}" if n < 5 else None) for n in range(8)]
    assert sorted((r["page"], r["name"]) for r in table.rows) == wanted


def ordered_pages(table: pa.Table, state: Any, ctx: sf.ColumnarContext) -> pa.Table:
    users, pages = table["user"].to_pylist(), table["page"].to_pylist()
    firsts = [n for n in range(len(users)) if n == 0 or users[n] != users[n - 1]]
    assert len(firsts) == len(set(users)), "a key's rows lie together"
    return pa.table({"user": [users[n] for n in firsts], "page": [pages[n] for n in firsts]})


@pytest.mark.slow
@pytest.mark.parametrize("chunk_rows", [7, 1000])
def test_the_rows_of_a_key_come_in_its_order(bench: Workbench, chunk_rows: int) -> None:
    table = sf.memory(f"columnar-ordered-{chunk_rows}")
    table.clear()

    @sf.pipeline(f"ordered-{chunk_rows}")
    def pipeline(flow: sf.Flow) -> None:
        keyed = flow.source("in", bench.source("in", CLICK), Click).key_by("user", order_by="-page")
        keyed.process_arrow(
            "first", ordered_pages, state={"n": int}, output="user long, page string", chunk_rows=chunk_rows
        ).collect("out", table)

    rows = [Click(n % 10, f"{(n * 7) % 40:02d}", at(0)) for n in range(40)]
    bench.rows("in", rows)
    bench.run(pipeline)
    wanted = sorted((user, max(r.page for r in rows if r.user == user)) for user in range(10))
    assert sorted((r["user"], r["page"]) for r in table.rows) == wanted
