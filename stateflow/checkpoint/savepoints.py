"""Savepoints from outside: reading, listing and checking them, and who owns one.

A savepoint is `_metadata`, created last, and the files that it names; without `_metadata` there is none. `_claimed`,
created once, says who may delete it: the job that took it over, or (with no job) whoever disposes of it now. Disposal
deletes `_metadata` first and `_claimed` last, so that whatever dies in between leaves no half savepoint, only work for
the next disposal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from stateflow.checkpoint.collection import DisposeSavepoint
from stateflow.checkpoint.layout import (
    SAVEPOINT_CLAIM,
    SAVEPOINT_METADATA,
    SAVEPOINT_STATE,
    SAVEPOINT_TABLES,
    SAVEPOINTS,
    default_savepoint,
    is_savepoint_file,
)
from stateflow.checkpoint.log import Log
from stateflow.checkpoint.records import (
    Owner,
    Record,
    Savepoint,
    SavepointClaim,
    decode,
    encode,
)
from stateflow.checkpoint.retention import bases, references, with_references
from stateflow.checkpoint.roots import open_store
from stateflow.checkpoint.store import Entry, Store, create_once
from stateflow.checkpoint.verification import Finding, Wanted, damage
from stateflow.errors import CorruptError, IncompatibleError, NotFoundError, StateflowError, UsageError

_READERS = 8


def read_savepoint(store: Store) -> Savepoint:
    """The savepoint whose folder the store is the root of."""
    try:
        body = store.read(SAVEPOINT_METADATA)
    except NotFoundError:
        raise _missing(store) from None
    return decode(body, Savepoint, f"{store.url}/{SAVEPOINT_METADATA}")


def read_claim(store: Store) -> SavepointClaim | None:
    """Who has taken the savepoint over, or disposes of it; None: nobody."""
    try:
        body = store.read(SAVEPOINT_CLAIM)
    except NotFoundError:
        return None
    return decode(body, SavepointClaim, f"{store.url}/{SAVEPOINT_CLAIM}")


def resolved(savepoint: Savepoint, url: str) -> Record:
    """The savepoint's record, its files named so that they are found from anywhere."""
    base = url.rstrip("/")
    return with_references(
        savepoint.record, lambda ref: msgspec.structs.replace(ref, base=base) if ref.path else ref
    )


def expired(savepoint: Savepoint, now: int) -> bool:
    """Whether a clean-up at `now` may dispose of it."""
    return savepoint.expires is not None and savepoint.expires <= now


@dataclass(frozen=True, slots=True)
class Listed:
    """What a savepoint's folder holds."""

    savepoint: Savepoint | None
    """None when it cannot be read, or is not whole: see `problem`."""
    claim: SavepointClaim | None = None
    problem: str = ""


def list_savepoints(root: Store, job: str | None = None) -> list[tuple[str, Listed]]:
    """The savepoints in the default place of a root, of one job or of all, each with its folder's path.

    A damaged one is in the list with its problem; one that is not finished yet is not.
    """
    jobs = [job] if job is not None else root.folders(f"{SAVEPOINTS}/")
    folders = []
    for name in jobs:
        for each in root.folders(f"{SAVEPOINTS}/{name}/"):
            with suppress(UsageError):  # no name of ours
                folders.append(default_savepoint(name, each))
    with ThreadPoolExecutor(_READERS, "stateflow-savepoints") as pool:
        found = list(pool.map(lambda folder: _look(root, folder), folders))
    return [(folder, listed) for folder, listed in zip(folders, found, strict=True) if listed is not None]


def _look(root: Store, folder: str) -> Listed | None:
    names = {entry.path.rpartition("/")[2] for entry in root.list(f"{folder}/_")}
    savepoint: Savepoint | None = None
    claim: SavepointClaim | None = None
    try:
        if SAVEPOINT_CLAIM in names:
            path = f"{folder}/{SAVEPOINT_CLAIM}"
            claim = decode(root.read(path), SavepointClaim, path)
        if SAVEPOINT_METADATA in names:
            path = f"{folder}/{SAVEPOINT_METADATA}"
            savepoint = decode(root.read(path), Savepoint, path)
    except NotFoundError:
        return None  # disposed of since it was listed
    except (CorruptError, IncompatibleError) as error:
        return Listed(None, claim, str(error))
    if claim is not None and (savepoint is None or not claim.job):
        return Listed(None, claim, "it is being disposed of")
    return Listed(savepoint, claim) if savepoint is not None else None


def unfinished(root: Store, job: str) -> list[str]:
    """Folders in the default place where a savepoint is being made or disposed of, or where whoever did that has died."""
    found = []
    for name in root.folders(f"{SAVEPOINTS}/{job}/"):
        try:
            folder = default_savepoint(job, name)
        except UsageError:
            continue  # no name of ours
        paths = [entry.path.removeprefix(f"{folder}/") for entry in root.list(f"{folder}/")]
        if SAVEPOINT_CLAIM in paths:
            over = not _claimed_by_job(root, f"{folder}/{SAVEPOINT_CLAIM}")
        else:
            over = SAVEPOINT_METADATA not in paths and any(map(is_savepoint_file, paths))
        if over:
            found.append(folder)
    return found


def _claimed_by_job(root: Store, path: str) -> bool:
    try:
        return bool(decode(root.read(path), SavepointClaim, path).job)
    except NotFoundError:
        return True  # gone since it was listed: somebody is at work
    except (CorruptError, IncompatibleError):
        return True  # whose it is nobody knows


def wanted(savepoint: Savepoint) -> Iterator[Wanted]:
    """Every file that the savepoint needs, and what is kept in its metadata."""
    for ref in references(savepoint.record):
        yield Wanted.by(ref)
    for states in savepoint.tables.values():
        for files in states.values():
            for file in files:
                yield Wanted(file.path, file.size, file.xxh3)


def verify_savepoint(store: Store, *, deep: bool) -> list[Finding]:
    """Everything that is wrong with a savepoint; with `deep` every file is read and its checksum compared.

    NotFoundError when there is none, IncompatibleError when a newer stateflow wrote it.
    """
    try:
        savepoint, claim = read_savepoint(store), read_claim(store)
    except CorruptError as error:
        return [Finding("error", str(error), path=SAVEPOINT_METADATA)]
    findings = _findings(store, savepoint, deep=deep)
    if claim is not None and not claim.job:
        text = f"{store.url} is being disposed of: `stateflow savepoint dispose {store.url}` finishes that"
        findings.append(Finding("error", text, path=SAVEPOINT_CLAIM))
    return findings


def _findings(store: Store, savepoint: Savepoint, *, deep: bool) -> list[Finding]:
    findings = []
    entries = stored_files(store)
    sizes = {entry.path: entry.size for entry in entries}
    files = list(dict.fromkeys(wanted(savepoint)))
    for each in files:
        if wrong := damage(store, sizes, each, deep=deep):
            text = f"{each.named(store.url)} {wrong}: restore it from a copy, or use another savepoint"
            findings.append(Finding("error", text, path=each.path))
    named = {each.path for each in files}
    findings += [
        Finding(
            "warning",
            f"{store.url}/{entry.path} ({entry.size} bytes) is no part of the savepoint: a failed attempt to make it "
            "left it, and it goes when the savepoint is disposed of",
            path=entry.path,
        )
        for entry in entries
        if entry.path not in named and is_savepoint_file(entry.path)
    ]
    return findings


def claim_savepoint(
    store: Store, *, job: str, name: str, owner: Owner, clock: Callable[[], int]
) -> Savepoint:
    """Makes the savepoint the job's own (`job` is its UUID), once and for all; gives what was claimed, which is whole.

    A job may claim again what it has claimed, but before it restores from that a second time it has to pin what
    `to_pin` names: its own collector may be about to dispose of it.
    """
    before = read_savepoint(store)
    body = encode(SavepointClaim(job=job, name=name, url=store.url, owner=owner, at=clock()))
    stands = create_once(store, SAVEPOINT_CLAIM, body)
    claim = decode(stands, SavepointClaim, f"{store.url}/{SAVEPOINT_CLAIM}")
    if claim.job != job:
        raise _taken(store, claim)
    if claim.url != store.url:
        # Records that name one savepoint by two URLs are two savepoints to a collector: it would dispose of one of them.
        raise UsageError(
            f"the savepoint in {store.url} was claimed by this job as {claim.url}: restore from that URL, or with "
            "--claim-mode no-claim"
        )
    try:
        # A disposal may have come and gone in between: it ends with the deletion of its own claim.
        if _id_of(store) != before.id:
            raise NotFoundError(
                f"the savepoint in {store.url} was disposed of meanwhile: restore another one"
            )
        errors = [f.text for f in _findings(store, before, deep=False) if f.severity == "error"]
        if errors:
            raise CorruptError(errors[0])
    except (NotFoundError, CorruptError):
        _withdraw(store, body)
        raise
    return before


def to_pin(log: Log, url: str) -> Record | None:
    """The record that a job pins while it restores again from a savepoint that it has claimed; None: needs none.

    A collector disposes of a claimed savepoint, and only then removes the records that named it. So when no record
    names it, either none ever did and no collector knows of it, or it is gone, which the next claim finds out.
    """
    base = url.rstrip("/")
    naming = [s.record for s in log.slots.values() if s.record is not None and base in bases([s.record])]
    members = {record.slot for record in log.chain}
    for record in sorted(naming, key=lambda record: record.slot, reverse=True):
        if record.slot in members and not log.slots[record.slot].marks:
            return record
    if naming:
        raise NotFoundError(
            f"the savepoint in {url} belongs to job {log.job!r}, which needs it no longer and is disposing of it: "
            "restore from another one"
        )
    return None


def dispose_savepoint(store: Store, *, owner: Owner, clock: Callable[[], int], by_job: str = "") -> int:
    """Deletes a savepoint; gives the bytes. Safe to repeat after a crash at any point, and by several at once.

    `by_job`: UUID of the job that has claimed it, for its own disposal. Also deletes what failed attempts to make it
    have left, and nothing that has another name than a savepoint's files. NotFoundError when there is nothing.
    """
    mine = _held_for_disposal(store, owner, clock, by_job)
    named: set[str] = set()
    with suppress(NotFoundError, CorruptError, IncompatibleError):
        named = {each.path for each in wanted(read_savepoint(store))}
    entries = [e for e in stored_files(store) if e.path in named or is_savepoint_file(e.path)]
    heads = [e for e in store.list("_") if e.path in (SAVEPOINT_METADATA, SAVEPOINT_CLAIM)]
    # Asked before each deletion of a name that a later savepoint in this folder would have too: another disposal may
    # have finished this one, and the folder be used anew.
    if _stands(store, mine):
        store.delete([SAVEPOINT_METADATA])
        store.delete([entry.path for entry in entries])
    _withdraw(store, mine)
    if store.local_root is not None:
        with suppress(OSError):  # something else is in it
            store.local_root.rmdir()
    return sum(entry.size for entry in (*entries, *heads))


def size_of(store: Store) -> int:
    """Bytes that a disposal would free, its own claim apart."""
    return sum(
        entry.size
        for entry in (*stored_files(store), *store.list("_"))
        if entry.path == SAVEPOINT_METADATA or is_savepoint_file(entry.path)
    )


def _held_for_disposal(store: Store, owner: Owner, clock: Callable[[], int], by_job: str) -> bytes:
    """The body of the claim under which the savepoint is deleted."""
    try:
        stands = store.read(SAVEPOINT_CLAIM)
    except NotFoundError:
        if by_job:
            raise NotFoundError(f"no job has claimed what is in {store.url}: nothing was deleted") from None
        stands = _claimed_for_disposal(store, SavepointClaim(job="", owner=owner, at=clock()))
    claim = decode(stands, SavepointClaim, f"{store.url}/{SAVEPOINT_CLAIM}")
    if claim.job != by_job:
        raise _taken(store, claim)
    return stands


def _claimed_for_disposal(store: Store, claim: SavepointClaim) -> bytes:
    # A damaged or newer `_metadata` is refused: who knows what this folder is.
    before = _id_of(store)
    if before is None and not any(is_savepoint_file(entry.path) for entry in stored_files(store)):
        raise _missing(store)
    body = encode(claim)
    stands = create_once(store, SAVEPOINT_CLAIM, body)
    if _id_of(store) not in (before, None):
        _withdraw(store, body)
        raise UsageError(
            f"another savepoint was made in {store.url} meanwhile: dispose of it again if that one is to go too"
        )
    return stands


def _stands(store: Store, claim: bytes) -> bool:
    try:
        return store.read(SAVEPOINT_CLAIM) == claim
    except NotFoundError:
        return False


def _withdraw(store: Store, claim: bytes) -> None:
    # Looked at first: by now it may be the claim of another, on another savepoint in this folder.
    if _stands(store, claim):
        store.delete([SAVEPOINT_CLAIM])


def _taken(store: Store, claim: SavepointClaim) -> StateflowError:
    if not claim.job:
        return NotFoundError(f"the savepoint in {store.url} is being disposed of: use another one")
    return UsageError(
        f"the savepoint in {store.url} was claimed by job {claim.name!r}, which deletes it once no checkpoint needs "
        "it: restore it with --claim-mode no-claim, or make another one"
    )


def _missing(store: Store) -> NotFoundError:
    return NotFoundError(
        f"there is no savepoint in {store.url}: it has no {SAVEPOINT_METADATA}; `stateflow savepoint list JOB` "
        "shows those of a job"
    )


def _id_of(store: Store) -> str | None:
    try:
        return read_savepoint(store).id
    except NotFoundError:
        return None


def stored_files(store: Store) -> list[Entry]:
    return [*store.list(SAVEPOINT_STATE), *store.list(SAVEPOINT_TABLES)]


def dispose_claimed(
    storage_options: Mapping[str, str],
    *,
    job: str,
    owner: Owner,
    clock: Callable[[], int],
    open_base: Callable[..., Store] = open_store,
) -> DisposeSavepoint:
    """What `collect` calls for savepoints that a job (its UUID) had claimed. One that is gone, or that has become
    another's, is left as it is."""

    def dispose(url: str) -> None:
        store = open_base(url, storage_options)
        claim = read_claim(store)
        if claim is not None and claim.job == job:
            with suppress(NotFoundError):
                dispose_savepoint(store, owner=owner, clock=clock, by_job=job)

    return dispose
