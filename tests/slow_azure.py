"""An Azure that copies behind its answer, as the service may: a proxy before Azurite, which copies at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from tests.servers import ObjectServer

_OF_A_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


@dataclass
class SlowAzure:
    """`looks`: how often a target is looked at before its copy is done; with `failure` it then fails."""

    options: dict[str, str]
    looks: int = 0
    failure: str = ""
    early_length: int = 0
    """What a target says of its length before it has its bytes."""
    body_bytes: int = 0
    """Bytes of blobs that came or went through the proxy."""
    pending: dict[str, int] = field(default_factory=dict)
    """Looks so far at each target."""


@contextmanager
def slow_azure(azure: ObjectServer) -> Iterator[SlowAzure]:
    there = urlsplit(azure.endpoint)
    running = SlowAzure({})

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do(self) -> None:
            blob = unquote(urlsplit(self.path).path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.command in ("GET", "HEAD") and blob in running.pending:
                running.pending[blob] += 1
                if running.failure or running.pending[blob] <= running.looks:
                    return self._say_pending(running.pending[blob])
            connection = HTTPConnection(there.hostname or "", there.port or 0)
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            back = answer.read()
            connection.close()
            if not urlsplit(self.path).query.startswith("restype"):
                running.body_bytes += len(body) + len(back)
            headers = {n: v for n, v in answer.getheaders() if n.lower() not in _OF_A_CONNECTION}
            if self.headers.get("x-ms-copy-source"):
                running.pending[blob] = 0
                headers["x-ms-copy-status"] = "pending"
            # The length that HEAD states is the blob's.
            self._say(answer.status, headers, back, answer.getheader("Content-Length") or "0")
            return None

        do_GET = do_PUT = do_HEAD = do_DELETE = do

        def _say_pending(self, look: int) -> None:
            failed = running.failure and look > running.looks
            headers = {
                "x-ms-copy-status": "failed" if failed else "pending",
                "x-ms-copy-progress": f"{look}/100",
                "x-ms-blob-type": "BlockBlob",
                "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
                "ETag": '"0x1"',
            }
            if failed:
                headers["x-ms-copy-status-description"] = running.failure
            ranged = self.headers.get("x-ms-range") or self.headers.get("Range")
            length = 0 if failed or ranged else running.early_length
            self._say(416 if ranged else 200, headers, b"", str(length))

        def _say(self, status: int, headers: dict[str, str], body: bytes, length: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)) if body else length)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    running.options = {
        **azure.options,
        "endpoint": f"http://127.0.0.1:{server.server_address[1]}{there.path}",
    }
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield running
    finally:
        server.shutdown()
        server.server_close()
        serving.join()
