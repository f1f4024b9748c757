"""How far a row walks through the code: the functions and files of stateflow/ that run for one row of a warm batch.

`python -m scripts.walk_of_a_row` prints them: on the driver from the batch to its record, and in the task of its key.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import stateflow as sf

PACKAGE = str(Path(sf.__file__).parent)
WARM = 2
"""The batch that is looked at, after one that opens what stays open."""


class Steps:
    """Notes the functions of the library that begin, of this thread."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}

    def __enter__(self) -> Steps:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<"):
            step = f"{code.co_filename[len(PACKAGE) + 1 :]}:{code.co_qualname}"
            self.seen[step] = self.seen.get(step, 0) + 1


@dataclass
class Order:
    user: int
    amount: float


class Sum(sf.KeyedProcess[int, Order, Any]):
    total = sf.ValueState(float, default=0.0)

    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Iterator[Any]:
        for row in rows:
            self.total.value += row.amount
        yield key, self.total.value


def walk(folder: Path) -> dict[str, list[str]]:
    """The steps of a row, on the driver and in its task."""
    from stateflow.config.options import load
    from stateflow.spark import loop
    from stateflow.spark.batches import running_operator
    from stateflow.spark.runner import RunRequest, run

    noted = folder / "task.json"
    driver = Steps()
    run_batch, planned = loop.BatchLoop._run_batch, running_operator.map_in_arrow

    def watched(self: Any, *given: Any, **options: Any) -> None:
        if self.batches != WARM - 1:
            run_batch(self, *given, **options)
            return
        with driver:
            run_batch(self, *given, **options)

    def in_task(frame: Any, function: Callable[..., Any], schema: str) -> Any:
        return planned(frame, _noting(function, str(noted)), schema)

    loop.BatchLoop._run_batch = watched  # type: ignore[method-assign]
    running_operator.map_in_arrow = in_task
    (folder / "in").mkdir()
    for n in range(WARM):
        (folder / "in" / f"{n}.json").write_text('{"user": 1, "amount": 2.5}\n')
        os.utime(folder / "in" / f"{n}.json", (1_750_000_000 + n,) * 2)

    @sf.pipeline("walk")
    def pipeline(flow: sf.Flow) -> None:
        orders = flow.source("orders", sf.files(str(folder / "in"), "json", per_batch=1), Order)
        totals = orders.key_by("user").process("totals", Sum, output="user long, total double")
        totals.append("out", sf.delta(str(folder / "out")))

    run(RunRequest(pipeline, load(code={"checkpoint_dir": str(folder / "root")}, env={}, folder=folder), {}))
    return {"driver": sorted(driver.seen), "task": sorted(json.loads(noted.read_text()))}


def _noting(function: Callable[..., Any], path: str) -> Callable[..., Any]:
    """The task's function; the functions that it calls go to a file."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        with Steps() as steps:
            made = list(function(batches))
        Path(path).write_text(json.dumps(steps.seen))
        yield from made

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", action="store_true", help="name every function")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stateflow-walk-") as home:
        found = walk(Path(home))
    everything = {step for steps in found.values() for step in steps}
    for part, steps in found.items():
        print(f"{part}: {len(steps)} functions in {len({step.partition(':')[0] for step in steps})} files")
        if options.steps:
            print("\n".join(f"  {step}" for step in steps))
    print(
        f"in all: {len(everything)} functions in {len({step.partition(':')[0] for step in everything})} files"
    )


if __name__ == "__main__":
    main()
