"""Another number of tasks for a job with state, and the runs behind it: an edit of the record, beside Spark's offline `repartition`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.generate import BatchSpec, Dataset, commit
from bench.measurement import Measurement, Plot, Results, Section, Workplace, at_most, seconds
from bench.measurement import size as bytes_

SIDES = ("this library", "Spark")
BEFORE, AFTER = 2, 4
STEPS = ("made", "as before", "first behind", "second behind")


@dataclass(frozen=True, slots=True)
class Size:
    keys: int
    rows: int
    """Of each batch but the first, which makes the state."""


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    from bench import sides

    session = sides.session()
    root = workplace.folder / ("root" if side == SIDES[0] else "spark-checkpoint")
    table = workplace.folder / "input"
    few = BatchSpec(size.rows, size.keys)
    took: dict[str, Any] = {}
    checks: list[tuple[int, int, float]] = []
    for version, step in enumerate(STEPS):
        if step == "first behind":
            held = bytes_in(root)
            began = time.perf_counter()
            CHANGES[side](session, root)
            took |= {"change": time.perf_counter() - began, "held": held, "written": bytes_in(root) - held}
            workplace.say(f"{BEFORE} to {AFTER} tasks: {took['change']:.2f} s")
        spec = few if version else BatchSpec(size.keys, size.keys, "distinct")
        checks += commit(table, version, [spec], first=version, seed=1)
        data = Dataset(table, (), tuple(checks))
        run_one = sides.process_arrow if side == SIDES[0] else sides.spark_aggregation
        (took[step],) = run_one(session, data, workplace.folder).timed.seconds
        workplace.say(f"{step}: {took[step]:.2f} s")
    sides.check_totals(workplace.folder / "output", data)
    return took


def rescaled(session: Any, root: Path) -> None:
    from stateflow.jobs.job import Job

    Job(str(root), "process_arrow").rescale(AFTER)


def repartitioned(session: Any, checkpoint: Path) -> None:
    session._streamingCheckpointManager.repartition(str(checkpoint), AFTER)


CHANGES: dict[str, Callable[[Any, Path], None]] = {SIDES[0]: rescaled, SIDES[1]: repartitioned}


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def section(results: Results, size: Size) -> Section:
    def middle(side: str, what: str) -> float:
        return results.median(side, lambda trial: trial[what])

    rows = [
        [
            side,
            seconds(middle(side, "change")),
            bytes_(middle(side, "written")),
            *(seconds(middle(side, step)) for step in STEPS[1:]),
        ]
        for side in SIDES
    ]
    both = {side: middle(side, "change") + middle(side, "first behind") for side in SIDES}
    text = (
        f"A running total of {size.keys:,} keys is handed from {BEFORE} tasks to {AFTER}, by `Job.rescale` and by "
        "`StreamingCheckpointManager.repartition` of Spark, which rewrites the state of its aggregation. Then come runs with a batch of "
        f"{size.rows:,} rows each: the first one gives each task its new part of the state. All is timed in one process that has "
        "run such a batch before. Written: what the root, or the checkpoint, has gained. The totals are compared with the input."
    )
    plot = Plot(
        "repartition",
        f"{size.keys:,} keys from {BEFORE} tasks to {AFTER}",
        "bars",
        ["the change", *STEPS[2:]],
        {side: [middle(side, what) for what in ("change", *STEPS[2:])] for side in SIDES},
        "",
        "seconds",
    )
    targets = [
        at_most(
            "the change and the batch behind it take at most as long as Spark's",
            both[SIDES[0]] / both[SIDES[1]],
            1.0,
        )
    ]
    header = ("side", "change", "written", *STEPS[1:])
    return Section(text, header, rows, targets, [plot])


MEASUREMENT = Measurement(
    "repartition",
    "Rescaling beside Spark's repartition",
    SIDES,
    {"full": Size(5_000_000, 10_000), "quick": Size(200_000, 10_000)},
    run,
    section,
    minutes={"full": 4, "quick": 1},
    named_only=True,
)
