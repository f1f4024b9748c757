"""Deleting a whole job. Only its tombstone stays: the claim of the last epoch, which fences every run for good."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stateflow.checkpoint.claim import claim_epoch
from stateflow.checkpoint.collection import DisposeSavepoint, dispose_all
from stateflow.checkpoint.log import read_epoch_claim, read_epochs, read_identity, read_log
from stateflow.checkpoint.pins import read_pins
from stateflow.errors import IncompatibleError, StateflowError, UsageError
from stateflow.format.layout import LAST_EPOCH, JobLayout
from stateflow.format.records import EpochClaim, Owner, encode
from stateflow.format.references import bases
from stateflow.storage.local import in_held_root
from stateflow.storage.store import Store, create_once


@dataclass(frozen=True, slots=True)
class Deleted:
    """What was deleted."""

    files: int
    bytes: int
    savepoints: tuple[str, ...]
    """Savepoints that the job had claimed, and that were deleted with it."""
    undisposed: Mapping[str, str] = field(default_factory=dict)
    """Claimed savepoints that could not be deleted, with the reason."""
    left: Mapping[str, str] = field(default_factory=dict)
    """Claimed savepoints that are not the job's to delete in this root, with the reason."""
    unfinished: Mapping[str, int] = field(default_factory=dict)
    """Savepoints in the root that killed makers had left, and that were deleted with the job, each with its bytes."""


def is_deleted(store: Store, layout: JobLayout, uuid: str) -> bool:
    """Whether the job of this UUID had the name, and was deleted. False when its root cannot be read."""
    try:
        return read_epoch_claim(store, layout, LAST_EPOCH).job == uuid
    except StateflowError:
        return False


def refuse_pinned(store: Store, layout: JobLayout) -> None:
    """Raises while a fork or a savepoint being made reads the job, or a pin of a newer release that may be theirs is there."""
    readable, unreadable = read_pins(store, layout)
    if pins := [pin for pin in readable if pin.kind in ("fork", "savepoint")]:
        raise UsageError(
            f"job {layout.job!r} cannot be deleted now: {pins[0].kind} by {pins[0].owner.user or pins[0].owner.run} reads "
            f"checkpoint {pins[0].slot} ({pins[0].reason or 'no reason given'}); wait for it, or remove {layout.pin(pins[0].id)} "
            "when its process is gone"
        )
    for error in unreadable.values():
        # A damaged pin keeps nobody from deleting the whole job; one of a newer release is sound, and somebody relies on it.
        if isinstance(error, IncompatibleError):
            raise IncompatibleError(
                f"job {layout.job!r} cannot be deleted by this release, as a fork or a savepoint being made may read it: {error}"
            ) from error


@in_held_root
def delete_job(
    store: Store,
    layout: JobLayout,
    *,
    owner: Owner,
    ids: Callable[[], str],
    clock: Callable[[], int],
    dispose: DisposeSavepoint,
) -> Deleted:
    """Fences every run, then deletes everything but the tombstone. After a crash the caller can repeat it."""
    refuse_pinned(store, layout)
    if LAST_EPOCH not in read_epochs(store, layout):
        claim_epoch(store, layout, owner=owner, ids=ids, clock=clock, probe=lambda store, ids: None)
        # The tombstone names the job's UUID: from now on anybody may dispose of a savepoint that this job had claimed.
        identity = read_identity(store, layout)
        tombstone = EpochClaim(
            epoch=LAST_EPOCH, writer=ids(), owner=owner, at=clock(), job=identity.uuid if identity else ""
        )
        create_once(store, layout.tombstone, encode(tombstone))
    log = read_log(store, layout)
    claimed = tuple(sorted(bases(slot.record for slot in log.slots.values() if slot.record is not None)))
    disposals = dispose_all(claimed, dispose)
    entries = [e for e in store.list(layout.folder) if e.path != layout.tombstone]
    # The identity goes last: as long as it is there, an interrupted deletion can be repeated.
    store.delete([e.path for e in entries if e.path != layout.identity])
    store.delete([layout.identity])
    return Deleted(len(entries), sum(e.size for e in entries), *disposals)
