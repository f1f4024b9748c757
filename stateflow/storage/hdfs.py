"""A checkpoint root in HDFS.

A create is exclusive at the NameNode, but its file has a name before it has its bytes, and keeps the name when its writer dies
half-way: the DataNode then closes the file with the bytes that came. So a file counts as an object only when it is whole:

- The NameNode knows its length. It does from the moment when the last block is complete, and that moment is the create's. A
  file that is being written has the length 0. An empty object has a mark of its own, the owner's right to execute it.
- A body of a record has the length that its first line states (`stated_size`).

What is neither whole nor being written stays so for ever, since nobody appends. Whoever wants to create its path removes it
first, by the number of its inode: so it never removes what somebody else has created there since.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

from stateflow.errors import NotFoundError, StateflowError, UnavailableError, UsageError
from stateflow.format.records import LONGEST_LINE, stated_size
from stateflow.storage.hdfs_roots import hdfs_root
from stateflow.storage.store import (
    PIECE,
    TEMP,
    Entry,
    ExistsError,
    checked_folder,
    checked_path,
    checked_prefix,
    not_saved,
    nothing_to_upload,
)
from stateflow.storage.webhdfs import HdfsAnswerError, UnheardError, WebHdfs

_THREADS = 8
_FEW = 4
_TRIES = 3
_LOOKS = 10
"""How often a reader looks at a file that is being written: about a second in all. Writing over a heartbeat takes less."""
_TURNS = 16
"""How often a create looks at the file of another writer: about 20 seconds in all. `create_once` tries six times, which is
longer than the minute after which HDFS lets another client end the file of a DataNode that has died."""
_MARKED_EMPTY = "744"
_MISSING = ("FileNotFoundException", "ParentNotDirectoryException", "NotDirectoryException")
_TAKEN = ("FileAlreadyExistsException", "AlreadyBeingCreatedException", "RecoveryInProgressException")

R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Status:
    """What the NameNode says of a file or folder."""

    name: str
    folder: bool
    length: int
    id: int
    marked_empty: bool

    @property
    def has_length(self) -> bool:
        return not self.folder and (self.length > 0 or self.marked_empty)


class Web(Protocol):
    """The client as the store uses it. It raises RefusedError and UnheardError."""

    def ask(self, method: str, path: str, op: str, **parameters: str) -> dict[str, Any]: ...

    def open(self, path: str, **parameters: str) -> AbstractContextManager[Readable]: ...

    def create(
        self, path: str, body: bytes | BinaryIO | Iterator[bytes], size: int, **parameters: str
    ) -> None: ...


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class HdfsStore:
    """Passes the options to the client and nowhere else: it does not store, log or show them."""

    def __init__(
        self,
        url: str,
        options: Mapping[str, str] | None = None,
        pause: Callable[[float], object] = time.sleep,
        web: Web | None = None,
    ) -> None:
        """`web`: the client, in place of the one for the URL."""
        root = hdfs_root(url, options or {})
        self._url = root.url
        self._folder = root.folder
        self._pause = pause
        try:
            self._web: Web = web or WebHdfs(root.endpoints, root.access, pause=pause)
        except OSError as error:
            raise UsageError(
                f"the file of hdfs_ca_file for {url} cannot be read ({error}): name a file of PEM certificates"
            ) from None
        self._torn: set[int] = set()
        """Files that broke off, as far as this store has noticed: nobody sees them."""
        self._given_up: set[int] = set()
        """Files that had no length after many looks. Nobody waits for them again."""

    def __repr__(self) -> str:
        return f"HdfsStore({self._url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("an HdfsStore holds credentials and is never pickled: open it again with open_store")

    @property
    def url(self) -> str:
        return self._url

    @property
    def local_root(self) -> Path | None:
        return None

    def read(self, path: str) -> bytes:
        for _ in range(_TRIES):
            status = self._present(path)
            with self._errors("read", path) as errors:
                body = self._bytes(status, 0, status.length)
            if errors.gone or len(body) != status.length:
                continue
            if self._is_torn(status, body[:LONGEST_LINE]):
                self._torn.add(status.id)
                break
            return body
        raise self._missing(path)

    def create(self, path: str, body: bytes) -> None:
        for turn in range(_TURNS):
            if turn:
                # Also tells HDFS that somebody wants the name: it ends the file of a writer that has died.
                self._pause(min(0.02 * 2**turn, 2.0))
            try:
                self._write(path, body, len(body), overwrite=False)
                return
            except HdfsAnswerError as error:
                if error.kind not in _TAKEN:
                    raise self._failed("create", path, error) from None
            except UnheardError as error:
                raise self._failed("create", path, error) from None
            with self._errors("create", path) as errors:
                taken = self._is_taken(path)
            if not errors.gone and taken:
                raise ExistsError(path)
        raise UnavailableError(
            f"{path} in {self._url} is being written by somebody who does not finish: run again, or end it with "
            f"`hdfs debug recoverLease -path {self._folder}{path}` if its writer's host has failed"
        )

    def put(self, path: str, body: bytes) -> None:
        self._overwrite("write", path, lambda: self._write(path, body, len(body), overwrite=True))

    def upload(self, source: Path, path: str) -> None:
        self._at(path)
        if not source.is_file():
            raise nothing_to_upload(source, path, self.url)

        def send() -> None:
            with source.open("rb") as file:
                self._write(path, file, source.stat().st_size, overwrite=True)

        self._overwrite("upload", path, send)

    def download(self, path: str, target: Path) -> None:
        status = self._present(path)
        with target.open("xb") as file:
            try:
                with self._errors("download", path) as errors:
                    size = 0
                    for piece in self._pieces(status, 0, status.length):
                        size += len(piece)
                        try:
                            file.write(piece)
                        except OSError as error:
                            raise not_saved(path, target, error) from error
                if errors.gone:
                    raise self._missing(path)
                if size != status.length:
                    raise self._failed(
                        "download", path, UnheardError(f"{size} of {status.length} bytes came")
                    )
            except BaseException:
                target.unlink(missing_ok=True)
                raise

    def copy(self, source: str, target: str) -> int:
        """Through this process: HDFS copies nothing itself. It has no hard links, CONCAT takes its sources away, and a snapshot
        is an administrator's."""
        self._at(target)
        status = self._present(source)

        def send() -> None:
            self._write(target, self._pieces(status, 0, status.length), status.length, overwrite=True)

        self._overwrite("copy to", target, send, missing=source)
        return status.length

    def read_range(self, path: str, start: int, length: int) -> bytes:
        for _ in range(_TRIES):
            status = self._present(path)
            with self._errors("read", path) as errors:
                body = self._bytes(status, start, max(0, min(length, status.length - start)))
            if not errors.gone:
                return body
        raise self._missing(path)

    def folders(self, prefix: str) -> list[str]:
        return sorted(each.name for each in self._inside(checked_folder(prefix)) if each.folder)

    def list(self, prefix: str) -> list[Entry]:
        folder, stem = checked_prefix(prefix)
        entries: list[Entry] = []
        level: Sequence[tuple[str, Sequence[_Status]]] = [
            (folder, [each for each in self._inside(folder) if each.name.startswith(stem)])
        ]
        while level:
            below: list[str] = []
            for above, found in level:
                below += [f"{above}{each.name}/" for each in found if each.folder]
                entries += [
                    Entry(f"{above}{each.name}", each.length)
                    for each in found
                    if each.has_length and each.id not in self._torn
                ]
            level = list(zip(below, self._all(self._inside, below), strict=True))
        entries.sort(key=lambda entry: entry.path)
        return entries

    def delete(self, paths: Iterable[str]) -> None:
        named = list(paths)
        for path in named:
            self._at(path)
        self._all(self._delete, named)
        for folder in sorted({path.rpartition("/")[0] for path in named}, key=len, reverse=True):
            self._tidy(folder)

    def remove_root(self) -> None:
        """Removes the root's own folder if it is empty."""
        with suppress(HdfsAnswerError, UnheardError):
            self._web.ask("DELETE", self._folder.rstrip("/"), "DELETE", recursive="false")

    def _write(
        self, path: str, body: bytes | BinaryIO | Iterator[bytes], size: int, *, overwrite: bool
    ) -> None:
        parameters = {
            "overwrite": "true" if overwrite else "false",
            # On disk when the answer comes, and not only in the memory of the DataNodes.
            "createflag": "CREATE,SYNC_BLOCK",
        }
        if size == 0:
            parameters["permission"] = _MARKED_EMPTY
        self._web.create(self._at(path), body, size, **parameters)

    def _overwrite(self, verb: str, path: str, write: Callable[[], None], missing: str = "") -> None:
        """Nothing rests on how often this is done."""
        for left in reversed(range(_TRIES)):
            try:
                write()
                return
            except HdfsAnswerError as error:
                if missing and error.kind in _MISSING:
                    raise self._missing(missing) from None
                if not left or error.kind not in (*_TAKEN, "LeaseExpiredException", *_MISSING):
                    raise self._failed(verb, path, error) from None
            except UnheardError as error:
                if not left:
                    raise self._failed(verb, path, error) from None
            self._pause(0.2)

    def _present(self, path: str) -> _Status:
        """The status of an object. NotFoundError when there is none, or one that is not whole and does not become so."""
        for turn in range(_LOOKS):
            with self._errors("read", path) as errors:
                status = self._status(self._at(path))
            if errors.gone or status.folder or status.id in self._torn:
                break
            if status.has_length:
                return status
            if status.id in self._given_up:
                break
            self._pause(min(0.005 * 2**turn, 0.2))
        else:
            self._given_up.add(status.id)
        raise self._missing(path)

    def _is_taken(self, path: str) -> bool:
        """Whether an object stands there. What broke off is removed."""
        status = self._status(self._at(path))
        if status.folder or self._is_whole(status):
            return True
        return self._became_whole(status)

    def _became_whole(self, status: _Status) -> bool:
        """Whether a file that was not whole is so by now. If it stays as it is, it is removed."""
        if self._is_open(status):
            return False
        # Nobody writes it any more, so what it is now it stays. It may have become whole since the look before.
        status = self._status(_by_id(status))
        if self._is_whole(status):
            return True
        self._torn.add(status.id)
        self._web.ask("DELETE", _by_id(status), "DELETE", recursive="false")
        return False

    def _is_whole(self, status: _Status) -> bool:
        if not status.has_length:
            return False
        return not self._is_torn(status, self._bytes(status, 0, min(status.length, LONGEST_LINE)))

    def _is_torn(self, status: _Status, beginning: bytes) -> bool:
        """Whether the body is shorter than its first line states."""
        stated = stated_size(beginning)
        return stated is not None and status.length < stated

    def _is_open(self, status: _Status) -> bool:
        """Whether somebody may still be writing it. A gateway may not say so."""
        try:
            found = self._web.ask("GET", _by_id(status), "GET_BLOCK_LOCATIONS")
            return bool(found["LocatedBlocks"]["isUnderConstruction"])
        except HdfsAnswerError as error:
            if error.kind in _MISSING:
                raise
            return True
        except (KeyError, TypeError):
            return True

    def _status(self, at: str) -> _Status:
        return self._said(self._web.ask("GET", at.rstrip("/") or "/", "GETFILESTATUS")["FileStatus"])

    def _said(self, said: Mapping[str, Any]) -> _Status:
        """UsageError without the number of a file: nothing else tells what broke off from what was created there since."""
        folder, number = said["type"] == "DIRECTORY", int(said.get("fileId", 0))
        if not folder and not number:
            raise UsageError(
                f"{self._url} is asked through a gateway that tells no fileId of a file, so that what broke off cannot be removed: "
                "ask a NameNode, or the HttpFS of a newer Hadoop"
            )
        marked_empty = bool(int(str(said["permission"]), 8) & 0o100)
        return _Status(str(said["pathSuffix"]), folder, int(said["length"]), number, marked_empty)

    def _inside(self, folder: str) -> Sequence[_Status]:
        """The entries directly in a folder; none when it is missing, or no folder."""
        at = f"{self._folder}{folder}".rstrip("/") or "/"
        with self._errors("list", folder) as errors:
            found = self._web.ask("GET", at, "LISTSTATUS")["FileStatuses"]["FileStatus"]
            # For a file it is the file itself, without a name.
            return [
                self._said(each)
                for each in found
                if each["pathSuffix"] and not each["pathSuffix"].startswith(TEMP)
            ]
        assert errors.gone
        return []

    def _pieces(self, status: _Status, start: int, length: int) -> Iterator[bytes]:
        if length <= 0:
            return
        with self._web.open(_by_id(status), offset=str(start), length=str(length)) as response:
            while piece := _read(response):
                yield piece

    def _bytes(self, status: _Status, start: int, length: int) -> bytes:
        return b"".join(self._pieces(status, start, length))

    def _delete(self, path: str) -> None:
        with self._errors("delete", path):
            self._web.ask("DELETE", self._at(path), "DELETE", recursive="false")

    def _tidy(self, folder: str) -> None:
        """Removes what broke off in the folder, then the folder and those above it, as far as they are empty."""
        with suppress(HdfsAnswerError, UnheardError, StateflowError):
            for each in self._inside(f"{folder}/" if folder else ""):
                if not each.folder and (not each.has_length or each.id in self._torn):
                    self._became_whole(each)
            while folder:
                self._web.ask("DELETE", f"{self._folder}{folder}", "DELETE", recursive="false")
                folder = folder.rpartition("/")[0]

    def _all(self, work: Callable[[T], R], items: Sequence[T]) -> Sequence[R]:
        if len(items) <= _FEW:
            return [work(item) for item in items]
        with ThreadPoolExecutor(_THREADS, "stateflow-hdfs") as pool:
            return list(pool.map(work, items))

    def _at(self, path: str) -> str:
        if ":" in path:
            raise UsageError(f"{path!r} is not usable in {self._url}: HDFS has no names with ':'")
        return f"{self._folder}{checked_path(path)}"

    def _errors(self, verb: str, path: str) -> _Errors:
        return _Errors(self, verb, path)

    def _missing(self, path: str) -> StateflowError:
        return NotFoundError(f"{path} does not exist in {self._url}")

    def _failed(self, verb: str, path: str, error: Exception) -> StateflowError:
        return UnavailableError(
            f"{self._url} refused to {verb} {path or 'it'} or could not be reached ({error}): check the storage options "
            "and the network, then run again"
        )


class _Errors:
    """Turns the client's errors inside a block into the store's. A missing file ends the block, and sets `gone`."""

    def __init__(self, store: HdfsStore, verb: str, path: str) -> None:
        self._store, self._verb, self._path = store, verb, path
        self.gone = False

    def __enter__(self) -> _Errors:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, HdfsAnswerError) and error.kind in _MISSING:
            self.gone = True
            return True
        if isinstance(error, HdfsAnswerError | UnheardError):
            raise self._store._failed(self._verb, self._path, error) from None
        if isinstance(error, KeyError | TypeError | ValueError):
            raise self._store._failed(
                self._verb, self._path, UnheardError("the answer is not that of WebHDFS")
            ) from None
        return False


def _by_id(status: _Status) -> str:
    """The very file that the status was of, whatever its name leads to now."""
    return f"/.reserved/.inodes/{status.id}"


def _read(response: Readable) -> bytes:
    try:
        return response.read(PIECE)
    except (OSError, HTTPException) as error:
        raise UnheardError(f"the DataNode broke off ({type(error).__name__})") from None
