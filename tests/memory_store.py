"""A store in memory that can fail like a real one, so that a crash is tried at every call.

`before(call)` and `after(call)` see every call and may raise. What they raise is what happens:

- CrashError before: the process died and nothing was stored; after: it died after the call took effect.
- UnavailableError before: refused; after: stored, but the answer was lost.
- ExistsError before a create: a conflict with nothing stored; after: one's own write, reported as a conflict.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stateflow.errors import NotFoundError
from stateflow.storage.store import (
    Entry,
    ExistsError,
    checked_folder,
    checked_path,
    checked_prefix,
    nothing_to_upload,
)

Verb = Literal["read", "range", "create", "put", "upload", "download", "copy", "list", "delete"]


class CrashError(BaseException):
    """The process is gone. Not an Exception: no handler of the code under test may survive its own death."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request to the store; deleting many paths is a call for each."""

    number: int
    """The number of the call, from 0."""
    verb: Verb
    path: str
    """The prefix for `list`, the target for `copy`."""
    body: bytes = b""

    @property
    def writes(self) -> bool:
        return self.verb in ("create", "put", "upload", "copy", "delete")


Hook = Callable[[Call], None]
Tear = Callable[[Call, list[Entry]], list[Entry]]


class MemoryStore:
    """Thread-safe. Hooks run outside the lock, so that they may call the store or wait for another thread."""

    def __init__(self, name: str = "test", objects: Mapping[str, bytes] | None = None) -> None:
        self._name = name
        self._objects: dict[str, bytes] = dict(objects or {})
        self._lock = threading.Lock()
        self.calls: list[Call] = []
        self.before: Hook | None = None
        self.after: Hook | None = None
        self.tear: Tear | None = None
        """Turns a whole listing into the one that the caller sees."""

    def __repr__(self) -> str:
        return f"MemoryStore({self._name!r})"

    @property
    def url(self) -> str:
        return f"memory://{self._name}"

    @property
    def local_root(self) -> Path | None:
        return None

    def snapshot(self) -> dict[str, bytes]:
        """A copy of the content. It shares the bodies, so it is cheap."""
        with self._lock:
            return dict(self._objects)

    def restore(self, objects: Mapping[str, bytes]) -> None:
        """Replaces the content by that of a snapshot. Calls and hooks stay."""
        with self._lock:
            self._objects = dict(objects)

    def clone(self) -> MemoryStore:
        """A store of its own with the same content, without calls and hooks: a branch of an exploration."""
        return MemoryStore(self._name, self.snapshot())

    def read(self, path: str) -> bytes:
        call = self._begin("read", path)
        with self._lock:
            body = self._objects.get(path)
        self._end(call)
        return self._present(path, body)

    def create(self, path: str, body: bytes) -> None:
        call = self._begin("create", path, body)
        with self._lock:
            taken = path in self._objects
            if not taken:
                self._objects[path] = bytes(body)
        self._end(call)
        if taken:
            raise ExistsError(path)

    def put(self, path: str, body: bytes) -> None:
        self._store("put", path, body)

    def upload(self, source: Path, path: str) -> None:
        if not source.is_file():
            raise nothing_to_upload(source, path, self.url)
        self._store("upload", path, source.read_bytes())

    def download(self, path: str, target: Path) -> None:
        call = self._begin("download", path)
        with self._lock:
            body = self._objects.get(path)
        self._end(call)
        with target.open("xb") as file:
            try:
                file.write(self._present(path, body))
            except NotFoundError:
                target.unlink()
                raise

    def copy(self, source: str, target: str) -> int:
        checked_path(source)
        call = self._begin("copy", target)
        with self._lock:
            body = self._objects.get(source)
            if body is not None:
                self._objects[target] = body
        self._end(call)
        self._present(source, body)
        return 0

    def read_range(self, path: str, start: int, length: int) -> bytes:
        call = self._begin("range", path)
        with self._lock:
            body = self._objects.get(path)
        self._end(call)
        return self._present(path, body)[start : start + length]

    def folders(self, prefix: str) -> list[str]:
        checked_folder(prefix)
        call = self._begin("list", prefix)
        with self._lock:
            below = [path[len(prefix) :] for path in self._objects if path.startswith(prefix)]
        self._end(call)
        return sorted({name for path in below if (name := path.rpartition("/")[0].partition("/")[0])})

    def list(self, prefix: str) -> list[Entry]:
        checked_prefix(prefix)
        call = self._begin("list", prefix)
        with self._lock:
            entries = [Entry(p, len(b)) for p, b in self._objects.items() if p.startswith(prefix)]
        entries.sort(key=lambda entry: entry.path)
        self._end(call)
        return self.tear(call, entries) if self.tear else entries

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            call = self._begin("delete", path)
            with self._lock:
                self._objects.pop(path, None)
            self._end(call)

    def _store(self, verb: Verb, path: str, body: bytes) -> None:
        call = self._begin(verb, path, body)
        with self._lock:
            self._objects[path] = bytes(body)
        self._end(call)

    def _begin(self, verb: Verb, path: str, body: bytes = b"") -> Call:
        if verb != "list":
            checked_path(path)
        with self._lock:
            call = Call(len(self.calls), verb, path, bytes(body))
            self.calls.append(call)
        if self.before:
            self.before(call)
        return call

    def _end(self, call: Call) -> None:
        if self.after:
            self.after(call)

    def _present(self, path: str, body: bytes | None) -> bytes:
        if body is None:
            raise NotFoundError(f"{path} does not exist in {self.url}")
        return body


_named: dict[str, MemoryStore] = {}
_named_lock = threading.Lock()


def named_store(name: str) -> MemoryStore:
    """The one store of this process under a name."""
    with _named_lock:
        return _named.setdefault(name, MemoryStore(name))
