"""What is read is a value: changed in place and not set, the change is lost, and the harness tells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

import stateflow as sf
from stateflow.testing import KeyedHarness


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
