"""Aggregates that are added, taken out and put in another order over the state that there is."""

from __future__ import annotations

from typing import Any

import pytest

import stateflow as sf
from stateflow.compatibility.states import resolve_states
from stateflow.errors import IncompatibleError
from stateflow.pipelines.graph import KeyedNode
from tests.jobs.operators import operator_of

ROWS = "user long, amount double, name string, ts timestamp"


def node_of(output: str, **aggregates: Any) -> KeyedNode:
    @sf.pipeline("changed")
    def changed(flow: sf.Flow) -> None:
        source = flow.source("in", sf.delta("/in"), ROWS, event_time="ts", watermark="0 seconds")
        keyed = source.key_by("user", order_by="ts")
        windowed = "window_start" in output
        if windowed:
            keyed.window(sf.tumbling("10 seconds")).aggregate("op", output, **aggregates)
        else:
            keyed.aggregate("op", output, **aggregates)

    return changed.build().operators[0]


def test_an_aggregate_whose_values_change_their_type_is_refused() -> None:
    states, next_id = resolve_states(node_of("user long, x double", x=sf.max("amount")), None)
    record = operator_of(groups=16, states=states, next_state_id=next_id)
    with pytest.raises(IncompatibleError, match="x"):
        resolve_states(node_of("user long, x string", x=sf.max("name")), record, 7)
