"""Jobs as a run leaves them, made through the protocol itself, without Spark."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from stateflow.checkpoint.claim import claim
from stateflow.checkpoint.control import Heartbeat, Progress, beat, report_progress
from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.pins import pin
from stateflow.checkpoint.writer import Writer
from stateflow.compatibility.states import resolve_states
from stateflow.errors import StateflowError
from stateflow.format.layout import JobLayout
from stateflow.format.records import (
    FileRef,
    OperatorState,
    Owner,
    Prepared,
    Record,
    Shard,
    SourceState,
)
from stateflow.pipelines.loading import load_pipeline
from stateflow.storage.files import inline
from stateflow.storage.roots import open_store

REPOSITORY = Path(__file__).resolve().parents[2]
ORDERS = REPOSITORY / "examples" / "orders.py"
PARAMETERS = {"input": "/data/orders", "output": "/data/totals"}
T0 = 1_767_225_600_000_000
"""2026-01-01, in microseconds."""
OFFSET = '{"sourceVersion":1,"reservoirId":"r","reservoirVersion":%d,"index":-1,"isStartingVersion":false}'


@dataclass
class MadeJob:
    """The orders example, with one state file per checkpoint of which the newest two are named."""

    root: str
    name: str = "orders"
    run: str = "run"
    retained: int | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    watermark: int | None = None
    noted: Mapping[str, Any] = field(default_factory=dict)
    """Further statistics of each batch."""
    small: bool = False
    """State travels inside the records."""
    ticks: Any = field(default_factory=lambda: itertools.count(1))
    writer: Writer = field(init=False)

    def __post_init__(self) -> None:
        self.store = open_store(self.root, self.storage_options)
        self.layout = JobLayout(self.name)
        self.begin(self.run)

    def ids(self) -> str:
        return f"id{next(self.ticks)}"

    def clock(self) -> int:
        return T0 + next(self.ticks) * 1_000_000

    def begin(self, run: str) -> Writer:
        """A run claims the job."""

        def stuck(
            record: Record, last: Mapping[str, int], still_owner: Callable[[], None]
        ) -> Mapping[str, str]:
            raise StateflowError("the table is not to be had")

        self.writer = claim(
            self.store,
            self.layout,
            owner=Owner(run=run, host="here", pid=1, user="tester"),
            ids=self.ids,
            clock=self.clock,
            carry_out=stuck,
            retained=self.retained,
        )
        return self.writer

    def batch(self, *, rows: int = 100, carried_out: bool = True, kind: str = "delta_append") -> int:
        """A checkpoint; without `carried_out` it is decided and stays pending."""
        writer = self.writer
        now = self.clock()
        slot = writer.next_slot
        path = self.layout.shared_file(writer.epoch, slot, f"state{slot}", ".sst")
        body = f"state of {slot}".encode()
        if self.small:
            new = inline(f"{slot}.sst", body)
        else:
            self.store.put(path, body)
            new = FileRef(name=f"{slot}.sst", size=len(body), xxh3=xxhash.xxh3_64_hexdigest(body), path=path)
        parent = writer.parent
        before = parent.operators.get("balance") if parent else None
        files = (*(before.shards[0][0].files[-1:] if before else ()), new)
        node = load_pipeline(str(ORDERS), REPOSITORY).pipeline.build(PARAMETERS).operators[0]
        states, next_id = resolve_states(node, before)
        operator = OperatorState(
            key=(("user", "int"),),
            max_parallelism=128,
            assignment=((0, 127),),
            shards=((Shard(first=0, last=127, backend="rocksdb", files=files, entries=10),),),
            states=states,
            next_state_id=next_id,
            hosts=("here",),
        )
        record = Draft(
            "checkpoint",
            now=now,
            watermark=self.watermark,
            sources={"events": SourceState(lines=(OFFSET % slot,), kind="delta", event_time=now)},
            operators={"balance": operator},
            sinks={
                "totals": Prepared(
                    kind=kind, target="/data/totals", prev=writer.last_commits.get("totals"), rows=rows
                )
            },
            parameters=PARAMETERS,
            versions={"stateflow": "0.1.0"},
            statistics={
                "trigger_timestamp": now // 1000,
                "processed_rows": rows,
                "metrics": {"uploaded_bytes": 10},
                **self.noted,
            },
        )
        permit = writer.decide(record)
        if carried_out:
            writer.complete(permit, {"totals": "committed"}, {"commit_ms": 5})
        return slot

    def beat(self, counter: int = 1, *, ended: bool = False, at: int | None = None) -> None:
        heartbeat = Heartbeat(
            epoch=self.writer.epoch,
            counter=counter,
            owner=self.writer.owner,
            at=self.clock() if at is None else at,
            ended=ended,
        )
        beat(self.store, self.layout, heartbeat)

    def progress(self, slot: int) -> None:
        report_progress(
            self.store,
            self.layout,
            Progress(epoch=self.writer.epoch, slot=slot, statistics={"processed_rows": 100}, at=self.clock()),
        )

    def tag(self, slot: int, name: str) -> None:
        pin(
            self.store,
            self.layout,
            slot,
            kind="tag",
            name=name,
            owner=self.writer.owner,
            ids=self.ids,
            clock=self.clock,
        )


def made_job(
    root: Path | str,
    name: str = "orders",
    *,
    batches: int = 3,
    ended: bool = True,
    storage_options: Mapping[str, str] | None = None,
) -> MadeJob:
    """A job with so many checkpoints, whose run has ended."""
    job = MadeJob(str(root), name, storage_options=storage_options or {})
    for _ in range(batches):
        job.batch()
    job.beat(ended=ended)
    return job
