"""An S3 server in a process of its own that takes its time: `python -m bench.slow_objects FOLDER PORT SECONDS RATE`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

from tests.durable_s3 import BUCKET, ROOT, Objects, handler
from tests.servers import s3_options

_PATIENCE = 60.0


class SlowObjects(Objects):
    """A distant bucket. `rate` is what the line to it carries in a second, of all requests together; 0 for no limit."""

    def __init__(self, folder: Path, delay: float, rate: float = 0.0) -> None:
        super().__init__(folder)
        self._delay = delay
        self._rate = rate
        self._line = threading.Lock()
        self._free_at = 0.0
        """When the line has carried all that was asked for."""

    def read(self, key: str, begin: int = 0, end: int | None = None) -> bytes | None:
        time.sleep(self._delay)
        body = super().read(key, begin, end)
        if self._rate and body:
            with self._line:
                now = time.monotonic()
                self._free_at = max(now, self._free_at) + len(body) / self._rate
                wait = self._free_at - now
            time.sleep(wait)
        return body

    def list(self, ago: float = 0.0) -> dict[str, int]:
        time.sleep(self._delay)
        return super().list(ago)


@contextmanager
def slow_objects(
    root: Path, folder: Path, delay: float, rate: float = 0.0
) -> Iterator[tuple[str, dict[str, str]]]:
    """Serves what lies in a local root until the block ends: `(root, storage options)`."""
    objects = folder / "objects"
    objects.mkdir(parents=True)
    for path in root.rglob("*"):
        if path.is_file():
            os.link(path, objects / quote(f"team/{path.relative_to(root)}", safe=""))
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    command = [sys.executable, "-m", "bench.slow_objects", str(folder), str(port), str(delay), str(rate)]
    with subprocess.Popen(command, cwd=ROOT) as server:
        try:
            _wait_for(port)
            yield f"s3://{BUCKET}/team", s3_options(f"http://127.0.0.1:{port}")
        finally:
            server.terminate()


def _wait_for(port: int) -> None:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"the server does not listen on port {port}")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main(folder: Path, port: int, delay: float, rate: float) -> None:
    _Server(("127.0.0.1", port), handler(SlowObjects(folder, delay, rate), 0.0, folder)).serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
