"""What a batch costs on a state much larger than what it touches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.generate import BatchSpec, dataset
from bench.measurement import Measurement, Plot, Results, Section, Workplace, at_most, median, seconds
from bench.measurement import size as bytes_

SIDES = ("small", "large")


@dataclass(frozen=True, slots=True)
class Size:
    small: int
    large: int
    touched: int
    load: int
    """Rows of a batch while the state is filled."""
    warm_up: int
    measured: int

    def keys(self, side: str) -> int:
        return self.small if side == "small" else self.large


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    from bench import sides

    keys = size.keys(side)
    part = min(size.load, keys)
    fill = [BatchSpec(part, keys, "distinct", n) for n in range(keys // part)]
    batches = [*fill, *[BatchSpec(size.touched, keys, "distinct")] * (size.warm_up + size.measured)]
    data = dataset(batches)
    outcome = sides.process(
        sides.session(),
        data,
        workplace.folder,
        each=lambda report: workplace.say(f"batch of {report.rows:,} rows: {report.duration:.2f} s"),
    )
    if outcome.timed.rows != [spec.rows for spec in batches]:
        raise AssertionError(f"the input was cut into batches of {outcome.timed.rows} rows")
    skipped = len(fill) + size.warm_up
    reports = outcome.reports[skipped:]
    shards = [s for subtask in reports[-1].record.operators["totals"].shards for s in subtask]
    return {
        "fill": outcome.timed.seconds[: len(fill)],
        "steady": outcome.timed.seconds[skipped:],
        "state_bytes": sum(shard.bytes for shard in shards),
        "entries": sum(shard.entries for shard in shards),
        "compacted_bytes": [report.statistics["metrics"]["compacted_bytes"] for report in reports],
        "uploaded_bytes": [report.statistics["metrics"]["uploaded_bytes"] for report in reports],
    }


def section(results: Results, size: Size) -> Section:
    middle = {side: results.median(side, lambda trial: median(trial["steady"])) for side in SIDES}
    rows = []
    for side in SIDES:
        first = results.first(side)
        rows.append(
            [
                f"{size.keys(side):,}",
                bytes_(first["state_bytes"]),
                seconds(middle[side]),
                seconds(max(max(trial["steady"]) for trial in results.of(side))),
                bytes_(sum(first["compacted_bytes"])),
                bytes_(sum(first["uploaded_bytes"])),
            ]
        )
    text = (
        f"Batches that touch {size.touched:,} keys, one row each, of a state of {size.small:,} keys and of one of "
        f"{size.large:,}; {size.measured} batches in a row, with whatever compaction they cause."
    )
    plot = Plot(
        "big-state",
        f"Batches that touch {size.touched:,} keys",
        "lines",
        list(range(1, size.measured + 1)),
        {f"{size.keys(side):,} keys": results.first(side)["steady"] for side in SIDES},
        "batch after warm-up",
        "seconds",
    )
    targets = [
        at_most(
            f"a batch on {size.large:,} keys takes at most 1.5 times one on {size.small:,}",
            middle["large"] / middle["small"],
            1.5,
        )
    ]
    header = ("keys", "state", "median batch", "slowest batch", "compacted in all", "uploaded in all")
    return Section(text, header, rows, targets, [plot])


MEASUREMENT = Measurement(
    "big_state",
    "A large state",
    SIDES,
    {
        "full": Size(1_000_000, 20_000_000, 630_000, 2_000_000, 3, 20),
        "quick": Size(50_000, 1_000_000, 31_500, 500_000, 2, 8),
    },
    run,
    section,
    repeats=2,
    minutes={"full": 3.5, "quick": 0.9},
)
