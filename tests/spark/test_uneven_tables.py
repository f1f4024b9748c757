"""Sources whose tables differ: one has got a column more, or is read from behind its newest version."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.errors import UsageError
from tests.refusals.refusal import refused
from tests.spark import by_hand
from tests.spark.pipelines import Workbench
from tests.spark.sink_places import contents

pytestmark = pytest.mark.slow
ROWS = by_hand.columns("id long")


def test_of_two_tables_of_one_row_class_one_may_get_a_column(
    spark: SparkSession, bench: Workbench, tmp_path: Path
) -> None:
    one, other, out = (tmp_path / name for name in ("one", "other", "out"))

    @sf.pipeline("both")
    def both(flow: sf.Flow) -> None:
        streams = [flow.source(each.name, sf.delta(str(each)), "id long") for each in (one, other)]
        streams[0].union(streams[1]).append("out", sf.delta(str(out)))

    by_hand.append(one, [(1,)], ROWS)
    by_hand.append(other, [(2,)], ROWS)
    bench.run(both)
    spark.sql(f"ALTER TABLE delta.`{other}` ADD COLUMNS (more INT)")
    by_hand.append(one, [(3,)], ROWS)
    by_hand.append(other, [(4,)], ROWS)
    bench.run(both)
    assert contents(spark, str(out), "id") == [1, 2, 3, 4]


def test_a_stream_of_a_union_that_lacks_a_declared_column_is_refused(bench: Workbench) -> None:
    """It was promised by the type of a transform, which nobody else looks at."""

    @sf.pipeline("both")
    def both(flow: sf.Flow) -> None:
        one = flow.source("one", bench.source("one", "id long, x string"), "id long, x string")
        other = flow.source("other", bench.source("other", "id long, y string"), "id long, y string")
        wrong = other.transform(lambda frame: frame.selectExpr("id", "y"), type="id long, x string")
        one.union(wrong).append("out", sf.delta(str(bench.folder / "out")))

    bench.rows("one", [{"id": 1, "x": "a"}])
    with refused(UsageError, "union()", "'x'", "transform()"):
        bench.run(both)


def test_a_source_begins_behind_the_newest_version_of_its_table(
    spark: SparkSession, bench: Workbench, tmp_path: Path
) -> None:
    """As the refusal of a table that was taken back advises, when nobody has written to it since."""
    table, out = tmp_path / "in", tmp_path / "out"

    def reading(uid: str, **options: str) -> sf.Pipeline:
        @sf.pipeline("reading")
        def reading(flow: sf.Flow) -> None:
            rows = flow.source(uid, sf.delta(str(table), options=options), "id long")
            rows.append("out", sf.delta(str(out)))

        return reading

    by_hand.append(table, [(1,)], ROWS)
    by_hand.append(table, [(2,)], ROWS)
    bench.run(reading("rows"))
    by_hand.go_back(table, 0)
    with pytest.raises(sf.DisagreementError, match="startingVersion=3"):
        bench.run(reading("rows"))
    again = reading("rows2", startingVersion="3")
    assert bench.run(again, allow_non_restored_state=True).rows == 0
    by_hand.append(table, [(5,)], ROWS)
    assert bench.run(again).rows == 1
    by_hand.append(table, [(6,)], ROWS)
    assert bench.run(again).rows == 1
    assert contents(spark, str(out), "id") == [1, 2, 5, 6]


def test_an_option_that_a_run_does_not_have_is_told_with_the_one_that_is_meant(bench: Workbench) -> None:
    @sf.pipeline("none")
    def none(flow: sf.Flow) -> None:
        flow.source("rows", bench.source("rows", "id long"), "id long")

    with refused(UsageError, "'final'", "drain=True"):
        bench.job("none").run(none, final=True)
