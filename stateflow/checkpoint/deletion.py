"""Deleting a whole job. What stays is its tombstone: the claim of the last epoch, which fences every run for good."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stateflow.checkpoint.claim import claim_epoch
from stateflow.checkpoint.collection import DisposeSavepoint, disposed_of
from stateflow.checkpoint.log import read_epochs, read_identity, read_log
from stateflow.checkpoint.pins import list_pins
from stateflow.errors import UsageError
from stateflow.format.layout import LAST_EPOCH, JobLayout
from stateflow.format.records import Claim, Owner, encode
from stateflow.format.references import bases
from stateflow.storage.store import Store, create_once


@dataclass(frozen=True, slots=True)
class Deleted:
    """What is gone."""

    files: int
    bytes: int
    savepoints: tuple[str, ...]
    """Savepoints that the job had claimed, disposed of."""
    undisposed: Mapping[str, str] = field(default_factory=dict)
    """Those that could not be disposed of, with the reason."""


def delete_job(
    store: Store,
    layout: JobLayout,
    *,
    owner: Owner,
    ids: Callable[[], str],
    clock: Callable[[], int],
    dispose: DisposeSavepoint,
) -> Deleted:
    """Fences every run, then deletes all but the tombstone. Safe to repeat after a crash."""
    held = [pin for pin in list_pins(store, layout) if pin.kind in ("fork", "savepoint")]
    if held:
        raise UsageError(
            f"job {layout.job!r} cannot be deleted now: {held[0].kind} by {held[0].owner.user or held[0].owner.run} reads "
            f"checkpoint {held[0].slot} ({held[0].reason or 'no reason given'}); wait for it, or remove {layout.pin(held[0].id)} "
            "when its process is gone"
        )
    if LAST_EPOCH not in read_epochs(store, layout):
        claim_epoch(store, layout, owner=owner, ids=ids, clock=clock, probe=lambda store, ids: None)
        # Who it was is said, for what it had claimed elsewhere may be anybody's to dispose of from now on.
        identity = read_identity(store, layout)
        tombstone = Claim(
            epoch=LAST_EPOCH, writer=ids(), owner=owner, at=clock(), job=identity.uuid if identity else ""
        )
        create_once(store, layout.tombstone, encode(tombstone))
    log = read_log(store, layout)
    claimed = tuple(sorted(bases(slot.record for slot in log.slots.values() if slot.record is not None)))
    undisposed = disposed_of(claimed, dispose)
    entries = [e for e in store.list(layout.folder) if e.path != layout.tombstone]
    # Who the job was goes last: until then a deletion that was cut off can be taken up again.
    store.delete([e.path for e in entries if e.path != layout.identity])
    store.delete([layout.identity])
    gone = tuple(url for url in claimed if url not in undisposed)
    return Deleted(len(entries), sum(e.size for e in entries), gone, undisposed)
