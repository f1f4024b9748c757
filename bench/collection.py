"""Collecting a long history from outside: many checkpoints, each with files that only it names."""

from __future__ import annotations

import os
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from bench.made_state import GROUPS, JOB, OPERATOR, claimed, now
from bench.measurement import Measurement, Results, Section, Workplace, at_most, seconds
from bench.measurement import size as bytes_

SIDES = ("gc",)
RETAINED = 3


@dataclass(frozen=True, slots=True)
class Size:
    checkpoints: int
    """Checkpoints to delete. Those to keep come on top."""
    files: int
    """Files of each checkpoint."""
    bytes: int
    """Bytes of each file."""


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    from stateflow.jobs.job import Job

    workplace.say(f"making {size.checkpoints:,} checkpoints")
    root = workplace.folder / "root"
    records(root, size)
    # Else the collection would wait for the disk to take what was made without waiting.
    os.sync()
    job = Job(str(root), JOB)
    workplace.say("collecting")
    began = time.perf_counter()
    report = job.collect(RETAINED)
    elapsed = time.perf_counter() - began
    files_left = sum(1 for _ in (root / JOB / "shared").iterdir())
    checkpoints_left = len(job.checkpoints())
    # A fence, with which each claim begins, is removed too, but is no checkpoint.
    if (files_left, checkpoints_left, report.files) != (
        RETAINED * size.files,
        RETAINED,
        size.checkpoints * size.files,
    ):
        raise AssertionError(
            f"{report.files} files were deleted; {files_left} files and {checkpoints_left} checkpoints are left"
        )
    return {"seconds": elapsed, "files": report.files, "bytes": sum(report.bytes_by_reason.values())}


def records(root: Path, size: Size) -> None:
    """Decides and completes records by the protocol, like a run, but without fsync."""
    from stateflow.checkpoint.draft import Draft
    from stateflow.format.layout import JobLayout
    from stateflow.format.records import FileRef, OperatorState, Shard
    from stateflow.storage.roots import open_store

    store, layout = open_store(str(root), fsync=False), JobLayout(JOB)
    writer = claimed(store, layout, retained=RETAINED)
    body = os.urandom(size.bytes)
    checksum = xxhash.xxh3_64_hexdigest(body)
    for _ in range(size.checkpoints + RETAINED):
        files = []
        for number in range(size.files):
            path = layout.shared_file(writer.epoch, writer.next_slot, uuid.uuid4().hex, ".sst")
            store.put(path, body)
            files.append(FileRef(f"{number:06d}.sst", len(body), checksum, path))
        operator = OperatorState(
            key=(("user", "int"),),
            max_parallelism=GROUPS,
            assignment=((0, GROUPS - 1),),
            shards=((Shard(0, GROUPS - 1, "rocksdb", tuple(files)),),),
        )
        writer.complete(writer.decide(Draft("checkpoint", now=now(), operators={OPERATOR: operator})), {})


def section(results: Results, size: Size) -> Section:
    figures = results.first("gc")
    elapsed = results.median("gc", lambda trial: trial["seconds"])
    rows = [
        ["checkpoints deleted", f"{size.checkpoints:,}"],
        ["state files deleted", f"{figures['files']:,}"],
        ["bytes freed", bytes_(figures["bytes"])],
        ["time", seconds(elapsed)],
        ["state files a second", f"{figures['files'] / elapsed:,.0f}"],
    ]
    text = (
        f"`stateflow gc` of a job on the local disk, without starting Python: of {size.checkpoints + RETAINED:,} checkpoints the "
        f"newest {RETAINED} stay. Each has {size.files} files of {bytes_(size.bytes)} of its own, so that all of them go. Records "
        "were made by the protocol with fsync off, and are on disk before the clock starts; the collection runs with fsync on: "
        "it reads the log, marks each record, keeps its line of the history, lists all files to find orphans, and deletes. "
        "Records and files are still in the memory of the operating system, as those of a job that runs on this host are."
    )
    amount = f"{size.checkpoints:,} checkpoints with {figures['files']:,} files"
    targets = [at_most(f"{amount} are collected in less than 10 s", elapsed, 10.0, seconds)]
    return Section(text, ("what", "measured"), rows, targets)


MEASUREMENT = Measurement(
    "collection",
    "Collecting a long history",
    SIDES,
    {"full": Size(1_000, 10, 16 << 10), "quick": Size(60, 10, 4 << 10)},
    run,
    section,
    minutes={"full": 0.6, "quick": 0.1},
)
