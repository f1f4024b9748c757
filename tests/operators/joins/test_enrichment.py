"""Answers of a service are kept: what was recorded is asked for once, and what fails is repeated, diverted or refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

import stateflow as sf
from stateflow.errors import UserCodeError
from stateflow.operators.joins.asked import asked
from stateflow.pipelines.enrichment import Asking
from stateflow.testing import ColumnarHarness


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


def test_a_key_is_asked_for_once_until_its_answer_expires() -> None:
    service = Service()
    geo = harness(service, batch=2, ttl="1 hour")
    first = geo.rows(
        Visit("a", "/1"), Visit("bb", "/2"), Visit("a", "/3"), Visit("?", "/4"), Visit(None, "/5")
    )
    assert sorted(first, key=lambda row: row.page) == [
        Located("a", "/1", "A", 1.0),
        Located("bb", "/2", "BB", 2.0),
        Located("a", "/3", "A", 1.0),
        Located("?", "/4", None, None),
        Located(None, "/5", None, None),
    ]
    assert sorted(map(len, service.calls)) == [1, 2], "three keys in calls of at most two"
    assert geo.rows(Visit("a", "/6"), Visit("?", "/7")) == [
        Located("a", "/6", "A", 1.0),
        Located("?", "/7", None, None),
    ]
    assert len(service.calls) == 2, "no answer is an answer, too"
    geo.advance(now=timedelta(hours=2))
    geo.rows(Visit("a", "/8"))
    assert service.calls[2:] == [["a"]]
    assert geo.metrics == {"asked_keys": 4}


def test_answers_stay_when_a_later_batch_fails_and_are_not_there_when_their_own_batch_fails() -> None:
    service = Service()
    geo = harness(service, retries=0)
    geo.rows(Visit("a", "/1"))
    service.fails = 1
    with pytest.raises(
        UserCodeError,
        match=r"operator 'geo' could not look up 1 key, the first 'b', in 1 attempt: .*no line",
    ):
        geo.rows(Visit("a", "/2"), Visit("b", "/2"))
    assert geo.rows(Visit("a", "/2"), Visit("b", "/2"))[1].country == "B"
    assert service.calls == [["a"], ["b"], ["b"]]


def test_a_call_that_fails_is_repeated() -> None:
    service = Service(fails=2)
    assert harness(service, retries=2, backoff="1 ms").rows(Visit("a", "/1"))[0].country == "A"
    assert len(service.calls) == 3


def test_rows_whose_keys_cannot_be_looked_up_are_diverted_and_asked_for_again() -> None:
    service = Service(fails=1)
    geo = harness(service, batch=1, retries=0, on_error="dead_letter")
    out = geo.rows(Visit("a", "/1"), Visit("b", "/2"), Visit("a", "/3"))
    (letter,) = geo.side("dead_letters")
    assert {row.ip for row in out} | {letter["key"].strip("'")} == {"a", "b"}
    assert letter["error"] == "ConnectionError: no line"
    assert letter["row_count"] == 3 - len(out)
    assert {row.country for row in geo.rows(Visit("a", "/1"), Visit("b", "/2"))} == {"A", "B"}


@pytest.mark.parametrize(
    ("look_up", "message"),
    [
        (
            lambda ips: [],
            (
                r"no answers for 1 key, the first 'a': look_up gave 0 answers for 1 key: give a list with an answer for each, "
                "None where there is none; nothing of the batch was stored, and a run with changed code repeats it$"
            ),
        ),
        (lambda ips: 7, r"look_up gave int for 1 key"),
        (
            lambda ips: [{"country": "a", "score": "high"}],
            r"the answer for 'a' has 'high' as 'score', which is no double",
        ),
    ],
)
def test_answers_that_are_none_are_refused(look_up: Callable[..., Any], message: str) -> None:
    with pytest.raises(UserCodeError, match=message):
        harness(look_up, backoff="1 hour").rows(Visit("a", "/1"))


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


def test_a_none_that_an_answer_gives_is_none() -> None:
    geo = harness(lambda ips: [{"country": None, "score": None} for _ in ips])
    assert geo.rows(Visit("a", "/1")) == [Located("a", "/1", None, None)]


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

    blocks = asked(Asking(wait_async if is_async else wait, 2, 3, 0, 0, None), list(range(12)))
    assert [list(block.keys) for block in blocks] == [[n, n + 1] for n in range(0, 12, 2)]
    assert all(block.error is None for block in blocks)
    assert most == 3


def test_calls_begin_no_faster_than_allowed() -> None:
    begun: list[float] = []

    async def look_up(keys: list[int]) -> list[Any]:
        begun.append(asyncio.get_running_loop().time())
        return [None] * len(keys)

    asked(Asking(look_up, 1, 8, 0, 0, 50.0), list(range(4)))
    assert begun[-1] - begun[0] >= 0.055, "three calls after the first, a fiftieth of a second apart"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "operator 'geo': batch is 0: give it 1 or more"),
        ({"rate": 0}, "operator 'geo': rate is 0: give the calls per second"),
        ({"on_error": "skip"}, "on_error is 'fail' or 'dead_letter', not 'skip'"),
        ({"backoff": "-1 second"}, "backoff is '-1 second': give it zero or more"),
        ({"output": Visit}, "every field of Visit is a column of its rows: add the fields that the answers fill"),
        ({"output": "ip string, tags array<string>"}, r"cannot keep Row.tags \(array<string>\) of an answer"),
        ({"output": "ip long, country string"}, "puts string into Row.ip, which is bigint"),
        ({"look_up": "http://geo"}, "'http://geo' is no function"),
    ],
)  # fmt: skip
def test_an_enrichment_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(sf.UsageError, match=message):
        harness(**{"look_up": Service(), **options})
