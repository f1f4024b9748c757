"""Making a savepoint visible: creating its `_metadata` after all its files are stored.

Several processes may try to make a savepoint in one folder at once. Each uses its own file names. The first to create
`_metadata` wins, with exactly its own files, and the others delete theirs. A disposal may run at the same time and deletes
all files, also those of attempts. So a maker that finds the claim of a disposal after its create gives up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from stateflow.errors import NotFoundError, StateflowError, UnavailableError, UsageError
from stateflow.format.layout import SAVEPOINT_CLAIM, SAVEPOINT_METADATA
from stateflow.format.records import Owner, Record, Savepoint, TableFile, encode
from stateflow.format.references import path_inside
from stateflow.savepoints.dispose import dispose_savepoint
from stateflow.savepoints.format import read_savepoint_claim, stored_files
from stateflow.savepoints.outputs import JobOutputs
from stateflow.storage.probe import probe
from stateflow.storage.store import InFolder, Store, create_once, refused_for_good


@dataclass(frozen=True, kw_only=True)
class SavepointFacts:
    """What a savepoint says beside its state."""

    name: str
    owner: Owner
    note: str = ""
    expires: int | None = None
    offsets: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    outputs: JobOutputs = field(default_factory=JobOutputs)

    def savepoint(
        self,
        kind: Literal["native", "canonical"],
        job: str,
        record: Record,
        *,
        id: str,
        at: int,
        tables: dict[str, dict[str, tuple[TableFile, ...]]] | None = None,
    ) -> Savepoint:
        outputs = self.outputs
        return Savepoint(
            id=id,
            kind=kind,
            job=job,
            record=record,
            tables=tables or {},
            targets=dict(outputs.targets),
            names=dict(outputs.names),
            last_commits=dict(outputs.last_commits) if outputs.last_commits is not None else None,
            feeds=outputs.feeds,
            offsets=dict(self.offsets),
            owner=self.owner,
            note=self.note,
            at=at,
            expires=self.expires,
        )


def require_vacant(target: Store) -> None:
    """Raises unless the folder is free for a savepoint. Call it before writing anything there."""
    names = {entry.path for entry in target.list("_")}
    if SAVEPOINT_CLAIM in names:
        raise UsageError(
            f"the savepoint in {target.url} belongs to a job or is being disposed of: choose another place"
        )
    if SAVEPOINT_METADATA in names:
        raise UsageError(f"there is a savepoint in {target.url} already: choose another name or place")


def probe_elsewhere(store: Store, root: str, ids: Callable[[], str]) -> None:
    """UsageError if the savepoint's store accepts two creates of one path. The store of the job's root was probed before."""
    if not root or path_inside(store.url, root) is None:
        try:
            probe(store, ids)
        finally:
            remove_empty(store)


@contextmanager
def deleted_unless_stored(target: Store, paths: Sequence[str]) -> Iterator[None]:
    """Deletes the files `paths` when the block that stores them fails. The block may add paths."""
    try:
        yield
    except (Exception, KeyboardInterrupt):
        _delete(target, paths)
        raise


def publish(
    target: Store, savepoint: Savepoint, files: Mapping[str, int], *, owner: Owner, clock: Callable[[], int]
) -> Savepoint:
    """Creates the savepoint and returns it. `files`: path and size of every file that this attempt has stored.

    When the savepoint cannot be created, the files are deleted. When the store did not answer, so that nobody knows
    whether it was created, the files stay: `stateflow savepoint dispose` removes them.
    """
    with deleted_unless_stored(target, list(files)):
        require_vacant(target)
        if not _whole(target, files):
            raise NotFoundError(
                f"files of the savepoint that was being made in {target.url} were deleted: run again, elsewhere"
            )
    body = encode(savepoint)
    try:
        current = create_once(target, SAVEPOINT_METADATA, body)
    except UnavailableError as error:
        if refused_for_good(target, SAVEPOINT_METADATA):
            _delete(target, files)
            raise
        raise UnavailableError(
            f"nobody knows whether the savepoint in {target.url} was made: `stateflow savepoint show` tells when the "
            f"store answers again ({error})"
        ) from error
    if current != body:
        _delete(target, files)
        raise UsageError(
            f"another savepoint was made in {target.url} meanwhile: use that one, or choose another name"
        )
    if _being_disposed_of(target, savepoint) or not _whole(target, files):
        # A disposal of the folder's former savepoint has deleted files of this one. If it has ended, nobody else deletes the
        # rest. If not, it deletes the rest, and the call below finds nothing to do.
        with suppress(StateflowError):
            dispose_savepoint(target, owner=owner, clock=clock, expect=savepoint.id)
        raise NotFoundError(
            f"the savepoint in {target.url} was disposed of while it was being made: run again"
        )
    return savepoint


def _being_disposed_of(target: Store, savepoint: Savepoint) -> bool:
    """Call this before checking the files: a disposal that has withdrawn its claim deletes no more of them."""
    claim = read_savepoint_claim(target)
    return claim is not None and not (claim.job and claim.savepoint == savepoint.id)


def _whole(target: Store, files: Mapping[str, int]) -> bool:
    sizes = {entry.path: entry.size for entry in stored_files(target)}
    return all(sizes.get(path) == size for path, size in files.items())


def _delete(target: Store, paths: Iterable[str]) -> None:
    with suppress(StateflowError):  # files that stay are not visible, and a disposal removes them
        target.delete(paths)
    remove_empty(target)


def remove_empty(target: Store) -> None:
    """Removes a folder that holds no savepoint, in stores that have folders."""
    if isinstance(target, InFolder):
        with suppress(OSError):  # the folder holds something else
            target.remove_root()
