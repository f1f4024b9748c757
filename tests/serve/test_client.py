"""The Python client against a real server."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import pytest

import stateflow as sf
from stateflow.errors import (
    BusyError,
    CorruptError,
    NotFoundError,
    StateflowError,
    UnavailableError,
    UsageError,
)
from stateflow.serve.client import StateClient
from stateflow.serve.problems import document, error_of
from tests.jobs.queried import QueriedJob, Row, entries_of, filled
from tests.reading.test_query import Composite, behind_expired_entries
from tests.refusals.refusal import refused
from tests.serve.conftest import TOKEN, Serve, Served


def test_values_come_back(served: Served) -> None:
    with served.client() as client:
        assert client.get("orders", "balance", "total", 7) == 1.0
        assert client.get("orders", "balance", "items", 7) == {"sku0": 1, "sku1": 1}
        assert client.get("orders", "balance", "items", 7, "sku1") == 1
        assert client.get("orders", "balance", "log", 7) == ["sku0", "sku1"]
        assert client.get("orders", "balance", "total", 999) is None
        assert client.get_many("orders", "balance", "total", [1, 999, 2]) == [1.0, None, 1.0]
        assert client.get_many("orders", "balance", "items", [1, 2], "sku0") == [1, 1]
        assert [job["job"] for job in client.jobs()] == ["orders"]
        assert "balance" in client.job("orders")["operators"]


def test_composite_keys(tmp_path: Path, serve: Serve) -> None:
    job = QueriedJob(tmp_path / "root", process=Composite, key=(("sku", "str"), ("user", "int")))
    harness = sf.testing.KeyedHarness(Composite, key=("sku", "user"))
    harness.rows(Row(1, "x"), Row(2, "x,y"))
    job.checkpoint(entries_of(harness))
    with serve(job).client() as client:
        for key, day in ((("x", 1), 1), (("x,y", 2), 2)):
            map_key = ("a", date(2026, 1, day))
            assert client.get("orders", "balance", "seen", key, map_key) == "1.50"
            assert client.get_many("orders", "balance", "seen", [key], map_key) == ["1.50"]
        assert client.get("orders", "balance", "seen", ("x", 1)) == {'["a","2026-01-01"]': "1.50"}


def test_a_map_that_does_not_fit_into_an_answer_is_an_error_and_never_cut_short(
    job: QueriedJob, serve: Serve
) -> None:
    harness = sf.testing.KeyedHarness(filled()._process_type)
    harness.rows(*(Row(1, f"sku{number}") for number in range(1001)))
    job.checkpoint(entries_of(harness))
    with serve(job).client() as client:
        with pytest.raises(UsageError, match="the map of key 1 has more entries"):
            client.get("orders", "balance", "items", 1)
        with pytest.raises(UsageError, match="the list of key 1 has more entries"):
            client.get_many("orders", "balance", "log", [1])
        whole = client.look_up("orders", "balance", "items", 1, limit=2000)
        assert (len(whole["value"]), whole["more"]) == (1001, False)


def test_a_map_whose_live_entries_lie_too_far_back_is_an_error_and_never_called_empty(
    job: QueriedJob, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind_expired_entries(job)
    monkeypatch.setattr("stateflow.reading.query.MOST_EXPIRED", 5)
    with serve(job).client() as client:
        for state in ("carts", "last"):
            with refused(UsageError, "key 1", "`stateflow state export`"):
                client.get("orders", "balance", state, 1)
            with refused(UsageError, "key 1", "`stateflow state export`"):
                client.get_many("orders", "balance", state, [1])
            assert client.look_up("orders", "balance", state, 1)["more"] is True
        assert client.get("orders", "balance", "carts", 1, "the live one") == 1


def test_errors_are_those_of_the_library(served: Served) -> None:
    with served.client() as client:
        with refused(NotFoundError, "no job 'clicks'"):
            client.get("clicks", "balance", "total", 1)
        with refused(UsageError, "key column 'user' is int"):
            client.get("orders", "balance", "total", "x")
        with refused(UsageError, "queryable=True"):
            client.get("orders", "balance", "secret", 1)
        with refused(BusyError, "has not reached checkpoint 99"):
            client.look_up("orders", "balance", "total", 1, min_checkpoint=99)
    with (
        served.client("wrong-token-of-some-length") as client,
        refused(UsageError, "Bearer TOKEN"),
    ):
        client.jobs()


@pytest.mark.parametrize(
    "error", [BusyError("b"), CorruptError("c"), UnavailableError("u"), StateflowError("s")]
)
def test_an_error_survives_the_way(error: StateflowError) -> None:
    back = error_of(document(error), 500)
    assert (type(back), str(back)) == (type(error), str(error))


@pytest.mark.parametrize("body", [None, [], {}, {"error": "x"}, {"error": {"type": "Thread", "message": 5}}])
def test_an_answer_that_is_no_error_document_is_still_an_error(body: object) -> None:
    assert isinstance(error_of(body, 502), UnavailableError)
    assert type(error_of({"error": {"type": "SystemExit", "message": "x"}}, 502)) is StateflowError


def test_a_connection_is_kept(served: Served) -> None:
    with served.client() as client:
        client.get("orders", "balance", "total", 7)
        (kept,) = client._idle
        address = kept.sock.getsockname()
        for _ in range(5):
            client.get("orders", "balance", "total", 7)
            with pytest.raises(NotFoundError):
                client.get("orders", "balance", "none", 7)
        (still,) = client._idle
        assert still.sock.getsockname() == address


def test_a_connection_that_the_server_has_closed_is_made_anew(served: Served) -> None:
    with served.client() as client:
        client.get("orders", "balance", "total", 7)
        for connection in client._idle:
            connection.sock.shutdown(socket.SHUT_RDWR)
        assert client.get("orders", "balance", "total", 7) == 1.0


def test_a_wait_is_added_to_the_patience_of_the_client(served: Served) -> None:
    def ask_in_vain(reuses: bool) -> None:
        with StateClient(served.url, TOKEN, timeout=3.0) as client:
            if reuses:
                client.jobs()
            with refused(BusyError, "checkpoint 99"):
                client.look_up("orders", "balance", "total", 1, min_checkpoint=99, wait=3.5)
            with refused(UsageError, "wait"):
                client.look_up_many("orders", "balance", "total", [1], min_checkpoint=99, wait=-50.0)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(ask_in_vain, (False, True)))


def test_one_client_serves_many_threads(served: Served) -> None:
    with served.client() as client, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda user: client.get("orders", "balance", "total", user % 40), range(200)))
        assert found == [1.0] * 200
        assert 1 <= len(client._idle) <= 8


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with refused(UnavailableError, "is `stateflow serve`", "running there") as error:
        StateClient(f"http://127.0.0.1:{port}", TOKEN).jobs()
    assert TOKEN not in str(error.value)


@contextmanager
def another_server(body: bytes) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("body", [b"<html>", b"[]"])
def test_another_server_is_not_taken_for_one(body: bytes) -> None:
    with another_server(body) as url, refused(UnavailableError, "not as `stateflow serve` does"):
        StateClient(url, TOKEN).jobs()


@pytest.mark.parametrize("url", ["127.0.0.1:8765", "ftp://host", "http://"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with refused(UsageError, "write http://HOST:PORT"):
        StateClient(url, TOKEN)


def test_a_token_with_a_line_end_is_refused_without_being_shown() -> None:
    with refused(UsageError, "check where it comes from") as error:
        StateClient("http://127.0.0.1:1", "secret\n")
    assert "secret" not in str(error.value)
    assert TOKEN not in repr(StateClient("http://user:password@127.0.0.1:1", TOKEN))
    assert "password" not in repr(StateClient("http://user:password@127.0.0.1:1", TOKEN))


def test_a_server_outlives_a_client_that_goes_away_in_the_middle(served: Served) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    for sent in (
        b"",
        b"GET /jo",
        b"POST /jobs/orders/operators/balance/states/total HTTP/1.1\r\nContent-Length: 9\r\n\r\n{",
    ):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(sent)
    with served.client() as client:
        assert client.get("orders", "balance", "total", 7) == 1.0
