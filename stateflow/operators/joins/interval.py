"""Rows of a key whose times lie within bounds of each other.

A pair comes out with the batch that brings its second row. A row leaves when the watermark has passed its last possible partner;
if no partner has come by then, an outer join puts it out alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.operators.joins.arrivals import Arrivals, Arriving, Came, Produced
from stateflow.operators.joins.joining import Joining
from stateflow.operators.joins.pairs import Times, pairs
from stateflow.operators.joins.partners import Partners
from stateflow.operators.joins.row_blocks import Rows, both
from stateflow.operators.joins.row_state import SideOfBlocks
from stateflow.operators.joins.waiting_rows import Read, WaitingRows
from stateflow.operators.ready.grouping.groups import grouped
from stateflow.operators.ready.windows.windowed import NEVER, watermark_of
from stateflow.pipelines.processes.columnar import ColumnarContext
from stateflow.pipelines.ready.joins import DUE, IntervalJoin

_SHORTEST = 1_000_000
"""No bucket is shorter than a second: rows that come together shall lie together."""


class IntervalJoined(Joining):
    _declared: IntervalJoin
    chunk_rows = 500_000

    def __init__(self, declared: IntervalJoin, read: Set[str]) -> None:
        super().__init__(declared, read)
        self._least, self._most = declared.least, declared.most
        # As long as the bounds are apart: a row's partners are in two buckets at most.
        width = max(declared.most - declared.least, _SHORTEST)
        self._waiting = WaitingRows(declared.where, self._layouts, width, self._due)
        self._arriving = Arriving(declared, self._layouts)
        self._partners = Partners(declared)

    def _due(self, side: int, times: Any) -> Any:
        """For each row: the watermark from which on no partner of it can come any more."""
        return times + self._most if side == 0 else times - self._least

    def process_both(
        self, left: pa.Table, right: pa.Table, states: Mapping[str, Any], ctx: ColumnarContext
    ) -> Produced:
        watermark = watermark_of(ctx)
        came = self._arriving.of(left, right, watermark)
        yield from self._late.put(came.late, ctx)
        yield from self._joined.without_key(came.without_key)
        if len(came.keys):
            yield from self._join(came, states, watermark)

    def _join(self, came: Arrivals, states: Mapping[str, Any], watermark: int) -> Produced:
        owners, read, own = self._read(came, states)
        left = _Taking(came.left, read.left, owners, own[0])
        right = _Taking(came.right, read.right, owners, own[1])
        for some_left, some_right in self._pairs(left, right):
            at_left, at_right = self._partners.among(
                came.keys, left.owners[some_left], left.rows, some_left, right.rows, some_right
            )
            left.meet(at_left)
            right.meet(at_right)
            if not self._declared.is_of_left_alone:
                keys = came.keys.take(pa.array(left.owners[at_left]))
                yield self._joined.rows(keys, left.rows, at_left, right.rows, at_right)
        if self._declared.how == "semi":
            places = np.flatnonzero(left.matched & ~left.was_matched)
            yield self._alone(0, came.keys, (left, right), places)
        yield from self._keep(came.keys, left, right, read, states, watermark)

    def _read(self, came: Arrivals, states: Mapping[str, Any]) -> tuple[Any, Read, tuple[Any, Any]]:
        """The blocks that rows of this batch go into, and the blocks of their partners; then for each of these rows the number of
        its block."""
        left, right = came.left, came.right
        bucket = self._waiting.bucket
        spans = (
            (left.owners, bucket(left.rows.at)),
            (right.owners, bucket(right.rows.at)),
            (left.owners, bucket(left.rows.at + self._least)),
            (left.owners, bucket(left.rows.at + self._most)),
            (right.owners, bucket(right.rows.at - self._most)),
            (right.owners, bucket(right.rows.at - self._least)),
        )
        owners = np.concatenate([each for each, _ in spans])
        buckets = np.concatenate([each for _, each in spans])
        groups = grouped([pa.array(owners), pa.array(buckets)], len(owners))
        owner_of = owners[groups.firsts]
        read = self._waiting.read(states, came.keys.take(pa.array(owner_of)), buckets[groups.firsts])
        ends = len(left.owners), len(left.owners) + len(right.owners)
        return owner_of, read, (groups.ids[: ends[0]], groups.ids[ends[0] : ends[1]])

    def _pairs(self, left: _Taking, right: _Taking) -> Any:
        """Pairs of rows within the bounds of each other; at least one row of a pair came now."""
        fresh = left.of_new()
        for at_left, at_right in pairs(fresh, right.times(), self._least, self._most):
            yield at_left + left.old, at_right
        for at_left, at_right in pairs(left.of_old(), right.of_new(), self._least, self._most):
            yield at_left, at_right + right.old

    def _keep(
        self,
        keys: pa.Table,
        left: _Taking,
        right: _Taking,
        read: Read,
        states: Mapping[str, Any],
        watermark: int,
    ) -> Produced:
        """Writes the rows that go on waiting, and puts out those that came too late for any further partner."""
        declared = self._declared
        touched = np.zeros(len(read.buckets), dtype=bool)
        kept = []
        for number, (side, puts_out) in enumerate(
            ((left, declared.puts_out_left), (right, declared.puts_out_right))
        ):
            stays = self._due(number, side.rows.at) > watermark
            if puts_out:
                alone = np.flatnonzero(~stays & ~side.matched)
                if len(alone):
                    yield self._alone(number, keys, (left, right), alone)
            if number == 0 and declared.is_of_left_alone:
                stays &= ~side.matched
            is_new = np.arange(len(side.rows)) >= side.old
            # What has had a partner is written again only if somebody asks for that later.
            changed = (is_new & stays) | (~is_new & ~stays)
            if puts_out:
                changed |= side.matched & ~side.was_matched
            touched[side.blocks[changed]] = True
            chosen = np.flatnonzero(stays)
            rows = Rows(side.rows.at, side.matched, side.rows.columns).take(chosen)
            kept.append(SideOfBlocks(rows, side.blocks[chosen]))
        self._waiting.write(states, read, kept[0], kept[1], touched)

    def _alone(self, number: int, keys: pa.Table, sides: tuple[_Taking, _Taking], places: Any) -> pa.Table:
        left, right = sides
        owners = pa.array(sides[number].owners[places])
        return self._joined.alone(number, keys.take(owners), left.rows, right.rows, places)

    def fire(self, states: Mapping[str, Any], ctx: ColumnarContext) -> Produced:
        watermark = watermark_of(ctx)
        if watermark == NEVER:
            return
        declared = self._declared
        silent = not (declared.puts_out_left or declared.puts_out_right)
        for read in self._waiting.due(states, watermark, self._key, silent=silent):
            sides = read.left, read.right
            stay = [self._due(number, side.rows.at) > watermark for number, side in enumerate(sides)]
            for number, puts_out in enumerate((declared.puts_out_left, declared.puts_out_right)):
                side = sides[number]
                places = np.flatnonzero(~stay[number] & ~side.rows.matched)
                if puts_out and len(places):
                    keys = read.keys.take(pa.array(side.blocks[places]))
                    yield self._joined.alone(number, keys, read.left.rows, read.right.rows, places)
            self._waiting.leave(states, read, (stay[0], stay[1]))
        states[DUE].delete_due(watermark)


class _Taking:
    """The rows of one side that take part in a batch: those of the blocks first, then those that came."""

    def __init__(self, came: Came, stored: SideOfBlocks, owner_of: Any, own: Any) -> None:
        self.old = len(stored.rows)
        self.rows = both(stored.rows, came.rows)
        self.blocks = np.concatenate((stored.blocks, own))
        self.owners = np.concatenate((owner_of[stored.blocks], came.owners))
        self.was_matched = self.rows.matched
        self.matched = self.rows.matched.copy()

    def meet(self, places: Any) -> None:
        self.matched[places] = True

    def times(self) -> Times:
        return Times(self.owners, self.rows.at)

    def of_old(self) -> Times:
        return Times(self.owners[: self.old], self.rows.at[: self.old])

    def of_new(self) -> Times:
        return Times(self.owners[self.old :], self.rows.at[self.old :])
