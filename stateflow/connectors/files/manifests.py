"""The log of a folder of files: a manifest for each commit, and `_latest.json` with all files that count now.

    _manifests/00000000000000000007.json   created once, never changed: what the commit added or took back
    _latest.json                           the files of all commits up to one of them; written after the manifest

A manifest is created by name, so of two that want to be number 7 one is. Whoever wants to be next has read the one before: so nobody
decides by a slot that is not the newest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stateflow.connectors import CorruptError, NotFoundError, Store, create_once

MANIFESTS = "_manifests/"
LATEST = "_latest.json"
VERSION = 1


@dataclass(frozen=True, slots=True)
class LoggedFolder:
    """The newest that a folder's log says."""

    number: int
    """Of the newest manifest; 0 before the first."""
    slots: Mapping[str, tuple[int, int]]
    """By sink the slot that it committed last, and the mark of its record."""
    columns: tuple[tuple[str, str], ...]
    """Of all rows; none before the first."""
    files: tuple[Mapping[str, Any], ...]
    """Those that count, in the order in which they came."""

    def slot_of(self, sink: str) -> tuple[int | None, int | None]:
        return self.slots.get(sink, (None, None))

    def then(self, manifest: Mapping[str, Any]) -> LoggedFolder:
        """Behind one more commit."""
        gone = set(manifest["removed"])
        sink, slot = manifest["sink"], manifest["slot"]
        return LoggedFolder(
            manifest["number"],
            {**self.slots, sink: (slot, manifest["mark"])},
            tuple((name, kind) for name, kind in manifest["columns"]),
            (
                *(file for file in self.files if file["path"] not in gone),
                *({**file, "sink": sink, "slot": slot} for file in manifest["added"]),
            ),
        )

    def document(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "number": self.number,
            "slots": {sink: list(slot) for sink, slot in self.slots.items()},
            "columns": [list(column) for column in self.columns],
            "files": list(self.files),
        }


EMPTY = LoggedFolder(0, {}, (), ())


class Manifests:
    """The log in its store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def newest(self) -> LoggedFolder:
        """What the log says now. Reads `_latest.json` and what is behind it: all manifests only where that was lost."""
        folder = self._latest()
        for manifest in self.behind(folder.number):
            folder = folder.then(manifest)
        return folder

    def behind(self, number: int) -> Iterator[Mapping[str, Any]]:
        while (manifest := self.manifest(number + 1)) is not None:
            number += 1
            yield manifest

    def manifest(self, number: int) -> Mapping[str, Any] | None:
        found = self._read(_path(number))
        if found is not None and found.get("number") != number:
            raise CorruptError(
                f"{_path(number)} in {self.store.url} is not the manifest of its name: put the folder back from a copy"
            )
        return found

    def taken_back(self, folder: LoggedFolder, sink: str, slot: int) -> int | None:
        """A later slot of the sink that has taken back files which counted at this one; None if all are still there."""
        added: set[str] = set()
        since: dict[str, int] = {}
        for number in range(folder.number, 0, -1):
            manifest = self.manifest(number)
            if manifest is None or manifest["sink"] != sink:
                continue
            if manifest["slot"] <= slot:
                break
            added.update(file["path"] for file in manifest["added"])
            since.update(dict.fromkeys(manifest["removed"], manifest["slot"]))
        return next((since[path] for path in since if path not in added), None)

    def add(self, manifest: Mapping[str, Any]) -> bool:
        """Whether the manifest is the next one. Its `id` is its own."""
        body = json.dumps(manifest, ensure_ascii=False).encode()
        return create_once(self.store, _path(manifest["number"]), body) == body

    def publish(self, folder: LoggedFolder) -> LoggedFolder:
        """Lets `_latest.json` say it. One who was slower, and has written what is older, finds the newer manifest and writes again."""
        while True:
            self.store.put(LATEST, json.dumps(folder.document(), ensure_ascii=False).encode())
            newer = folder
            for manifest in self.behind(folder.number):
                newer = newer.then(manifest)
            if newer is folder:
                return folder
            folder = newer

    def _latest(self) -> LoggedFolder:
        found = self._read(LATEST)
        if found is None:
            return EMPTY
        try:
            if found["version"] != VERSION:
                raise CorruptError(
                    f"{LATEST} in {self.store.url} has version {found['version']!r}, and this release reads {VERSION}: use the release that wrote it"
                )
            return LoggedFolder(
                found["number"],
                {sink: (slot, mark) for sink, (slot, mark) in found["slots"].items()},
                tuple((name, kind) for name, kind in found["columns"]),
                tuple(found["files"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptError(
                f"{LATEST} in {self.store.url} cannot be read: {error!r}; delete it, and it is made anew"
            ) from error

    def _read(self, path: str) -> Mapping[str, Any] | None:
        try:
            found = json.loads(self.store.read(path))
        except NotFoundError:
            return None
        except ValueError as error:
            way = "delete it, and it is made anew" if path == LATEST else "put the folder back from a copy"
            raise CorruptError(f"{path} in {self.store.url} is no JSON: {error}; {way}") from error
        if not isinstance(found, dict):
            raise CorruptError(
                f"{path} in {self.store.url} is no JSON object: put the folder back from a copy"
            )
        return found


def _path(number: int) -> str:
    return f"{MANIFESTS}{number:020d}.json"
