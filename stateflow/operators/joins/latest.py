"""Each left row with the newest right row of its key that has come so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.operators.joins.arrivals import Arriving, Produced
from stateflow.operators.joins.joining import Joining
from stateflow.operators.joins.newest import newest
from stateflow.operators.joins.row_blocks import both
from stateflow.operators.joins.row_state import SideOfBlocks
from stateflow.operators.ready.windows.windowed import NEVER
from stateflow.pipelines.processes.columnar import ColumnarContext
from stateflow.pipelines.ready.joins import VERSIONS, LatestJoin


class LatestJoined(Joining):
    """`versions` has one right row per key."""

    def __init__(self, declared: LatestJoin) -> None:
        super().__init__(declared)
        self._arriving = Arriving(declared, self._layouts)
        self._versions = self._stored[1]
        self._has_order = bool(declared.right.order)

    def process_both(
        self, left: pa.Table, right: pa.Table, states: Mapping[str, Any], ctx: ColumnarContext
    ) -> Produced:
        came = self._arriving.of(left, right, NEVER)
        yield from self._joined.without_key(came.without_key)
        if not len(came.keys):
            return
        stored = self._versions.read(states[VERSIONS].get(came.keys))
        rows, owners = both(stored.rows, came.right.rows), np.concatenate((stored.blocks, came.right.owners))
        old = len(stored.rows)
        if not self._has_order:
            # The stored row came before all rows of this batch.
            rows.at[:old], rows.at[old:] = 0, 1
        there, numbers = np.unique(owners, return_inverse=True)
        best = newest(rows, numbers, len(there), self._declared.right.order_by)
        fresh = np.flatnonzero(best >= old)
        if len(fresh):
            values = self._versions.values(
                SideOfBlocks(rows.take(best[fresh]), np.arange(len(fresh))), len(fresh)
            )
            states[VERSIONS].put(came.keys.take(pa.array(there[fresh])), values)
        partner = np.full(len(came.keys), -1)
        partner[there] = best
        yield from self._joined.with_partner(came.keys, came.left, rows, partner[came.left.owners])
