"""A job goes on under another name: a savepoint, a deletion and a restore, with the same outputs."""

from __future__ import annotations

from pyspark.sql import SparkSession

import stateflow as sf
from tests.spark.pipelines import Workbench
from tests.spark.sink_places import contents
from tests.spark.test_dropped_sources import Total


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
