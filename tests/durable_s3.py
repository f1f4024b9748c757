"""A small S3 on loopback that outlives its own death, and that can lie: `python -m tests.durable_s3 FOLDER PORT LIES`.

Objects are files, so a server that was killed and started again has all that it had answered for. With `LIES`, a share of
the requests, it treats them as bad networks and bad stores do; each lie is written to `lies.log`.
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.servers import s3_options

ROOT = Path(__file__).absolute().parents[1]
BUCKET = "kept"
LIES = ("delayed", "refused", "lost", "dropped", "repeated", "late", "conflict", "stale")
"""delayed: answered up to half a second later. refused: 503, nothing is done. lost: done, and answered with 503. dropped:
done, and the connection is closed. repeated: done twice, as by a proxy; the second answer counts. late: 503, and done within
two seconds. conflict: a create is answered with 409, and nothing is stored. stale: a listing shows what there was up to a
second ago."""
STALE = 1.0


@dataclass
class DurableS3:
    """The server's process, which may be killed and started again on its port."""

    folder: Path
    port: int
    lies: float = 0.0
    process: subprocess.Popen[bytes] | None = None

    @classmethod
    def new(cls, folder: Path, lies: float = 0.0) -> DurableS3:
        (folder / "objects").mkdir(parents=True)
        with socket.socket() as reserved:
            reserved.bind(("127.0.0.1", 0))
            server = cls(folder, reserved.getsockname()[1], lies)
        server.start()
        return server

    @property
    def root(self) -> str:
        return f"s3://{BUCKET}/team"

    @property
    def options(self) -> dict[str, str]:
        return s3_options(f"http://127.0.0.1:{self.port}")

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.durable_s3", str(self.folder), str(self.port), str(self.lies)]
        with (self.folder / "server.err").open("ab") as err:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=err, stderr=err, start_new_session=True)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(0.05)
        raise RuntimeError(f"the server does not listen on port {self.port}: see {self.folder}/server.err")

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def told(self) -> Counter[str]:
        """How many lies of each kind."""
        log = self.folder / "lies.log"
        return Counter(log.read_text().split()) if log.exists() else Counter()


class Objects:
    """The bucket: a file per object, and since when there is one, for stale listings."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "objects"
        self._unfinished = folder
        self._lock = threading.Lock()
        self._past: list[tuple[float, str, int | None]] = []
        """What became of an object when: the size that it had before, or None when there was none."""

    def _path(self, key: str) -> Path:
        return self._folder / quote(key, safe="")

    def size(self, key: str) -> int | None:
        try:
            return self._path(key).stat().st_size
        except FileNotFoundError:
            return None

    def read(self, key: str, begin: int = 0, end: int | None = None) -> bytes | None:
        try:
            with self._path(key).open("rb") as file:
                file.seek(begin)
                return file.read() if end is None else file.read(end - begin)
        except FileNotFoundError:
            return None

    def put(self, key: str, body: bytes, *, create: bool) -> bool:
        """Whether it was stored: not if it is to be created and is there."""
        unfinished = self._unfinished / f"unfinished-{uuid.uuid4().hex}"
        unfinished.write_bytes(body)
        try:
            with self._lock:
                before = self.size(key)
                if not create:
                    unfinished.replace(self._path(key))
                elif before is not None:
                    return False
                else:
                    os.link(unfinished, self._path(key))
                self._past.append((time.monotonic(), key, before))
                return True
        finally:
            unfinished.unlink(missing_ok=True)

    def delete(self, key: str) -> None:
        with self._lock:
            if (size := self.size(key)) is not None:
                self._path(key).unlink()
                self._past.append((time.monotonic(), key, size))

    def list(self, ago: float = 0.0) -> dict[str, int]:
        """Sizes by key, as they were so many seconds ago."""
        with self._lock:
            now = time.monotonic()
            while self._past and self._past[0][0] < now - 10 * STALE:
                self._past.pop(0)
            found = {unquote(each.name): each.stat().st_size for each in os.scandir(self._folder)}
            for at, key, before in reversed(self._past):
                if at < now - ago:
                    break
                if before is None:
                    found.pop(key, None)
                else:
                    found[key] = before
            return found


@dataclass(frozen=True)
class Request:
    """One request: it may be done when its connection has gone on to the next one."""

    method: str
    path: str
    create: bool
    source: str
    range: str
    body: bytes

    def done(self, objects: Objects, ago: float = 0.0) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers of the answer."""
        parts = urlsplit(self.path)
        key = unquote(parts.path.removeprefix(f"/{BUCKET}").lstrip("/"))
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        if "list-type" in query:
            return 200, listing(objects.list(ago), query), {}
        if self.method == "POST" and "delete" in query:
            keys = [each.decode() for each in re.findall(rb"<Key>.*?</Key>", self.body, re.DOTALL)]
            for each in keys:
                objects.delete(unescaped(each[5:-6]))
            deleted = "".join(f"<Deleted>{each}</Deleted>" for each in keys)
            return 200, f"<DeleteResult>{deleted}</DeleteResult>".encode(), {}
        if self.method == "DELETE":
            objects.delete(key)
            return 204, b"", {}
        if self.method == "PUT" and "uploadId" not in query:
            return self._stored(objects, key)
        if self.method in ("GET", "HEAD"):
            return self._fetched(objects, key)
        return 501, b"", {}

    def _stored(self, objects: Objects, key: str) -> tuple[int, bytes, dict[str, str]]:
        if self.source:
            copied = objects.read(unquote(self.source).lstrip("/").removeprefix(f"{BUCKET}/"))
            if copied is None:
                return 404, error("NoSuchKey"), {}
            objects.put(key, copied, create=False)
            return 200, b"<CopyObjectResult><ETag>&quot;x&quot;</ETag></CopyObjectResult>", {}
        if not objects.put(key, self.body, create=self.create):
            return 412, error("PreconditionFailed"), {}
        return 200, b"", {"ETag": '"x"'}

    def _fetched(self, objects: Objects, key: str) -> tuple[int, bytes, dict[str, str]]:
        size = objects.size(key)
        headers = {"ETag": '"x"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        start, end = 0, None
        if size is not None and (asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.range)):
            start, end = int(asked[1]), int(asked[2]) + 1 if asked[2] else size
            if start >= size:
                return 416, error("InvalidRange"), {}
            end = min(end, size)
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        body = objects.read(key, start, end)
        if body is None:
            return 404, error("NoSuchKey"), {}
        return 200 if end is None else 206, body, headers


def handler(objects: Objects, lies: float, folder: Path) -> type[BaseHTTPRequestHandler]:
    chance = random.Random()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def handle_one_request(self) -> None:
            with suppress(ConnectionError):
                super().handle_one_request()

        def do(self) -> None:
            request = Request(
                self.command,
                self.path,
                self.headers.get("If-None-Match") == "*",
                self.headers.get("x-amz-copy-source", ""),
                self.headers.get("Range", ""),
                self.rfile.read(int(self.headers.get("Content-Length") or 0)),
            )
            lie = chance.choice(_possible(request)) if chance.random() < lies else ""
            if lie:
                with (folder / "lies.log").open("a") as log:
                    log.write(f"{lie}\n")
            if lie == "delayed":
                time.sleep(chance.uniform(0, 0.5))
            if lie == "refused":
                return self._say(503)
            if lie == "conflict":
                return self._say(409)
            if lie == "late":
                threading.Timer(chance.uniform(0, 2), lambda: request.done(objects)).start()
                return self._say(503)
            if lie == "repeated":
                request.done(objects)
            status, answer, headers = request.done(
                objects, chance.uniform(0, STALE) if lie == "stale" else 0.0
            )
            if lie == "lost":
                return self._say(503)
            if lie == "dropped":
                self.close_connection = True
                return None
            return self._say(status, answer, headers)

        do_GET = do_PUT = do_DELETE = do_POST = do_HEAD = do

        def _say(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    return Handler


def _possible(request: Request) -> list[str]:
    """The lies that fit a request; those that fit few requests come several times."""
    kinds = [kind for kind in LIES if kind not in ("conflict", "stale")]
    kinds += ["conflict"] * 3 if request.create else []
    return kinds + (["stale"] * 6 if "list-type" in request.path else [])


def listing(found: dict[str, int], query: dict[str, str]) -> bytes:
    """The answer to ListObjectsV2, in one page."""
    prefix, delimiter, after = (
        query.get("prefix", ""),
        query.get("delimiter", ""),
        query.get("start-after", ""),
    )
    lines, folders = [], set()
    for key in sorted(found):
        if not key.startswith(prefix) or key <= after:
            continue
        below = key[len(prefix) :]
        if delimiter and delimiter in below:
            folders.add(prefix + below.partition(delimiter)[0] + delimiter)
            continue
        lines.append(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;x&quot;</ETag><Size>{found[key]}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        )
    lines += [f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in sorted(folders)]
    return (
        f"<ListBucketResult><Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(lines)}</KeyCount>"
        f"<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>{''.join(lines)}</ListBucketResult>"
    ).encode()


def error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()


def unescaped(text: str) -> str:
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&amp;", "&")


def main(folder: Path, port: int, lies: float) -> None:
    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    Server(("127.0.0.1", port), handler(Objects(folder), lies, folder)).serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
