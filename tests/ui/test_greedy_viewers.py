"""Whoever may look at the pages can make them do a bounded amount of work, whatever the addresses say."""

from __future__ import annotations

import asyncio
import threading

import pytest

from stateflow.errors import BusyError, NotFoundError, StateflowError, UnavailableError
from stateflow_ui.cached_value import CachedValue
from stateflow_ui.reader_threads import ReaderThreads
from tests.jobs.records import Made
from tests.memory_store import MemoryStore
from tests.ui.catalogs import Clock, Gate, catalog_of, fill, look, open_job, root_at, settle, store

__all__ = ["store"]


def test_names_that_no_job_has_are_not_looked_up_one_by_one(store: MemoryStore) -> None:
    fill(store, Made("orders"))
    catalog = catalog_of([root_at(store)], Clock())
    look(catalog)
    before = len(store.calls)
    for number in range(100):
        with pytest.raises(NotFoundError, match=f"there is no job 'nobody-{number}' in memory://"):
            open_job(catalog, f"nobody-{number}")
    assert len(store.calls) == before


def test_a_job_that_was_made_a_moment_ago_is_found_at_the_next_listing(store: MemoryStore) -> None:
    fill(store, Made("orders"))
    clock = Clock()
    catalog = catalog_of([root_at(store)], clock)
    look(catalog)
    fill(store, Made("clicks"))
    clock.seconds += 11
    assert open_job(catalog, "clicks").status.head == 5


def test_a_job_has_one_reading_of_its_storage_at_a_time(store: MemoryStore) -> None:
    fill(store, Made("orders"))
    catalog = catalog_of([root_at(store)], Clock(), patience=0.05)
    look(catalog)
    settle(catalog)

    def ask(retained: int) -> StateflowError:
        with pytest.raises(StateflowError) as caught:
            asyncio.run(catalog.storage("main", "orders", retained))
        return caught.value

    with Gate(store, "/pins/") as gate:
        assert isinstance(ask(1), UnavailableError)
        assert gate.reached.wait(60)
        assert {type(ask(retained)) for retained in range(2, 40)} == {BusyError}
        assert len(catalog._roots["main"].jobs["orders"].storage) == 1
        gate.open.set()
        [reading] = catalog._roots["main"].jobs["orders"].storage.values()
        reading.refresh().result(60)
    assert asyncio.run(catalog.storage("main", "orders", 1)).retained == 1


def test_a_job_has_a_few_readings_of_its_checkpoints_at_a_time(store: MemoryStore) -> None:
    fill(store, Made("orders", standing=40))
    catalog = catalog_of([root_at(store)], Clock(), patience=0.05)
    look(catalog)
    settle(catalog)
    asyncio.run(catalog.job("main", "orders"))
    settle(catalog)
    errors = []
    with Gate(store, "/chk-"):
        for slot in range(1, 41):
            try:
                asyncio.run(catalog.checkpoint("main", "orders", slot))
            except StateflowError as error:
                errors.append(type(error))
        assert errors == [UnavailableError] * 4 + [BusyError] * 36
    for value in list(catalog._roots["main"].jobs["orders"].checkpoints.values()):
        if value.known().waiting is not None:
            value.refresh().result(60)
    assert asyncio.run(catalog.checkpoint("main", "orders", 40))[1] is not None


class FewThreads:
    """The limit of a machine on threads of one name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, most: int) -> None:
        self.name, self.most = name, most
        self._real = threading.Thread.start
        monkeypatch.setattr(threading.Thread, "start", lambda thread: self._start(thread))

    def _start(self, thread: threading.Thread) -> None:
        if (
            thread.name == self.name
            and sum(each.name == self.name for each in threading.enumerate()) >= self.most
        ):
            raise RuntimeError("can't start new thread")
        self._real(thread)


def test_a_thread_that_cannot_start_keeps_no_later_question_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FewThreads(monkeypatch, "few", 0)
    threads = ReaderThreads(1, "few")
    value = CachedValue("a value", lambda: 42, threads)
    for _ in range(2):
        value.refresh().result(60)
        assert isinstance(value.known().error, BusyError)
    machine.most = 1
    value.refresh().result(60)
    assert value.known().value == 42


def test_work_of_a_thread_that_cannot_start_is_left_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    FewThreads(monkeypatch, "some", 1)
    threads = ReaderThreads(2, "some")
    store = MemoryStore("some", {"a": b"1"})
    with Gate(store) as gate:
        first = CachedValue("the first", lambda: store.read("a"), threads)
        begun = first.refresh()
        assert gate.reached.wait(60)
        second = CachedValue("the second", lambda: 2, threads)
        following = second.refresh()
        gate.open.set()
        begun.result(60)
        following.result(60)
    assert (first.known().value, second.known().value) == (b"1", 2)


def test_a_queue_that_is_full_says_so_and_takes_work_again_later() -> None:
    threads = ReaderThreads(1, "test", waiting=2)
    store = MemoryStore("queue", {"a": b"1"})
    with Gate(store) as gate:
        values = [CachedValue(f"value {n}", lambda: store.read("a"), threads) for n in range(5)]
        futures = [values[0].refresh()]
        assert gate.reached.wait(60)
        futures += [value.refresh() for value in values[1:]]
        assert [isinstance(value.known().error, BusyError) for value in values] == [False] * 3 + [True] * 2
        gate.open.set()
        for future in futures:
            future.result(60)
    values[4].refresh().result(60)
    assert values[4].known().value == b"1"
