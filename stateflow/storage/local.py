"""A checkpoint root in a local folder, or on a file system that is mounted like one."""

from __future__ import annotations

import copy
import errno
import fcntl
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from io import FileIO
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

from stateflow.errors import CorruptError, NotFoundError, StateflowError, UnavailableError, UsageError
from stateflow.storage.beneath import (
    ANYBODY,
    LinkError,
    OpenFolder,
    fsync_folder,
    link_beside,
    link_regular,
    listable,
    listable_below,
    permissions,
    rename_beside,
    scanned,
)
from stateflow.storage.file_urls import file_url, plain_folder
from stateflow.storage.store import (
    PIECE,
    TEMP,
    Entry,
    ExistsError,
    Store,
    checked_folder,
    checked_path,
    checked_prefix,
    nothing_to_upload,
)

P = ParamSpec("P")
R = TypeVar("R")

_TRIES = 100
"""How often a writer makes its folder again when a collector removes it. Only a livelock needs that many."""
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
_LINK_ELSEWHERE = (errno.EXDEV, errno.EMLINK, *_NO_LINKS)
_CLOSED = -1
_NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class LocalStore:
    """To publish a file, it writes a temporary file, fsyncs it, links it to its name, unlinks it, and fsyncs the folder.

    A link fails when the name is taken, where a rename would replace the file. Every name below the root is opened
    through `Folder`, which follows no link.
    """

    def __init__(self, root: Path, fsync: bool = True, *, below: Path | None = None) -> None:
        """`below`: another root that holds this one. Then no link between the two is followed either."""
        self._root = plain_folder(root.absolute())
        self._top = self._root if below is None else plain_folder(below.absolute())
        """Where every walk begins."""
        self._way = self._root.relative_to(self._top).parts
        self._url = file_url(self._root)
        self._fsync = fsync
        self._held: int | None = None
        """A descriptor of the root, while an operation holds it: see `held_root`."""
        self._anchored: dict[str, int] = {}
        """Folders whose own name is known to be on disk, with their inode. A folder made again may have the same one: this process
        forgets what it makes or removes, and another one forces to disk what it makes before its own record counts."""

    def __repr__(self) -> str:
        return f"LocalStore({str(self._root)!r})"

    @property
    def url(self) -> str:
        return self._url

    @property
    def local_root(self) -> Path:
        return self._root

    def read(self, path: str) -> bytes:
        target = self._at(path)
        with self._errors(target, path), self._folder_of(path) as folder:
            with FileIO(folder.open_file(target.name), "rb") as file:
                body = file.read()
            # A visible file need not be on disk: its writer may have been killed between link and fsync. If a reader
            # carried such a record out, a power cut would leave the sink ahead of the log.
            with suppress(PermissionError):
                self._settle(folder)
            return body

    def create(self, path: str, body: bytes) -> None:
        target = self._at(path)
        with self._errors(target, path):
            try:
                self._publish(path, body, link_beside)
            except FileExistsError:
                with suppress(FileNotFoundError), self._folder_of(path) as folder:
                    self._settle(folder)
                raise ExistsError(path) from None

    def put(self, path: str, body: bytes) -> None:
        with self._errors(self._at(path), path):
            self._publish(path, body, rename_beside)

    def upload(self, source: Path, path: str) -> None:
        """The caller owns `source`. It may be a symbolic link: the file is then copied."""
        target = self._at(path)
        with self._errors(target, path):
            try:
                descriptor = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                raise nothing_to_upload(source, path, self.url) from None
            with FileIO(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise nothing_to_upload(source, path, self.url)

                def link(name: str, folder: int) -> None:
                    if source.is_symlink():
                        raise OSError(errno.EXDEV, "a symbolic link is no file of this store", str(source))
                    link_regular(str(source), name, target_folder=folder)

                self._bring_in(file, path, link, lambda: None if source.exists() else str(source))

    def download(self, path: str, target: Path) -> None:
        source = self._at(path)
        with ExitStack() as stack:
            with self._errors(source, path):
                folder = stack.enter_context(self._folder_of(path))
            with self._errors(target, path):
                try:
                    folder.link_to(source.name, str(target))
                    return
                except OSError as error:
                    if error.errno not in _LINK_ELSEWHERE:
                        raise
            with self._errors(source, path):
                reader = stack.enter_context(FileIO(folder.open_file(source.name), "rb"))
            with self._errors(target, path):
                descriptor = os.open(target, _NEW, permissions(reader.fileno()))
                with os.fdopen(descriptor, "wb") as writer:
                    shutil.copyfileobj(reader, writer, PIECE)

    def write(
        self, path: str, pieces: Callable[[], Iterable[bytes | memoryview]], mode: int = ANYBODY
    ) -> None:
        """Stores a file under a unique name, from pieces. It stores nothing when reading the pieces fails.

        `mode`: the permissions of the file, before the umask takes some away.
        """
        with self._errors(self._at(path), path):
            self._publish(path, pieces, rename_beside, mode)

    def copy(self, source: str, target: str) -> int:
        self.take(self, source, target)
        return 0

    def take(self, other: LocalStore, source: str, target: str, *, copy: bool = True) -> bool:
        """Like `copy`, from another store on this disk. Without `copy` it returns False, and stores nothing, when a link
        is impossible or would share a file that somebody else may change."""
        within = other.local_root == self.local_root
        from_, to = other._at(source), self._at(target)
        with ExitStack() as stack:
            with other._errors(from_, source):
                there = stack.enter_context(other._folder_of(source))
                file = stack.enter_context(FileIO(there.open_file(from_.name), "rb"))

            def link(name: str, folder: int) -> None:
                there.link_to(from_.name, name, folder, within=within)

            def missing() -> str | None:
                try:
                    there.status(from_.name)
                except FileNotFoundError:
                    return str(from_)
                return None

            with self._errors(to, target):
                return self._bring_in(file, target, link, missing, copy=copy)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        with self.open(path) as file, self._errors(self._at(path), path):
            file.seek(start)
            return file.read(length)

    def open(self, path: str) -> FileIO:
        """Opens a file for reading. It stays readable whatever happens to its name."""
        target = self._at(path)
        with self._errors(target, path), self._folder_of(path) as folder:
            return FileIO(folder.open_file(target.name), "rb")

    def locate(self, path: str) -> Path:
        """The path of a file, for a program that opens it by name. CorruptError when a symbolic link is on the path.

        Whoever can write to the root can put a link there afterwards, so use `open` where possible.
        """
        self.open(path).close()
        return self._at(path)

    def unfinished(self, prefix: str) -> dict[str, int]:
        """The bytes of unfinished files below `prefix`, by folder (with its `/`). Killed writers leave them."""
        sizes: dict[str, int] = {}
        folder, stem = checked_prefix(prefix)
        with self._errors(self._root / folder, prefix):
            for entry in self._listed(folder, stem, unfinished=True):
                inside = entry.path[: entry.path.rfind("/") + 1]
                sizes[inside] = sizes.get(inside, 0) + entry.size
        return sizes

    def folders(self, prefix: str) -> list[str]:
        folder = checked_folder(prefix)
        with self._errors(self._root / folder, prefix):
            try:
                opened = self._open_folder(_names(folder))
            except (FileNotFoundError, NotADirectoryError):
                return []
            with opened, scanned(listable(opened.descriptor)) as (_, scan):
                return sorted(
                    item.name
                    for item in scan
                    if item.is_dir(follow_symlinks=False) and not item.name.startswith(TEMP)
                )

    def list(self, prefix: str) -> list[Entry]:
        folder, stem = checked_prefix(prefix)
        with self._errors(self._root / folder, prefix):
            entries = list(self._listed(folder, stem))
        entries.sort(key=lambda entry: entry.path)
        return entries

    def delete(self, paths: Iterable[str]) -> None:
        """If a path is a symbolic link, it removes the link itself. CorruptError when a folder of the path is a link."""
        folders: set[str] = set()
        for path in paths:
            target = self._at(path)
            with (
                self._errors(target, path),
                suppress(FileNotFoundError, NotADirectoryError),
                self._folder_of(path) as folder,
            ):
                os.unlink(target.name, dir_fd=folder.descriptor)
            folders.add(path.rpartition("/")[0])
        for each in sorted(folders, key=lambda folder: folder.count("/"), reverse=True):
            with self._errors(self._root / each, each):
                self._tidy(each)

    def remove_root(self) -> None:
        """Removes the root's own folder. OSError when it is not empty, or cannot be reached without following a link, or when
        its name leads to another folder than the one that is held."""
        top, way = (self._top, self._way) if self._way else (self._root.parent, (self._root.name,))
        with OpenFolder(top, way[:-1]) as above:
            if self._held is not None and not os.path.samestat(
                os.fstat(self._held), os.stat(way[-1], dir_fd=above.descriptor, follow_symlinks=False)
            ):
                raise OSError(errno.ESTALE, "another folder by now", str(self._root))
            os.rmdir(way[-1], dir_fd=above.descriptor)
            self._forget(self._root)

    @contextmanager
    def holding(self) -> Iterator[Self]:
        """The same store, which stays in the folder that the root is now. NotFoundError when there is none."""
        with ExitStack() as stack:
            with self._errors(self._root, "."):
                folder = stack.enter_context(self._open_folder(()))
            held = copy.copy(self)
            held._held = folder.descriptor
            try:
                yield held
            finally:
                held._held = _CLOSED

    def _at(self, path: str) -> Path:
        """The path, for messages. To open the file, use `_folder_of`."""
        return self._root / checked_path(path)

    def _folder_of(self, path: str, *, make: bool = False) -> OpenFolder:
        return self._open_folder(path.split("/")[:-1], make=make)

    def _open_folder(self, names: Iterable[str], *, make: bool = False, partial: bool = False) -> OpenFolder:
        forget = self._forget if make else None
        if self._held is not None:
            return OpenFolder(self._root, tuple(names), make=forget, partial=partial, opened=self._held)
        return OpenFolder(self._top, (*self._way, *names), make=forget, partial=partial)

    def _publish(
        self,
        path: str,
        content: bytes | FileIO | Callable[[], Iterable[bytes | memoryview]],
        place: Callable[[str, str, int], object],
        mode: int = ANYBODY,
    ) -> None:
        name = path.rpartition("/")[2]
        for _ in range(_TRIES):
            temp = f"{TEMP}{uuid.uuid4().hex}"
            try:
                folder = self._folder_of(path, make=True)
            except FileNotFoundError:
                continue  # a collector removed the empty folder
            with folder:
                try:
                    descriptor = os.open(temp, _NEW, mode, dir_fd=folder.descriptor)
                except FileNotFoundError:
                    continue  # a collector removed the empty folder
                try:
                    # The lock tells a collector that a living process owns this temporary file. It ends with the
                    # process. NFS locks a file that is open for writing only in this mode, and one for reading
                    # only in the collector's. Without locks a collector leaves the file alone.
                    with suppress(OSError):
                        fcntl.flock(descriptor, fcntl.LOCK_EX)
                    with os.fdopen(descriptor, "wb", closefd=False) as file:
                        if isinstance(content, bytes):
                            file.write(content)
                        elif isinstance(content, FileIO):
                            content.seek(0)
                            shutil.copyfileobj(content, file, PIECE)
                        else:
                            file.writelines(content())
                    if self._fsync:
                        os.fsync(descriptor)
                    try:
                        place(temp, name, folder.descriptor)
                    except FileNotFoundError:
                        continue  # a collector removed it between open and lock
                finally:
                    with suppress(FileNotFoundError):
                        os.unlink(temp, dir_fd=folder.descriptor)
                    os.close(descriptor)
                self._settle(folder)
                return
        raise self._livelock(path)

    def _bring_in(
        self,
        file: FileIO,
        path: str,
        link: Callable[[str, int], object],
        missing: Callable[[], str | None],
        *,
        copy: bool = True,
    ) -> bool:
        """Stores a link to an open file, or a copy with no wider permissions. `missing` returns the file's name if it is gone.

        Without `copy` it stores a link or returns False.
        """
        try:
            self._link_in(file, path, link, missing)
            return True
        except FileExistsError:
            pass  # an earlier attempt stored it and its answer was lost
        except OSError as error:
            if error.errno not in _LINK_ELSEWHERE:
                raise
        if copy:
            self._publish(path, file, rename_beside, permissions(file.fileno()))
        return copy

    def _link_in(
        self,
        file: FileIO,
        path: str,
        link: Callable[[str, int], object],
        missing: Callable[[], str | None],
    ) -> None:
        if self._fsync:
            os.fsync(file.fileno())
        for _ in range(_TRIES):
            try:
                folder = self._folder_of(path, make=True)
            except FileNotFoundError:
                continue
            with folder:
                try:
                    link(path.rpartition("/")[2], folder.descriptor)
                except FileNotFoundError:
                    if source := missing():
                        raise NotFoundError(
                            f"{source} was removed while it was stored as {self._at(path)}"
                        ) from None
                    continue
                self._settle(folder)
                return
        raise self._livelock(path)

    def _livelock(self, path: str) -> StateflowError:
        if self._held is not None and os.fstat(self._held).st_nlink == 0:
            return NotFoundError(f"the folder {self._root} was removed meanwhile")
        # A folder that is held was there, and one below another root is made without following links.
        never = _never_made(self._root) if self._held is None and not self._way else None
        return never or UnavailableError(
            f"{self._at(path).parent} is removed again and again: stop whatever deletes it and run again"
        )

    def _settle(self, folder: OpenFolder) -> None:
        """Forces the names in `folder` to disk, and the names of `folder` itself and of all folders above it."""
        if not self._fsync:
            return
        fsync_folder(folder.descriptor)
        # Another process may have made a folder and not have fsynced it yet. So every process fsyncs each folder the
        # first time it relies on it, and the root's own parents too, since they may be new as well.
        path = str(folder.path)
        for above, descriptor in zip(folder.descriptors[-2::-1], folder.descriptors[:0:-1], strict=True):
            status = os.fstat(descriptor)
            if status.st_nlink == 0:
                return  # a collector removed the folder, so nothing is left to force to disk
            if self._anchored.get(path) == status.st_ino:
                return
            fsync_folder(above)
            self._anchor(path, status.st_ino)
            path = os.path.dirname(path)  # noqa: PTH120 - read and written for every record
        self._settle_root()

    def _settle_root(self) -> None:
        """The same for the root and its parents: these belong to the operator and may be links."""
        for child in (self._top, *self._top.parents):
            try:
                inode = child.stat().st_ino
            except FileNotFoundError:
                return  # a collector removed the folder
            if child == child.parent or self._anchored.get(str(child)) == inode:
                return
            try:
                above = os.open(child.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                return
            except PermissionError:
                return  # this process may not open it, so it did not make it
            try:
                fsync_folder(above)
            finally:
                os.close(above)
            self._anchor(str(child), inode)

    def _anchor(self, path: str, inode: int) -> None:
        if len(self._anchored) > 10_000:
            self._anchored.clear()
        self._anchored[path] = inode

    def _forget(self, folder: Path) -> None:
        """The folder is made now, or was removed, and so are those below it."""
        for path in list(self._anchored):
            if path == str(folder) or path.startswith(f"{folder}/"):
                self._anchored.pop(path, None)

    def _listed(self, folder: str, stem: str, unfinished: bool = False) -> Iterator[Entry]:
        try:
            opened = self._open_folder(_names(folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        with opened:
            yield from _walk(listable(opened.descriptor), folder, stem, unfinished)

    def _tidy(self, path: str) -> None:
        """Removes unfinished files of killed writers from the folder, and empty folders from it up to the root."""
        try:
            folder = self._open_folder(_names(path), partial=True)
        except FileNotFoundError:
            return
        with folder:
            if len(folder.descriptors) == len(folder.names) + 1:
                with suppress(FileNotFoundError), scanned(listable(folder.descriptor)) as (here, scan):
                    for item in scan:
                        if item.name.startswith(TEMP):
                            _remove_abandoned(here, item.name)
            own = 0 if self._held is not None else len(self._way)
            for depth in reversed(range(own, min(len(folder.names), len(folder.descriptors)))):
                try:
                    os.rmdir(folder.names[depth], dir_fd=folder.descriptors[depth])
                except FileNotFoundError:
                    pass
                except OSError:
                    return  # not empty: it holds another object, or somebody is writing one
                self._forget(folder.root.joinpath(*folder.names[: depth + 1]))

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
            case errno.EROFS:
                return UnavailableError(
                    f"{path} in {self.url} cannot be written, since the file system that holds {folder} is read-only: mount it for writing and run again"
                )
            case errno.EACCES:
                return UnavailableError(
                    f"{path} in {self.url} is not permitted: grant access to {folder} and run again"
                )
            case errno.ELOOP:
                return CorruptError(
                    f"{error.filename} is a symbolic link, and {self.url} holds files and folders only: put what it "
                    "points to in its place, or remove it, and run again"
                )
            case errno.ENOTDIR if (standing := no_folder(self._root)) is not None:
                return NotFoundError(
                    f"{standing} is no folder, so that nothing can be in {self.url}: check the path"
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


def no_folder(root: Path) -> Path | None:
    """What stands on the way to the folder of a root, or in its place, and is no folder: a file, or a link that leads nowhere."""
    standing = next((each for each in (root, *root.parents) if os.path.lexists(each)), None)
    return standing if standing is not None and not standing.is_dir() else None


def _never_made(root: Path) -> UsageError | None:
    """Why nobody can make the folder of a root. None when it can be made, so that somebody must be removing it."""
    if (standing := no_folder(root)) is not None:
        return UsageError(
            f"{standing} leads to {os.path.realpath(standing)}, which is no folder: make that folder, or use another root"
        )
    for folder in (*reversed(root.parents), root):
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        except FileNotFoundError:
            if folder.parent.is_dir():
                return UsageError(f"no folder can be made in {folder.parent}: use another root than {root}")
            return None
        except OSError:
            return None
    return None


@contextmanager
def held_root(store: Store) -> Iterator[Store]:
    """The store for an operation that deletes.

    On a disk it opens the root once. Whoever may write to the folder above the root can give the root's name to another
    folder at any moment, and what the operation has read of one folder decides nothing in the other.
    """
    if not isinstance(store, LocalStore):
        yield store
        return
    with store.holding() as held:
        yield held


def in_held_root(work: Callable[Concatenate[Store, P], R]) -> Callable[Concatenate[Store, P], R]:
    """Lets an operation that deletes work in the folder that the root of its store is at the beginning: see `held_root`."""

    @wraps(work)
    def held(store: Store, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with held_root(store) as same:
            return work(same, *args, **kwargs)

    return held


def link_file(source: Path, target: Path) -> None:
    """Makes a hard link to a file. A symbolic link raises the same error as a file on another disk: Linux would link the
    symbolic link itself, and its owner may change or delete the file it points to."""
    if source.is_symlink():
        raise OSError(errno.EXDEV, "a symbolic link is no file of this store", str(source))
    os.link(source, target)


def _names(folder: str) -> list[str]:
    return [name for name in folder.split("/") if name]


def _walk(descriptor: int, folder: str, stem: str, unfinished: bool) -> Iterator[Entry]:
    """Lists the names in an open folder that start with `stem`, and everything below them. It opens no other folder. It
    leaves out symbolic links, whatever they point to. Closes the folder."""
    with scanned(descriptor) as (here, scan):
        for item in scan:
            temporary = item.name.startswith(TEMP)
            if not (item.name.startswith(stem) or (temporary and unfinished)):
                continue
            path = f"{folder}{item.name}"
            if item.is_dir(follow_symlinks=False):
                if not temporary:
                    with suppress(FileNotFoundError, NotADirectoryError, LinkError):  # replaced since
                        yield from _walk(listable_below(here, item.name), f"{path}/", "", unfinished)
            elif temporary == unfinished:
                with suppress(FileNotFoundError):  # deleted while being listed
                    status = item.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        yield Entry(path, status.st_size)


def _remove_abandoned(folder: int, temp: str) -> None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(temp, flags, dir_fd=folder)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.unlink(temp, dir_fd=folder)
    except OSError:
        pass  # its owner lives, or has just removed it
    finally:
        os.close(descriptor)
