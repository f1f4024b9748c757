"""Becoming the run that owns a job: claim an epoch, fence every lower epoch, carry out the records they decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from stateflow.checkpoint.control import busy
from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.log import BodyCache, Log, half_deleted, read_epochs, read_identity, read_log
from stateflow.checkpoint.recovery import (
    CarryOutRecord,
    CompleteFence,
    PlaceFence,
    Ready,
    Step,
    Stop,
    next_step,
)
from stateflow.checkpoint.retention import Retention, announced_by
from stateflow.checkpoint.writer import Writer, complete_record, taken_over
from stateflow.errors import NotFoundError, UsageError
from stateflow.format.layout import LAST_EPOCH, SAVEPOINT_METADATA, JobLayout
from stateflow.format.records import EpochClaim, JobIdentity, Owner, Record, encode
from stateflow.storage.probe import probe_root
from stateflow.storage.store import Store, create_once

StillOwner = Callable[[], None]
"""Raises FencedError once a newer run owns the job."""

CarryOut = Callable[[Record, StillOwner], Mapping[str, str]]
"""Commits a decided record in every sink and returns the outcome by sink uid. Raises to stop."""

ProbeStore = Callable[[Store, Callable[[], str]], None]
"""Raises UsageError when the store cannot be a checkpoint root; called before a job's first claim."""


@dataclass(frozen=True, slots=True)
class ClaimedEpoch:
    """A claimed epoch, the writer id of its fence, and a cache for reading the log."""

    epoch: int
    fence_writer: str
    cache: BodyCache


def claim(
    store: Store,
    layout: JobLayout,
    *,
    owner: Owner,
    ids: Callable[[], str],
    clock: Callable[[], int],
    carry_out: CarryOut,
    retained: Retention | int | None = None,
    probe: ProbeStore = probe_root,
    claimed_epoch: Callable[[int], object] = lambda epoch: None,
    restores: bool = False,
    after: int | None = None,
) -> Writer:
    """Claims the job, carries out every record decided before, and returns the job's writer. The first claim creates the job.

    With `retained` the fence announces what that keeps, so that `collect(retained)` may delete at
    once. It calls `claimed_epoch` before it carries anything out: that can take long, and whoever waits for the job must
    see that the run is alive. `restores`: it is claimed for a restore. `after`: the newest epoch when nobody ran the job;
    BusyError if another one has begun since.
    """
    claimed = claim_epoch(
        store, layout, owner=owner, ids=ids, clock=clock, probe=probe, restores=restores, after=after
    )
    claimed_epoch(claimed.epoch)
    while True:
        log, step = observe(store, layout, claimed)
        if isinstance(step, Ready):
            return Writer(
                store,
                layout,
                log=log,
                epoch=claimed.epoch,
                owner=owner,
                ids=ids,
                clock=clock,
                retained=retained,
                cache=claimed.cache,
            )
        if isinstance(step, PlaceFence):
            place_fence(store, layout, log, step, claimed, owner=owner, at=clock(), retained=retained)
            continue
        record = step.record if isinstance(step, CarryOutRecord) else step.fence
        still_owner = partial(require_newest, store, layout, claimed.epoch)
        outcomes = carry_out(record, still_owner) if record.carries_state else {}
        complete_record(
            store,
            layout,
            record,
            outcomes,
            log=log,
            epoch=claimed.epoch,
            owner=owner,
            writer=ids(),
            at=clock(),
            statistics={},
        )


def observe(
    store: Store, layout: JobLayout, claimed: ClaimedEpoch
) -> tuple[Log, PlaceFence | CarryOutRecord | CompleteFence | Ready]:
    """The log and the next step. Raises FencedError when a newer run owns the job."""
    log = read_log(store, layout, cache=claimed.cache)
    log.require_sound()
    step: Step = next_step(log, claimed.epoch, claimed.fence_writer)
    if isinstance(step, Stop):
        raise taken_over(layout, step.newest, claimed.epoch)
    return log, step


def require_newest(store: Store, layout: JobLayout, epoch: int) -> None:
    """Raises FencedError when a newer run owns the job."""
    newest = max(read_epochs(store, layout), default=0)
    if newest > epoch:
        raise taken_over(layout, newest, epoch)


def claim_epoch(
    store: Store,
    layout: JobLayout,
    *,
    owner: Owner,
    ids: Callable[[], str],
    clock: Callable[[], int],
    probe: ProbeStore = probe_root,
    restores: bool = False,
    after: int | None = None,
) -> ClaimedEpoch:
    """Claims the next epoch, creating the job if there is none yet."""
    if not living_epochs(store, layout):
        _refuse_savepoint_inside(store, layout)
        # The whole protocol relies on create-only writes, and some stores and emulators ignore the condition.
        probe(store, ids)
        identity = JobIdentity(uuid=ids(), name=layout.job, at=clock())
        create_once(store, layout.identity, encode(identity))
    while True:
        newest = max(living_epochs(store, layout), default=0)
        if after is not None and newest != after:
            raise busy(layout.job, newest, None)
        epoch = newest + 1
        body = encode(EpochClaim(epoch=epoch, writer=ids(), owner=owner, at=clock(), restores=restores))
        if create_once(store, layout.epoch(epoch), body) == body:
            # No guarantee yet: another run may have had this epoch before a collector deleted its claim. `observe`
            # checks that.
            return ClaimedEpoch(epoch, ids(), {})


def _refuse_savepoint_inside(store: Store, layout: JobLayout) -> None:
    """UsageError where somebody has put a savepoint into the folder that would be the job's, and would go with it."""
    for entry in store.list(layout.folder):
        folder, _, name = entry.path.rpartition("/")
        if name == SAVEPOINT_METADATA and not folder.startswith(layout.log):
            raise UsageError(
                f"{store.url}/{folder} holds a savepoint, which would be deleted with a job called {layout.job!r}: choose another name for the job, "
                "or move that folder out of the checkpoint root"
            )


def living_epochs(store: Store, layout: JobLayout) -> tuple[int, ...]:
    """The epochs of a job that was not deleted. Read before every attempt: somebody may delete the job meanwhile."""
    known = read_epochs(store, layout)
    if LAST_EPOCH in known and read_identity(store, layout) is not None:
        raise NotFoundError(half_deleted(layout.job))
    if LAST_EPOCH in known:
        raise UsageError(
            f"job {layout.job!r} was deleted and leaves a tombstone, because a forgotten run of it may "
            "still write there: "
            f"choose another name, or remove {layout.tombstone} when you are sure"
        )
    return known


def place_fence(
    store: Store,
    layout: JobLayout,
    log: Log,
    step: PlaceFence,
    claimed: ClaimedEpoch,
    *,
    owner: Owner,
    at: int,
    retained: Retention | int | None = None,
) -> None:
    """Tries to create the fence. The next `observe` tells whether it was created."""
    assert log.identity is not None
    announced = announced_by(log, "fence", retained)
    fence = Draft("fence", based_on=step.based_on, timeline=step.timeline).record(
        job=log.identity.uuid,
        slot=step.slot,
        epoch=claimed.epoch,
        writer=claimed.fence_writer,
        owner=owner,
        at=at,
        previous=step.previous,
        floor=announced.floor,
        kept=announced.kept,
    )
    create_once(store, layout.pending(step.slot), encode(fence))
