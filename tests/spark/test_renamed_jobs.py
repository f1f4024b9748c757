"""A job goes on under another name: a savepoint, a deletion and a restore, with the same outputs."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.checkpoint.claim import claim
from stateflow.errors import UsageError
from stateflow.format.records import Owner
from tests.refusals.refusal import refused
from tests.spark.pipelines import Workbench
from tests.spark.sink_places import contents
from tests.spark.test_dropped_sources import Total


@pytest.mark.slow
def test_a_job_goes_on_under_another_name_in_its_outputs(spark: SparkSession, bench: Workbench) -> None:
    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        rows = flow.source("in", bench.source("in", "user long, n long"), "user long, n long")
        totals = rows.key_by("user").process("total", Total, output="user long, total long")
        totals.append("out", sf.delta(str(bench.folder / "out")))

    bench.rows("in", [{"user": 1, "n": 1}])
    bench.run(orders)
    before = bench.job("orders")
    url = before.savepoint(name="last").url
    before.delete()
    bench.job("renamed").restore(url, orders, options=bench.options()).apply()
    bench.rows("in", [{"user": 1, "n": 2}])
    report = bench.job("renamed").run(orders, options=bench.options())
    assert sorted(contents(spark, bench.folder / "out", "total")) == [1, 3]
    assert report.rows == 1


def test_a_job_that_was_to_be_restored_does_not_begin_with_empty_state(
    spark: SparkSession, bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would read its sources from their beginning, and write its output once more."""

    @sf.pipeline("orders")
    def orders(flow: sf.Flow, out: str) -> None:
        rows = flow.source("in", bench.source("in", "user long, n long"), "user long, n long")
        totals = rows.key_by("user").process("total", Total, output="user long, total long")
        totals.append("out", sf.delta(out))

    bench.rows("in", [{"user": 1, "n": 1}])
    bench.run(orders, {"out": str(bench.folder / "out")})
    url = bench.job("orders").savepoint(name="last").url
    fork, elsewhere = bench.job("fork"), {"out": str(bench.folder / "elsewhere")}

    def fails(*_: object, **__: object) -> None:
        raise OSError("a disk broke")

    plan = fork.restore(url, orders, elsewhere, options=bench.options())
    with monkeypatch.context() as broken:
        broken.setattr("stateflow.restore.apply.Draft", fails)
        with pytest.raises(OSError, match="broke"):
            plan.apply()
    bench.rows("in", [{"user": 1, "n": 2}])
    # Another command may have claimed the job since.
    claim(
        fork.store, fork.layout, owner=Owner(run="other"), ids=fork.new_id, clock=fork.clock, carry_out=lambda *_: {}
    )  # fmt: skip
    with refused(UsageError, "was to be restored", "failed (a disk broke)", "restore it again"):
        fork.run(orders, elsewhere, options=bench.options())
    fork.restore(url, orders, elsewhere, options=bench.options()).apply()
    fork.run(orders, elsewhere, options=bench.options())
    assert contents(spark, bench.folder / "elsewhere", "total") == [3]
