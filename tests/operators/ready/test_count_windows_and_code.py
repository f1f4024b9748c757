"""Windows of a count, and code per window: what comes out is what DuckDB finds over the whole input, however it is cut."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import stateflow as sf
from stateflow.operators.ready.windows import window_code
from stateflow.testing import ColumnarHarness
from tests.operators.ready.driving import END, Driven

SECOND = 1_000_000
SEEDS = range(100 if os.environ.get("STATEFLOW_LONG") else 3)
SCHEMA = pa.schema(
    [
        ("user", pa.int64()), ("shop", pa.string()), ("item", pa.string()), ("price", pa.decimal128(38, 18)),
        ("tags", pa.list_(pa.string())), ("ts", pa.timestamp("us", "UTC")),
    ]
)  # fmt: skip


@dataclass
class Event:
    user: int
    shop: str
    item: str
    price: Decimal
    tags: list[str]
    ts: datetime


def table(seed: int, count: int = 120, jitter: int = 6) -> pa.Table:
    chance = random.Random(seed)
    rows = [
        {
            "user": chance.randrange(2),
            "shop": chance.choice("ab"),
            "item": None if chance.random() < 0.1 else chance.choice("xyz"),
            "price": Decimal(chance.randrange(100)).scaleb(-1),
            "tags": ["t"] * chance.randrange(3),
            "ts": max(number // 2 + chance.randrange(-jitter, jitter), 0) * SECOND,
        }
        for number in range(count)
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def declared(declare: Callable[[Any], Any], rows: Any = Event) -> Any:
    @sf.pipeline("windows")
    def made(flow: sf.Flow) -> None:
        declare(flow.source("in", sf.delta("/in"), rows, event_time="ts", watermark="0 seconds"))

    return made.build().operators[0].columnar


def over(driven: Driven, rows: pa.Table, chance: random.Random, delay: int) -> list[dict[str, Any]]:
    """In batches, tables and shards of random size. The watermark follows `delay` seconds behind: no row is late."""
    cuts = sorted(chance.randrange(rows.num_rows) for _ in range(chance.randrange(10)))
    newest = None
    for begin, end in zip([0, *cuts], [*cuts, rows.num_rows], strict=True):
        part = rows.slice(begin, end - begin)
        driven.batch(part if end > begin else None, newest, chance.randrange(1, 4))
        driven.rescale(chance.randrange(1, 5))
        if end > begin:
            latest = max(part["ts"].cast(pa.int64()).to_pylist()) - delay * SECOND
            newest = latest if newest is None else max(newest, latest)
    driven.batch(None, END)
    return driven.rows


def by_duckdb(rows: pa.Table, query: str) -> list[dict[str, Any]]:
    with duckdb.connect() as engine:
        engine.execute("set timezone = 'UTC'")
        engine.register("input", rows)
        return list(engine.sql(query).to_arrow_table().to_pylist())


def plain(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(
        repr(
            [
                (n, v.astimezone(UTC).isoformat() if isinstance(v, datetime) else v)
                for n, v in sorted(row.items())
            ]
        )
        for row in rows
    )


FIVES = """
    select user, min(ts) as window_start, max(ts) as window_end, count(*) as n, max(item) as most, sum(price)::decimal(38,18) as total
    from (select *, (row_number() over (partition by user order by ts, shop, item nulls first, price) - 1) // 5 as number from input)
    group by user, number
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_a_window_of_a_count_has_that_many_rows_in_the_order_of_time(seed: int) -> None:
    rows, chance = table(seed).drop_columns(["tags"]), random.Random(seed)
    output = (
        "user long, window_start timestamp, window_end timestamp, n long, most string, total decimal(38,18)"
    )
    operator = declared(
        lambda events: events.key_by("user").window(sf.count_window(5)).aggregate(
            "op", output, n=sf.count(), most=sf.max("item", where="shop IS NOT NULL"), total=sf.sum("price")
        ),
        "user long, shop string, item string, price decimal(38,18), ts timestamp",
    )  # fmt: skip
    driven = Driven(operator, chance.randrange(1, 4))
    found = over(driven, rows, chance, 12)
    assert plain(found) == plain(by_duckdb(rows, FIVES))
    assert driven.entries() == 0, "--final closes what is not full, and nothing is left"
    assert sum(row["n"] != 5 for row in found) <= 2, "only the last window of a key is not full"


def test_a_window_of_a_count_comes_out_when_the_watermark_has_reached_its_last_row() -> None:
    operator = declared(
        lambda events: events.key_by("user").window(sf.count_window(2), lateness="1 second").aggregate(
            "op", "user long, n long", n=sf.count()
        )
    )  # fmt: skip
    driven = Driven(operator)
    rows = (
        table(0)
        .take([0, 0, 0])
        .set_column(5, SCHEMA.field("ts"), pa.array([3, 1, 2], pa.int64()).cast(SCHEMA.field("ts").type))
    )
    driven.batch(rows, None)
    assert driven.batch(None, SECOND + 1) == []
    assert [row["n"] for row in driven.batch(None, SECOND + 2)] == [2]
    assert driven.batch(None, SECOND + 3) == []
    late = driven.batch(rows, SECOND + 3)
    assert late == []
    assert driven.counters["late_rows"] == 3, "what the watermark has reached can be in no window any more"


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


BASKETS = """
    select user, shop, {start} as start, {end} as "end", string_agg(coalesce(item, '-'), '' order by ts, price desc, item, tags) as items,
           max(price) as dearest, sum(len(tags))::long as tags
    from ({rows}) group by user, shop, {group}
"""
TENS = "time_bucket(interval 10 seconds, ts)"
SPANS = """
    select *, sum(new) over (partition by user, shop order by ts, number) as session from (
        select *, (coalesce(epoch(ts) - lag(epoch(ts)) over (partition by user, shop order by ts, number), 99) > 2)::int as new
        from (select *, row_number() over () as number from input))
"""
CODE = {
    "tumbling": (
        sf.tumbling("10 seconds"),
        BASKETS.format(start=TENS, end=f"{TENS} + interval 10 seconds", group=TENS, rows="from input"),
    ),
    "hopping": (
        sf.hopping("20 seconds", "10 seconds"),
        BASKETS.format(
            start="begin", end="begin + interval 20 seconds", group="begin",
            rows=f"select *, {TENS} - to_seconds(10 * back) as begin from input, (values (0), (1)) as b(back)",
        ),
    ),
    "session": (
        sf.session("2 seconds"),
        BASKETS.format(start="min(ts)", end="max(ts) + interval 2 seconds", group="session", rows=SPANS),
    ),
    "count": (
        sf.count_window(1000),
        BASKETS.format(start="min(ts)", end="max(ts)", group="user", rows="from input"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", CODE)
@pytest.mark.parametrize("seed", SEEDS)
def test_code_per_window_gets_the_rows_of_the_window_in_order(
    seed: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, chance = table(seed), random.Random(seed)
    monkeypatch.setattr(window_code, "READ_AT_ONCE", chance.choice([1, 300, 4 << 20]))
    window, query = CODE[kind]
    operator = declared(
        lambda events: (
            events.key_by("user", "shop", order_by=("ts", "-price", "item"))
            .window(window)
            .process("op", Baskets)
        )
    )
    driven = Driven(operator, chance.randrange(1, 4))
    found = over(driven, rows, chance, 12)
    wanted = by_duckdb(rows, query.replace("item, tags", "item nulls first, tags"))
    assert plain(found) == plain(wanted)
    assert driven.entries() == 0, "a window that is closed leaves nothing behind"


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


def harness(**options: Any) -> ColumnarHarness:
    @sf.pipeline("code")
    def code(flow: sf.Flow) -> None:
        source = flow.source("in", sf.delta("/in"), Event, event_time="ts", watermark="0 seconds")
        source.key_by("user", "shop").window(sf.tumbling("1 minute")).process("op", Baskets, **options)

    return ColumnarHarness.of(code.build(), "op")


def test_code_that_raises_is_named_with_its_operator_key_and_window() -> None:
    run = harness()
    run.rows(*events("x", "!"))
    with pytest.raises(
        sf.StateflowError,
        match=r"operator 'op' failed for key \(1, 'a'\) and the window from 2026-01-01T00:00:00\+00:00 to .*no such item",
    ):
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
