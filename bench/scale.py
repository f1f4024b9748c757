"""What grows first: a record of many shards, and a root of many jobs. No run, no Spark: what is made is what runs would have left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from bench.made_state import JOB, OPERATOR, now
from bench.measurement import Measurement, Results, Section, Workplace, at_most, seconds
from bench.measurement import size as bytes_
from bench.slow_objects import slow_objects

SIDES = ("shards", "jobs")
RETAINED = 3
DELAY = 0.02
"""Seconds that a distant store takes for each answer."""


@dataclass(frozen=True, slots=True)
class Size:
    shards: tuple[int, ...]
    files: int
    """Files of each shard."""
    jobs: int
    far: int
    """Jobs of the root that is behind a server."""


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    if side == "jobs":
        return _many_jobs(size, workplace)
    return {str(count): _wide(count, size.files, workplace) for count in size.shards}


def _wide(shards: int, files: int, workplace: Workplace) -> dict[str, float]:
    """One job whose operator has so many subtasks, a shard each; every checkpoint has one new file in every shard."""
    from stateflow.jobs.job import Job

    workplace.say(f"making {shards:,} shards")
    root = workplace.folder / f"shards-{shards}"
    found = _checkpoints(root, JOB, RETAINED + 2, shards, files)
    job = Job(str(root), JOB)
    timed = _Timed(found, workplace)
    timed("read", job.log)
    timed("status", job.status)
    timed("savepoint", job.savepoint)
    timed("rescale", lambda: job.rescale(shards // 2 or 1))
    timed("collect", lambda: job.collect(1))
    return found


class _Timed:
    """Seconds of verbs, by name."""

    def __init__(self, found: dict[str, float], workplace: Workplace) -> None:
        self._found, self._workplace = found, workplace

    def __call__(self, name: str, verb: Callable[[], object]) -> None:
        began = time.perf_counter()
        verb()
        self._found[name] = time.perf_counter() - began
        self._workplace.say(f"{name}: {seconds(self._found[name])}")


def _checkpoints(root: Path, job: str, count: int, shards: int, files: int) -> dict[str, float]:
    """Decides and completes records by the protocol, like a run. What the newest took, and how many bytes its record has."""
    from stateflow.checkpoint.claim import claim
    from stateflow.checkpoint.draft import Draft
    from stateflow.format.keygroups import default_assignment
    from stateflow.format.layout import JobLayout
    from stateflow.format.records import FileRef, OperatorState, Owner, Shard
    from stateflow.storage.roots import open_store

    store, layout = open_store(str(root), fsync=False), JobLayout(job)
    writer = claim(
        store, layout, owner=Owner(run=job), ids=lambda: uuid.uuid4().hex, clock=now, carry_out=lambda *_: {}, retained=RETAINED,
    )  # fmt: skip
    assignment = default_assignment(shards, max(128, shards))
    body = os.urandom(64)
    checksum = xxhash.xxh3_64_hexdigest(body)

    def new_file(number: int) -> FileRef:
        path = layout.shared_file(writer.epoch, writer.next_slot, uuid.uuid4().hex, ".sst")
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(body)
        return FileRef(f"{number:06d}.sst", len(body), checksum, path)

    held = [[new_file(number) for number in range(files)] for _ in assignment]
    found: dict[str, float] = {}
    for number in range(count):
        for shard in held:
            shard[:] = [*shard[1:], new_file(files + number)]
        operator = OperatorState(
            key=(("user", "int"),),
            max_parallelism=max(128, shards),
            assignment=tuple(assignment),
            shards=tuple(
                (Shard(first, last, "rocksdb", tuple(refs)),)
                for (first, last), refs in zip(assignment, held, strict=True)
            ),
        )
        began = time.perf_counter()
        record = writer.decide(Draft("checkpoint", now=now(), operators={OPERATOR: operator}))
        writer.complete(record, {})
        found["decide"] = time.perf_counter() - began
    found["bytes"] = max(path.stat().st_size for path in (root / job).glob("chk-*/*"))
    return found


def _many_jobs(size: Size, workplace: Workplace) -> dict[str, Any]:
    from stateflow.jobs.job import Job
    from stateflow.jobs.job import jobs as names_of

    root, distant = _root_of(size.jobs, workplace), _root_of(size.far, workplace)
    near: dict[str, float] = {}
    timed = _Timed(near, workplace)
    timed("names", lambda: names_of(str(root)))
    timed("jobs", lambda: _command(str(root), {}, workplace.folder))
    timed("collect", lambda: [Job(str(root), name).collect(1) for name in names_of(str(root))])
    far: dict[str, float] = {}
    with slow_objects(distant, workplace.folder, DELAY) as (url, options):
        timed = _Timed(far, workplace)
        timed("names", lambda: names_of(url, storage_options=options))
        timed("jobs", lambda: _command(url, options, workplace.folder))
    return {"near": near, "far": far}


def _root_of(jobs: int, workplace: Workplace) -> Path:
    """A root with so many jobs of a few checkpoints each."""
    root = workplace.folder / f"jobs-{jobs}"
    workplace.say(f"making {jobs:,} jobs")
    for number in range(jobs):
        _checkpoints(root, f"job{number:04d}", RETAINED, 2, 2)
    return root


def _command(root: str, options: dict[str, str], folder: Path) -> None:
    """`stateflow jobs`"""
    declared = [f"checkpoint_dir = {json.dumps(root)}", "[storage_options]"]
    declared += [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in options.items()]
    file = folder / "stateflow.toml"
    file.write_text("\n".join(declared), encoding="utf-8")
    answer = subprocess.run(
        [sys.executable, "-m", "stateflow", "jobs", "-o", "json"],
        env={**os.environ, "STATEFLOW_CONFIG": str(file)}, check=False, capture_output=True, text=True,
    )  # fmt: skip
    if '"jobs"' not in answer.stdout:
        raise RuntimeError(answer.stderr)


CALLED = {
    "bytes": "the record",
    "decide": "decided and completed",
    "read": "the log read, as a run does at its start",
    "status": "`show`",
    "savepoint": "a native savepoint",
    "rescale": "rescaled to half as many",
    "collect": "collected down to one",
}


def section(results: Results, size: Size) -> Section:
    shards, jobs = results.first("shards"), results.first("jobs")
    widest = str(size.shards[-1])
    rows = [
        [what, *((bytes_ if name == "bytes" else seconds)(shards[str(count)][name]) for count in size.shards)]
        for name, what in CALLED.items()
    ]
    for name, what in (
        ("names", "names of its jobs"),
        ("jobs", "`stateflow jobs`"),
        ("collect", "collected"),
    ):
        told = [seconds(jobs[side][name]) if name in jobs[side] else "" for side in ("near", "far")]
        rows.append(
            [
                f"{size.jobs:,} jobs: {what} on a disk; {size.far} of them {DELAY * 1000:.0f} ms away",
                *told,
                *[""] * (len(size.shards) - 2),
            ]
        )
    text = (
        f"Operators of {', '.join(f'{count:,}' for count in size.shards)} shards with {size.files} files each, of which every checkpoint has "
        f"one anew, and a root of {size.jobs:,} small jobs, on a local disk; and one of {size.far} jobs behind an S3 server that takes "
        f"{DELAY * 1000:.0f} ms for each answer. Their files and records are made by the protocol without a run; files have 64 bytes."
    )
    targets = [
        at_most(
            f"a record of {size.shards[-1]:,} shards is decided in a second",
            shards[widest]["decide"],
            1.0,
            seconds,
        ),
        at_most(
            f"`stateflow jobs` of {size.far} jobs, {DELAY * 1000:.0f} ms away, in five seconds",
            jobs["far"]["jobs"],
            5.0,
            seconds,
        ),
    ]
    return Section(text, ("", *(f"{count:,} shards" for count in size.shards)), rows, targets, [])


MEASUREMENT = Measurement(
    "scale",
    "Many shards, and many jobs",
    SIDES,
    {"full": Size((100, 1_000, 10_000), 4, 1_000, 100), "quick": Size((10, 20, 40), 2, 10, 5)},
    run,
    section,
    repeats=1,
    minutes={"full": 5, "quick": 1},
    named_only=True,
)
