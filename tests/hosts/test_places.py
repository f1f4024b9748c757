"""First come, first served; a place is given to nobody who has left."""

from __future__ import annotations

import threading
import time

from stateflow.hosts.places import Places
from tests.hosts.hosting import eventually


def nobody() -> None:
    pass


def taken(places: Places, wait: float = 0.0) -> int | None:
    return places.take(wait, lambda: False, nobody)


def test_each_place_is_given_once_and_again_when_it_is_back() -> None:
    places = Places(2)
    assert {taken(places), taken(places)} == {1, 2}
    assert taken(places) is None
    assert places.taken == 2
    places.give_back(2)
    assert taken(places) == 2


def test_who_waits_longest_comes_first() -> None:
    places, order = Places(1), list[int]()
    assert taken(places) == 1

    def wait(number: int) -> None:
        place = taken(places, 30)
        assert place == 1
        order.append(number)
        places.give_back(place)

    threads = []
    for number in range(5):
        threads.append(threading.Thread(target=wait, args=[number]))
        threads[-1].start()
        eventually(lambda number=number: places.waiting == number + 1, "it waits")
    places.give_back(1)
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]


def test_who_has_left_gets_no_place_and_keeps_nobody_waiting() -> None:
    places = Places(1)
    assert taken(places) == 1
    gone, said = threading.Event(), list[str]()
    leaving = threading.Thread(
        target=lambda: said.append(str(places.take(30, gone.is_set, lambda: said.append("waits"))))
    )
    leaving.start()
    eventually(lambda: said == ["waits"], "it says that it waits")
    gone.set()
    leaving.join()
    assert said == ["waits", "None"]
    places.give_back(1)
    assert taken(places) == 1


def test_a_draining_host_gives_nothing_and_lets_nobody_wait() -> None:
    places = Places(1)
    assert taken(places) == 1
    answers = list[int | None]()
    waiting = threading.Thread(target=lambda: answers.append(taken(places, 30)))
    waiting.start()
    eventually(lambda: places.waiting == 1, "it waits")
    begun = time.monotonic()
    places.drain()
    waiting.join()
    assert answers == [None]
    assert time.monotonic() - begun < 5
    places.give_back(1)
    assert taken(places) is None


def test_while_a_host_does_not_give_a_place_stays_free() -> None:
    places, gives = Places(1), threading.Event()
    answers = list[int | None]()
    waiting = threading.Thread(
        target=lambda: answers.append(places.take(30, lambda: False, nobody, gives.is_set))
    )
    waiting.start()
    eventually(lambda: places.waiting == 1, "it waits")
    assert places.taken == 0
    gives.set()
    waiting.join()
    assert answers == [1]
