"""An operator that a release leaves out, or calls by another name: its state goes at once, also where nothing is read, and what begins
empty in its place is told."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from tests.refusals.refusal import lacking, refused
from tests.spark.pipelines import Workbench
from tests.spark.sink_places import contents


def summing(bench: Workbench, source: str, operator: str) -> sf.Pipeline:
    @sf.pipeline("sums")
    def sums(flow: sf.Flow) -> None:
        rows = flow.source(source, bench.source("a", "user long, n long"), "user long, n long")
        totals = rows.key_by("user").aggregate(operator, "user long, total long", total=sf.sum("n"))
        totals.upsert("totals", sf.delta(str(bench.folder / "totals")))

    return sums


@pytest.mark.slow
@pytest.mark.parametrize("trigger", ["drain", "until-stopped"])
def test_state_that_is_let_go_goes_without_input_and_what_its_successor_lacks_is_told_once(
    spark: SparkSession, bench: Workbench, trigger: str
) -> None:
    bench.rows("a", [{"user": 1, "n": 1}, {"user": 2, "n": 2}])
    assert bench.run(summing(bench, "a", "total")).warnings == ()
    [before] = [record.slot for record in bench.records("sums") if record.operators]
    renamed = summing(bench, "a", "total2")

    with refused(sf.IncompatibleError, "'total'", "--allow-non-restored-state"):
        bench.run(renamed)
    report = bench.run(renamed, allow_non_restored_state=True, trigger=trigger, stop_after=1)
    assert (report.batches, report.rows) == (1, 0)
    dropped, empty = report.warnings
    assert lacking(dropped, ("operator 'total'", "about 2 entries", f"checkpoint {before}")) == []
    assert lacking(empty, ("operator 'total2'", "source 'a'", "only what comes from now on")) == []

    # Nobody has to say it again, and nobody hears it again.
    bench.rows("a", [{"user": 1, "n": 10}])
    assert bench.run(renamed).warnings == ()
    assert contents(spark, bench.folder / "totals", "total") == [2, 10]

    # What the sentence advises.
    anew = summing(bench, "a2", "total3")
    assert bench.job("sums").check(anew, allow_non_restored_state=True).problems == []
    report = bench.run(anew, allow_non_restored_state=True)
    assert not [warning for warning in report.warnings if "begins empty" in warning]
    assert contents(spark, bench.folder / "totals", "total") == [2, 11]


@pytest.mark.slow
def test_the_run_that_drops_state_keeps_the_checkpoint_that_brings_it_back(
    spark: SparkSession, bench: Workbench
) -> None:
    original, renamed = summing(bench, "a", "total"), summing(bench, "a", "total2")
    bench.rows("a", [{"user": 1, "n": 1}])
    bench.run(original)
    job, before = bench.job("sums"), bench.records("sums")[-1].slot
    for n in (10, 100, 1000):
        bench.rows("a", [{"user": 1, "n": n}])
    told = job.check(renamed, allow_non_restored_state=True).warnings
    assert job.status().tags == {}
    report = bench.run(renamed, allow_non_restored_state=True, retained_checkpoints=1)
    assert report.batches == 3
    assert report.warnings == told
    kept = f"tag:before-drop-{before}"
    for sentence in told:
        assert lacking(sentence, ("'total'", f"checkpoint {before}", kept)) == []
    assert before in job.log().slots
    assert job.status().tags == {f"before-drop-{before}": before}

    job.restore(kept, original, options=bench.options(), allow_non_restored_state=True).apply()
    assert bench.run(original, retained_checkpoints=1).warnings == ()
    assert contents(spark, bench.folder / "totals", "total") == [1111]
    assert job.untag(f"before-drop-{before}") == before
    bench.rows("a", [{"user": 1, "n": 0}])
    bench.run(original, retained_checkpoints=1)
    assert before not in job.log().slots


def copying(bench: Workbench, *sources: str) -> sf.Pipeline:
    """Without state: each source goes into a table of its own."""

    @sf.pipeline("copies")
    def copies(flow: sf.Flow) -> None:
        for uid in sources:
            rows = flow.source(uid, bench.source(uid, "n long"), "n long")
            rows.append(f"of-{uid}", sf.delta(str(bench.folder / f"of-{uid}")))

    return copies


@pytest.mark.slow
def test_a_source_that_leaves_a_pipeline_without_state_is_told_and_a_restore_of_what_is_kept_brings_it_back(
    spark: SparkSession, bench: Workbench
) -> None:
    both, one = copying(bench, "one", "two"), copying(bench, "one")
    bench.rows("one", [{"n": 1}])
    bench.rows("two", [{"n": 2}])
    assert bench.run(both).warnings == ()
    job, before = bench.job("copies"), bench.records("copies")[-1].slot
    for n in (3, 4):
        bench.rows("one", [{"n": n}])
    told = job.check(one).warnings
    assert bench.run(one, retained_checkpoints=1).warnings == told
    [forgotten] = told
    kept = f"tag:before-drop-{before}"
    assert lacking(forgotten, ("source 'two'", "a second time", f"checkpoint {before}", kept)) == []
    assert "operator" not in forgotten
    assert job.status().tags == {f"before-drop-{before}": before}

    # What the sentence says of the source, and what it advises.
    assert bench.run(both).warnings == ()
    assert contents(spark, bench.folder / "of-two", "n") == [2, 2]
    job.restore(kept, both, options=bench.options(), rewind_sinks=True).apply()
    assert bench.run(both).warnings == ()
    assert contents(spark, bench.folder / "of-one", "n") == [1, 3, 4]
    assert contents(spark, bench.folder / "of-two", "n") == [2]


@pytest.mark.slow
def test_the_run_that_reads_a_source_under_another_uid_keeps_the_checkpoint_that_knows_its_position(
    spark: SparkSession, bench: Workbench
) -> None:
    original, renamed = summing(bench, "a", "total"), summing(bench, "b", "total")
    bench.rows("a", [{"user": 1, "n": 1}])
    bench.run(original)
    job, before = bench.job("sums"), bench.records("sums")[-1].slot
    for n in (10, 100):
        bench.rows("a", [{"user": 1, "n": n}])
    told = job.check(renamed, allow_non_restored_state=True).warnings
    report = bench.run(renamed, allow_non_restored_state=True, retained_checkpoints=1)
    assert report.warnings == told
    [warning] = told
    kept = f"tag:before-drop-{before}"
    assert (
        lacking(warning, ("source 'b' is read", f"restore checkpoint {before}", kept, "the uid that")) == []
    )
    assert job.status().tags == {f"before-drop-{before}": before}
    assert contents(spark, bench.folder / "totals", "total") == [112]

    job.restore(kept, original, options=bench.options()).apply()
    assert bench.run(original).warnings == ()
    assert contents(spark, bench.folder / "totals", "total") == [111]


@pytest.mark.slow
def test_a_tag_of_the_name_that_a_run_would_take_means_what_it_meant_and_check_names_another(
    bench: Workbench,
) -> None:
    job, original, renamed = bench.job("sums"), summing(bench, "a", "total"), summing(bench, "a", "total2")
    for n in (1, 10):
        bench.rows("a", [{"user": 1, "n": n}])
        bench.run(original)
    *_, first, before = [record.slot for record in bench.records("sums")]
    job.tag(f"before-drop-{before}", f"checkpoint:{first}")
    told = job.check(renamed, allow_non_restored_state=True).warnings
    assert bench.run(renamed, allow_non_restored_state=True).warnings == told
    assert lacking(told[0], (f"checkpoint {before}", f"tag:before-drop-{before}-2)")) == []
    assert job.status().tags == {f"before-drop-{before}": first, f"before-drop-{before}-2": before}
