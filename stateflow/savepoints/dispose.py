"""Disposing of savepoints: by hand, by a clean-up, and by the collector of the job that has claimed them.

A disposal first creates a claim that names the savepoint it means. Then it deletes every file in the folder, also the files
of an attempt that is under way. Whoever makes a savepoint there looks for a claim after it has created `_metadata`, or
misses its files, and gives up. A savepoint that was made just before the claim wins: the disposal finds it and gives up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from types import MappingProxyType

from stateflow.checkpoint.collection import DisposeSavepoint
from stateflow.checkpoint.deletion import is_deleted
from stateflow.errors import CorruptError, IncompatibleError, NotFoundError, StateflowError, UsageError
from stateflow.format.layout import (
    SAVEPOINT_CLAIM,
    SAVEPOINT_METADATA,
    SAVEPOINT_STATE,
    SAVEPOINT_TABLES,
    JobLayout,
    is_savepoint_file,
)
from stateflow.format.records import Owner, SavepointClaim, decode, encode
from stateflow.masking import masked
from stateflow.savepoints.format import (
    belongs,
    claim_is,
    claimed_error,
    expected_files,
    id_of,
    is_whole,
    no_savepoint,
    read_savepoint,
    read_savepoint_claim,
    stored_files,
    unfinished_bytes,
    withdraw,
)
from stateflow.storage.local import LocalStore, held_root
from stateflow.storage.roots import open_recorded
from stateflow.storage.store import InFolder, Store, create_once

_SHOWN = 200
_NO_OPTIONS: Mapping[str, str] = MappingProxyType({})


def dispose_savepoint(
    store: Store,
    *,
    owner: Owner,
    clock: Callable[[], int],
    by_job: str = "",
    expect: str | None = None,
    storage_options: Mapping[str, str] = _NO_OPTIONS,
    root: Store | None = None,
) -> int:
    """Deletes a savepoint and returns the bytes it freed. Several processes may call it at once, and after any crash again.

    It also deletes the files of failed attempts to make the savepoint. It deletes no file that is named unlike a
    savepoint's files. NotFoundError when there is nothing to delete.

    `by_job`: UUID of the job that claimed the savepoint and now disposes of it. `expect`: the id of the savepoint to
    delete, or empty to delete the remains of a failed attempt; UsageError when the folder holds something else. None
    deletes whatever the folder holds, even a savepoint that a job claimed before the job itself was deleted;
    `storage_options` open that job's root. `root` is where that may be by now.
    """
    with ExitStack() as stack:
        try:
            held = stack.enter_context(held_root(store))
        except NotFoundError:
            raise no_savepoint(store) from None

        def dispose(by_job: str, expect: str | None) -> int:
            claim = _claim_for_disposal(held, owner, clock, by_job, expect, storage_options, root)
            return _empty_folder(held, claim)

        _refuse_linked_folders(held)
        freed = dispose(by_job, expect)
        # A savepoint that was made just before the claim was withdrawn has lost its files. Its maker saw the claim and left
        # the rest to this disposal.
        with suppress(NotFoundError, UsageError):
            while (broken := _broken_savepoint(held)) is not None:
                freed += dispose("", broken)
        if isinstance(held, InFolder):
            with suppress(OSError):  # the folder holds something else
                held.remove_root()
        return freed


def _empty_folder(store: Store, claim: bytes) -> int:
    named: set[str] = set()
    with suppress(NotFoundError, CorruptError, IncompatibleError):
        named = {each.path for each in expected_files(read_savepoint(store))}
    entries = [e for e in stored_files(store) if e.path in named or is_savepoint_file(e.path)]
    heads = [e for e in store.list("_") if e.path in (SAVEPOINT_METADATA, SAVEPOINT_CLAIM)]
    unfinished = unfinished_bytes(store)
    # A listing leaves out a link in a file's place. Deleting its path removes the link, never the file it points to.
    paths = {entry.path for entry in entries} | {path for path in named if is_savepoint_file(path)}
    # A local store removes a folder's unfinished files whenever it deletes a path in that folder, even a path that does
    # not exist. Those of the savepoint's own folder go with its metadata.
    files = [*sorted(paths), *(f"{folder}{SAVEPOINT_CLAIM}" for folder in unfinished if folder)]
    # Checked before each step: another disposal may have finished this work, and somebody may use the folder again.
    if claim_is(store, claim):
        store.delete([SAVEPOINT_METADATA])
    if claim_is(store, claim):
        store.delete(files)
    if store.list(SAVEPOINT_METADATA) and claim_is(store, claim):
        store.delete([SAVEPOINT_METADATA])  # its maker has seen the claim, or will
    withdraw(store, claim)
    return sum(entry.size for entry in (*entries, *heads)) + sum(unfinished.values())


def _refuse_linked_folders(store: Store) -> None:
    """CorruptError, before anything is claimed, when a folder of the savepoint is a link: its files belong to somebody else."""
    if not isinstance(store, LocalStore):
        return
    folders = {SAVEPOINT_STATE, SAVEPOINT_TABLES}
    with suppress(NotFoundError, CorruptError, IncompatibleError):
        folders |= {
            f"{each.path.rpartition('/')[0]}/"
            for each in expected_files(read_savepoint(store))
            if "/" in each.path
        }
    for folder in sorted(folders):
        store.folders(folder)


def _broken_savepoint(store: Store) -> str | None:
    """The id of the savepoint, if files of it are missing."""
    try:
        savepoint = read_savepoint(store)
    except (NotFoundError, CorruptError, IncompatibleError):
        return None
    return None if is_whole(store, savepoint) else savepoint.id


def size_of(store: Store) -> int:
    """Bytes that a disposal would free, without its own claim."""
    listed = sum(
        entry.size
        for entry in (*stored_files(store), *store.list("_"))
        if entry.path == SAVEPOINT_METADATA or is_savepoint_file(entry.path)
    )
    return listed + sum(unfinished_bytes(store).values())


def dispose_claimed(
    storage_options: Mapping[str, str],
    *,
    job: str,
    owner: Owner,
    clock: Callable[[], int],
    root: str = "",
    open_base: Callable[..., Store] | None = None,
) -> DisposeSavepoint:
    """The function that `collect` calls for each savepoint that a job had claimed. `job` is the job's UUID, `root` the URL of
    its root. It does nothing for a savepoint that is gone, or that another job has claimed."""

    def dispose(url: str) -> str | None:
        # A record gave the URL. Whoever may write to the root could have put a link on the way to the savepoint.
        found = (
            open_base(url, storage_options) if open_base else open_recorded(url, storage_options, root=root)
        )
        with suppress(NotFoundError), held_root(found) as store:
            claim = read_savepoint_claim(store)
            if claim is None or claim.job != job:
                return None
            if not belongs(claim, root, store.url):
                return (
                    f"job {claim.name!r} claimed it in {claim.root or claim.url}, of which this root is a copy, or from where it was "
                    "moved; delete the folder when neither needs it"
                )
            dispose_savepoint(store, owner=owner, clock=clock, by_job=job)
        return None

    return dispose


def _claim_for_disposal(
    store: Store,
    owner: Owner,
    clock: Callable[[], int],
    by_job: str,
    expect: str | None,
    storage_options: Mapping[str, str],
    root: Store | None,
) -> bytes:
    """The body of the disposal's claim."""
    while True:
        try:
            body = store.read(SAVEPOINT_CLAIM)
        except NotFoundError:
            if by_job:
                raise NotFoundError(
                    f"no job has claimed a savepoint in {store.url}: nothing was deleted"
                ) from None
            if (created := _create_claim(store, owner, clock, expect)) is not None:
                return created
            continue
        claim = decode(body, SavepointClaim, f"{store.url}/{SAVEPOINT_CLAIM}")
        if claim.job != by_job:
            # Who has looked before is not to take what a job has claimed since.
            refusal = (
                claimed_error(store, claim)
                if expect is not None
                else _refusal(store, claim, storage_options, root)
            )
            if refusal is not None:
                raise refusal
        if expect:
            raise claimed_error(store, claim)  # by another disposal, perhaps of another savepoint
        if by_job or not _names_another(store, claim):
            return body
        # Its disposal died before it noticed that another savepoint had been made.
        withdraw(store, body)


def _create_claim(store: Store, owner: Owner, clock: Callable[[], int], expect: str | None) -> bytes | None:
    """None when another claim came first."""
    # A damaged `_metadata`, or one of a newer version, raises here: nobody knows what this folder holds.
    before = id_of(store)
    if before is None and (expect or not (_has_files(store) or unfinished_bytes(store))):
        raise no_savepoint(store)
    if expect is not None and before != (expect or None):
        raise _replaced(store)
    body = encode(SavepointClaim(job="", owner=owner, at=clock(), savepoint=before or ""))
    if create_once(store, SAVEPOINT_CLAIM, body) != body:
        return None
    # From here on whoever makes a savepoint finds the claim and gives up. One made before the claim is found here.
    if (after := id_of(store)) != before:
        withdraw(store, body)
        raise no_savepoint(store) if after is None else _replaced(store)
    return body


def _names_another(store: Store, claim: SavepointClaim) -> bool:
    """Whether the folder holds a whole savepoint that is not the one the disposal's claim names."""
    try:
        savepoint = read_savepoint(store)
    except (NotFoundError, CorruptError, IncompatibleError):
        return False
    return savepoint.id != claim.savepoint and is_whole(store, savepoint)


def _refusal(
    store: Store, claim: SavepointClaim, storage_options: Mapping[str, str], now: Store | None
) -> StateflowError | None:
    """The error for a savepoint that somebody has claimed. None when that is a job that was deleted, in its root or in `now`, to which that
    was moved. When its root cannot be read, or a copy of it has the job, nobody knows that the job is gone."""
    refusal = claimed_error(store, claim)
    if not claim.job or not claim.root:
        return refusal
    layout = JobLayout(claim.name)
    if now is not None and now.url == claim.root:
        # Whoever runs the command has named this root. The claim in the savepoint may be anybody's.
        return None if is_deleted(now, layout, claim.job) else refusal
    try:
        root = open_recorded(claim.root, storage_options, root=store.url)
    except CorruptError:
        return UsageError(
            f"{refusal}; whether it has been is not known, since the savepoint alone names its root: if that root is yours, let the command look "
            f"there with --checkpoint-dir {masked('', claim.root)[:_SHOWN]!r}"
        )
    try:
        gone = is_deleted(root, layout, claim.job) or (
            now is not None and not root.list(layout.folder) and is_deleted(now, layout, claim.job)
        )
    except StateflowError:
        return refusal
    return None if gone else refusal


def require_free(store: Store, storage_options: Mapping[str, str], root: Store | None) -> None:
    """The error that `dispose_savepoint` would raise for a savepoint that a job has claimed, before anybody has said yes."""
    claim = read_savepoint_claim(store)
    if claim is not None and claim.job and (refusal := _refusal(store, claim, storage_options, root)):
        raise refusal


def _replaced(store: Store) -> UsageError:
    return UsageError(
        f"another savepoint was made in {store.url} meanwhile: dispose of it again if that one is to go too"
    )


def _has_files(store: Store) -> bool:
    return any(is_savepoint_file(entry.path) for entry in stored_files(store))
