"""From the URL of a checkpoint root to its store."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from stateflow.errors import CorruptError, UsageError
from stateflow.masking import masked
from stateflow.storage.file_urls import file_folder, file_url, plain_folder
from stateflow.storage.local import LocalStore
from stateflow.storage.places import host_and_path
from stateflow.storage.store import Store

_MOST_STORES = 32
_SHOWN = 200
_NO_OPTIONS: Mapping[str, str] = MappingProxyType({})
_HDFS = ("hdfs", "webhdfs", "swebhdfs")
_SCHEME = re.compile(r"(?:([a-z][a-z0-9+.-]*)://|(file):)", re.IGNORECASE)

_HALF_A_URL = re.compile(r"(?!file:)([a-z][a-z0-9+.-]+):/(?!/)(.*)", re.IGNORECASE | re.DOTALL)

FOR_TESTS: dict[str, Callable[[str], Store]] = {}
"""By scheme, how tests open stores that end with the process. A run knows no such scheme: its state would be gone."""

_Key = tuple[str, bytes, bool, str]
_opened: OrderedDict[_Key, Store] = OrderedDict()
_lock = threading.Lock()


def open_store(
    url: str, options: Mapping[str, str] = _NO_OPTIONS, *, fsync: bool = True, below: str = ""
) -> Store:
    """The store of a root: a folder, file://, s3://, gs://, az:// (abfs://, adl://) or hdfs:// (webhdfs://,
    swebhdfs://).

    `below`: the checkpoint root whose record or listing gave the URL. If that root holds the folder, no link on the way
    from the root to it is followed: somebody else may have put it there.

    Cheap to call again, since every task does: a process keeps the stores that it used most recently.
    """
    scheme, _, name = url.partition("://")
    if scheme in FOR_TESTS:
        return FOR_TESTS[scheme](name.strip("/"))
    folder = local_folder(url)
    top = _holding(folder, below)
    name = url.rstrip("/") if folder is None else file_url(folder)
    key = (name, _fingerprint(options), fsync, "" if top is None else str(top))
    with _lock:
        store = _opened.get(key)
        if store is None:
            store = _opened[key] = _made(url, folder, options, fsync, top)
            if len(_opened) > _MOST_STORES:
                _opened.popitem(last=False)
        _opened.move_to_end(key)
        return store


def open_recorded(
    url: str, options: Mapping[str, str] = _NO_OPTIONS, *, root: str, fsync: bool = True
) -> Store:
    """The store of a URL that a record or a claim in the checkpoint root names: a stranger may have written it.

    The job's credentials go to no other service or account than those of the job's root, and no link leads out of the
    root. CorruptError when it is no URL that stateflow would have written.
    """
    if not url or url == root:
        return open_store(root, options, fsync=fsync)
    why = why_not_recorded(url, options, root=root)
    try:
        if not why:
            return open_store(_as_root_is_reached(url, root), options, fsync=fsync, below=root)
    except UsageError as error:
        why = str(error)
    raise CorruptError(
        f"a record in {root} names the savepoint {masked('', url)[:_SHOWN]!r}, which is not opened ({why}): restore an earlier "
        "checkpoint, or a savepoint that you trust"
    )


def why_not_recorded(url: str, options: Mapping[str, str], *, root: str) -> str:
    """Why `open_recorded` opens no such URL, whoever names it; empty when it does."""
    if not url or url == root:
        return ""
    try:
        if (scheme := _SCHEME.match(url)) is None or not scheme[1]:
            raise UsageError("it is no URL")
        _refuse_strange_account(_as_root_is_reached(url, root), options, root)
    except UsageError as error:
        return str(error)
    return ""


def _as_root_is_reached(url: str, root: str) -> str:
    """The URL with the root's scheme and port, if both are in one HDFS: the root may have been written in another way when the record was."""
    if url.partition("://")[0].lower() not in _HDFS:
        return url
    place, path = host_and_path(url)
    return urlsplit(root)._replace(path=path).geturl() if place == host_and_path(root)[0] else url


def _refuse_strange_account(url: str, options: Mapping[str, str], root: str) -> None:
    """An Azure URL may name its account, and so the host that gets a shared-access token. One of HDFS names the host itself."""
    try:
        parts = urlsplit(url)
        account = parts.netloc.rpartition("@")
        if parts.scheme.lower() in _HDFS and (parts.scheme, parts.netloc) != urlsplit(root)[:2]:
            raise UsageError("it is in an HDFS that is not that of the job's root")
    except ValueError as error:
        raise UsageError(str(error)) from None
    if local_folder(url) is not None or not account[1]:
        return
    known = {value for name, value in options.items() if name.lower().endswith("account_name")}
    if account[2] != urlsplit(root).netloc.rpartition("@")[2] and account[2].partition(".")[0] not in known:
        raise UsageError("it is in an account that is not that of the job's root")


def open_beside(url: str, root: Store, options: Mapping[str, str]) -> Store | None:
    """A folder of the bucket that the checkpoint root is in, which the root's credentials open; None for another bucket."""
    one, other = urlsplit(url.replace("s3a://", "s3://", 1)), urlsplit(root.url)
    if (one.scheme, one.netloc) != (other.scheme, other.netloc):
        return None
    return open_store(one.geturl(), options)


def local_folder(url: str) -> Path | None:
    """The folder of a local root; None for a root in an object store."""
    if not url.strip():
        raise UsageError("the checkpoint root is empty: name a folder or a URL")
    scheme = _SCHEME.match(url)
    if scheme is None and (half := _HALF_A_URL.fullmatch(url)):
        raise UsageError(
            f"{masked('', url)[:_SHOWN]} is half a URL: write {half[1]}://, with two slashes and a bucket or host behind them, or ./{half[1]}:/ for a "
            "folder of that name"
        )
    if scheme is None:
        return plain_folder(Path(url).expanduser().absolute())
    return file_folder(url) if (scheme[1] or scheme[2]).lower() == "file" else None


def _holding(folder: Path | None, below: str) -> Path | None:
    """The folder of the root `below`, if `folder` is inside it."""
    if folder is None or not below:
        return None
    top = local_folder(below)
    return top if top is not None and top != folder and folder.is_relative_to(top) else None


def _made(
    url: str, folder: Path | None, options: Mapping[str, str], fsync: bool, below: Path | None
) -> Store:
    if folder is not None:
        return LocalStore(folder, fsync=fsync, below=below)
    # Imported here, so that a command on a local root does not load a client with its own threads.
    if url.partition("://")[0].lower() in _HDFS:
        from stateflow.storage.hdfs import HdfsStore

        return HdfsStore(url, options)
    from stateflow.storage.objects import ObjectStore

    return ObjectStore(url, options)


def _fingerprint(options: Mapping[str, str]) -> bytes:
    """A hash that tells options apart, so that the options themselves need not be kept."""
    digest = hashlib.sha256()
    for name, value in sorted(options.items()):
        digest.update(f"{len(name)}:{name}{len(value)}:{value}".encode())
    return digest.digest()


def _after_fork() -> None:
    # The lock may be held by a thread that the child does not have, and the stores may rely on such threads.
    global _lock
    _lock = threading.Lock()
    _opened.clear()


os.register_at_fork(after_in_child=_after_fork)
