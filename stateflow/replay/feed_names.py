"""Rows of a feed have the name that the state had in their time. A replay compares them as rows of the state, whatever its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from stateflow.format.records import OperatorState
from stateflow.format.state_names import names_in
from stateflow.pipelines.feed_readers import fed_by
from stateflow.pipelines.flow import Flow
from stateflow.state.change_rows import ChangeRows


@dataclass(frozen=True, slots=True)
class RenamedFeed:
    """A feed that reaches a sink, and whose state had another name when the sink got its rows."""

    operator: str
    state: str
    former: str
    column: str
    """The one that has the state's name; empty if a step has taken it away."""

    def note(self, sink: str, slots: Sequence[int]) -> str:
        where = (
            f"checkpoint {slots[0]}"
            if len(slots) == 1
            else f"{len(slots)} checkpoints, {slots[0]} to {slots[-1]}"
        )
        named = f"state {self.state!r} of operator {self.operator!r} was called {self.former!r} in {where}"
        if self.column:
            return f"{named}: its feed's rows for sink {sink!r} are compared as if column {self.column!r} had said {self.state!r}"
        return f"{named}: rows for sink {sink!r} into which a step puts that name of its feed differ by it"


def renamed_feeds(
    flow: Flow,
    sink: str,
    columns: Sequence[str],
    then: Mapping[str, OperatorState],
    now: Mapping[str, OperatorState],
) -> Iterator[RenamedFeed]:
    """`columns`: of the sink's rows. `then` and `now`: the operators when the sink got its rows, and of the batch that ran again."""
    (node,) = (each for each in flow.sinks if each.uid == sink)
    for uid, state in fed_by(flow, node):
        if uid in then and uid in now:
            former = names_in(now[uid].states, then[uid].states).get(state, state)
            if former != state:
                column = ChangeRows(now[uid].key, state, now[uid].states[state]).state_column
                yield RenamedFeed(uid, state, former, column if column in columns else "")


def under_todays_name(rows: pa.Table, renamed: RenamedFeed) -> pa.Table:
    if renamed.column not in rows.column_names:
        return rows  # there were none
    at = rows.column_names.index(renamed.column)
    names = rows.column(at)
    if not pa.types.is_string(names.type):
        return rows
    todays = pc.if_else(pc.equal(names, renamed.former), renamed.state, names)
    return rows.set_column(at, rows.schema.field(at), todays)
