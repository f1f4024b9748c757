"""The orders example as its runs leave it, with files that nobody opens for state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stateflow.compatibility.states import resolve_states
from stateflow.format.records import PartitionTime, Prepared, SourceState
from stateflow.pipelines.loading import load_pipeline
from stateflow.storage.files import inline
from tests.jobs.fake import ClaimedJob
from tests.jobs.files import one_shard, stored

REPOSITORY = Path(__file__).resolve().parents[2]
ORDERS = REPOSITORY / "examples" / "orders.py"
PARAMETERS = {"input": "/data/orders", "output": "/data/totals"}
OFFSET = '{"sourceVersion":1,"reservoirId":"r","reservoirVersion":%d,"index":-1,"isStartingVersion":false}'


class MadeJob(ClaimedJob):
    """One state file per checkpoint, of which the newest two are named; `small` state travels inside the records."""

    def __init__(
        self,
        root: str,
        name: str = "orders",
        *,
        watermark: int | None = None,
        small: bool = False,
        noted: Mapping[str, Any] | None = None,
        **claimed: Any,
    ) -> None:
        self.watermark, self.small = watermark, small
        self.noted = noted or {}
        """Further statistics of each batch."""
        self.partitions: dict[str, PartitionTime] = {}
        """How far each partition of the source is, if its watermark is held per partition."""
        self.code: Mapping[str, str] = {}
        """Which version of a pipeline's file made the batches, if that is noted."""
        super().__init__(root, name, **claimed)

    def batch(
        self,
        *,
        rows: int = 100,
        carried_out: bool = True,
        kind: str = "delta_append",
        target: str = "/data/totals",
    ) -> int:
        """A checkpoint; without `carried_out` it is decided and stays pending."""
        writer = self.writer
        now = self.clock()
        slot = writer.next_slot
        path = self.layout.shared_file(writer.epoch, slot, f"state{slot}", ".sst")
        content = f"state of {slot}".encode()
        if self.small:
            new = inline(f"{slot}.sst", content)
        else:
            new = stored(self.store, path, content, name=f"{slot}.sst")
        before = writer.parent.operators.get("balance") if writer.parent else None
        kept = before.shards[0][0].files[-1:] if before else ()
        node = load_pipeline(str(ORDERS), REPOSITORY).pipeline.build(PARAMETERS).operators[0]
        states, next_id = resolve_states(node, before)
        operator = one_shard(
            *kept, new, key=("user", "int"), groups=128, backend="rocksdb", entries=10,
            states=states, next_state_id=next_id, hosts=("here",),
        )  # fmt: skip
        last = writer.last_commits.get("totals")
        self.decide(
            now=now,
            watermark=self.watermark,
            sources={
                "events": SourceState(
                    lines=(OFFSET % slot,), kind="delta", event_time=now, partitions=self.partitions
                )
            },
            operators={"balance": operator},
            sinks={"totals": Prepared(kind=kind, target=target, prev=last, rows=rows)},
            parameters=PARAMETERS,
            versions={"stateflow": "0.1.0", **self.code},
            statistics={
                "trigger_timestamp": now // 1000,
                "processed_rows": rows,
                "metrics": {"uploaded_bytes": 10},
                **self.noted,
            },
            pending=not carried_out,
            outcomes={"totals": "committed"},
            timings={"commit_ms": 5},
        )
        return slot


def made_job(
    root: Path | str,
    name: str = "orders",
    *,
    batches: int = 3,
    ended: bool = True,
    storage_options: Mapping[str, str] | None = None,
) -> MadeJob:
    """A job with so many checkpoints, whose run has ended."""
    job = MadeJob(str(root), name, storage_options=storage_options)
    for _ in range(batches):
        job.batch()
    job.beat(ended=ended)
    return job
