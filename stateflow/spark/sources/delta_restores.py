"""Delta tables that went back (RESTORE) under their readers.

A reader has taken the rows of every version before its position. When the table goes back, the rows in between are undone. A
reader that has taken none of them reads up to the version that came back, and goes on behind the commit that brought it. A
reader that has taken some of them counts rows that no longer exist: only an older state of that reader is right.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stateflow.spark.internals.delta_log import file_identity
from stateflow.spark.sources.delta_offset import DeltaOffset

_OPERATION = b'"RESTORE"'
Read = Callable[[int], bytes | None]
"""A commit's file by its version; None when there is none."""


@dataclass(frozen=True, slots=True)
class TableRestore:
    """A commit that took a table back."""

    version: int
    kept: int | None
    """The newest earlier version with the rows that the RESTORE brought back; None when the log no longer tells."""


@dataclass(frozen=True, slots=True)
class Detour:
    """A reader's way round what a restore has undone."""

    restore: TableRestore
    through: int
    """The reader takes the versions up to this one."""
    onward: DeltaOffset
    """Where it goes on then."""
    reached: bool
    """Whether nothing is left to read before it goes on there."""


@dataclass(frozen=True, slots=True)
class UndoneRead:
    """The reader has taken rows that a restore has undone."""

    restore: TableRestore


def next_step(
    position: DeltaOffset, restores: Sequence[TableRestore], *, unread: bool = False
) -> Detour | UndoneRead | None:
    """What a reader does next about the restores, which come oldest first; None when none lies ahead of it. Pure.

    `unread`: the reader begins at `position`, and has taken no row yet.
    """
    # The snapshot of a version has what its commit brought back.
    first = position.version + 1 if position.snapshot else position.version
    ahead = [restore for restore in restores if restore.version >= first]
    if not ahead:
        return None
    newest = ahead[-1]
    behind = DeltaOffset(position.table, newest.version + 1)
    if newest.kept is not None and _took_nothing_after(newest.kept, position):
        # Restores after `kept` were undone themselves, and those before it were not.
        standing = [restore for restore in ahead if restore.version <= newest.kept]
        reached = not position.snapshot and position.version > newest.kept
        return next_step(position, standing, unread=unread) or Detour(newest, newest.kept, behind, reached)
    if position.snapshot and position.index < 0:
        return Detour(newest, -1, DeltaOffset(position.table, newest.version, snapshot=True), reached=True)
    return Detour(newest, -1, behind, reached=True) if unread else UndoneRead(newest)


def _took_nothing_after(version: int, position: DeltaOffset) -> bool:
    if position.version <= version:
        return True
    return position.version == version + 1 and position.index < 0 and not position.snapshot


def restores_in(read: Read, first: int, newest: int) -> list[TableRestore]:
    """The commits from `first` through `newest` that have taken the table back, oldest first."""
    found = (restore_at(read, version) for version in range(first, newest + 1))
    return [restore for restore in found if restore is not None]


def restore_at(read: Read, version: int) -> TableRestore | None:
    """The commit, if it has taken the table back."""
    body = read(version)
    # Most commits are none, and need no parsing.
    if body is None or _OPERATION not in body:
        return None
    actions = list(_actions(body))
    info = next((action["commitInfo"] for action in actions if "commitInfo" in action), None) or {}
    moved = _moved(actions)
    if not moved or info.get("operation") != "RESTORE":
        return None
    kept = _kept(read, version, moved)
    return TableRestore(version, _named(info) if kept is None else kept)


def _kept(read: Read, restored: int, moved: set[tuple[str, str]]) -> int | None:
    """The newest version before `restored` with the same rows. It walks back over commits until their changes cancel those of
    the restore."""
    left = set(moved)
    for version in range(restored - 1, -1, -1):
        body = read(version)
        if body is None:
            return None
        left ^= _moved(_actions(body))
        if not left:
            return _last_like(read, version - 1, restored)
    return None


def newest_like(read: Read, version: int, restored: int) -> int:
    """The newest version before `restored` with the rows that `version` has."""
    moved: set[tuple[str, str]] = set()
    for later in range(version + 1, restored):
        moved ^= _moved(_actions(read(later) or b""))
    kept = _kept(read, restored, moved) if moved else restored - 1
    return version if kept is None else kept


def _named(info: dict[str, Any]) -> int | None:
    """The version that the restore itself names, unless it names a time."""
    named = str((info.get("operationParameters") or {}).get("version"))
    return int(named) if named.isdecimal() else None


def _last_like(read: Read, version: int, restored: int) -> int:
    """The last version after `version` with only maintenance in between."""
    for later in range(version + 1, restored):
        if _changes_data(_actions(read(later) or b"")):
            return later - 1
    return restored - 1


def _moved(actions: Iterable[dict[str, Any]]) -> set[tuple[str, str]]:
    """The files that a commit adds or removes, without those that it adds and removes."""
    actions = list(actions)
    # Maintenance that removes no file, such as a row tracking backfill, adds again files that the table has.
    if not any("remove" in action for action in actions) and not _changes_data(actions):
        return set()
    moved: set[tuple[str, str]] = set()
    for file in _files(actions):
        moved ^= {file_identity(file)}
    return moved


def _changes_data(actions: Iterable[dict[str, Any]]) -> bool:
    return any(file.get("dataChange", True) for file in _files(actions))


def _files(actions: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for action in actions:
        file = action.get("add") or action.get("remove")
        if file is not None:
            yield file


def _actions(body: bytes) -> Iterator[dict[str, Any]]:
    for line in body.splitlines():
        action = json.loads(line) if line.strip() else None
        if isinstance(action, dict):
            yield action
