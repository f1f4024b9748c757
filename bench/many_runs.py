"""Thousands of runs of forty jobs on one warm host: its memory, open files, threads and temporary files, and how long a run takes."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import start
from bench.measurement import Measurement, Plot, Results, Section, Workplace, at_most, seconds, thirds
from bench.measurement import size as bytes_
from bench.warm import host, shown, spent_by_host, without_master

SIDES = ("host",)
WARM_UP = 0.1
"""Figures count after this share of the runs."""
FLAT = 1.1
COUNTED = ("open files", "threads", "temporary files")


@dataclass(frozen=True, slots=True)
class Size:
    runs: int
    pipelines: int
    rows: int
    sampled_every: int


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    from demo.table import Orders, compared

    folders = [workplace.folder / f"pipeline{n}" for n in range(size.pipelines)]
    orders = [Orders(each / "orders") for each in folders]
    # Of the host, its JVM and its runs alone.
    os.environ["TMPDIR"] = os.environ["STATEFLOW_SCRATCH_DIR"] = str(workplace.folder / "temporary")
    (workplace.folder / "temporary").mkdir()
    samples: list[dict[str, Any]] = []
    walls: list[float] = []
    # It must not replace its application: that would hide what the application keeps.
    with host(["--recycle-runs", "1000000", "--recycle-growth", "1000"]) as name:
        before = spent_by_host(name)
        for number in range(size.runs):
            at = number % size.pipelines
            orders[at].add(1, size.rows)
            command = without_master(start.command("run", folders[at]))
            began = time.perf_counter()
            subprocess.run(
                [*command, "--job", folders[at].name, "--host", name, "--host-only"],
                cwd=start.ROOT, check=True, capture_output=True,
            )  # fmt: skip
            walls.append(time.perf_counter() - began)
            if (number + 1) % size.sampled_every == 0:
                spent = spent_by_host(name)
                samples.append(
                    {"run": number + 1, "cpu": (spent - before) / size.sampled_every, **_sample(name)}
                )
                before = spent
                workplace.say(f"{number + 1} runs, {walls[-1]:.1f} s, {bytes_(samples[-1]['memory']['jvm'])}")
    if not all(compared(each / "orders", each / "totals").right for each in folders):
        raise AssertionError("the totals are not those of the orders")
    return {"samples": samples, "walls": walls}


def _sample(name: str) -> dict[str, Any]:
    """What the host's processes hold. `spent_by_host` has waited until no run is there."""
    found = shown(name)
    pids = found["processes"].values()
    return {
        "memory": found["memory"],
        "open files": sum(1 for pid in pids for _ in Path(f"/proc/{pid}/fd").iterdir()),
        "threads": sum(1 for pid in pids for _ in Path(f"/proc/{pid}/task").iterdir()),
        "temporary files": sum(1 for path in Path(os.environ["TMPDIR"]).rglob("*") if path.is_file()),
    }


def section(results: Results, size: Size) -> Section:
    figures = results.first("host")
    samples = figures["samples"]
    memory = {
        process: [float(sample["memory"][process]) for sample in samples] for process in samples[0]["memory"]
    }
    rows, targets = [], []
    for process, values in memory.items():
        first, last = thirds(values, WARM_UP)
        rows.append([f"memory of the {process}", bytes_(first), bytes_(last)])
        targets.append(at_most(f"memory of the {process} is flat", last / first, FLAT))
    for what in COUNTED:
        first, last = thirds([float(sample[what]) for sample in samples], WARM_UP)
        rows.append([what, f"{first:.0f}", f"{last:.0f}"])
        targets.append(at_most(f"{what} are flat", last / max(first, 1), FLAT))
    for what, values in (
        ("a run", figures["walls"]),
        ("its CPU seconds on the host", [each["cpu"] for each in samples]),
    ):
        first, last = thirds(values, WARM_UP)
        rows.append([what, seconds(first), seconds(last)])
        targets.append(at_most(f"{what}: no more at the end", last / first, FLAT))
    text = (
        f"{len(figures['walls']):,} runs in turn of {size.pipelines} jobs, each with {size.rows} new rows, on one application of a "
        f"warm host that is told not to replace it. The first {WARM_UP:.0%} are warm-up; the table compares the first third of "
        f"what follows with the last. Flat: at most {FLAT} times. The outputs of all jobs were compared with their input."
    )
    at = [sample["run"] for sample in samples]
    plots = [
        Plot(
            "warm-runs-memory", "Memory of a host's processes", "lines", at,
            {process: [value / 2**20 for value in values] for process, values in memory.items()}, "run", "MiB",
        ),
        Plot(
            "warm-runs-held", "What a host's processes hold", "lines", at,
            {what: [sample[what] for sample in samples] for what in COUNTED}, "run", "",
        ),
        Plot(
            "warm-runs-time", "A run, from its command to its end", "lines", list(range(1, len(figures["walls"]) + 1)),
            {"run": figures["walls"]}, "run", "seconds",
        ),
    ]  # fmt: skip
    return Section(text, ("what", "after warm-up", "at the end"), rows, targets, plots)


MEASUREMENT = Measurement(
    "warm-runs",
    "Many runs on one warm host",
    SIDES,
    {"full": Size(2_000, 40, 200, 20), "quick": Size(12, 3, 200, 2)},
    run,
    section,
    repeats=1,
    minutes={"full": 45, "quick": 1},
    named_only=True,
    patience=180,
)
