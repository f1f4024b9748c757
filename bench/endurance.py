"""Thousands of checkpoints in a row: what the store holds, what a record weighs, how long a run takes to start."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.generate import BatchSpec, commit
from bench.measurement import Measurement, Plot, Results, Section, Workplace, at_most, seconds, thirds
from bench.measurement import size as bytes_

SIDES = ("process",)
SAMPLED_EVERY = 10
WARM_UP = 0.15
"""Figures count after this share of the checkpoints."""


@dataclass(frozen=True, slots=True)
class Size:
    runs: int
    checkpoints: int
    """Per run: the input grows between runs, as it does between two DAG runs."""
    keys: int
    rows: int


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    from bench import operators, sides
    from stateflow.format.layout import JobLayout

    spark = sides.session()
    root, layout = workplace.folder / "root", JobLayout(operators.per_key.name)
    table = workplace.folder / "input"
    samples: list[dict[str, float]] = []
    starts: list[float] = []
    durations: list[float] = []
    for number in range(size.runs):
        specs = [BatchSpec(size.rows, size.keys)] * size.checkpoints
        if number == 0:
            specs = [BatchSpec(size.keys, size.keys, "distinct"), *specs[1:]]
        commit(table, number, specs, first=number * size.checkpoints, seed=1)
        first: list[float] = []

        def each(report: Any, first: list[float] = first) -> None:
            now = time.perf_counter()
            if not first:
                first.append(now - report.duration)
            if (len(durations) + 1) % SAMPLED_EVERY == 0:
                samples.append(_sample(root, layout, report.slot, len(durations) + 1))
            durations.append(report.duration)
            if len(durations) % 100 == 0:
                workplace.say(f"{len(durations)} checkpoints")

        began = time.perf_counter()
        sides.stateflow_run(spark, operators.per_key, {"input": str(table)}, workplace.folder, each=each)
        starts.append(first[0] - began)
        workplace.say(f"run {number + 1} of {size.runs} began after {starts[-1]:.2f} s")
    if len(durations) != size.runs * size.checkpoints:
        raise AssertionError(f"{len(durations)} batches instead of {size.runs * size.checkpoints}")
    return {"samples": samples, "starts": starts, "taken": durations}


def _sample(root: Path, layout: Any, slot: int, checkpoint: int) -> dict[str, float]:
    folder = root / layout.folder
    objects = sum(1 for path in folder.rglob("*") if path.is_file())
    record = (root / layout.pending(slot)).stat().st_size
    return {"checkpoint": checkpoint, "objects": objects, "record": record}


def section(results: Results, size: Size) -> Section:
    figures = results.first("process")
    count = len(figures["taken"])
    settled = [s for s in figures["samples"] if s["checkpoint"] > WARM_UP * count]
    starts = figures["starts"][max(1, round(WARM_UP * size.runs)) :]
    durations = figures["taken"][round(WARM_UP * count) :]

    objects, record = thirds([s["objects"] for s in settled]), thirds([s["record"] for s in settled])
    start, batch = thirds(starts), thirds(durations)
    rows = [
        ["objects in the store", f"{objects[0]:.0f}", f"{objects[1]:.0f}"],
        ["bytes of a record", bytes_(record[0]), bytes_(record[1])],
        ["start of a run until its first batch", seconds(start[0]), seconds(start[1])],
        ["a batch", seconds(batch[0]), seconds(batch[1])],
    ]
    # History is kept for months: a segment of 256 lines is one more object.
    segments = count / 256
    targets = [
        at_most("objects in the store are flat", (objects[1] - segments) / objects[0], 1.1),
        at_most("bytes of a record are flat", record[1] / record[0], 1.05),
        at_most("the start of a run is flat", start[1] / start[0], 1.2),
    ]
    text = (
        f"{count:,} checkpoints in {size.runs} runs of one job that reads a Delta table: {size.keys:,} keys, {size.rows:,} "
        f"rows per batch, retention at its default. The first {WARM_UP:.0%} are warm-up; the table compares the first third "
        "of what follows with the last. Flat: at most 1.1 times (objects, beside one history segment per 256 checkpoints), "
        "1.05 times (record), 1.2 times (start, which is a matter of time and varies)."
    )
    at = [s["checkpoint"] for s in figures["samples"]]
    plots = [
        Plot(
            "endurance-objects",
            "Objects in the store",
            "lines",
            at,
            {"objects": [s["objects"] for s in figures["samples"]]},
            "checkpoint",
            "objects",
        ),
        Plot(
            "endurance-record",
            "Bytes of a record",
            "lines",
            at,
            {"bytes": [s["record"] for s in figures["samples"]]},
            "checkpoint",
            "bytes",
        ),
        Plot(
            "endurance-start",
            "Start of a run until its first batch",
            "lines",
            list(range(1, size.runs + 1)),
            {"start": figures["starts"]},
            "run",
            "seconds",
        ),
    ]
    return Section(text, ("what", "after warm-up", "at the end"), rows, targets, plots)


MEASUREMENT = Measurement(
    "endurance",
    "Many checkpoints",
    SIDES,
    {"full": Size(10, 200, 50_000, 500), "quick": Size(5, 20, 10_000, 500)},
    run,
    section,
    repeats=1,
    minutes={"full": 17.0, "quick": 1.5},
    patience=30,
)
