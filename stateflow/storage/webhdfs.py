"""WebHDFS, HDFS's own protocol over HTTP, which NameNodes, DataNodes and HttpFS gateways speak.

A client asks the NameNode. For a file's bytes the NameNode sends it on to a DataNode, with an address that holds what the
DataNode has to know. So credentials go to the NameNode or gateway only.
"""

from __future__ import annotations

import errno
import json
import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, BinaryIO
from urllib.parse import quote, urlencode, urlsplit

from stateflow.errors import UsageError
from stateflow.storage.store import PIECE

PREFIX = "/webhdfs/v1"
ROUNDS = 4
"""How often every NameNode is asked before the file system counts as out of reach."""
FIRST_PAUSE = 0.2
_IDLE = 8
_MOST_SAID = 400
_PASSING = ("StandbyException", "RetriableException", "SafeModeException", "ServerTooBusyException")
"""Refusals that another NameNode, or the same one a little later, may not repeat."""
_TOKEN = re.compile(r"(?i)((?:delegation|token|signature|hadoop\.auth)=)[^&\s\"']+")
_ERRORS = (OSError, HTTPException)


class HdfsAnswerError(Exception):
    """HDFS has answered, with an error: `kind` is the name of its exception."""

    def __init__(self, kind: str, said: str) -> None:
        super().__init__(f"{kind}: {said}" if said else kind)
        self.kind = kind


class UnheardError(Exception):
    """There was no answer, or none that says what happened."""


@dataclass(frozen=True, slots=True)
class HdfsEndpoint:
    """A NameNode or a gateway."""

    host: str
    port: int
    secure: bool

    def __str__(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class HdfsAccess:
    """The user of a client, and its patience."""

    user: str = ""
    token: str = field(default="", repr=False)
    kerberos: bool = False
    ca_file: str = ""
    connect_timeout: float = 5.0
    timeout: float = 60.0


class _Connection(HTTPConnection):
    """Sends the head of a request together with a body in memory. A body of a few hundred bytes then travels in the packet of
    its head: nobody can die between the two."""

    kept: list[bytes] | None = None

    def send(self, data: Any) -> None:
        if self.kept is not None and isinstance(data, bytes):
            self.kept.append(data)
        else:
            super().send(data)

    def connect(self) -> None:
        super().connect()
        self.sock.settimeout(self.answer_timeout)

    answer_timeout = 60.0


class _SecureConnection(_Connection, HTTPSConnection):
    pass


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class WebHdfs:
    """Asks one file system. Every question may be repeated: those that a NameNode answers itself change nothing, or delete."""

    def __init__(
        self,
        endpoints: Sequence[HdfsEndpoint],
        access: HdfsAccess,
        *,
        pause: Callable[[float], object] = time.sleep,
        negotiate: Callable[[str], str] | None = None,
    ) -> None:
        """`negotiate`: a Kerberos token for the service HTTP on a host, in Base64."""
        self._endpoints = tuple(endpoints)
        self._access = access
        self._pause = pause
        self._negotiate = negotiate or kerberos_token
        self._tls = (
            ssl.create_default_context(cafile=access.ca_file or None) if _secure(endpoints, access) else None
        )
        self._active = 0
        self._idle: dict[HdfsEndpoint, list[_Connection]] = {}
        self._cookies: dict[HdfsEndpoint, str] = {}
        self._process = os.getpid()
        self._lock = threading.Lock()

    def ask(self, method: str, path: str, op: str, **parameters: str) -> dict[str, Any]:
        """What the NameNode answers."""
        _, answer = self._at_namenode(method, path, op, parameters)
        try:
            found = json.loads(answer.body or b"{}")
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise UnheardError(f"the answer to {op} is no JSON object: is this address WebHDFS?")
        return found

    @contextmanager
    def open(self, path: str, **parameters: str) -> Iterator[HTTPResponse]:
        """The bytes of a file, as they come from a DataNode."""
        asked, answer = self._at_namenode("GET", path, "OPEN", parameters)
        with self._at_datanode("GET", asked, answer) as response:
            yield response

    def create(
        self, path: str, body: bytes | BinaryIO | Iterator[bytes], size: int, **parameters: str
    ) -> None:
        """Writes a file. UnheardError when nobody knows whether the file is there, or how much of it."""
        asked, answer = self._at_namenode("PUT", path, "CREATE", parameters)
        with self._at_datanode("PUT", asked, answer, body, size):
            pass

    def _at_namenode(
        self, method: str, path: str, op: str, parameters: Mapping[str, str]
    ) -> tuple[HdfsEndpoint, _Answer]:
        failure: Exception = UnheardError("no NameNode is named")
        for turn in range(ROUNDS):
            if turn:
                self._pause(FIRST_PAUSE * 2 ** (turn - 1))
            for _ in self._endpoints:
                endpoint = self._endpoints[self._active % len(self._endpoints)]
                try:
                    return endpoint, self._asked(endpoint, method, self._target(path, op, parameters))
                except UnheardError as error:
                    failure = error
                except HdfsAnswerError as error:
                    if error.kind not in _PASSING:
                        raise
                    failure = UnheardError(str(error))
                self._active = (self._active + 1) % len(self._endpoints)
        raise failure

    def _target(self, path: str, op: str, parameters: Mapping[str, str]) -> str:
        query = {"op": op, **parameters}
        if self._access.token:
            query["delegation"] = self._access.token
        elif self._access.user and not self._access.kerberos:
            query["user.name"] = self._access.user
        return f"{PREFIX}{quote(path)}?{urlencode(query)}"

    def _asked(self, endpoint: HdfsEndpoint, method: str, target: str) -> _Answer:
        answer = self._exchange(endpoint, method, target, self._credentials(endpoint))
        if answer.status == 401 and self._access.kerberos:
            headers = {"Authorization": f"Negotiate {self._negotiate(endpoint.host)}"}
            answer = self._exchange(endpoint, method, target, headers)
            if cookie := answer.headers.get("set-cookie", "").partition(";")[0]:
                self._cookies[endpoint] = cookie
        if answer.status >= 400:
            raise self._error(answer)
        return answer

    def _credentials(self, endpoint: HdfsEndpoint) -> dict[str, str]:
        """The cookie that stands for an earlier negotiation: it saves one for each question."""
        cookie = self._cookies.get(endpoint)
        return {"Cookie": cookie} if cookie else {}

    def _exchange(
        self, endpoint: HdfsEndpoint, method: str, target: str, headers: Mapping[str, str]
    ) -> _Answer:
        for connection, used in self._connections(endpoint):
            try:
                connection.request(method, target, headers=headers)
                response = connection.getresponse()
                answer = _Answer(
                    response.status,
                    {name.lower(): value for name, value in response.getheaders()},
                    response.read(),
                )
            except _ERRORS as error:
                connection.close()
                if used:
                    continue  # the server has closed a connection that waited here
                raise UnheardError(f"{endpoint} {self._said(error)}") from None
            if response.will_close:
                connection.close()
            else:
                self._keep(endpoint, connection)
            return answer
        raise AssertionError("the last connection is a new one")

    def _connections(self, endpoint: HdfsEndpoint) -> Iterator[tuple[_Connection, bool]]:
        """First a kept connection, if there is one, then a new one; each with whether it was used before."""
        with self._lock:
            if self._process != os.getpid():
                # A forked child shares the connections of its parent, and would read its answers.
                self._process, self._idle = os.getpid(), {}
            kept = self._idle.get(endpoint)
            connection = kept.pop() if kept else None
        if connection is not None:
            yield connection, True
        yield self._connection(endpoint.host, endpoint.port, endpoint.secure), False

    def _keep(self, endpoint: HdfsEndpoint, connection: _Connection) -> None:
        with self._lock:
            kept = self._idle.setdefault(endpoint, [])
            if len(kept) < _IDLE:
                kept.append(connection)
                return
        connection.close()

    def _connection(self, host: str, port: int, secure: bool) -> _Connection:
        made: _Connection
        if secure:
            tls = self._tls or ssl.create_default_context()
            made = _SecureConnection(host, port, timeout=self._access.connect_timeout, context=tls)
        else:
            made = _Connection(host, port, timeout=self._access.connect_timeout, blocksize=PIECE)
        made.answer_timeout = self._access.timeout
        return made

    @contextmanager
    def _at_datanode(
        self,
        method: str,
        asked: HdfsEndpoint,
        answer: _Answer,
        body: bytes | BinaryIO | Iterator[bytes] | None = None,
        size: int = 0,
    ) -> Iterator[HTTPResponse]:
        host, port, secure, target = self._redirect(asked, answer)
        headers = (
            self._credentials(asked) if (host, port, secure) == (asked.host, asked.port, asked.secure) else {}
        )
        if method == "PUT":
            # A gateway takes no other type.
            headers |= {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        connection = self._connection(host, port, secure)
        try:
            try:
                response = self._sent(connection, method, target, body, headers)
                refused = response.read() if response.status >= 400 or method == "PUT" else b""
            except _ERRORS as error:
                raise UnheardError(f"the DataNode {host}:{port} {self._said(error)}") from None
            if response.status >= 400:
                raise self._error(_Answer(response.status, {}, refused))
            if response.status not in (200, 201):
                raise UnheardError(f"the DataNode {host}:{port} answered {response.status}")
            yield response
        finally:
            connection.close()

    def _sent(
        self,
        connection: _Connection,
        method: str,
        target: str,
        body: bytes | BinaryIO | Iterator[bytes] | None,
        headers: Mapping[str, str],
    ) -> HTTPResponse:
        broken: Exception | None = None
        try:
            if isinstance(body, bytes):
                connection.kept = []
                connection.request(method, target, body, headers)
                whole, connection.kept = b"".join(connection.kept), None
                connection.send(whole)
            else:
                connection.request(method, target, body, headers)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.ECONNRESET):
                raise
            broken = error  # a DataNode that refuses says so without reading the body
        try:
            return connection.getresponse()
        except _ERRORS:
            if broken is not None:
                raise broken from None
            raise

    def _redirect(self, asked: HdfsEndpoint, answer: _Answer) -> tuple[str, int, bool, str]:
        """Where the NameNode sends the client. Only a file's content has such an answer, and only one of them."""
        location = answer.headers.get("location", "")
        try:
            parts = urlsplit(location)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if answer.status not in (301, 302, 303, 307, 308) or not parts.hostname:
            raise UnheardError(
                f"{asked} answered {answer.status} and named no DataNode: is this address WebHDFS?"
            )
        if (
            parts.scheme not in ("http", "https")
            or not parts.path.startswith(f"{PREFIX}/")
            or "@" in parts.netloc
        ):
            raise UnheardError(f"{asked} names a DataNode that is none: {parts.scheme}://{parts.hostname}")
        if asked.secure and parts.scheme != "https":
            raise UnheardError(
                f"{asked} names the DataNode {parts.hostname} without TLS: set dfs.http.policy to HTTPS_ONLY"
            )
        secure = parts.scheme == "https"
        return parts.hostname, port or (443 if secure else 80), secure, f"{parts.path}?{parts.query}"

    def _error(self, answer: _Answer) -> HdfsAnswerError | UnheardError:
        with suppress(ValueError, TypeError, KeyError):
            exception = json.loads(answer.body)["RemoteException"]
            return HdfsAnswerError(
                str(exception["exception"]), self._clean(str(exception.get("message", "")))
            )
        if answer.status in (401, 403):
            return HdfsAnswerError(
                str(answer.status), "the user, the delegation token or the Kerberos ticket is not accepted"
            )
        return UnheardError(f"it answered {answer.status}")

    def _said(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return "did not answer in time"
        return f"did not answer ({self._clean(str(error) or type(error).__name__)})"

    def _clean(self, text: str) -> str:
        first = text.strip().split("\n", 1)[0]
        if self._access.token:
            first = first.replace(self._access.token, "***").replace(quote(self._access.token), "***")
        return _TOKEN.sub(r"\1***", first)[:_MOST_SAID].rstrip(" .:")


def kerberos_token(host: str) -> str:
    """From the ticket that `kinit` or a keytab has brought."""
    import base64

    try:
        import spnego
    except ImportError:
        raise UsageError(
            "hdfs_kerberos needs the package pyspnego with its extra `kerberos`: pip install 'stateflow-spark[kerberos]'"
        ) from None
    try:
        token = spnego.client(hostname=host, service="HTTP", protocol="kerberos").step()
    except Exception as error:  # whatever the Kerberos library raises
        raise UsageError(
            f"Kerberos gave no ticket for HTTP/{host} ({str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}): "
            "run kinit, or set KRB5_CLIENT_KTNAME"
        ) from None
    return base64.b64encode(token or b"").decode()


def _secure(endpoints: Sequence[HdfsEndpoint], access: HdfsAccess) -> bool:
    return bool(access.ca_file) or any(endpoint.secure for endpoint in endpoints)
