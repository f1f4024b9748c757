"""Making a savepoint visible, once all its files are stored: the create of its `_metadata`.

Several attempts may be made in one folder at once. Each has its own file names, so whichever creates `_metadata` first
stands with exactly its files, and the others delete theirs. A disposal may be under way, too: it takes all files, those
of attempts included, so whoever finds its claim after the create gives way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from stateflow.errors import NotFoundError, StateflowError, UnavailableError, UsageError
from stateflow.format.layout import SAVEPOINT_CLAIM, SAVEPOINT_METADATA
from stateflow.format.records import Owner, Savepoint, encode
from stateflow.format.references import path_inside
from stateflow.savepoints.dispose import dispose_savepoint
from stateflow.savepoints.format import read_claim, stored_files
from stateflow.storage.probe import probe
from stateflow.storage.store import Store, create_once, refused_for_good


def require_vacant(target: Store) -> None:
    """Raises unless a savepoint can be made in the folder; asked before anything is written there."""
    names = {entry.path for entry in target.list("_")}
    if SAVEPOINT_CLAIM in names:
        raise UsageError(
            f"the savepoint in {target.url} belongs to a job or is being disposed of: choose another place"
        )
    if SAVEPOINT_METADATA in names:
        raise UsageError(f"there is a savepoint in {target.url} already: choose another name or place")


def probe_elsewhere(store: Store, root: str, ids: Callable[[], str]) -> None:
    """UsageError if the store of a savepoint cannot say who was first. That of the job's root was probed long ago."""
    if not root or path_inside(store.url, root) is None:
        try:
            probe(store, ids)
        finally:
            remove_empty(store)


@contextmanager
def deleted_unless_stored(target: Store, paths: Sequence[str]) -> Iterator[None]:
    """Around the storing of a savepoint's files: deletes them when that fails. `paths` may grow meanwhile."""
    try:
        yield
    except (Exception, KeyboardInterrupt):
        _delete(target, paths)
        raise


def publish(
    target: Store, savepoint: Savepoint, files: Mapping[str, int], *, owner: Owner, clock: Callable[[], int]
) -> Savepoint:
    """The savepoint as it stands now. `files`: path and size of all that this attempt has stored.

    They are deleted when it cannot stand. When nobody knows whether it does (the store has not answered), they stay:
    `stateflow savepoint dispose` removes them.
    """
    with deleted_unless_stored(target, list(files)):
        require_vacant(target)
        if not _whole(target, files):
            raise NotFoundError(
                f"files of the savepoint that was being made in {target.url} were deleted: run again, elsewhere"
            )
    body = encode(savepoint)
    try:
        stands = create_once(target, SAVEPOINT_METADATA, body)
    except UnavailableError as error:
        if refused_for_good(target, SAVEPOINT_METADATA):
            _delete(target, files)
            raise
        raise UnavailableError(
            f"whether the savepoint in {target.url} was made is not known: `stateflow savepoint show` tells when the "
            f"store answers again ({error})"
        ) from error
    if stands != body:
        _delete(target, files)
        raise UsageError(
            f"another savepoint was made in {target.url} meanwhile: use that one, or choose another name"
        )
    if _being_disposed_of(target, savepoint) or not _whole(target, files):
        # Somebody disposed of what lay here before the create, or still does. A disposal that has come to its end no longer
        # looks at what was made here; one that has not takes this along.
        with suppress(StateflowError):
            dispose_savepoint(target, owner=owner, clock=clock, expect=savepoint.id)
        raise NotFoundError(
            f"the savepoint in {target.url} was disposed of while it was being made: run again"
        )
    return savepoint


def _being_disposed_of(target: Store, savepoint: Savepoint) -> bool:
    """Asked before the files are looked at: a disposal that has withdrawn its claim deletes no more of them."""
    claim = read_claim(target)
    return claim is not None and not (claim.job and claim.savepoint == savepoint.id)


def _whole(target: Store, files: Mapping[str, int]) -> bool:
    sizes = {entry.path: entry.size for entry in stored_files(target)}
    return all(sizes.get(path) == size for path, size in files.items())


def _delete(target: Store, paths: Iterable[str]) -> None:
    with suppress(StateflowError):  # what stays is not visible, and goes with a disposal
        target.delete(paths)
    remove_empty(target)


def remove_empty(target: Store) -> None:
    """Removes the folder of a savepoint that is none, where stores have folders."""
    if target.local_root is not None:
        with suppress(OSError):  # something else is in it
            target.local_root.rmdir()
