"""States and rows that are taken for what they are not, in the harness."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

import stateflow as sf
from stateflow.errors import UserCodeError
from stateflow.testing import KeyedHarness
from tests.refusals.refusal import refused
from tests.test_harness import Order


class Handled(sf.KeyedProcess[int, Order, Any]):
    """Does with its states what a test says."""

    n = sf.ValueState(int, default=0)
    most = sf.ReducingState(int, max)
    mean = sf.AggregatingState(int, create=list, add=lambda made, value: [*made, value], result=len)
    one = sf.Timer("event")
    many = sf.Timer("event", many=True)
    does: Any = None

    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Any:
        return [Handled.does(self, rows)]

    @one.fires
    def fired(self, key: int, when: datetime, ctx: sf.Context) -> None: ...

    @many.fires
    def fired_too(self, key: int, when: datetime, ctx: sf.Context) -> None: ...


def handled(does: Callable[[Any, Any], Any]) -> Any:
    Handled.does = staticmethod(does)
    [got] = KeyedHarness(Handled).rows(Order(1, "a", 1.0), Order(1, "b", 2.0))
    return got


@pytest.mark.parametrize(
    ("name", "read"),
    [("n", ".value"), ("most", ".get()"), ("mean", ".get()"), ("one", ".at"), ("many", ".all()")],
)
@pytest.mark.parametrize(
    ("does", "what"),
    [
        (lambda state: 1 if state else 2, "tested"),
        (lambda state: not state, "tested"),
        (lambda state: state == 0, "compared"),
        (lambda state: state != "x", "compared"),
        (lambda state: state in (None, 1), "compared"),
    ],
)
def test_a_state_that_is_taken_for_its_value_says_how_it_is_read(
    name: str, read: str, does: Any, what: str
) -> None:
    message = f"{name!r} is a state, which is {what} as if it were its value: write self.{name}{read}"
    with pytest.raises(sf.UsageError, match=re.escape(message)):
        handled(lambda self, rows: does(getattr(self, name)))


def test_a_state_is_itself() -> None:
    assert handled(
        lambda self, rows: self.n == self.n and self.n in [self.one, self.n] and len({self.n, self.one}) == 2
    )


def test_a_part_that_a_state_lacks_is_told_with_those_that_it_has() -> None:
    parts = {
        "n": "value, at, exists, clear", "most": "get, add, at, exists, clear", "one": "set, at, clear, under",
        "many": "set, all, clear, clear_all, under",
    }  # fmt: skip
    for name, has in parts.items():
        with pytest.raises(sf.UsageError, match=f"state '{name}' has no 'update': it has {has}"):
            handled(lambda self, rows, name=name: getattr(self, name).update(1))
        assert handled(lambda self, rows, name=name: hasattr(getattr(self, name), "update")) is False


def test_a_default_that_fails_is_not_taken_for_a_missing_part() -> None:
    class Failing(sf.KeyedProcess[int, Order, int]):
        made = sf.ValueState(list[int], default=lambda: None.nothing)  # type: ignore[attr-defined]

        def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Iterator[int]:
            yield len(self.made.value)

    with refused(UserCodeError, "'NoneType' object", "no attribute 'nothing'"):
        KeyedHarness(Failing).rows(Order(1, "a", 1.0))


def test_rows_that_are_gone_through_twice_are_told() -> None:
    with refused(sf.UsageError, "come only once", "rows = list(rows)"):
        handled(lambda self, rows: (sum(row.amount for row in rows), sum(1 for row in rows)))
    assert handled(lambda self, rows: (next(rows).sku, [row.sku for row in rows], next(rows, None))) == (
        "a",
        ["b"],
        None,
    )
    assert handled(lambda self, rows: len(list(iter(rows)))) == 2


# ---- keys ----
