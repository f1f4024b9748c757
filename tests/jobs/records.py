"""Makes the records and the history of months-old jobs, without runs and without state files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

GROUPS = 128
_SECOND = 1_000_000


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


def make_job(root: Path, job: Made, now: int) -> None:
    """`now` is microseconds since 1970."""
    from stateflow.checkpoint.control import Heartbeat, Progress, RunOutcome
    from stateflow.format.layout import JobLayout
    from stateflow.format.records import EpochClaim, JobIdentity, Link, Outcome, Owner, Record, encode

    layout, uuid = JobLayout(job.name), f"{job.name}-uuid"
    owner = Owner(
        run=f"run-{job.name}", host="worker-1", pid=7, user="airflow", dag_run=job.dag_run, task="run"
    )
    total = job.collected + job.standing
    began = now - total * job.interval * _SECOND
    put(root, layout.identity, encode(JobIdentity(uuid=uuid, name=job.name, at=began)))
    put(root, layout.epoch(1), encode(EpochClaim(epoch=1, writer="claim", owner=owner, at=began)))
    previous: Link | None = None
    lines = []
    for slot in range(1, total + 1):
        at = began + slot * job.interval * _SECOND - job.interval * _SECOND
        record = Record(
            kind="checkpoint",
            job=uuid,
            slot=slot,
            epoch=1,
            writer=f"{slot:032x}",
            previous=previous,
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
        previous = Link(slot=slot, writer=record.writer)
        outcome = Outcome(
            slot=slot,
            record=record.writer,
            writer=f"{slot:032x}-done",
            epoch=1,
            sinks={"totals": "committed"},
            at=at + (200 + slot % 97 * 10) * 1000,
            last_commits={"totals": slot},
            statistics={"evaluate_ms": 1500, "decide_ms": 12, "commit_ms": 180},
        )
        if slot > job.collected:
            put(root, layout.pending(slot), encode(record))
            put(root, layout.metadata(slot), encode(outcome))
        else:
            lines.append((record, outcome))
    keep_lines(root, layout, lines)
    beat = Heartbeat(
        epoch=1,
        counter=total + 1,
        owner=owner,
        at=now - _SECOND if job.running else now - job.interval * _SECOND,
        ended=not job.running,
        outcome=None
        if job.running
        else RunOutcome(batches=total, rows=total * 1000, checkpoint=total, stopped="drained"),
    )
    put(root, layout.heartbeat(1), encode(beat))
    put(root, layout.progress(1), encode(Progress(epoch=1, slot=total, statistics=statistics(total), at=now)))


def contents(job: Made, layout: Any, slot: int) -> dict[str, Any]:
    from stateflow.format.records import FileRef, OperatorState, Prepared, Shard, SourceState, StateSchema

    offset = (
        '{"sourceVersion":1,"reservoirId":"5ca1ab1e-0000-4000-8000-000000000007","reservoirVersion":VERSION,'
        '"index":-1,"isStartingVersion":false}'
    )
    width = GROUPS // job.shards
    shards, assignment = [], []
    for number in range(job.shards):
        first = number * width
        last = GROUPS - 1 if number == job.shards - 1 else first + width - 1
        files = tuple(
            FileRef(
                f"{file:06d}.sst",
                100_000 * (number + 1) + slot,
                "0" * 16,
                layout.shared_file(1, slot if file == 0 else 1, f"{number}-{file}", ".sst"),
            )
            for file in range(job.files)
        )
        shards.append((Shard(first, last, "rocksdb", files, entries=1000 * (number + 1)),))
        assignment.append((first, last))
    return {
        "operators": {
            "balance": OperatorState(
                key=(("user", "int"),),
                max_parallelism=GROUPS,
                assignment=tuple(assignment),
                shards=tuple(shards),
                states={"total": StateSchema(id=1, kind="value", value="float", queryable=True)},
                next_state_id=2,
                hosts=tuple(f"executor_worker-1_{number}" for number in range(job.shards)),
            )
        },
        "sources": {
            "events": SourceState(
                lines=(offset.replace("VERSION", str(slot)),),
                kind="delta",
            )
        },
        "sinks": {
            "totals": Prepared(
                kind="delta",
                target="/data/totals",
                prev=slot - 1 or None,
                payload={"table": "t", "actions": ['{"add":{"path":"part-0.parquet"}}'] * 3},
                rows=500,
            )
        },
    }


def statistics(slot: int) -> dict[str, Any]:
    """Statistics like those that a run records of a batch."""
    measured = {
        name: float(slot % 13)
        for name in (
            *(
                "opened",
                "open_s",
                "snapshot_s",
                "upload_s",
                "uploaded_bytes",
                "uploaded_files",
                "compacted_bytes",
            ),
            *(
                "inlined_bytes",
                "flushed_bytes",
                "runs",
                "spills",
                "cache_hits",
                "cache_misses",
                "fetched_bytes",
                "task_s",
            ),
        )
    }
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


def keep_lines(root: Path, layout: Any, lines: list[tuple[Any, Any]]) -> None:
    """The history in segments, as a collection writes it."""
    import msgspec
    import xxhash

    from stateflow.checkpoint.statistics import SEGMENT, history_line

    for at in range(0, len(lines), SEGMENT):
        part = [history_line(record, outcome) for record, outcome in lines[at : at + SEGMENT]]
        body = b"".join(msgspec.json.encode(line) + b"\n" for line in part)
        put(root, layout.statistics_segment(part[0].id, len(part), xxhash.xxh3_64_hexdigest(body)), body)


def put(root: Path, path: str, body: bytes) -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(body)
