"""A server on loopback that gives one answer to everything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@contextmanager
def answering(code: int, body: bytes, location: str = "") -> Iterator[tuple[str, list[str | None]]]:
    """Its address, and the logins that it has seen. `location`: where it sends people instead."""
    seen: list[str | None] = []

    class OneAnswer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            self.send_response(code)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        do_PUT = do_POST

        def log_message(self, format: str, *given: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), OneAnswer)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
