"""How long rescaling an idle job takes. It edits the newest record, whatever the size of the state."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.made_state import JOB, OPERATOR, make
from bench.measurement import Measurement, Plot, Results, Section, Target, Workplace, at_most, seconds
from bench.measurement import size as bytes_

if TYPE_CHECKING:
    from stateflow.jobs.job import Job

SIDES = ("rescale",)
STEPS = (4, 3, 5)


@dataclass(frozen=True, slots=True)
class Size:
    keys: tuple[int, ...]


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    # What a process does once, imports above all, falls on a job of its own, and is shown apart.
    first = measured(workplace, 1000)
    return {"first": first["seconds"][0], "jobs": [measured(workplace, keys) for keys in size.keys]}


def measured(workplace: Workplace, keys: int) -> dict[str, Any]:
    """Seconds of each step, and the state files before and after all of them."""
    workplace.say(f"making {keys:,} keys")
    root = workplace.folder / f"root-{keys}" / "root"
    make(root, keys, shards=1)
    from stateflow.jobs.job import Job

    job = Job(str(root), JOB)
    before, durations = files_of(root), []
    for parallelism in STEPS:
        began = time.perf_counter()
        job.rescale(parallelism)
        durations.append(time.perf_counter() - began)
        check(job, parallelism)
    after = files_of(root)
    return {
        "seconds": durations,
        "files": [len(before), len(after)],
        "bytes": [sum(size for size, _ in files.values()) for files in (before, after)],
        "untouched": before == after,
    }


def files_of(root: Path) -> dict[str, tuple[int, int]]:
    """Everything under the root but the job's log, with size and inode: records, their outcomes and claims."""
    durations = {}
    for path in root.rglob("*"):
        name = path.relative_to(root).as_posix()
        if path.is_file() and not name.startswith((f"{JOB}/chk-", f"{JOB}/epochs/")):
            facts = path.stat()
            durations[name] = (facts.st_size, facts.st_ino)
    return durations


def check(job: Job, parallelism: int) -> None:
    head = job.log().head
    assert head is not None
    subtasks = len(head.operators[OPERATOR].shards)
    if (head.kind, subtasks) != ("rescale", parallelism):
        raise AssertionError(f"the newest record is a {head.kind} with {subtasks} subtasks")


def section(results: Results, size: Size) -> Section:
    def step(job: int, at: int) -> float:
        return results.median("rescale", lambda trial: trial["jobs"][job]["seconds"][at])

    names = [f"{a} -> {b}" for a, b in zip((1, *STEPS), STEPS, strict=False)]
    rows, targets = [], []
    for number, keys in enumerate(size.keys):
        jobs = [trial["jobs"][number] for trial in results.of("rescale")]
        slowest = max(second for job in jobs for second in job["seconds"])
        untouched = all(job["untouched"] for job in jobs)
        (files, files_after), (state, state_after) = jobs[0]["files"], jobs[0]["bytes"]
        rows.append(
            [
                f"{keys:,}",
                f"{files} files, {bytes_(state)}",
                f"{files_after} files, {bytes_(state_after)}",
                *(seconds(step(number, at)) for at in range(len(STEPS))),
            ]
        )
        targets.append(at_most(f"{keys:,} keys: each step below 300 ms", slowest, 0.300, seconds))
        said = "none copied" if untouched else f"{files_after} files instead of {files}"
        targets.append(Target(f"{keys:,} keys: no state file is copied", said, untouched))
    first = results.median("rescale", lambda trial: trial["first"])
    text = (
        "A job with all of its state in one shard is handed to 4 subtasks, then 3, then 5, by `Job.rescale`, with every record "
        "fsynced. Timed from call to return in a process that has rescaled another, small job before: that first one took "
        f"{seconds(first)}, imports included. Starting Python is not in any figure, nor the merges with which later runs tidy "
        "shards that were cut. The targets take the slowest step of all repeats. Files are compared by name, size and inode: "
        "everything in the store but the log's own records."
    )
    plot = Plot(
        "rescale",
        "Rescaling a job",
        "bars",
        names,
        {
            f"{keys:,} keys": [step(number, at) * 1000 for at in range(len(STEPS))]
            for number, keys in enumerate(size.keys)
        },
        "subtasks",
        "milliseconds",
    )
    return Section(text, ("keys", "before", "after", *names), rows, targets, [plot])


MEASUREMENT = Measurement(
    "rescale",
    "Rescaling is an edit",
    SIDES,
    {"full": Size((1_000_000, 5_000_000)), "quick": Size((20_000, 100_000))},
    run,
    section,
    minutes={"full": 0.8, "quick": 0.1},
)
