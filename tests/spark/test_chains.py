"""Operators by event time behind operators by event time, in runs: with restarts, rescales and a restore between the batches."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

import stateflow as sf
from stateflow.jobs.job import Job
from tests.operators.ready.driving import END
from tests.pipelines.chained import Chained
from tests.spark.pipelines import Workbench, at

ONE, TWO = "k bigint, a bigint, ts timestamp", "k bigint, b bigint, at timestamp"
WINDOW = "k bigint, window_start timestamp, window_end timestamp, n bigint, total bigint"
CLOSE = ("-3 minutes", "4 minutes")


def declared(flow: sf.Flow, one: Any, two: Any) -> dict[str, Any]:
    """Every kind behind every kind, by uid."""
    left = flow.source("one", one, ONE, event_time="ts", watermark="2 minutes").key_by("k")
    right = flow.source("two", two, TWO, event_time="at", watermark="2 minutes").key_by("k")
    cut = left.window(sf.tumbling("5 minutes"), lateness="1 minute")
    windows = cut.aggregate("windows", WINDOW, n=sf.count(), total=sf.sum("a")).key_by("k")
    pairs = left.join(
        "pairs", right, "k bigint, a bigint, ts timestamp, b bigint, at timestamp", within=CLOSE
    ).key_by("k")
    versions = left.join_asof(
        "versions", right, "k bigint, a bigint, ts timestamp, b bigint", keep="10 minutes"
    ).key_by("k")
    twice = "k bigint, a bigint, ts timestamp, left_b bigint, right_b bigint"
    beside = "k bigint, window_start timestamp, n bigint, b bigint"
    counts = {"n": sf.count(), "total": sf.sum("a")}
    quarter = sf.tumbling("15 minutes")
    return {
        "windows-windows": windows.window(quarter, time="window_start").aggregate(
            "windows-windows", WINDOW, n=sf.sum("n"), total=sf.sum("total")
        ),
        "windows-join": windows.join(
            "windows-join", right, beside, within=CLOSE, time="window_end", right_time="at"
        ),
        "windows-as-of": windows.join_asof(
            "windows-as-of", right, beside, time="window_end", right_time="at"
        ),
        "windows-window-join": windows.window(quarter, time="window_start").join(
            "windows-window-join", right, "k bigint, n bigint, b bigint", how="left", right_time="at"
        ),
        "join-windows": pairs.window(sf.hopping("10 minutes", "5 minutes"), time="at").aggregate(
            "join-windows", WINDOW, **counts
        ),
        "join-join": pairs.join(
            "join-join", right, twice, within=CLOSE, how="left", time="ts", right_time="at"
        ),
        "join-as-of": pairs.join_asof("join-as-of", right, twice, time="ts", right_time="at"),
        "as-of-windows": versions.window(sf.session("4 minutes"), time="ts").aggregate(
            "as-of-windows", WINDOW, **counts
        ),
        "as-of-join": versions.join(
            "as-of-join", right, twice, within=CLOSE, how="left", time="ts", right_time="at"
        ),
        "as-of-as-of": versions.join_asof("as-of-as-of", right, twice, time="ts", right_time="at"),
    }


def counted(rows: Any) -> Counter[str]:
    """Rows of a table in memory, or of the plain computation."""
    plain = (row if isinstance(row, dict) else row.asDict() for row in rows)
    return Counter(repr(sorted((name, str(value)) for name, value in row.items())) for row in plain)


@pytest.mark.system
def test_every_kind_behind_every_kind_gives_what_one_computation_over_all_rows_gives(
    bench: Workbench,
) -> None:
    targets = {}

    @sf.pipeline("chains")
    def chains(flow: sf.Flow) -> None:
        for uid, stream in declared(flow, bench.source("one", ONE), bench.source("two", TWO)).items():
            targets[uid] = sf.memory(f"chains-{uid}")
            stream.collect(f"{uid}-out", targets[uid])

    chance = random.Random(7)
    every: dict[str, list[dict[str, Any]]] = {"one": [], "two": []}

    def came(part: int) -> None:
        for uid, (value, time) in {"one": ("a", "ts"), "two": ("b", "at")}.items():
            rows = [
                {"k": chance.randrange(3), value: n, time: at(part * 5 + chance.randrange(-4, 21) / 4)}
                for n in range(12)
            ]
            every[uid] += rows
            bench.rows(uid, rows)

    flow = chains.build()
    for target in targets.values():
        target.clear()
    for part in range(2):
        came(part)
    bench.run(chains, parallelism=1, retained_checkpoints=50)
    before = {uid: counted(target.rows) for uid, target in targets.items()}
    kept = bench.records("chains")[-1].slot
    came(2)
    bench.run(chains, parallelism=2, retained_checkpoints=50)
    came(3)
    bench.run(chains, parallelism=2, retained_checkpoints=50, drain=True)

    at_once = Chained(flow, random.Random(1))
    at_once.batch(every, None)
    at_once.batch({}, END)
    wanted = {uid: counted(at_once.rows[uid]) for uid in targets}
    assert all(wanted.values())
    assert {uid: counted(target.rows) for uid, target in targets.items()} == wanted
    late = [
        each
        for report in bench.reports
        for each in report.statistics["operators"].values()
        if each["counters"]
    ]
    assert late == []

    Job(str(bench.folder / "root"), "chains").restore(
        f"checkpoint:{kept}", chains, options=bench.options()
    ).apply()
    for target in targets.values():
        target.clear()
    bench.run(chains, parallelism=1, drain=True)
    assert {uid: before[uid] + counted(target.rows) for uid, target in targets.items()} == wanted
