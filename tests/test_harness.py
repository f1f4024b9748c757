"""The harness as a user's own tests use it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

import pytest

import stateflow as sf
from stateflow.testing import ColumnarHarness, KeyedHarness
from tests.refusals.refusal import refused

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


@dataclass
class Order:
    user: int
    sku: str
    amount: float
    ts: datetime = START


@dataclass
class Total:
    user: int
    total: float


LARGE = sf.output("large", Order)


class Balance(sf.KeyedProcess[int, Order, Total]):
    total = sf.ValueState(float, default=0.0)
    items = sf.MapState(str, int, ttl="7 days")
    idle = sf.Timer("event")

    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Iterator[Total]:
        for row in rows:
            self.total.value += row.amount
            self.items[row.sku] = self.items.get(row.sku, 0) + 1
            self.idle.set(row.ts + timedelta(hours=1))
            if row.amount > 100:
                ctx.emit(LARGE, row)
            ctx.metrics.counter("orders").inc()
        yield Total(key, self.total.value)

    @idle.fires
    def expire(self, key: int, at: datetime, ctx: sf.Context) -> Iterator[Total]:
        self.items.clear()
        yield Total(key, -1.0)


def test_rows_in_rows_out_and_state_in_between() -> None:
    harness = KeyedHarness(Balance, outputs=[LARGE])
    assert harness.rows(Order(1, "a", 2.5), Order(2, "b", 1.0), Order(1, "a", 200.0)) == [
        Total(1, 202.5),
        Total(2, 1.0),
    ]
    assert harness.state(1).total.value == 202.5
    assert harness.snapshot(1) == {"total": 202.5, "items": {"a": 2}, "idle": at(60)}
    assert harness.snapshot(3) == {}
    assert harness.side(LARGE) == [Order(1, "a", 200.0)]
    assert harness.metrics == {"orders": 3}
    assert harness.output == [Total(1, 202.5), Total(2, 1.0)]


def test_timers_fire_when_event_time_passes_them_and_not_before() -> None:
    harness = KeyedHarness(Balance)
    harness.rows(Order(1, "a", 1.0), Order(2, "b", 1.0, at(10)))
    assert harness.advance(at(59)) == []
    assert harness.advance(at(60)) == [Total(1, -1.0)]
    assert harness.snapshot(1) == {"total": 1.0}
    assert harness.advance(at(600)) == [Total(2, -1.0)]
    assert harness.advance(at(601)) == []


class Judged(sf.KeyedProcess[int, Order, Any]):
    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Iterator[Any]:
        for row in rows:
            yield row.sku, ctx.late


def test_a_row_at_or_behind_the_watermark_is_late() -> None:
    rows = Order(1, "behind", 0, at(9)), Order(1, "at", 0, at(10)), Order(1, "ahead", 0, at(11))
    for event_time in ("ts", lambda row: row.ts):
        harness = KeyedHarness(Judged, event_time=event_time)
        assert [late for _, late in harness.rows(*rows)] == [False] * 3, "there is no watermark yet"
        harness.advance(at(10))
        assert harness.rows(*rows) == [("behind", True), ("at", True), ("ahead", False)]
        assert [late for _, late in harness.rows(*rows, late=False)] == [False] * 3
        assert [late for _, late in harness.rows(rows[0], rows[0], late=[False, True])] == [False, True]
    undated = KeyedHarness(Judged, event_time=lambda row: None)
    undated.advance(at(10))
    assert undated.rows(*rows[:1]) == [("behind", False)]


def test_a_row_on_time_is_never_at_an_instant_whose_timers_have_fired() -> None:
    harness = KeyedHarness(Balance, event_time="ts")
    harness.rows(Order(1, "a", 1.0))
    assert harness.advance(at(60)) == [Total(1, -1.0)]
    judged = KeyedHarness(Judged, event_time="ts")
    judged.advance(at(60))
    assert judged.rows(Order(1, "a", 1.0, at(60))) == [("a", True)]


def test_the_watermark_may_be_the_last_instant_that_there_is_as_after_final() -> None:
    harness = KeyedHarness(Balance)
    last = datetime.max.replace(tzinfo=UTC)
    harness.advance(last)
    assert harness.watermark == last


def test_event_time_does_not_go_back() -> None:
    harness = KeyedHarness(Balance)
    harness.advance(at(60))
    with refused(sf.UsageError, "cannot go back"):
        harness.advance(at(59))


def test_what_expired_is_not_there() -> None:
    harness = KeyedHarness(Balance)
    harness.rows(Order(1, "a", 1.0))
    harness.advance(now=timedelta(days=6))
    assert harness.state(1).items["a"] == 1
    harness.advance(now=timedelta(days=1))
    assert "a" not in harness.state(1).items
    harness.rows(Order(1, "a", 1.0))
    assert harness.state(1).items["a"] == 1


class Reminders(sf.KeyedProcess[int, Order, str]):
    """Two timers: one replaces, clears and sets itself again, one runs in processing time."""

    count = sf.ValueState(int, default=0)
    first = sf.Timer("event")
    second = sf.Timer("processing")

    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Iterator[str]:
        for row in rows:
            if row.sku == "clear":
                self.first.clear()
                self.second.clear()
            else:
                self.first.set(row.ts)
                self.second.set(timedelta(minutes=row.amount))
        yield f"{key}: {self.first.at}"

    @first.fires
    def on_first(self, key: int, when: datetime, ctx: sf.Context) -> Iterator[str]:
        self.count.value += 1
        if self.count.value < 3:
            self.first.set(when + timedelta(minutes=1))
        yield f"first {key} {when:%H:%M} {self.count.value}"

    @second.fires
    def on_second(self, key: int, when: datetime, ctx: sf.Context) -> Iterator[str]:
        yield f"second {key} {when:%H:%M}"


def test_a_timer_set_again_replaces_the_one_before() -> None:
    harness = KeyedHarness(Reminders)
    harness.rows(Order(1, "a", 5.0, at(10)))
    harness.rows(Order(1, "a", 7.0, at(20)))
    assert harness.advance(at(15), now=timedelta(minutes=6)) == []
    assert harness.advance(at(20)) == ["first 1 00:20 1"]
    assert harness.advance(now=timedelta(minutes=1)) == ["second 1 00:07"]


def test_a_cleared_timer_does_not_fire() -> None:
    harness = KeyedHarness(Reminders)
    harness.rows(Order(1, "a", 5.0, at(10)))
    harness.rows(Order(1, "clear", 0.0))
    assert harness.advance(at(100), now=timedelta(hours=2)) == []


def test_a_handler_may_set_its_timer_again_and_all_that_are_due_fire_in_time_order() -> None:
    harness = KeyedHarness(Reminders)
    harness.rows(Order(1, "a", 500.0, at(10)), Order(2, "a", 500.0, at(11.5)), Order(3, "a", 500.0, at(9)))
    assert harness.advance(at(30)) == [
        "first 3 00:09 1",
        "first 1 00:10 1",
        "first 3 00:10 2",
        "first 1 00:11 2",
        "first 3 00:11 3",
        "first 2 00:11 1",
        "first 1 00:12 3",
        "first 2 00:12 2",
        "first 2 00:13 3",
    ]


def test_timers_fire_after_the_rows_of_their_batch() -> None:
    harness = KeyedHarness(Reminders)
    harness.advance(at(30))
    assert harness.rows(Order(1, "a", 500.0, at(29)), Order(2, "a", 500.0, at(40)))[:2] == [
        "1: 2026-01-01 00:29:00+00:00",
        "2: 2026-01-01 00:40:00+00:00",
    ]


def test_an_event_time_timer_is_not_set_to_a_duration() -> None:
    class Wrong(sf.KeyedProcess[int, Order, str]):
        timer = sf.Timer("event")

        def process(self, key: int, rows: Any, ctx: sf.Context) -> None:
            self.timer.set(timedelta(hours=1))

        @timer.fires
        def fired(self, key: int, when: datetime, ctx: sf.Context) -> None: ...

    with refused(sf.UsageError, "timer 'timer'", "an instant"):
        KeyedHarness(Wrong).rows(Order(1, "a", 1.0))


@pytest.mark.parametrize("time", ["event", "processing"])
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("value", [None, date(2026, 1, 1), 5, "2026-01-01"])
def test_a_timer_is_set_to_an_instant_and_to_nothing_else(value: Any, many: Any, time: str) -> None:
    class Wrong(sf.KeyedProcess[int, Order, str]):
        timer = sf.Timer(time, many=many)

        def process(self, key: int, rows: Any, ctx: sf.Context) -> None:
            self.timer.set(value)

        @timer.fires
        def fired(self, key: int, when: datetime, ctx: sf.Context) -> None: ...

    with refused(
        sf.UsageError, "timer 'timer', key 1", f"{value!r} is no instant", "row.ts + timedelta", "clear()"
    ):
        KeyedHarness(Wrong).rows(Order(1, "a", 1.0))


# ---- values of the wrong kind ----


def test_a_state_is_not_replaced_by_a_value() -> None:
    class Wrong(Balance):
        def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
            self.total = 5.0  # type: ignore[assignment]

    with refused(sf.UsageError, "self.total =", "... replaces the state"):
        KeyedHarness(Wrong).rows(Order(1, "a", 1.0))


def test_the_advice_for_a_state_that_is_replaced_is_of_its_kind() -> None:
    class Rated(sf.KeyedProcess[int, Any, Any]):
        rates = sf.BroadcastState(str, float)
        seen = sf.MapState(str, float)
        rows = sf.ListState(int)
        done = False

        def process_broadcast(self, name: str, rows: Any, ctx: sf.Context) -> None:
            for row in rows:
                if row is None:
                    self.rates |= {"tea": 1.0}  # type: ignore[misc,assignment]
                self.rates["tea"] = 1.0

        def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
            for row in rows:
                if row == "map":
                    self.seen = {}  # type: ignore[assignment]
                if row == "list":
                    self.rows = []  # type: ignore[assignment]
                self.seen["tea"] = 1.0
                self.rows.add(1)
            return ()

    run = KeyedHarness(Rated, output="a int", key=lambda row: 1, key_type=int)
    run.broadcast("rates", "as told")
    run.rows("as told")
    with refused(sf.UsageError, "replaces the state 'rates'", "write self.rates[key] = ..."):
        run.broadcast("rates", None)
    with refused(sf.UsageError, "replaces the state 'seen'", "write self.seen[key] = ..."):
        run.rows("map")
    with refused(sf.UsageError, "replaces the state 'rows'", "write self.rows.add(...)"):
        run.rows("list")


def test_a_value_of_the_wrong_type_names_operator_state_key_and_value() -> None:
    class Wrong(sf.KeyedProcess[int, Order, str]):
        total = sf.ValueState(int)

        def process(self, key: int, rows: Any, ctx: sf.Context) -> None:
            self.total.value = "many"  # type: ignore[assignment]

    with pytest.raises(sf.StateTypeError) as caught:
        KeyedHarness(Wrong).rows(Order(7, "a", 1.0))
    assert str(caught.value) == "operator 'Wrong', state 'total', key 7: expected int, got str: 'many'"


@dataclass
class LastSeen:
    channel: str
    at: int = 0


def test_a_none_in_a_value_is_told_with_what_to_declare() -> None:
    class Watched(sf.KeyedProcess[str, Any, str]):
        seen = sf.ValueState(LastSeen)

        def process(self, key: str, rows: Any, ctx: sf.Context) -> None:
            self.seen.value = LastSeen(next(rows)["channel"])

    with pytest.raises(sf.StateTypeError) as caught:
        KeyedHarness(Watched, key="user").rows({"user": "dan", "channel": None})
    assert str(caught.value) == (
        "operator 'Watched', state 'seen', key 'dan': expected LastSeen, but in the value expected `str`, got `None` - at "
        "`$.channel`: declare `str | None`, or give it a value before it is stored"
    )


# ---- failing code ----


class Fragile(sf.KeyedProcess[int, Order, str]):
    total = sf.ValueState(float, default=0.0)
    skus = sf.ListState(str)
    timer = sf.Timer("event")

    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Iterator[str]:
        for row in rows:
            self.total.value += row.amount
            self.skus.add(row.sku)
            ctx.emit(LARGE, row)
            self.timer.set(row.ts)
            yield row.sku
            if row.sku == "bad":
                raise ValueError("a bad sku")

    @timer.fires
    def fired(self, key: int, when: datetime, ctx: sf.Context) -> Iterator[str]:
        ctx.emit(LARGE, Order(key, "fired", 0.0))
        yield "fired"
        if self.total.value > 10:
            raise ValueError("too much")
        self.total.clear()


def test_code_that_raises_names_operator_key_and_exception_in_one_sentence() -> None:
    harness = KeyedHarness(Fragile, outputs=[LARGE])
    harness.rows(Order(1, "a", 1.0, at(60)))
    before = harness.snapshot(1)
    with pytest.raises(sf.StateflowError) as caught:
        harness.rows(Order(1, "b", 1.0, at(60)), Order(2, "bad", 1.0))
    text = str(caught.value)
    assert text.startswith("operator 'Fragile' failed on key 2: ValueError: a bad sku (line ")
    assert "\n" not in text
    assert "Traceback" not in text
    assert isinstance(caught.value.__cause__, ValueError)
    assert harness.snapshot(1) == before, "a batch that fails has changed nothing"
    assert harness.output == ["a"]


def test_a_dead_letter_takes_back_all_that_its_key_did_and_nothing_else() -> None:
    harness = KeyedHarness(Fragile, outputs=[LARGE], on_error="dead_letter")
    out = harness.rows(
        Order(1, "a", 1.0, at(60)), Order(2, "b", 1.0), Order(2, "bad", 2.0), Order(3, "c", 3.0)
    )
    assert out == ["a", "c"]
    assert [row.user for row in harness.side(LARGE)] == [1, 3]
    assert harness.snapshot(2) == {}
    assert harness.snapshot(3)["total"] == 3.0
    [letter] = harness.dead_letters
    assert letter[:3] == ("Fragile", "2", "ValueError: a bad sku")
    assert "test_harness.py" in letter[3]
    assert '"sku":"bad"' in letter[4]
    assert letter[5:] == (2, 1)


class Listing(sf.KeyedProcess[int, Order, str]):
    """Keeps what it has seen in lists of its subtask, and counts it."""

    seen = sf.OperatorListState(str)
    known = sf.UnionListState(str)

    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Iterator[str]:
        for row in rows:
            self.seen.add(row.sku)
            self.known.add(row.sku)
            ctx.metrics.counter("seen").inc()
            ctx.metrics.counter(row.sku).inc()
            if row.sku == "replaced":
                self.seen.update(["other"])
                self.known.clear()
            if row.amount < 0:
                raise ValueError("a refund")
        yield ",".join([*self.seen.get(), "|", *self.known.get()])


def test_a_dead_letter_takes_back_what_its_key_did_to_lists_of_the_subtask_and_to_counters() -> None:
    harness = KeyedHarness(Listing, on_error="dead_letter")
    out = harness.rows(
        Order(1, "a", 1.0),
        *(Order(2, "b", 1.0), Order(2, "bad", -1.0)),
        *(Order(3, "replaced", 1.0), Order(3, "bad", -1.0)),
        Order(4, "c", 1.0),
    )
    assert out == ["a,|,a", "a,c,|,a,c"]
    assert len(harness.dead_letters) == 2
    assert {name: count for name, count in harness.metrics.items() if count} == {"seen": 2, "a": 1, "c": 1}
    assert harness.rows(Order(5, "d", 1.0)) == ["a,c,d,|,a,c,d"]


def test_a_timer_that_raises_becomes_a_dead_letter_and_is_gone() -> None:
    harness = KeyedHarness(Fragile, outputs=[LARGE], on_error="dead_letter")
    harness.rows(Order(1, "a", 11.0, at(60)), Order(2, "a", 1.0, at(61)))
    harness.sides.clear()
    assert harness.advance(at(90)) == ["fired"]
    assert harness.side(LARGE) == [Order(2, "fired", 0.0)]
    assert harness.snapshot(1) == {"total": 11.0, "skus": ["a"]}
    assert harness.snapshot(2) == {"skus": ["a"]}
    assert [letter[2] for letter in harness.dead_letters] == ["ValueError: too much"]
    assert harness.advance(at(91)) == []


class Pair(NamedTuple):
    user: int
    sku: str


class PerPair(sf.KeyedProcess[Pair, Order, Any]):
    count = sf.ValueState(int, default=0)

    def process(self, key: Pair, rows: Iterator[Order], ctx: sf.Context) -> Iterator[Any]:
        self.count.value += sum(1 for _ in rows)
        yield key.user, key.sku, self.count.value


def test_a_composite_key_is_a_named_tuple() -> None:
    harness = KeyedHarness(PerPair, key=("user", "sku"))
    harness.rows(Order(1, "a", 0), Order(1, "b", 0), Order(1, "a", 0))
    assert harness.output == [(1, "a", 2), (1, "b", 1)]
    assert harness.state((1, "a")).count.value == 2


def test_a_key_of_the_wrong_type_and_a_missing_key_are_refused() -> None:
    harness = KeyedHarness(Balance)
    with refused(sf.UsageError, "a row has no 'user'"):
        harness.rows(Order(None, "a", 0))  # type: ignore[arg-type]
    with pytest.raises(sf.StateflowError):
        harness.rows(Order("x", "a", 0))  # type: ignore[arg-type]


@dataclass
class Sent:
    id: int | None
    region: str | None


class Counted(sf.KeyedProcess[Any, Sent, str]):
    count = sf.ValueState(int, default=0)

    def process(self, key: Any, rows: Iterator[Sent], ctx: sf.Context) -> Iterator[str]:
        self.count.value += sum(1 for _ in rows)
        yield f"{key} {self.count.value}"


class Region(NamedTuple):
    region: str
    id: int


@pytest.mark.parametrize(
    ("key", "key_type", "row", "lacking"),
    [
        ("id", int, Sent(None, "north"), "id"),
        ("region", str, {"id": 1, "region": None}, "region"),
        ("region", str, {"id": 1}, "region"),
        (("region", "id"), Region, Sent(None, "north"), "id"),
        (("region", "id"), Region, Sent(1, None), "region"),
        (None, int, Sent(None, "north"), "id"),
    ],
)
def test_a_row_without_a_key_names_the_column_that_lacks_it(
    key: Any, key_type: Any, row: Any, lacking: str
) -> None:
    harness = KeyedHarness(Counted, key=key, key_type=key_type)
    with refused(
        sf.UsageError, f"a row has no {lacking!r}", f"'{lacking} is not null'", f"otherwise than {lacking!r}"
    ):
        harness.rows(Sent(1, "north"), row)
    assert len(harness.rows(Sent(1, "north"))) == 1


def test_a_right_row_without_a_key_names_the_column_of_its_side() -> None:
    class Both(sf.ConnectedProcess[int, Order, Sent, str]):
        def process_left(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> None: ...

        def process_right(self, key: int, rows: Iterator[Sent], ctx: sf.Context) -> None: ...

    @sf.pipeline("both")
    def both(flow: sf.Flow, *, base: str) -> None:
        orders = flow.source("orders", sf.files(base + "/orders", "json"), Order)
        sent = flow.source("sent", sf.files(base + "/sent", "json"), Sent)
        connected = orders.key_by("user").connect(sent.key_by("id"))
        connected.process("both", Both, output="line string").append("lines", sf.delta(base + "/lines"))

    harness = KeyedHarness.of(both.build({"base": "b"}), "both")
    with refused(sf.UsageError, "a row has no 'id'", "'id is not null'"):
        harness.right(Sent(None, "north"))


def test_a_function_that_finds_no_key_is_named_and_no_column_is() -> None:
    harness = KeyedHarness(Counted, key=lambda row: row.id, key_type=int)
    with refused(sf.UsageError, "key=", "gives None for", "north", "leave such rows out") as caught:
        harness.rows(Sent(None, "north"))
    assert "is not null" not in str(caught.value)
    with refused(sf.UsageError, "None is no key", "give the key of a row"):
        harness.snapshot(None)


def test_a_process_without_types_needs_the_keys_type() -> None:
    class Untyped(sf.KeyedProcess[Any, Any, Any]):
        count = sf.ValueState(int, default=0)

        def process(self, key: Any, rows: Any, ctx: sf.Context) -> Any:
            self.count.value += len(list(rows))
            yield key, self.count.value

    with refused(sf.UsageError, "key_type=int"):
        KeyedHarness(Untyped)
    assert KeyedHarness(Untyped, key="k", key_type=str).rows({"k": "a"}, {"k": "a"}) == [("a", 2)]


# ---- more inputs, more state ----


class Joined(sf.ConnectedProcess[int, str, str, str]):
    names = sf.ListState(str)
    idle = sf.Timer("processing")

    def process_left(self, key: int, rows: Iterator[Any], ctx: sf.Context) -> None:
        self.names.add_all(row[1] for row in rows)
        self.idle.set(timedelta(minutes=1))

    def process_right(self, key: int, rows: Iterator[Any], ctx: sf.Context) -> Iterator[str]:
        for row in rows:
            yield f"{row[1]} of {'+'.join(self.names)}"

    @idle.fires
    def forget(self, key: int, when: datetime, ctx: sf.Context) -> None:
        self.names.clear()


def test_a_connected_process_is_given_left_rows_first() -> None:
    harness = KeyedHarness(Joined, key=lambda row: row[0])
    assert harness.both(left=[(1, "ann")], right=[(1, "order"), (2, "order")]) == [
        "order of ann",
        "order of ",
    ]
    harness.left((1, "bob"))
    assert harness.right((1, "other")) == ["other of ann+bob"]
    harness.advance(now=timedelta(minutes=1))
    assert harness.right((1, "last")) == ["last of "]
    with refused(sf.UsageError, "left() and right()"):
        harness.rows((1, "x"))
    with refused(sf.UsageError, "rows()"):
        KeyedHarness(Balance).left(Order(1, "a", 1.0))


class Rated(sf.KeyedProcess[int, Order, float]):
    rates = sf.BroadcastState(str, float)
    seen = sf.OperatorListState(int)
    opened: int = 0
    closed: int = 0

    def open(self, ctx: sf.Context) -> None:
        Rated.opened += 1

    def close(self) -> None:
        Rated.closed += 1

    def snapshot(self, ctx: sf.Context) -> None:
        self.seen.add(ctx.checkpoint_id)

    def process_broadcast(self, name: str, rows: Iterator[Any], ctx: sf.Context) -> None:
        self.rates.update(rows)

    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Iterator[float]:
        for row in rows:
            if row.sku == "bad":
                raise ValueError("bad")
            yield row.amount * self.rates.get(row.sku, 1.0) * ctx.parameters["factor"] + len(self.seen.get())


def test_broadcast_operator_state_and_parameters() -> None:
    Rated.opened = Rated.closed = 0
    harness = KeyedHarness(Rated, parameters={"factor": 10})
    assert harness.rows(Order(1, "a", 2.0)) == [20.0]
    harness.broadcast("rates", ("a", 3.0))
    assert harness.rows(Order(1, "a", 2.0), Order(2, "b", 1.0)) == [62.0, 12.0]
    assert (Rated.opened, Rated.closed) == (3, 3)
    with refused(sf.StateflowError, "bad"):
        harness.rows(Order(1, "bad", 1.0))
    assert (Rated.opened, Rated.closed) == (4, 4), "closed also when it fails"
    assert harness.rows(Order(1, "a", 0.0)) == [3.0], "a failed batch left no element"


def test_state_and_snapshot_show_what_the_operator_has_beside_the_key() -> None:
    harness = KeyedHarness(Rated, parameters={"factor": 10})
    assert harness.snapshot(1) == {}
    harness.broadcast("rates", ("a", 3.0))
    harness.rows(Order(1, "a", 2.0))
    assert (harness.state(1).rates, harness.state(1).seen.get()) == ({"a": 3.0}, [1, 2])
    assert harness.snapshot(1) == harness.snapshot(7) == {"rates": {"a": 3.0}, "seen": [1, 2]}


class Writing(sf.KeyedProcess[int, Any, str]):
    """Writes broadcast state where a row's text says."""

    rates = sf.BroadcastState(str, list[int])
    known = sf.ValueState(int)
    tick = sf.Timer("processing")
    where: str = ""

    def _write(self, where: str) -> None:
        if where == self.where:
            self.rates["a"] = [1]

    def open(self, ctx: sf.Context) -> None:
        self._write("open")

    def restore(self, ctx: sf.Context) -> None:
        self._write("restore")

    def snapshot(self, ctx: sf.Context) -> None:
        self._write("snapshot")

    def process_broadcast(self, name: str, rows: Iterator[Any], ctx: sf.Context) -> None:
        for row in rows:
            self.rates["all"] = [row]
            ctx.for_each_key(self.known, self.visit)

    def visit(self, key: int, ctx: sf.Context) -> None:
        self._write("visit")

    @tick.fires
    def ring(self, key: int, at: datetime, ctx: sf.Context) -> None:
        self._write("ring")

    def process(self, key: int, rows: Iterator[Any], ctx: sf.Context) -> Any:
        self.known.value = 1
        self.tick.set(timedelta(0))
        self._write("process")
        if self.where == "in place":
            self.rates["all"].append(1)
        return (self.rates.setdefault(row, []) for row in rows if self.where == "generator")


def writing_in(where: str) -> type[Writing]:
    return type("Writing", (Writing,), {"where": where, "__module__": __name__})


@pytest.mark.parametrize("on_error", ["fail", "dead_letter"])
@pytest.mark.parametrize("where", ["open", "restore", "process", "visit", "ring", "snapshot", "generator"])
def test_only_process_broadcast_writes_broadcast_state(where: str, on_error: str) -> None:
    harness = KeyedHarness(writing_in(where), key=lambda row: row, output="text string", on_error=on_error)

    def batches() -> None:
        harness.rows(1)
        harness.broadcast("rates", 2)

    with pytest.raises(sf.UsageError) as caught:
        batches()
    assert str(caught.value) == (
        f"operator 'Writing': {'process' if where == 'generator' else where} writes broadcast state 'rates': only process_broadcast may, "
        "which sees the same rows in every subtask; keep what other methods find out in a state of the key or in an OperatorListState"
    )
    assert "rates" not in harness.snapshot(1)


def test_a_value_of_broadcast_state_that_process_changes_in_place_is_refused() -> None:
    harness = KeyedHarness(writing_in("in place"), key=lambda row: row, output="text string")
    harness.broadcast("rates", 2)
    with refused(sf.UsageError, "broadcast state 'rates'", "changed in place"):
        harness.rows(1)
    assert harness.snapshot(1) == {"rates": {"all": [2]}}


class Sides(sf.ConnectedProcess[int, Any, Any, str]):
    rates = sf.BroadcastState(str, int)

    def process_left(self, key: int, rows: Iterator[Any], ctx: sf.Context) -> None:
        self.rates.update(left=key)

    def process_right(self, key: int, rows: Iterator[Any], ctx: sf.Context) -> None:
        self.rates.pop("right", None) if list(rows) else None


def test_neither_side_of_two_inputs_writes_broadcast_state() -> None:
    with refused(sf.UsageError, "process_left", "broadcast state 'rates'"):
        KeyedHarness(Sides, key=lambda row: row, output="text string").left(1)
    right = type("Right", (Sides,), {"process_left": lambda self, key, rows, ctx: None})
    with refused(sf.UsageError, "process_right", "broadcast state 'rates'"):
        KeyedHarness(right, key=lambda row: row, output="text string").right(1)


def test_a_hook_with_a_yield_is_refused_for_python_would_run_nothing_of_it() -> None:
    class Telling(Rated):
        def process_broadcast(self, name: str, rows: Iterator[Any], ctx: sf.Context) -> Any:
            self.rates.update(rows)
            yield 1.0

    with refused(sf.UsageError, "'Telling', process_broadcast", "take the yield out"):
        KeyedHarness(Telling, parameters={"factor": 1}).broadcast("rates", ("a", 1.0))


class Dicing(sf.KeyedProcess[int, Order, Any]):
    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Iterator[Any]:
        yield (
            key,
            ctx.random.random(),
            ctx.now,
            [(row.sku, ctx.late) for row in rows],
            ctx.checkpoint_id,
            ctx.key,
        )


def test_chance_time_and_lateness_are_those_of_the_batch() -> None:
    one, other = KeyedHarness(Dicing), KeyedHarness(Dicing)
    given = [Order(1, "a", 0), Order(2, "a", 0)]
    first = one.rows(*given, late=True)
    assert first == other.rows(*given, late=True), "replaying gives the same"
    assert first[0][1] != first[1][1]
    assert first[0][2:] == (START, [("a", True)], 1, 1)
    second = one.rows(*given)
    assert second[0][1] != first[0][1]
    assert second[0][3:] == ([("a", False)], 2, 1)


def test_it_runs_in_milliseconds() -> None:
    harness = KeyedHarness(Balance)
    began = time.perf_counter()
    for n in range(100):
        harness.rows(Order(n % 10, "a", 1.0))
    assert (time.perf_counter() - began) / 100 < 0.02


def test_a_default_that_could_be_changed_in_place_is_refused() -> None:
    @dataclass
    class Accumulator:
        n: int = 0

    with refused(sf.UsageError, "shared by all keys", "default=Accumulator"):
        sf.ValueState(Accumulator, default=Accumulator())
    assert sf.ValueState(Accumulator, default=Accumulator).default is Accumulator


def test_a_timer_that_is_set_again_to_where_it_was_waits_for_the_next_batch() -> None:
    class Restless(sf.KeyedProcess[int, Any, str]):
        tick = sf.Timer("processing")

        def process(self, key: int, rows: Any, ctx: sf.Context) -> None:
            self.tick.set(timedelta(0))

        @tick.fires
        def again(self, key: int, at: datetime, ctx: sf.Context) -> Any:
            self.tick.set(timedelta(0))
            yield f"{key} fired"

    harness = sf.testing.KeyedHarness(Restless, key=lambda row: row)
    assert harness.rows(1) == ["1 fired"]
    # Once for where it was, once for the now that it was set to; then it would be set to where it is.
    assert harness.advance(now=timedelta(seconds=1)) == ["1 fired", "1 fired"]


class Before(sf.KeyedProcess[int, Order, str]):
    spent = sf.ValueState(int)
    late = sf.Timer("event")
    seen = sf.OperatorListState(int)
    rates = sf.BroadcastState(str, int)

    @late.fires
    def on_late(self, key: int, at: datetime, ctx: sf.Context) -> Iterator[str]:
        yield f"before {key}"

    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Iterator[str]:
        for row in rows:
            self.spent.value = (self.spent.value or 0) + int(row.amount)
            self.late.set(row.ts + timedelta(hours=1))
            self.seen.add(key)
        yield repr((self.spent.value, self.seen.get(), self.rates))

    def process_broadcast(self, name: str, rows: Iterator[Any], ctx: sf.Context) -> None:
        self.rates.update(dict(rows))


class Later(sf.KeyedProcess[int, Order, str]):
    paid = sf.ValueState(float, aliases=["spent"])
    idle = sf.Timer("event", aliases=["late"])
    keys = sf.OperatorListState(float, aliases=["seen"])
    rates = sf.BroadcastState(str, float | None)

    @idle.fires
    def on_idle(self, key: int, at: datetime, ctx: sf.Context) -> Iterator[str]:
        yield f"later {key}"

    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Iterator[str]:
        yield repr((self.paid.value, self.keys.get(), self.rates, len(list(rows))))


def test_a_later_release_goes_on_with_state_timers_and_operator_state() -> None:
    before = KeyedHarness(Before)
    before.broadcast("rates", ("EUR", 2))
    before.rows(Order(1, "tea", 5.0), Order(2, "tea", 7.0))
    later = KeyedHarness(Later, after=before)
    assert later.rows(Order(2, "tea", 1.0)) == ["(7.0, [1.0, 2.0], {'EUR': 2.0}, 1)"]
    assert later.advance(at(90)) == ["later 1", "later 2"]
    assert before.rows(Order(1, "tea", 1.0)) == ["(6, [1, 2, 1], {'EUR': 2})"], "the earlier one is as it was"
    again = KeyedHarness(Later, after=later)
    assert again.rows(Order(1, "tea", 0.0)) == ["(5.0, [1.0, 2.0], {'EUR': 2.0}, 1)"]


def test_a_release_that_a_run_would_refuse_is_refused() -> None:
    class Empty(sf.KeyedProcess[int, Order, str]):
        other = sf.ValueState(str)

        def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> None: ...

    class Narrow(sf.KeyedProcess[int, Order, str]):
        spent = sf.ValueState(bool)

        def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> None: ...

    before = KeyedHarness(Before)
    before.rows(Order(1, "tea", 5.0))
    with refused(sf.IncompatibleError, "would begin empty"):
        KeyedHarness(Empty, after=before)
    with refused(sf.IncompatibleError, "int cannot become bool by itself"):
        KeyedHarness(Narrow, after=before)


TWO = "user long, shop long, n long"


def test_a_release_with_another_key_is_refused_as_a_run_would_be() -> None:
    def counted(*key: str, rows: str = TWO) -> ColumnarHarness:
        return ColumnarHarness(
            lambda table, state: table, rows, key=key, state={"n": int}, output=rows, after=before
        )

    before: ColumnarHarness | None = None
    before = counted("user", "shop")
    counted("user", "shop")
    with refused(sf.IncompatibleError, "keyed by user, shop", "keyed by shop, user now", "old order"):
        counted("shop", "user")
    with refused(sf.IncompatibleError, "keyed by user", "now", "new uid"):
        counted("user")
    with refused(sf.IncompatibleError, "(int, str)", "cast the key back"):
        counted("user", "shop", rows="user long, shop string, n long")

    class Two(sf.KeyedProcess[tuple[int, int], Order, Any]):
        n = sf.ValueState(int)

    def keyed(*key: str, after: KeyedHarness | None = None, key_type: Any = tuple[int, int]) -> KeyedHarness:
        return KeyedHarness(Two, key=key, key_type=key_type, after=after)

    first = keyed("user", "sku")
    keyed("user", "sku", after=first)
    with refused(sf.IncompatibleError, "keyed by sku, user now"):
        keyed("sku", "user", after=first)
    with refused(sf.IncompatibleError, "(int, str)"):
        keyed("user", "sku", after=first, key_type=tuple[int, str])
