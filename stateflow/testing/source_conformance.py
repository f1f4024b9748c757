"""What every source promises, as tests: whoever writes one runs them against what it reads. docs/connectors.md shows how."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from stateflow.connectors import Position, Source
from stateflow.operators.arrow_types import arrow_schema_of
from stateflow.pipelines.inputs.source import DeclaredSource
from stateflow.pipelines.rows.row_type import row_type
from stateflow.testing.conformance import promise, require

_ROUNDS = (3, 1, 0, 25)
"""How many rows come in each round."""
_MOST = 1000
"""Batches after which a source that never comes to an end is given up."""


class SourceConformance:
    """The promises of `Source`, each as a test of pytest, against what it really reads.

    A subclass whose name begins with `Test` says how to make the source (`source`), and how to add rows to what it reads (`add`).
    """

    rows: ClassVar[Any] = None
    """The row class of the flow."""

    def source(self, folder: Path) -> Source:
        """The source as a pipeline has it, with small batches if it can have them; `folder` is of the test alone."""
        raise NotImplementedError

    def add(self, folder: Path, count: int) -> Sequence[Mapping[str, Any]]:
        """Adds so many rows to what the source reads, each unlike all others, and returns them by the columns of the row class."""
        raise NotImplementedError

    @promise
    def test_every_row_is_read_once(self, tmp_path: Path) -> None:
        """From position to position a job reads every row once, in whatever batches and by whatever process: give no position behind
        rows that come later, leave no gap between two plans, let no row be in two parts, and give `start` as it is when there are no more."""
        reader, got = _SourceReader(self, tmp_path), []
        for count in _ROUNDS:
            reader.add(count)
            got += reader.drained()
            _compare(got, reader.added, "what was read up to here")

    @promise
    def test_a_plan_is_always_the_same(self, tmp_path: Path) -> None:
        """Between two positions `plan` is the same at any time and in any process, also when more rows have come: it depends on the positions
        alone."""
        reader = _SourceReader(self, tmp_path)
        reader.add(25)
        start, end = reader.batch()
        plan = reader.plan(start, end)
        reader.add(3)
        require(
            reader.plan(start, end) == plan, f"between {start} and {end} it was {plan} and then another one"
        )

    @promise
    def test_a_part_is_always_read_the_same(self, tmp_path: Path) -> None:
        """A task that fails is tried again, and a past batch is read again: the rows of a part depend on the part alone, also when more have
        come."""
        reader = _SourceReader(self, tmp_path)
        reader.add(25)
        start, end = reader.batch()
        for part in reader.plan(start, end):
            rows = list(reader.read([part]))
            reader.add(2)
            _compare(reader.read([part]), rows, f"part {part}, read again,")

    @promise
    def test_a_run_that_dies_between_plan_and_record_loses_and_doubles_nothing(self, tmp_path: Path) -> None:
        """A run may die after it planned a batch, or in the middle of reading it. The next one begins at the same position, plans anew, and
        finds more rows: reading changes nothing in what is read, and takes nothing away from it."""
        reader, got = _SourceReader(self, tmp_path), []
        for count in _ROUNDS:
            reader.add(count)
            for part in reader.plan(*reader.batch()):
                next(reader.read([part]), None)  # the run dies here
            reader.add(2)
            got += reader.drained()
        _compare(got, reader.added, "what was read after runs that died")

    @promise
    def test_columns_fit_the_row_class(self, tmp_path: Path) -> None:
        """`read` gives the columns of the row class, with values of their types."""
        reader = _SourceReader(self, tmp_path)
        reader.add(3)
        names = {name for row in reader.drained() for name in json.loads(row)}
        require(names == set(reader.declared.rows.names), f"it gave the columns {sorted(names)}")


class _SourceReader:
    """A job that reads the source: each step by another copy of it, as other processes have it, from a position as a record keeps it."""

    def __init__(self, kit: SourceConformance, folder: Path) -> None:
        self.kit, self.folder = kit, folder
        source = kit.source(folder)
        declared = source.declared("source", row_type(kit.rows))
        self._bytes = pickle.dumps(source)
        self._rows = declared.rows
        self._schema = arrow_schema_of(declared.rows)
        self.added: list[str] = []
        self.start: Position = json.loads(json.dumps(self.declared.beginning()))

    @property
    def declared(self) -> DeclaredSource:
        return DeclaredSource("source", pickle.loads(self._bytes), self._rows)

    def add(self, count: int) -> None:
        if count:
            added = self.kit.add(self.folder, count)
            require(len(added) == count, f"add() was asked for {count} rows, and returned {len(added)}")
            self.added += map(_text, self.declared.batch_of(list(added), self._schema).to_pylist())

    def batch(self) -> tuple[Position, Position]:
        """Where the next batch begins and ends."""
        end = self.declared.end(self.start, self.declared.newest(self.start))
        return self.start, json.loads(json.dumps(end))

    def plan(self, start: Position, end: Position) -> list[Any]:
        return self.declared.parts(start, end, twice=True) if start != end else []

    def read(self, parts: Sequence[Any]) -> Iterator[str]:
        for part in parts:
            for batch in self.declared.batches(part, self._schema):
                yield from map(_text, batch.to_pylist())

    def drained(self) -> list[str]:
        """The rows from the position up to the end, batch by batch."""
        got: list[str] = []
        for _ in range(_MOST):
            start, end = self.batch()
            if start == end:
                return got
            got += self.read(self.plan(start, end))
            self.start = end
        raise AssertionError(f"after {_MOST} batches there is still no end, at {self.start}")


def _text(row: Mapping[str, Any]) -> str:
    return json.dumps(row, default=str, sort_keys=True)


def _compare(got: Iterable[str], wanted: Iterable[str], what: str) -> None:
    there, should = Counter(got), Counter(wanted)
    lacks, more = list((should - there).elements()), list((there - should).elements())
    require(not lacks, f"{what} lacks {lacks[:3]} ({len(lacks)} rows)")
    require(not more, f"{what} has {more[:3]} too often, or nobody added them ({len(more)} rows)")
