"""Each left row with the version that is valid at its time: the newest right row of its key that is not later.

Left rows wait until the watermark has reached their time: then no earlier right row can come any more. Of the versions that the
watermark has reached, each key keeps the newest one for left rows to come; the others are replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.operators.joins.arrivals import Arrivals, Arriving, Came, Produced
from stateflow.operators.joins.joining import Joining
from stateflow.operators.joins.newest import one_per_time
from stateflow.operators.joins.pairs import Sorted, Times
from stateflow.operators.joins.row_blocks import both
from stateflow.operators.joins.row_state import SideOfBlocks
from stateflow.operators.ready.grouping.groups import grouped
from stateflow.operators.ready.grouping.keys import grouped_by_key
from stateflow.operators.ready.windows.assigning import instants
from stateflow.operators.ready.windows.windowed import NEVER, watermark_of
from stateflow.pipelines.processes.columnar import ColumnarContext
from stateflow.pipelines.ready.joins import DUE, VERSIONS, WAITING, AsofJoin

_FAR = (1 << 63) - 1


class AsofJoined(Joining):
    """`waiting` has left rows by time and key, `versions` each key's right rows, and `due` tells when one of those is replaced
    or over."""

    _declared: AsofJoin

    def __init__(self, declared: AsofJoin, read: Set[str]) -> None:
        super().__init__(declared, read)
        self._arriving = Arriving(declared, self._layouts)
        self._lefts, self._rights = self._stored

    def process_both(
        self, left: pa.Table, right: pa.Table, states: Mapping[str, Any], ctx: ColumnarContext
    ) -> Produced:
        came = self._arriving.of(left, right, watermark_of(ctx))
        yield from self._late.put(came.late, ctx)
        yield from self._joined.without_key(came.without_key)
        if len(came.right.owners):
            self._add_versions(came, states)
        if not len(came.left.owners):
            return
        if self._declared.wait:
            self._wait(came, states)
        else:
            yield from self._valid(came.keys, came.left, states)

    def _add_versions(self, came: Arrivals, states: Mapping[str, Any]) -> None:
        touched, numbers = np.unique(came.right.owners, return_inverse=True)
        keys = came.keys.take(pa.array(touched))
        stored = self._rights.read(states[VERSIONS].get(keys))
        rows, owners = both(stored.rows, came.right.rows), np.concatenate((stored.blocks, numbers))
        kept = one_per_time(rows, owners, self._declared.right.order_by)
        after = SideOfBlocks(rows.take(kept), owners[kept])
        states[VERSIONS].put(keys, self._rights.values(after, len(keys)))
        self._enter(keys, after, len(keys), states)

    def _enter(self, keys: pa.Table, versions: SideOfBlocks, count: int, states: Mapping[str, Any]) -> None:
        """Enters when the first version of each key is replaced by the second, or is over."""
        order = np.lexsort((versions.rows.at, versions.blocks))
        owners, at = versions.blocks[order], versions.rows.at[order]
        due = np.full(count, _FAR)
        first = np.append(True, owners[1:] != owners[:-1]) if len(owners) else np.zeros(0, dtype=bool)
        second = np.append(False, first[:-1]) & ~first
        if self._declared.keep is not None:
            due[owners[first]] = at[first] + self._declared.keep
        due[owners[second]] = np.minimum(due[owners[second]], at[second])
        entered = np.flatnonzero(due < _FAR)
        if len(entered):
            states[DUE].put(keys.take(pa.array(entered)), at=instants(due[entered]))

    def _wait(self, came: Arrivals, states: Mapping[str, Any]) -> None:
        """Puts left rows to those of their key and time that wait already."""
        left = came.left
        groups = grouped([pa.array(left.owners), pa.array(left.rows.at)], len(left.owners))
        keys = came.keys.take(pa.array(left.owners[groups.firsts]))
        at = instants(left.rows.at[groups.firsts])
        stored = self._lefts.read(states[WAITING].get(keys, at=at))
        rows, blocks = both(stored.rows, left.rows), np.concatenate((stored.blocks, groups.ids))
        states[WAITING].put(keys, self._lefts.values(SideOfBlocks(rows, blocks), groups.size), at=at)

    def _valid(self, keys: pa.Table, left: Came, states: Mapping[str, Any]) -> Produced:
        """Left rows of `keys` with their versions."""
        versions = self._rights.read(states[VERSIONS].get(keys))
        ordered = Sorted(Times(versions.blocks, versions.rows.at))
        places = ordered.up_to(left.owners, left.rows.at) - 1
        partner = np.full(len(places), -1)
        there = np.flatnonzero(places >= 0)
        found = ordered.order[places[there]]
        is_valid = versions.blocks[found] == left.owners[there]
        if self._declared.keep is not None:
            is_valid &= left.rows.at[there] - versions.rows.at[found] <= self._declared.keep
        partner[there[is_valid]] = found[is_valid]
        yield from self._joined.with_partner(keys, left, versions.rows, partner)

    def fire(self, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        watermark = watermark_of(ctx)
        if watermark == NEVER:
            return
        if WAITING in states:
            for entries in states[WAITING].due(watermark):
                waiting = self._lefts.read(entries)
                groups, keys = grouped_by_key(entries, self._declared.key)
                yield from self._valid(keys, Came(waiting.rows, groups.ids[waiting.blocks]), states)
            states[WAITING].delete_due(watermark)
        for entries in states[DUE].due(watermark):
            self._replace(entries, states, watermark)
        states[DUE].delete_due(watermark)

    def _replace(self, entries: pa.Table, states: Mapping[str, Any], watermark: int) -> None:
        """Deletes the versions that no later left row can have."""
        _, keys = grouped_by_key(entries, self._declared.key)
        versions = self._rights.read(states[VERSIONS].get(keys))
        at, owners = versions.rows.at, versions.blocks
        newest = np.full(len(keys), NEVER)
        reached = at <= watermark
        np.maximum.at(newest, owners[reached], at[reached])
        stays = ~reached | (at == newest[owners])
        if self._declared.keep is not None:
            stays &= at + self._declared.keep > watermark
        filled = np.zeros(len(keys), dtype=bool)
        filled[owners[stays]] = True
        gone, left = pa.array(~filled), pa.array(filled)
        states[VERSIONS].delete(keys.filter(gone))
        if not bool(filled.any()):
            return
        numbers = np.cumsum(filled) - 1
        after = SideOfBlocks(versions.rows.take(np.flatnonzero(stays)), numbers[owners[stays]])
        keys = keys.filter(left)
        states[VERSIONS].put(keys, self._rights.values(after, len(keys)))
        self._enter(keys, after, len(keys), states)
