"""How soon a run on a warm host ends, beside a run with a Spark of its own and a plain Spark script; and forty runs at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench import start
from bench.measurement import Measurement, Plot, Results, Section, Workplace, at_most, seconds

SIDES = ("host", "run", "submit")
NAMES = {
    "host": "`stateflow run --host`",
    "run": "`stateflow run`",
    "submit": "`spark-submit` of a plain script",
}
RUNS = ("first", "next", "third", "large")
CALLED = {
    "first": "the first run of a job",
    "next": "the next run",
    "third": "the one after",
    "large": "one of 10,000 rows",
}
SERVED = 10
"""Runs that a host has served before those count that say what a run costs on one that has been there for a while."""
LARGE = 10_000
PLACES = 4
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Size:
    rows: int
    pipelines: int
    """Due at once on the host."""
    alone: int
    """Due at once with a Spark each, four at a time."""


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    if side != "host":
        return _measured(side, size, workplace, [])
    with host() as name:
        return _measured(side, size, workplace, ["--host", name, "--host-only"])


def _measured(side: str, size: Size, workplace: Workplace, words: list[str]) -> dict[str, Any]:
    from demo.table import Orders, compared

    orders = Orders(workplace.folder / "orders")
    found: dict[str, Any] = {}

    def of_one(rows: int, called: str) -> dict[str, float]:
        orders.add(1, rows)
        # On a host the command is that of any run.
        command = [*start.command("run" if words else side, workplace.folder), *words]
        if words:
            command = without_master(command)
        before = spent_by_host(words[1]) if words else 0.0
        cost = start.cost(command)
        spent = cost.cpu + (spent_by_host(words[1]) if words else 0.0) - before
        workplace.say(f"{called}: {cost.wall:.1f} s, {spent:.1f} CPU s")
        return {"wall": cost.wall, "cpu": spent}

    for which in RUNS:
        found[which] = of_one(LARGE if which == "large" else size.rows, CALLED[which])
    if side == "submit":
        return found
    found["batch"] = _newest_batch(workplace.folder)
    if words:
        later = [
            of_one(size.rows, f"run {number + 1} of the host") for number in range(len(RUNS), SERVED + 3)
        ]
        found["later"] = {unit: median(each[unit] for each in later[-3:]) for unit in ("wall", "cpu")}
    verdict = compared(workplace.folder / "orders", workplace.folder / "totals")
    if not verdict.right:
        raise AssertionError(f"{side}: the totals are not those of the orders")
    count = size.pipelines if words else size.alone
    found["at once"] = {"runs": count, "wall": _at_once(count, size, workplace.folder, words)}
    workplace.say(f"{count} at once: {found['at once']['wall']:.1f} s")
    if words:
        found["memory"] = shown(words[1])["memory"]
    return found


def _at_once(count: int, size: Size, folder: Path, words: list[str]) -> float:
    """Seconds until so many pipelines, all due at once, have ended; with a Spark each at most four at a time."""
    from demo.table import Orders, compared

    folders = [folder / f"pipeline{n}" for n in range(count)]
    for each in folders:
        Orders(each / "orders").add(1, size.rows)

    def carry_out(each: Path) -> None:
        command = [*start.command("run", each), "--job", each.name, *words]
        waiting = ["--host-wait", "10 minutes"] if words else []
        subprocess.run(
            [*(without_master(command) if words else command), *waiting],
            cwd=start.ROOT, check=True, capture_output=True,
        )  # fmt: skip

    began = time.perf_counter()
    with ThreadPoolExecutor(count if words else PLACES) as pool:
        list(pool.map(carry_out, folders))
    wall = time.perf_counter() - began
    if not all(compared(each / "orders", each / "totals").right for each in folders):
        raise AssertionError("the totals are not those of the orders")
    return wall


def without_master(command: list[str]) -> list[str]:
    at = command.index("--master")
    return [*command[:at], *command[at + 2 :]]


def _newest_batch(folder: Path) -> float:
    """Seconds of the newest batch, which had 10,000 rows."""
    shown = subprocess.run(
        [sys.executable, "-m", "stateflow", "checkpoints", "orders", "--checkpoint-dir", str(folder / "root"), "-o", "json"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return float(json.loads(shown.stdout)["summary"]["lastCheckpointDuration"]) / 1000


@contextmanager
def host(words: Sequence[str] = ()) -> Iterator[str]:
    """A host on two cores, started with these options as well."""
    name = f"bench-{os.getpid()}"
    stateflow = [sys.executable, "-m", "stateflow", "host"]
    subprocess.run(
        [*stateflow, "start", name, "--master", "local[2]", "--runs", str(PLACES), *words],
        cwd=start.ROOT, check=True, capture_output=True,
    )  # fmt: skip
    try:
        yield name
    finally:
        subprocess.run([*stateflow, "stop", name, "--now"], check=False, capture_output=True)


def shown(name: str) -> dict[str, Any]:
    shown = subprocess.run(
        [sys.executable, "-m", "stateflow", "host", "show", name, "-o", "json"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(shown.stdout)
    return answer


def spent_by_host(name: str) -> float:
    """CPU seconds of the host's processes and of all that they have started and that has ended."""
    # What a run has left, ends a moment after the run.
    while shown(name)["runs"]:
        time.sleep(0.05)
    total = 0
    for pid in shown(name)["processes"].values():
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            total += sum(int(field) for field in fields[11:15])
    return total / TICKS


def section(results: Results, size: Size) -> Section:
    middle = {
        (side, which, unit): results.median(side, lambda trial, which=which, unit=unit: trial[which][unit])  # type: ignore[misc]
        for side in SIDES
        for which in RUNS
        for unit in ("wall", "cpu")
    }
    rows = [
        [
            CALLED[which],
            NAMES[side],
            seconds(middle[side, which, "wall"]),
            seconds(middle[side, which, "cpu"]),
        ]
        for which in RUNS
        for side in SIDES
    ]
    # What an earlier form of this measurement has left, lacks them.
    settled = all("later" in trial for trial in results.by_side["host"])
    later = {
        unit: results.median("host", lambda trial, unit=unit: trial["later"][unit])  # type: ignore[misc]
        for unit in ("wall", "cpu") * settled
    }
    if settled:
        rows.append([f"one after {SERVED} others", NAMES["host"], *map(seconds, later.values())])
    at_once = {
        side: results.median(side, lambda trial: trial["at once"]["wall"] / trial["at once"]["runs"])
        for side in SIDES[:2]
    }
    for side, count in (("host", size.pipelines), ("run", size.alone)):
        rows.append([f"{count} jobs due at once, each", NAMES[side], seconds(at_once[side]), ""])
    batches = {side: results.median(side, lambda trial: trial["batch"]) for side in SIDES[:2]}
    rows += [[f"a batch of {LARGE:,} rows", NAMES[side], seconds(of), ""] for side, of in batches.items()]
    memory = results.median("host", lambda trial: sum(trial["memory"].values())) / 2**20
    jvm = results.median("host", lambda trial: trial["memory"]["jvm"]) / 2**20
    best = min(("next", "third"), key=lambda which: middle["host", which, "wall"])
    forty = 40 * at_once["host"]
    targets = [
        at_most(
            "the smallest next run on a host that has just started, command to end, in 1.5 s",
            middle["host", best, "wall"],
            1.5,
            seconds,
        ),
        at_most("its CPU seconds, the host's included, 2", middle["host", best, "cpu"], 2.0, seconds),
        at_most(
            "the first run of a job on a warm host, in 2.5 s", middle["host", "first", "wall"], 2.5, seconds
        ),
        at_most("forty pipelines due at once on two cores, in 60 s", forty, 60, seconds),
        at_most("the JVM after them, 1,536 MiB", jvm, 1536, lambda mib: f"{mib:,.0f} MiB"),
        at_most(
            f"a batch of {LARGE:,} rows beside one of a driver of its own",
            batches["host"] / batches["run"],
            1.0,
        ),
    ]
    if settled:
        targets += [
            at_most(f"the same after {SERVED} other runs, in 1.5 s", later["wall"], 1.5, seconds),
            at_most("its CPU seconds, the host's included, 2", later["cpu"], 2.0, seconds),
        ]
    text = (
        f"The same smallest run as above, of {size.rows:,} new rows, on a warm host with {PLACES} places on local[2] that has just "
        "started. From the command to its end; CPU seconds are those of the command and, on a host, of all its processes "
        f"meanwhile. Then {size.pipelines} jobs that are all due at once on the host, and {size.alone} with a Spark each, four at a "
        f"time, per job. The host has {memory:,.0f} MiB in memory after them, {jvm:,.0f} of them the JVM."
    )
    plot = Plot(
        "warm", "A run of a few rows, from its command to its end", "bars", [CALLED[which] for which in RUNS],
        {NAMES[side].replace("`", ""): [middle[side, which, "wall"] for which in RUNS] for side in SIDES}, "", "seconds",
    )  # fmt: skip
    return Section(text, ("", "command", "time", "CPU"), rows, targets, [plot])


MEASUREMENT = Measurement(
    "warm",
    "How soon a run on a warm host ends",
    SIDES,
    {"full": Size(2_000, 40, 8), "quick": Size(200, 4, 2)},
    run,
    section,
    minutes={"full": 2.5, "quick": 1.2},
    named_only=True,
)
