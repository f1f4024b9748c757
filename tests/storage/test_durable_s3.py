"""The S3 of the kill loop: it keeps what it has answered for when it is killed, and its lies are those that it says."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stateflow.errors import NotFoundError, UnavailableError
from stateflow.storage.objects import ObjectStore
from stateflow.storage.store import Entry, ExistsError, create_once
from tests.durable_s3 import LIES, DurableS3, Objects


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DurableS3]:
    server = DurableS3.new(tmp_path / "s3")
    yield server
    server.kill()


def store_of(server: DurableS3, **options: str) -> ObjectStore:
    return ObjectStore(server.root, {**server.options, **options})


def test_it_is_a_store(server: DurableS3, tmp_path: Path) -> None:
    store = store_of(server)
    store.create("job/a", b"1")
    with pytest.raises(ExistsError):
        store.create("job/a", b"2")
    store.put("job/b&<c>", b"22")
    store.copy("job/a", "job/deep/c")
    assert store.list("job/") == [Entry("job/a", 1), Entry("job/b&<c>", 2), Entry("job/deep/c", 1)]
    assert store.list("job/b") == [Entry("job/b&<c>", 2)]
    assert store.folders("job/") == ["deep"]
    assert [store.read_range("job/b&<c>", *at) for at in ((0, 1), (1, 9), (7, 2))] == [b"2", b"2", b""]
    store.download("job/a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"1"
    store.delete(["job/a", "job/b&<c>", "job/none"])
    assert store.list("") == [Entry("job/deep/c", 1)]
    with pytest.raises(NotFoundError):
        store.read("job/a")


def test_what_it_has_answered_for_is_there_when_it_was_killed(server: DurableS3) -> None:
    store = store_of(server, max_retries="0")
    store.create("job/a", b"1")
    server.kill()
    with pytest.raises(UnavailableError):
        store.create("job/b", b"1")
    server.start()
    assert store.read("job/a") == b"1"
    with pytest.raises(ExistsError):
        store.create("job/a", b"2")


def test_a_store_that_is_away_for_three_seconds_is_waited_for(server: DurableS3) -> None:
    store = store_of(server)
    store.create("job/a", b"1")
    server.kill()
    back = threading.Timer(3, server.start)
    back.start()
    try:
        assert store.list("job/") == [Entry("job/a", 1)]
    finally:
        back.join()


def test_a_client_that_asks_again_gets_over_a_liar(tmp_path: Path) -> None:
    server = DurableS3.new(tmp_path / "s3", lies=0.4)
    try:
        store = store_of(server)
        number = 0
        # By chance a short run tells few kinds of lies.
        while number < 12 or (len(server.told()) < 5 and number < 200):
            body = b"%d" % number
            assert create_once(store, f"job/{number}", body) == body
            assert store.read(f"job/{number}") == body
            store.list("job/")
            number += 1
        time.sleep(2.5)  # what is late has arrived
        assert len(server.told()) >= 5
        assert set(server.told()) <= set(LIES)
        while len(store.list("job/")) < number:
            pass
    finally:
        server.kill()


def test_a_stale_listing_shows_what_there_was(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    objects = Objects(tmp_path)
    objects.put("a", b"1", create=True)
    objects.put("b", b"1", create=True)
    time.sleep(0.2)
    objects.put("a", b"22", create=False)
    objects.delete("b")
    objects.put("c", b"1", create=True)
    assert objects.list() == {"a": 2, "c": 1}
    assert objects.list(ago=0.1) == {"a": 1, "b": 1}
    assert objects.list(ago=9) == {}
