"""The log and the history of a job that is months old: a record for each of its checkpoints, and no files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateflow.checkpoint.control import Heartbeat, Progress, RunOutcome, beat, report_progress
from stateflow.checkpoint.log import Log, SlotContent
from stateflow.checkpoint.statistics import keep_history
from stateflow.format.keygroups import default_assignment
from stateflow.format.layout import JobLayout
from stateflow.format.records import (
    EpochClaim,
    FileRef,
    JobIdentity,
    Outcome,
    Owner,
    Prepared,
    Record,
    Shard,
    SourceState,
    StateSchema,
    encode,
)
from stateflow.storage.roots import open_store
from stateflow.storage.store import Store
from tests.jobs.log import outcome, record
from tests.jobs.operators import operator_of

GROUPS = 128
_SECOND = 1_000_000
_OFFSET = (
    '{"sourceVersion":1,"reservoirId":"5ca1ab1e-0000-4000-8000-000000000007","reservoirVersion":%d,'
    '"index":-1,"isStartingVersion":false}'
)


@dataclass(frozen=True, slots=True)
class Made:
    """A job to be made. Its newest checkpoint is one `interval` old."""

    name: str
    standing: int = 5
    """Checkpoints whose records are in the log."""
    collected: int = 0
    """Older checkpoints, of which only a line of the history is left."""
    shards: int = 4
    files: int = 3
    """Files of each shard. Every checkpoint has one of its own and shares the others."""
    interval: int = 60
    """Seconds between two checkpoints."""
    dag_run: str = ""
    running: bool = False
    """Whether a run has a fresh heartbeat."""
    sized: bool = False
    """Whether its runs have a target for their batches, with a source that waits and a hot key."""


def make_job(place: str | Path | Store, job: Made, now: int) -> None:
    """`now` is microseconds since 1970."""
    store = open_store(str(place), fsync=False) if isinstance(place, str | Path) else place
    layout, total = JobLayout(job.name), job.collected + job.standing
    owner = Owner(
        run=f"run-{job.name}", host="worker-1", pid=7, user="airflow", dag_run=job.dag_run, task="run"
    )
    began = now - total * job.interval * _SECOND
    store.put(layout.identity, encode(JobIdentity(uuid=f"{job.name}-uuid", name=job.name, at=began)))
    store.put(layout.epoch(1), encode(EpochClaim(epoch=1, writer="claim", owner=owner, at=began)))
    collected = []
    for made, done in records_of(job, layout, owner, began):
        if made.slot <= job.collected:
            collected.append(SlotContent(made.slot, made, done))
        else:
            store.put(layout.pending(made.slot), encode(made))
            store.put(layout.metadata(made.slot), encode(done))
    slots = {each.number: each for each in collected}
    keep_history(store, layout, Log(job.name, None, (1,), slots, (), (), ()), slots)
    ended = RunOutcome(batches=total, rows=total * 1000, checkpoint=total, stopped="drained")
    sign = Heartbeat(
        epoch=1,
        counter=total + 1,
        owner=owner,
        at=now - _SECOND if job.running else now - job.interval * _SECOND,
        ended=not job.running,
        outcome=None if job.running else ended,
    )
    beat(store, layout, sign)
    report_progress(store, layout, Progress(epoch=1, slot=total, statistics=statistics(total), at=now))


def records_of(job: Made, layout: JobLayout, owner: Owner, began: int) -> Iterator[tuple[Record, Outcome]]:
    for slot in range(1, job.collected + job.standing + 1):
        at = began + (slot - 1) * job.interval * _SECOND
        made = record(
            slot,
            job=f"{job.name}-uuid",
            writer=f"{slot:032x}",
            below=f"{slot - 1:032x}",
            based_on=slot - 1 or None,
            floor=job.collected + 1,
            owner=owner,
            at=at,
            now=at - 2 * _SECOND,
            watermark=at - 600 * _SECOND,
            statistics={**statistics(slot), **(sizes() if job.sized else {})},
            parameters={"input": "/data/orders", "password": "do not tell"},
            **contents(job, layout, slot),
        )
        yield (
            made,
            outcome(
                made,
                writer=f"{slot:032x}-done",
                sinks={"totals": "committed"},
                at=at + (200 + slot % 97 * 10) * 1000,
                last_commits={"totals": slot},
                statistics={"evaluate_ms": 1500, "decide_ms": 12, "commit_ms": 180},
            ),
        )


def contents(job: Made, layout: JobLayout, slot: int) -> dict[str, Any]:
    def files(shard: int) -> tuple[FileRef, ...]:
        return tuple(
            FileRef(
                f"{file:06d}.sst",
                100_000 * (shard + 1) + slot,
                "0" * 16,
                layout.shared_file(1, slot if file == 0 else 1, f"{shard}-{file}", ".sst"),
            )
            for file in range(job.files)
        )

    shards = [
        Shard(first, last, "rocksdb", files(number), entries=1000 * (number + 1))
        for number, (first, last) in enumerate(default_assignment(job.shards, GROUPS))
    ]
    balance = operator_of(
        shards,
        states={"total": StateSchema(id=1, kind="value", value="float", queryable=True)},
        next_state_id=2,
        hosts=tuple(f"executor_worker-1_{number}" for number in range(job.shards)),
    )
    totals = Prepared(
        kind="delta",
        target="/data/totals",
        prev=slot - 1 or None,
        payload={"table": "t", "actions": ['{"add":{"path":"part-0.parquet"}}'] * 3},
        rows=500,
    )
    return {
        "operators": {"balance": balance},
        "sources": {"events": SourceState(lines=(_OFFSET % slot,), kind="delta")},
        "sinks": {"totals": totals},
    }


MEASURED = [
    "opened", "open_s", "snapshot_s", "upload_s", "uploaded_bytes", "uploaded_files", "compacted_bytes",
    "inlined_bytes", "flushed_bytes", "runs", "spills", "cache_hits", "cache_misses", "fetched_bytes", "task_s",
]  # fmt: skip


def statistics(slot: int) -> dict[str, Any]:
    """Statistics like those that a run records of a batch."""
    measured = {name: float(slot % 13) for name in MEASURED}
    return {
        "processed_rows": 1000 + slot % 29,
        "input_free": False,
        "operators": {
            "balance": {"rows_in": 1000, "rows_out": 500, "keys": 400, "timers": 0, "metrics": measured}
        },
        "metrics": measured,
        "timings": {"prepare totals": 1.25},
        "checkpointed_size": 400_000 + slot % 31 * 1000,
    }


def sizes() -> dict[str, Any]:
    """What a batch notes of its size."""
    streams = [
        {"source": "events", "unit": "bytes", "most": 4096, "took": 4000},
        {"source": "events", "unit": "bytes", "most": 1024},
    ]
    return {
        "batch_size": {"target_ms": 30_000, "streams": streams},
        "waited": {"clicks": "events"},
        "operators": {"balance": {"hot_key": {"share": 0.52, "subtask": 3}}},
    }
