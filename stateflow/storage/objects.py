"""A checkpoint root in an object store: S3, Google Cloud Storage or Azure."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial, wraps
from pathlib import Path
from typing import Any, BinaryIO, Concatenate, ParamSpec, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, UnknownConfigurationKeyError
from obstore.store import AzureStore, GCSStore, S3Store

from stateflow.errors import NotFoundError, StateflowError, UnavailableError, UsageError
from stateflow.masking import without_secrets
from stateflow.storage.azure_copies import CopyState, copy_state
from stateflow.storage.s3_parts import PartsRefused, copy_by_parts, keys_of
from stateflow.storage.store import (
    Entry,
    ExistsError,
    Store,
    checked_folder,
    checked_path,
    checked_prefix,
    not_saved,
    nothing_to_upload,
)

_log = logging.getLogger(__name__)
_S3 = ("s3", "s3a", "s3n")
_GCS = ("gs",)
_AZURE = ("az", "azure", "abfs", "abfss", "adl")
SCHEMES = (*_S3, *_GCS, *_AZURE)

_CLIENT = {
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "http1_only",
    "http2_only",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "read_timeout",
    "root_certificate",
    "timeout",
    "user_agent",
}
_PUBLIC = re.compile(
    r"(region|endpoint|timeout|allow_|http|retries|style|use_|disable_|skip_|bucket|account_name)"
)
"""Options whose values an error may show. Every other value counts as a secret."""
_OF_HDFS = "hdfs_"
"""Options for the checkpoint root of a job, when this is a savepoint elsewhere."""
_ACCOUNT = ("account_name", "azure_storage_account_name")
"""Both names of the client's option; in any case of letters."""
_ACCOUNT_HOST = re.compile(r"https?://([^./:]+)\.(?:blob|dfs)\.", re.IGNORECASE)
"""An endpoint of one account."""
_BUCKET = re.compile(r"[A-Za-z0-9._$-]+\Z")
_HOST = re.compile(r"[A-Za-z0-9.-]*\Z")
_IGNORED = re.compile(r"[\t\r\n]")
"""Characters that `urlsplit` leaves out."""
_PAGE = 1000
_PART = 8 << 20
_PARTS_AT_ONCE = 4
"""Of one file. They share a line, so each part takes longer with more of them."""
IDLE = timedelta(seconds=60)
"""A request that gets no byte for so long has failed. A large file takes longer over a slow line, and gets bytes all the while."""
_PART_TAKES = 3
"""How many times as long a part of an upload may take: while the client sends, it gets no byte."""
_NO_LIMIT = timedelta(days=7)
"""The client knows no request without a limit, and its own default is 30 seconds."""
_COPIED_WHOLE = 1 << 30
"""A copy of a larger object may be refused (S3 and Google: over 5 GB) or take longer than a request may."""
_COPY_LOOKS = 600
"""How often to look at a copy that the service finishes after its answer and that gets no further, at most 1.6 s apart."""
_QUICK_LOOKS = 3
"""Most copies are done by then. Each later look asks how far it is, too."""
_SIGNED_FOR = timedelta(minutes=10)
_RETRIES = 9
"""With pauses of up to two seconds these are ten seconds, more or less: a store that restarts is back by then, and no run ends."""


P = ParamSpec("P")
R = TypeVar("R")


def _without_panics(
    method: Callable[Concatenate[ObjectStore, P], R],
) -> Callable[Concatenate[ObjectStore, P], R]:
    """The client panics at some names of buckets and some answers, with a BaseException that ends whoever expects errors."""

    @wraps(method)
    def calm(self: ObjectStore, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # its module is not one that can be imported
                raise
            raise UnavailableError(
                f"the client of {self._url!r} gave up ({self._said(error)}): check the root and the storage options"
            ) from None

    return calm


class ObjectStore:
    """Passes the options to the client and nowhere else: it does not store, log or show them."""

    @_without_panics
    def __init__(
        self,
        url: str,
        options: Mapping[str, str] | None = None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        options = {k: v for k, v in (options or {}).items() if not k.startswith(_OF_HDFS)}
        root = _parsed(url)
        self._url = root.url
        self._folder = root.folder
        self._bucket = root.bucket
        self._family = next(family for family in (_S3, _GCS, _AZURE) if root.scheme in family)
        self._pause = pause
        self._unordered = root.bucket.endswith("--x-s3")
        """S3 lists a directory bucket in no order."""
        self._secrets = _Redacted(
            v for k, v in options.items() if len(v) > 3 and not _PUBLIC.search(k.lower())
        )
        try:
            self._store = _client(root, options, {"read_timeout": IDLE, "timeout": _NO_LIMIT}, IDLE)
            self._upload_client = partial(
                _client, root, options, {"timeout": _PART_TAKES * IDLE}, _PART_TAKES * IDLE
            )
        except UnknownConfigurationKeyError as error:
            raise UsageError(f"{self._said(error)}: correct the storage options for {self._url}") from None
        except (BaseError, ValueError, TypeError) as error:
            raise UsageError(f"the storage options for {self._url} do not fit: {self._said(error)}") from None

        self._keys = keys_of(self._bucket, dict(self._store.config), options) if self._family == _S3 else None

    def __repr__(self) -> str:
        return f"ObjectStore({self._url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "an ObjectStore holds credentials and is never pickled: open it again with open_store"
        )

    @property
    def url(self) -> str:
        return self._url

    @property
    def local_root(self) -> Path | None:
        return None

    @_without_panics
    def read(self, path: str) -> bytes:
        key = self._key(path)
        with self._errors("read", path, missing=True):
            return obstore.get(self._store, key).bytes().to_bytes()

    @_without_panics
    def create(self, path: str, body: bytes) -> None:
        key = self._key(path)
        with self._errors("create", path):
            try:
                obstore.put(self._store, key, body, mode="create", use_multipart=False)
            except AlreadyExistsError:
                raise ExistsError(path) from None

    @_without_panics
    def put(self, path: str, body: bytes) -> None:
        key = self._key(path)
        with self._errors("write", path):
            obstore.put(self._store, key, body, use_multipart=False)

    @_without_panics
    def upload(self, source: Path, path: str) -> None:
        key = self._key(path)
        if not source.is_file():
            raise nothing_to_upload(source, path, self.url)
        with self._errors("upload", path):
            obstore.put(self._uploads, key, source, chunk_size=_PART, max_concurrency=_PARTS_AT_ONCE)

    @cached_property
    def _uploads(self) -> S3Store | GCSStore | AzureStore:
        """Made by whoever uploads: it takes 14 ms."""
        return self._upload_client()

    @_without_panics
    def download(self, path: str, target: Path) -> None:
        key = self._key(path)
        with target.open("xb") as file:
            try:
                with self._errors("download", path, missing=True):
                    self._fetch(key, file)
            except BaseException as error:
                target.unlink(missing_ok=True)
                if isinstance(error, OSError):
                    raise not_saved(path, target, error) from error
                raise

    def _fetch(self, key: str, file: BinaryIO) -> None:
        """Reads on behind the last byte when a connection breaks, as long as each one gets further. The client itself reads on
        only during its `retry_timeout`, counted from the first request."""
        while True:
            begun = file.tell()
            try:
                rest = obstore.get(self._store, key, options={"range": {"offset": begun}} if begun else None)
                for chunk in rest.stream(min_chunk_size=1 << 20):
                    file.write(chunk)
                return
            except BaseError:
                if file.tell() == begun:
                    raise

    @_without_panics
    def folders(self, prefix: str) -> list[str]:
        folder = checked_folder(prefix)
        self._check_process()
        base = f"{self._folder}{folder}"
        with self._errors("list", prefix):
            prefixes = obstore.list_with_delimiter(self._store, base or None)["common_prefixes"]
        return sorted(name[len(base) :].strip("/") for name in prefixes)

    @_without_panics
    def list(self, prefix: str) -> list[Entry]:
        folder, stem = checked_prefix(prefix)
        self._check_process()
        # The client's prefixes end at a `/`: asked for `job/chk-` it would find nothing. So the folder is
        # listed from the first name that can match to the last, and no further: `job/shared` has many more
        # objects.
        base = f"{self._folder}{folder}"
        start = f"{base}{stem}"
        # Offsets are exclusive (inclusive on Azure), so the offset is the first name without its last letter.
        offset = start[:-1] if len(stem) > 1 and not self._unordered else None
        entries: list[Entry] = []
        with self._errors("list", prefix):
            for page in obstore.list(self._store, base or None, offset=offset, chunk_size=_PAGE):
                last = ""
                for item in page:
                    last = item["path"]
                    if last.startswith(start):
                        entries.append(Entry(last[len(self._folder) :], item["size"]))
                if stem and not self._unordered and last > start and not last.startswith(start):
                    break
        entries.sort(key=lambda entry: entry.path)
        return entries

    def copy(self, source: str, target: str) -> int:
        return self.copy_from(self, source, target)

    @_without_panics
    def copy_from(self, other: ObjectStore, source: str, target: str) -> int:
        """Lets the service copy, from a root that `shares_bucket` with this one. Returns the bytes that went through this process."""
        from_, to = other._key(source), self._key(target)
        try:
            obstore.copy(self._store, from_, to)
            if self._family == _AZURE:
                self._await_copy(from_, to)
            return 0
        except FileNotFoundError as error:
            raise other._missing(source, error) from None
        except BaseError as error:
            size = self._size(from_)
            if size <= _COPIED_WHOLE:
                raise self._failed("copy to", target, error) from None
            if self._copied_by_parts(from_, to, size):
                return 0
            self._stream(from_, to, target)
            return size

    def shares_bucket(self, other: ObjectStore) -> bool:
        """Whether both roots are in one bucket, with the same options: one client then reaches both."""
        same = self._family == other._family and self._bucket == other._bucket
        return same and self._store.config == other._store.config

    @_without_panics
    def read_range(self, path: str, start: int, length: int) -> bytes:
        key = self._key(path)
        try:
            if length > 0:
                return obstore.get_range(self._store, key, start=start, length=length).to_bytes()
            obstore.head(self._store, key)
            return b""
        except FileNotFoundError as error:
            raise self._missing(path, error) from None
        except BaseError as error:
            # The service refuses a range that begins beyond the end, but not one that only ends there.
            if start >= self._size(key):
                return b""
            raise self._failed("read", path, error) from None

    @_without_panics
    def delete(self, paths: Iterable[str]) -> None:
        keys = [self._key(path) for path in paths]
        for start in range(0, len(keys), _PAGE):
            some = keys[start : start + _PAGE]
            with self._errors("delete", some[0]):
                try:
                    obstore.delete(self._store, some)
                    continue
                except FileNotFoundError:
                    pass
            # S3 and Azure ignore a missing key. Google stops at it and leaves the rest.
            for key in some:
                with self._errors("delete", key), suppress(FileNotFoundError):
                    obstore.delete(self._store, key)

    def _size(self, key: str) -> int:
        with self._errors("read", key), suppress(FileNotFoundError):
            return obstore.head(self._store, key)["size"]
        return 0

    def _await_copy(self, source: str, target: str) -> None:
        """Waits for a copy. Azure may answer before it is done, and until then the target is empty."""
        size, progress, quiet = self._size(source), "", 0
        for turn in itertools.count():
            if self._is_whole(target, size):
                return
            state = self._copy_state(target) if turn >= _QUICK_LOOKS else None
            if state is not None and state.failure:
                raise UnavailableError(f"{self._url} gave up copying {target} ({state.failure}): run again")
            if state is not None and state.progress != progress:
                progress, quiet = state.progress, 0
            quiet += 1
            if quiet > _COPY_LOOKS:
                raise UnavailableError(f"{self._url} has not finished copying {target}: run again")
            self._pause(0.05 * 2 ** min(turn, 5))

    def _is_whole(self, key: str, size: int) -> bool:
        """Whether the last byte is there. A block blob has all its bytes at once, and its length may be told before."""
        if not size:
            return True
        try:
            obstore.get_range(self._store, key, start=size - 1, length=1)
        except (FileNotFoundError, BaseError):
            self._size(key)  # raises when the service is out of reach
            return False
        return True

    def _copy_state(self, key: str) -> CopyState | None:
        try:
            # For HEAD the client would sign no right to read.
            url = obstore.sign(self._store, "GET", key, _SIGNED_FOR)
        except BaseError:
            return None  # a shared-access token signs nothing
        return copy_state(url)

    def _copied_by_parts(self, source: str, target: str, size: int) -> bool:
        """Whether the service has copied a large object part by part."""
        if self._keys is None:
            return False
        try:
            copy_by_parts(self._keys, self._bucket, source, target, size)
        except PartsRefused as error:
            _log.warning(
                "%s does not copy %s by parts (%s), so it goes through this machine", self._url, target, error
            )
            return False
        return True

    def _stream(self, source: str, target: str, path: str) -> None:
        """Copies through this process, in parts."""

        async def stream() -> None:
            chunks = (await obstore.get_async(self._store, source)).stream(min_chunk_size=_PART)
            await obstore.put_async(
                self._uploads, target, chunks, chunk_size=_PART, max_concurrency=_PARTS_AT_ONCE
            )

        # A new thread has no event loop yet, so `asyncio.run` can start one.
        with self._errors("copy to", path), ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: asyncio.run(stream())).result()

    def _key(self, path: str) -> str:
        self._check_process()
        return f"{self._folder}{checked_path(path)}"

    def _check_process(self) -> None:
        global _process
        if _process is None:
            _process = os.getpid()
        elif _process != os.getpid():
            raise UsageError(
                f"{self._url} cannot be used in this process: it was forked from one that had already "
                "used an object store; start it with the multiprocessing method 'spawn'"
            )

    @contextmanager
    def _errors(self, verb: str, path: str, *, missing: bool = False) -> Iterator[None]:
        """The client's errors as those of a store. `missing`: one for a missing object says that it is missing."""
        try:
            yield
        except FileNotFoundError as error:
            raise (self._missing(path, error) if missing else self._failed(verb, path, error)) from None
        except BaseError as error:
            raise self._failed(verb, path, error) from None

    def _missing(self, path: str, error: Exception) -> StateflowError:
        # A missing bucket must not look like a missing job.
        if re.search(r"NoSuchBucket|ContainerNotFound|bucket does not exist", str(error)):
            return UnavailableError(
                f"the bucket of {self._url} does not exist: create it, or correct the root"
            )
        return NotFoundError(f"{path} does not exist in {self._url}")

    def _failed(self, verb: str, path: str, error: Exception) -> StateflowError:
        if code := unknown_credentials(str(error)):
            return UsageError(
                f"{self._url} does not know these credentials ({code}), and no retry makes it know them: correct the keys in the "
                "storage options"
            )
        check = "check the storage options and the network"
        if "kind: Timeout" in str(error):
            check = "check the network, or if it is slow raise `read_timeout` (of an upload `timeout`) among the storage options"
        return UnavailableError(
            f"{self._url} refused to {verb} {path} or could not be reached ({self._said(error)}): {check}, then run again"
        )

    def _said(self, error: BaseException) -> str:
        return self._secrets.out_of(str(error))


def unknown_credentials(answer: str) -> str:
    """The service's code for keys that it does not know, or that do not sign as they should; empty for any other answer.

    A refusal of access is another matter: a role or a policy may be on its way.
    """
    found = _UNKNOWN_CREDENTIALS.search(answer)
    return found[0] if found else ""


def copier(source: Store, target: Store) -> Callable[[str, str], int] | None:
    """A function that copies from one root to another inside the service; None when they share no bucket."""
    if isinstance(source, ObjectStore) and isinstance(target, ObjectStore) and target.shares_bucket(source):
        return partial(target.copy_from, source)
    return None


_UNKNOWN_CREDENTIALS = re.compile(r"\b(?:InvalidAccessKeyId|SignatureDoesNotMatch)\b")
_process: int | None = None
"""The process whose threads run the client. A forked child inherits the client without its threads."""


class _Redacted:
    """Removes secrets from a client's errors: some quote the whole request with its signature."""

    __slots__ = ("_values",)

    def __init__(self, values: Iterable[str]) -> None:
        self._values = tuple(values)

    def __repr__(self) -> str:
        return "_Redacted(...)"

    def out_of(self, text: str) -> str:
        code = re.search(r"<Code>(\w+)</Code>", text)
        first = text.strip().split("\n", 1)[0].partition(": <")[0]
        for value in self._values:
            first = first.replace(value, "***")
        first = re.sub(r"(?<=[\w/])\?[^\s)\"']+", "", first)[:400].rstrip(" .:")
        return f"{first}: {code[1]}" if code else first


@dataclass(frozen=True, slots=True)
class _BucketRoot:
    url: str
    scheme: str
    bucket: str
    folder: str
    account: str


def _parsed(url: str) -> _BucketRoot:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise UsageError(
            f"{without_secrets(url)!r} is not a root: use a folder, file://, s3://, gs:// or az:// with a bucket"
        ) from None
    if parts.query or parts.fragment or ":" in parts.netloc:
        raise UsageError(
            f"the root {parts.scheme}://... has more than a bucket and a path: give credentials as options"
        )
    if parts.scheme not in SCHEMES or not parts.netloc:
        raise UsageError(
            f"{without_secrets(url)!r} is not a root: use a folder, file://, s3://, gs:// or az:// with a bucket"
        )
    bucket, _, host = parts.netloc.partition("@")
    if not _BUCKET.match(bucket) or not _HOST.match(host) or _IGNORED.search(url):
        # The client would panic, or ask for something else than people see.
        shown = (
            f"{parts.scheme}://..." if "@" in parts.netloc else repr(url)
        )  # what is before it may be a secret
        raise UsageError(
            f"{shown} is not a root: no bucket, container or account has such a name; use one such as "
            "s3://my-bucket/checkpoints, of small letters, digits, dots and hyphens"
        )
    if host and parts.scheme not in _AZURE:
        raise UsageError(f"the root {parts.scheme}://... names a user: give credentials as storage options")
    folder = parts.path.strip("/")
    if folder:
        checked_path(folder)
    return _BucketRoot(
        url.rstrip("/"), parts.scheme, bucket, f"{folder}/" if folder else "", host.partition(".")[0]
    )


def _client(
    root: _BucketRoot, options: Mapping[str, str], limits: Mapping[str, timedelta], patience: timedelta
) -> S3Store | GCSStore | AzureStore:
    """`limits`, of one request, and `patience`, with all its retries, unless the options set them."""
    config: dict[str, Any] = {k: v for k, v in options.items() if k not in _CLIENT}
    retries = int(config.pop("max_retries", _RETRIES))
    patience = timedelta(seconds=float(config.pop("retry_timeout", patience.total_seconds())))
    client: Any = {"connect_timeout": "5s", **limits, **{k: v for k, v in options.items() if k in _CLIENT}}
    retry: Any = {
        "max_retries": retries,
        "retry_timeout": patience,
        "backoff": {
            "init_backoff": timedelta(milliseconds=300),
            "max_backoff": timedelta(seconds=2),
            "base": 3,
        },
    }
    if root.scheme in _S3:
        return S3Store(root.bucket, config=config, client_options=client, retry_config=retry)  # type: ignore[arg-type]
    if root.scheme in _GCS:
        return GCSStore(root.bucket, config=config, client_options=client, retry_config=retry)  # type: ignore[arg-type]
    config = _of_account(root, config)
    return AzureStore(root.bucket, config=config, client_options=client, retry_config=retry)  # type: ignore[arg-type]


def _of_account(root: _BucketRoot, config: dict[str, Any]) -> dict[str, Any]:
    """The options with the account that the URL names. UsageError if they name another one, which the client would ask instead."""
    if not root.account:
        return config
    for name, value in config.items():
        host = _ACCOUNT_HOST.match(value) if name.lower().endswith("endpoint") else None
        account = value if name.lower() in _ACCOUNT else host[1] if host else ""
        if account and account.lower() != root.account.lower():
            raise UsageError(
                f"{root.url} is in the account {root.account!r}, and the storage option {name} names {account!r}: leave that option out, or correct "
                "the URL"
            )
    return {k: v for k, v in config.items() if k.lower() not in _ACCOUNT} | {"account_name": root.account}
