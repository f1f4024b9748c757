"""Broadcast code visits keys: every key that has something in a state, in key order, one block of keys in memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from types import GeneratorType
from typing import Any

from stateflow.format.encoding import EMPTY_NAMESPACE, PREFIX_WIDTH, prefix, state_range
from stateflow.operators.attempt import Attempt
from stateflow.operators.chunk_reads import ChunkReads
from stateflow.operators.context import Visit
from stateflow.operators.output import returned
from stateflow.state.cursor import Change
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.keys.siblings import siblings
from stateflow.state.single_values import StoredState

VISITED_AT_ONCE = 10_000
"""Keys in a block."""

_Entries = Iterator[tuple[bytes, bytes]]
_Key = tuple[bytes, bytes | None]
"""A full key under state id 0, and what is stored for it in a state with one entry per key."""


class Visiting:
    """Carries out an operator's visits, shard by shard, before the shard's rows."""

    def __init__(
        self,
        uid: str,
        codec: KeyCodec,
        attempt: Attempt,
    ) -> None:
        self._uid, self._codec = uid, codec
        self._attempt, self._chunked = attempt, attempt.chunked
        self._context, self._cursor = attempt.context, attempt.cursor
        self._reads = ChunkReads(attempt.chunked)
        self.at_once = VISITED_AT_ONCE
        self.asked: list[Visit] = []
        """The visits that user code has asked for, kept until the shards are open."""

    def run(self, groups: range) -> Iterator[None]:
        """Calls user code for the keys of the attached shard; yields when output should be taken."""
        context = self._context
        context.late, context.namespace = False, None
        for visit in self.asked:
            scan, state_id = self._cursor.backend.scan, visit.state.state_id
            # All scans begin before anything is written: a backend sorts what was written before it scans.
            scans = [(group, scan(*state_range(group, state_id))) for group in groups]
            for group, entries in scans:
                for block in self._blocks(visit.state, group, entries):
                    self._visit(visit, block)
                    yield

    def _blocks(self, state: Any, group: int, entries: _Entries) -> Iterator[list[_Key]]:
        block: list[_Key] = []
        for key in self._keys(state, group, entries):
            block.append(key)
            if len(block) == self.at_once:
                yield block
                block = []
        if block:
            yield block

    def _keys(self, state: Any, group: int, entries: _Entries) -> Iterator[_Key]:
        """The keys of a group that have a live entry, in the order of their bytes."""
        decode, head = self._codec.decode, prefix(group, 0)
        if isinstance(state, StoredState) and state.namespace is None:
            for full, raw in entries:
                if state.is_live(raw):
                    yield head + full[PREFIX_WIDTH:], raw
            return

        def end(entry: tuple[bytes, bytes]) -> bytes:
            full = entry[0]
            return full[PREFIX_WIDTH : decode(full, PREFIX_WIDTH)[1]]

        for key, own in groupby(entries, end):
            if any(state.is_live(raw) for _, raw in own):
                yield head + key + EMPTY_NAMESPACE, None

    def _visit(self, visit: Visit, block: list[_Key]) -> None:
        cursor, attempt, function, context = self._cursor, self._attempt, visit.function, self._context
        bases = [base for base, _ in block]
        keys = [self._codec.decode(base, PREFIX_WIDTH)[0] for base in bases]
        cursor.base, cursor.keys = bases, keys
        scanned = [raw for _, raw in block] if block[0][1] is not None else None
        known = {} if scanned is None else {visit.state.state_id: scanned}
        self._reads.begin(
            cursor.backend, len(keys), lambda number: siblings(bases, number.to_bytes(2, "big")), known
        )
        changes: list[Change] = []
        for i, key in enumerate(keys):
            cursor.i, cursor.key = i, key
            cursor.serial += 1
            mark = attempt.mark(changes)
            try:
                produced = function(key, context)
                if produced is not None:
                    rows = produced if type(produced) is GeneratorType else returned(self._uid, produced)
                    attempt.out.extend(map(attempt.values, rows))
                attempt.check(mark)
                if cursor.dirty:
                    cursor.flush(changes)
            except Exception as error:
                attempt.undo(mark, changes)
                attempt.failed(error, key)
        for state in self._chunked:
            state.collect(None, changes)
        self._reads.end(len(keys))
        cursor.write(changes)
