"""The host-local cache of state files: bounded, and safe to delete at any time.

Many jobs share the cache, and anybody may have made a savepoint that one of them restores. So nobody can give other bytes
the name of an entry: see `_entry`. It deletes only files that have the form of its own names, and only in the folder itself:
the setting that names the folder may be wrong. Many processes use one folder at once, without a lock between them. A rename makes an
entry appear whole, and nobody changes it afterwards. Unlinking removes it, and whoever has linked or opened it keeps the file.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import stat
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stateflow.errors import CorruptError, NotFoundError, UnavailableError, UsageError
from stateflow.format.records import FileRef
from stateflow.private_folders import make_private
from stateflow.storage.files import missing, verify
from stateflow.storage.local import link_file
from stateflow.storage.store import PIECE, TEMP, Store

_TRIES = 20
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ENTRY = re.compile(r"[0-9a-f]{64}-\d+")
_UNFINISHED = re.compile(rf"{re.escape(TEMP)}(\d+)-\w+")
_BOOT = re.compile(r"\.boot-[0-9a-f-]{36}")
_MARKER = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class FileCache:
    """Checks an entry's checksum once, when it fetches it. A hit checks only the size.

    The cache exists so that a batch need not read every byte of the state. The state backends check their blocks as they
    read them.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.hits = 0
        self.misses = 0
        self.bytes_fetched = 0
        self._lock = threading.Lock()
        self._unseen = limit_bytes
        """Bytes added since the folder was last measured. It starts at the limit, so the first entry measures the folder."""
        self._opened = False

    def fetch(self, store: Store, ref: FileRef) -> Path:
        """A verified copy in the cache, never to be written to. `store` is where `ref.base` points.

        Another process may evict it at any moment: use `link` unless you open it at once.
        """
        self._open()
        entry = self._entry(store, ref)
        for _ in range(_TRIES):
            if self._touch(entry, ref):
                self._count(hit=True)
                return entry
            with suppress(FileNotFoundError):  # the folder was deleted meanwhile
                self._fill(store, ref, entry)
                return entry
        raise UnavailableError(
            f"the cache folder {self.folder} is removed again and again: stop what deletes it"
        )

    def holds(self, store: Store, ref: FileRef) -> bool:
        """Whether the file is here at this moment."""
        entry = self._entry(store, ref)
        with suppress(OSError):
            return entry.stat().st_size == ref.size
        return False

    def link(self, store: Store, ref: FileRef, target: Path) -> Path:
        """Makes `target` a hard link to the cached file, or a copy if it is on another disk. An eviction does not harm it."""
        for _ in range(_TRIES):
            entry = self.fetch(store, ref)
            with suppress(FileNotFoundError):  # evicted between the two calls
                _link_or_copy(entry, target)
                return target
            if not target.parent.is_dir():
                raise UnavailableError(
                    f"the folder {target.parent} does not exist: make it before fetching into it"
                )
        # Many tasks share a small cache: it evicts entries before this one can link them.
        self._bring(store, ref, target)
        return target

    def fetcher(self, store_of: Callable[[str], Store], directory: Path) -> Callable[[FileRef], Path]:
        """The function that fetches files into `directory` for a state backend. `store_of` opens the store of a
        `FileRef.base`."""

        def fetch(ref: FileRef) -> Path:
            return self.link(store_of(ref.base), ref, directory / f"fetched-{uuid.uuid4().hex}")

        return fetch

    def add(self, store: Store, ref: FileRef, local: Path) -> None:
        """Adds a file, so that the next batch on this host need not fetch it. It compares nothing: only the process that wrote
        `local` and stored it in `store` as `ref` may call it."""
        self._open()
        entry = self._entry(store, ref)
        for _ in range(_TRIES):
            if self._touch(entry, ref):
                return
            with suppress(FileNotFoundError):
                self._place(entry, ref, lambda temp: _link_or_copy(local, temp))
                return
            if not local.exists():
                raise NotFoundError(f"{local} does not exist: it cannot be added to the cache {self.folder}")

    def part(self, store: Store, ref: FileRef, begin: int, length: int) -> bytes:
        """Bytes of a file that is not here, as the store has them: compared with nothing, and not kept."""
        body = store.read_range(ref.path, (ref.offset or 0) + begin, length)
        with self._lock:
            self.bytes_fetched += len(body)
        return body

    def distrust(self, store: Store, ref: FileRef) -> None:
        """Removes a damaged entry: whoever needs the file next fetches and checks it again."""
        self._entry(store, ref).unlink(missing_ok=True)

    def clear(self) -> None:
        """Removes every entry, also those that other processes are writing, which then fetch again. Whoever has linked or
        opened a file keeps it."""
        # Twice: a file that was half written when the folder was listed may have become an entry since.
        for _ in range(2):
            with suppress(FileNotFoundError), self._opened_folder() as folder:
                for name in _names(folder, _ENTRY, _UNFINISHED):
                    _remove(name, folder)

    def _entry(self, store: Store, ref: FileRef) -> Path:
        """The path of a file's entry. Its name is a hash of what identifies the bytes:

        - Their SHA-256, if the reference has it: it was compared when the bytes were fetched, so the same bytes share one
          entry. Local stores do not share entries, because these are hard links: whoever may write to a file of one store
          would change what is read for the other store.
        - Otherwise the store and path they come from. Anybody can make other bytes with the same XXH3 and size.
        """
        identity: tuple[str, ...]
        if ref.data is not None:
            identity = ("data", hashlib.sha256(ref.data).hexdigest())
        elif ref.sha256:
            identity = ("content", "" if store.local_root is None else store.url, ref.sha256.hex())
        else:
            identity = ("place", store.url, ref.path, str(ref.offset), ref.xxh3)
        name = hashlib.sha256("\0".join(identity).encode()).hexdigest()
        return self.folder / f"{name}-{ref.size}"

    def _touch(self, entry: Path, ref: FileRef) -> bool:
        """Whether the entry is there, now the most recently used."""
        try:
            if entry.stat().st_size != ref.size:
                entry.unlink(missing_ok=True)  # truncated by somebody: the caller fetches it again
                return False
            with suppress(PermissionError):  # another user owns it: usable, but it keeps its age
                os.utime(entry)
        except FileNotFoundError:
            return False
        return True

    def _fill(self, store: Store, ref: FileRef, entry: Path) -> None:
        self._place(entry, ref, lambda temp: self._bring(store, ref, temp))

    def _bring(self, store: Store, ref: FileRef, target: Path) -> None:
        try:
            if ref.data is not None:
                with target.open("xb") as file:
                    file.write(ref.data)
            elif ref.offset is not None:
                body = store.read_range(ref.path, ref.offset, ref.size)
                with target.open("xb") as file:
                    file.write(body)
            else:
                store.download(ref.path, target)
            verify(ref, target, store.url)
        except NotFoundError:
            raise missing(ref, store.url) from None
        except CorruptError:
            target.unlink(missing_ok=True)
            raise
        self._count(hit=False, fetched=ref.size if ref.data is None else 0)

    def _place(self, entry: Path, ref: FileRef, write: Callable[[Path], object]) -> None:
        temp = self.folder / f"{TEMP}{os.getpid()}-{uuid.uuid4().hex}"
        try:
            write(temp)
            with suppress(PermissionError):  # a link to another user's file
                os.utime(temp)
            temp.replace(entry)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise UnavailableError(
                    f"the disk that holds the cache folder {self.folder} is full: free space and run again"
                ) from error
            if error.errno == errno.ENOENT:
                self._make()
            raise
        finally:
            # Also after the rename: if both names are links to one file, a rename does nothing and leaves both.
            temp.unlink(missing_ok=True)
        self._evict(entry, ref.size)

    def _count(self, *, hit: bool, fetched: int = 0) -> None:
        with self._lock:
            if hit:
                self.hits += 1
            else:
                self.misses += 1
                self.bytes_fetched += fetched

    def _evict(self, newest: Path, size: int) -> None:
        with self._lock:
            self._unseen += size
            # Other processes add files too, and this one's count does not include theirs. So it measures the folder
            # every so often.
            if self._unseen <= self.limit_bytes // 16:
                return
            self._unseen = 0
        with suppress(FileNotFoundError), self._opened_folder() as folder:
            entries = _measured(folder)
            total = sum(size for _, size, _ in entries)
            if total <= self.limit_bytes:
                return
            for _, size, name in sorted(entries):
                if name == newest.name:
                    continue
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder)
                total -= size
                if total <= self.limit_bytes * 9 // 10:
                    return

    @contextmanager
    def _opened_folder(self) -> Iterator[int]:
        """A descriptor of the folder. A link in its place leads to files of somebody else: UsageError."""
        try:
            descriptor = os.open(self.folder, _FOLDER)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENOTDIR):
                raise UsageError(
                    f"the cache folder {self.folder} is a symbolic link or a file, and nothing behind it is deleted: remove it, or "
                    "have cache_dir name the folder that it should lead to"
                ) from None
            raise
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _open(self) -> None:
        if self._opened:
            return
        try:
            with self._lock, suppress(FileNotFoundError):  # somebody deleted the folder meanwhile
                self._make()
                with self._opened_folder() as folder:
                    _forget_last_boot(folder)
                    for name in _names(folder, _UNFINISHED):
                        if not _alive(name):
                            _remove(name, folder)
        except PermissionError as error:
            raise UnavailableError(
                f"the cache folder {self.folder} is closed to this user: choose another one with cache_dir, or have its "
                "owner open it"
            ) from error
        self._opened = True

    def _make(self) -> None:
        # It holds the state of all jobs, so nobody else may read it. An operator who wants to share it creates the folder.
        if not self.folder.is_symlink():  # a link in its place is refused when it is opened
            make_private(self.folder)


def _names(folder: int, *forms: re.Pattern[str]) -> list[str]:
    """The names in the cache folder that have one of these forms."""
    with os.scandir(folder) as scan:
        return [item.name for item in scan if any(form.fullmatch(item.name) for form in forms)]


def _remove(name: str, folder: int) -> None:
    with suppress(FileNotFoundError, IsADirectoryError):  # a folder is nobody's entry
        os.unlink(name, dir_fd=folder)


def _measured(folder: int) -> list[tuple[int, int, str]]:
    """`(last use, size, name)` of every entry."""
    entries = []
    for name in _names(folder, _ENTRY):
        with suppress(FileNotFoundError):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                entries.append((status.st_mtime_ns, status.st_size, name))
    return entries


def _forget_last_boot(folder: int) -> None:
    # Entries are not fsynced: after a power cut an entry can have its full size without its content. So
    # everything from an earlier boot of this machine is fetched again.
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        return
    marker = f".boot-{boot}"
    with suppress(FileNotFoundError):
        os.stat(marker, dir_fd=folder, follow_symlinks=False)
        return
    for name in _names(folder, _ENTRY, _BOOT):
        _remove(name, folder)
    os.close(os.open(marker, _MARKER, 0o600, dir_fd=folder))


def _alive(temp: str) -> bool:
    named = _UNFINISHED.fullmatch(temp)
    if named is None:
        return True
    try:
        os.kill(int(named[1]), 0)
    except ProcessLookupError:
        return False
    except (OverflowError, PermissionError):
        pass
    return True


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        link_file(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP):
            raise
        with source.open("rb") as reader, target.open("xb") as writer:
            shutil.copyfileobj(reader, writer, PIECE)
