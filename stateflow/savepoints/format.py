"""Savepoints from outside: reading, listing and checking them, and who owns one.

A savepoint is the file `_metadata` and the files that it names. `_metadata` is created last: without it there is no
savepoint. `_claimed` is created once. It names the savepoint and says who may delete it: the job that took it over, or, when
it names no job, the disposal that is under way. A disposal deletes `_metadata` first and `_claimed` last. So a disposal that
dies in between never leaves half a savepoint, only work for the next disposal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from stateflow.checkpoint.log import Log
from stateflow.checkpoint.verification import ExpectedFile, Finding, damage
from stateflow.errors import CorruptError, IncompatibleError, NotFoundError, StateflowError, UsageError
from stateflow.format.layout import (
    SAVEPOINT_BUILT,
    SAVEPOINT_CLAIM,
    SAVEPOINT_METADATA,
    SAVEPOINT_STATE,
    SAVEPOINT_TABLES,
    SAVEPOINTS,
    default_savepoint,
    is_savepoint_file,
    is_savepoint_folder,
)
from stateflow.format.records import (
    Owner,
    Record,
    Savepoint,
    SavepointClaim,
    decode,
    encode,
)
from stateflow.format.references import bases, path_inside, references, with_references
from stateflow.masking import masked
from stateflow.storage.local import LocalStore, held_root
from stateflow.storage.store import Entry, Store, create_once

_log = logging.getLogger(__name__)
_READERS = 8
_SHOWN = 200


def read_savepoint(store: Store) -> Savepoint:
    """The savepoint whose folder the store is the root of."""
    try:
        body = store.read(SAVEPOINT_METADATA)
    except NotFoundError:
        raise no_savepoint(store) from None
    return decode_savepoint(body, f"{store.url}/{SAVEPOINT_METADATA}")


def decode_savepoint(body: bytes, path: str) -> Savepoint:
    """A savepoint that was read from `path`. Refused if it names files in another place: whoever made it would choose what is
    opened with the credentials of whoever reads it."""
    savepoint = decode(body, Savepoint, path)
    for url in sorted(bases([savepoint.record])):
        raise CorruptError(
            f"{path} names files outside of its savepoint, in {masked('', url)[:_SHOWN]!r}, and stateflow makes no such savepoint: use "
            "another one, and ask where this one comes from"
        )
    return savepoint


def read_savepoint_claim(store: Store) -> SavepointClaim | None:
    """Which job has taken the savepoint over, or which disposal is deleting it; None when neither."""
    try:
        body = store.read(SAVEPOINT_CLAIM)
    except NotFoundError:
        return None
    return decode(body, SavepointClaim, f"{store.url}/{SAVEPOINT_CLAIM}")


def resolved(savepoint: Savepoint, url: str) -> Record:
    """The savepoint's record, with the savepoint's URL in every reference to a file, whatever its maker wrote there."""
    base = url.rstrip("/")
    return with_references(
        savepoint.record, lambda ref: msgspec.structs.replace(ref, base=base if ref.path else "")
    )


def expired(savepoint: Savepoint, now: int) -> bool:
    """Whether a clean-up at `now` may dispose of it."""
    return savepoint.expires is not None and savepoint.expires <= now


@dataclass(frozen=True, slots=True)
class ListedSavepoint:
    """The content of a savepoint's folder."""

    savepoint: Savepoint | None
    """None when the savepoint cannot be read, or is being deleted: see `problem`."""
    claim: SavepointClaim | None = None
    problem: str = ""


def list_savepoints(root: Store, job: str | None = None) -> list[tuple[str, ListedSavepoint]]:
    """The savepoints in the root's default folder, of one job or of all jobs, each with the path of its folder.

    The list has a damaged savepoint with its problem. It leaves out one that is still being made.
    """
    jobs = [job] if job is not None else root.folders(f"{SAVEPOINTS}/")
    folders = []
    for name in jobs:
        for each in root.folders(f"{SAVEPOINTS}/{name}/"):
            with suppress(UsageError):  # stateflow gives no savepoint such a name
                folders.append(default_savepoint(name, each))
    with ThreadPoolExecutor(_READERS, "stateflow-savepoints") as pool:
        listings = list(pool.map(lambda folder: _look(root, folder), folders))
    return [
        (folder, listing) for folder, listing in zip(folders, listings, strict=True) if listing is not None
    ]


def _look(root: Store, folder: str) -> ListedSavepoint | None:
    savepoint: Savepoint | None = None
    claim: SavepointClaim | None = None
    try:
        names = {entry.path.rpartition("/")[2] for entry in root.list(f"{folder}/_")}
        if SAVEPOINT_CLAIM in names:
            path = f"{folder}/{SAVEPOINT_CLAIM}"
            claim = decode(root.read(path), SavepointClaim, path)
        if SAVEPOINT_METADATA in names:
            path = f"{folder}/{SAVEPOINT_METADATA}"
            savepoint = decode_savepoint(root.read(path), path)
    except NotFoundError:
        return None  # disposed of since it was listed
    except (CorruptError, IncompatibleError) as error:
        return ListedSavepoint(None, claim, str(error))
    if claim is not None and (savepoint is None or not claim.job):
        return ListedSavepoint(None, claim, "it is being disposed of")
    return ListedSavepoint(savepoint, claim) if savepoint is not None else None


def unfinished(root: Store, job: str) -> list[str]:
    """Folders in the default folder that hold an unfinished savepoint or an unfinished disposal, under way or dead."""
    folders = []
    for name in root.folders(f"{SAVEPOINTS}/{job}/"):
        try:
            folder = default_savepoint(job, name)
        except UsageError:
            continue  # stateflow gives no savepoint such a name
        try:
            paths = [entry.path.removeprefix(f"{folder}/") for entry in root.list(f"{folder}/")]
        except CorruptError as error:  # a link: the others are looked at
            _log.warning("%s was passed over: %s", folder, error)
            continue
        if SAVEPOINT_CLAIM in paths:
            is_unfinished = not _claimed_by_job(root, f"{folder}/{SAVEPOINT_CLAIM}")
        else:
            has_files = any(map(is_savepoint_file, paths)) or bool(unfinished_bytes(root, folder))
            is_unfinished = SAVEPOINT_METADATA not in paths and has_files
        if is_unfinished:
            folders.append(folder)
    return folders


def _claimed_by_job(root: Store, path: str) -> bool:
    try:
        return bool(decode(root.read(path), SavepointClaim, path).job)
    except NotFoundError:
        return True  # deleted since the listing: a disposal is under way
    except (CorruptError, IncompatibleError):
        return True  # nobody knows who owns it


def expected_files(savepoint: Savepoint) -> Iterator[ExpectedFile]:
    """Every file that the savepoint needs, also those whose bytes are in its metadata."""
    for ref in references(savepoint.record):
        yield ExpectedFile.by(ref)
    for states in savepoint.tables.values():
        for files in states.values():
            for file in files:
                yield ExpectedFile(file.path, file.size, file.xxh3, sha256=file.sha256)


def verify_savepoint(store: Store, *, deep: bool) -> list[Finding]:
    """Everything that is wrong with a savepoint; with `deep` every file is read and its checksum compared.

    NotFoundError when there is none, IncompatibleError when a newer stateflow wrote it.
    """
    try:
        savepoint, claim = read_savepoint(store), read_savepoint_claim(store)
    except CorruptError as error:
        return [Finding("error", str(error), path=SAVEPOINT_METADATA)]
    try:
        findings = _findings(store, savepoint, deep=deep)
    except CorruptError as error:  # a folder is a symbolic link
        return [Finding("error", str(error))]
    if claim is not None and not claim.job:
        text = f"{store.url} is being disposed of: `stateflow savepoint dispose {store.url}` finishes that"
        findings.append(Finding("error", text, path=SAVEPOINT_CLAIM))
    return findings


def _findings(store: Store, savepoint: Savepoint, *, deep: bool) -> list[Finding]:
    findings = []
    entries = stored_files(store)
    sizes = {entry.path: entry.size for entry in entries}
    files = list(dict.fromkeys(expected_files(savepoint)))
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


def is_whole(store: Store, savepoint: Savepoint) -> bool:
    """Whether every file exists and has the right size."""
    return all(finding.severity != "error" for finding in _findings(store, savepoint, deep=False))


def claim_savepoint(
    store: Store,
    *,
    job: str,
    name: str,
    owner: Owner,
    clock: Callable[[], int],
    expect: str = "",
    root: str = "",
) -> Savepoint:
    """Gives the savepoint to a job for good, and returns it. All its files were there when it was claimed.

    `job` is the job's UUID, `root` the URL of its checkpoint root. `expect` is the id of the savepoint to claim: another
    savepoint in the folder is left alone.

    A job may claim its own savepoint again. Before it restores from the savepoint a second time, it pins the record that
    `to_pin` returns: the job's own collector may be about to dispose of the savepoint.
    """
    before = read_savepoint(store)
    if expect and before.id != expect:
        raise NotFoundError(
            f"the savepoint in {store.url} was replaced by another meanwhile: plan the restore again"
        )
    body = encode(
        SavepointClaim(
            job=job, name=name, url=store.url, owner=owner, at=clock(), savepoint=before.id, root=root
        )
    )
    current = create_once(store, SAVEPOINT_CLAIM, body)
    claim = decode(current, SavepointClaim, f"{store.url}/{SAVEPOINT_CLAIM}")
    require_own_claim(store, claim, job=job, root=root)
    try:
        # A whole disposal may have run since the first read. It leaves no trace: it deletes its own claim last.
        if id_of(store) != before.id:
            raise NotFoundError(
                f"the savepoint in {store.url} was disposed of meanwhile: restore another one"
            )
        errors = [f.text for f in _findings(store, before, deep=False) if f.severity == "error"]
        if errors:
            raise CorruptError(errors[0])
    except (NotFoundError, CorruptError):
        withdraw(store, body)
        raise
    return before


def require_own_claim(store: Store, claim: SavepointClaim, *, job: str, root: str) -> None:
    """UsageError unless it is the job's own claim, by the URL and in the root of today. `job` is its UUID, empty for one to be."""
    if not job or claim.job != job:
        raise claimed_error(store, claim)
    if not belongs(claim, root, store.url):
        if claim.root not in ("", root):
            raise UsageError(
                f"the savepoint in {store.url} was claimed by this job in {claim.root}, of which {root} is a copy: restore "
                "it with --claim-mode no-claim"
            )
        # A collector takes one savepoint under two URLs for two savepoints, and would dispose of one of them.
        raise UsageError(
            f"the savepoint in {store.url} was claimed by this job as {claim.url}: restore from that URL, or with "
            "--claim-mode no-claim"
        )


def to_pin(log: Log, url: str) -> Record | None:
    """The record that a job pins while it restores once more from a savepoint it has claimed; None when it needs no pin.

    A collector first disposes of a claimed savepoint and then removes the records that named it. So when no record names
    the savepoint, there are two cases: no record ever did, and no collector knows of it; or the savepoint is gone, and
    the next claim fails.
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


def belongs(claim: SavepointClaim, root: str, url: str) -> bool:
    """Whether the claim is by the job in this root, on the savepoint at this URL. A savepoint inside the job's root stays
    the job's own when the root is moved or copied."""
    if not root or not claim.root:
        return claim.url == url
    inside = path_inside(claim.url, claim.root)
    return inside == path_inside(url, root) if inside else (claim.url, claim.root) == (url, root)


def claim_is(store: Store, claim: bytes) -> bool:
    try:
        return store.read(SAVEPOINT_CLAIM) == claim
    except NotFoundError:
        return False


def withdraw(store: Store, claim: bytes) -> None:
    # Checked first: by now the folder may hold another savepoint and another claim.
    with suppress(NotFoundError), held_root(store) as held:
        if claim_is(held, claim):
            held.delete([SAVEPOINT_CLAIM])


def claimed_error(store: Store, claim: SavepointClaim) -> StateflowError:
    if not claim.job:
        return NotFoundError(f"the savepoint in {store.url} is being disposed of: use another one")
    return UsageError(
        f"the savepoint in {store.url} was claimed by job {claim.name!r}, which deletes it once no checkpoint needs "
        "it: restore it with --claim-mode no-claim, or make another one; when that job has been deleted, `stateflow "
        "savepoint dispose` takes it"
    )


def no_savepoint(store: Store) -> NotFoundError:
    return NotFoundError(
        f"there is no savepoint in {store.url}: it has no {SAVEPOINT_METADATA}; `stateflow savepoint list JOB` "
        "shows those of a job"
    )


def id_of(store: Store) -> str | None:
    try:
        return read_savepoint(store).id
    except NotFoundError:
        return None


def stored_files(store: Store) -> list[Entry]:
    """Every file in the folders that only a savepoint's files are written to."""
    return [
        entry for part in (SAVEPOINT_STATE, SAVEPOINT_TABLES, SAVEPOINT_BUILT) for entry in store.list(part)
    ]


def unfinished_bytes(store: Store, folder: str = "") -> dict[str, int]:
    """The bytes of unfinished files, by folder (with its `/`). Killed processes leave them, and no listing shows them."""
    if not isinstance(store, LocalStore):
        return {}
    top = f"{folder}/" if folder else ""
    sizes: dict[str, int] = {}
    for part in (SAVEPOINT_STATE, SAVEPOINT_TABLES, SAVEPOINT_BUILT):
        for inside, size in store.unfinished(f"{top}{part}").items():
            if is_savepoint_folder(within := inside.removeprefix(top)):
                sizes[within] = size
    return sizes
