"""The orders example as its runs leave it, with files that nobody opens for state."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from stateflow.compatibility.states import resolve_states
from stateflow.config.options import Options
from stateflow.format.records import CATALOG_NAME, PartitionTime, Prepared, SourceState
from stateflow.pipelines.loading import load_pipeline
from stateflow.pipelines.pipeline import Pipeline
from stateflow.restore.planned import RestorePlan
from stateflow.storage.files import inline
from stateflow.storage.store import Store
from tests.jobs.builder import JobBuilder, before_now
from tests.jobs.files import stored
from tests.jobs.operators import one_shard

REPOSITORY = Path(__file__).resolve().parents[2]
ORDERS = REPOSITORY / "examples" / "orders.py"
PARAMETERS = {"input": "/data/orders", "output": "/data/totals"}
JUST_NOW = timedelta(0)
OFFSET = '{"sourceVersion":1,"reservoirId":"r","reservoirVersion":%d,"index":-1,"isStartingVersion":false}'


def orders_pipeline() -> Pipeline:
    return load_pipeline(str(ORDERS), REPOSITORY).pipeline


class MadeJob(JobBuilder):
    """One state file per checkpoint, of which the newest two are named; `small` state travels inside the records."""

    def __init__(
        self,
        place: str | Path | Store,
        name: str = "orders",
        *,
        watermark: int | None = None,
        final: bool = False,
        small: bool = False,
        noted: Mapping[str, Any] | None = None,
        **claimed: Any,
    ) -> None:
        """`noted`: further statistics of each batch. `claimed` is what `JobBuilder` takes."""
        self.watermark, self.final, self.small = watermark, final, small
        self.noted = noted or {}
        self.partitions: dict[str, PartitionTime] = {}
        """How far each partition of the source is, if its watermark is held per partition."""
        self.code: Mapping[str, str] = {}
        """Which version of a pipeline's file made the batches, if that is noted."""
        super().__init__(place, name, **claimed)

    def batch(
        self,
        *,
        rows: int = 100,
        carried_out: bool = True,
        kind: str = "delta_append",
        target: str = "/data/totals",
        name: str = "",
    ) -> int:
        """A checkpoint; without `carried_out` it is decided and stays pending. `name`: what a catalog calls the target."""
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
        node = orders_pipeline().build(PARAMETERS).operators[0]
        states, next_id = resolve_states(node, before)
        payload = {CATALOG_NAME: name} if name else {}
        operator = one_shard(
            *kept, new, key=("user", "int"), groups=128, backend="rocksdb", entries=10,
            states=states, next_state_id=next_id, hosts=("here",),
        )  # fmt: skip
        self.decide(
            now=now,
            watermark=self.watermark,
            final=self.final,
            sources={
                "events": SourceState(
                    lines=(OFFSET % slot,), kind="delta", event_time=now, partitions=self.partitions
                )
            },
            operators={"balance": operator},
            sinks={"totals": Prepared(kind=kind, target=target, payload=payload, rows=rows)},
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

    def batches(self, count: int, *, ended: bool = False, **batch: Any) -> None:
        """So many checkpoints, after which the run may have `ended`."""
        for _ in range(count):
            self.batch(**batch)
        if ended:
            self.beat(ended=True)

    def restore(
        self, origin: str, into: str = "", *, options: Options | None = None, **request: Any
    ) -> RestorePlan:
        """The plan to take the job back, or to fork it `into` another job, whose table is its own."""
        given = {**PARAMETERS, "output": f"/data/{into}"} if into else PARAMETERS
        request = {"options": options or self.options(), **request}
        return self.opened(into).restore(origin, orders_pipeline(), given, **request)


def made_job(
    place: str | Path | Store,
    name: str = "orders",
    *,
    batches: int = 3,
    ended: bool = True,
    ago: timedelta | None = None,
    **made: Any,
) -> MadeJob:
    """A job with so many checkpoints, whose run has ended or is at work. With `ago`, all of it happened then, by the clock of this
    machine. `made` is what `MadeJob` takes."""
    clock = {} if ago is None else {"clock": before_now(ago)}
    job = MadeJob(place, name, **clock, **made)
    job.batches(batches)
    job.beat(ended=ended)
    return job
