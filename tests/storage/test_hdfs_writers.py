"""Writers that are cut off, in a real HDFS: what its DataNode does then is what the store expects of it."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from stateflow.errors import NotFoundError
from stateflow.format.records import Owner, encode
from stateflow.storage.hdfs import HdfsStore
from stateflow.storage.store import ExistsError
from tests.hdfs_servers import HdfsServer

pytestmark = pytest.mark.system
BODY = encode(Owner(run="dead", note="x" * 300))


@pytest.fixture
def store(hdfs: HdfsServer) -> HdfsStore:
    return HdfsStore(hdfs.new_root("root"), hdfs.options)


def begin(store: HdfsStore, path: str, arrives: int) -> socket.socket:
    """The connection of a client that has sent so many bytes of `BODY` to a DataNode."""
    web = store._web
    _, answer = web._at_namenode("PUT", store._at(path), "CREATE", {"overwrite": "false"})  # type: ignore[attr-defined]
    to = urlsplit(answer.headers["location"])
    connection = socket.create_connection((to.hostname, to.port))
    head = (
        f"PUT {to.path}?{to.query} HTTP/1.1\r\nHost: datanode\r\nContent-Type: application/octet-stream\r\n"
    )
    connection.sendall(f"{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY[:arrives])
    wait_for(lambda: store._status(store._at(path)))
    return connection


def wait_for(look, seconds: float = 30):  # type: ignore[no-untyped-def]
    end = time.monotonic() + seconds
    while True:
        try:
            if found := look():
                return found
        except Exception as error:
            if time.monotonic() > end:
                raise AssertionError("it did not come") from error
        assert time.monotonic() < end
        time.sleep(0.02)


def cut_off(store: HdfsStore, path: str, arrives: int) -> None:
    """A client dies. Its DataNode notices, and closes the file."""
    begin(store, path, arrives).close()
    at = store._at(path)
    wait_for(lambda: not store._is_open(store._status(at)))


@pytest.mark.parametrize("arrives", [0, 1, 9, 40, len(BODY) - 1])
def test_a_datanode_keeps_what_came_and_it_blocks_nobody(store: HdfsStore, arrives: int) -> None:
    cut_off(store, "job/epochs/00000001", arrives)
    assert store._status(store._at("job/epochs/00000001")).length == arrives
    with pytest.raises(NotFoundError):
        store.read("job/epochs/00000001")
    assert store.list("") == []
    store.create("job/epochs/00000001", b"next")
    assert store.read("job/epochs/00000001") == b"next"


def test_all_bytes_make_a_record_though_nobody_waits_for_the_answer(store: HdfsStore) -> None:
    begin(store, "job/a", len(BODY)).close()
    assert wait_for(lambda: store.read("job/a")) == BODY
    with pytest.raises(ExistsError):
        store.create("job/a", b"next")


def test_who_wants_a_name_waits_for_a_writer_that_is_slow(store: HdfsStore) -> None:
    connection = begin(store, "job/a", 50)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(store.create, "job/a", b"other")
        time.sleep(1)
        assert not other.done()
        connection.sendall(BODY[50:])
        with pytest.raises(ExistsError):
            other.result(30)
    assert store.read("job/a") == BODY
    connection.close()


@pytest.mark.parametrize("arrives", [0, 50])
def test_of_many_who_find_what_a_dead_writer_left_exactly_one_wins(
    store: HdfsStore, hdfs: HdfsServer, arrives: int
) -> None:
    racers, rounds = 6, 6
    for turn in range(rounds):
        path = f"job/chk-{turn:08d}/_pending"
        cut_off(store, path, arrives)
        start = threading.Barrier(racers)

        def race(number: int, path: str = path, start: threading.Barrier = start) -> list[int]:
            own = HdfsStore(store.url, hdfs.options)
            start.wait()
            try:
                own.create(path, b"racer %d" % number)
            except ExistsError:
                return []
            return [number]

        with ThreadPoolExecutor(racers) as pool:
            won = [number for each in pool.map(race, range(racers)) for number in each]
        assert len(won) == 1
        assert store.read(path) == b"racer %d" % won[0]
