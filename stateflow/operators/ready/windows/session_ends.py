"""Which sessions are over: `ends` tells when one ended at first, and a session that has grown since ends later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from stateflow.operators.ready.grouping.groups import whole
from stateflow.operators.ready.windows.assigning import instants
from stateflow.operators.ready.windows.windowed import micros
from stateflow.pipelines.ready.operators import SESSION_END, SESSION_START


def ended(
    states: Mapping[str, Any], key: Sequence[str], closed: int
) -> Iterator[tuple[pa.Table, pa.Table, pa.Table]]:
    """Keys, starts and entries of the sessions that ended up to then. Who takes them deletes their entries."""
    for entries in states["ends"].due(closed):
        keys, by = entries.select(list(key)), entries.select([SESSION_START])
        found = states["sessions"].get(keys, by=by)
        # Without an end: the session has become part of an earlier one.
        there = whole(found[SESSION_END]).is_valid()
        keys, by, found = keys.filter(there), by.filter(there), found.filter(there)
        ends = micros(found[SESSION_END])
        still = pa.array(ends > closed)
        states["ends"].put(keys.filter(still), by=by.filter(still), at=instants(ends).filter(still))
        over = pa.array(ends <= closed)
        if over.true_count:
            yield keys.filter(over), by.filter(over), found.filter(over)
    states["ends"].delete_due(closed)
