"""A schema registry on loopback that speaks as much of Confluent's protocol as a reader asks for; and values of Avro."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@dataclass
class Registry:
    url: str = ""
    schemas: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    login: str = ""


@contextmanager
def registry(login: str = "") -> Iterator[Registry]:
    served = Registry(login=login)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked.append(self.path)
            given = self.headers.get("Authorization", "")
            wanted = f"Basic {base64.b64encode(served.login.encode()).decode()}" if served.login else ""
            id = self.path.removeprefix("/schemas/ids/")
            body: Any = []
            code = 200
            if given != wanted:
                code, body = 401, {"error_code": 40101, "message": "Unauthorized"}
            elif id.isdigit():
                found = served.schemas.get(int(id))
                code = 404 if found is None else 200
                body = {"error_code": 40403} if found is None else {"schema": json.dumps(found)}
            self.send_response(code)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def do_POST(self) -> None:
            """A field keeps its type in all versions of a subject."""
            served.asked.append(self.path)
            subject = self.path.split("/")[2]
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            schema = json.loads(body["schema"])
            known = [served.schemas[id] for id in served.subjects.get(subject, [])]
            types = {field["name"]: field["type"] for each in known for field in each["fields"]}
            lost = [f["name"] for f in schema["fields"] if types.get(f["name"], f["type"]) != f["type"]]
            code, answer = 200, {}
            if lost:
                code, answer = 409, {"error_code": 409, "message": f"TYPE_MISMATCH of {lost[0]}"}
            else:
                id = next(
                    (id for id, each in served.schemas.items() if each == schema), len(served.schemas) + 1
                )
                served.schemas[id] = schema
                served.subjects.setdefault(subject, []).append(id)
                answer = {"id": id}
            self.send_response(code)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *given: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    served.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()


def number(value: int) -> bytes:
    """A number as Avro writes it."""
    value, out = (value << 1) ^ (value >> 63), b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return number(len(raw)) + raw


def double(value: float) -> bytes:
    return struct.pack("<d", value)


def framed(id: int, value: bytes) -> bytes:
    """As a writer with a registry sends it."""
    return b"\0" + id.to_bytes(4, "big") + value
