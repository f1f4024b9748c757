"""Disposing of savepoints: by hand, by a clean-up, and by the collector of the job that has claimed them.

The claim that a disposal makes says which savepoint is meant. It deletes all files that lie there, also those of an attempt
that is under way: whoever makes a savepoint finds the claim when it has created `_metadata`, or misses its files, and
gives way. What was made before the claim is looked for after it, and is what the disposal gives way to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType

from stateflow.checkpoint.collection import DisposeSavepoint
from stateflow.checkpoint.log import read_claim as read_epoch
from stateflow.errors import CorruptError, IncompatibleError, NotFoundError, StateflowError, UsageError
from stateflow.format.layout import (
    LAST_EPOCH,
    SAVEPOINT_CLAIM,
    SAVEPOINT_METADATA,
    SAVEPOINT_STATE,
    SAVEPOINT_TABLES,
    JobLayout,
    is_savepoint_file,
)
from stateflow.format.records import Owner, SavepointClaim, decode, encode
from stateflow.savepoints.format import (
    belongs,
    half_written,
    id_of,
    missing,
    read_claim,
    read_savepoint,
    stands_still,
    stored_files,
    taken,
    wanted,
    whole,
    withdraw,
)
from stateflow.storage.local import LocalStore
from stateflow.storage.roots import open_store
from stateflow.storage.store import Store, create_once

_log = logging.getLogger(__name__)
_NO_OPTIONS: Mapping[str, str] = MappingProxyType({})


def dispose_savepoint(
    store: Store,
    *,
    owner: Owner,
    clock: Callable[[], int],
    by_job: str = "",
    expect: str | None = None,
    storage_options: Mapping[str, str] = _NO_OPTIONS,
) -> int:
    """Deletes a savepoint; gives the bytes. Safe to repeat after a crash at any point, and by several at once.

    Also deletes what failed attempts to make it have left, and nothing that has another name than a savepoint's files.
    NotFoundError when there is nothing.

    `by_job`: UUID of the job that has claimed it, for its own disposal. `expect`: the id of the savepoint that is meant,
    or empty for what is left of none; UsageError when something else is there by now. What stands is meant without it,
    even what a job has claimed that was deleted since; `storage_options` are those of its root.
    """

    def disposed(by_job: str, expect: str | None) -> int:
        return _emptied(store, _held(store, owner, clock, by_job, expect, storage_options))

    _refuse_linked_folders(store)
    freed = disposed(by_job, expect)
    # One that was made just before the claim went has lost its files: its maker leaves it to whose claim it has seen.
    with suppress(NotFoundError, UsageError):
        while (broken := _broken(store)) is not None:
            freed += disposed("", broken)
    if store.local_root is not None:
        with suppress(OSError):  # something else is in it
            store.local_root.rmdir()
    return freed


def _emptied(store: Store, claim: bytes) -> int:
    named: set[str] = set()
    with suppress(NotFoundError, CorruptError, IncompatibleError):
        named = {each.path for each in wanted(read_savepoint(store))}
    entries = [e for e in stored_files(store) if e.path in named or is_savepoint_file(e.path)]
    heads = [e for e in store.list("_") if e.path in (SAVEPOINT_METADATA, SAVEPOINT_CLAIM)]
    halves = half_written(store)
    # Named but not listed: missing, or a link in a file's place, which is removed itself, never what it points to.
    paths = {entry.path for entry in entries} | {path for path in named if is_savepoint_file(path)}
    # To delete in a folder, be it nothing, is to take along what killed writers have left there.
    files = [*sorted(paths), *(f"{folder}{SAVEPOINT_CLAIM}" for folder in halves)]
    # Asked before each: another disposal may have finished this one, and the folder be used anew.
    if stands_still(store, claim):
        store.delete([SAVEPOINT_METADATA])
    if stands_still(store, claim):
        store.delete(files)
    if store.list(SAVEPOINT_METADATA) and stands_still(store, claim):
        store.delete([SAVEPOINT_METADATA])  # whoever made it meanwhile has seen the claim, or is about to
    withdraw(store, claim)
    return sum(entry.size for entry in (*entries, *heads)) + sum(halves.values())


def _refuse_linked_folders(store: Store) -> None:
    """CorruptError, before anything is claimed, when a folder of the savepoint is a link: what lies there is not ours."""
    if not isinstance(store, LocalStore):
        return
    folders = {SAVEPOINT_STATE, SAVEPOINT_TABLES}
    with suppress(NotFoundError, CorruptError, IncompatibleError):
        folders |= {
            f"{each.path.rpartition('/')[0]}/" for each in wanted(read_savepoint(store)) if "/" in each.path
        }
    for folder in sorted(folders):
        store.folders(folder)


def _broken(store: Store) -> str | None:
    """The id of a savepoint that lacks files."""
    try:
        savepoint = read_savepoint(store)
    except (NotFoundError, CorruptError, IncompatibleError):
        return None
    return None if whole(store, savepoint) else savepoint.id


def size_of(store: Store) -> int:
    """Bytes that a disposal would free, its own claim apart."""
    seen = sum(
        entry.size
        for entry in (*stored_files(store), *store.list("_"))
        if entry.path == SAVEPOINT_METADATA or is_savepoint_file(entry.path)
    )
    return seen + sum(half_written(store).values())


def dispose_claimed(
    storage_options: Mapping[str, str],
    *,
    job: str,
    owner: Owner,
    clock: Callable[[], int],
    root: str = "",
    open_base: Callable[..., Store] = open_store,
) -> DisposeSavepoint:
    """What `collect` calls for savepoints that a job (its UUID, in the root of that URL) had claimed. One that is gone, or
    that has become another's, is left as it is."""

    def dispose(url: str) -> None:
        store = open_base(url, storage_options)
        claim = read_claim(store)
        if claim is None or claim.job != job:
            return
        if not belongs(claim, root, store.url):
            _log.warning(
                "the savepoint in %s stays: job %r claimed it in %s, of which this root is a copy, or from where it was "
                "moved; delete the folder when neither needs it",
                store.url, claim.name, claim.root or claim.url,
            )  # fmt: skip
            return
        with suppress(NotFoundError):
            dispose_savepoint(store, owner=owner, clock=clock, by_job=job)

    return dispose


def _held(
    store: Store,
    owner: Owner,
    clock: Callable[[], int],
    by_job: str,
    expect: str | None,
    storage_options: Mapping[str, str],
) -> bytes:
    """The body of the claim under which the savepoint is deleted."""
    while True:
        try:
            stands = store.read(SAVEPOINT_CLAIM)
        except NotFoundError:
            if by_job:
                raise NotFoundError(
                    f"no job has claimed what is in {store.url}: nothing was deleted"
                ) from None
            if (made := _claimed_for_disposal(store, owner, clock, expect)) is not None:
                return made
            continue
        claim = decode(stands, SavepointClaim, f"{store.url}/{SAVEPOINT_CLAIM}")
        if claim.job != by_job and not (expect is None and _of_deleted_job(claim, storage_options)):
            raise taken(store, claim)
        if expect:
            raise taken(store, claim)  # of another disposal, and who knows of what
        if by_job or not _misses(store, claim):
            return stands
        # Whoever made it stopped before it saw that there was something else by then.
        withdraw(store, stands)


def _claimed_for_disposal(
    store: Store, owner: Owner, clock: Callable[[], int], expect: str | None
) -> bytes | None:
    """None when another claim came first."""
    # A damaged or newer `_metadata` is refused: who knows what this folder is.
    before = id_of(store)
    if before is None and (expect or not (_has_files(store) or half_written(store))):
        raise missing(store)
    if expect is not None and before != (expect or None):
        raise _replaced(store)
    body = encode(SavepointClaim(job="", owner=owner, at=clock(), savepoint=before or ""))
    if create_once(store, SAVEPOINT_CLAIM, body) != body:
        return None
    # From here on whoever makes one finds the claim, and gives way. So what was made before has to be looked for now.
    if (after := id_of(store)) != before:
        withdraw(store, body)
        raise missing(store) if after is None else _replaced(store)
    return body


def _misses(store: Store, claim: SavepointClaim) -> bool:
    """Whether a disposal's claim stands over a whole savepoint that it does not mean."""
    if claim.savepoint is None:
        return False
    try:
        savepoint = read_savepoint(store)
    except (NotFoundError, CorruptError, IncompatibleError):
        return False
    return savepoint.id != claim.savepoint and whole(store, savepoint)


def _of_deleted_job(claim: SavepointClaim, storage_options: Mapping[str, str]) -> bool:
    """Whether the job that claimed it is gone for good. A root that cannot be asked keeps what is its."""
    if not claim.job or not claim.root:
        return False
    try:
        tombstone = read_epoch(open_store(claim.root, storage_options), JobLayout(claim.name), LAST_EPOCH)
    except StateflowError:
        return False
    return tombstone.job == claim.job


def _replaced(store: Store) -> UsageError:
    return UsageError(
        f"another savepoint was made in {store.url} meanwhile: dispose of it again if that one is to go too"
    )


def _has_files(store: Store) -> bool:
    return any(is_savepoint_file(entry.path) for entry in stored_files(store))
