"""Which snapshot a restore starts from: one of a job's checkpoints, or a savepoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stateflow.checkpoint.log import Log
from stateflow.checkpoint.pins import tags
from stateflow.errors import NotFoundError, UsageError
from stateflow.format.records import Outcome, Prepared, Record, Savepoint
from stateflow.savepoints.format import read_savepoint, resolved
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
    last_commits: Mapping[str, int] = field(default_factory=dict)
    """By sink uid: the slot of the last output that the sink had at the snapshot."""
    targets: Mapping[str, str] = field(default_factory=dict)
    """By sink uid: where the job writes."""
    savepoint: Savepoint | None = None
    url: str = ""

    @property
    def canonical(self) -> bool:
        return self.savepoint is not None and self.savepoint.kind == "canonical"


def find_origin(origin: str, job: JobHandle, storage_options: Mapping[str, str]) -> Origin:
    """`latest`, `checkpoint:N` or `tag:NAME` of `job`, or the URL or folder of a savepoint."""
    kind, colon, rest = origin.partition(":")
    if origin == "latest" or (colon and kind in ("checkpoint", "tag")):
        return _checkpoint(kind, rest, job)
    store = open_store(origin, storage_options)
    savepoint = read_savepoint(store)
    return Origin(
        label=store.url,
        record=resolved(savepoint, store.url),
        job=savepoint.job,
        targets=savepoint.targets,
        savepoint=savepoint,
        url=store.url,
    )


def _checkpoint(kind: str, rest: str, job: JobHandle) -> Origin:
    log = job.log()
    slot = slot_named(kind, rest, job, log)
    record = log.record(slot)
    outcome = require_checkpoint(log, slot)
    refuse_erased(log, slot)
    label = f"checkpoint:{slot}" if kind == "latest" else f"{kind}:{rest}"
    newest = newest_sinks(log)
    return Origin(
        label=label,
        record=record,
        job=job.name,
        owner=job,
        last_commits=outcome.last_commits,
        targets={uid: prepared.target for uid, prepared in newest.items()},
    )


def slot_named(kind: str, rest: str, job: JobHandle, log: Log) -> int:
    """The slot that `latest`, `N`, `checkpoint:N` or `tag:NAME` stands for."""
    if kind.isdecimal() and not rest:
        kind, rest = "checkpoint", kind
    if kind == "latest" and not rest:
        if log.head is None:
            raise NotFoundError(f"job {job.name!r} has no checkpoint yet: run it once")
        return log.head.slot
    if kind == "checkpoint":
        if not rest.isdecimal():
            raise UsageError(f"checkpoint:{rest} does not name a checkpoint: write checkpoint:42")
        return int(rest)
    if kind != "tag" or not rest:
        written = f"{kind}:{rest}" if rest else kind
        raise UsageError(f"{written!r} names no checkpoint: write latest, 42, checkpoint:42 or tag:NAME")
    pins = tags(job.store, job.layout)
    if rest not in pins:
        known = ", ".join(sorted(pins)) or "none"
        raise NotFoundError(f"job {job.name!r} has no tag {rest!r}; its tags are: {known}")
    return pins[rest].slot


def require_checkpoint(log: Log, slot: int) -> Outcome:
    """The outcome of a record that has state and was carried out. Raises for any other record."""
    record, facts = log.record(slot), log.slots[slot]
    if not record.carries_state or not facts.complete or facts.outcome is None:
        reason = f"a {record.kind}" if not record.carries_state else "not carried out yet"
        raise NotFoundError(
            f"record {slot} of job {log.job!r} is no complete checkpoint (it is {reason}): "
            f"`stateflow checkpoints {log.job}` lists those that are"
        )
    return facts.outcome


def refuse_erased(log: Log, slot: int) -> None:
    """UsageError for a checkpoint from before an erasure, which a pin may have kept: it still holds the erased key."""
    erased = next(
        (record.slot for record in log.chain if record.kind == "erase" and record.slot > slot), None
    )
    if erased is not None:
        raise UsageError(
            f"checkpoint {slot} of job {log.job!r} still holds a key that record {erased} has erased: restore a newer one"
        )


def newest_sinks(log: Log) -> dict[str, Prepared]:
    """By sink uid: the newest prepared output."""
    newest: dict[str, Prepared] = {}
    for record in log.chain:
        newest.update(record.sinks)
    return newest
