"""The values that a group has had: what is new among those of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.format.scalars import BY_NAME
from stateflow.operators.ready.inputs import Inputs
from stateflow.operators.ready.pairs import MOST_CONDITIONS, Pairs, pairs_of
from stateflow.operators.ready.partials import Values
from stateflow.pipelines.aggregates import Aggregated
from stateflow.pipelines.ready import SEEN, VALUE, distinct_state
from stateflow.state.keys.arrow_types import ARROW


@dataclass(frozen=True)
class Seen:
    """The states that know single values, for the groups of a batch. What is new goes to them with `keep`: rows that are
    diverted must leave nothing behind."""

    states: Mapping[str, Any]
    at: Any = None
    """For windows: when the window of each group ends, as an Arrow array."""
    _new: list[Callable[[], None]] = field(default_factory=list)

    def unseen(self, aggregates: Sequence[Aggregated], inputs: Inputs, keys: pa.Table) -> dict[str, Values]:
        """By the names of the aggregates that count values: a row for each value that its group has not had, without the value.
        `keys` has a row per group."""
        found: dict[str, Values] = {}
        for alike in _of_one_column(aggregates):
            kind = alike[0].value
            assert kind is not None
            column = inputs.column(alike[0]).cast(ARROW[_NAMES[kind]])
            groups, conditions = inputs.groups, [inputs.meets(each) for each in alike]
            found |= self._unseen(alike, pairs_of(groups.ids, groups.size, column, conditions), keys)
        return found

    def _unseen(self, alike: Sequence[Aggregated], pairs: Pairs, keys: pa.Table) -> dict[str, Values]:
        """Of aggregates of one column. Their states have entries of one form, so that these are sorted and encoded once."""
        states = [self.states[distinct_state(each.name)] for each in alike]
        shared = states[0].shared(keys, pairs.owners, by=pa.table({VALUE: pairs.values}), at=self.at)
        pairs, found = pairs.in_order(shared.order), {}
        for n, (each, state) in enumerate(zip(alike, states, strict=True)):
            chosen = pairs.among(n)
            entries = state.of_shared(shared, chosen)
            is_new = state.lacks(entries, SEEN)
            owners = pairs.owners if chosen is None else pairs.owners[chosen]
            if not bool(is_new.all()):
                entries, owners = list(compress(entries, is_new.tolist())), owners[is_new]
            self._new.append(partial(state.put_shared, entries, _MARK))
            found[each.name] = Values(owners, None)
        return found

    def keep(self) -> None:
        """The states know the new values from now on."""
        for put in self._new:
            put()


def _of_one_column(aggregates: Sequence[Aggregated]) -> Iterator[Sequence[Aggregated]]:
    by_column: dict[str, list[Aggregated]] = {}
    for each in aggregates:
        by_column.setdefault(each.aggregate.column, []).append(each)
    for alike in by_column.values():
        for begin in range(0, len(alike), MOST_CONDITIONS):
            yield alike[begin : begin + MOST_CONDITIONS]


_NAMES = {kind.type: name for name, kind in BY_NAME.items()}
_MARK = pa.table({SEEN: np.ones(1, dtype=bool)})
