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
    """A snapshot to restore from; the files of its record can be read from where they are."""

    label: str
    """checkpoint:42, tag:v1, or the URL of a savepoint."""
    record: Record
    job: str
    """The job that made it."""
    owner: JobHandle | None = None
    """That job, when the snapshot is one of its checkpoints."""
    last_commits: Mapping[str, int] = field(default_factory=dict)
    """Per sink uid the slot whose output was its last at the snapshot."""
    targets: Mapping[str, str] = field(default_factory=dict)
    """Where that job's sinks write."""
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
    found = tags(job.store, job.layout)
    if rest not in found:
        known = ", ".join(sorted(found)) or "none"
        raise NotFoundError(f"job {job.name!r} has no tag {rest!r}; its tags are: {known}")
    return found[rest].slot


def require_checkpoint(log: Log, slot: int) -> Outcome:
    """How a record that has state and is carried out has come out; raises for any other."""
    record, facts = log.record(slot), log.slots[slot]
    if not record.carries_state or not facts.complete or facts.outcome is None:
        what = f"a {record.kind}" if not record.carries_state else "not carried out yet"
        raise NotFoundError(
            f"record {slot} of job {log.job!r} is no complete checkpoint (it is {what}): "
            f"`stateflow checkpoints {log.job}` lists those that are"
        )
    return facts.outcome


def refuse_erased(log: Log, slot: int) -> None:
    """What was erased does not come back with an older checkpoint that has outlived it, as one that is pinned does."""
    erased = next(
        (record.slot for record in log.chain if record.kind == "erase" and record.slot > slot), None
    )
    if erased is not None:
        raise UsageError(
            f"checkpoint {slot} of job {log.job!r} still holds a key that record {erased} has erased: restore a newer one"
        )


def newest_sinks(log: Log) -> dict[str, Prepared]:
    """Per sink uid what was prepared last."""
    found: dict[str, Prepared] = {}
    for record in log.chain:
        found.update(record.sinks)
    return found
