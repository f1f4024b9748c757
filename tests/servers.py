"""Servers of clouds on this machine, for tests: moto's S3 and Glue, and Azurite, on free loopback ports."""

from __future__ import annotations

import base64
import hashlib
import hmac
import io
import itertools
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any, Literal
from urllib.parse import quote

import pytest

from stateflow.config.options import cache_folder

AZURITE = cache_folder() / "azurite/node_modules/azurite/dist/src/blob/main.js"
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's published, well-known account; it opens nothing else."""
NEEDS_AZURITE = pytest.mark.system
AZURE = pytest.param("azure", marks=NEEDS_AZURITE)
NEEDS_HDFS = pytest.mark.system
HDFS = pytest.param("hdfs", marks=NEEDS_HDFS)
"""As tests' parameters."""

Answer = Literal["refuse", "lose", "conflict", "deny"]
"""refuse: 503, nothing is done. lose: it is done, and answered with 503. conflict: 409, nothing is done. deny: 403."""
Fault = Callable[[str, str], Answer | None]
"""What to do to a request, from its method and path; None lets it through."""

_Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
_names = itertools.count(1)


@dataclass
class ObjectServer:
    """A running server. `fault` may be set while it runs (S3 and Google only)."""

    endpoint: str
    options: dict[str, str]
    make: Callable[[str], str]
    fault: Fault | None = None
    heeds_conditions: bool = True
    """False for a store that takes If-None-Match and does not look at it (S3 only)."""
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Method and path with query of every request (S3 and Google only)."""
    scheme: str = "s3"

    def new_root(self, folder: str = "") -> str:
        """The URL of an empty bucket or container, with `folder` below it."""
        return self.make(f"test-{next(_names)}") + (f"/{folder}" if folder else "")


@contextmanager
def s3_server() -> Iterator[ObjectServer]:
    """moto's S3. Its If-None-Match looks first and stores after, so conditional puts take turns here."""
    with _moto(lambda application, running: _faulty(application, running)) as running:
        running.options = s3_options(running.endpoint)
        yield running


@contextmanager
def gcs_server() -> Iterator[ObjectServer]:
    """Google Cloud Storage's XML API, as far as it is asked: that of S3 with some headers and answers of Google's.

    No package index has an emulator of it: those there are speak the JSON API, which the client does not.
    """
    with _moto(lambda application, running: _google(application, _faulty(application, running))) as running:
        running.options = gcs_options(running.endpoint)
        running.scheme = "gs"
        yield running


@contextmanager
def glue_server() -> Iterator[ObjectServer]:
    """moto's Glue Data Catalog. It forgets to compare the version that a change of a table names, so this compares it."""
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.glue.models import glue_backends

    with _moto(lambda application, _: _versioned(application)) as running:
        yield running
    glue_backends[DEFAULT_ACCOUNT_ID]["us-east-1"].reset()


@contextmanager
def _moto(
    wrapped: Callable[[_Application, ObjectServer], _Application],
) -> Iterator[ObjectServer]:
    """Serves moto behind what `wrapped` makes of it."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, type: str, message: str, *args: Any) -> None:
            pass

    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    running = ObjectServer(endpoint, {}, lambda name: _bucket(running, name))
    application = wrapped(DomainDispatcherApplication(create_backend_app), running)
    server = make_server("127.0.0.1", port, application, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def gcs_options(endpoint: str) -> dict[str, str]:
    """Storage options for a server that takes every token. The client looks for no credentials of this machine."""
    key = {"private_key": "", "private_key_id": "", "client_email": "", "disable_oauth": True}
    return {
        "service_account_key": json.dumps({**key, "gcs_base_url": endpoint}),
        "allow_http": "true",
    }


def s3_options(endpoint: str) -> dict[str, str]:
    """Storage options for an S3 endpoint without TLS, addressed by path."""
    return {
        "endpoint": endpoint,
        "access_key_id": "test-access",
        "secret_access_key": "test-secret-value",
        "region": "us-east-1",
        "allow_http": "true",
        "virtual_hosted_style_request": "false",
    }


@contextmanager
def azure_server() -> Iterator[ObjectServer]:
    """Azurite's blob service, in memory."""
    if not AZURITE.exists():
        pytest.fail(f"Azurite is not installed at {AZURITE}: run `make azurite` first", pytrace=False)
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    process = subprocess.Popen(
        [
            *("node", str(AZURITE), "--blobHost", "127.0.0.1", "--blobPort", str(port)),
            *("--inMemoryPersistence", "--skipApiVersionCheck", "--silent", "--disableTelemetry"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        _wait_for(port, process)
        endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        yield ObjectServer(endpoint, azure_options(endpoint), lambda name: _container(endpoint, name))
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=20)


def azure_options(endpoint: str) -> dict[str, str]:
    """Storage options for Azurite."""
    return {
        "account_name": ACCOUNT,
        "account_key": ACCOUNT_KEY,
        "endpoint": endpoint,
        "allow_http": "true",
    }


_SAID = {"refuse": "503 Slow Down", "conflict": "409 Conflict", "deny": "403 AccessDenied"}


def _faulty(application: Any, running: ObjectServer) -> _Application:
    turn = threading.Lock()

    def served(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        query = environ.get("QUERY_STRING", "")
        running.requests.append((method, f"{path}?{query}" if query else path))
        answer = running.fault(method, path) if running.fault else None
        if not running.heeds_conditions:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if answer in _SAID:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            return _said(start, _SAID[answer])
        if "HTTP_IF_NONE_MATCH" in environ:
            with turn:
                done = list(application(environ, _unheard if answer == "lose" else start))
        else:
            done = application(environ, _unheard if answer == "lose" else start)
        return _said(start, "503 Slow Down") if answer == "lose" else done

    return served


def _unheard(*_: Any) -> Callable[[bytes], None]:
    return lambda _: None


def _said(start: Callable[..., Any], status: str) -> Iterable[bytes]:
    body = f"<Error><Code>{status.split(' ', 1)[1]}</Code></Error>".encode()
    start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


def _google(objects: _Application, application: _Application) -> _Application:
    """Translates Google's headers to those of S3. `objects` is asked whether an object is there."""

    def served(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        # By its credentials moto knows which service is meant.
        environ["HTTP_AUTHORIZATION"] = "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request"
        # The client writes the bucket "a-b" as "a%2Db", which moto takes for another one.
        plain = quote(environ["PATH_INFO"].encode("latin-1"))
        query = environ.get("QUERY_STRING", "")
        environ["RAW_URI"] = environ["REQUEST_URI"] = f"{plain}?{query}" if query else plain
        if source := environ.pop("HTTP_X_GOOG_COPY_SOURCE", ""):
            environ["HTTP_X_AMZ_COPY_SOURCE"] = source
        if environ.pop("HTTP_X_GOOG_IF_GENERATION_MATCH", "") == "0":
            environ["HTTP_IF_NONE_MATCH"] = "*"
        if environ["REQUEST_METHOD"] == "DELETE" and not query:
            told: list[str] = []
            looked = {**environ, "REQUEST_METHOD": "HEAD"}
            list(objects(looked, lambda status, *_: told.append(status)))
            if told[0].startswith("404"):  # S3 takes it for deleted
                return _said(start, "404 NoSuchKey")
        return application(environ, start)

    return served


def _versioned(application: Any) -> _Application:
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.glue.models import glue_backends

    turn = threading.Lock()

    def served(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ.get("HTTP_X_AMZ_TARGET") != "AWSGlue.UpdateTable":
            return application(environ, start)  # type: ignore[no-any-return]
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        environ["wsgi.input"] = io.BytesIO(body)
        asked = json.loads(body)
        with turn:
            tables = glue_backends[DEFAULT_ACCOUNT_ID]["us-east-1"]
            table = tables.get_table(asked["DatabaseName"], asked["TableInput"]["Name"])
            if str(table.as_dict()["VersionId"]) != asked["VersionId"]:
                said = json.dumps(
                    {"__type": "ConcurrentModificationException", "message": "changed"}
                ).encode()
                start(
                    "400 Bad Request",
                    [("Content-Type", "application/x-amz-json-1.1"), ("Content-Length", str(len(said)))],
                )
                return [said]
            return list(application(environ, start))

    return served


def _bucket(running: ObjectServer, name: str) -> str:
    request = urllib.request.Request(f"{running.endpoint}/{name}", method="PUT")
    with urllib.request.urlopen(request, timeout=20):
        return f"{running.scheme}://{name}"


def _container(endpoint: str, name: str) -> str:
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    resource = f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
    signed = "PUT" + "\n" * 12 + "".join(f"{k}:{v}\n" for k, v in sorted(headers.items())) + resource
    digest = hmac.new(base64.b64decode(ACCOUNT_KEY), signed.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    url = f"{endpoint}/{name}?restype=container"
    with urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers), timeout=20):
        return f"az://{name}"


def _wait_for(port: int, process: subprocess.Popen[bytes], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            said = process.stdout.read().decode() if process.stdout else ""
            raise RuntimeError(
                f"Azurite ended with code {process.returncode} before it served anything: {said}"
            )
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"Azurite did not listen on port {port} within {seconds:.0f} s")
