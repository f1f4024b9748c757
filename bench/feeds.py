"""What the feed of a state costs: jobs with one and without take the same batches, in pairs of one session."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.generate import BatchSpec, dataset
from bench.measurement import Measurement, Results, Section, Workplace, at_most, median, seconds

GOAL = 1.10
SIDES = ("feed",)
WHAT = {"middle": "the median batch", "wall": "the mean batch", "cpu": "CPU seconds of a batch"}


@dataclass(frozen=True, slots=True)
class Size:
    rows: int
    keys: int
    batches: int
    warm_up: int
    pairs: int


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    from bench import everyday, sides

    first = BatchSpec(size.keys, size.keys, "distinct")
    data = dataset(
        [first] + [BatchSpec(size.rows, size.keys)] * (size.warm_up + size.batches), with_time=True
    )
    session = sides.session()
    pipelines = {"without": everyday.balances, "with": everyday.two_tables}

    def one(name: str, folder: Path) -> dict[str, float]:
        folder.mkdir()
        parameters = {"input": str(data.path), "output": str(folder / "output")}
        return sides.per_batch(
            session, pipelines[name], parameters, folder, warm_up=size.warm_up, batches=size.batches
        )

    pairs = []
    for number in range(size.pairs + 1):
        order = ("without", "with") if number % 2 else ("with", "without")
        took = {name: one(name, workplace.folder / f"{number}-{name}") for name in order}
        ratios = ", ".join(
            f"{name} {took['with'][what] / took['without'][what]:.2f}x" for what, name in WHAT.items()
        )
        workplace.say(ratios)
        pairs.append(took)
    return {"pairs": pairs[1:]}


def section(results: Results, size: Size) -> Section:
    pairs = [pair for trial in results.of("feed") for pair in trial["pairs"]]
    rows, targets = [], []
    for what, name in WHAT.items():
        ratios = [pair["with"][what] / pair["without"][what] for pair in pairs]
        without, with_ = (median([pair[each][what] for pair in pairs]) for each in ("without", "with"))
        spread = f"{median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"
        rows.append([name, seconds(without), seconds(with_), spread])
        if what == "middle":
            targets.append(
                at_most("a batch with the feed of its state: a tenth longer", median(ratios), GOAL)
            )
    text = (
        f"Batches of {size.rows:,} rows of a keyed operator that are appended to a Delta table, and the same with the changes of a state "
        "appended to another one, from the end of a batch to the end of the next, on a backlog."
    )
    return Section(text, ("", "without", "with", "with it to without"), rows, targets)


MEASUREMENT = Measurement(
    "feeds",
    "The feed of a state",
    SIDES,
    {"full": Size(10_000, 400_000, 30, 5, 6), "quick": Size(1_000, 4_000, 3, 1, 1)},
    run,
    section,
    repeats=1,
    minutes={"full": 4, "quick": 1},
    named_only=True,
)
