"""Small batches on a state of a million keys, with even and with skewed keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.generate import BatchSpec, Keys, dataset
from bench.measurement import (
    Measurement,
    Plot,
    Results,
    Section,
    Workplace,
    at_least,
    at_most,
    median,
    percentile,
    seconds,
)

SIDES = ("process", "spark_aggregation")
NAMES = {"process": "per-key Python process", "spark_aggregation": "Spark's aggregation (JVM)"}
KINDS: tuple[Keys, ...] = ("uniform", "zipf")


@dataclass(frozen=True, slots=True)
class Size:
    keys: int
    large: int
    small: int
    warm_up: int
    larges: int
    smalls: int


def _phases(size: Size) -> list[tuple[str, BatchSpec, int]]:
    """Name, batch, and how many batches are measured."""
    return [
        (f"{kind} {name}", BatchSpec(rows, size.keys, kind), count)
        for kind in KINDS
        for name, rows, count in (("large", size.large, size.larges), ("small", size.small, size.smalls))
    ]


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    from bench import sides

    batches = [BatchSpec(size.keys, size.keys, "distinct")]
    for _, spec, count in _phases(size):
        batches += [spec] * (size.warm_up + count)
    data = dataset(batches)
    outcome = sides.SIDES[side](sides.session(), data, workplace.folder)
    sides.check_totals(workplace.folder / "output", data)
    if outcome.timed.rows != [spec.rows for spec in batches]:
        raise AssertionError(f"{side} cut the input into batches of {outcome.timed.rows} rows")
    out: dict[str, Any] = {"load": outcome.timed.seconds[0]}
    at = 1
    for name, _, count in _phases(size):
        out[name] = outcome.timed.seconds[at + size.warm_up : at + size.warm_up + count]
        at += size.warm_up + count
    return out


def section(results: Results, size: Size) -> Section:
    def pooled(side: str, name: str) -> list[float]:
        return [value for trial in results.of(side) for value in trial[name]]

    def middle(side: str, name: str) -> float:
        return results.median(side, lambda trial: median(trial[name]))

    rows = [
        [
            f"{spec.rows:,}",
            spec.kind,
            NAMES[side],
            seconds(middle(side, name)),
            seconds(percentile(pooled(side, name), 0.95)),
            f"{middle('spark_aggregation', name) / middle(side, name):.2f}x",
        ]
        for name, spec, _ in _phases(size)
        for side in SIDES
    ]
    level = middle("spark_aggregation", "uniform large") / middle("process", "uniform large")
    small = pooled("process", "uniform small")
    targets = [
        at_least(f"{size.large:,}-row batches: at least level with Spark's aggregation", level, 1.0),
        at_most(
            f"{size.small:,}-row batches: median below 1 s", middle("process", "uniform small"), 1.0, seconds
        ),
        at_most(
            f"{size.small:,}-row batches: 95th percentile below 1.5 s", percentile(small, 0.95), 1.5, seconds
        ),
    ]
    text = (
        f"The state holds {size.keys:,} keys before the first measured batch. Zipf: the exponent is 1.1, so that a few "
        "users have most of the rows. Percentiles are of all batches of all repeats."
    )
    phases = [name for name, _, _ in _phases(size)]
    plot = Plot(
        "small-batches",
        f"Median batch on a state of {size.keys:,} keys",
        "bars",
        [f"{spec.rows // 1000} k rows, {spec.kind}" for _, spec, _ in _phases(size)],
        {NAMES[side]: [middle(side, name) for name in phases] for side in SIDES},
        "",
        "seconds",
    )
    header = ("rows per batch", "keys", "side", "median", "95th percentile", "speed, of Spark's aggregation")
    return Section(text, header, rows, targets, [plot])


MEASUREMENT = Measurement(
    "small_batches",
    "Small batches",
    SIDES,
    {
        "full": Size(1_000_000, 100_000, 10_000, 3, 8, 25),
        "quick": Size(100_000, 20_000, 2_000, 2, 3, 6),
    },
    run,
    section,
    minutes={"full": 2.8, "quick": 0.9},
)
