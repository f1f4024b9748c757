"""The host-local cache of state files: bounded, and safe to delete at any time.

Many jobs share it, and a savepoint that one of them restores may be anybody's. So no entry has a name that other bytes
can be given: see `_entry`. Many processes use one folder at once, without a lock between them: an entry appears whole by a rename, is
never changed, and is removed by unlinking, which leaves everybody who has linked or opened it alone.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from stateflow.errors import CorruptError, NotFoundError, UnavailableError
from stateflow.format.records import FileRef
from stateflow.storage.files import verify, where
from stateflow.storage.local import link_file
from stateflow.storage.store import PIECE, TEMP, Store

_TRIES = 20
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def _unique() -> str:
    return uuid.uuid4().hex


class FileCache:
    """Entries are checked once, when they are fetched; a hit checks the size only.

    Reading every byte of the state in every batch is what the cache is there to avoid, and the state backends
    check their blocks as they read them.
    """

    def __init__(self, folder: Path, limit_bytes: int, unique: Callable[[], str] = _unique) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.hits = 0
        self.misses = 0
        self.bytes_fetched = 0
        self._unique = unique
        self._lock = threading.Lock()
        self._unseen = limit_bytes
        """Bytes put in since the folder was last measured; the first entry measures it."""
        self._opened = False

    def fetch(self, store: Store, ref: FileRef) -> Path:
        """A verified copy in the cache, never to be written to. `store` is where `ref.base` points.

        Another process may evict it at any moment: use `link` unless it is opened at once.
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

    def link(self, store: Store, ref: FileRef, target: Path) -> Path:
        """`target`, made a hard link to the cached file (or a copy on another disk): no eviction harms it."""
        for _ in range(_TRIES):
            entry = self.fetch(store, ref)
            with suppress(FileNotFoundError):  # evicted between the two calls
                _link_or_copy(entry, target)
                return target
            if not target.parent.is_dir():
                raise UnavailableError(
                    f"the folder {target.parent} does not exist: make it before fetching into it"
                )
        # A cache that is too small for what runs at once evicts faster than one can link.
        self._bring(store, ref, target)
        return target

    def fetcher(self, store_of: Callable[[str], Store], directory: Path) -> Callable[[FileRef], Path]:
        """How a state backend fetches: into `directory`. `store_of` opens the store of a `FileRef.base`."""

        def fetch(ref: FileRef) -> Path:
            return self.link(store_of(ref.base), ref, directory / f"fetched-{self._unique()}")

        return fetch

    def add(self, store: Store, ref: FileRef, local: Path) -> None:
        """Keeps a file so that the next batch on this host finds it. Only for who has written `local` and stored it in
        `store`, as `ref`, himself: nothing is compared."""
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

    def distrust(self, store: Store, ref: FileRef) -> None:
        """Forgets an entry whose content turned out to be damaged: whoever wants it next fetches and checks it anew."""
        self._entry(store, ref).unlink(missing_ok=True)

    def clear(self) -> None:
        """Forgets everything, also what others are about to put in, who then fetch anew. Files that somebody has linked
        or opened stay theirs."""
        # Twice: what was half written when the folder was listed may have become an entry since.
        for _ in range(2):
            with suppress(FileNotFoundError), os.scandir(self.folder) as scan:
                for item in scan:
                    if not item.name.startswith(".") or item.name.startswith(TEMP):
                        Path(item.path).unlink(missing_ok=True)

    def _entry(self, store: Store, ref: FileRef) -> Path:
        """Where a file is kept. The name is a hash of what the bytes are known by:

        - their SHA-256, which was compared when they came in: the same bytes are one entry. Not so between local stores,
          whose entries are hard links: who may write to the one store's file would change what is read for the other's.
        - Without it, where they come from. XXH3 and the size say nothing of whose bytes they are.
        """
        known: tuple[str, ...]
        if ref.data is not None:
            known = ("data", hashlib.sha256(ref.data).hexdigest())
        elif ref.sha256:
            known = ("content", "" if store.local_root is None else store.url, ref.sha256.hex())
        else:
            known = ("place", store.url, ref.path, str(ref.offset), ref.xxh3)
        name = hashlib.sha256("\0".join(known).encode()).hexdigest()
        return self.folder / f"{name}-{ref.size}"

    def _touch(self, entry: Path, ref: FileRef) -> bool:
        """Whether the entry is there, now the most recently used."""
        try:
            if entry.stat().st_size != ref.size:
                entry.unlink(
                    missing_ok=True
                )  # truncated by somebody: not worth an error, it can be had again
                return False
            with suppress(PermissionError):  # another user's: usable, but its age stays
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
            raise CorruptError(
                f"{where(ref, store.url)} is missing; run `stateflow verify` and restore from an earlier "
                "checkpoint with `stateflow restore`"
            ) from None
        except CorruptError:
            target.unlink(missing_ok=True)
            raise
        self._count(hit=False, fetched=ref.size if ref.data is None else 0)

    def _place(self, entry: Path, ref: FileRef, write: Callable[[Path], object]) -> None:
        temp = self.folder / f"{TEMP}{os.getpid()}-{self._unique()}"
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
            # Also after a rename: between two links to one file, a rename does nothing and leaves both.
            temp.unlink(missing_ok=True)
        self._bound(entry, ref.size)

    def _count(self, *, hit: bool, fetched: int = 0) -> None:
        with self._lock:
            if hit:
                self.hits += 1
            else:
                self.misses += 1
                self.bytes_fetched += fetched

    def _bound(self, newest: Path, size: int) -> None:
        with self._lock:
            self._unseen += size
            # Other processes add too and tell nobody, so the folder is measured every so often, not when
            # one's own count is full.
            if self._unseen <= self.limit_bytes // 16:
                return
            self._unseen = 0
        entries = self._measured()
        total = sum(size for _, size, _ in entries)
        if total <= self.limit_bytes:
            return
        for _, size, path in sorted(entries):
            if path == str(newest):
                continue
            with suppress(OSError):
                Path(path).unlink()
            total -= size
            if total <= self.limit_bytes * 9 // 10:
                return

    def _measured(self) -> list[tuple[int, int, str]]:
        """`(last use, size, path)` of every entry."""
        found = []
        with suppress(FileNotFoundError), os.scandir(self.folder) as scan:
            for item in scan:
                if item.name.startswith("."):
                    continue
                with suppress(FileNotFoundError):
                    status = item.stat()
                    found.append((status.st_mtime_ns, status.st_size, item.path))
        return found

    def _open(self) -> None:
        if self._opened:
            return
        try:
            with self._lock, suppress(FileNotFoundError):  # it may be deleted meanwhile: all the cleaner
                self._make()
                self._forget_last_boot()
                with os.scandir(self.folder) as scan:
                    for item in scan:
                        if item.name.startswith(TEMP) and not _alive(item.name):
                            Path(item.path).unlink(missing_ok=True)
        except PermissionError as error:
            raise UnavailableError(
                f"the cache folder {self.folder} is closed to this user: choose another one with cache_dir, or have its "
                "owner open it"
            ) from error
        self._opened = True

    def _make(self) -> None:
        # State of all jobs lies in it, readable to nobody else; whoever shares it on purpose makes it himself.
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _forget_last_boot(self) -> None:
        # Entries are not fsynced: after a power cut one can have its full size and not its content. What
        # another boot of this machine left is therefore fetched again.
        try:
            boot = _BOOT_ID.read_text().strip()
        except OSError:
            return
        marker = self.folder / f".boot-{boot}"
        if marker.exists():
            return
        with suppress(FileNotFoundError), os.scandir(self.folder) as scan:
            for item in scan:
                if not item.name.startswith(TEMP):
                    Path(item.path).unlink(missing_ok=True)
        marker.touch()


def _alive(temp: str) -> bool:
    pid = temp.removeprefix(TEMP).partition("-")[0]
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (ValueError, PermissionError):
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
