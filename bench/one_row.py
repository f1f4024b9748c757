"""What a micro-batch costs before it does anything: one row, an operator that does nothing, no sink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.generate import BatchSpec, dataset
from bench.measurement import (
    Measurement,
    Plot,
    Results,
    Section,
    Workplace,
    at_most,
    median,
    percentile,
    seconds,
)

SIDES = ("process", "foreach_batch")
NAMES = {"process": "per-key process that does nothing", "foreach_batch": "stateless foreachBatch"}


@dataclass(frozen=True, slots=True)
class Size:
    warm_up: int
    measured: int


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    from bench import operators, sides

    data = dataset([BatchSpec(1, 1000)] * (size.warm_up + size.measured))
    spark = sides.session()
    if side == "process":
        outcome = sides.stateflow_run(spark, operators.nothing, {"input": str(data.path)}, workplace.folder)
    else:
        outcome = sides.stateless(spark, data, workplace.folder)
    if len(outcome.timed.rows) != size.warm_up + size.measured:
        raise AssertionError(f"{side} cut the input into {len(outcome.timed.rows)} batches")
    names = ("evaluate_ms", "decide_ms", "commit_ms")
    return {
        "seconds": outcome.timed.seconds,
        "steady": outcome.timed.seconds[size.warm_up :],
        "phases": {
            name: median([report.statistics[name] for report in outcome.reports[size.warm_up :]])
            for name in names
            if outcome.reports
        },
    }


def section(results: Results, size: Size) -> Section:
    middle = {side: results.median(side, lambda trial: median(trial["steady"])) for side in SIDES}
    pooled = {side: [v for trial in results.of(side) for v in trial["steady"]] for side in SIDES}
    rows = [
        [
            NAMES[side],
            seconds(middle[side]),
            seconds(percentile(pooled[side], 0.95)),
            seconds(min(pooled[side])),
        ]
        for side in SIDES
    ]
    more = middle["process"] - middle["foreach_batch"]
    phases = results.first("process")["phases"]
    text = (
        "One row per batch. The stateless side computes its row and writes it nowhere, without Python workers. Of this "
        f"library's batch, evaluating takes {phases['evaluate_ms']:.0f} ms (with Spark's job and a Python worker), "
        f"deciding {phases['decide_ms']:.0f} ms (the record, with fsync)."
    )
    plot = Plot(
        "one-row",
        "One-row batches",
        "lines",
        list(range(1, size.measured + 1)),
        {NAMES[side]: results.first(side)["steady"] for side in SIDES},
        "batch after warm-up",
        "seconds",
    )
    targets = [
        at_most(
            "a one-row batch costs at most 150 ms more than a stateless foreachBatch",
            more,
            0.150,
            lambda v: f"{v * 1000:.0f} ms more",
        )
    ]
    return Section(text, ("side", "median", "95th percentile", "fastest"), rows, targets, [plot])


MEASUREMENT = Measurement(
    "one_row",
    "The least a batch costs",
    SIDES,
    {"full": Size(15, 40), "quick": Size(8, 15)},
    run,
    section,
    minutes={"full": 0.9, "quick": 0.6},
)
