"""Private folders on this host for files that a process needs for a while, and the removal of what killed processes left.

The setting that names the scratch folder may name a folder with files of the user. So all lies in one folder inside it, which
the library makes for each user. In it, `<id>` is a folder, and `<id>.lock` a file that the maker of the folder holds locked while
it lives. Whoever can lock that file knows that the maker has ended. The kernel tells so in every container, whereas the
number of a process means something only in its own. A folder without a lock file is left alone. `<id>.left` is what a process has
left for the next one that has a use for it.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stateflow.errors import UnavailableError
from stateflow.private_folders import make_private

_LOCK = re.compile(r"([0-9a-f]{32})\.lock")
_LEFT = re.compile(r"[0-9a-f]{32}\.left")
_LEFT_FOR = 3600.0
"""Seconds after which what nobody has taken is removed."""
_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC

_held: dict[Path, int] = {}
"""The open lock file of each folder of this process."""
_swept: set[Path] = set()


def _unique() -> str:
    return uuid.uuid4().hex


def new_scratch(scratch: Path, unique: Callable[[], str] = _unique) -> Path:
    """A new empty folder. It stays until this process calls `remove_scratch`, or has ended and another one makes a folder."""
    try:
        own = _own_folder(scratch)
        if own not in _swept:
            _swept.add(own)
            sweep_scratch(scratch)
        while True:
            folder = own / unique()
            lock = _new_lock(folder)
            if lock is None:
                continue
            try:
                folder.mkdir(mode=0o700)
            except BaseException:
                _lock_of(folder).unlink(missing_ok=True)
                os.close(lock)
                raise
            _held[folder] = lock
            return folder
    except OSError as error:
        raise UnavailableError(
            f"no scratch folder can be made in {scratch} ({error.strerror}): free space there or choose another one with "
            "scratch_dir"
        ) from error


def named_scratch(scratch: Path, name: str) -> Path | None:
    """A new empty folder of this name, 32 hexadecimal digits; None while a process has it, or while it is left for the next one.
    It stays as `new_scratch`'s does."""
    folder = _own_folder(scratch) / name
    if folder in _held or _left(folder).exists():
        return None
    _remove_if_left(folder)
    try:
        return new_scratch(scratch, lambda: name)
    except UnavailableError:
        if _lock_of(folder).exists():
            return None
        raise


def leave(folder: Path, inner: Path) -> None:
    """Leaves `inner`, a folder in one that `named_scratch` has made, to whoever takes it first, and for an hour at least."""
    os.utime(inner)
    inner.rename(_left(folder))


def take_left(scratch: Path, name: str, target: Path) -> bool:
    """Makes what was left under this name the folder `target`; False if nothing was, or somebody else has taken it."""
    try:
        _left(_own_folder(scratch) / name).rename(target)
    except OSError:
        return False
    return True


def take_place(scratch: Path, name: str, places: int) -> int | None:
    """One of so many places that all processes of this host share, until its descriptor is closed or the process ends; None if all
    are taken."""
    own = _own_folder(scratch)
    for number in range(places):
        place = os.open(own / f"{name}-{number}", _OPEN | os.O_CREAT, 0o600)
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(place)
            continue
        return place
    return None


def remove_scratch(folder: Path) -> None:
    """Removes a folder that `new_scratch` has made in this process."""
    shutil.rmtree(folder, ignore_errors=True)
    lock = _held.pop(folder, None)
    if lock is not None:
        with suppress(OSError):
            _lock_of(folder).unlink()
        os.close(lock)


@contextmanager
def temporary(scratch: Path) -> Iterator[Path]:
    """A new folder, removed after the block."""
    folder = new_scratch(scratch)
    try:
        yield folder
    finally:
        remove_scratch(folder)


@contextmanager
def scratch_folder(scratch: Path) -> Iterator[Path]:
    """A `temporary` folder for nothing but files that are written: UnavailableError where they cannot be."""
    with temporary(scratch) as folder:
        try:
            yield folder
        except OSError as error:
            raise UnavailableError(
                f"files could not be written to {scratch} ({error.strerror}): free space there and run again"
            ) from error


def sweep_scratch(scratch: Path, now: Callable[[], float] = time.time) -> None:
    """Removes the folders of processes that have ended."""
    with suppress(OSError):
        own = _own_folder(scratch)
        for lock in list(own.iterdir()):
            named = _LOCK.fullmatch(lock.name)
            if named is not None and (folder := own / named[1]) not in _held:
                _remove_if_left(folder)
            elif _LEFT.fullmatch(lock.name) and lock.stat().st_mtime < now() - _LEFT_FOR:
                _remove_untaken(lock)


def _own_folder(scratch: Path) -> Path:
    """The library's own folder for this user in a scratch folder. Somebody else's in its place is refused: what he puts there
    would be deleted, and he could read the state."""
    own = scratch / f"stateflow-{os.geteuid()}"
    make_private(own)
    status = own.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in (os.geteuid(), 0):
        raise UnavailableError(
            f"{own} is a link, or belongs to another user: remove it, or choose another folder with scratch_dir"
        )
    return own


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _left(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.left")


def _new_lock(folder: Path) -> int | None:
    """The lock file of a folder to be, open and locked; None if a sweep has removed it just before it was locked."""
    path = _lock_of(folder)
    lock = os.open(path, _OPEN | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError:
        # A file system without locks. Without a lock file nobody takes the folder for one that was left.
        path.unlink(missing_ok=True)
        return lock
    if os.fstat(lock).st_nlink == 0:
        os.close(lock)
        return None
    return lock


def _remove_untaken(left: Path) -> None:
    """Under a name that nobody asks for: whoever takes it at that moment would get half of it."""
    aside = _left(left.with_name(_unique()))
    with suppress(OSError):
        left.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


def _remove_if_left(folder: Path) -> None:
    path = _lock_of(folder)
    try:
        lock = os.open(path, _OPEN)
    except OSError:
        return  # removed meanwhile, or nothing that this process may remove
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_nlink == 0:
            return  # another process has removed both
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            path.unlink(missing_ok=True)
    except OSError:
        pass  # its maker lives
    finally:
        os.close(lock)
