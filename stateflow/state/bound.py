"""States as user code holds them, each bound to the key that its task processes.

A task makes one object per declared state. What user code has read stays valid until the next key. A state that a key
does not touch costs that key nothing.
"""

from __future__ import annotations

from stateflow.state.cursor import BoundState, Change, Cursor
from stateflow.state.lists_and_maps import BoundListState, BoundMapState
from stateflow.state.many_timers import BoundTimers
from stateflow.state.operator_lists import BoundOperatorList, BoundUnionList
from stateflow.state.single_values import (
    BoundAggregatingState,
    BoundReducingState,
    BoundValueState,
    StoredState,
)
from stateflow.state.timers import BoundTimer

__all__ = [
    "BoundAggregatingState",
    "BoundListState",
    "BoundMapState",
    "BoundOperatorList",
    "BoundReducingState",
    "BoundState",
    "BoundTimer",
    "BoundTimers",
    "BoundUnionList",
    "BoundValueState",
    "Change",
    "Cursor",
    "StoredState",
]
