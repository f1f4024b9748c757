"""A source that a release leaves out, and that comes back: said when its position goes, and kept by a restore."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from tests.spark.pipelines import Workbench
from tests.spark.sink_places import contents


class Total(sf.KeyedProcess):
    total = sf.ValueState(int, default=0)

    def process(self, user: int, rows: Any, ctx: sf.Context) -> Any:
        self.total.value += sum(row.n for row in rows)
        yield user, self.total.value


def reading(bench: Workbench, *uids: str) -> sf.Pipeline:
    @sf.pipeline("sums")
    def sums(flow: sf.Flow) -> None:
        first, *others = (
            flow.source(uid, bench.source(uid, "user long, n long"), "user long, n long") for uid in uids
        )
        rows = first.union(*others) if others else first
        totals = rows.key_by("user").process("total", Total, output="user long, total long")
        totals.upsert("totals", sf.delta(str(bench.folder / "totals")), keys=["user"])

    return sums


@pytest.mark.slow
def test_a_dropped_source_is_told_and_a_restore_brings_its_position_back(
    spark: SparkSession, bench: Workbench
) -> None:
    both, one = reading(bench, "a", "b"), reading(bench, "a")
    bench.rows("a", [{"user": 1, "n": 1}])
    bench.rows("b", [{"user": 1, "n": 100}])
    assert bench.run(both, retained_checkpoints=9).warnings == ()
    before = bench.job("sums").log().head
    assert before is not None
    bench.rows("a", [{"user": 1, "n": 2}])
    said = "source 'b' is not in this pipeline any more"
    assert [said in each for each in bench.job("sums").check(one).warnings] == [True]
    [warning] = bench.run(one, retained_checkpoints=9).warnings
    assert said in warning
    assert "operator 'total' keeps" in warning
    assert bench.run(one, retained_checkpoints=9).warnings == ()

    assert f"restore of checkpoint {before.slot}" in warning
    bench.job("sums").restore(
        f"checkpoint:{before.slot}", both, options=bench.options(), rewind_sinks=True
    ).apply()
    bench.rows("b", [{"user": 1, "n": 1000}])
    assert bench.run(both, retained_checkpoints=9).warnings == ()
    assert contents(spark, bench.folder / "totals", "total") == [1103]
