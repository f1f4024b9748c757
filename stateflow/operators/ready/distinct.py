"""The values that a group has had: what is new among those of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.format.scalars import BY_NAME
from stateflow.operators.ready.groups import grouped, whole
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

    def unseen(self, each: Aggregated, values: Values, keys: pa.Table) -> Values:
        """One row for each value that its group has not had."""
        assert each.value is not None
        column = values.column.cast(ARROW[_NAMES[each.value]])
        firsts = pa.array(grouped([pa.array(values.ids), column], len(values.ids)).firsts)
        ids, column = pa.array(values.ids).take(firsts), column.take(firsts)
        owners, state = keys.take(ids), self.states[distinct_state(each.name)]
        by = pa.table({VALUE: column})
        at = None if self.at is None else self.at.take(ids)
        is_new = whole(state.get(owners, by=by, at=at)[SEEN]).is_null()
        fresh = ids.filter(is_new)
        marks = pa.table({SEEN: np.ones(len(fresh), dtype=bool)})
        at = None if at is None else at.filter(is_new)
        self._new.append(partial(state.put, owners.filter(is_new), marks, by=by.filter(is_new), at=at))
        return Values(fresh.to_numpy(), column.filter(is_new))

    def keep(self) -> None:
        """The states know the new values from now on."""
        for put in self._new:
            put()


_NAMES = {kind.type: name for name, kind in BY_NAME.items()}
