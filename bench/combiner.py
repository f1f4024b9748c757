"""The combiner on a stream whose keys change: how near its choice per batch comes to the better one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.generate import BatchSpec, dataset
from bench.measurement import Measurement, Plot, Results, Section, Workplace, at_most, median, seconds
from bench.ready import check_totals, totals

SIDES = ("chosen", "always", "never")
NAMES = {"chosen": "the combiner as it is", "always": "every batch combined", "never": "no batch combined"}
FEW = 1_000


@dataclass(frozen=True, slots=True)
class Size:
    rows: int
    """Of a batch."""
    phase: int
    """Batches after which the keys change between few and as many as rows."""
    phases: int

    @property
    def batches(self) -> list[BatchSpec]:
        few, many = BatchSpec(self.rows, FEW), BatchSpec(self.rows, self.rows)
        return [(few, many)[number % 2] for number in range(self.phases) for _ in range(self.phase)]


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    from bench import sides
    from stateflow.spark.batches import running_operator

    if side != "chosen":
        running_operator.combines = lambda last: side == "always"
    data, work = dataset(size.batches, with_time=True), workplace.folder
    parameters = {"input": str(data.path), "output": str(work / "output"), "count": 0}
    outcome = sides.stateflow_run(sides.session(), totals, parameters, work)
    check_totals(work / "output", data)
    choices = [report.statistics["combiner"]["totals"]["combined"] for report in outcome.reports]
    return {"seconds": outcome.timed.seconds, "cpu": outcome.timed.cpu, "combined": choices}


def steady(values: Sequence[float], size: Size) -> list[list[float]]:
    """The values of each phase, without the first two phases, in which everything warms up."""
    phases = [list(values[n : n + size.phase]) for n in range(0, len(values), size.phase)]
    return phases[2:]


def section(results: Results, size: Size) -> Section:
    def times(trial: Any) -> list[list[float]]:
        return steady(trial["seconds"], size)

    def of_phase(side: str, number: int) -> float:
        return results.median(side, lambda trial: sum(times(trial)[number]))

    count = size.phases - 2
    better = [min(of_phase("always", n), of_phase("never", n)) for n in range(count)]
    total = {side: sum(of_phase(side, n) for n in range(count)) for side in SIDES}
    rows = [
        [
            NAMES[side],
            *(seconds(results.median(side, lambda trial, n=n: median(times(trial)[n]))) for n in range(2)),
            seconds(total[side]),
            f"{total[side] / sum(better):.2f}x",
        ]
        for side in SIDES
    ]
    text = (
        f"Running totals over batches of {size.rows:,} rows; every {size.phase} batches the keys change between {FEW:,} and as many as "
        "rows. The better choice is, phase by phase, the faster one of combining every batch and combining none."
    )
    targets = [at_most("The combiner's choice beside the better one", total["chosen"] / sum(better), 1.1)]
    plot = Plot(
        "combiner",
        "Seconds per batch while the keys change",
        "lines",
        range(size.phases * size.phase),
        {NAMES[side]: results.first(side)["seconds"] for side in SIDES},
        "batch",
        "seconds",
    )
    header = ("", "a batch of few keys", "a batch of many keys", "all batches", "of the better choice")
    return Section(text, header, rows, targets, [plot])


MEASUREMENT = Measurement(
    "combiner",
    "The combiner on changing keys",
    SIDES,
    {"full": Size(500_000, 20, 4), "quick": Size(100_000, 20, 4)},
    run,
    section,
    repeats=1,
    minutes={"full": 4.0, "quick": 2.0},
)
