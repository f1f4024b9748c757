"""Blocks of rows as columns of state, in today's layout of the pipeline or in that of earlier code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.operators.joins.row_blocks import EncodedBlocks, RowBlocks, Rows, blocks_with, both
from stateflow.operators.ready.grouping.groups import whole


@dataclass(frozen=True)
class SideOfBlocks:
    """The rows of one side in all blocks that were read."""

    rows: Rows
    blocks: Any
    """For each row the number of its block."""


class RowState:
    """The rows of one side as values of entries, one block per entry."""

    def __init__(self, where: str, layout: RowBlocks) -> None:
        self._where = where
        self.layout = layout

    def read(self, entries: pa.Table) -> SideOfBlocks:
        blocks = EncodedBlocks(whole(entries["rows"]), whole(entries["texts"]))
        return side_of_blocks(blocks, whole(entries["layout"]), self._where, self.layout, lambda text: text)

    def values(self, side: SideOfBlocks, count: int) -> pa.Table:
        """The values of `count` entries; each has a row."""
        written = in_blocks(self.layout, side.rows, np.arange(len(side.rows)), side.blocks, count)
        return pa.table(
            {
                "rows": written.rows,
                "texts": written.texts,
                "layout": pa.array([self.layout.text] * count, pa.large_string()),
            }
        )


def side_of_blocks(
    blocks: EncodedBlocks, layouts: Any, where: str, now: RowBlocks, of_side: Callable[[str], str]
) -> SideOfBlocks:
    """`layouts` says how each block was written; `of_side` picks this side's part."""
    texts = layouts.unique().drop_null().to_pylist()
    if all(of_side(text) == now.text for text in texts):
        rows, counts = now.read(blocks)
        return SideOfBlocks(rows, np.repeat(np.arange(len(counts)), counts))
    # Written by earlier code: each layout is read by itself.
    rows, numbers = empty_rows(now), np.zeros(0, dtype=np.int64)
    encoded = layouts.to_pylist()
    for text in texts:
        there = np.array([place for place, each in enumerate(encoded) if each == text], dtype=np.int64)
        some = EncodedBlocks(blocks.rows.take(pa.array(there)), blocks.texts.take(pa.array(there)))
        older, counts = blocks_with(of_side(text)).read_as(some, where, now)
        rows = both(rows, older)
        numbers = np.concatenate((numbers, np.repeat(there, counts)))
    return SideOfBlocks(rows, numbers)


def in_blocks(layout: RowBlocks, rows: Rows, chosen: Any, numbers: Any, count: int) -> EncodedBlocks:
    """The `chosen` rows, written as `count` blocks; `numbers` has the block of each row."""
    if bool((numbers[1:] < numbers[:-1]).any()):
        order = np.argsort(numbers, kind="stable")
        chosen, numbers = chosen[order], numbers[order]
    is_all = len(chosen) == len(rows) and bool((chosen == np.arange(len(rows))).all())
    return layout.write(
        rows if is_all else rows.take(chosen), np.searchsorted(numbers, np.arange(count), "right")
    )


def empty_rows(layout: RowBlocks) -> Rows:
    return Rows(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool), layout.schema.empty_table())
