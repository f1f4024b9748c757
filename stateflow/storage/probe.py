"""Whether a store can hold state: only one of two creates of a path succeeds there, and no table's VACUUM deletes what it holds.
A checkpoint root must let its objects be overwritten and deleted, too; a savepoint may lie where it can only be made.

Checked once, before a job's first claim, and before a savepoint that lies elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier
from typing import Protocol

from stateflow.errors import NotFoundError, StateflowError, UnavailableError, UsageError
from stateflow.format.layout import EPOCHS, epoch_of, probe_key
from stateflow.storage.store import ExistsError, Store

RACERS = 4
ROUNDS = 3
_DELTA_LOG = "_delta_log"


class Probed(Protocol):
    """The part of a store that the probe needs."""

    def read(self, path: str) -> bytes: ...

    def create(self, path: str, body: bytes) -> None: ...

    def delete(self, paths: Iterable[str]) -> None: ...


def probe(store: Store, ids: Callable[[], str]) -> None:
    """UsageError if two creates of one path can both succeed there; `ids` gives unique names.

    Two runs would then own one job, and nobody would notice. UsageError in the folder of a Delta table, too.
    """
    if table := _delta_table(store):
        raise UsageError(
            f"{store.url} is in the folder of the Delta table {table}, whose VACUUM would delete the state there: choose a folder outside of the table"
        )
    if what := why_not_once(store, ids):
        raise UsageError(
            f"{store.url} cannot hold checkpoints: {what}; use a store with working conditional writes "
            "(S3, GCS, Azure Blob, HDFS, a local disk)"
        )


def probe_root(store: Store, ids: Callable[[], str]) -> None:
    """UsageError if the store cannot be a checkpoint root: one of which `probe` says so, or the folder of a job, which holds claims
    directly. What the root holds would go with that job. UnavailableError if objects there can be made, and not overwritten or deleted."""
    if any(entry.path.count("/") == 1 and epoch_of(entry.path) for entry in store.list(EPOCHS)):
        root, _, job = store.url.rpartition("/")
        raise UsageError(
            f"{store.url} is the folder of job {job!r}, and all of it goes when that job is deleted: give {root}, which holds that job, as the "
            "checkpoint root, or a folder of its own"
        )
    probe(store, ids)
    key = probe_key(ids())
    # Without an overwritten heartbeat others take the run for dead; without deletions everything stays, and its marks add up.
    store.put(key, b"first")
    _require("overwrite", store, lambda: store.put(key, b"second"))
    _require("delete", store, lambda: store.delete([key]))


def _require(verb: str, store: Store, act: Callable[[], None]) -> None:
    try:
        act()
    except UnavailableError as error:
        raise UnavailableError(
            f"{store.url} cannot hold checkpoints, since it does not {verb} its own probe-... object ({error}): grant that permission to whoever "
            f"runs jobs there, and lift what locks objects, such as a retention policy"
        ) from error


def _delta_table(store: Store) -> str:
    """The Delta table whose VACUUM would delete what the store's root holds; empty without one. It leaves folders alone whose names begin
    with `_` or a dot, as those of checkpoints often do. Of a store that is no local disk, only the root itself is looked at."""
    if (root := store.local_root) is None:
        return store.url if store.list(f"{_DELTA_LOG}/") else ""
    return delta_table_around(root)


def delta_table_around(folder: Path) -> str:
    """The Delta table in whose folder a folder of this host lies, or whose folder it is; empty without one."""
    for place in (folder, folder.resolve()):
        for each in (place, *place.parents):
            if (each / _DELTA_LOG).is_dir():
                return str(each)
            if each.name.startswith(("_", ".")):
                break
    return ""


def why_not_once(store: Probed, ids: Callable[[], str]) -> str:
    """What shows that two creates of one path can both succeed there; empty if nothing does.

    Some emulators, gateways and mounted file systems accept the condition of a conditional write and ignore it, or
    check it before they write.
    """
    keys: list[str] = []
    try:
        what = _one_after_another(store, _fresh(keys, ids))
        for _ in range(ROUNDS):
            what = what or _at_once(store, _fresh(keys, ids))
        return what
    finally:
        with suppress(
            StateflowError
        ):  # a failed deletion leaves a few bytes behind, and the result still holds
            store.delete(keys)


def _fresh(keys: list[str], ids: Callable[[], str]) -> str:
    keys.append(probe_key(ids()))
    return keys[-1]


def _one_after_another(store: Probed, key: str) -> str:
    for _ in range(ROUNDS):
        # A conflict on a fresh key: the client met its own success again, or S3 stored nothing and wants to be asked again.
        with suppress(ExistsError):
            store.create(key, b"first")
        if (found := _body_at(store, key)) is not None:
            break
    if found != b"first":
        return "an object that was just created cannot be read back"
    try:
        store.create(key, b"second")
    except ExistsError:
        if _body_at(store, key) != b"first":
            return "a second create reported a conflict and replaced the object all the same"
        return ""
    return "a second create of the same path succeeded"


def _at_once(store: Probed, key: str) -> str:
    start = Barrier(RACERS)

    def race(body: bytes) -> bytes | None:
        start.wait()
        try:
            store.create(key, body)
        except ExistsError:
            return None
        return body

    with ThreadPoolExecutor(RACERS) as pool:
        winners = [body for body in pool.map(race, [b"racer %d" % n for n in range(RACERS)]) if body]
    if len(winners) > 1:
        return f"{len(winners)} creates of one path succeeded at once"
    # It is no fault if nobody won: a store may report a conflict to the winner too, or to all and store nothing.
    if winners and _body_at(store, key) != winners[0]:
        return "the body of a create that lost replaced the body of the create that won"
    return ""


def _body_at(store: Probed, key: str) -> bytes | None:
    try:
        return store.read(key)
    except NotFoundError:
        return None
