"""The peak memory of a Python worker when one key has half of a very large batch. Run once: no clock is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.generate import BatchSpec, dataset
from bench.measurement import Measurement, Plot, Results, Section, Workplace, at_most, seconds

SIDES = ("process", "process_arrow")
LIMIT = 700 * 10**6


def megabytes(value: float) -> str:
    return f"{value / 1e6:.0f} MB"


@dataclass(frozen=True, slots=True)
class Size:
    rows: int
    keys: int
    batches: int


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    from bench import sides

    data = dataset([BatchSpec(size.rows, size.keys, "hot")] * size.batches)
    outcome = sides.SIDES[side](sides.session(), data, workplace.folder)
    sides.check_totals(workplace.folder / "output", data)
    return {
        "peak": [report.statistics["metrics"]["max_peak_rss"] for report in outcome.reports],
        "seconds": outcome.timed.seconds,
    }


def section(results: Results, size: Size) -> Section:
    peaks = {side: max(results.first(side)["peak"]) for side in SIDES}
    rows = [[side, megabytes(peaks[side]), seconds(min(results.first(side)["seconds"]))] for side in SIDES]
    text = (
        f"{size.batches} batches of {size.rows:,} rows, half of them of one user, the rest over {size.keys:,}. The peak is "
        "the resident memory of the largest Python worker, as the operating system counts it, interpreter and libraries included."
    )
    targets = [
        at_most("per-key process: peak below 700 MB", peaks["process"], LIMIT, megabytes),
        at_most("process_arrow: peak below 700 MB", peaks["process_arrow"], LIMIT, megabytes),
    ]
    plot = Plot(
        "memory",
        "Peak memory of a Python worker",
        "bars",
        list(SIDES),
        {"MB": [peaks[side] / 1e6 for side in SIDES]},
        "",
        "MB",
        marks={"limit": LIMIT / 1e6},
    )
    return Section(text, ("side", "peak of a worker", "fastest batch"), rows, targets, [plot])


MEASUREMENT = Measurement(
    "memory",
    "Memory",
    SIDES,
    {"full": Size(4_000_000, 1_000_000, 3), "quick": Size(400_000, 100_000, 2)},
    run,
    section,
    repeats=1,
    minutes={"full": 1.1, "quick": 0.7},
)
