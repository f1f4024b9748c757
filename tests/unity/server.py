"""A Unity Catalog server on loopback, which speaks what Delta's own client asks: tables, and commits that go through the catalog."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.unity.catalog import RefusedError, Table, UnityCatalog

TOKEN = "unity-token-of-the-tests"
_ROOT = "/api/2.1/unity-catalog/"


@dataclass
class UnityServer:
    """The server. One request at a time changes what it knows."""

    catalog: UnityCatalog
    lost: list[int] = field(default_factory=list)
    """Versions whose commit is taken, and whose answer then gets lost."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _http: ThreadingHTTPServer = field(init=False)

    def __post_init__(self) -> None:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                request = json.loads(body) if body else {}
                if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    self.send(
                        401, {"error": {"code": 401, "type": "NotAuthorizedException", "message": "no token"}}
                    )
                    return
                try:
                    with server._lock:
                        answer = server.answered(self.command, self.path, request)
                except RefusedError as error:
                    self.send(error.code, error.body)
                    return
                if server.loses(request):
                    self.close_connection = True
                    return
                self.send(200 if answer is not None else 204, answer)

            do_GET = do_POST = do_DELETE = do_HEAD = do_PATCH = answer

            def send(self, code: int, answer: Any) -> None:
                body = b"" if answer is None else json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:
                """Nobody reads it."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def settings(self) -> dict[str, str]:
        """Those by which Spark finds the catalog."""
        key = f"spark.sql.catalog.{self.catalog.name}"
        return {key: "io.unitycatalog.spark.UCSingleCatalog", f"{key}.uri": self.uri, f"{key}.token": TOKEN}

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def loses(self, request: Any) -> bool:
        for update in request.get("updates", ()) if isinstance(request, dict) else ():
            if update["action"] == "add-commit" and int(update["commit"]["version"]) in self.lost:
                self.lost.remove(int(update["commit"]["version"]))
                return True
        return False

    def answered(self, method: str, path: str, request: Any) -> Any:
        """The answer to one request; None for one without a body."""
        url, catalog = urlsplit(path), self.catalog
        parts = [unquote(part) for part in url.path.removeprefix(_ROOT).strip("/").split("/")]
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        match (method, *parts):
            case ("GET", "metastore_summary"):
                return {"metastore_id": "00000000-0000-0000-0000-000000000001", "name": "tests"}
            case ("POST", "delta", "v1", "catalogs", _, "schemas", schema, "staging-tables"):
                return catalog.stage(schema)
            case ("POST", "delta", "v1", "catalogs", _, "schemas", schema, "tables"):
                return catalog.create(schema, request)
            case (verb, "delta", "v1", "catalogs", _, "schemas", schema, "tables", name, *more):
                table = catalog.table(schema, name)
                return self._of_table(verb, table, more, request)
            case ("GET", "delta", "v1", "staging-tables", _, "credentials"):
                return {"storage-credentials": []}
            case ("POST", "temporary-table-credentials" | "temporary-path-credentials"):
                return {"expiration_time": 0}
            case ("GET", "schemas"):
                return {"schemas": [catalog.described_schema(name) for name in catalog.schemas]}
            case ("POST", "schemas"):
                catalog.schemas.setdefault(request["name"], {})
                return catalog.described_schema(request["name"])
            case ("GET", "schemas", name):
                return catalog.described_schema(name.split(".")[-1])
            case ("GET", "tables"):
                schema = query["schema_name"]
                return {
                    "tables": [catalog.described(schema, each) for each in catalog.in_schema(schema).values()]
                }
            case ("POST", "tables"):
                return catalog.described(request["schema_name"], catalog.create_external(request))
            case ("GET", "tables", name):
                _, schema, own = name.split(".")
                return catalog.described(schema, catalog.table(schema, own))
            case ("DELETE", "tables", name):
                _, schema, own = name.split(".")
                catalog.table(schema, own)
                del catalog.schemas[schema][own]
                return {}
        raise RefusedError(404, "NotFoundException", f"the tests' server does not know {method} {path}")

    def _of_table(self, method: str, table: Table, more: list[str], request: Any) -> Any:
        match (method, more):
            case ("GET", []):
                return table.loaded()
            case ("POST", []):
                return table.update(request)
            case ("GET", ["credentials"]):
                return {"storage-credentials": []}
            case ("POST", ["metrics"]):
                return None
        raise RefusedError(404, "NotFoundException", f"the tests' server does not know {method} {more}")


@contextmanager
def unity_server(folder: Path, name: str = "main") -> Iterator[UnityServer]:
    """A server with one empty schema, `shop`."""
    server = UnityServer(UnityCatalog(name, folder / "warehouse"))
    server.catalog.schemas["shop"] = {}
    try:
        yield server
    finally:
        server.close()
