"""What savepoints cost a run beside them: the pipeline runs on one core, and a process makes savepoints on another."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from bench.generate import BatchSpec, dataset
from bench.made_state import now
from bench.measurement import Measurement, Plot, Results, Section, Workplace, at_most, median, seconds

SIDES = ("native", "canonical")
PIPELINE = "process"
ALONE, BESIDE, APART = "alone", "beside", "apart"
"""Kinds of batches: measured without savepoints, measured beside them, or not measured, because it waits for their maker."""


@dataclass(frozen=True, slots=True)
class Size:
    keys: int
    rows: int
    """Rows of each batch."""
    warm_up: int
    block: int
    """How many batches in a row are measured beside savepoints, and how many without."""
    blocks: int
    """Measured batches of each kind."""


def plan(size: Size) -> list[str]:
    """The kind of every batch. Blocks take turns as in ABBA, so that changes in the course of a run fall on both kinds."""
    pairs = [(ALONE, BESIDE), (BESIDE, ALONE)] * size.blocks
    blocks = [[kind] * size.block + [APART] for pair in pairs[: size.blocks] for kind in pair]
    return [APART] * (1 + size.warm_up) + [kind for block in blocks for kind in block]


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise RuntimeError("the pipeline and who makes savepoints need a core each: run this on two cores")
    # Before there is a JVM or a thread of Arrow's: both inherit it.
    os.sched_setaffinity(0, {cores[0]})
    from bench import operators, sides

    kinds = plan(size)
    batches = [
        BatchSpec(size.keys, size.keys, "distinct"),
        *[BatchSpec(size.rows, size.keys)] * (len(kinds) - 1),
    ]
    data = dataset(batches)
    spark = sides.session("local[1]")
    workplace.say(f"{len(kinds)} batches")
    with Savepointer(workplace.folder, side, cores[1]) as savepointer:

        def each(report: object) -> None:
            savepointer.after(kinds, size.warm_up)

        parameters = {"input": str(data.path)}
        outcome = sides.stateflow_run(spark, operators.per_key, parameters, workplace.folder, each=each)
    if len(outcome.timed.seconds) != len(kinds):
        raise AssertionError(f"{len(outcome.timed.seconds)} batches instead of {len(kinds)}")
    spent: dict[str, list[float]] = {ALONE: [], BESIDE: [], APART: []}
    for kind, second in zip(kinds, outcome.timed.seconds, strict=True):
        spent[kind].append(second)
    return {ALONE: spent[ALONE], BESIDE: spent[BESIDE], "savepoints": savepointer.seconds}


class Savepointer:
    """The other process: on request it makes one savepoint after the other, and disposes of each."""

    def __init__(self, folder: Path, kind: str, core: int) -> None:
        self._command = [sys.executable, "-m", "bench.beside", str(folder), kind, str(core)]
        self._process: subprocess.Popen[str] | None = None
        self._working = False
        self._batches = 0
        self.seconds: list[float] = []
        """Seconds of each savepoint that was made beside measured batches."""

    def __enter__(self) -> Savepointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._to.close()
            self._process.wait(timeout=60)

    def after(self, kinds: Sequence[str], warm_up: int) -> None:
        """A batch has ended. Only batches that are not measured wait here."""
        batch = self._batches
        self._batches += 1
        if batch == 0:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        elif batch == warm_up:
            self._answer()
        if batch >= warm_up and kinds[batch] == APART:
            self._turn(batch + 1 < len(kinds) and kinds[batch + 1] == BESIDE)

    def _turn(self, work: bool) -> None:
        if work == self._working:
            return
        self._working = work
        self._to.write("w" if work else "r")
        self._to.flush()
        self.seconds += self._answer()

    @property
    def _to(self) -> IO[str]:
        assert self._process is not None
        assert self._process.stdin is not None
        return self._process.stdin

    def _answer(self) -> list[float]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("who makes savepoints has ended: its error is in this trial's output")
        outcome: list[float] = json.loads(line)
        return outcome


def main(folder: str, kind: str, core: str) -> None:
    """Makes a savepoint to warm up, then answers each `w` when it begins, and each `r` with the seconds of what it made."""
    os.sched_setaffinity(0, {int(core)})
    # Answers have the pipe to themselves, whatever Spark may print.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from bench import sides

    if kind == "canonical":
        sides.session("local[1]")
    make_one = _maker(Path(folder), kind)
    make_one()
    outcome: list[float] = []
    while True:
        print(json.dumps(outcome), file=answers, flush=True)
        outcome = []
        if os.read(0, 1) != b"w":
            return
        print("[]", file=answers, flush=True)
        while not select.select([0], [], [], 0)[0]:
            outcome.append(make_one())
        if os.read(0, 1) != b"r":
            return


def _maker(folder: Path, kind: str) -> Callable[[], float]:
    from stateflow.config.options import load
    from stateflow.format.records import Owner
    from stateflow.jobs.job import Job
    from stateflow.savepoints.dispose import dispose_savepoint
    from stateflow.storage.roots import open_store

    job = Job(str(folder / "root"), PIPELINE)
    # The run's cache: one host has one.
    code = {"checkpoint_dir": job.root, "cache_dir": str(folder / "cache")}
    options = load(code=code, env={}, folder=folder)

    def make_one() -> float:
        began = time.perf_counter()
        made = job.savepoint(kind, options=options)  # type: ignore[arg-type]
        took = time.perf_counter() - began
        dispose_savepoint(open_store(made.url), owner=Owner(run="bench"), clock=now)
        return took

    return make_one


def section(results: Results, size: Size) -> Section:
    def middle(side: str, kind: str) -> float:
        return results.median(side, lambda trial: median(trial[kind]))

    def longer(value: float) -> str:
        return f"{value:+.1%}"

    rows, targets = [], []
    for side in SIDES:
        more = middle(side, BESIDE) / middle(side, ALONE) - 1
        durations = results.first(side)["savepoints"]
        rows.append(
            [
                side,
                seconds(middle(side, ALONE)),
                seconds(middle(side, BESIDE)),
                longer(more),
                f"{len(durations)} of {seconds(median(durations))}" if durations else "none",
            ]
        )
        targets.append(
            at_most(f"{side} savepoints beside a run: batches at most 10 % longer", more, 0.10, longer)
        )
    text = (
        f"A run on `local[1]`, bound to one core with its JVM and worker: {size.keys:,} keys, batches of {size.rows:,} rows. A "
        "process bound to another core takes savepoints of its newest checkpoint, each begun when the one before is disposed of. "
        f"Within one run, {size.block} batches without and {size.block} with them take turns, {size.blocks} times of each; the batch "
        "after each of these blocks is left out. So processors are not shared, but memory, the disk and its fsyncs are. A canonical "
        "savepoint has a Spark session of its own, which is up."
    )
    plot = Plot(
        "beside",
        "Batches beside savepoints",
        "bars",
        list(SIDES),
        {
            "without": [middle(side, ALONE) for side in SIDES],
            "with savepoints beside": [middle(side, BESIDE) for side in SIDES],
        },
        "savepoints",
        "seconds, median batch",
    )
    header = ("savepoints", "median batch without", "with", "longer", "savepoints made")
    return Section(text, header, rows, targets, [plot])


MEASUREMENT = Measurement(
    "beside",
    "Savepoints beside a run",
    SIDES,
    {"full": Size(500_000, 20_000, 15, 6, 4), "quick": Size(20_000, 2_000, 3, 3, 1)},
    run,
    section,
    repeats=1,
    minutes={"full": 2.0, "quick": 0.8},
)


if __name__ == "__main__":
    main(*sys.argv[1:])
