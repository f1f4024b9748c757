"""Savepoints of a job. A process of its own makes them from a complete checkpoint, with or without a run beside it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from stateflow.checkpoint.handle import JobHandle
from stateflow.checkpoint.idempotency import pins_of, release_others
from stateflow.checkpoint.log import has_tombstone, is_job, list_jobs
from stateflow.checkpoint.names import parse, refuse_erased, slot_of
from stateflow.checkpoint.pins import list_pins, pinned, release
from stateflow.checkpoint.process import this_process
from stateflow.config.options import Options, scratch_parent
from stateflow.errors import CorruptError, IncompatibleError, NotFoundError, UsageError
from stateflow.format.layout import SAVEPOINTS, JobLayout, checked_name, default_savepoint
from stateflow.format.records import Owner, Record, Savepoint
from stateflow.observe.status import decoded_offsets
from stateflow.savepoints.dispose import dispose_savepoint
from stateflow.savepoints.format import (
    expired,
    is_whole,
    list_savepoints,
    read_savepoint,
    read_savepoint_claim,
    unfinished,
)
from stateflow.savepoints.location import require_fit
from stateflow.savepoints.native import create_native
from stateflow.savepoints.outputs import outputs_at
from stateflow.savepoints.publish import SavepointFacts, probe_elsewhere, require_vacant
from stateflow.storage.roots import open_store
from stateflow.storage.store import Store

_log = logging.getLogger(__name__)

_LONGEST_LIFE = timedelta(days=2_900_000)
"""To the last years of the 9999 in which time is counted."""
SavepointKind = Literal["native", "canonical"]
Progress = Callable[[str, int, int], object]
"""progress(what, done, total): bytes, or key groups."""


@dataclass(frozen=True)
class SavepointRequest:
    """Which savepoint to make, from which checkpoint, and where."""

    job: JobHandle
    options: Options
    owner: Owner
    kind: SavepointKind = "native"
    checkpoint: str = "latest"
    """latest, N, checkpoint:N or tag:NAME."""
    to: str = ""
    """A folder or URL of its own. When empty: `_savepoints/<job>/<name>` in the job's root."""
    name: str = ""
    note: str = ""
    expires: timedelta | None = None
    """How long it lives: later a clean-up may dispose of it."""
    max_files: int = 0
    """Native: packs small files into at most so many objects; 0 packs none."""
    split_size: int = 512 << 20
    """Canonical: how many bytes of state one task writes."""
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MadeSavepoint:
    url: str
    savepoint: Savepoint

    def __repr__(self) -> str:
        savepoint = self.savepoint
        return f"MadeSavepoint({self.url!r}: {savepoint.kind}, checkpoint {savepoint.record.slot} of job {savepoint.job!r})"


def checked_lifetime(expires: timedelta | None) -> timedelta | None:
    """The same time. UsageError unless it is one in which somebody can use a savepoint, and ends on a day that can be written down."""
    if expires is not None and expires <= timedelta(0):
        raise UsageError(
            "a savepoint that expires at once is of no use: leave `expires` out for one that stays"
        )
    if expires is not None and expires > _LONGEST_LIFE:
        raise UsageError(
            f"a savepoint that expires in {expires.days} days would do so behind all time that is counted here: leave `expires` out "
            "for one that stays"
        )
    return expires


def create_savepoint(
    request: SavepointRequest, progress: Progress = lambda what, done, total: None
) -> MadeSavepoint:
    """Makes a savepoint. It becomes visible when it is whole. A pin keeps the checkpoint from collection meanwhile."""
    job, expires = request.job, checked_lifetime(request.expires)
    log = job.log()
    slot = slot_of(parse(request.checkpoint), job, log)
    record, outputs = log.record(slot), outputs_at(log, slot)
    name = checked_name("savepoint", request.name or f"{request.kind}-{slot}-{job.new_id()[:8]}")
    url = request.to or f"{job.root.rstrip('/')}/{default_savepoint(job.name, name)}"
    # A place that the caller has not named lies in the root, where no link is followed.
    target = open_store(url, job.storage_options, below="" if request.to else job.store.url)
    require_fit(target.url, job.store.url, job.name, lambda folder: is_job(job.store, folder))
    if (existing := _from_earlier_try(request, target)) is not None:
        return MadeSavepoint(target.url, existing)
    require_vacant(target)
    probe_elsewhere(target, job.store.url, job.new_id)
    facts = SavepointFacts(
        name=name,
        owner=request.owner,
        note=request.note,
        expires=None if expires is None else job.clock() + expires // timedelta(microseconds=1),
        offsets={uid: decoded_offsets(state) for uid, state in record.sources.items()},
        outputs=outputs,
    )
    with pinned(
        job.store,
        job.layout,
        slot,
        kind="savepoint",
        owner=request.owner,
        ids=job.new_id,
        clock=job.clock,
        reason=f"{request.kind} savepoint {name}",
    ) as pin:
        release_others(job.store, job.layout, pin)
        # An erasure that begins now sees the pin, and lists or refuses. One from before the pin may have missed this savepoint.
        refuse_erased(job.log(), slot)
        if request.kind == "canonical":
            return MadeSavepoint(target.url, _canonical(request, record, url, facts, progress))
        savepoint = create_native(
            job.store,
            job.layout,
            record,
            target,
            facts,
            ids=job.new_id,
            clock=job.clock,
            max_files=request.max_files,
            open_base=job.open_base,
            scratch=scratch_parent(request.options),
            progress=progress,
        )
    return MadeSavepoint(target.url, savepoint)


def _canonical(
    request: SavepointRequest, record: Record, url: str, facts: SavepointFacts, progress: Progress
) -> Savepoint:
    """Only this kind needs Spark."""
    from stateflow.spark.session.build import build_session
    from stateflow.spark.state_tables.canonical import create_canonical

    job = request.job
    return create_canonical(
        build_session(f"stateflow savepoint {job.name}", conf=dict(request.conf)),
        facts,
        root_url=job.root,
        job=job.name,
        record=record,
        target_url=url,
        storage_options=job.storage_options,
        ids=job.new_id,
        clock=job.clock,
        split_bytes=request.split_size,
        max_tasks=max((o.max_parallelism for o in record.operators.values()), default=1),
        options=request.options,
        progress=progress,
    )


def _from_earlier_try(request: SavepointRequest, target: Store) -> Savepoint | None:
    """The savepoint that an earlier try with the same idempotency key made there, if it is whole.

    Deletes what a try that was killed halfway left behind.
    """
    job, owner = request.job, request.owner
    pins = pins_of(job.store, job.layout, owner.run)
    try:
        savepoint = read_savepoint(target)
    except NotFoundError:
        if pins:
            with suppress(
                NotFoundError, UsageError
            ):  # nothing was stored yet, or that try has just made it after all
                dispose_savepoint(target, owner=owner, clock=job.clock, expect="")
        return None
    except (CorruptError, IncompatibleError):
        return None  # another program's, then
    if savepoint.owner.run != owner.run or (
        (claim := read_savepoint_claim(target)) is not None and not claim.job
    ):
        return None
    if not is_whole(target, savepoint):
        # The try made it visible, and was killed before it noticed that somebody had disposed of its files.
        with suppress(NotFoundError):
            dispose_savepoint(target, owner=owner, clock=job.clock, expect=savepoint.id)
        return None
    for pin in pins:
        release(job.store, job.layout, pin.id)
    return savepoint


def expired_savepoints(job: JobHandle) -> list[str]:
    """URLs of savepoints in the root that have expired and that nobody has claimed: the job's, and those of jobs that are gone."""
    return list(_expired(job))


def _expired(job: JobHandle) -> dict[str, str]:
    """The URLs of `expired_savepoints`, each with the savepoint's id."""
    now, store = job.clock(), job.store
    others = {name for name in store.folders(f"{SAVEPOINTS}/") if name != job.name}
    gone = sorted(others.difference(list_jobs(store))) if others else []
    return {
        f"{store.url}/{path}": entry.savepoint.id
        for name in (job.name, *gone)
        for path, entry in list_savepoints(store, name)
        if entry.savepoint is not None and entry.claim is None and expired(entry.savepoint, now)
    }


def dispose_expired(job: JobHandle) -> dict[str, int]:
    """Deletes them; gives the bytes of each."""
    return _dispose(job, _expired(job))


def unfinished_savepoints(job: JobHandle, without: Collection[str] = ()) -> list[str]:
    """URLs in the job's root where the making or the disposal of a savepoint was cut off: the job's, and those of deleted jobs. Nothing
    there is visible.

    None of a job while somebody makes a savepoint: its maker holds a pin from before the first file until after `_metadata`. That
    is why it lists the folders before the pins, and again after them. The pins `without` count as released.
    """
    gone = sorted(name for name in job.store.folders(f"{SAVEPOINTS}/") if _is_deleted(job.store, name))
    names = [job.name, *(name for name in gone if name != job.name)]
    return [f"{job.store.url}/{path}" for name in names for path in _unfinished(job.store, name, without)]


def _unfinished(store: Store, name: str, without: Collection[str]) -> list[str]:
    before = unfinished(store, name)
    if not before:
        return []
    if any(pin.kind == "savepoint" for pin in list_pins(store, JobLayout(name), without=without)):
        return []
    return [path for path in unfinished(store, name) if path in before]


def _is_deleted(store: Store, name: str) -> bool:
    """Whether a tombstone says that the job is gone. A job that is only not there yet may get its first savepoint from an import."""
    try:
        layout = JobLayout(name)
    except UsageError:  # somebody else's folder
        return False
    return has_tombstone(store, layout)


def dispose_unfinished(job: JobHandle) -> dict[str, int]:
    """Deletes them; gives the bytes of each."""
    return _dispose(job, dict.fromkeys(unfinished_savepoints(job), ""))


def _dispose(job: JobHandle, savepoints: Mapping[str, str]) -> dict[str, int]:
    """Deletes `savepoints`: by URL the expected id, or "" for an unfinished one. Skips one that was replaced or claimed."""
    freed = {}
    damaged: list[CorruptError] = []
    for url, savepoint_id in savepoints.items():
        store = job.open_base(url)
        try:
            freed[url] = dispose_savepoint(
                store, owner=this_process(run=job.new_id()), clock=job.clock, expect=savepoint_id
            )
        except NotFoundError:
            pass  # somebody else has deleted it
        except UsageError as error:
            _log.warning("%s was passed over: %s", url, error)
        except CorruptError as error:  # such as a link: it says nothing of the others
            damaged.append(error)
    if damaged:
        others = f"; {len(damaged) - 1} more could not be deleted either" if len(damaged) > 1 else ""
        deleted = f"; {len(freed)} others were deleted" if freed else ""
        raise CorruptError(f"{damaged[0]}{others}{deleted}")
    return freed
