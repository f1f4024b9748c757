"""Who may write broadcast state, and what a write elsewhere ends in."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from stateflow.state.broadcast_map import BoundBroadcast, BroadcastWriteError, writing
from stateflow.state.values.serializers import serializer_for
from tests.refusals.refusal import refused


def bound(kind: Any, values: Any) -> BoundBroadcast[Any, Any]:
    state: BoundBroadcast[Any, Any] = BoundBroadcast("op", "rates", serializer_for(kind))
    state.load(values)
    return state


WRITES: dict[str, Callable[[Any], Any]] = {
    "item": lambda rates: rates.__setitem__("tea", 2.0),
    "delete": lambda rates: rates.__delitem__("tea"),
    "clear": lambda rates: rates.clear(),
    "pop": lambda rates: rates.pop("tea"),
    "pop of nothing": lambda rates: rates.pop("jam", None),
    "popitem": lambda rates: rates.popitem(),
    "setdefault": lambda rates: rates.setdefault("jam", 2.0),
    "update": lambda rates: rates.update(jam=2.0),
    "update of pairs": lambda rates: rates.update([("jam", 2.0)]),
    "or": lambda rates: rates.__ior__({"jam": 2.0}),
}


@pytest.mark.parametrize("write", WRITES)
def test_each_way_to_write_is_refused_outside_of_process_broadcast_and_open_in_it(write: str) -> None:
    state, plain = bound(dict[str, float], {"tea": 1.0}), {"tea": 1.0}
    with refused(BroadcastWriteError, "operator 'op'", "writes broadcast state 'rates'"):
        WRITES[write](state)
    assert state.recorded() == [{"tea": 1.0}]
    with writing([state]):
        assert WRITES[write](state) == WRITES[write](plain)
    assert state.recorded() == [plain]
    with pytest.raises(BroadcastWriteError):
        WRITES[write](state)


def test_it_reads_and_copies_as_a_dict() -> None:
    state = bound(dict[str, float], {"tea": 1.0})
    assert (state["tea"], state.get("jam"), "tea" in state, len(state)) == (1.0, None, True, 1)
    assert state == {"tea": 1.0}
    assert repr(state) == "{'tea': 1.0}"
    for mine in (state | {}, state.copy(), copy.copy(state), copy.deepcopy(state), dict(state)):
        mine["jam"] = 2.0
        assert type(mine) is dict
    assert type(pickle.loads(pickle.dumps(state))) is dict
    assert state == {"tea": 1.0}


def test_a_value_that_is_changed_in_place_is_found_when_the_map_is_recorded() -> None:
    state = bound(dict[str, list[int]], {"tea": [1]})
    with writing([state]):
        state["jam"] = [2]
        state["tea"].append(2)
    assert state.recorded() == [{"tea": [1, 2], "jam": [2]}]
    state["tea"].append(3)
    with refused(BroadcastWriteError, "broadcast state 'rates'", "changed in place"):
        state.recorded()
