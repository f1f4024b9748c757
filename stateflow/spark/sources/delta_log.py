"""The log of a Delta table, read without Spark: whether a job has anything to read there, and from where.

An answer is given only when it is certain. Everything else is left to a run, or to Delta.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from stateflow.errors import NotFoundError
from stateflow.spark.internals.delta_log import DeltaLog, LoggedCommit, logged_commit
from stateflow.spark.sources.delta_offset import DeltaOffset
from stateflow.storage.roots import local_folder, open_beside
from stateflow.storage.store import Store

MOST_QUIET = 100
"""Commits without rows that are looked through. With more of them a run finds out."""
_LARGE = 4 << 20
"""Bytes of a commit beyond which nobody parses it just to see whether it has rows."""
_QUIET = {"commitInfo", "txn", "domainMetadata"}
"""Actions that neither add rows nor change how the table is read."""
MOST_REPLAYED = 100
"""Commits that are looked through to tell whether a table was only appended to. With more of them Delta's snapshot is
soon the cheaper beginning."""
_FIRST = _QUIET | {"protocol", "metaData"}
"""Actions of the first commit beside rows: it makes the table."""
_BEFORE = -1
_CHECKSUM = "crc"
STAGED = "_staged_commits"
"""The folder of staged commits. Only the catalog knows which of them count."""


class Ahead(Enum):
    """What lies between a position and the end of a run."""

    NOTHING = "nothing"
    BEHIND = "behind"
    """The run's bound lies behind the position."""
    UNKNOWN = "unknown"
    """Something, or only Spark can find out."""


@dataclass(frozen=True)
class SourceLog:
    """The commits of a table, by version."""

    read: Callable[[int], bytes | None]
    """A commit's file; None when there is none."""
    modified: Callable[[], Mapping[int, int]] | None = None
    """When each commit's file was written, in milliseconds; None when the store does not tell."""
    versions: Callable[[], Iterable[int]] | None = None
    """The versions whose commits are there; None when the store does not list them."""
    staged: Callable[[], Iterable[int]] | None = None
    """The versions that somebody has asked a catalog to take as commits; None for a log that has no place for them."""
    checksum: Callable[[int], bytes | None] = lambda version: None
    """The file that Delta writes beside a commit, with all that holds behind it; None where another writer has written none."""
    _bodies: dict[int, bytes | None] = field(default_factory=dict)

    def commit(self, version: int) -> bytes | None:
        if version not in self._bodies:
            self._bodies[version] = self.read(version) if version >= 0 else None
        return self._bodies[version]

    def may_have(self, version: int) -> bool:
        """Whether a catalog may have taken a commit of this version or a later one that is not in the log's folder yet. Only the catalog
        knows."""
        return self.staged is not None and max(self.staged(), default=_BEFORE) >= version

    def newest(self) -> int:
        """The newest version; -1 if there is none."""
        version = max(self.versions(), default=_BEFORE) if self.versions is not None else _BEFORE
        while self.commit(version + 1) is not None:
            version += 1
        return version

    def commits(self) -> Iterator[LoggedCommit]:
        """From the newest version down, as far as the log reaches."""
        version = self.newest()
        while version >= 0 and (body := self.commit(version)) is not None:
            yield logged_commit(version, body.decode().splitlines())
            version -= 1

    def metadata(self) -> Mapping[str, Any]:
        """The table's newest, its schema and partitions among it; empty where the log does not reach back to it."""
        for commit in self.commits():
            found = _action(self.checksum(commit.version) or b"").get("metadata")
            if found is None and commit.reshapes:
                actions = map(_action, (self.commit(commit.version) or b"").splitlines())
                found = next((action["metaData"] for action in actions if "metaData" in action), None)
            if found is not None:
                return found
        return {}

    def time_of(self, version: int) -> int | None:
        """When the commit was made, in milliseconds, as Delta tells it; None when that is not known."""
        body = self.commit(version)
        if body is None:
            return None
        for line in body.splitlines()[:1]:
            # Where the table keeps its own times, they come first in a commit.
            own = _action(line).get("commitInfo", {}).get("inCommitTimestamp")
            if own is not None:
                return int(own)
        return self._times.get(version)

    @cached_property
    def _times(self) -> Mapping[int, int]:
        """Delta moves a commit that seems no later than the one before to a millisecond after it."""
        if self.modified is None:
            return {}
        times: dict[int, int] = {}
        before = _BEFORE
        for version, at in sorted(self.modified().items()):
            before = times[version] = max(at, before + 1)
        return times

    def is_quiet(self, version: int) -> bool:
        """Whether a commit certainly has no rows for a reader and changes nothing for it."""
        body = self.commit(version)
        return body is not None and len(body) <= _LARGE and all(map(_is_quiet, body.splitlines()))

    def only_appends(self, version: int) -> bool:
        """True if the commits up to `version` are all there, few, and certainly add up to that version of the table."""
        return version < MOST_REPLAYED and all(map(self._only_adds, range(version + 1)))

    def _only_adds(self, version: int) -> bool:
        body = self.commit(version)
        if body is None or len(body) > _LARGE:
            return False
        allowed = _FIRST if version == 0 else _QUIET
        return all(_is_plain(action, allowed) for action in map(_action, body.splitlines()))

    @property
    def table(self) -> str | None:
        """The table's id at its creation; None when its first commit is gone."""
        body = self.commit(0)
        actions = (_action(line) for line in (body or b"").splitlines())
        return next((str(a["metaData"]["id"]) for a in actions if "metaData" in a), None)


def commit_id(read: Callable[[int], bytes | None], position: DeltaOffset) -> str:
    """What tells the newest commit that is read at a position from any other; empty where there is none. `read` gives a commit's file."""
    version = position.newest_read
    body = read(version) if version >= 0 else None
    return hashlib.blake2b(body.strip(), digest_size=16).hexdigest() if body is not None else ""


def ahead(log: SourceLog, position: DeltaOffset, until: int | datetime | None, commit: str = "") -> Ahead:
    """What a run that ends at `until` would find after the position: everything before its version is read, and nothing of that one
    unless it lies inside. `commit`: what the record says of the newest one that is read."""
    version = position.version
    if log.table not in (None, position.table):
        return Ahead.UNKNOWN  # it was made anew, and a run says so
    if commit and commit_id(log.commit, position) not in ("", commit):
        return Ahead.UNKNOWN  # it is another copy, and a run says so
    if until is None:
        bound = None
    elif isinstance(until, datetime):
        last = _last_before(log, version, until)
        if last is None:
            return Ahead.UNKNOWN
        bound = last
    else:
        bound = until
    if bound is not None and (version > bound + 1 or (version == bound + 1 and position.inside)):
        return Ahead.BEHIND
    if position.inside or (version > 0 and log.commit(version - 1) is None):
        return Ahead.UNKNOWN
    for quiet in range(version, version + MOST_QUIET):
        if bound is not None and quiet > bound:
            return Ahead.NOTHING
        if log.commit(quiet) is None:
            if log.may_have(quiet):
                return Ahead.UNKNOWN
            return Ahead.NOTHING if bound is None or isinstance(until, datetime) else Ahead.UNKNOWN
        if not log.is_quiet(quiet):
            return Ahead.UNKNOWN
    return Ahead.UNKNOWN


def begins_after(log: SourceLog, until: int | datetime) -> bool:
    """Whether the whole table is younger than `until`, so that a first run has nothing to begin with."""
    first = log.time_of(0) if isinstance(until, datetime) else None
    return first is not None and isinstance(until, datetime) and first > _millis(until)


def _last_before(log: SourceLog, version: int, until: datetime) -> int | None:
    """The last commit at or before `until`, as far as a reader at `version` needs it; None when it is not known."""
    bound = _millis(until)
    if version > 0:
        at = log.time_of(version - 1)
        if at is None:
            return None
        if at > bound:
            return version - 2  # or an earlier one, which makes no difference
    last = version - 1
    for later in range(version, version + MOST_QUIET):
        if log.commit(later) is None:
            return None if log.may_have(later) else last
        at = log.time_of(later)
        if at is None:
            return None
        if at > bound:
            return last
        last = later
    return last


def log_of(path: str, root: Store, location: Callable[[str], Store | None]) -> SourceLog | None:
    """The log of the table at `path`; None when this process cannot be sure to read it.

    A table in an object store is read only when it lies in the store of the checkpoint root, whose credentials are at hand.
    `location` opens a folder of that store.
    """
    if local_folder(path) is not None:
        return local_log(path)
    if root.local_root is not None:
        return None
    store = location(path.rstrip("/") + "/_delta_log")
    return _stored(store) if store is not None else None


def log_beside(path: str, root: Store, options: Mapping[str, str]) -> SourceLog | None:
    """The same. `options` are those of the checkpoint root's store."""
    return log_of(path, root, lambda url: open_beside(url, root, options))


def commits_of(path: str, root: Store, options: Mapping[str, str]) -> Iterator[LoggedCommit]:
    """The table's commits from the newest version down, as far as the log reaches; none where this process cannot read it."""
    log = log_beside(path, root, options)
    return log.commits() if log is not None else iter(())


def local_log(path: str) -> SourceLog | None:
    """The log of a table on the local disk; None when it lies elsewhere or is not there."""
    table = local_folder(path)
    folder = table / "_delta_log" if table is not None else None
    return _local(folder) if folder is not None and folder.is_dir() else None


def local_log_of(log: DeltaLog) -> SourceLog | None:
    """The same log without Spark; None where it lies elsewhere, or where a catalog knows of newer commits."""
    return None if log.is_managed else local_log(log.path)


def _local(folder: Path) -> SourceLog:
    def read(version: int, ending: str = "json") -> bytes | None:
        try:
            return (folder / f"{version:020d}.{ending}").read_bytes()
        except FileNotFoundError:
            return None

    def modified() -> dict[int, int]:
        return {
            int(path.stem): path.stat().st_mtime_ns // 1_000_000
            for path in folder.glob("*.json")
            if path.stem.isdigit()
        }

    def versions() -> Iterator[int]:
        return _versions(path.name for path in folder.iterdir())

    def staged() -> Iterator[int]:
        beside = folder / STAGED
        return _staged(path.name for path in beside.iterdir()) if beside.is_dir() else iter(())

    return SourceLog(read, modified, versions, staged, partial(read, ending=_CHECKSUM))


def _stored(store: Store) -> SourceLog:
    def read(version: int, ending: str = "json") -> bytes | None:
        try:
            return store.read(f"{version:020d}.{ending}")
        except NotFoundError:
            return None

    def versions() -> Iterator[int]:
        # The names of commits begin with zeros, those of other files and folders beside them do not.
        return _versions(entry.path for entry in store.list("0"))

    def staged() -> Iterator[int]:
        return _staged(entry.path.rpartition("/")[2] for entry in store.list(f"{STAGED}/"))

    return SourceLog(read, versions=versions, staged=staged, checksum=partial(read, ending=_CHECKSUM))


def _versions(names: Iterable[str]) -> Iterator[int]:
    return (int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit())


def _staged(names: Iterable[str]) -> Iterator[int]:
    """Their names are a version and an id: another writer may have asked for the same version."""
    return (int(name[:20]) for name in names if name.endswith(".json") and name[:20].isdigit())


def _is_plain(action: Mapping[str, Any], allowed: Set[str]) -> bool:
    """Whether an action adds a whole file of new rows, or does nothing to rows."""
    added = action.get("add")
    if added is None:
        return set(action) <= allowed
    return set(action) == {"add"} and added.get("dataChange") is True and not added.get("deletionVector")


def _is_quiet(line: bytes) -> bool:
    action = _action(line)
    files = [action[name] for name in ("add", "remove") if name in action]
    return set(action) - {"add", "remove"} <= _QUIET and not any(f.get("dataChange", True) for f in files)


def _action(line: bytes) -> dict[str, dict[str, Any]]:
    action = json.loads(line) if line.strip() else {}
    return action if isinstance(action, dict) else {"?": {}}


def _millis(at: datetime) -> int:
    return int(at.timestamp() * 1000)
