"""Rows per second in large batches over many keys, exactly once into Delta."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.generate import BatchSpec, dataset
from bench.measurement import Measurement, Plot, Results, Section, Workplace, at_least, median, seconds

SIDES = (
    "process",
    "process_arrow",
    "spark_aggregation",
    "transform_with_state",
    "limit_sorted",
    "limit_unsorted",
)
NAMES = {
    "process": "per-key Python process",
    "process_arrow": "process_arrow",
    "spark_aggregation": "Spark's aggregation (JVM)",
    "transform_with_state": "Python transformWithState",
    "limit_sorted": "limit: sorted shuffle, pass-through",
    "limit_unsorted": "limit: unsorted shuffle, pass-through",
}


@dataclass(frozen=True, slots=True)
class Size:
    rows: int
    keys: int
    warm_up: int
    measured: int
    slow_rows: int
    """Rows per batch for transformWithState."""


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    from bench import sides

    rows = size.slow_rows if side == "transform_with_state" else size.rows
    warm_up, measured = (1, 3) if side == "transform_with_state" else (size.warm_up, size.measured)
    data = dataset([BatchSpec(rows, size.keys)] * (warm_up + measured))
    spark = sides.session()
    outcome = sides.SIDES[side](spark, data, workplace.folder)
    if side in sides.STATEFUL:
        sides.check_totals(workplace.folder / "output", data)
    if outcome.timed.rows != [rows] * (warm_up + measured):
        raise AssertionError(f"{side} cut the input into batches of {outcome.timed.rows} rows")
    return {
        "rows": rows,
        "seconds": outcome.timed.seconds,
        "steady": outcome.timed.seconds[warm_up:],
        "phases": [
            {name: report.statistics[name] for name in ("evaluate_ms", "decide_ms", "commit_ms")}
            | report.statistics["metrics"]
            for report in outcome.reports[warm_up:]
        ],
    }


def section(results: Results, size: Size) -> Section:
    def speed(trial: Any) -> float:
        return float(trial["rows"] / median(trial["steady"]))

    rate = {side: results.median(side, speed) for side in SIDES}
    spark = rate["spark_aggregation"]
    rows = []
    for side in SIDES:
        repeats = sorted(map(speed, results.of(side)))
        rows.append(
            [
                NAMES[side],
                f"{results.first(side)['rows']:,}",
                seconds(results.first(side)["rows"] / rate[side]),
                f"{rate[side]:,.0f}",
                f"{repeats[0]:,.0f} to {repeats[-1]:,.0f}",
                f"{rate[side] / spark:.2f}x",
            ]
        )
    targets = [
        at_least("per-key process: 1.5 times Spark's aggregation", rate["process"] / spark, 1.5),
        at_least(
            "per-key process: 35 times transformWithState", rate["process"] / rate["transform_with_state"], 35
        ),
        at_least("per-key process: half the sorted limit", rate["process"] / rate["limit_sorted"], 0.5),
        at_least("process_arrow: 2.2 times Spark's aggregation", rate["process_arrow"] / spark, 2.2),
    ]
    text = (
        f"Batches of {size.rows:,} rows over {size.keys:,} keys. Every side keeps a running count and sum per user and "
        "appends a row per user and batch to a Delta table; the outputs are compared with the input. transformWithState "
        f"gets batches of {size.slow_rows:,} rows. The limits have no state: they are this library's own shuffle, a Python "
        "function that passes rows through, and the same sink; the unsorted one puts out as many rows as there are keys."
    )
    plot = Plot(
        "throughput",
        "Rows per second, exactly once into Delta",
        "bars",
        [NAMES[side] for side in SIDES],
        {"rows per second": [rate[side] for side in SIDES]},
        "",
        "rows per second",
    )
    header = ("side", "rows per batch", "a batch", "rows/s", "range of repeats", "of Spark's aggregation")
    return Section(text, header, rows, targets, [plot])


MEASUREMENT = Measurement(
    "throughput",
    "Throughput",
    SIDES,
    {
        "full": Size(2_000_000, 1_000_000, 3, 4, 250_000),
        "quick": Size(200_000, 100_000, 2, 3, 10_000),
    },
    run,
    section,
    minutes={"full": 4.5, "quick": 2.0},
)
