"""Which states are looked up for all keys of a chunk at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from stateflow.state.backends.base import Backend
from stateflow.state.many_timers import BoundTimers
from stateflow.state.single_values import StoredState
from stateflow.state.timers import BoundTimer

SHARE: Final = 0.5
"""A batched look-up pays when at least this share of the keys reads the state."""
_States = Sequence[StoredState[object] | BoundTimer | BoundTimers]
_NONE_KNOWN: Final[Mapping[int, Sequence[bytes | None]]] = {}


class ChunkReads:
    """Those of one operator's states, whose chunks of keys follow each other."""

    def __init__(self, states: _States) -> None:
        self._states = states
        self._often: set[int] = set()
        self._ever: set[int] = set()
        self._begun = False

    def begin(
        self,
        backend: Backend,
        count: int,
        keys_for: Callable[[int], list[bytes]],
        known: Mapping[int, Sequence[bytes | None]] = _NONE_KNOWN,
    ) -> dict[int, list[bytes]]:
        """Begins the chunk in every state; `known` is what has been read already, by state id. Gives the full keys that were made."""
        made: dict[int, list[bytes]] = {}
        for state in self._states:
            number = state.state_id
            raws = known.get(number)
            if raws is None and number in self._often:
                keys = made[number] = keys_for(number)
                raws = backend.get_many(keys)
            elif raws is None and backend.is_afar and (number in self._ever or not self._begun):
                # A key by itself would wait for the store. Nobody knows what the first chunk reads.
                backend.expect(keys_for(number))
            state.begin(count, raws)
        return made

    def end(self, count: int) -> None:
        """What nearly every key has read is looked up for all keys of the next chunk at once."""
        for state in self._states:
            if state.reads:
                self._ever.add(state.state_id)
                if state.reads >= SHARE * count:
                    self._often.add(state.state_id)
            state.reads = 0
        self._begun = True
