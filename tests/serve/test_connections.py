"""What connections cost that have shown no token: a raw socket sends what no client would."""

from __future__ import annotations

import gc
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from stateflow.serve.connections import ConnectionLimits
from tests.jobs.queried import QueriedJob, entries_of, filled
from tests.serve.conftest import TOKEN, Served, served_over

SOON = ConnectionLimits(receive=0.5, send=0.5, linger=0.3)
GET = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
FLOOD = b"x-long: " + b"y" * 1000 + b"\r\n"


@pytest.fixture(scope="module", params=[HttpToolsProtocol, H11Protocol], ids=["httptools", "h11"])
def strict(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with short deadlines, with either parser."""
    folder = tmp_path_factory.mktemp("strict")
    job = QueriedJob(folder / "root", retained=1)
    job.checkpoint(entries_of(filled(*range(5))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uvicorn.protocols.http.auto.AutoHTTPProtocol", request.param)
        with served_over(job, folder / "host", limits=SOON) as made:
            yield made


def connected(served: Served) -> socket.socket:
    host, _, port = served.url.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def answer(sock: socket.socket, enough: bytes = b"") -> bytes:
    """What comes until the server closes, or until `enough` has come."""
    got = b""
    while not (enough and enough in got):
        try:
            piece = sock.recv(65536)
        except ConnectionError:
            break
        if not piece:
            break
        got += piece
    return got


def sent(sock: socket.socket, piece: bytes, most: int) -> int:
    """Bytes that were taken until the server closed, at most `most`."""
    done = 0
    try:
        while done < most:
            sock.sendall(piece)
            done += len(piece)
    except OSError:
        pass
    return done


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_headers_that_never_end_are_refused_after_16_kib(strict: Served) -> None:
    with connected(strict) as sock:
        sock.sendall(b"GET /jobs HTTP/1.1\r\nhost: x\r\n" + FLOOD * 60)
        assert answer(sock).startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 "))


def test_so_is_a_head_that_comes_byte_by_byte_and_the_second_one_of_a_connection(strict: Served) -> None:
    with connected(strict) as sock:
        sock.sendall(GET)
        assert answer(sock, b'"ok"}').startswith(b"HTTP/1.1 200 ")
        for piece in (b"GET /jobs HTTP/1.1\r\nhost: x\r\n", *[FLOOD[:400]] * 60):
            if not sent(sock, piece, 1):
                break
            time.sleep(0.001)
        assert answer(sock)[:12] in (b"HTTP/1.1 431", b"HTTP/1.1 400", b"")


def test_a_long_head_that_is_no_longer_than_allowed_is_answered_however_it_is_cut(strict: Served) -> None:
    head = GET[:-2] + FLOOD * 14 + b"\r\n"
    for cut in (1, len(head) // 2, len(head) - 3, len(head) - 1):
        with connected(strict) as sock:
            sock.sendall(head[:cut])
            time.sleep(0.02)
            sock.sendall(head[cut:] + GET)
            assert answer(sock, b'"ok"}').startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "half",
    [
        b"",
        b"G",
        b"GET /jobs HTTP/1.1\r\nauthorization: Bearer ",
        b"POST /jobs/orders/operators/count/states/total HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n"
        + f"authorization: Bearer {TOKEN}\r\n\r\n".encode() + b'{"keys"',
        GET + b"GET /healthz HT",
    ],
    ids=["nothing", "a byte", "half a head", "half a body", "half a second request"],
)  # fmt: skip
def test_a_request_that_is_sent_half_is_given_up_at_its_deadline(strict: Served, half: bytes) -> None:
    with connected(strict) as sock:
        began = time.monotonic()
        sock.sendall(half)
        answer(sock)
        # The time between two requests of a connection is another: uvicorn waits five seconds for the next.
        assert SOON.receive * 0.9 <= time.monotonic() - began < 15


def test_a_byte_now_and_then_does_not_put_the_deadline_off(strict: Served) -> None:
    with connected(strict) as sock:
        began = time.monotonic()
        for _ in range(100):
            if not sent(sock, b"x", 1):
                break
            time.sleep(0.05)
        assert time.monotonic() - began < 4


def test_a_body_without_a_token_is_answered_unread_and_then_the_connection_is_closed(strict: Served) -> None:
    with connected(strict) as sock:
        sock.sendall(
            b"POST /jobs/orders/operators/count/states/total HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999\r\n\r\n"
        )
        assert answer(sock, b"}").startswith(b"HTTP/1.1 401 ")
        began = time.monotonic()
        sent(sock, b"z" * 65536, 1 << 40)
        assert time.monotonic() - began < 10


def test_requests_that_are_sent_without_waiting_are_answered_up_to_a_limit(strict: Served) -> None:
    with connected(strict) as sock:
        sock.sendall(GET * 10)
        assert answer(sock, b'"ok"}' * 1) != b""
    with connected(strict) as sock:
        sent(sock, GET * 5000, 5000 * len(GET) * 20)
        assert len(answer(sock)) < 20 << 20


def test_a_client_that_takes_no_answers_is_let_go(strict: Served) -> None:
    with connected(strict) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(20)
        began = time.monotonic()
        ask = b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n"
        try:
            while time.monotonic() - began < 15:
                sock.sendall(ask)
                time.sleep(0.01)
        except OSError:
            pass
        assert time.monotonic() - began < 15


@contextmanager
def many(served: Served, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(connected(served)) for _ in range(count)]


def test_one_connection_too_many_is_closed_and_the_others_are_served(
    job: QueriedJob, serve: Callable[..., Served]
) -> None:
    job.checkpoint(entries_of(filled(1)))
    served = serve(job, limits=ConnectionLimits(connections=8))
    with many(served, 8) as kept:
        for sock in kept:
            sock.sendall(GET)
            assert answer(sock, b'"ok"}').startswith(b"HTTP/1.1 200 ")
        with connected(served) as sock:
            sent(sock, GET, 1)
            assert answer(sock) == b""
        kept[0].sendall(GET)
        assert answer(kept[0], b'"ok"}').startswith(b"HTTP/1.1 200 ")
    with connected(served) as sock:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            with connected(served) as again:
                sent(again, GET, 1)
                if answer(again, b'"ok"}').startswith(b"HTTP/1.1 200 "):
                    return
    pytest.fail("no connection was freed")


def test_hundreds_of_connections_that_send_all_they_can_cost_little_memory(
    job: QueriedJob, serve: Callable[..., Served]
) -> None:
    """Without limits these 200 would leave 400 MB behind: 2 MB of headers each, with no end."""
    job.checkpoint(entries_of(filled(1)))
    served = serve(job)
    gc.collect()
    before = resident()
    with many(served, 200) as flooding:
        for sock in flooding:
            sock.settimeout(0.5)
            sent(sock, b"GET / HTTP/1.1\r\n" + FLOOD * 64, 2 << 20)
        assert resident() - before < 60 << 20
        with connected(served) as sock:
            sock.sendall(GET)
            assert answer(sock, b'"ok"}').startswith(b"HTTP/1.1 200 ")
