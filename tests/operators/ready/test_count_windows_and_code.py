"""Windows of a count, and code per window: what comes out is what DuckDB finds over the whole input, however it is cut."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

import stateflow as sf
from stateflow.errors import UserCodeError
from stateflow.testing import ColumnarHarness
from tests.refusals.refusal import refused


@dataclass
class Event:
    user: int
    shop: str
    item: str
    price: Decimal
    tags: list[str]
    ts: datetime


def declared(declare: Callable[[Any], Any], rows: Any = Event) -> Any:
    @sf.pipeline("windows")
    def made(flow: sf.Flow) -> None:
        declare(flow.source("in", sf.delta("/in"), rows, event_time="ts", watermark="0 seconds"))

    return made.build().operators[0].columnar


@dataclass
class Basket:
    user: int
    shop: str
    start: datetime
    end: datetime
    items: str
    dearest: Decimal
    tags: int


class Baskets(sf.WindowProcess[tuple[int, str], Event, Basket]):
    def process(
        self, key: tuple[int, str], window: sf.WindowBounds, rows: list[Event], ctx: sf.ColumnarContext
    ) -> Iterator[Basket]:
        if any(row.item == "!" for row in rows):
            raise ValueError("no such item")
        assert all(isinstance(row, Event) and (row.user, row.shop) == key for row in rows)
        items = "".join(row.item or "-" for row in rows)
        tags = sum(len(row.tags) for row in rows)
        yield Basket(*key, window.start, window.end, items, max(row.price for row in rows), tags)


def test_rows_at_the_same_place_have_an_order_that_no_cut_into_batches_changes() -> None:
    rows = [
        Event(1, "a", item, Decimal(1), [], datetime(2026, 1, 1, second=second, tzinfo=UTC))
        for second, item in [(0, "z"), (0, "x"), (1, "y"), (1, "x"), (1, "z"), (2, "x"), (3, "y"), (3, "x")]
    ]
    for seed in range(5):
        run, chance = harness(), random.Random(seed)
        for row in chance.sample(rows, len(rows)):
            run.rows(row)
        (basket,) = run.advance(datetime(2026, 1, 1, 0, 1, tzinfo=UTC))
        assert basket.items == "xzxyzxxy"


def events(*items: str) -> list[Event]:
    return [
        Event(1, "a", item, Decimal(1), [], datetime(2026, 1, 1, second=at, tzinfo=UTC))
        for at, item in enumerate(items)
    ]


def harness(code_of_window: Any = Baskets, **options: Any) -> ColumnarHarness:
    @sf.pipeline("code")
    def code(flow: sf.Flow) -> None:
        source = flow.source("in", sf.delta("/in"), Event, event_time="ts", watermark="0 seconds")
        keyed = source.key_by("user", "shop")
        keyed.window(sf.tumbling("1 minute")).process("op", code_of_window, **options)

    return ColumnarHarness.of(code.build(), "op")


def test_code_that_raises_is_named_with_its_operator_key_and_window() -> None:
    run = harness()
    run.rows(*events("x", "!"))
    with refused(UserCodeError, "operator 'op'", "(1, 'a')", "2026-01-01T00:00:00+00:00 to", "no such item"):
        run.advance(datetime(2026, 1, 1, 0, 1, tzinfo=UTC))


@pytest.mark.parametrize("one", ["tea", {"item": "tea"}, 0, ""], ids=repr)
def test_one_value_in_the_place_of_many_rows_is_refused(one: Any) -> None:
    class One(sf.WindowProcess[tuple[int, str], Event, Any]):
        def process(self, key: Any, window: Any, rows: list[Event], ctx: Any) -> Any:
            return one

    run = harness(One, output="item string")
    run.rows(*events("x"))
    with refused(sf.UsageError, "operator 'op'", repr(one), "yield each row"):
        run.advance(datetime(2026, 1, 1, 0, 1, tzinfo=UTC))


def test_windows_that_code_raises_on_become_dead_letters_where_asked_for() -> None:
    run = harness(on_error="dead_letter")
    run.rows(*events("x", "!"))
    assert run.advance(datetime(2026, 1, 1, 0, 1, tzinfo=UTC)) == []
    (letter,) = run.side("dead_letters")
    assert (letter["operator"], letter["key"], letter["row_count"]) == ("op", "(1, 'a')", 2)
    assert "no such item" in letter["error"]
    assert '"item":"!"' in letter["rows"]


REFUSED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda k: sf.count_window(0), "count_window(0): give it a whole number of at least 1"),
    (
        lambda k: k.window(sf.count_window(5)).aggregate(
            "op", "user long, n long", emit="changes", n=sf.count()
        ),
        (
            "operator 'op': with emit='changes' its rows replace each other by window, but Row does not tell the window: add the field "
            "window_start or window_end"
        ),
    ),
    (
        lambda k: k.window(sf.count_window(5)).aggregate(
            "op", "user long, window_start timestamp, n long", emit="changes", n=sf.count()
        ),
        "operator 'op': a window of a count comes out when it is full: say emit='final'",
    ),
    (
        lambda k: k.window(sf.count_window(5)).aggregate(
            "op", "user long, n long", n=sf.count_distinct("item")
        ),
        (
            "operator 'op': windows of a count have no end in time, so that 'n' would have to be counted anew: say approximate=True, "
            "which is a sketch; the exact count is for the other windows"
        ),
    ),
    (
        lambda k: k.window(sf.session("1 second")).process("op", Event),
        "operator 'op': Event is not a WindowProcess",
    ),
    (
        lambda k: k.window(sf.session("1 second")).process("op", sf.WindowProcess),
        "operator 'op': say what WindowProcess puts out, as WindowProcess[..., Output] or output=...",
    ),
    (
        lambda k: k.top("op", 0, by="price"),
        "operator 'op': the first 0 rows: give it a whole number of at least 1",
    ),
    (
        lambda k: k.top("op", 3, by=()),
        "operator 'op': say what the list is ordered by, such as by='-revenue'",
    ),
    (
        lambda k: k.top("op", 3, by="-user"),
        "operator 'op': column 'user' is the key, the same in the whole list: leave it out of by= and per=",
    ),
    (
        lambda k: k.top("op", 3, by="prise"),
        "operator 'op': Event has no column 'prise'; it has user, shop, item, price, tags, ts",
    ),
    (
        lambda k: k.top("op", 3, by="price"),
        "operator 'op' cannot keep and compare column 'tags' (array<string>): take it out, or make a string of it, with transform()",
    ),
    (
        lambda k: k.top("op", 3, by="price", rank="item"),
        "operator 'op': Event has a column 'item' already: give rank= another name",
    ),
]


@pytest.mark.parametrize(("declare", "message"), REFUSED, ids=[message[:50] for _, message in REFUSED])
def test_what_cannot_be_is_refused_in_one_sentence(declare: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(sf.UsageError) as caught:
        declared(lambda events: declare(events.key_by("user")))
    assert str(caught.value) == message
