"""The benchmarks run, count what they claim to count, and say plainly what was missed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from bench import __main__ as bench_main
from bench import (
    airflow_parsing,
    beside,
    collection,
    combiner,
    event_time,
    export,
    locality,
    nexmark_beside,
    one_row,
    python_peers,
    ready_times,
    repartition,
    report,
    rescale,
    snapshots,
    start,
    uploads,
)
from bench.generate import BatchSpec, Dataset, dataset
from bench.made_state import GROUPS, JOB, OPERATOR, STATE, make, now
from bench.measurement import (
    Measurement,
    Results,
    Section,
    Target,
    Trial,
    Workplace,
    at_least,
    at_most,
    percentile,
)
from bench.measurements import MEASUREMENTS
from bench.report import gathered, write_page
from bench.store import ResultStore
from bench.witness import EVERY, watched
from tests.long_form import BEFORE_A_RELEASE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def data_in(folder: Path) -> Dataset:
    return dataset(
        [BatchSpec(400, 100), BatchSpec(50, 50, "distinct"), BatchSpec(100, 100, "hot")], folder=folder
    )


def test_a_seed_gives_the_same_rows_every_time(tmp_path: Path) -> None:
    one, other = data_in(tmp_path / "one"), data_in(tmp_path / "other")
    assert one.checks == other.checks
    assert pq.read_table(one.path / "batch-00000.parquet") == pq.read_table(
        other.path / "batch-00000.parquet"
    )


def test_data_is_made_once(tmp_path: Path) -> None:
    file = data_in(tmp_path).path / "batch-00000.parquet"
    before = file.stat().st_mtime_ns
    data_in(tmp_path)
    assert file.stat().st_mtime_ns == before


def test_batches_have_the_keys_they_are_named_after(tmp_path: Path) -> None:
    data = data_in(tmp_path)
    hot = pq.read_table(data.path / "batch-00002.parquet")["user"].to_pylist()
    assert data.checks[1][:2] == (50, 50)
    assert hot.count(0) >= 50
    assert hot.count(0) < 60


def test_slices_of_a_permutation_have_every_key_once(tmp_path: Path) -> None:
    data = dataset([BatchSpec(25, 100, "distinct", n) for n in range(4)], folder=tmp_path)
    found = [u for file in data.path.glob("*.parquet") for u in pq.read_table(file)["user"].to_pylist()]
    assert sorted(found) == list(range(100))


@BEFORE_A_RELEASE
@pytest.mark.system
def test_the_per_key_side_keeps_right_totals_and_times_every_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    from bench import sides

    data = data_in(tmp_path / "data")
    found = sides.process(spark, data, tmp_path, options={"local_fsync": False})
    assert found.timed.rows == [400, 50, 100]
    assert len(found.timed.cpu) == 3
    # A busy JVM tells of two batches at once: then the second has nothing left to count.
    assert all(0 <= spent < 600 for spent in found.timed.cpu)
    assert sum(found.timed.cpu) > 0
    assert all(
        0 < report.duration <= spent for report, spent in zip(found.reports, found.timed.seconds, strict=True)
    )
    sides.check_totals(tmp_path / "output", data)
    with pytest.raises(AssertionError, match="the output counts 550 rows"):
        sides.check_totals(tmp_path / "output", replace(data, checks=data.checks[:2]))


@BEFORE_A_RELEASE
@pytest.mark.system
@pytest.mark.parametrize("side", ["limit_sorted", "limit_unsorted"])
def test_the_limits_pass_a_row_of_each_key_through(spark: SparkSession, tmp_path: Path, side: str) -> None:
    from bench import sides

    data = dataset([BatchSpec(4_000, 100)] * 2, folder=tmp_path / "data")
    getattr(sides, side)(spark, data, tmp_path)
    passed = spark.read.format("delta").load(str(tmp_path / "output"))
    assert passed.count() == 200
    if side == "limit_sorted":
        assert passed.select("user").distinct().count() == 100


@BEFORE_A_RELEASE
@pytest.mark.system
def test_windows_by_hand_and_sparks_own_put_out_the_same(spark: SparkSession, tmp_path: Path) -> None:
    specs = [BatchSpec(15_000, 2_000), BatchSpec(12_000, 2_000)]
    data = dataset(specs, folder=tmp_path / "data", with_time=True)
    assert data_in(tmp_path / "other").path.name != data.path.name
    for side in ("windows_by_hand", "spark_windows"):
        work = tmp_path / side
        arguments = {"options": {"local_fsync": False}} if side == "windows_by_hand" else {}
        assert event_time.outcome_of(side, spark, data, work, **arguments).timed.rows == [15_000, 12_000]
        event_time.check_windows(work / "output", data)
        with pytest.raises(AssertionError, match="2 windows with 20000 rows were put out in 2000 rows"):
            event_time.check_windows(work / "output", replace(data, checks=data.checks[:1]))


@BEFORE_A_RELEASE
@pytest.mark.system
@pytest.mark.parametrize("kind", ["sessions", "dedup", "joins"])
def test_sessions_copies_and_pairs_are_the_same_in_spark(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    specs = [BatchSpec(20_000 if kind == "joins" else 180_000, 60_000)] * 2
    seeds = (1, 2) if kind == "joins" else (1,)
    data = tuple(dataset(specs, folder=tmp_path / "data", seed=seed, with_time=True) for seed in seeds)
    for side in (kind, f"spark_{kind}"):
        work = tmp_path / side
        outcome = ready_times.outcome_of(side, spark, data, work)
        assert outcome.timed.rows == [specs[0].rows * len(data)] * 2
        ready_times.check(side, work / "output", data)
    half = tuple(dataset(specs[:1], folder=tmp_path / "data", seed=seed, with_time=True) for seed in seeds)
    with pytest.raises(AssertionError, match="rows, which are not the"):
        ready_times.check(kind, tmp_path / kind / "output", half)


def test_every_row_of_a_table_with_copies_has_one(tmp_path: Path) -> None:
    data = dataset([BatchSpec(1_200_000, 10)], folder=tmp_path, with_time=True)
    assert len(ready_times._firsts(data)) == 600_000


@pytest.mark.parametrize(
    ("timed", "by_hand", "met"), [(92.0, 90.0, [True, True]), (90.0, 89.0, [False, False])]
)
def test_event_time_is_compared_with_rows_without_and_with_sparks_windows(
    timed: float, by_hand: float, met: list[bool]
) -> None:
    rates = {"totals": 100.0, "totals_with_time": timed, "windows_by_hand": by_hand, "spark_windows": 100.0}
    size = event_time.MEASUREMENT.sizes["quick"]
    trials = {side: [{"rows": 1, "steady": [1 / rate], "cpu": [2 / rate]}] for side, rate in rates.items()}
    assert [target.met for target in event_time.section(Results(trials), size).targets] == met


def results(store: ResultStore, measurement: Measurement, version: str, value: float) -> None:
    for trial in measurement.trials("full", None):
        store.write(trial, version, 0.1, {"value": value + trial.repeat})


def section(found: Results, size: Any) -> Section:
    value = found.median("ours", lambda trial: trial["value"])
    targets = [at_least("fast", value, 2.0), at_most("small", value, 2.5)]
    return Section("What it is.", ("side", "value"), [["ours", f"{value}"]], targets)


INVENTED = Measurement("invented", "Invented", ("ours", "theirs"), {"full": None}, lambda *_: {}, section)


def test_sides_take_turns() -> None:
    order = [(trial.side, trial.repeat) for trial in INVENTED.trials("full", None)]
    assert order == [("ours", 0), ("theirs", 0), ("ours", 1), ("theirs", 1), ("ours", 2), ("theirs", 2)]


def test_a_run_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    done = Trial("invented", "ours", 0, "full")
    store.write(done, "v1", 0.1, {"value": 1})
    assert store.read(done, "v1") is not None
    assert store.read(replace(done, repeat=1), "v1") is None
    assert store.read(done, "v2") is None, "another version of the code is measured anew"


def test_a_side_that_fails_keeps_no_other_from_being_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[tuple[str, int]] = []

    def run_trial(measurement: Measurement, trial: Trial, say: Any) -> dict[str, object]:
        tried.append((trial.side, trial.repeat))
        if trial.side == "ours":
            raise bench_main.TrialFailed("ours: ended with code 1")
        return {"value": 1.0}

    monkeypatch.setattr(bench_main, "run_trial", run_trial)
    monkeypatch.setattr(bench_main, "fingerprint", lambda: "v1")
    store = ResultStore(tmp_path)
    assert bench_main._measure(store, "full", [INVENTED], 2)
    assert tried == [("ours", 0), ("theirs", 0), ("theirs", 1)]
    assert store.read(Trial("invented", "theirs", 0, "full"), "v1") is not None


def test_figures_of_two_versions_never_mix(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    results(store, INVENTED, "v1", 1.0)
    store.write(Trial("invented", "ours", 0, "full"), "v2", 0.1, {"value": 9.0})
    found = store.newest("full", INVENTED, "v2")
    assert found is not None
    assert found.fingerprint == "v1"
    assert [trial["value"] for trial in found.results.of("ours")] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("value", "fast", "small"), [(1.0, "met", "met"), (0.0, "**missed**", "met"), (2, "met", "**missed**")]
)
@pytest.mark.parametrize("today", [True, False])
def test_the_page_says_met_or_missed_and_by_which_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float, fast: str, small: str, today: bool
) -> None:
    monkeypatch.setattr(report, "fingerprint", lambda: "v1" if today else "v2")
    store = ResultStore(tmp_path / "results")
    results(store, INVENTED, "v1", value)
    page = write_page(gathered(store, "full", [INVENTED]), tmp_path / "docs").read_text()
    by = "" if today else " by earlier code"
    assert f"| Invented | fast | {value + 1:.2f}x | {fast}{by} |" in page
    assert f"| Invented | small | {value + 1:.2f}x | {small}{by} |" in page
    met = [fast, small].count("met")
    counted = f"{met} of 2 met" if today else f"with earlier code {met} of 2 others"
    assert f"## Targets: {counted}\n" in page
    assert ("with an earlier version of the code" in page) is not today


def test_what_was_not_measured_is_named(tmp_path: Path) -> None:
    page = write_page(gathered(ResultStore(tmp_path / "results"), "full", [INVENTED]), tmp_path / "docs")
    assert "Not measured yet: invented." in page.read_text()


@pytest.mark.slow
def test_plots_are_drawn_beside_the_page(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "results")
    measurement = MEASUREMENTS["one_row"]
    for trial in measurement.trials("quick", None):
        steady = [0.5] * measurement.sizes["quick"].measured
        phases = dict.fromkeys(("evaluate_ms", "decide_ms", "commit_ms"), 1)
        store.write(trial, "v1", 0.1, {"seconds": steady, "steady": steady, "phases": phases})
    page = write_page(gathered(store, "quick", [measurement]), tmp_path)
    assert "![One-row batches](img/quick/one-row.svg)" in page.read_text()
    drawn = tmp_path / "img/quick/one-row.svg"
    first = drawn.read_bytes()
    shutil.rmtree(tmp_path / "img")
    write_page(gathered(store, "quick", [measurement]), tmp_path)
    assert drawn.read_bytes() == first


def uploaded(plain: int, compacted: int) -> dict[str, Target]:
    size = uploads.Size(10_000, 0.01, 4)
    batch = {"uploaded": plain + compacted, "compacted": compacted, "state": 10**6, "shards": 2, "objects": 3}
    found = Results({"process": [{"batches": [batch] * 4, "loaded": 10**6, "touched": 100}]})
    each, all_of_them = uploads.section(found, size).targets
    return {"each": each, "all": all_of_them}


def test_uploads_are_held_to_the_change() -> None:
    fine = uploaded(20_000, 80_000)
    assert fine["each"].met
    assert fine["all"].met
    assert not uploaded(200_000, 0)["each"].met
    assert not uploaded(20_000, 80_001)["all"].met


def trial_of_locality(size: locality.Size, fetched: list[int], seconds: float) -> dict[str, Any]:
    return {
        "batches": [
            {"seconds": seconds, "fetched": f, "misses": 0, "state": 1000, "executors": 4} for f in fetched
        ]
    }


@pytest.mark.parametrize(
    ("after", "met"), [([250, 9, 0, 0], True), ([0, 250, 0, 0], True), ([250, 0, 0, 250], False)]
)
def test_a_killed_executor_must_be_over_at_the_end(after: list[int], met: bool) -> None:
    size = locality.Size(1000, 10, 2, 3, 4)
    found = Results(
        {
            "separate": [trial_of_locality(size, [500, 500, 10, 10, 10, *after], 1.2)],
            "shared": [trial_of_locality(size, [0] * 5, 1.0)],
        }
    )
    downloads, lasts, settles = locality.section(found, size).targets
    assert downloads.met
    assert lasts.met
    assert settles.met is met


def test_one_row_is_compared_with_the_stateless_batch() -> None:
    def trial(seconds: float) -> dict[str, Any]:
        phases = dict.fromkeys(("evaluate_ms", "decide_ms", "commit_ms"), 1)
        return {"seconds": [seconds], "steady": [seconds], "phases": phases}

    def found(ours: float) -> Target:
        both = Results({"process": [trial(ours)], "foreach_batch": [trial(0.2)]})
        return one_row.section(both, one_row.Size(0, 1)).targets[0]

    assert found(0.34).met
    assert not found(0.36).met


def test_made_state_has_every_key_with_its_value(tmp_path: Path) -> None:
    from stateflow.format.records import Owner
    from stateflow.reading.snapshots import ReaderContext, checkpoint_reader
    from stateflow.state.backends.choice import ShardReaders
    from stateflow.state.backends.rocksdb_options import RocksOptions
    from stateflow.storage.cache import FileCache

    make(tmp_path / "root", 500, shards=3, serializer=export.Reading, values=export.readings)
    cache = FileCache(tmp_path / "cache", 1 << 30)
    place = ReaderContext(
        str(tmp_path / "root"), cache, tmp_path / "scratch", ShardReaders(RocksOptions()), now
    )
    with checkpoint_reader(place, JOB, owner=Owner(run="test"), ids=lambda: "reader") as reader:
        shards = reader.target(OPERATOR, STATE).shards
        found = [reader.get(OPERATOR, STATE, key)["count"] for key in range(500)]
    assert [(shard.first, shard.last) for shard in shards] == [(0, 42), (43, 85), (86, GROUPS - 1)]
    assert sum(shard.entries for shard in shards) == 500
    assert found == list(range(500))


def test_a_rescale_is_timed_step_by_step_and_leaves_the_files(tmp_path: Path) -> None:
    found = rescale.run("rescale", rescale.Size((3_000,)), Workplace(tmp_path))
    (job,) = found["jobs"]
    assert len(job["seconds"]) == len(rescale.STEPS)
    assert job["untouched"]
    assert job["files"][0] == job["files"][1] > 1


@pytest.mark.parametrize(
    ("slowest", "untouched", "met"),
    [(0.29, True, [True, True]), (0.31, True, [False, True]), (0.1, False, [True, False])],
)
def test_a_rescale_must_be_fast_at_each_step_and_copy_nothing(
    slowest: float, untouched: bool, met: list[bool]
) -> None:
    job = {"seconds": [0.1, slowest, 0.1], "files": [2, 2], "bytes": [9, 9], "untouched": untouched}
    found = Results({"rescale": [{"first": 0.9, "jobs": [job]}]})
    assert [target.met for target in rescale.section(found, rescale.Size((5,))).targets] == met


@pytest.mark.parametrize(("ours", "met"), [(0.1, True), (9.0, False)])
def test_a_change_of_tasks_counts_with_the_batch_behind_it(ours: float, met: bool) -> None:
    def trial(change: float) -> dict[str, Any]:
        return {"change": change, "held": 10, "written": 5, **dict.fromkeys(repartition.STEPS, 1.0)}

    found = Results({"this library": [trial(ours)], "Spark": [trial(5.0)]})
    (target,) = repartition.section(found, repartition.Size(10, 1)).targets
    assert target.met is met


def test_a_collection_is_measured_that_deletes_what_was_subsumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sync", lambda: None)
    found = collection.run("gc", collection.Size(4, 3, 10), Workplace(tmp_path))
    assert (found["files"], found["bytes"]) == (12, 120)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [True, False])
def test_savepoints_link_on_one_disk_and_copy_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: bool
) -> None:
    from stateflow.storage import transfer

    monkeypatch.setattr(os, "sync", lambda: None)
    monkeypatch.setattr(snapshots, "TURNS", 1)
    if not memory:
        monkeypatch.setattr(snapshots, "MEMORY", tmp_path / "not there")
    linking = transfer.copy_inside
    found = snapshots.run("native", snapshots.Size((128,), 4096), Workplace(tmp_path))
    (linked,) = found["linked"]
    assert linked["shared"]
    assert linked["restored_shared"]
    assert linked["new"] < 16 << 10 < linked["state"]
    assert {len(found[name]) for name in ("made", "copied", "restored", "copied_back")} == {1}
    assert transfer.copy_inside is linking
    if not memory:
        assert "links switched off" in found["how"]


def test_where_links_are_switched_off_savepoints_are_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stateflow.jobs.job import Job

    monkeypatch.setattr(snapshots, "MEMORY", tmp_path / "not there")
    root, place = tmp_path / "root", Workplace(tmp_path)
    make(root, 64, serializer=bytes, values=snapshots.incompressible(4096))
    with snapshots.elsewhere(tmp_path, 1) as (other, _):
        Job(str(root), JOB).savepoint(options=snapshots.options(root, place), to=str(other / "savepoint"))
        made = snapshots.inodes((other / "savepoint").rglob("*"))
    assert not made & snapshots.inodes(root.rglob("*"))


def test_two_export_workers_are_compared_with_one() -> None:
    def found(two: float) -> list[bool]:
        trial = {"entries": 1_000_000, "state": 10, "written": 5}
        by_side = {
            side: [{**trial, "seconds": [0.9 if side.endswith("1") else two]}] for side in export.SIDES
        }
        section = export.section(Results(by_side), export.Size(1, 1, 1))
        return [target.met for target in section.targets]

    assert found(0.5) == [True] * 4
    assert found(0.6) == [True, True, False, False]


def test_batches_beside_savepoints_take_turns_with_those_without() -> None:
    kinds = beside.plan(beside.Size(10, 10, warm_up=2, block=3, blocks=4))
    assert kinds.count(beside.ALONE) == kinds.count(beside.BESIDE) == 12
    changes = [{one, other} for one, other in pairwise(kinds) if one != other]
    assert all(beside.APART in change for change in changes), "no measured batch waits for a change"
    assert kinds[:3] == [beside.APART] * 3
    middle = [
        sum(at for at, kind in enumerate(kinds) if kind == wanted) for wanted in (beside.ALONE, beside.BESIDE)
    ]
    assert middle[0] == middle[1], "what changes steadily falls on both"


@pytest.mark.parametrize(("beside_it", "met"), [(1.09, True), (1.11, False)])
def test_savepoints_beside_must_not_slow_batches_down(beside_it: float, met: bool) -> None:
    trial = {"alone": [1.0], "beside": [beside_it], "savepoints": [0.1]}
    found = Results({side: [trial] for side in beside.SIDES})
    targets = beside.section(found, beside.Size(1, 1, 1, 1, 1)).targets
    assert [target.met for target in targets] == [met] * 2


@pytest.mark.parametrize(("chosen", "met"), [(1.09, True), (1.11, False)])
def test_the_combiner_is_compared_with_the_better_choice_of_each_phase(chosen: float, met: bool) -> None:
    size = combiner.Size(10, phase=2, phases=4)
    assert [spec.keys for spec in size.batches] == [1_000, 1_000, 10, 10] * 2

    def trial(*phases: float) -> dict[str, Any]:
        return {"seconds": [each for seconds in (9.0, 9.0, *phases) for each in [seconds] * size.phase]}

    by_side = {"always": [trial(1.0, 3.0)], "never": [trial(2.0, 1.0)], "chosen": [trial(chosen, chosen)]}
    section = combiner.section(Results(by_side), size)
    assert [target.met for target in section.targets] == [met]
    assert [row[-1] for row in section.rows] == [f"{chosen:.2f}x", "2.00x", "1.50x"]


@pytest.mark.parametrize(("slowest", "met"), [(0.29, True), (0.31, False)])
def test_every_dag_has_to_be_parsed_in_time(slowest: float, met: bool) -> None:
    trial = {"airflow": 2.4, "added": {"one.py": [0.1] * 3, "other.py": [0.1, slowest, 9.0]}}
    section = airflow_parsing.section(Results({"dags": [trial]}), airflow_parsing.Size(3))
    assert [target.met for target in section.targets] == [met]


@pytest.mark.parametrize(("took", "met"), [(0.049, True), (0.051, False)])
def test_ten_operators_have_to_be_parsed_in_a_twentieth_of_a_second(took: float, met: bool) -> None:
    trial = {"airflow": 2.4, "added": {airflow_parsing.TEN.name: [took] * 3}}
    section = airflow_parsing.section(Results({"dags": [trial]}), airflow_parsing.Size(3))
    assert [target.met for target in section.targets] == [True, met]
    assert section.rows[-1][0] == "`bench/ten_operators.py`"


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile(list(range(1, 101)), 0.95) == 95
    assert percentile([3.0, 1.0], 0.95) == 3.0
    assert percentile([1.0], 0.5) == 1.0


def test_a_command_costs_what_the_processes_cost_that_outlive_it() -> None:
    burn = "import time; t = time.process_time()\nwhile time.process_time() < t + 0.5: pass"
    leave = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {burn!r}])"
    # In a process of its own: `cost` waits for every child of its process.
    measure = f"import sys; from bench.start import cost; print(cost([sys.executable, '-c', {leave!r}]).cpu)"
    done = subprocess.run([sys.executable, "-c", measure], capture_output=True, text=True, check=True)
    assert float(done.stdout) > 0.5


@pytest.mark.parametrize(("wall", "met"), [(13.0, True), (14.0, False)])
def test_a_run_is_compared_with_the_plain_script_by_the_clock(wall: float, met: bool) -> None:
    def trial(wall: float) -> dict[str, Any]:
        return {which: {"wall": wall, "cpu": 2 * wall} for which in start.RUNS}

    section = start.section(Results({"run": [trial(wall)], "submit": [trial(10.0)]}), start.Size(1))
    assert [target.met for target in section.targets] == [met, met]
    assert [row[3] for row in section.rows] == [f"{wall / 10:.2f}x", "1.00x"] * 2


def test_every_measurement_has_both_forms_and_lists_its_time() -> None:
    for measurement in MEASUREMENTS.values():
        assert set(measurement.sizes) == set(measurement.minutes) == {"full", "quick"}
    full = sum(m.minutes["full"] * m.repeats for m in MEASUREMENTS.values() if not m.named_only)
    assert full <= 110


def test_nexmark_counts_where_we_are_ahead_and_names_where_not() -> None:
    size = nexmark_beside.Size(1000, 4000, 1, 500, 1)
    batch = {"ours": 1.0, "spark": 2.0, "flink": 0.5}
    of_q8 = {"spark-q8": 0.5, "flink-q8": 3.0}
    results = Results(
        {
            side: [
                {
                    "batch": of_q8.get(side, batch[side.split("-")[0]]),
                    "first": 9.0,
                    "events": 1000,
                    "peak": 2**30,
                    "written": 2**20,
                }
            ]
            for side in nexmark_beside.SIDES
        }
    )
    section = nexmark_beside.section(results, size)
    assert [(target.measured, target.met) for target in section.targets] == [
        ("10 of 11; behind: q8", False),
        ("1.00", False),
    ]
    assert ["q8", "Flink", "-", "3.00 s", "333", "0.33x", "1.00 GiB", "1.0 MiB"] in section.rows
    assert ["q8", "Spark", "9.00 s", "500 ms", "2,000", "2.00x", "1.00 GiB", "1.0 MiB"] in section.rows
    assert not {"spark-q6", "flink-q6"} & set(nexmark_beside.SIDES)
    assert "Not measured" not in section.text


def test_nexmark_shows_what_was_measured_when_a_side_has_failed(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    for side in ("ours-q8", "flink-q8", "spark-q3"):
        trial = Trial("nexmark", side, 0, "quick")
        store.write(trial, "v1", 0.1, {"batch": 1.0, "first": 9.0, "events": 1000, "peak": 1, "written": 1})
    measurement = MEASUREMENTS["nexmark"]
    found = store.newest("quick", measurement, "v1")
    assert found is not None
    section = measurement.section(found.results, measurement.sizes["quick"])
    assert [(row[0], row[1], row[5]) for row in section.rows] == [
        ("q3", "Spark", "-"),
        ("q8", "Stateflow", "1.00x"),
        ("q8", "Flink", "1.00x"),
    ]
    assert "Not measured: ours-q3, flink-q3," in section.text
    assert ResultStore(tmp_path / "none").newest("quick", measurement, "v1") is None


def test_a_trial_of_which_only_the_warm_up_was_timed_says_so() -> None:
    size = nexmark_beside.Size(1000, 4000, 2, 500, 1)
    assert (size.batches("q9"), size.batches("q8")) == ([500, 1000, 1000], [500, 4000, 4000])
    assert nexmark_beside._steady([9.0, 2.0, 3.0], "q9", size) == {"batch": 2.5, "first": 9.0}
    assert nexmark_beside._steady([9.0, 2.0], "q9", size) == {"batch": 2.0, "first": 9.0}
    with pytest.raises(SystemExit, match="1 of 3 batches"):
        nexmark_beside._steady([9.0], "q9", size)


def test_python_engines_are_compared_at_both_numbers_of_keys() -> None:
    batch = {"ours": 1.0, "pathway": 5.0, "bytewax": 9.0}
    results = Results({side: [{"batch": batch[side.split("-")[0]]}] for side in python_peers.SIDES})
    section = python_peers.section(results, python_peers.Size(1000, 1, 1))
    assert [target.met for target in section.targets] == [True, True, False, False]


def test_the_rows_of_python_engines_are_those_of_the_table(tmp_path: Path) -> None:
    data = dataset([BatchSpec(1000, 7)], folder=tmp_path / "data", with_time=True)
    assert python_peers.lanes(data, tmp_path / "in") == 1000
    lanes = [
        (tmp_path / "in" / f"{lane}.csv").read_text().splitlines() for lane in range(python_peers.WORKERS)
    ]
    assert [len(lane) for lane in lanes] == [501, 501]
    assert lanes[0][0] == '"channel","amount","at"'


def test_a_witness_sees_memory_and_what_was_written(tmp_path: Path) -> None:
    with watched(tmp_path) as seen:
        (tmp_path / "a").write_bytes(b"x" * 1000)
        time.sleep(3 * EVERY)
        (tmp_path / "a").unlink()
        (tmp_path / "b").write_bytes(b"x" * 10)
    assert seen.written == 1010
    assert seen.peak > 10 * 2**20


def test_sides_are_chosen_by_patterns_of_their_names() -> None:
    assert bench_main.asked_for("flink-q3", [])
    assert bench_main.asked_for("flink-q3", ["ours-*", "flink-*"])
    assert not bench_main.asked_for("spark-q3", ["ours-*", "flink-*"])
