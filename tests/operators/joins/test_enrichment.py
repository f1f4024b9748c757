"""Answers of a service are kept: what was recorded is asked for once, and what fails is repeated, diverted or refused."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from random import Random
from typing import Any

import pytest

import stateflow as sf
from stateflow.errors import UserCodeError
from stateflow.operators.joins.asked import Asked, Lookups, most_in_a_row
from stateflow.pipelines.ready.enrichment import Asking, Enrich
from stateflow.quantities import several
from stateflow.testing import ColumnarHarness
from tests.refusals.refusal import refused


@dataclass
class Visit:
    ip: str | None
    page: str


@dataclass
class Located:
    ip: str | None
    page: str
    country: str | None
    score: float | None


class Service:
    def __init__(self, fails: int = 0) -> None:
        self.calls: list[list[str]] = []
        self.fails = fails

    def __call__(self, ips: list[str]) -> list[Any]:
        self.calls.append(ips)
        if self.fails:
            self.fails -= 1
            raise ConnectionError("no line")
        return [None if ip == "?" else {"country": ip.upper(), "score": float(len(ip))} for ip in ips]


def harness(look_up: Any, output: Any = Located, **options: Any) -> ColumnarHarness:
    @sf.pipeline("geo")
    def geo(flow: sf.Flow) -> None:
        flow.source("in", sf.delta("/in"), Visit).key_by("ip").enrich("geo", look_up, output, **options)

    return ColumnarHarness.of(geo.build(), "geo")


def test_answers_stay_when_a_later_batch_fails_and_are_not_there_when_their_own_batch_fails() -> None:
    service = Service()
    geo = harness(service, retries=0)
    geo.rows(Visit("a", "/1"))
    service.fails = 1
    with refused(UserCodeError, "operator 'geo'", "key 'b'", "1 attempt:", "no line"):
        geo.rows(Visit("a", "/2"), Visit("b", "/2"))
    assert geo.rows(Visit("a", "/2"), Visit("b", "/2"))[1].country == "B"
    assert service.calls == [["a"], ["b"], ["b"]]


@pytest.mark.parametrize(
    ("look_up", "named"),
    [
        (lambda ips: [], ("key 'a'", "0 answers for 1 key", "None where there is none", "nothing of the batch was stored")),
        (lambda ips: 7, ("int for 1 key",)),
        (lambda ips: [{"country": "a", "score": "high"}], ("'a'", "'high' as 'score'", "no double")),
    ],
)  # fmt: skip
def test_answers_that_are_none_are_refused(look_up: Callable[..., Any], named: tuple[str, ...]) -> None:
    with refused(UserCodeError, *named):
        harness(look_up, backoff="1 hour").rows(Visit("a", "/1"))


class Poisoned:
    """Fails on every call that has one of these keys."""

    def __init__(self, *keys: int) -> None:
        self.keys, self.calls = set(keys), list[list[int]]()

    def __call__(self, keys: list[int]) -> list[Any]:
        self.calls.append(keys)
        if found := self.keys.intersection(keys):
            raise ValueError(f"cannot read {sorted(found)}")
        return [-key for key in keys]


def the_answer(key: Any, answer: Any) -> Any:
    return answer


def ask(service: Any, count: int, *, batch: int = 50, retries: int = 0, diverts: bool = True) -> Asked:
    return Lookups(Asking(service, batch, 1, retries, 0, None), the_answer, diverts=diverts).asked(
        list(range(count))
    )


@pytest.mark.parametrize("batch", [2, 3, 7, 50, 64])
@pytest.mark.parametrize(
    "poisoned", [{0}, {49}, {7, 8}, {1, 2, 3, 4, 5, 6, 7, 8}, {0, 25, 49}, set(range(0, 50, 2))], ids=str
)
def test_only_the_poisoned_keys_of_a_call_have_no_answer(batch: int, poisoned: set[int]) -> None:
    service = Poisoned(*poisoned)
    asked = ask(service, 50, batch=batch)
    assert set(asked.failures) == poisoned
    assert asked.answers == {key: -key for key in range(50) if key not in poisoned}
    # Where half of the keys are poisoned, a half may have no other, and is not asked for to its end.
    if len(poisoned) < 25:
        assert all(failure.keys == [key] for key, failure in asked.failures.items())
    assert len(service.calls) <= -(-50 // batch) + 2 * min(50, len(poisoned) * (batch - 1).bit_length())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_one_poisoned_key_in_ten_is_found_wherever_it_is(seed: int) -> None:
    poisoned = set(Random(seed).sample(range(2_000), 200))
    asked = ask(Poisoned(*poisoned), 2_000, batch=100 if seed % 2 else 500)
    assert set(asked.failures) == poisoned
    assert len(asked.answers) == 1_800


@pytest.mark.parametrize("diverts", [True, False])
@pytest.mark.parametrize("batch", [1, 2, 10, 500])
def test_a_service_that_is_down_is_not_asked_for_each_key(batch: int, diverts: bool) -> None:
    calls = []

    def down(keys: list[int]) -> list[Any]:
        calls.append(len(keys))
        raise ConnectionError("no line")

    asked = ask(down, 1_000, batch=batch, diverts=diverts)
    assert not asked.answers
    blocks = 1_000 // batch if diverts else 1
    assert len(calls) <= blocks + most_in_a_row(batch) + 1 + 2 * (blocks - 1)
    assert set(asked.failures) == set(range(1_000 if diverts else batch))
    if not diverts:
        assert asked.failures[0].keys == list(range(batch)), "no key is blamed for what is not its own"


def test_a_service_that_comes_back_is_asked_in_halves_again() -> None:
    class Back(Poisoned):
        def __call__(self, keys: list[int]) -> list[Any]:
            if len(self.calls) < 100:
                self.calls.append(keys)
                raise ConnectionError("no line")
            return super().__call__(keys)

    asked = ask(Back(999), 1_000, batch=25)
    gone, (last,) = set(asked.failures) - {999}, [asked.failures[999]]
    assert 0 < len(gone) < 1_000
    assert gone == set(range(len(gone))), "the calls of the outage, and no other"
    assert last.keys == [999]


def test_without_dead_letters_no_call_begins_after_the_failure() -> None:
    service = Poisoned(3)
    asked = ask(service, 1_000, batch=10, diverts=False)
    assert {place: failure.keys for place, failure in asked.failures.items()} == {3: [3]}
    assert max(key for keys in service.calls for key in keys) == 9


def test_a_key_alone_is_asked_for_twice_unless_nothing_is_repeated() -> None:
    for retries, times in ((0, 1), (3, 2)):
        service = Poisoned(1)
        ask(service, 8, retries=retries)
        assert service.calls.count([1]) == times
        assert [len(keys) for keys in service.calls[: retries + 1]] == [8] * (retries + 1)
        assert len(service.calls) == retries + 1 + 2 + 2 + 2 + (times - 1)


def test_a_call_with_too_few_answers_is_asked_for_in_halves_and_not_repeated() -> None:
    def without_odd(keys: list[int]) -> list[Any]:
        return [key for key in keys if key != 3]

    asked = ask(without_odd, 6, retries=3)
    assert set(asked.failures) == {3}
    assert str(asked.failures[3].error).startswith("look_up gave 0 answers for 1 key")


def in_order(ips: list[str]) -> list[Any]:
    ips.sort()
    return [{"country": ip.upper(), "score": 1.0} for ip in ips]


async def in_order_later(ips: list[str]) -> list[Any]:
    return in_order(ips)


def from_the_end(ips: list[str]) -> list[Any]:
    return [{"country": ips.pop().upper(), "score": 1.0} for _ in range(len(ips))]


@pytest.mark.parametrize("look_up", [in_order, in_order_later, from_the_end])
def test_a_function_that_changes_its_list_of_keys_is_refused(look_up: Any) -> None:
    visits = [Visit(ip, "/") for ip in "cab"]
    with refused(
        UserCodeError, "operator 'geo'", "3 keys, the first 'c'", "changed its list", "sorted(keys)"
    ):
        harness(look_up).rows(*visits)
    diverting = harness(look_up, on_error="dead_letter")
    assert diverting.rows(*visits) == []
    assert len(diverting.dead_letters) == 3


@dataclass
class Address:
    ip: str
    page: str
    seen: date | None = None
    raw: bytes = b""


def test_a_dead_letter_has_whole_rows_of_the_poisoned_key_alone() -> None:
    def look_up(ips: list[str]) -> list[Any]:
        if "?" in ips:
            raise ValueError("no address")
        return [{"country": ip.upper()} for ip in ips]

    @sf.pipeline("geo")
    def geo(flow: sf.Flow) -> None:
        keyed = flow.source("in", sf.delta("/in"), Address).key_by("ip")
        located = keyed.enrich("geo", look_up, "ip string, country string", retries=0, on_error="dead_letter")
        located.append("out", sf.delta("/out"))
        located.dead_letters.append("failed", sf.delta("/failed"))

    flow = geo.build()
    (node,) = flow.operators
    assert isinstance(node.columnar, Enrich)
    names = ("ip", "page", "seen", "raw")
    assert node.columnar.needed(frozenset({"dead_letters"})).names == names, "a run brings them all"
    assert node.columnar.needed(frozenset()).names == ("ip",)
    driven = ColumnarHarness.of(flow, "geo")
    out = driven.rows(
        *[Address(ip, "/1", date(2026, 1, 2), b"\xff") for ip in ("a", "?", "b", "?")], Address("c", "/2")
    )
    assert sorted(row["ip"] for row in out) == ["a", "b", "c"]
    (letter,) = driven.side("dead_letters")
    assert (letter["key"], letter["error"], letter["row_count"]) == ("'?'", "ValueError: no address", 2)
    row = {"ip": "?", "page": "/1", "seen": "2026-01-02", "raw": "/w=="}
    assert json.loads(letter["rows"]) == [row, row]


@pytest.mark.parametrize("retries", [0, 3])
def test_the_error_names_the_poisoned_key_and_not_its_neighbours(retries: int) -> None:
    def look_up(ips: list[str]) -> list[Any]:
        if "k33" in ips:
            raise ValueError("no address")
        return [None] * len(ips)

    geo = harness(look_up, retries=retries, backoff="0 seconds")
    with refused(UserCodeError, "key 'k33'", several(retries + 1, "attempt"), "ValueError"):
        geo.rows(*[Visit(f"k{n}", "/") for n in range(50)])


def test_letters_of_a_service_that_is_down_say_that_their_keys_went_together() -> None:
    def look_up(ips: list[str]) -> list[Any]:
        raise ConnectionError("no line")

    geo = harness(look_up, retries=0, on_error="dead_letter")
    assert geo.rows(*[Visit(f"k{n}", "/") for n in range(50)]) == []
    letters = geo.side("dead_letters")
    assert len(letters) == 50
    together = (
        r"asked for with \d+ other keys?, as (22|23) halves in a row had failed: ConnectionError: no line"
    )
    alone = "ConnectionError: no line"
    assert all(re.fullmatch(f"({together})|{alone}", letter["error"]) for letter in letters)
    assert sum(letter["error"] == alone for letter in letters) < 12
    with refused(UserCodeError, "50 keys", "the first 'k0'", "1 attempt,"):
        harness(look_up, retries=0).rows(*[Visit(f"k{n}", "/") for n in range(50)])


@dataclass
class Country:
    country: str | None


@dataclass
class WithDefault:
    ip: str | None
    country: str = "nowhere"
    score: float = 0.0


@pytest.mark.parametrize("output", [Located, WithDefault])
@pytest.mark.parametrize(
    ("answer", "has"),
    [
        ({"Country": "A", "points": 1.0}, "has no 'country'; it has 'Country', 'points'"),
        ({"country": "A"}, "has no 'score'; it has 'country'"),
        ({}, r"has no 'country'; it has no field \(dict\)"),
        (Country("A"), "has no 'score'; it has 'country'"),
        ("A", r"has no 'country'; it has no field \(str\)"),
    ],
)
def test_an_answer_without_a_field_that_it_should_fill_is_refused(output: Any, answer: Any, has: str) -> None:
    message = rf"operator 'geo': the answer for 'a' {has}: let look_up give every field .* None where nothing is known"
    geo = harness(lambda ips: [answer], output, ttl="1 hour")
    with pytest.raises(UserCodeError, match=message) as caught:
        geo.rows(Visit("a", "/1"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("is_async", [True, False])
def test_so_many_calls_run_at_once_and_no_more(is_async: bool) -> None:
    running, most, lock = 0, 0, threading.Lock()

    def begun(step: int) -> None:
        nonlocal running, most
        with lock:
            running += step
            most = max(most, running)

    barrier = threading.Barrier(3, timeout=20)

    def wait(keys: list[int]) -> list[Any]:
        begun(1)
        barrier.wait()
        begun(-1)
        return [None] * len(keys)

    async def wait_async(keys: list[int]) -> list[Any]:
        begun(1)
        await asyncio.sleep(0.05)
        begun(-1)
        return [None] * len(keys)

    asking = Asking(wait_async if is_async else wait, 2, 3, 0, 0, None)
    asked = Lookups(asking, the_answer, diverts=False).asked(list(range(12)))
    assert asked == Asked(dict.fromkeys(range(12)), {})
    assert most == 3


def test_calls_begin_no_faster_than_allowed() -> None:
    begun: list[float] = []

    async def look_up(keys: list[int]) -> list[Any]:
        begun.append(asyncio.get_running_loop().time())
        return [None] * len(keys)

    Lookups(Asking(look_up, 1, 8, 0, 0, 50.0), the_answer, diverts=False).asked(list(range(4)))
    assert begun[-1] - begun[0] >= 0.055, "three calls after the first, a fiftieth of a second apart"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"batch": 0}, ("operator 'geo'", "batch is 0", "at least 1")),
        ({"batch": 2.5}, ("operator 'geo'", "batch is 2.5", "a whole number")),
        ({"batch": "500"}, ("operator 'geo'", "batch is '500'", "a whole number")),
        ({"concurrency": 2.0}, ("operator 'geo'", "concurrency is 2.0", "a whole number")),
        ({"retries": True}, ("operator 'geo'", "retries is True", "at least 0")),
        ({"rate": 0}, ("operator 'geo'", "rate is 0", "the calls per second")),
        ({"rate": "5"}, ("operator 'geo'", "rate is '5'", "a number above zero")),
        ({"rate": float("nan")}, ("operator 'geo'", "rate is nan", "a number above zero")),
        ({"rate": float("inf")}, ("operator 'geo'", "rate is inf", "leave it out")),
        ({"on_error": "skip"}, ("on_error is 'fail' or 'dead_letter'", "'skip'")),
        ({"backoff": "-1 second"}, ("backoff is '-1 second'", "zero or more")),
        ({"output": Visit}, ("every field of Visit", "add the fields that the answers fill")),
        ({"output": "ip string, tags array<string>"}, ("Row.tags (array<string>)", "of an answer")),
        ({"output": "ip long, country string"}, ("string into Row.ip", "bigint")),
        ({"look_up": "http://geo"}, ("'http://geo' is no function",)),
    ],
)
def test_an_enrichment_that_cannot_be_is_refused(options: dict[str, Any], named: tuple[str, ...]) -> None:
    with refused(sf.UsageError, *named):
        harness(**{"look_up": Service(), **options})
