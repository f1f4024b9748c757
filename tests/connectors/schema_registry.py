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

from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from stateflow.connectors.kafka.protobuf import ProtobufFile


@dataclass
class Registry:
    url: str = ""
    schemas: dict[int, Mapping[str, Any] | bytes] = field(default_factory=dict)
    """Of Protobuf the descriptor of a file."""
    references: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    login: str = ""
    serialized: bool = True
    """Whether it gives descriptors, as newer registries do."""

    def under(
        self, subject: str, id: int, schema: Mapping[str, Any] | bytes, *references: tuple[str, str, int]
    ) -> None:
        """Keeps a schema as the newest of a subject. Each reference is a name, a subject and a version."""
        self.schemas[id] = schema
        self.references[id] = [{"name": n, "subject": s, "version": v} for n, s, v in references]
        self.subjects.setdefault(subject, []).append(id)

    def answer(self, id: int) -> dict[str, Any]:
        schema = self.schemas[id]
        found: dict[str, Any] = {"id": id, "references": self.references.get(id, [])}
        if not isinstance(schema, bytes):
            return {**found, "schema": json.dumps(schema)}
        text = base64.b64encode(schema).decode() if self.serialized else 'syntax = "proto3"; message Order {}'
        return {**found, "schema": text, "schemaType": "PROTOBUF"}

    def found(self, path: str) -> Any:
        """The answer to a path; None if there is nothing."""
        parts = path.partition("?")[0].strip("/").split("/")
        if parts[:2] == ["schemas", "ids"]:
            return self.answer(int(parts[2])) if int(parts[2]) in self.schemas else None
        if parts[0] == "subjects" and len(parts) == 4:
            ids = self.subjects.get(parts[1], [])
            at = len(ids) if parts[3] == "latest" else int(parts[3])
            return self.answer(ids[at - 1]) if 0 < at <= len(ids) else None
        return []


@contextmanager
def registry(login: str = "") -> Iterator[Registry]:
    served = Registry(login=login)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked.append(self.path)
            given = self.headers.get("Authorization", "")
            wanted = f"Basic {base64.b64encode(served.login.encode()).decode()}" if served.login else ""
            code, body = 200, served.found(self.path)
            if given != wanted:
                code, body = 401, {"error_code": 40101, "message": "Unauthorized"}
            elif body is None:
                code, body = 404, {"error_code": 40403}
            self.send_response(code)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def do_POST(self) -> None:
            """A field keeps its type in all versions of a subject."""
            served.asked.append(self.path)
            subject = self.path.partition("?")[0].split("/")[2]
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            schema = _parsed(body)
            known = [served.schemas[id] for id in served.subjects.get(subject, [])]
            types = {name: type for each in known for name, type in _fields(each)}
            lost = [name for name, type in _fields(schema) if types.get(name, type) != type]
            code, answer = 200, {}
            if lost:
                code, answer = 409, {"error_code": 409, "message": f"TYPE_MISMATCH of {lost[0]}"}
            else:
                id = next(
                    (id for id, each in served.schemas.items() if each == schema), len(served.schemas) + 1
                )
                served.schemas[id] = schema
                served.references[id] = body.get("references") or []
                ids = served.subjects.setdefault(subject, [])
                if id not in ids:
                    ids.append(id)
                answer = {"id": id, "subject": subject, "version": ids.index(id) + 1}
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


def _parsed(body: Any) -> Mapping[str, Any] | bytes:
    if body["schemaType"] == "PROTOBUF":
        return base64.b64decode(body["schema"])
    parsed: Mapping[str, Any] = json.loads(body["schema"])
    return parsed


def _fields(schema: Mapping[str, Any] | bytes) -> list[tuple[str, Any]]:
    """What readers know a field by, and its type."""
    if not isinstance(schema, bytes):
        return [(field["name"], field["type"]) for field in schema["fields"]]
    messages = FileDescriptorProto.FromString(schema).message_type
    return [(f"{each.name}.{field.number}", field.type) for each in messages for field in each.field]


def file(text: str, *imports: str, name: str = "shop.proto", package: str = "shop") -> bytes:
    """The descriptor of a file whose messages are written in Protobuf's text format."""
    made = FileDescriptorProto(name=name, package=package, syntax="proto3", dependency=imports)
    return bytes(text_format.Merge(text, made).SerializeToString())


def value(descriptor: bytes, message: str, *imports: bytes, **fields: Any) -> bytes:
    """A message as a writer with this descriptor makes it."""
    made = ProtobufFile(descriptor, imports)
    return bytes(made.made(made.message(message))(**fields).SerializeToString())


def framed_message(id: int, value: bytes, *path: int) -> bytes:
    """As a writer with a registry sends a message that stands there in its file."""
    where = b"\0" if path in ((), (0,)) else number(len(path)) + b"".join(map(number, path))
    return framed(id, where + value)


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
