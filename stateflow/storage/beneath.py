"""Paths below a root on a disk, walked folder by folder: no symbolic link is ever followed.

Each folder is opened relative to the open folder above it, with the flag that refuses a link. So whoever replaces a folder
by a link between two calls changes nothing: an open folder stays the folder it was. The root itself may be a link, or lie
behind one: that is the operator's choice. Anybody may have made what lies below it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

_ENTER = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
"""With O_PATH, as with an ordinary path, walking through a folder needs no permission to read it."""
_BELOW = _ENTER | os.O_NOFOLLOW
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""O_NONBLOCK, because opening a pipe that somebody put in a file's place would wait for ever."""
ANYBODY = 0o666
"""The permissions of a new file, before the umask takes some away."""
WRITTEN_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class LinkError(OSError):
    """A symbolic link lies where a file or folder of a root should; `filename` is the link."""

    def __init__(self, link: str) -> None:
        super().__init__(errno.ELOOP, "a symbolic link", link)


class OpenFolder:
    """The folders from a root to one below it, open. Close it, or use it in a `with`.

    FileNotFoundError when one is missing, NotADirectoryError when one is a file, LinkError when one is a link. With
    `make` the missing ones are made, each after a call with its path; with `partial` the walk ends before the first that is
    missing or is a file.
    `opened`: a descriptor of the root. Then the walk begins there, whatever the root's name leads to by now.
    """

    __slots__ = ("descriptors", "names", "root")

    def __init__(
        self,
        root: Path,
        names: Sequence[str],
        *,
        make: Callable[[Path], object] | None = None,
        partial: bool = False,
        opened: int | None = None,
    ) -> None:
        self.root = root
        self.names = names
        self.descriptors = [_root(root, make) if opened is None else os.dup(opened)]
        """Of the root, and of each folder below it."""
        try:
            for name in names:
                self.descriptors.append(self._enter(name, make))
        except (FileNotFoundError, NotADirectoryError):
            if not partial:
                self.close()
                raise
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.pop())

    @property
    def descriptor(self) -> int:
        return self.descriptors[-1]

    @property
    def path(self) -> Path:
        """For messages only: by now the path may lead to another folder."""
        return self.root.joinpath(*self.names)

    def status(self, name: str) -> os.stat_result:
        """The status of a regular file. LinkError for a link, EISDIR for anything else."""
        status = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        self._require_file(name, status)
        return status

    def open_file(self, name: str) -> int:
        """A descriptor for reading a regular file."""
        try:
            descriptor = os.open(name, _READ, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK):
                raise LinkError(str(self.path / name)) from None
            if error.errno == errno.ENXIO:  # a socket
                raise IsADirectoryError(errno.EISDIR, "not a file", name) from None
            raise
        try:
            self._require_file(name, os.fstat(descriptor))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def link_to(
        self, name: str, target: str, target_folder: int | None = None, *, within: bool = False
    ) -> None:
        """Makes a hard link to a regular file, at `target` in an open folder.

        A link shares the file with whoever may change it. So a file of another user, or one that others may write to,
        raises the error of a file on another disk (EXDEV): copy it. `within`: both names are in one store, whose files
        others may write to if the operator lets them; only the owner counts.
        """
        refused = WRITTEN_BY_OTHERS if not within else 0
        _require_own(name, self.status(name), refused)
        try:
            link_regular(
                name, target, source_folder=self.descriptor, target_folder=target_folder, refused=refused
            )
        except LinkError:
            raise LinkError(str(self.path / name)) from None

    def _require_file(self, name: str, status: os.stat_result) -> None:
        if stat.S_ISLNK(status.st_mode):
            raise LinkError(str(self.path / name))
        if not stat.S_ISREG(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, "not a file", name)

    def _enter(self, name: str, make: Callable[[Path], object] | None) -> int:
        above = self.descriptors[-1]
        try:
            return _below(above, name)
        except FileNotFoundError:
            if make is None:
                raise
        except LinkError:
            raise LinkError(str(self._path_of(name))) from None
        make(self._path_of(name))
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=above)
        return self._enter(name, None)

    def _path_of(self, name: str) -> Path:
        return self.root.joinpath(*self.names[: len(self.descriptors) - 1], name)


def link_regular(
    source: str,
    target: str,
    *,
    source_folder: int | None = None,
    target_folder: int | None = None,
    refused: int | None = None,
) -> None:
    """Makes a hard link, and makes sure that it leads to a regular file even if somebody replaced the source just now.

    With `refused` the file must also be this user's own, and have none of these permissions: EXDEV otherwise.
    """
    os.link(source, target, src_dir_fd=source_folder, dst_dir_fd=target_folder, follow_symlinks=False)
    try:
        made = os.stat(target, dir_fd=target_folder, follow_symlinks=False)
    except FileNotFoundError:
        return  # somebody has cleared the target's folder: the source is not what is missing
    if not stat.S_ISREG(made.st_mode):
        os.unlink(target, dir_fd=target_folder)
        raise LinkError(source)
    if refused is not None:
        try:
            _require_own(source, made, refused)
        except OSError:
            os.unlink(target, dir_fd=target_folder)
            raise


def _require_own(name: str, status: os.stat_result, refused: int) -> None:
    if status.st_uid != os.geteuid() or status.st_mode & refused:
        raise OSError(errno.EXDEV, "others may change this file", name)


def listable(folder: int) -> int:
    """A new descriptor for the open folder, to list it or to have it written to disk."""
    return os.open(".", _LIST, dir_fd=folder)


def listable_below(folder: int, name: str) -> int:
    """Like `listable`, for a folder inside an open one. LinkError or NotADirectoryError when it is no folder any more."""
    below = _below(folder, name)
    try:
        return listable(below)
    finally:
        os.close(below)


def link_beside(temp: str, name: str, folder: int) -> None:
    os.link(temp, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)


def rename_beside(temp: str, name: str, folder: int) -> None:
    os.replace(temp, name, src_dir_fd=folder, dst_dir_fd=folder)


@contextmanager
def scanned(descriptor: int) -> Iterator[tuple[int, Iterator[os.DirEntry[str]]]]:
    """The names in an open folder, which is closed afterwards."""
    try:
        with os.scandir(descriptor) as scan:
            yield descriptor, scan
    finally:
        os.close(descriptor)


def fsync_folder(folder: int) -> None:
    descriptor = listable(folder)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EROFS):  # some file systems need no fsync of a folder
            raise
    finally:
        os.close(descriptor)


def permissions(descriptor: int) -> int:
    """The permissions for a copy of an open file: none that the file lacks, except that its owner may read and write."""
    return stat.S_IMODE(os.fstat(descriptor).st_mode) & ANYBODY | stat.S_IRUSR | stat.S_IWUSR


def _root(root: Path, make: Callable[[Path], object] | None) -> int:
    try:
        return os.open(root, _ENTER)
    except FileNotFoundError:
        if make is None:
            raise
    for folder in (*reversed(root.parents), root):
        make(folder)
        # FileNotFoundError: a collector removed the empty parent just now. The open below then raises.
        with suppress(FileExistsError, FileNotFoundError):
            folder.mkdir()
    return os.open(root, _ENTER)


def _below(folder: int, name: str) -> int:
    try:
        return os.open(name, _BELOW, dir_fd=folder)
    except OSError as error:
        # Which of these errors a link causes depends on the system.
        if error.errno not in (errno.ENOTDIR, errno.ELOOP, errno.EMLINK):
            raise
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise LinkError(name) from None
        raise
