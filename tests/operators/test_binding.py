"""Declared states become bound ones, and the schemas that a record keeps."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

import stateflow as sf
from stateflow.operators.binding import bind, schemas
from stateflow.state.cursor import Cursor
from tests.refusals.refusal import refused


class Base(sf.KeyedProcess[int, Any, Any]):
    total = sf.ValueState(float, default=0.0, queryable=True)


class Full(Base):
    skus = sf.ListState(str, ttl="1 day")
    per_day = sf.MapState(datetime, list[int], aliases=["days"])
    most = sf.ReducingState(int, max)
    mean = sf.AggregatingState(
        list[float], create=list, add=lambda a, v: [*a, v], result=lambda a: sum(a) / len(a)
    )
    idle = sf.Timer("event")
    seen = sf.OperatorListState(int)
    rates = sf.BroadcastState(str, float)

    @idle.fires
    def on_idle(self, key: int, at: datetime, ctx: sf.Context) -> None: ...


IDS = {"total": 1, "skus": 2, "per_day": 3, "most": 4, "mean": 5, "idle": 6}


def test_the_record_is_told_kind_type_and_options_of_every_keyed_state() -> None:
    found = {
        n: (s.kind, s.value, s.map_key, s.ttl, s.queryable, s.aliases) for n, s in schemas(Full, "op").items()
    }
    assert found == {
        "total": ("value", "float", "", None, True, ()),
        "skus": ("list", "str", "", 86_400_000_000, False, ()),
        "per_day": ("map", "list<int>", "datetime", None, False, ("days",)),
        "most": ("reducing", "int", "", None, False, ()),
        "mean": ("aggregating", "list<float>", "", None, False, ()),
        "idle": ("timer", "event", "", None, False, ()),
    }


def test_states_are_bound_per_instance_and_stay_declarations_on_the_class() -> None:
    one, other = Full(), Full()
    binding = bind(one, "op", Cursor(1, 0), IDS)
    bind(other, "op", Cursor(1, 0), IDS)
    assert isinstance(Full.total, sf.ValueState)
    assert one.total is not other.total
    assert [state.name for state in binding.stored] == ["total", "most", "mean"]
    assert binding.handlers["idle"] == one.on_idle
    assert one.seen.get() == []
    assert one.rates == {}


def test_state_is_not_to_be_had_outside_of_a_run() -> None:
    with refused(sf.UsageError, "outside of a run", "test a process with"):
        Full().skus.add("x")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (sf.ValueState(object), "operator 'op', state 'state': "),
        (sf.MapState(float, int), "operator 'op', state 'state': float cannot be a key"),
        (sf.ListState(list[object]), "operator 'op', state 'state': "),
    ],
)
def test_a_type_that_cannot_be_stored_names_operator_and_state(state: Any, message: str) -> None:
    made = type("Made", (sf.KeyedProcess,), {"state": state})
    with pytest.raises(sf.StateflowError) as caught:
        schemas(made, "op")
    assert str(caught.value).startswith(message)


def test_a_second_state_of_one_name_in_a_class_is_refused_and_named() -> None:
    with refused(sf.UsageError, "state 'total' is declared twice", "Twice"):

        class Twice(sf.KeyedProcess[int, Any, Any]):
            total = sf.ValueState(float, default=0.0)
            total = sf.ValueState(int, default=0)  # type: ignore[assignment]  # noqa: PIE794
