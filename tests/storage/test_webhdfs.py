"""What goes over the wire to NameNodes and DataNodes, and what does not."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from stateflow.errors import CorruptError, UnavailableError, UsageError
from stateflow.storage.hdfs import HdfsStore
from stateflow.storage.hdfs_roots import hdfs_root
from stateflow.storage.objects import ObjectStore
from stateflow.storage.roots import open_recorded, open_store
from stateflow.storage.webhdfs import (
    HdfsAccess,
    HdfsAnswerError,
    HdfsEndpoint,
    UnheardError,
    WebHdfs,
    _Answer,
)
from tests.refusals.refusal import refused
from tests.spark.standalone import free_port

STATUS = {"FileStatus": {"pathSuffix": "", "type": "FILE", "length": 3, "fileId": 9, "permission": "644"}}
Handler = Callable[["Seen"], tuple[int, dict[str, str], bytes]]


@dataclass
class Seen:
    """A request."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes = b""


@dataclass
class Server:
    port: int
    seen: list[Seen] = field(default_factory=list)

    @property
    def endpoint(self) -> HdfsEndpoint:
        return HdfsEndpoint("127.0.0.1", self.port, False)


@contextmanager
def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    class Speaking(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Seen(
                self.command, self.path, {name.lower(): value for name, value in self.headers.items()}, body
            )
            running.seen.append(request)
            status, headers, content = handler(request)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_DELETE = answer

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Speaking)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    running = Server(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def refusing(kind: str, said: str, status: int = 403) -> Handler:
    body = json.dumps({"RemoteException": {"exception": kind, "message": said}}).encode()
    return lambda _: (status, {}, body)


def knowing(_: Seen) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, json.dumps(STATUS).encode()


def sending_to(port: int) -> Handler:
    return lambda seen: (
        307,
        {"Location": f"http://127.0.0.1:{port}/webhdfs/v1/there?op=X&secret-of=namenode"},
        b"",
    )


def client(*servers: Server, **access: Any) -> WebHdfs:
    return WebHdfs(
        [server.endpoint for server in servers],
        HdfsAccess(**access),
        pause=lambda _: None,
        negotiate=lambda host: f"ticket-for-{host}",
    )


def test_a_datanode_gets_the_namenodes_address_and_no_credentials() -> None:
    with serving(lambda _: (201, {}, b"")) as datanode:

        def kerberos(seen: Seen) -> tuple[int, dict[str, str], bytes]:
            if seen.headers.get("cookie") == "hadoop.auth=abc":
                return sending_to(datanode.port)(seen)
            if seen.headers.get("authorization") != "Negotiate ticket-for-127.0.0.1":
                return 401, {"WWW-Authenticate": "Negotiate"}, b""
            status, headers, body = sending_to(datanode.port)(seen)
            return status, {**headers, "Set-Cookie": "hadoop.auth=abc; Path=/; HttpOnly"}, body

        with serving(kerberos) as namenode:
            web = client(namenode, kerberos=True, user="me")
            for _ in range(2):
                web.create("/a", b"body", 4, overwrite="false")
    # One negotiation, and then the cookie.
    assert ["authorization" in seen.headers for seen in namenode.seen] == [False, True, False]
    assert not [seen for seen in namenode.seen if "user.name" in seen.target]
    for seen in datanode.seen:
        assert seen.target == "/webhdfs/v1/there?op=X&secret-of=namenode"
        assert seen.body == b"body"
        assert not {"authorization", "cookie"} & seen.headers.keys()
    assert len(datanode.seen) == 2


def test_a_gateway_that_sends_to_itself_is_shown_the_cookie_again() -> None:
    def gateway(seen: Seen) -> tuple[int, dict[str, str], bytes]:
        if "data=true" in seen.target:
            known = seen.headers.get("cookie") == "hadoop.auth=abc"
            typed = seen.headers.get("content-type") == "application/octet-stream"
            return (201 if known and typed else 401), {}, b""
        to = f"http://127.0.0.1:{gateways.port}/webhdfs/v1/a?op=CREATE&data=true"
        return (
            (307, {"Location": to, "Set-Cookie": "hadoop.auth=abc"}, b"")
            if "authorization" in seen.headers
            else (401, {}, b"")
        )

    with serving(gateway) as gateways:
        client(gateways, kerberos=True).create("/a", b"body", 4)


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("http://datanode:9864/webhdfs/v1/a?op=OPEN", "without TLS"),
        ("https://datanode:9865/elsewhere?op=OPEN", "that is none"),
        ("file:///etc/passwd", "named no DataNode"),
        ("ftp://datanode/webhdfs/v1/a", "that is none"),
        ("https://me:secret@datanode/webhdfs/v1/a", "that is none"),
        ("https://[::/webhdfs/v1/a", "named no DataNode"),
        ("", "named no DataNode"),
    ],
)
def test_where_no_namenode_would_send_a_client_it_does_not_go(location: str, said: str) -> None:
    secure = HdfsEndpoint("namenode", 9871, True)
    web = WebHdfs([secure], HdfsAccess())
    with pytest.raises(UnheardError, match=said) as error:
        web._redirect(secure, _Answer(307, {"location": location}, b""))
    assert "secret" not in str(error.value)


def test_a_second_redirect_is_not_followed() -> None:
    with (
        serving(lambda _: (200, {}, b"stolen")) as third,
        serving(sending_to(third.port)) as second,
        serving(sending_to(second.port)) as namenode,
        refused(UnheardError, "answered 307"),
        client(namenode).open("/a"),
    ):
        pass
    assert third.seen == []


def test_the_namenode_that_is_active_answers() -> None:
    refuses = refusing("StandbyException", "READ is not supported in state standby")
    with serving(refuses) as standby, serving(knowing) as active:
        dead = Server(free_port())
        web = client(dead, standby, active)
        for _ in range(3):
            assert web.ask("GET", "/a", "GETFILESTATUS") == STATUS
    assert (len(standby.seen), len(active.seen)) == (1, 3)


def test_a_namenode_in_safe_mode_is_asked_again_and_then_named() -> None:
    with (
        serving(refusing("SafeModeException", "Cannot create file")) as namenode,
        refused(UnheardError, "SafeModeException", "Cannot create file"),
    ):
        client(namenode).ask("GET", "/a", "GETFILESTATUS")
    assert len(namenode.seen) == 4


def test_the_token_is_in_no_error() -> None:
    def quoting(seen: Seen) -> tuple[int, dict[str, str], bytes]:
        return refusing(
            "InvalidToken", f"token (delegation=HUSH-token) can't be found, asked {seen.target}\n at X"
        )(seen)

    with serving(quoting) as namenode:
        store = HdfsStore(
            "hdfs://namenode/root",
            {
                "hdfs_endpoint": str(namenode.endpoint),
                "hdfs_nameservice": "namenode",
                "hdfs_delegation_token": "HUSH-token",
                "hdfs_user": "me",
            },
        )
        with refused(UnavailableError, "InvalidToken") as error:
            store.read("job/job")
    assert "HUSH" not in str(error.value)
    assert "HUSH" not in repr(store) + repr(store._web) + repr(
        hdfs_root("hdfs://n/", {"hdfs_delegation_token": "HUSH"})
    )
    assert "delegation=HUSH-token" in namenode.seen[0].target
    assert "user.name" not in namenode.seen[0].target


def test_a_small_body_travels_in_the_packet_of_its_head() -> None:
    """Whoever dies then has sent both, or neither."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        first: list[bytes] = []

        def datanode() -> None:
            connection, _ = listening.accept()
            with connection:
                first.append(connection.recv(1 << 16))
                connection.sendall(
                    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"
                )

        thread = threading.Thread(target=datanode)
        thread.start()
        with serving(sending_to(listening.getsockname()[1])) as namenode:
            client(namenode).create("/a", b"x" * 300, 300)
        thread.join(10)
    assert first[0].endswith(b"x" * 300)


def test_a_datanode_that_refuses_before_it_has_the_body_is_heard() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        done = threading.Event()

        def datanode() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1 << 12)
                body = b'{"RemoteException": {"exception": "FileAlreadyExistsException", "message": "it is there"}}'
                connection.sendall(
                    b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
                )
                connection.shutdown(socket.SHUT_WR)
                done.wait(5)

        thread = threading.Thread(target=datanode)
        thread.start()
        with (
            serving(sending_to(listening.getsockname()[1])) as namenode,
            pytest.raises(HdfsAnswerError, match="it is there"),
        ):
            client(namenode).create("/a", b"x" * 30_000, 30_000)
        done.set()
        thread.join(10)


def test_a_connection_that_the_namenode_has_closed_is_replaced() -> None:
    with serving(knowing) as namenode:
        web = client(namenode)
        web.ask("GET", "/a", "GETFILESTATUS")
        for kept in web._idle[namenode.endpoint]:
            kept.sock.shutdown(socket.SHUT_RDWR)
        assert web.ask("GET", "/a", "GETFILESTATUS") == STATUS


def certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate for this machine that nobody else has signed, and what a server shows it with."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    began = datetime(2020, 1, 1)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(began)
        .not_valid_after(datetime(2099, 1, 1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    public, both = folder / "ca.pem", folder / "server.pem"
    public.write_bytes(signed.public_bytes(Encoding.PEM))
    both.write_bytes(
        public.read_bytes() + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(both)
    return public, context


def test_a_server_without_a_good_certificate_is_not_spoken_to(tmp_path: Path) -> None:
    ca_file, tls = certificate(tmp_path)
    with serving(knowing, tls) as namenode:
        url = f"swebhdfs://127.0.0.1:{namenode.port}/root"
        with refused(UnavailableError, "CERTIFICATE_VERIFY_FAILED"):
            HdfsStore(url, pause=lambda _: None).read("job/job")
        assert namenode.seen == []
        assert HdfsStore(url, {"hdfs_ca_file": str(ca_file)}).read_range("job/job", 0, 0) == b""
        assert len(namenode.seen) == 1


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b'{"FileStatus": {}}', b'{"FileStatus": 7}', b""])
def test_an_answer_that_is_not_webhdfs_is_an_error_of_the_store(body: bytes) -> None:
    with serving(lambda _: (200, {}, body)) as server:
        store = HdfsStore(
            f"webhdfs://127.0.0.1:{server.port}/root",
            {"hdfs_endpoint": str(server.endpoint)},
            pause=lambda _: None,
        )
        with pytest.raises(UnavailableError):
            store.read("job/job")


BOTH = {"hdfs_endpoint": "http://nn1:9870,https://nn2:9871"}


@pytest.mark.parametrize(
    ("url", "options", "asked"),
    [
        ("hdfs://nn:8020/a", {}, ["http://nn:9870"]),
        ("webhdfs://nn/a", {}, ["http://nn:9870"]),
        ("webhdfs://nn:14000/a", {}, ["http://nn:14000"]),
        ("swebhdfs://nn/a", {}, ["https://nn:9871"]),
        (
            "hdfs://prod/a",
            {"hdfs_endpoint": "https://nn1:9871, https://nn2:9871", "hdfs_nameservice": "Prod"},
            ["https://nn1:9871", "https://nn2:9871"],
        ),
        ("hdfs://nn1:8020/a", BOTH, ["http://nn1:9870", "https://nn2:9871"]),
        ("webhdfs://nn1/a", BOTH, ["http://nn1:9870", "https://nn2:9871"]),
        # The options are those of another HDFS, and the URL says itself whom to ask.
        ("webhdfs://dr:9870/a", BOTH, ["http://dr:9870"]),
        ("webhdfs://nn1:14000/a", BOTH, ["http://nn1:14000"]),
        ("swebhdfs://nn1/a", BOTH, ["https://nn1:9871"]),
    ],
)
def test_a_root_names_whom_to_ask(url: str, options: dict[str, str], asked: list[str]) -> None:
    root = hdfs_root(url, options, env={"HADOOP_USER_NAME": "ada"})
    assert [str(endpoint) for endpoint in root.endpoints] == asked
    assert (root.folder, root.access.user) == ("/a/", "ada")
    assert open_store(url, options).url == url


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("hdfs:///a", {}, "is not a root"),
        ("hdfs://me@nn/a", {}, "more than a host and a path"),
        ("hdfs://nn/a?user.name=me", {}, "more than a host and a path"),
        ("hdfs://nn/../a", {}, "not a path inside"),
        ("hdfs://n n/a", {}, "is not a root"),
        ("hdfs://nn:x/a", {}, "is not a root"),
        ("hdfs://nn/a", {"hdfs_endpiont": "x"}, "hdfs_endpiont is no storage option"),
        ("hdfs://nn/a", {"hdfs_endpoint": "nn:9870"}, "no list of addresses"),
        ("hdfs://nn/a", {"hdfs_endpoint": "http://me:secret@nn"}, "no list of addresses"),
        ("swebhdfs://nn2/a", BOTH, "an address without TLS"),
        ("hdfs://prod/a", BOTH, "'prod'.* set hdfs_nameservice to prod"),
        ("hdfs://dr/a", {**BOTH, "hdfs_nameservice": "prod"}, "'dr'"),
        ("hdfs://nn/a", {"hdfs_kerberos": "yes"}, "neither true nor false"),
        ("hdfs://nn/a", {"hdfs_kerberos": "true", "hdfs_delegation_token": "secret"}, "exclude each other"),
        ("hdfs://nn/a", {"hdfs_timeout": "soon"}, "no number of seconds"),
        ("hdfs://nn/a", {"hdfs_ca_file": "/no/such/file"}, "cannot be read"),
    ],
)
def test_what_is_no_root_in_hdfs_is_refused(url: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said) as error:
        open_store(url, options)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("hdfs://theirs/x", "hdfs://ours/root"),
        ("webhdfs://theirs/x", "s3://bucket/root"),
        ("HDFS://theirs/x", "/data/root"),
    ],
)
def test_a_token_is_not_sent_to_a_namenode_that_a_record_names(url: str, root: str) -> None:
    with refused(CorruptError, "an HDFS", "not that of the job's root") as error:
        open_recorded(url, {"hdfs_delegation_token": "HUSH"}, root=root)
    assert "HUSH" not in str(error.value)
    assert open_recorded("hdfs://ours/x", root="hdfs://ours/root").url == "hdfs://ours/x"
    # Nor to another port of the root's own host, where somebody else may listen.
    other_port = open_recorded("webhdfs://ours:9999/x", root="webhdfs://ours:9870/root")
    assert other_port.url == "webhdfs://ours:9870/x"


def test_options_for_hdfs_do_not_disturb_a_savepoint_in_another_store() -> None:
    ObjectStore("s3://bucket/x", {"hdfs_user": "me", "region": "us-east-1"})
    HdfsStore("hdfs://nn/x", {"region": "us-east-1"})
