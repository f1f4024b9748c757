"""How long the smallest run takes, from its command to its end, beside a plain Spark script that does about the same."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measurement import Measurement, Plot, Results, Section, Workplace, at_most, seconds

ROOT = Path(__file__).resolve().parents[1]
PIPELINE = f"{ROOT / 'examples' / 'orders.py'}:orders"
SIDES = ("run", "submit")
NAMES = {"run": "`stateflow run`", "submit": "`spark-submit` of a plain script"}
RUNS = ("first", "next")
CALLED = {"first": "the first run of a job", "next": "the next run"}
_BECOME_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Size:
    rows: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What a command took, with every process that it started."""

    wall: float
    cpu: float


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    from demo.table import Orders

    orders = Orders(workplace.folder / "orders")
    costs = {}
    for which in RUNS:
        orders.add(1, size.rows)
        costs[which] = cost(command(side, workplace.folder))
        workplace.say(f"{CALLED[which]}: {costs[which].wall:.1f} s, {costs[which].cpu:.1f} CPU s")
    _check(side, workplace.folder, size)
    return {which: {"wall": of.wall, "cpu": of.cpu} for which, of in costs.items()}


def command(side: str, folder: Path) -> list[str]:
    from stateflow.spark.session.jars import spark_home
    from stateflow.spark.session.settings import RUNTIME, STATIC, submit_conf

    source, target = str(folder / "orders"), str(folder / "totals")
    if side == "run":
        return [
            sys.executable, "-m", "stateflow.cli", "run", PIPELINE, "-p", f"input={source}", "-p", f"output={target}",
            "--master", "local[2]", "--checkpoint-dir", str(folder / "root"),
        ]  # fmt: skip
    # The same memory, the same small number of partitions: with Spark's and Delta's defaults the script would take longer.
    settings = {**submit_conf(), **RUNTIME, **STATIC, "spark.sql.shuffle.partitions": "2"}
    words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    script = str(ROOT / "bench" / "bare_submit.py")
    return [
        str(spark_home() / "bin" / "spark-submit"),
        "--master",
        "local[2]",
        *words,
        script,
        source,
        target,
    ]


def cost(command: Sequence[str]) -> Cost:
    """Runs the command and waits for all of its processes. Raises CalledProcessError when it fails."""
    from stateflow.config.options import cache_folder
    from stateflow.spark.session.java import require_java

    environment = {
        **os.environ,
        "JAVA_HOME": str(require_java(cache_folder())),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    _adopt_orphans()
    before = _spent()
    began = time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    wall = time.perf_counter() - began
    with suppress(ChildProcessError):
        while True:
            os.wait()
    return Cost(wall, _spent() - before)


def _adopt_orphans() -> None:
    """A JVM that outlives its Python by a moment becomes this process's child, so that its CPU time is counted."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_BECOME_SUBREAPER, 1, 0, 0, 0)


def _spent() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _check(side: str, folder: Path, size: Size) -> None:
    from demo.table import compared, read

    if side == "run":
        verdict = compared(folder / "orders", folder / "totals")
        right = verdict.right and verdict.orders == 2 * size.rows
    else:
        # The script reads the whole table each time.
        right = sum(row["orders"] for row in read(folder / "totals")) == 3 * size.rows
    if not right:
        raise AssertionError(f"{side}: the totals are not those of the orders")


def section(results: Results, size: Size) -> Section:
    middle = {
        (side, which, unit): results.median(side, lambda trial, which=which, unit=unit: trial[which][unit])  # type: ignore[misc]
        for side in SIDES
        for which in RUNS
        for unit in ("wall", "cpu")
    }
    rows, targets = [], []
    for which in RUNS:
        for side in SIDES:
            wall, cpu = middle[side, which, "wall"], middle[side, which, "cpu"]
            of_wall = wall / middle["submit", which, "wall"]
            of_cpu = cpu / middle["submit", which, "cpu"]
            rows.append(
                [CALLED[which], NAMES[side], seconds(wall), f"{of_wall:.2f}x", seconds(cpu), f"{of_cpu:.2f}x"]
            )
            if side == "run":
                targets.append(
                    at_most(f"{CALLED[which]} takes at most 1.3 times a plain spark-submit", of_wall, 1.3)
                )
    text = (
        f"The smallest run that does something: {size.rows:,} new rows of one Delta table, a running total per key, one Delta "
        "table as the sink, one batch, on local[2]. From the command to its end, Python, Java and Spark included; CPU seconds "
        "are those of all its processes. The next run goes on from the first one's checkpoint, as each run of a DAG does. The "
        "script beside it has no state: it reads the whole table as a batch, sums it up per key and appends to a Delta table. "
        "It has the same settings, and no archive of Spark's classes."
    )
    plot = Plot(
        "start", "The smallest run, from its command to its end", "bars", [CALLED[which] for which in RUNS],
        {NAMES[side].replace("`", ""): [middle[side, which, "wall"] for which in RUNS] for side in SIDES}, "", "seconds",
    )  # fmt: skip
    header = ("", "command", "time", "of spark-submit's", "CPU", "of spark-submit's")
    return Section(text, header, rows, targets, [plot])


MEASUREMENT = Measurement(
    "start",
    "How soon a run ends",
    SIDES,
    {"full": Size(2_000), "quick": Size(200)},
    run,
    section,
    minutes={"full": 0.9, "quick": 0.9},
)
