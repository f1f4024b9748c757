"""Finds the values of a batch that their groups have not had before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.format.scalars import BY_NAME
from stateflow.operators.combined import COUNTED, MARKS, counts_by_column, value_name
from stateflow.operators.ready.aggregates.inputs import Inputs
from stateflow.operators.ready.aggregates.kept_columns import kept
from stateflow.operators.ready.aggregates.partials import CountedRows
from stateflow.operators.ready.grouping.groups import Groups, whole
from stateflow.operators.ready.grouping.pairs import MOST_CONDITIONS, Pairs, pairs_of, reduced
from stateflow.pipelines.ready.aggregates import Aggregated
from stateflow.pipelines.ready.operators import SEEN, VALUE, distinct_state
from stateflow.state.keys.arrow_types import ARROW, wide

Counted = tuple[Sequence[Aggregated], Pairs]
"""The aggregates that count the values of one column, and these values, with a bit for each of the aggregates."""


@dataclass(frozen=True)
class Seen:
    """The states that have the single values, for the groups of a batch. `keep` writes the new ones: rows that are diverted
    must leave nothing behind."""

    states: Mapping[str, Any]
    at: Any = None
    """For windows: when the window of each group ends, as an Arrow array."""
    _new: list[Callable[[], None]] = field(default_factory=list)
    _sizes: list[int] = field(default_factory=list)

    def unseen(self, counted: Iterable[Counted], keys: pa.Table) -> dict[str, CountedRows]:
        """By names of aggregates: a row for each value that is new to its group, without the value itself. `keys` has a row per
        group."""
        found: dict[str, CountedRows] = {}
        for alike, pairs in counted:
            self._sizes.append(len(pairs.owners))
            found |= self._unseen(alike, pairs, keys)
        return found

    @property
    def values(self) -> int:
        """How many different values the batch had, counted per column."""
        return sum(self._sizes)

    def _unseen(self, alike: Sequence[Aggregated], pairs: Pairs, keys: pa.Table) -> dict[str, CountedRows]:
        """The new values of one column. The states of its aggregates have entries of one form, so these are sorted and encoded
        once."""
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
            found[each.name] = CountedRows(owners, None)
        return found

    def keep(self) -> None:
        """Writes the new values to the states."""
        for put in self._new:
            put()


def counted_in(aggregates: Sequence[Aggregated], inputs: Inputs) -> Iterator[Counted]:
    """The values of a batch's rows."""
    groups = inputs.groups
    for counts in counts_by_column(aggregates).values():
        for begin in range(0, len(counts), MOST_CONDITIONS):
            alike = counts[begin : begin + MOST_CONDITIONS]
            conditions = [inputs.meets(each) for each in alike]
            yield (
                alike,
                pairs_of(groups.ids, groups.size, _typed(alike[0], inputs.column(alike[0])), conditions),
            )


def counted_before(aggregates: Sequence[Aggregated], rows: pa.Table, groups: Groups) -> Iterator[Counted]:
    """The values that combined rows bring."""
    which, every = rows[COUNTED].to_numpy(), rows[MARKS].to_numpy().view(np.uint64)
    for number, alike in enumerate(counts_by_column(aggregates).values()):
        mine = which == number
        values = kept(whole(rows[value_name(number)].filter(pa.array(mine))))
        yield alike, reduced(groups.ids[mine], groups.size, _typed(alike[0], values), every[mine])


def _typed(each: Aggregated, column: Any) -> Any:
    assert each.value is not None
    return column.cast(wide(ARROW[_NAMES[each.value]]))


_NAMES = {kind.type: name for name, kind in BY_NAME.items()}
_MARK = pa.table({SEEN: np.ones(1, dtype=bool)})
