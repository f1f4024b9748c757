"""Shards kept open: a bound, one opening for many readers, none closed under a reader."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from stateflow.errors import UnavailableError, UsageError
from stateflow.state.backends.base import Backend
from stateflow.state.backends.openings import OpenShards
from tests.refusals.refusal import refused


class Fake:
    def __init__(self, name: str) -> None:
        self.name, self.open = name, True

    def close(self) -> None:
        assert self.open
        self.open = False


class Shelf:
    """Opens fakes and remembers them."""

    def __init__(self, limit: int) -> None:
        self.shards = OpenShards(limit)
        self.made: list[Fake] = []

    def opening(self, name: str) -> Any:
        def make() -> Backend:
            self.made.append(Fake(name))
            return cast(Backend, self.made[-1])

        return self.shards.reading(name, make)

    def touch(self, name: str) -> None:
        with self.opening(name) as opening:
            assert cast(Fake, opening.backend).open

    @property
    def open(self) -> list[str]:
        return [fake.name for fake in self.made if fake.open]


def test_the_least_recently_used_is_closed_first() -> None:
    shelf = Shelf(2)
    for name in ("a", "b", "a", "c"):
        shelf.touch(name)
    assert shelf.open == ["a", "c"]
    assert shelf.shards.kept() == ["a", "c"]
    shelf.touch("b")
    assert shelf.open == ["c", "b"]
    assert len(shelf.made) == 4


def test_nothing_is_closed_while_it_is_read() -> None:
    shelf = Shelf(1)
    with shelf.opening("a") as a:
        shelf.touch("b")
        assert shelf.open == ["a", "b"]
        with shelf.opening("a") as again:
            assert again.backend is not a.backend, "it was given up, so whoever comes next opens it anew"
        assert cast(Fake, a.backend).open
    assert shelf.open == ["a"]
    assert len(shelf.made) == 3


def test_dropping_closes_what_is_chosen_and_what_is_read_later() -> None:
    shelf = Shelf(8)
    shelf.touch("a")
    shelf.touch("c")
    with shelf.opening("b"):
        shelf.shards.drop(lambda key: key != "c")
        assert shelf.open == ["c", "b"]
    assert shelf.open == ["c"]
    shelf.shards.drop()
    assert shelf.open == []


def test_one_opens_and_the_others_wait() -> None:
    shards, go, began = OpenShards(2), threading.Event(), threading.Event()
    opened: list[Fake] = []

    def slowly() -> Backend:
        began.set()
        go.wait(10)
        opened.append(Fake("a"))
        return cast(Backend, opened[-1])

    seen: list[object] = []

    def read() -> None:
        with shards.reading("a", slowly) as opening:
            seen.append(opening.backend)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert began.wait(10)
    assert seen == []
    go.set()
    for thread in threads:
        thread.join()
    assert seen == opened * 4


def test_an_opening_that_fails_fails_for_all_who_waited_and_is_tried_again() -> None:
    shelf = Shelf(2)

    def fail() -> Backend:
        raise UnavailableError("the store is away")

    with refused(UnavailableError, "away"), shelf.shards.reading("a", fail):
        pass
    assert shelf.shards.kept() == []
    shelf.touch("a")
    assert shelf.open == ["a"]


def test_a_reader_that_fails_leaves_the_shard_open_for_others() -> None:
    shelf = Shelf(2)
    with pytest.raises(KeyError), shelf.opening("a"):
        raise KeyError
    shelf.touch("a")
    assert len(shelf.made) == 1


def test_a_bound_below_one_is_refused() -> None:
    with refused(UsageError, "allow at least 1"):
        OpenShards(0)
