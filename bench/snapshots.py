"""Makes and restores native savepoints, against `cp` and fsync of the same files."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.made_state import JOB, make
from bench.measurement import Measurement, Plot, Results, Section, Target, Workplace, at_most, median, seconds
from bench.measurement import size as bytes_

SIDES = ("native",)
TURNS = 3
"""How often this library and cp take turns within a trial."""
MEMORY = Path("/dev/shm")
_NOISE = 64 << 20
_ROOM = 2.5


@dataclass(frozen=True, slots=True)
class Size:
    keys: tuple[int, ...]
    """Keys of each state, the largest last."""
    value: int
    """Bytes of each value."""


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    linked = [one_disk(workplace, keys, size.value) for keys in size.keys]
    root = workplace.folder / f"state-{size.keys[-1]}" / "root"
    files = [path for path in (root / JOB / "shared").iterdir() if path.is_file()]
    with elsewhere(workplace.folder, sum(path.stat().st_size for path in files)) as (other, how):
        between = two_disks(workplace, root, files, other)
    return {"linked": linked, "how": how, **between, "spark": spark_runs()}


def one_disk(workplace: Workplace, keys: int, value: int) -> dict[str, Any]:
    """A savepoint on the job's own disk, and a restore from it."""
    workplace.say(f"making {bytes_(keys * value)}")
    root = workplace.folder / f"state-{keys}" / "root"
    make(root, keys, serializer=bytes, values=incompressible(value))
    from stateflow.jobs.job import Job

    job = Job(str(root), JOB)
    workplace.say("a savepoint on the same disk")
    took, made = timed(lambda: job.savepoint(options=options(root, workplace)))
    folder = root / made.url.removeprefix(job.store.url + "/")
    state = [path.stat() for path in (root / JOB / "shared").iterdir()]
    kept = [path.stat() for path in folder.rglob("*") if path.is_file()]
    back, copies = restored(workplace, root, str(folder), "linked")
    return {
        "state": sum(facts.st_size for facts in state),
        "files": len(state),
        "seconds": took,
        "shared": {facts.st_ino for facts in state} <= {facts.st_ino for facts in kept},
        "new": sum(facts.st_size for facts in kept if facts.st_nlink == 1),
        "restored": back,
        "restored_shared": bool(copies) and inodes(copies) <= inodes(folder.rglob("*")),
    }


def two_disks(workplace: Workplace, root: Path, files: Sequence[Path], other: Path) -> dict[str, Any]:
    """A savepoint on another disk and a restore from it, in turns with cp."""
    from stateflow.jobs.job import Job

    found: dict[str, list[float]] = {name: [] for name in ("made", "copied", "restored", "copied_back")}
    made_at = other / "savepoint"

    def ours() -> None:
        Job(str(root), JOB).savepoint(options=options(root, workplace), to=str(made_at))

    def ours_back() -> None:
        found["restored"].append(restored(workplace, root, str(made_at), "moved")[0])
        shutil.rmtree(root / "moved")

    def cp() -> None:
        found["copied"].append(copied(files, other / "cp"))
        shutil.rmtree(other / "cp")

    def cp_back() -> None:
        there = [path for path in (made_at / "state").iterdir() if path.is_file()]
        found["copied_back"].append(copied(there, workplace.folder / "cp"))
        shutil.rmtree(workplace.folder / "cp")

    for turn in range(TURNS):
        workplace.say(f"to another file system and back, {turn + 1} of {TURNS}")
        if turn % 2:
            cp()
        found["made"].append(timed(ours)[0])
        if not turn % 2:
            cp()
        for back in (cp_back, ours_back) if turn % 2 else (ours_back, cp_back):
            back()
        shutil.rmtree(made_at)
    return dict(found)


def restored(workplace: Workplace, root: Path, origin: str, name: str) -> tuple[float, list[Path]]:
    """Restores into a new job; returns the seconds from planning to the record, and the new job's files."""
    from bench import operators
    from stateflow.jobs.job import Job

    job = Job(str(root), name)

    def work() -> None:
        given = {"input": str(workplace.folder / "no input yet")}
        job.restore(origin, operators.blobs, given, options=options(root, workplace)).apply()

    took, _ = timed(work)
    return took, [path for path in (root / name / "shared").iterdir() if path.is_file()]


def copied(files: Iterable[Path], target: Path) -> float:
    """Copies all files with cp, then syncs each file and the folder; returns the seconds."""

    def work() -> None:
        target.mkdir()
        subprocess.run(["cp", "-t", target, *files], check=True)
        for path in (*target.iterdir(), target):
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)

    return timed(work)[0]


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Times `work`, after everything before it is on disk."""
    os.sync()
    began = time.perf_counter()
    found = work()
    return time.perf_counter() - began, found


@contextmanager
def elsewhere(folder: Path, needed: int) -> Iterator[tuple[Path, str]]:
    """A folder on another file system, so that no file can be linked there, and how to call it."""
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > _ROOM * needed and other_device(MEMORY, folder):
        with tempfile.TemporaryDirectory(prefix="stateflow-bench-", dir=MEMORY) as made:
            yield Path(made), f"another file system (in memory, {MEMORY})"
        return
    from stateflow.storage import transfer

    linking = transfer.copy_inside
    transfer.copy_inside = lambda source, target: None
    try:
        (folder / "elsewhere").mkdir()
        yield (
            folder / "elsewhere",
            f"a folder of the same disk with links switched off, for {MEMORY} has no room",
        )
    finally:
        transfer.copy_inside = linking


def other_device(one: Path, other: Path) -> bool:
    return one.stat().st_dev != other.stat().st_dev


def options(root: Path, workplace: Workplace) -> Any:
    from stateflow.config.options import load

    code = {"checkpoint_dir": str(root), "scratch_dir": str(workplace.folder / "scratch")}
    return load(code=code, env={}, folder=workplace.folder)


def incompressible(length: int) -> Callable[[Sequence[int]], Iterable[bytes]]:
    """Values cut from random bytes at offsets that do not repeat nearby, so that no block of a file compresses."""
    import numpy as np

    noise = np.random.default_rng(1).bytes(_NOISE)

    def values(keys: Sequence[int]) -> Iterable[bytes]:
        for key in keys:
            at = key * (length + 7) % (_NOISE - length)
            yield noise[at : at + length]

    return values


def inodes(paths: Iterable[Path]) -> set[int]:
    return {path.stat().st_ino for path in paths}


def spark_runs() -> bool:
    from pyspark import SparkContext

    return SparkContext._gateway is not None or SparkContext._active_spark_context is not None


def section(results: Results, size: Size) -> Section:
    trials = results.of("native")
    first = results.first("native")

    def middle(name: str) -> float:
        return results.median("native", lambda trial: median(trial[name]))

    def linked(at: int, name: str) -> float:
        return results.median("native", lambda trial: trial["linked"][at][name])

    rows = []
    for at, found in enumerate(first["linked"]):
        state = f"{bytes_(found['state'])} in {found['files']} files"
        rows += [
            [
                f"savepoint on the same disk, {state}",
                seconds(linked(at, "seconds")),
                f"{bytes_(found['new'])} new on disk",
            ],
            [f"restore from it, {state}", seconds(linked(at, "restored")), "hard links"],
        ]
    there = middle("made") / middle("copied")
    back = middle("restored") / middle("copied_back")
    rows += [
        ["savepoint elsewhere", seconds(middle("made")), f"{there:.2f} times cp"],
        ["cp of its files and fsync", seconds(middle("copied")), ""],
        ["restore from there", seconds(middle("restored")), f"{back:.2f} times cp"],
        ["cp of its files and fsync, back", seconds(middle("copied_back")), ""],
    ]
    text = (
        f"Values are bytes that nothing compresses; {bytes_(first['linked'][-1]['state'])} of state files at most. New bytes are "
        "those of files with a single link. Elsewhere is "
        f"{first['how']}. Ours and one `cp` of all files with an fsync of each take turns, {TURNS} times in each trial, in both "
        "orders; source files are in the page cache for both, and nothing waits to be written when the clock starts. A savepoint "
        "is timed from `Job.savepoint` to its return, a restore (`no_claim`, into a new job) from its plan to its record, "
        "pins and records included, and a savepoint's checksums; imports too in the first rows. Ours copies several files at once, "
        "cp one."
    )
    most = max(found["new"] for trial in trials for found in trial["linked"])
    shared = all(found["shared"] for trial in trials for found in trial["linked"])
    no_bytes = all(found["restored_shared"] for trial in trials for found in trial["linked"])
    no_spark = not any(trial["spark"] for trial in trials)
    targets = [
        Target(
            "a savepoint on the same disk links every file; what it adds does not grow with the state (below 256 KiB)",
            f"{bytes_(most)} at most" if shared else "files were copied",
            shared and most < 256 << 10,
        ),
        at_most("a savepoint elsewhere takes at most 1.2 times cp and fsync", there, 1.2),
        at_most("a restore from elsewhere takes at most 1.2 times cp and fsync", back, 1.2),
        Target(
            "a restore within one store reads no byte: its files are the savepoint's inodes",
            "the same" if no_bytes else "others",
            no_bytes,
        ),
        Target("neither starts Spark", "none" if no_spark else "it runs", no_spark),
    ]
    plot = Plot(
        "snapshots",
        "Native savepoints and cp",
        "bars",
        ["savepoint elsewhere", "restore from there"],
        {
            "this library": [middle("made"), middle("restored")],
            "cp and fsync": [middle("copied"), middle("copied_back")],
        },
        "",
        "seconds",
    )
    return Section(text, ("what", "median", ""), rows, targets, [plot])


MEASUREMENT = Measurement(
    "snapshots",
    "Native savepoints",
    SIDES,
    {"full": Size((65_536, 278_528), 4096), "quick": Size((512, 4096), 4096)},
    run,
    section,
    minutes={"full": 0.8, "quick": 0.1},
)
