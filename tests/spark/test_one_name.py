"""A source, an operator and a sink of one name are never taken for each other."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from typer.testing import CliRunner

import stateflow as sf
from stateflow.checkpoint.lineage import rows_read, rows_written
from stateflow.cli.main import app
from stateflow.config.options import Options
from stateflow.jobs.job import Job
from stateflow.metrics import user_counters
from stateflow_ui import details
from tests.jobs.builder import options_of
from tests.refusals.refusal import refused
from tests.spark.murder_evidence import delta_rows
from tests.spark.pipelines import VISIT, Visit, Workbench, at

pytestmark = pytest.mark.usefixtures("own_classes")

NAME = "orders"
ROWS = [Visit(n % 5, f"page-{n}", float(n), at(n)) for n in range(40)]
LATE = [Visit(1, "late", 1000.0, at(-60))]
CUTS = (0, 8, 16, 24, 32, 40)


class Sum(sf.KeyedProcess[int, Visit, Any]):
    total = sf.ValueState(float, default=0.0, queryable=True)

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        for row in rows:
            self.total.value += row.seconds
            ctx.metrics.counter(NAME).inc()
            yield key, row.seconds, self.total.value


class Calls:
    """A sink of the user's own that fails once, as if the run were killed when its batch is decided."""

    def __init__(self) -> None:
        self.failing = False
        self.rows = 0

    def __call__(self, frame: DataFrame, delivery: sf.Delivery) -> None:
        if self.failing:
            raise OSError("the service is away")
        self.rows += frame.count()


def pipeline(bench: Workbench, folder: Path, calls: Calls) -> sf.Pipeline:
    late = sf.output(NAME, Visit)

    @sf.pipeline(NAME)
    def orders(flow: sf.Flow) -> None:
        rows = flow.source(
            NAME, bench.source(NAME, VISIT), Visit, event_time="ts", watermark="5 minutes", late=late
        )
        totals = rows.key_by("user", order_by="ts").process(
            NAME, Sum, output="user long, seconds double, total double"
        )
        totals.append(NAME, sf.delta(str(folder / "totals")))
        totals.for_each_batch("calls", calls)
        rows.side(late).append("late", sf.delta(str(folder / "late")))

    return orders


def expected() -> list[tuple[float, float, int]]:
    totals: dict[int, float] = {}
    out = []
    for row in ROWS:
        totals[row.user] = totals.get(row.user, 0.0) + row.seconds
        out.append((row.seconds, totals[row.user], row.user))
    return sorted(out)


@pytest.fixture
def options(tmp_path: Path) -> Callable[..., Options]:
    return partial(options_of, tmp_path / "root")


@pytest.mark.system
@pytest.mark.timeout(600)
def test_runs_crashes_snapshots_and_pages_tell_them_apart(
    bench: Workbench, tmp_path: Path, options: Callable[..., Options]
) -> None:
    calls = Calls()
    flow = pipeline(bench, tmp_path, calls)
    job = Job(str(tmp_path / "root"), NAME)
    batches = iter([ROWS[a:b] for a, b in itertools.pairwise(CUTS)])

    def feed() -> None:
        bench.rows(NAME, next(batches))

    feed()
    feed()
    bench.run(flow)
    assert list(user_counters(job.checkpoints()[-1].statistics)) == [(NAME, NAME)]

    # Decided and not delivered: the next run carries it out from the record.
    feed()
    calls.failing = True
    with refused(sf.StateflowError, "the service is away"):
        bench.run(flow)
    assert [set(record.sinks) for record in job.log().pending] == [{NAME, "calls", "late"}]
    calls.failing = False
    bench.run(flow)

    job.rescale(3)
    bench.rows(NAME, LATE)
    feed()
    bench.run(flow)
    for form in ("native", "canonical"):
        kind: Any = form
        saved = job.savepoint(kind, options=options(), to=str(tmp_path / form))
        plan = job.restore(saved.url, flow, options=options(), parallelism=2)
        assert [(source.uid, source.verdict) for source in plan.sources] == [(NAME, "resumes")]
        assert [(operator.uid, operator.verdict) for operator in plan.check.operators] == [
            (NAME, "compatible")
        ]
        plan.apply()
    feed()
    bench.run(flow)

    assert sorted(delta_rows(tmp_path / "totals").elements()) == expected()
    assert calls.rows == len(ROWS)
    assert delta_rows(tmp_path / "late").total() == len(LATE)
    assert [finding.text for finding in job.verify(deep=True) if finding.severity == "error"] == []
    assert rows_read(job.history()) == {NAME: len(ROWS) + len(LATE)}
    assert rows_written(job.history())[NAME] == len(ROWS)

    status = job.status()
    assert [source.uid for source in status.sources] == [NAME]
    assert [operator.uid for operator in status.operators] == [NAME]
    assert [sink.uid for sink in status.sinks] == ["calls", "late", NAME]
    head = job.log().head
    assert head is not None
    shown = [details.source(*each)["uid"] for each in head.sources.items()]
    assert (
        shown
        == [details.operator(*each, head.statistics)["uid"] for each in head.operators.items()]
        == [NAME]
    )

    root = ("--checkpoint-dir", str(tmp_path / "root"))
    said = CliRunner().invoke(app, ["show", NAME, *root, "-o", "json"])
    assert said.exit_code == 0, said.output
    document = json.loads(said.output)
    for kind in ("sources", "operators", "sinks"):
        assert NAME in [each["uid"] for each in document[kind]], kind
    check = job.check(flow)
    assert (check.sources, check.sinks) == (
        {NAME: "continues"},
        {NAME: "continues", "calls": "continues", "late": "continues"},
    )
    asked = CliRunner().invoke(app, ["query", NAME, NAME, "total", "1", *root])
    assert f"{sum(row.seconds for row in ROWS if row.user == 1)}" in asked.output
