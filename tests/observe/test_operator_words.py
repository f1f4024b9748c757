"""What a ready-made operator is, as `show`, `check` and the pages tell it: from the options that its record has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

import stateflow as sf
from stateflow.compatibility.flows import compare
from stateflow.observe.operator_words import combiner_text, late_text, operator_text
from stateflow.pipelines.streams import KeyedStream

HALF_AN_HOUR = "30 minutes"


@dataclass
class Click:
    ad: int
    price: float
    ts: datetime


@dataclass
class View:
    ad: int
    page: str
    ts: datetime


@dataclass
class Pair:
    ad: int
    price: float
    page: str | None


@dataclass
class Total:
    ad: int
    n: int
    most: float | None


@dataclass
class PerWindow(Total):
    window_start: datetime


class Code(sf.WindowProcess[int, Any, Any]):
    def process(self, key: int, window: Any, rows: list[Any], ctx: Any) -> Iterator[Any]:
        return iter(())


AGGREGATES: dict[str, Any] = {"n": sf.count(), "most": sf.max("price")}
DECLARED: list[tuple[Callable[[KeyedStream, KeyedStream], Any], str, bool]] = [
    (
        lambda left, right: left.join("it", right, Pair, within=("-10 minutes", "0 minutes"), how="left"),
        "left interval join of clicks with views + old-views, within -10 minutes to 0",
        False,
    ),
    (
        lambda left, right: left.join_asof("it", right, Pair, keep="14 days"),
        "left as-of join of clicks with views + old-views, keep 2 weeks",
        False,
    ),
    (
        lambda left, right: left.join_asof("it", right, Pair, wait=False, how="inner"),
        "inner as-of join of clicks with views + old-views; takes the version known now",
        False,
    ),
    (
        lambda left, right: left.join_latest("it", right, Pair),
        "left latest-version join of clicks with views + old-views",
        False,
    ),
    (
        lambda left, right: left.window(sf.tumbling("1 hour"), lateness="5 minutes").join("it", right, Pair),
        "inner join of clicks with views + old-views in tumbling(1 hour), lateness 5 minutes",
        False,
    ),
    (
        lambda left, right: left.window(sf.session("1 hour"), late="strict").join("it", right, Pair),
        "inner join of clicks with views + old-views in session(1 hour), late strict",
        False,
    ),
    (
        lambda left, right: left.window(sf.session(HALF_AN_HOUR), late="strict").process(
            "it", Code, output="n long"
        ),
        "code for each session(30 minutes), late strict",
        False,
    ),
    (
        lambda left, right: left.window(sf.session(HALF_AN_HOUR), late="strict").aggregate(
            "it", PerWindow, **AGGREGATES
        ),
        "aggregates n, most in session(30 minutes), late strict, emit final",
        False,
    ),
    (lambda left, right: left.aggregate("it", Total, **AGGREGATES), "running aggregates n, most", True),
    (
        lambda left, right: left.window(sf.hopping("1 hour", HALF_AN_HOUR)).aggregate(
            "it", PerWindow, **AGGREGATES
        ),
        "aggregates n, most in hopping(1 hour, every 30 minutes), emit final",
        True,
    ),
    (
        lambda left, right: left.window(sf.session(HALF_AN_HOUR)).aggregate("it", PerWindow, **AGGREGATES),
        "aggregates n, most in session(30 minutes), emit final",
        False,
    ),
    (
        lambda left, right: left.window(sf.session(HALF_AN_HOUR)).process("it", Code, output="n long"),
        "code for each session(30 minutes)",
        False,
    ),
    (lambda left, right: left.top("it", 3, by="-price"), "first 3 by -price", False),
    (lambda left, right: left.latest("it"), "last row by ts", False),
    (lambda left, right: left.map_with_state("it", print, state=int, default=0, output="n long"), "", False),
]


def built(declare: Callable[[KeyedStream, KeyedStream], Any]) -> sf.Flow:
    @sf.pipeline("p")
    def pipeline(flow: sf.Flow) -> None:
        def source(uid: str, rows: type[Any]) -> sf.Stream:
            return flow.source(uid, sf.delta(f"/{uid}"), rows, event_time="ts", watermark="1 minute")

        views = source("views", View).union(source("old-views", View))
        views.append("all-views", sf.delta("/all-views"))
        declare(source("clicks", Click).key_by("ad"), views.key_by("ad"))

    return pipeline.build({})


@pytest.mark.parametrize(("declare", "text", "combines"), DECLARED, ids=[text for _, text, _ in DECLARED])
def test_an_operator_is_told_by_what_it_is(declare: Any, text: str, combines: bool) -> None:
    (found,) = compare(built(declare), "p", None).operators
    assert (operator_text(found.options), found.combines) == (text, combines)


def test_records_that_know_less_are_told_as_far_as_they_go() -> None:
    assert operator_text({}) == ""
    assert operator_text({"operator": "interval join"}) == "interval join, within ?"
    assert operator_text({"operator": "OfALaterVersion", "n": "1"}) == "OfALaterVersion"


@pytest.mark.parametrize(
    "kind", ["window aggregate", "window code", "window join", "interval join", "as-of join", "deduplication"]
)
def test_an_operator_behind_others_tells_what_holds_it_back(kind: str) -> None:
    assert operator_text({"operator": kind, "held back": "2 hours"}).endswith(", held back 2 hours")


@pytest.mark.parametrize(
    ("figures", "text"),
    [
        (
            {"counters": {"late_rows": 1200, "partly_late_rows": 3}},
            "of the newest batch 1,200 late and 3 partly late",
        ),
        ({"counters": {"partly_late_rows": 3, "mine": 4}}, "of the newest batch 3 partly late"),
        ({"counters": {"late_rows": "many", "partly_late_rows": 0}}, ""),
        ({"counters": 3}, ""),
        (None, ""),
    ],
)
def test_how_many_rows_came_late_to_an_operator(figures: Any, text: str) -> None:
    assert late_text(figures) == text


@pytest.mark.parametrize(
    ("note", "text"),
    [
        ({"rows": 1000, "groups": 10, "combined": True}, "the newest batch was summed up before the shuffle: 100.0 rows per group"),
        ({"rows": 30, "groups": 20, "combined": False}, "the newest batch was not summed up before the shuffle: 1.5 rows per group"),
        ({"rows": 30, "groups": 0, "combined": False}, ""),
        ({"rows": "many"}, ""),
        (None, ""),
    ],
)  # fmt: skip
def test_the_combiner_is_told_with_its_reason(note: Any, text: str) -> None:
    assert combiner_text(note) == text
