"""Which snapshot a restore starts from: one of a job's checkpoints, or a savepoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stateflow.checkpoint.log import Log
from stateflow.checkpoint.names import (
    Elsewhere,
    LatestCheckpoint,
    Name,
    Slot,
    Tag,
    Time,
    parse,
    slot_of,
)
from stateflow.format.records import Prepared, Record, Savepoint
from stateflow.savepoints.format import read_savepoint, resolved
from stateflow.savepoints.outputs import JobOutputs, outputs_at, outputs_of
from stateflow.storage.roots import open_store

if TYPE_CHECKING:
    from stateflow.checkpoint.handle import JobHandle


@dataclass(frozen=True)
class Origin:
    """A snapshot to restore from. The references in its record are complete: every file can be read where it is."""

    label: str
    """checkpoint:42, tag:v1, or the URL of a savepoint."""
    record: Record
    job: str
    """The job that made the snapshot."""
    owner: JobHandle | None = None
    """The same job as a handle, when the snapshot is one of its checkpoints."""
    outputs: JobOutputs = field(default_factory=JobOutputs)
    savepoint: Savepoint | None = None
    url: str = ""

    @property
    def last_commits(self) -> Mapping[str, int]:
        """By sink uid: the slot of the last output that the sink had at the snapshot, as far as that is known."""
        return self.outputs.last_commits or {}

    @property
    def canonical(self) -> bool:
        return self.savepoint is not None and self.savepoint.kind == "canonical"

    @property
    def rows(self) -> dict[tuple[str, str], int]:
        """By operator and state: the rows of its table, if the snapshot is a canonical savepoint."""
        tables = self.savepoint.tables if self.savepoint is not None else {}
        return {
            (uid, name): sum(file.rows for file in files)
            for uid, states in tables.items()
            for name, files in states.items()
        }


def find_origin(origin: str, job: JobHandle, storage_options: Mapping[str, str]) -> Origin:
    """Finds `latest`, `42`, `checkpoint:42` or `tag:NAME` of `job`, or a savepoint by its URL or folder."""
    name = parse(origin)
    if not isinstance(name, Elsewhere):
        return _checkpoint(name, job)
    store = open_store(name.url, storage_options)
    savepoint = read_savepoint(store)
    return Origin(
        label=store.url,
        record=resolved(savepoint, store.url),
        job=savepoint.job,
        outputs=outputs_of(savepoint),
        savepoint=savepoint,
        url=store.url,
    )


def is_origin(label: str, origin: str, storage_options: Mapping[str, str]) -> bool:
    """Whether a restore that has this label began from `origin`, as far as the label tells: the newest one, or that of a time, may have been any."""
    name = parse(origin)
    if isinstance(name, LatestCheckpoint | Time):
        return True
    return label == (open_store(name.url, storage_options).url if isinstance(name, Elsewhere) else str(name))


def _checkpoint(name: Name, job: JobHandle) -> Origin:
    log = job.log()
    slot = slot_of(name, job, log)
    outputs = outputs_at(log, slot)
    return Origin(
        label=str(name if isinstance(name, Tag) else Slot(slot)),
        record=log.record(slot),
        job=job.name,
        owner=job,
        outputs=outputs,
    )


def written_places(log: Log) -> dict[str, Prepared]:
    """By sink uid: what the job has written last, or will as soon as its last record is carried out; it says where."""
    pending = {uid for record in log.pending for uid in record.sinks}
    return {
        uid: prepared
        for uid, prepared in log.newest_sinks.items()
        if uid in log.last_commits or uid in pending
    }
