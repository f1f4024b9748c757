"""From Arrow batches to chunks of whole keys, with at most two sorted batches as Python's objects.

Keys that end inside their batch form one chunk. A key that goes on in the next batch is a chunk of its own: it pulls
rows as user code asks for them, so that a key of any size fits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.operators.context import OperatorContext
from stateflow.operators.keyed import Chunk, StreamError
from stateflow.operators.python_values import values_of
from stateflow.pipelines.rows.row_type import RowType
from stateflow.spark.task.carried import GROUP_AT, Carried, everything
from stateflow.spark.task.columns import RowReader
from stateflow.spark.task.key_columns import KeyColumns, key_starts
from stateflow.spark.task.sorted_rows import SortedRows
from stateflow.state.keys.codec import KeyCodec


class Block:
    """One Arrow batch, cut at its keys."""

    __slots__ = (
        "_codec",
        "ends",
        "first",
        "groups",
        "key_columns",
        "keys",
        "late",
        "offsets",
        "rows",
        "size",
        "starts",
    )

    def __init__(self, batch: Any, starts: Any, shape: Shape) -> None:
        self._codec = shape.codec
        columns = shape.keys.of(batch)
        self.starts: list[int] = starts.tolist()
        self.ends: list[int] = [*self.starts[1:], batch.num_rows]
        self.size = len(self.starts)
        self.first = 0
        """The index of the first key that no chunk has taken yet."""
        first = batch.column(0).to_numpy()[starts]
        self.groups = first >> GROUP_AT if shape.placed else first
        key_values = [column.take(pa.array(starts)) for column in columns]
        self.key_columns = [
            c.to_numpy() if t == "int" else c for c, t in zip(key_values, shape.codec.types, strict=True)
        ]
        parts = [values_of(column) for column in key_values]
        self.keys: list[Any] = parts[0] if len(parts) == 1 else list(map(shape.codec.make, *parts))
        late = None if shape.late_index is None else batch.column(shape.late_index)
        self.late: list[bool] | None = values_of(late) if late is not None and pc.any(late).as_py() else None
        self.rows: list[list[Any]] = []
        self.offsets: list[list[int]] | None = None
        """Per input the first index of each key's rows, and the end; None when there is one input."""
        if len(shape.readers) == 1:
            counts = np.diff(starts, append=batch.num_rows)
            repeated = {
                field: _repeated(part, counts)
                for field, part in zip(shape.key_fields, parts, strict=True)
                if field is not None
            }
            self.rows.append(shape.readers[0].read(batch, repeated))
        else:
            self._read_sides(batch, shape, starts)

    def _read_sides(self, batch: Any, shape: Shape, starts: Any) -> None:
        side = batch.column(shape.side_index).to_numpy()
        bounds = np.append(starts, batch.num_rows)
        self.offsets = []
        for index, reader in enumerate(shape.readers):
            mask = side == index
            mine = pa.array(mask)
            self.rows.append(
                reader.read({place: batch.column(place).filter(mine) for place in shape.sides[index]})
            )
            self.offsets.append(np.concatenate(([0], np.cumsum(mask)))[bounds].tolist())

    def span(self, key: int, side: int) -> tuple[int, int]:
        if self.offsets is None:
            return self.starts[key], self.ends[key]
        return self.offsets[side][key], self.offsets[side][key + 1]

    def full_keys(self, first: int, last: int, state_id: int) -> list[bytes]:
        columns = [column[first:last] for column in self.key_columns]
        return self._codec.encode_many(columns, self.groups[first:last], state_id)


class Shape:
    """The columns of an operator's Arrow batches, and how rows are made from them."""

    def __init__(
        self,
        uid: str,
        codec: KeyCodec,
        key_columns: Sequence[str],
        rows: Sequence[RowType],
        carry: Carried | None = None,
    ) -> None:
        self.codec = codec
        carry = carry or everything(len(key_columns))
        self.keys = KeyColumns(uid, key_columns, carry.key_indices)
        self.key_fields = carry.keys
        self.placed = carry.place
        self.mixed = carry.mixed
        self.late_index = carry.late_index
        self.side_index = first = carry.fields_index
        self.sides = carry.sides or (tuple(range(first, first + len(rows[0].fields))),)
        self.readers = [RowReader(row, columns) for row, columns in zip(rows, self.sides, strict=True)]


def _repeated(values: list[Any], counts: Any) -> list[Any]:
    """Each value as often as its key has rows: copying references costs less than reading every row's own value."""
    held = np.empty(len(values), dtype=object)
    held[:] = values
    return np.repeat(held, counts).tolist()


def _checked(batches: Iterator[Any], keys: KeyColumns) -> Iterator[Any]:
    for batch in batches:
        keys.check(batch)
        yield batch


class Blocks:
    """The blocks in order, with one block of look-ahead."""

    def __init__(
        self,
        batches: Iterator[Any],
        shape: Shape,
        remember: int,
        scratch: Callable[[], Path],
    ) -> None:
        keys, checked = shape.keys, _checked(batches, shape.keys)
        self._batches: Generator[tuple[Any, Any]] = (
            SortedRows(keys, scratch).of(checked)
            if shape.mixed
            else ((batch, key_starts(keys.of(batch))) for batch in checked if batch.num_rows)
        )
        """Each batch with the first indices of its keys."""
        self._remember = remember
        """How many rows of a spanning key to remember, in case user code fails on it."""
        self._shape = shape
        self._ahead: deque[Block] = deque()
        self.rows_in = 0
        self._failed: StreamError | None = None

    def close(self) -> None:
        """Removes what lies on disk, also after an error."""
        self._batches.close()

    def peek(self) -> Block | None:
        if self._failed is not None:
            raise self._failed
        try:
            while not self._ahead:
                given = next(self._batches, None)
                if given is None:
                    return None
                batch, starts = given
                self.rows_in += batch.num_rows
                self._ahead.append(Block(batch, starts, self._shape))
        except Exception as error:
            # User code may be pulling rows. If it asks again, it must not see the end of the input.
            self._failed = StreamError(error)
            raise self._failed from error
        return self._ahead[0]

    def take(self) -> Block | None:
        block = self.peek()
        if block is not None:
            self._ahead.popleft()
        return block

    def chunks(self, context: OperatorContext, cuts: Sequence[int]) -> Iterator[tuple[int, Chunk]]:
        """`(shard index, chunk)`; `cuts` are the first key groups of the task's shards, ascending."""
        try:
            while (block := self.take()) is not None:
                ahead = self.peek()
                spans = ahead is not None and ahead.keys[0] == block.keys[-1]
                last = block.size - 1 if spans else block.size
                for shard, first, end in _by_shard(block, block.first, last, cuts):
                    yield shard, _whole(block, first, end, context, len(self._shape.readers))
                if spans and block.first < block.size:
                    shard = _shard_of(int(block.groups[-1]), cuts)
                    rows = _Spanning(self, block, context, self._remember)
                    yield shard, rows.chunk()
                    rows.drain()
        except StreamError as error:
            raise error.cause from None


def _shard_of(group: int, cuts: Sequence[int]) -> int:
    return max(0, int(np.searchsorted(cuts, group, side="right")) - 1)


def _by_shard(block: Block, first: int, last: int, cuts: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    if first >= last:
        return
    if len(cuts) == 1:
        yield 0, first, last
        return
    owners = np.searchsorted(cuts, block.groups[first:last], side="right") - 1
    bounds = [0, *(np.flatnonzero(owners[1:] != owners[:-1]) + 1).tolist(), len(owners)]
    for begin, end in pairwise(bounds):
        yield int(owners[begin]), first + begin, first + end


def _whole(block: Block, first: int, last: int, context: OperatorContext, inputs: int) -> Chunk:
    rows, starts, ends = block.rows, block.starts, block.ends

    if inputs == 1 and block.late is None:
        only = rows[0]

        def of(i: int) -> tuple[Iterator[Any], ...]:
            return (iter(only[starts[first + i] : ends[first + i]]),)

    else:

        def of(i: int) -> tuple[Iterator[Any], ...]:
            return tuple(_marked(block, first + i, side, context) for side in range(inputs))

    return Chunk(
        block.keys[first:last],
        block.full_keys(first, last, 0),
        of,
        lambda state_id: block.full_keys(first, last, state_id),
        (rows[0], starts[first:last], ends[first:last]) if inputs == 1 and block.late is None else None,
    )


def _marked(block: Block, key: int, side: int, context: OperatorContext) -> Iterator[Any]:
    """A key's rows of one input. Reading a row sets `ctx.late`."""
    begin, end = block.span(key, side)
    if block.late is None:
        yield from block.rows[side][begin:end]
        return
    # Rows of a key are sorted by side, so the flags of one side lie together.
    flags_from = block.starts[key]
    if block.offsets is not None:
        flags_from += sum(block.offsets[s][key + 1] - block.offsets[s][key] for s in range(side))
    for index in range(begin, end):
        context.late = block.late[flags_from + index - begin]
        yield block.rows[side][index]
    context.late = False


class _Spanning:
    """The rows of a key that goes on in later blocks. They are read once, in order, side after side."""

    def __init__(self, blocks: Blocks, block: Block, context: OperatorContext, remember: int) -> None:
        self._blocks = blocks
        self._context = context
        self._key = block.keys[-1]
        self._block: Block = block
        self._index = block.size - 1
        self._inputs = len(blocks._shape.readers)
        self._rows = self._all()
        self._sides = tuple(self._side(side) for side in range(self._inputs))
        self._pending: tuple[int, Any] | None = None
        self._pending_late = False
        self._memory: list[Any] | None = [] if remember else None
        self._limit = remember
        self._count = 0
        self._handed_out = False

    def chunk(self) -> Chunk:
        block, index = self._block, self._index
        return Chunk(
            [self._key],
            block.full_keys(index, index + 1, 0),
            self._rows_of,
            lambda state_id: block.full_keys(index, index + 1, state_id),
        )

    def _rows_of(self, i: int) -> tuple[Iterator[Any], ...]:
        """The rows per side. The engine asks again when user code failed: then from the beginning, as far as remembered."""
        if not self._handed_out:
            self._handed_out = True
            return self._sides
        return (self._again(), *self._sides[1:])

    def _again(self) -> Iterator[Any]:
        yield from self._memory or ()
        yield from (None for _ in range(self._count - len(self._memory or ())))
        yield from self._sides[0]

    def _all(self) -> Iterator[tuple[int, Any]]:
        block, index = self._block, self._index
        while True:
            for side in range(self._inputs):
                for row in _marked(block, index, side, self._context):
                    yield side, row
            ahead = self._blocks.peek()
            if ahead is None or index != block.size - 1 or ahead.keys[0] != self._key:
                return
            block, index = ahead, 0
            ahead.first = 1
            if ahead.size > 1:
                continue
            self._blocks.take()

    def _side(self, side: int) -> Iterator[Any]:
        while True:
            if self._pending is not None:
                entry, self._context.late = self._pending, self._pending_late
            else:
                row = next(self._rows, None)
                if row is None:
                    return
                entry = row
            self._pending = None
            if entry[0] > side:
                # This row only shows that the side has ended. `ctx.late` is set when the row is handed out.
                self._pending, self._pending_late = entry, self._context.late
                self._context.late = False
                return
            if entry[0] == side:
                self._count += 1
                if self._memory is not None and self._count <= self._limit:
                    self._memory.append(entry[1])
                yield entry[1]

    def drain(self) -> None:
        """Skips the rows that user code did not read."""
        for _ in self._rows:
            pass
