"""What a second snapshot in flight gains: jobs with one and with two of them take the same batches, in pairs of one session."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.generate import BatchSpec, dataset
from bench.measurement import Measurement, Results, Section, Workplace, at_most, median, seconds

DELAY = 0.02
"""Seconds until a far store answers."""
GOAL = 0.75
NAMES = {
    "append": "append, 10,000 rows",
    "append_far": "append, 10,000 rows, a store 20 ms away",
    "upsert": "upsert, 10,000 rows",
    "upsert_large": "upsert, a million rows",
}
GOALS = ("append_far", "upsert", "upsert_large")


@dataclass(frozen=True, slots=True)
class Size:
    rows: int
    large: int
    keys: int
    batches: Mapping[str, int]
    warm_up: int
    pairs: int


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    from bench import everyday, sides

    rows = size.large if side == "upsert_large" else size.rows
    pipeline = everyday.upserts if side.startswith("upsert") else everyday.balances
    first = BatchSpec(size.keys, size.keys, "distinct")
    data = dataset(
        [first] + [BatchSpec(rows, size.keys)] * (size.warm_up + size.batches[side]), with_time=True
    )
    session = sides.session()

    def one(flights: int, folder: Path) -> dict[str, float]:
        folder.mkdir()
        options: dict[str, Any] = {"max_concurrent_checkpoints": flights}
        with ExitStack() as stack:
            if side.endswith("far"):
                from bench.slow_objects import slow_objects

                (folder / "root").mkdir()
                url, storage = stack.enter_context(slow_objects(folder / "root", folder, DELAY))
                options |= {"checkpoint_dir": url, "storage_options": storage}
            parameters = {"input": str(data.path), "output": str(folder / "output")}
            return sides.per_batch(
                session, pipeline, parameters, folder,
                warm_up=size.warm_up, batches=size.batches[side], options=options,
            )  # fmt: skip

    pairs = []
    for number in range(size.pairs + 1):
        order = (1, 2) if number % 2 else (2, 1)
        took = {str(flights): one(flights, workplace.folder / f"{number}-{flights}") for flights in order}
        workplace.say(f"one {took['1']['wall']:.3f} s a batch, two {took['2']['wall']:.3f} s")
        pairs.append(took)
    return {"pairs": pairs[1:]}


def section(results: Results, size: Size) -> Section:
    rows, targets = [], []
    for side, name in NAMES.items():
        pairs = [pair for trial in results.of(side) for pair in trial["pairs"]]
        ratios = {what: [pair["2"][what] / pair["1"][what] for pair in pairs] for what in ("wall", "cpu")}
        took = {
            flights: [median([pair[flights][what] for pair in pairs]) for what in ("wall", "cpu")]
            for flights in "12"
        }
        rows.append(
            [
                name,
                *(f"{seconds(wall)}, {cpu / wall:.1f}" for wall, cpu in (took["1"], took["2"])),
                f"{median(ratios['wall']):.2f}x ({min(ratios['wall']):.2f} to {max(ratios['wall']):.2f})",
                f"{median(ratios['cpu']):.2f}x",
            ]
        )
        if side in GOALS:
            targets.append(at_most(f"{name}: a quarter less time", median(ratios["wall"]), GOAL))
    text = (
        "From the end of a batch to the end of the next, on a backlog. The next batch is evaluated while the sink commits, so the gain is what "
        "a commit leaves idle: on two busy cores a commit that computes, such as that of an upsert, has nothing to give."
    )
    header = (
        "batches",
        "one in flight: time, cores",
        "two in flight: time, cores",
        "time, two to one",
        "CPU, two to one",
    )
    return Section(text, header, rows, targets)


BATCHES = {"append": 30, "append_far": 30, "upsert": 20, "upsert_large": 5}
MEASUREMENT = Measurement(
    "flights",
    "Two snapshots in flight",
    tuple(NAMES),
    {
        "full": Size(10_000, 1_000_000, 400_000, BATCHES, 5, 4),
        "quick": Size(1_000, 10_000, 4_000, dict.fromkeys(NAMES, 3), 1, 1),
    },
    run,
    section,
    repeats=1,
    minutes={"full": 12, "quick": 3},
    named_only=True,
)
