"""The inputs and outputs of one task's runs, from the runs' own notes and from the job's history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stateflow.checkpoint import scheduled
from stateflow.checkpoint.control import same_owner
from stateflow.checkpoint.lineage import Dataset, Endpoint, RunLineage, read_lineage, rows_read, rows_written
from stateflow.checkpoint.log import read_epochs

if TYPE_CHECKING:
    from stateflow.format.records import Owner
    from stateflow.jobs.job import Job


@dataclass(frozen=True, slots=True)
class TaskLineage:
    """Of all drivers that one task of a DAG run has had."""

    job: str
    root: str
    epoch: int
    checkpoint: int | None
    batches: int
    inputs: tuple[Endpoint, ...]
    outputs: tuple[Endpoint, ...]
    read: Mapping[str, int] = field(default_factory=dict)
    """Rows, by source."""
    written: Mapping[str, int] = field(default_factory=dict)
    """Rows, by sink."""


def lineage_of(job: Job, owner: Owner) -> TaskLineage | None:
    """What the runs of this task did since somebody last cleared it; None when none has begun."""
    if not job.exists:
        return None
    mark = scheduled.find(job.store, job.layout, owner.dag_run, owner.task)
    start = (mark.since or 0) if mark is not None else 0
    lines = job.history()
    run = _newest_run(job, owner)
    if run is None or run.began_from < start:
        return None
    task = (owner.dag_run, owner.task)
    own = [line for line in lines if line.id > start and (line.dag_run, line.task) == task]
    return TaskLineage(
        job=job.name,
        root=job.store.url,
        epoch=run.epoch,
        checkpoint=own[-1].id if own else None,
        batches=sum(line.kind == "checkpoint" and "positions" not in line.metrics for line in own),
        inputs=run.inputs,
        outputs=run.outputs,
        read=rows_read(own),
        written=rows_written(own),
    )


def _newest_run(job: Job, owner: Owner) -> RunLineage | None:
    """The newest of this task: another task's run may have begun since."""
    for epoch in sorted(read_epochs(job.store, job.layout), reverse=True):
        run = read_lineage(job.store, job.layout, epoch)
        if run is not None and same_owner(run.owner, owner):
            return run
    return None


def dataset_name(dataset: Dataset) -> tuple[str, str]:
    """Namespace and name, as OpenLineage's convention for the kind of storage has them."""
    if dataset.kind == "kafka":
        server = dataset.servers.split(",")[0].strip()
        return f"kafka://{server}", dataset.place
    scheme, colon, rest = dataset.place.partition(":")
    if not colon or "/" in scheme:
        # A path, or the name of a table in Spark's catalog.
        return ("file", dataset.place.rstrip("/")) if "/" in dataset.place else ("spark", dataset.place)
    if scheme == "file":
        return "file", f"/{rest.strip('/')}"
    scheme = {"s3a": "s3", "s3n": "s3"}.get(scheme, scheme)
    authority, _, path = rest.removeprefix("//").partition("/")
    return f"{scheme}://{authority}", path.rstrip("/") or "/"
