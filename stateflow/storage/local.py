"""A checkpoint root in a local folder, or on a file system that is mounted like one."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stateflow.errors import NotFoundError, UnavailableError, UsageError
from stateflow.storage.file_urls import file_url
from stateflow.storage.store import (
    PIECE,
    TEMP,
    Entry,
    ExistsError,
    checked_folder,
    checked_path,
    checked_prefix,
)

_TRIES = 100
"""How often a writer makes its folder anew when a collector removes it; only a livelock comes near."""
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
_LINK_ELSEWHERE = (errno.EXDEV, errno.EMLINK, *_NO_LINKS)


def _unique() -> str:
    return uuid.uuid4().hex


class LocalStore:
    """Publishing is: write a temporary file, fsync it, link it to its name, unlink it, fsync the folder.

    Linking is what refuses a name that is taken; a rename would replace it.
    """

    def __init__(self, root: Path, fsync: bool = True, unique: Callable[[], str] = _unique) -> None:
        self._root = Path(os.path.normpath(root.absolute()))
        self._url = file_url(self._root)
        self._fsync = fsync
        self._unique = unique
        self._anchored: dict[str, int] = {}
        """Folders whose own name is known to be on disk, by inode: a folder made anew is another one."""

    def __repr__(self) -> str:
        return f"LocalStore({str(self._root)!r})"

    @property
    def url(self) -> str:
        return self._url

    @property
    def local_root(self) -> Path | None:
        return self._root

    def read(self, path: str) -> bytes:
        target = self._at(path)
        with self._errors(target, path):
            body = target.read_bytes()
            # What is visible need not be on disk: its writer may have been killed between link and fsync. A
            # reader that carried such a record out would leave the sink ahead of the log after a power cut.
            with suppress(PermissionError):
                self._settle(target.parent)
            return body

    def create(self, path: str, body: bytes) -> None:
        target = self._at(path)
        with self._errors(target, path):
            try:
                self._publish(target, body, os.link)
            except FileExistsError:
                self._settle(target.parent)
                raise ExistsError(path) from None

    def put(self, path: str, body: bytes) -> None:
        target = self._at(path)
        with self._errors(target, path):
            self._publish(target, body, os.replace)

    def upload(self, source: Path, path: str) -> None:
        target = self._at(path)
        if not source.is_file():
            raise NotFoundError(f"{source} does not exist: it cannot be uploaded to {path} in {self.url}")
        with self._errors(target, path):
            try:
                self._link_in(source, target)
                return
            except FileExistsError:
                pass  # an earlier, unclear upload of the same file
            except OSError as error:
                if error.errno not in _LINK_ELSEWHERE:
                    raise
            self._publish(target, source, os.replace)

    def download(self, path: str, target: Path) -> None:
        source = self._at(path)
        with self._errors(target, path):
            try:
                link_file(source, target)
            except OSError as error:
                if error.errno not in _LINK_ELSEWHERE:
                    raise
                with source.open("rb") as reader, target.open("xb") as writer:
                    shutil.copyfileobj(reader, writer, PIECE)

    def write(self, path: str, pieces: Callable[[], Iterable[bytes | memoryview]]) -> None:
        """A file under a unique name, from pieces; nothing is stored when they end with an error."""
        target = self._at(path)
        with self._errors(target, path):
            self._publish(target, pieces, os.replace)

    def copy(self, source: str, target: str) -> None:
        from_, to = self._at(source), self._at(target)
        with self._errors(to, target):
            if not from_.is_file():
                raise NotFoundError(f"{source} does not exist in {self.url}")
            try:
                self._link_in(from_, to)
                return
            except FileExistsError:
                pass  # an earlier, unclear copy
            except OSError as error:
                if error.errno not in _LINK_ELSEWHERE:
                    raise
            self._publish(to, from_, os.replace)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        target = self._at(path)
        with self._errors(target, path), target.open("rb") as file:
            file.seek(start)
            return file.read(length)

    def folders(self, prefix: str) -> list[str]:
        folder = checked_folder(prefix)
        try:
            with self._errors(self._root / folder, prefix), os.scandir(self._root / folder) as scan:
                return sorted(
                    item.name
                    for item in scan
                    if item.is_dir(follow_symlinks=False) and not item.name.startswith(TEMP)
                )
        except NotFoundError:
            return []

    def list(self, prefix: str) -> list[Entry]:
        folder, stem = checked_prefix(prefix)
        with self._errors(self._root / folder, prefix):
            found = list(self._walk(folder, stem))
        found.sort(key=lambda entry: entry.path)
        return found

    def delete(self, paths: Iterable[str]) -> None:
        folders: set[Path] = set()
        for path in paths:
            target = self._at(path)
            with self._errors(target, path), suppress(FileNotFoundError, NotADirectoryError):
                target.unlink()
            folders.add(target.parent)
        for folder in sorted(folders, key=lambda f: len(f.parts), reverse=True):
            with self._errors(folder, str(folder)):
                self._tidy(folder)

    def _at(self, path: str) -> Path:
        return self._root / checked_path(path)

    def _publish(
        self,
        target: Path,
        content: bytes | Path | Callable[[], Iterable[bytes | memoryview]],
        place: Callable[[Path, Path], object],
    ) -> None:
        for _ in range(_TRIES):
            temp = target.parent / f"{TEMP}{self._unique()}"
            try:
                descriptor = self._open_temp(temp)
            except FileNotFoundError:
                continue  # a collector removed the empty folder
            try:
                # The lock tells a collector that this temporary file has a living owner; it ends with the
                # process.
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                with os.fdopen(descriptor, "wb", closefd=False) as file:
                    if isinstance(content, bytes):
                        file.write(content)
                    elif callable(content):
                        file.writelines(content())
                    else:
                        with content.open("rb") as source:
                            shutil.copyfileobj(source, file, PIECE)
                if self._fsync:
                    os.fsync(descriptor)
                try:
                    place(temp, target)
                except FileNotFoundError:
                    continue  # collected between opening and locking it
            finally:
                temp.unlink(missing_ok=True)
                os.close(descriptor)
            self._settle(target.parent)
            return
        raise UnavailableError(
            f"{target.parent} is removed again and again: stop whatever deletes it and run again"
        )

    def _open_temp(self, temp: Path) -> int:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        try:
            return os.open(temp, flags, 0o666)
        except FileNotFoundError:
            self._make(temp.parent)
            return os.open(temp, flags, 0o666)

    def _link_in(self, source: Path, target: Path) -> None:
        if self._fsync:
            with suppress(FileNotFoundError):  # told below
                descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        for _ in range(_TRIES):
            try:
                link_file(source, target)
            except FileNotFoundError:
                if not source.exists():
                    raise NotFoundError(f"{source} was removed while it was stored as {target}") from None
                self._make(target.parent)
                continue
            self._settle(target.parent)
            return
        raise UnavailableError(
            f"{target.parent} is removed again and again: stop whatever deletes it and run again"
        )

    def _make(self, folder: Path) -> None:
        for parent in (*reversed(folder.parents), folder):
            # Missing again: a collector removed its empty parent just now, and the caller will find out.
            with suppress(FileExistsError, FileNotFoundError):
                parent.mkdir()

    def _settle(self, folder: Path) -> None:
        """Puts the names in `folder`, and the name of `folder` itself and all above it, on disk."""
        if not self._fsync:
            return
        _fsync_folder(folder)
        # Whether this process made a folder says nothing: another may have, and not have come to its fsync
        # yet. So each is anchored by whoever first relies on it, and the root's own parents too, for they may
        # be new as well.
        for child in (folder, *folder.parents):
            try:
                inode = child.stat().st_ino
            except FileNotFoundError:
                return  # all of it was collected meanwhile
            if child == child.parent or self._anchored.get(str(child)) == inode:
                return
            try:
                _fsync_folder(child.parent)
            except PermissionError:
                if child.is_relative_to(self._root) and child != self._root:
                    raise
                return  # above the root: not ours to open, and so not made by us
            if len(self._anchored) > 10_000:
                self._anchored.clear()
            self._anchored[str(child)] = inode

    def _walk(self, folder: str, stem: str) -> Iterator[Entry]:
        """Names in `folder` that start with `stem`, and all below them: siblings are never opened."""
        try:
            scan = os.scandir(self._root / folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        with scan:
            for item in scan:
                if not item.name.startswith(stem) or item.name.startswith(TEMP):
                    continue
                path = f"{folder}{item.name}"
                if item.is_dir(follow_symlinks=False):
                    yield from self._walk(f"{path}/", "")
                    continue
                with suppress(FileNotFoundError):  # deleted while being listed
                    status = item.stat()
                    if stat.S_ISREG(status.st_mode):
                        yield Entry(path, status.st_size)

    def _tidy(self, folder: Path) -> None:
        """Removes what killed writers left in `folder`, and empty folders from it up to the root."""
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as scan:
            for item in scan:
                if item.name.startswith(TEMP):
                    _remove_abandoned(item.path)
        while folder != self._root:
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                return  # not empty: somebody else's object is in it, or is being made
            folder = folder.parent

    @contextmanager
    def _errors(self, target: Path, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            if not target.is_relative_to(self._root) and not target.parent.is_dir():
                raise
            raise NotFoundError(f"{path} does not exist in {self.url}") from None
        except FileExistsError:
            raise
        except OSError as error:
            raise self._explained(error, target, path) from error

    def _explained(self, error: OSError, target: Path, path: str) -> Exception:
        folder = target.parent
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT:
                return UnavailableError(
                    f"the disk that holds {folder} is full: free space on it and run again"
                )
            case errno.EACCES | errno.EROFS:
                return UnavailableError(
                    f"{path} in {self.url} is not permitted: grant access to {folder} and run again"
                )
            case errno.ENOTDIR | errno.EISDIR:
                return NotFoundError(f"{path} is not a file in {self.url}: check the path")
            case code if code in _NO_LINKS:
                return UsageError(
                    f"{self.url} is on a file system without hard links: use another one, or an object store"
                )
            case _:
                return UnavailableError(
                    f"{path} in {self.url} failed ({error.strerror}): check the disk and run again"
                )


def link_file(source: Path, target: Path) -> None:
    """A hard link to a file. A symbolic link counts as one on another disk: Linux would link the link itself, which
    keeps nothing once its owner deletes what it points to, and that is his to change besides."""
    if source.is_symlink():
        raise OSError(errno.EXDEV, "a symbolic link is no file of this store", str(source))
    os.link(source, target)


def _fsync_folder(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # collected meanwhile, and with it what there was to keep
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EROFS):  # file systems whose folders need none
            raise
    finally:
        os.close(descriptor)


def _remove_abandoned(temp: str) -> None:
    try:
        descriptor = os.open(temp, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        Path(temp).unlink()
    except OSError:
        pass  # its owner lives, or has just removed it
    finally:
        os.close(descriptor)
