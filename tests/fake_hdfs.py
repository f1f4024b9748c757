"""HDFS as its clients see it through WebHDFS, in memory: files that have a name before they have bytes, and writers that die."""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from stateflow.storage.webhdfs import HdfsAnswerError, UnheardError
from tests.memory_store import CrashError

_INODES = "/.reserved/.inodes/"


@dataclass
class Inode:
    id: int
    data: bytes = b""
    open: bool = True
    mode: str = "644"
    asked: int = 0
    """How often somebody else has tried to create it."""


@dataclass(frozen=True)
class Accident:
    """What becomes of a writer whose request is under way."""

    arrives: float
    """The share of the body that HDFS gets."""
    closed: bool
    """Whether a DataNode closes the file. Else it has died, too, and somebody who wants the name has to ask for some time."""
    dies: bool
    """Whether the process dies; else it hears nothing."""


@dataclass
class FakeHdfs:
    files: dict[str, Inode] = field(default_factory=dict)
    folders: set[str] = field(default_factory=lambda: {"/"})
    patience: int = 3
    """How often a create has to be tried before HDFS ends the file of a DataNode that has died."""
    numbered: bool = True
    """Whether it is asked through something that tells the numbers of files."""
    calls: list[tuple[str, str]] = field(default_factory=list)
    accident: Callable[[str, str], Accident | None] = lambda op, path: None
    before: Callable[[str, str], object] = lambda op, path: None
    """Called for each question, outside the lock; it may raise."""
    _next: int = 1
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def snapshot(self) -> FakeHdfs:
        """A copy without hooks and calls."""
        with self._lock:
            return FakeHdfs(
                copy.deepcopy(self.files), set(self.folders), self.patience, self.numbered, _next=self._next
            )

    def ask(self, method: str, path: str, op: str, **parameters: str) -> dict[str, Any]:
        self._begin(op, path)
        with self._lock:
            path = self._resolved(path)
            if op == "DELETE":
                done = {"boolean": self._delete(path)}
            elif op == "GETFILESTATUS":
                done = {"FileStatus": self._status(path, "")}
            elif op == "LISTSTATUS":
                done = {"FileStatuses": {"FileStatus": self._list(path)}}
            elif op == "GET_BLOCK_LOCATIONS":
                done = {"LocatedBlocks": {"isUnderConstruction": self._file(path).open}}
            else:
                raise AssertionError(op)
        return done

    @contextmanager
    def open(self, path: str, **parameters: str) -> Iterator[BinaryIO]:
        self._begin("OPEN", path)
        with self._lock:
            data = self._file(self._resolved(path)).data
        start = int(parameters["offset"])
        yield io.BytesIO(data[start : start + int(parameters["length"])])

    def create(
        self, path: str, body: bytes | BinaryIO | Iterator[bytes], size: int, **parameters: str
    ) -> None:
        accident = self.accident("CREATE", path)
        self._begin("CREATE", path)
        with self._lock:
            inode = self._named(path, parameters)
        # From here on others see the name.
        data = body if isinstance(body, bytes) else body.read() if hasattr(body, "read") else b"".join(body)
        self._begin("DATA", path)
        with self._lock:
            if self.files.get(path) is not inode:
                raise HdfsAnswerError("LeaseExpiredException", "the file is not open for writing")
            if accident is None or accident.arrives == 1:
                inode.data, inode.open = data, False
            else:
                inode.data = (
                    data[: min(int(len(data) * accident.arrives), len(data) - 1)] if accident.closed else b""
                )
                inode.open = not accident.closed
        if accident is not None:
            raise CrashError if accident.dies else UnheardError("the connection broke")

    def _named(self, path: str, parameters: dict[str, str]) -> Inode:
        if path in self.folders:
            raise HdfsAnswerError("FileAlreadyExistsException", f"{path} is a directory")
        parents = [path[:at] or "/" for at, letter in enumerate(path) if letter == "/"]
        if any(parent in self.files for parent in parents):
            raise HdfsAnswerError("ParentNotDirectoryException", "(is not a directory)")
        there = self.files.get(path)
        if there is not None and parameters["overwrite"] != "true":
            there.asked += there.open
            if there.asked >= self.patience:
                there.open = False
            raise HdfsAnswerError("FileAlreadyExistsException", f"{path} already exists")
        self.folders.update(parents)
        inode = self.files[path] = Inode(self._next, mode=parameters.get("permission", "644"))
        self._next += 1
        return inode

    def _resolved(self, path: str) -> str:
        if not path.startswith(_INODES):
            return path.rstrip("/") or "/"
        wanted = int(path.removeprefix(_INODES))
        for name, inode in self.files.items():
            if inode.id == wanted:
                return name
        raise HdfsAnswerError("FileNotFoundException", "File for given inode path does not exist")

    def _file(self, path: str) -> Inode:
        if path not in self.files:
            raise HdfsAnswerError("FileNotFoundException", path)
        return self.files[path]

    def _delete(self, path: str) -> bool:
        if path in self.folders:
            if self._list(path):
                raise HdfsAnswerError("PathIsNotEmptyDirectoryException", path)
            self.folders.discard(path)
            return True
        return self.files.pop(path, None) is not None

    def _status(self, path: str, name: str) -> dict[str, Any]:
        if path in self.folders:
            return {"pathSuffix": name, "type": "DIRECTORY", "length": 0, "fileId": 0, "permission": "755"}
        inode = self._file(path)
        length = 0 if inode.open else len(inode.data)
        status = {"pathSuffix": name, "type": "FILE", "length": length, "permission": inode.mode}
        return {**status, "fileId": inode.id} if self.numbered else status

    def _list(self, path: str) -> list[dict[str, Any]]:
        if path not in self.folders:
            return [self._status(path, "")]
        base = path.rstrip("/") + "/"
        inside = (name for name in (*self.files, *self.folders) if name.startswith(base) and name != base)
        return [self._status(name, name[len(base) :]) for name in inside if "/" not in name[len(base) :]]

    def _begin(self, op: str, path: str) -> None:
        with self._lock:
            self.calls.append((op, path))
        self.before(op, path)
