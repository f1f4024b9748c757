"""What is read is a value: changed in place and not set, the change is lost, and the harness tells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest

import stateflow as sf
from stateflow.testing import KeyedHarness, PartitionHarness
from tests.refusals.refusal import refused


@dataclass
class Order:
    user: int
    sku: str


@dataclass
class Cart:
    skus: list[str] = field(default_factory=list)


class Carts(sf.KeyedProcess[int, Order, str]):
    """Does what the row's sku says."""

    cart = sf.ValueState(Cart)
    skus = sf.ValueState(list[str], default=list)
    by_day = sf.MapState(str, list[str])
    all = sf.ListState(Cart)
    folded = sf.ReducingState(list[str], lambda one, other: one + other)

    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Iterator[str]:
        for row in rows:
            match row.sku:
                case "begin":
                    self.cart.value = Cart(["x"])
                    self.skus.value = ["x"]
                    self.by_day["monday"] = ["x"]
                    self.all.add(Cart(["x"]))
                    self.folded.add(["x"])
                case "value in place":
                    self.cart.value.skus.append("lost")
                case "default in place":
                    self.skus.value.append("lost")
                case "map in place":
                    self.by_day["monday"].append("lost")
                case "list in place":
                    next(iter(self.all)).skus.append("lost")
                case "folded in place":
                    (self.folded.get() or []).append("lost")
                case "set afterwards":
                    cart = self.cart.value
                    cart.skus.append("kept")
                    self.cart.value = cart
                    days = self.by_day["monday"]
                    days.append("kept")
                    self.by_day["monday"] = days
                    carts = self.all.get()
                    carts[0].skus.append("kept")
                    self.all.update(carts)
        yield "done"


@pytest.mark.parametrize(
    ("what", "state", "advice"),
    [
        ("value in place", "cart", "self.cart.value = value"),
        ("default in place", "skus", "self.skus.value = value"),
        ("map in place", "by_day", r"self.by_day\[key\] = value"),
        ("list in place", "all", r"self.all.update\(values\)"),
        ("folded in place", "folded", "self.folded"),
    ],
)
@pytest.mark.parametrize("on_error", ["fail", "dead_letter"])
def test_a_value_changed_in_place_and_not_set_is_told(
    what: str, state: str, advice: str, on_error: str
) -> None:
    harness = KeyedHarness(Carts, on_error=on_error)
    key = 2 if what == "default in place" else 1
    harness.rows(Order(1, "begin"))
    before = harness.snapshot(1)
    with pytest.raises(sf.UsageError, match=rf"state '{state}', key {key}: .*lost.*not set.*{advice}"):
        harness.rows(Order(key, what))
    assert harness.snapshot(1) == before


def test_a_value_changed_and_set_is_fine() -> None:
    harness = KeyedHarness(Carts)
    harness.rows(Order(1, "begin"))
    harness.rows(Order(1, "set afterwards"))
    found = harness.snapshot(1)
    assert (found["cart"], found["by_day"], found["all"]) == (
        Cart(["x", "kept"]),
        {"monday": ["x", "kept"]},
        [Cart(["x", "kept"])],
    )


class Baskets(sf.KeyedProcess[int, Order, str]):
    """Adds to lists that it has read from a map, and does then with their entries what the row's sku says."""

    lists = sf.MapState(str, list[str], namespace=str)

    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Iterator[str]:
        lists, there = self.lists, self.lists.at("there")
        for row in rows:
            if row.sku == "begin":
                lists["full"], lists["open"], there["full"] = ["x"], ["x"], ["x"]
                continue
            if "items" in row.sku:
                full, left = (value for _, value in lists.items())
            else:
                full, left = lists["full"], lists["open"]
            full.append("added")
            match row.sku.split(", "):
                case ["deleted", *_]:
                    del lists["full"]
                case ["popped", *_]:
                    lists.pop("full")
                    yield ",".join(full)
                case ["popped after a set", *_]:
                    lists["full"] = full
                    lists.pop("full")
                case ["replaced", *_]:
                    lists["full"] = ["new"]
                case ["moved", *_]:
                    del lists["full"]
                    there["moved"] = full
                case ["other deleted", *_]:
                    del lists["open"]
                case ["deleted elsewhere", *_]:
                    del there["full"]
                case ["cleared elsewhere", *_]:
                    there.clear()
                case ["deleted and another changed", *_]:
                    del lists["full"]
                    left.append("lost")


@pytest.mark.parametrize(
    ("what", "full"),
    [
        ("deleted", None),
        ("popped", None),
        ("popped after a set", None),
        ("moved", None),
        ("replaced", ["new"]),
    ],
)
@pytest.mark.parametrize("read", ["", ", by items()"])
def test_what_is_changed_and_then_deleted_or_replaced_in_a_map_is_fine(
    what: str, full: list[str] | None, read: str
) -> None:
    harness = KeyedHarness(Baskets)
    harness.rows(Order(1, "begin"))
    assert harness.rows(Order(1, what + read)) == (["x,added"] if what == "popped" else [])
    found = harness.snapshot(1)["lists"]
    assert found[None] == {"open": ["x"]} | ({"full": full} if full else {})
    assert found["there"].get("moved") == (["x", "added"] if what == "moved" else None)


@pytest.mark.parametrize(
    "what", ["other deleted", "deleted elsewhere", "cleared elsewhere", "deleted and another changed"]
)
@pytest.mark.parametrize("read", ["", ", by items()"])
def test_another_entry_that_is_deleted_excuses_nothing(what: str, read: str) -> None:
    harness = KeyedHarness(Baskets)
    harness.rows(Order(1, "begin"))
    with refused(sf.UsageError, "state 'lists'", "not set", "self.lists[key] = value"):
        harness.rows(Order(1, what + read))


class Failing(sf.KeyedProcess[int, Order, str]):
    """Changes and sets what it has read, in rows, timers and visits, and fails then for one key."""

    skus = sf.ValueState(list[str], default=list)
    by_day = sf.MapState(str, list[str])
    alarm = sf.Timer("processing")
    fails = sf.BroadcastState(str, int)

    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Iterator[str]:
        for row in rows:
            if row.sku == "begin":
                self.skus.value, self.by_day["monday"] = ["x"], ["x"]
                self.alarm.set(ctx.now + timedelta(minutes=1))
            else:
                yield from self.add(key)

    def process_broadcast(self, name: str, rows: Iterator[int], ctx: sf.Context) -> None:
        for key in rows:
            self.fails["key"] = key
            ctx.for_each_key(self.skus, lambda key, ctx: self.add(key))

    @alarm.fires
    def ring(self, key: int, at: datetime, ctx: sf.Context) -> Iterator[str]:
        yield from self.add(key)

    def add(self, key: int) -> Iterator[str]:
        skus, days = self.skus.value, self.by_day["monday"]
        if key == self.fails.get("key"):
            skus.append("discarded")
            self.skus.value = skus
            days.append("discarded")
            self.by_day["monday"] = days
            yield "half of it"
            raise ValueError("after all")
        yield ",".join(skus + days)


@pytest.mark.parametrize("failing", [1, 2, 3])
@pytest.mark.parametrize("where", ["rows", "timers", "visits"])
def test_nobody_is_told_of_what_a_key_had_read_whose_writes_are_discarded(where: str, failing: int) -> None:
    harness = KeyedHarness(Failing, on_error="dead_letter")
    harness.rows(*(Order(key, "begin") for key in (1, 2, 3)))
    put_out = harness.broadcast("fails", failing)
    if where == "rows":
        put_out = harness.rows(*(Order(key, "read") for key in (1, 2, 3)))
    elif where == "timers":
        put_out = harness.advance(now=timedelta(minutes=1))
    assert put_out == ["x,x"] * 2
    letters = ["ValueError: after all"] * (1 if where == "visits" else 2)
    assert [letter[2] for letter in harness.dead_letters] == letters
    found = harness.snapshot(failing)
    assert (found["skus"], found["by_day"]) == (["x"], {"monday": ["x"]})


class Logs(sf.PartitionProcess[Any, Any]):
    """Does what the row says with elements of the operator's own."""

    own = sf.OperatorListState(list[str])
    shared = sf.UnionListState(Cart)

    def process(self, rows: Iterator[str], ctx: sf.Context) -> Iterator[str]:
        for row in rows:
            match row:
                case "begin":
                    self.own.add(["x"])
                    self.shared.add(Cart(["x"]))
                case "own in place":
                    self.own.get()[0].append("lost")
                case "shared in place":
                    self.shared.get()[0].skus.append("lost")
                case "set afterwards":
                    logs, carts = self.own.get(), self.shared.get()
                    logs[0].append("kept")
                    carts[0].skus.append("kept")
                    self.own.update(logs)
                    self.shared.update(carts)
                case "only read":
                    assert (self.own.get(), self.shared.get()) == ([["x"]], [Cart(["x"])])
        yield "done"


@pytest.mark.parametrize("state", ["own", "shared"])
def test_an_element_of_an_operator_changed_in_place_and_not_set_is_told(state: str) -> None:
    harness = PartitionHarness(Logs, output="done string")
    harness.rows("begin")
    with refused(sf.UsageError, repr(state), "'lost'", f"write self.{state}.update(values)"):
        harness.rows(f"{state} in place")
    harness.rows("only read")
    harness.rows("set afterwards")
    process = harness.state()
    assert (process.own.get(), process.shared.get()) == ([["x", "kept"]], [Cart(["x", "kept"])])


class Keys(sf.KeyedProcess[int, Order, str]):
    seen = sf.OperatorListState(list[int])

    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> None:
        for row in rows:
            if row.sku == "begin":
                self.seen.add([])
            else:
                self.seen.get()[0].append(key)
            if row.sku == "bad":
                raise ValueError("no such sku")


def test_a_dead_letter_takes_back_what_it_did_to_an_element_of_the_operator() -> None:
    harness = KeyedHarness(Keys, output="sku string", on_error="dead_letter")
    harness.rows(Order(1, "begin"))
    harness.rows(Order(2, "bad"))
    assert len(harness.dead_letters) == 1
    assert harness.state(1).seen.get() == [[]]
    with refused(sf.UsageError, "'seen'", "[2]", "write self.seen.update(values)"):
        harness.rows(Order(2, "good"))
