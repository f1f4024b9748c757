"""How fast state becomes typed Parquet: canonical savepoints of plain and of structured values, with one worker and two."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bench.made_state import JOB, OPERATOR, STATE, floats, make
from bench.measurement import Measurement, Plot, Results, Section, Workplace, at_least, median, seconds
from bench.measurement import size as bytes_

KINDS = ("fixed", "structured")
CORES = (1, 2)
SIDES = tuple(f"{kind}_{cores}" for kind in KINDS for cores in CORES)
NAMES = {"fixed": "int -> float", "structured": "int -> dataclass of int, str, float, datetime"}
TASKS = 4
"""Tasks of every export, with one worker or two: two tasks for each of two workers."""
WANTED = {"fixed": 1_000_000, "structured": 400_000}


@dataclass
class Reading:
    """A structured value, like those of real pipelines."""

    count: int
    name: str
    amount: float
    at: datetime


@dataclass(frozen=True, slots=True)
class Size:
    fixed: int
    """How many entries."""
    structured: int
    measured: int
    """Measured exports, after one that warms up."""


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    from bench import sides
    from stateflow.config.options import load
    from stateflow.jobs.job import Job

    kind, _, cores = side.partition("_")
    keys = getattr(size, kind)
    workplace.say(f"making {keys:,} entries")
    root = workplace.folder / "root"
    if kind == "fixed":
        make(root, keys, serializer=float, values=floats)
    else:
        make(root, keys, serializer=Reading, values=readings)
    job = Job(str(root), JOB)
    options = load(
        code={"checkpoint_dir": str(root), "cache_dir": str(workplace.folder / "cache")},
        env={},
        folder=workplace.folder,
    )
    head = job.checkpoints()[-1]
    state = sum(shard.bytes for subtask in head.operators[OPERATOR].shards for shard in subtask)
    sides.session(f"local[{cores}]")
    durations: list[float] = []
    written_bytes = 0
    for number in range(1 + size.measured):
        workplace.say(f"export {number} of {size.measured}")
        began = time.perf_counter()
        made = job.savepoint(
            "canonical", options=options, name=f"export-{number}", split_size=-(-state // TASKS)
        )
        durations.append(time.perf_counter() - began)
        files = made.savepoint.tables[OPERATOR][STATE]
        if (len(files), sum(file.rows for file in files)) != (TASKS, keys):
            raise AssertionError(f"{len(files)} files hold {sum(file.rows for file in files):,} rows")
        written_bytes = sum(file.size for file in files)
    return {"seconds": durations[1:], "entries": keys, "state": state, "written": written_bytes}


def readings(keys: Sequence[int]) -> Iterable[Reading]:
    began = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    return (
        Reading(key, f"sensor {key % 1000}", key / 8, datetime.fromtimestamp(began + key, UTC))
        for key in keys
    )


def section(results: Results, size: Size) -> Section:
    def rate(kind: str, cores: int) -> float:
        return results.median(f"{kind}_{cores}", lambda t: t["entries"] / median(t["seconds"]))

    rows, targets = [], []
    for kind in KINDS:
        for cores in CORES:
            figures = results.first(f"{kind}_{cores}")
            rows.append(
                [
                    NAMES[kind],
                    str(cores),
                    seconds(figures["entries"] / rate(kind, cores)),
                    f"{rate(kind, cores):,.0f}",
                    f"{rate(kind, cores) / cores:,.0f}",
                    f"{bytes_(figures['state'])} as {bytes_(figures['written'])}",
                ]
            )
        million = rate(kind, 1) / 1e6
        targets.append(
            at_least(
                f"{NAMES[kind]}: {WANTED[kind]:,} entries a second and core",
                million,
                WANTED[kind] / 1e6,
                " million a second",
            )
        )
    for kind in KINDS:
        gain = rate(kind, 2) / rate(kind, 1)
        targets.append(at_least(f"{NAMES[kind]}: two workers at least 1.7 times one", gain, 1.7))
    text = (
        f"`Job.savepoint('canonical')` of {size.fixed:,} and of {size.structured:,} entries in 8 shards, on a local disk with "
        f"fsync, as {TASKS} tasks on `local[1]` and on `local[2]`. Timed from call to return: shards opened, state read and "
        "decoded by its type, Parquet written, checksummed and stored, and the savepoint's record. The session is up, and an "
        f"export before has started the workers and filled the host's cache of shards; each trial is the median of {size.measured} "
        "exports after it. With one worker nothing keeps the JVM off the second core: it only hands out tasks. All workers of "
        "`local[2]` share the machine's two cores with the JVM."
    )
    plot = Plot(
        "export",
        "Canonical export",
        "bars",
        ["fixed width", "structured"],
        {f"local[{cores}]": [rate(kind, cores) / 1e6 for kind in KINDS] for cores in CORES},
        "",
        "million entries a second",
    )
    header = ("entries", "workers", "time", "entries a second", "per core", "state as Parquet")
    return Section(text, header, rows, targets, [plot])


MEASUREMENT = Measurement(
    "export",
    "Canonical export",
    SIDES,
    {"full": Size(12_000_000, 6_000_000, 3), "quick": Size(100_000, 50_000, 1)},
    run,
    section,
    repeats=2,
    minutes={"full": 2.5, "quick": 1.0},
)
