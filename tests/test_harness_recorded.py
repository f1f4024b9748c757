"""A harness that stands where a job stood: an operator of a pipeline, with state, time, chance and watermarks that are given."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

import stateflow as sf
from stateflow.errors import IncompatibleError, UsageError
from stateflow.format.encoding import prefix
from stateflow.format.instants import BEGIN_OF_TIME
from stateflow.format.keygroups import key_group
from stateflow.state.keys.codec import KeyCodec
from stateflow.testing import ColumnarHarness, KeyedHarness
from stateflow.testing.recorded import RecordedState
from tests.refusals.refusal import refused

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Price:
    amount: Decimal
    currency: str


class Everything(sf.KeyedProcess):
    total = sf.ValueState(float, default=0.0)
    price = sf.ValueState(Price)
    seen = sf.ListState(str)
    by_day = sf.MapState(str, int)
    most = sf.ReducingState(int, max)
    mean = sf.AggregatingState(list[int], create=list, add=lambda made, value: [*made, value], result=len)
    pages = sf.ValueState(int, namespace=str)
    remind = sf.Timer("event")
    visits = sf.Timer("event", many=True)
    brief = sf.ValueState(str, ttl=timedelta(hours=1))

    def process(self, user, rows, ctx):
        for row in rows:
            self.total.value += row.amount
            yield user, row.amount, ctx.late, ctx.random.random(), ctx.checkpoint_id, ctx.watermark

    @remind.fires
    def on_remind(self, user, when, ctx):
        self.seen.add(f"reminded at {when:%H:%M}")

    @visits.fires
    def on_visit(self, user, when, ctx):
        pass


def flow() -> sf.Flow:
    made = sf.Flow("orders")
    rows = made.source(
        "orders",
        lambda spark: None,
        "user string, amount double, ts timestamp",
        event_time="ts",
        watermark="0 seconds",
    )
    everything = rows.key_by("user").process(
        "everything",
        Everything,
        output="user string, amount double, late boolean, luck double, slot long, mark timestamp",
    )
    totals = everything.key_by("user").aggregate(
        "totals", "user string, amount double", amount=sf.sum("amount")
    )
    totals.for_each_batch("out", lambda frame, delivery: None)
    return made


STATES: dict[str, Any] = {
    "total": 2.5,
    "price": Price(Decimal("1.20"), "EUR"),
    "seen": ["a", "b"],
    "by_day": {"monday": 1, "friday": 2},
    "most": 7,
    "pages": {None: 1, "home": 3},
    "remind": START + timedelta(minutes=5),
    "visits": [START + timedelta(hours=5), START + timedelta(hours=6)],
    "brief": "not for long",
}


def test_states_that_are_put_are_those_that_a_snapshot_gives() -> None:
    harness = KeyedHarness.of(flow(), "everything")
    harness.put("ann", **STATES)

    assert harness.snapshot("ann") == STATES
    assert harness.snapshot("bob") == {}
    assert harness.shown("ann")["price"] == {"amount": "1.20", "currency": "EUR"}
    assert harness.shown("ann")["pages[home]"] == 3
    harness.advance(now=timedelta(hours=1))
    assert "brief" not in harness.snapshot("ann")
    assert "brief" not in harness.shown("ann")


def test_what_cannot_be_put_is_refused() -> None:
    harness = KeyedHarness.of(flow(), "everything")
    with refused(UsageError, "accumulator", "cannot be set"):
        harness.put("ann", mean=3.0)
    with refused(UsageError, "operator 'everything'", "no state 'totl'", "it has brief, by_day, mean"):
        harness.put("ann", totl=3.0)


def test_a_recorded_state_is_gone_on_with_also_from_its_text() -> None:
    first = KeyedHarness.of(flow(), "everything")
    first.put("ann", **STATES)
    text = first.recorded().text

    second = KeyedHarness.of(flow(), "everything", after=RecordedState.of_text(text))

    assert second.snapshot("ann") == STATES


def test_a_watermark_before_the_first_instant_is_that_instant() -> None:
    recorded = KeyedHarness.of(flow(), "everything").recorded()
    early = replace(recorded, watermark=BEGIN_OF_TIME - 600_000_000)

    harness = KeyedHarness.of(flow(), "everything", after=early)

    assert harness.watermark == datetime.min.replace(tzinfo=UTC)


def test_a_batch_stands_where_that_of_a_checkpoint_stood() -> None:
    harness = KeyedHarness.of(flow(), "everything", max_parallelism=16)
    harness.put("ann", remind=START + timedelta(minutes=5))
    harness.stand_at(slot=318, now=START, seed=99, watermark=START + timedelta(minutes=5))

    rows = [{"user": "ann", "amount": amount, "ts": START} for amount in (1.0, 2.0)]
    out = harness.rows(*rows, late=[False, True])

    base = prefix(key_group("ann", 16), 0) + KeyCodec(["str"]).encode("ann") + b"\0"
    chance = Random(f"99:{base.hex()}")
    assert [row[1:5] for row in out] == [
        (1.0, False, chance.random(), 318),
        (2.0, True, chance.random(), 318),
    ]
    assert harness.snapshot("ann") == {"total": 3.0, "seen": ["reminded at 00:05"]}


def test_rows_are_dicts_with_the_columns_of_the_input() -> None:
    harness = KeyedHarness.of(flow(), "everything")
    with refused(UsageError, "the columns user, amount, ts", "look at ts"):
        harness.rows({"user": "ann", "amount": 1.0})
    with refused(UsageError, "no operator 'totals'", "it has everything"):
        KeyedHarness.of(flow(), "totals")


def test_an_operator_behind_others_takes_rows_by_the_watermark_of_the_batch_before() -> None:
    made = sf.Flow("orders")
    rows = made.source(
        "orders", lambda spark: None, "user string, ts timestamp", event_time="ts", watermark="0 seconds"
    )
    windows = (
        rows.key_by("user")
        .window(sf.tumbling("1 minute"))
        .aggregate("windows", "user string, window_end timestamp, n long", n=sf.count())
    )
    marks = windows.key_by("user").process("marks", Marks, output="user string, mark timestamp")
    marks.for_each_batch("out", lambda frame, delivery: None)
    harness = KeyedHarness.of(made, "marks")
    row = {"user": "ann", "window_end": START, "n": 1}

    harness.stand_at(slot=5, now=START, seed=1, watermark=START + timedelta(hours=1), watermark_before=START)

    assert harness.rows(row) == [("ann", START)]
    assert harness.rows(row) == [("ann", START + timedelta(hours=1))], "then that of the next batch"
    own = KeyedHarness.of(made, "marks")
    own.advance(START)
    assert own.rows(row) == [("ann", START)], "without it, the watermark is the operator's own"


class Marks(sf.KeyedProcess):
    remind = sf.Timer("event")

    def process(self, user, rows, ctx):
        yield user, ctx.watermark

    @remind.fires
    def on_remind(self, user, when, ctx):
        pass


def test_an_expectation_is_the_sql_of_a_bisection() -> None:
    harness = KeyedHarness.of(flow(), "everything")
    harness.put("ann", total=2.5)
    harness.rows({"user": "ann", "amount": 120.0, "ts": START})

    harness.expect("value = previous + 120", of="total", key="ann")
    with pytest.raises(
        AssertionError,
        match=r"value < 100 does not hold: total of key 'ann' is 122.5, and was 2.5 before the batch",
    ):
        harness.expect("value < 100", of="total", key="ann")
    with pytest.raises(AssertionError, match=r"is None, and was None"):
        harness.expect("value < 100", of="total", key="bob")
    harness.expect("value IS NULL", of="total", key="bob")
    with refused(UsageError, "has no state 'totl'"):
        harness.expect("value < 100", of="totl", key="ann")


def test_a_columnar_operator_shows_and_expects_the_same_way() -> None:
    harness = ColumnarHarness.of(flow(), "totals")
    harness.rows({"user": "ann", "amount": 2.0, "late": False, "luck": 0.0, "slot": 1, "mark": START})

    (shown,) = harness.shown("ann").values()
    assert 2.0 in shown.values()
    again = ColumnarHarness.of(flow(), "totals", after=RecordedState.of_text(harness.recorded().text))
    assert again.shown("ann") == harness.shown("ann")
    assert again.shown("bob") == {}


def test_what_is_put_takes_the_place_of_all_that_there_was() -> None:
    harness = KeyedHarness.of(flow(), "everything")
    hours = [START + timedelta(hours=n) for n in range(3)]
    harness.put("ann", by_day={"mo": 1}, pages={None: 1, "home": 2}, most=9, visits=hours[:2], seen=["a"])
    second = {"by_day": {"tu": 2}, "pages": {"cart": 3}, "most": 4, "visits": hours[2:], "seen": ["b"]}

    harness.put("ann", **second)

    fresh = KeyedHarness.of(flow(), "everything")
    fresh.put("ann", **second)
    assert harness.snapshot("ann") == fresh.snapshot("ann")
    assert harness.shown("ann") == fresh.shown("ann")


def test_an_expectation_of_a_namespace_is_of_its_value() -> None:
    harness = KeyedHarness.of(flow(), "everything")
    harness.put("ann", pages={"home": 2, "cart": 5})
    harness.expect("value = 2", of="pages", key="ann", namespace="home")
    harness.expect("value IS NULL", of="pages", key="ann")
    with pytest.raises(AssertionError, match=r"pages\['cart'\] of key 'ann' is 5"):
        harness.expect("value = 2", of="pages", key="ann", namespace="cart")
    with refused(UsageError, "'total'", "no namespaces"):
        harness.expect("value = 2", of="total", key="ann", namespace="cart")


@pytest.mark.parametrize(("kind", "uid"), [(KeyedHarness, "everything"), (ColumnarHarness, "totals")])
def test_a_later_release_has_the_key_groups_of_the_state_and_the_time_of_the_test(
    kind: Any, uid: str
) -> None:
    row = {"user": "ann", "amount": 2.0, "late": False, "luck": 0.0, "slot": 1, "mark": START, "ts": START}
    inputs = {
        "everything": ("user", "amount", "ts"),
        "totals": ("user", "amount", "late", "luck", "slot", "mark"),
    }
    first = kind.of(flow(), uid, max_parallelism=8, now=START + timedelta(days=1))
    first.rows({name: row[name] for name in inputs[uid]})
    then = RecordedState.of_text(first.recorded().text)
    for given in ({}, {"max_parallelism": 8}):
        again = kind.of(flow(), uid, after=then, **given)
        assert again.recorded() == then
    assert kind.of(flow(), uid, after=then, now=START).now == START
    with refused(UsageError, "max_parallelism=8", "leave max_parallelism=128 out"):
        kind.of(flow(), uid, after=then, max_parallelism=128)


class Exchange(sf.ConnectedProcess):
    last = sf.ValueState(float)

    def process_left(self, user, rows, ctx):
        return ()

    def process_right(self, user, rows, ctx):
        return ()


def connected(*names: str) -> sf.Flow:
    made = sf.Flow("orders")
    rows = {
        name: made.source(name, lambda spark: None, "user string, amount double").key_by("user")
        for name in ("sold", "returned")
    }
    one, other = (rows[name] for name in names)
    one.connect(other).process("both", Exchange, output="user string").for_each_batch("out", print)
    return made


def test_a_release_whose_inputs_have_changed_places_is_refused() -> None:
    there, back = ("sold", "returned"), ("returned", "sold")
    first = KeyedHarness.of(connected(*there), "both")
    KeyedHarness.of(connected(*there), "both", after=first)
    with refused(IncompatibleError, "'both'", "changed places"):
        KeyedHarness.of(connected(*back), "both", after=RecordedState.of_text(first.recorded().text))
