"""The rows that wait for partners, as blocks in state: an entry holds the rows that both sides of a key have in a span of time.

`waiting` has the blocks by key and bucket, `due` tells at which instant the first row of a block leaves. A block has an entry
in `due` at that instant or an earlier one; so whoever finds it there looks at its rows, and enters it anew if some stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.operators.joins.row_blocks import EncodedBlocks, RowBlocks
from stateflow.operators.joins.row_state import SideOfBlocks, empty_rows, in_blocks, side_of_blocks
from stateflow.operators.ready.grouping.groups import grouped, whole
from stateflow.operators.ready.windows.assigning import instants
from stateflow.operators.ready.windows.windowed import micros
from stateflow.pipelines.ready.joins import BUCKET, DUE, WAITING
from stateflow.state.values.kept_rows import BETWEEN

FAR = (1 << 63) - 1


@dataclass(frozen=True)
class Read:
    """Blocks, and the rows in them."""

    keys: pa.Table
    """The key of each block."""
    buckets: Any
    """Its bucket, in microseconds."""
    left: SideOfBlocks
    right: SideOfBlocks


class WaitingRows:
    """`due_of` turns times of a side's rows (0 is the left side) into the instants when these rows leave."""

    def __init__(
        self, where: str, layouts: tuple[RowBlocks, ...], width: int, due_of: Callable[[int, Any], Any]
    ) -> None:
        self._where = where
        self.layouts = layouts
        self._text = BETWEEN.join(layout.text for layout in self.layouts)
        self._width = width
        self._due_of = due_of

    def bucket(self, times: Any) -> Any:
        """The bucket of rows of these times."""
        return times - times % self._width

    def read(self, states: Mapping[str, Any], keys: pa.Table, buckets: Any) -> Read:
        """The blocks of keys and buckets; no two pairs are the same."""
        entries = states[WAITING].get(keys, by=_by(buckets))
        layouts = whole(entries["layout"])
        of_side = (lambda text: text.split(BETWEEN)[0]), (lambda text: text.split(BETWEEN)[1])
        left, right = (
            side_of_blocks(
                EncodedBlocks(whole(entries[f"{name}_rows"]), whole(entries[f"{name}_texts"])),
                layouts, self._where, layout, of,
            )
            for name, layout, of in zip(("left", "right"), self.layouts, of_side, strict=True)
        )  # fmt: skip
        return Read(keys, buckets, left, right)

    def write(
        self, states: Mapping[str, Any], read: Read, left: SideOfBlocks, right: SideOfBlocks, touched: Any
    ) -> None:
        """Puts the rows of the blocks that `touched` tells into state, in place of those that were read."""
        earliest = np.full(len(touched), FAR)
        before = np.full(len(touched), FAR)
        filled = np.zeros(len(touched), dtype=bool)
        for number, (old, new) in enumerate(((read.left, left), (read.right, right))):
            np.minimum.at(before, old.blocks, self._due_of(number, old.rows.at))
            np.minimum.at(earliest, new.blocks, self._due_of(number, new.rows.at))
            filled[new.blocks] = True
        gone = np.flatnonzero(touched & ~filled)
        if len(gone):
            states[WAITING].delete(read.keys.take(pa.array(gone)), by=_by(read.buckets[gone]))
        places = np.flatnonzero(touched & filled)
        if not len(places):
            return
        number_of = np.cumsum(touched & filled) - 1
        columns: dict[str, Any] = {}
        for layout, name, side in zip(self.layouts, ("left", "right"), (left, right), strict=True):
            mine = touched[side.blocks]
            chosen = np.flatnonzero(mine)
            written = in_blocks(layout, side.rows, chosen, number_of[side.blocks[chosen]], len(places))
            columns[f"{name}_rows"], columns[f"{name}_texts"] = written.rows, written.texts
        columns["layout"] = pa.array([self._text] * len(places), pa.large_string())
        keys, by = read.keys.take(pa.array(places)), _by(read.buckets[places])
        states[WAITING].put(keys, pa.table(columns), by=by)
        sooner = np.flatnonzero(earliest[places] < before[places])
        if len(sooner):
            chosen = pa.array(sooner)
            states[DUE].put(keys.take(chosen), by=by.take(chosen), at=instants(earliest[places][sooner]))

    def due(
        self, states: Mapping[str, Any], watermark: int, key: list[str], *, silent: bool = False
    ) -> Iterator[Read]:
        """Blocks that have due rows. The caller calls `delete_due` of `due` after the last one. With `silent` nobody wants the
        rows that leave: blocks whose rows all leave are deleted unread."""
        for entries in states[DUE].due(watermark):
            columns = [*(whole(entries[name]) for name in key), whole(entries[BUCKET])]
            firsts = pa.array(grouped(columns, entries.num_rows).firsts)
            entries = entries.take(firsts)
            buckets = micros(entries[BUCKET])
            if silent:
                over = self._are_over(buckets, watermark)
                gone = entries.filter(pa.array(over))
                if gone.num_rows:
                    states[WAITING].delete(gone.select(key), by=gone.select([BUCKET]))
                entries, buckets = entries.filter(pa.array(~over)), buckets[~over]
            if len(buckets):
                yield self.read(states, entries.select(key), buckets)

    def _are_over(self, buckets: Any, watermark: int) -> Any:
        """Whether the last row that can be in a bucket is due."""
        last = buckets + self._width - 1
        return (self._due_of(0, last) <= watermark) & (self._due_of(1, last) <= watermark)

    def leave(self, states: Mapping[str, Any], read: Read, stay: tuple[Any, Any]) -> None:
        """Writes blocks without the rows that leave, and enters those with rows left in `due` anew."""
        left, right = (
            SideOfBlocks(side.rows.take(np.flatnonzero(mine)), side.blocks[mine])
            for side, mine in zip((read.left, read.right), stay, strict=True)
        )
        nothing = tuple(
            SideOfBlocks(empty_rows(layout), np.zeros(0, dtype=np.int64)) for layout in self.layouts
        )
        # Their entries in `due` are deleted, so that none of their rows counts as entered.
        bare = Read(read.keys, read.buckets, *nothing)
        self.write(states, bare, left, right, np.ones(len(read.buckets), dtype=bool))


def _by(buckets: Any) -> pa.Table:
    return pa.table({BUCKET: instants(buckets)})
