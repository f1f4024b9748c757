"""Plays that hypothesis draws: rows in batches, tables and shards of any size on both backends, with restarts, rescales and releases
between them. After each batch what the operator put out has to be what a model says, which has seen the same rows.

A family of operators has a file of its own with the model, a plain computation over all rows so far.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import pyarrow as pa
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from stateflow.pipelines.graph import KeyedNode
from tests.long_form import LONG
from tests.operators.ready.driving import END, SECOND, Driven

Row = dict[str, Any]
Rows = list[Row]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# To explain a failure takes minutes.
PHASES = [
    Phase.explicit,
    Phase.generate,
    *([] if os.environ.get("STATEFLOW_FIRST_FAILURE") else [Phase.shrink]),
]


def model(examples: int, long: int) -> settings:
    """So many plays with every change, and so many before a release."""
    return settings(
        max_examples=long if LONG else examples, phases=PHASES, suppress_health_check=list(HealthCheck),
        database=None, report_multiple_bugs=False,
    )  # fmt: skip


@dataclass(frozen=True)
class Turn:
    inputs: list[Rows]
    tables: int = 1
    before: str = ""
    """restart, rescale or release."""
    shards: int = 1


@dataclass(frozen=True)
class Play:
    turns: list[Turn]
    delay: int
    """By how much the watermark is behind the newest time of the batches before."""
    backend: str
    shards: int


times = st.builds(
    lambda seconds, more: seconds * SECOND + more, st.integers(-9, 9), st.sampled_from([0, 0, 0, 0, 1, -1])
)
"""Of rows, around the instant that their batch is about."""


def rows_of(columns: dict[str, Any]) -> Any:
    """Draws rows with these columns."""
    return st.tuples(*columns.values()).map(lambda values: dict(zip(columns, values, strict=True)))


@st.composite
def plays(draw: Any, *rows: Any, releases: bool = False) -> Play:
    """`rows` draw the rows of each input, whose `ts` is counted from their batch's instant or None."""
    base, turns = 20, []
    events = ["", "", "restart", "rescale", *(["release", "release"] if releases else [])]
    least = draw(st.sampled_from([0, 3, 9]))
    for _ in range(draw(st.integers(2, 7))):
        inputs = [
            [
                {**row, "ts": row["ts"] if row["ts"] is None else base * SECOND + row["ts"]}
                for row in draw(st.lists(each, min_size=least, max_size=least + 6))
            ]
            for each in rows
        ]
        turns.append(
            Turn(inputs, draw(st.integers(1, 3)), draw(st.sampled_from(events)), draw(st.integers(1, 4)))
        )
        base += draw(st.integers(0, 12))
    return Play(
        turns,
        draw(st.sampled_from([0, 0, 0, 3, 30])) * SECOND,
        draw(st.sampled_from(["memory", "memory", "memory", "rocksdb"])),
        draw(st.integers(1, 3)),
    )


@dataclass
class Said:
    """What a model says of a batch."""

    rows: Rows = field(default_factory=list)
    late: dict[str, Rows] = field(default_factory=dict)
    """By side output."""
    partly_late: int = 0
    kept: int | None = None
    """Entries that state has after the batch, where the model knows it."""


class Model(Protocol):
    def batch(self, pieces: list[list[Rows]], mark: int | None) -> Said:
        """A batch of these tables, one of each input, with this watermark."""

    def release(self) -> KeyedNode | None:
        """The next release of the operator."""


def played(
    play: Play, driven: Driven, model: Model, schemas: Sequence[pa.Schema],
    given: Callable[[Driven, Rows], pa.Table | None] = lambda driven, rows: None, *, reads_sides: bool = True,
) -> None:  # fmt: skip
    """`given` may make another table of a batch's rows that stands for them."""
    newest: int | None = None
    late, partly, sides = 0, 0, Counter[str]()
    try:
        for number, turn in enumerate([*play.turns, Turn([[] for _ in schemas])]):
            _before(turn, driven, model)
            mark = None if newest is None else newest - play.delay
            if number == len(play.turns):
                mark = END
            tables = [pa.Table.from_pylist(*each) for each in zip(turn.inputs, schemas, strict=True)]
            other = given(driven, turn.inputs[0]) if len(tables) == 1 else None
            if len(tables) == 2:
                found = driven.both(tables[0], tables[1], mark, turn.tables)
            else:
                found = driven.batch(tables[0] if other is None else other, mark, turn.tables)
            came = driven.pieces if other is None else [tables]
            said = model.batch([[plain(table.to_pylist()) for table in piece] for piece in came], mark)
            assert texts(found) == texts(said.rows), f"batch {number}, watermark {mark}"
            assert said.kept is None or driven.entries() == said.kept, "no more than is needed is kept"
            late += sum(map(len, said.late.values()))
            partly += said.partly_late
            sides.update(f"{name} {text}" for name, rows in said.late.items() for text in texts(rows))
            times = [row["ts"] for rows in turn.inputs for row in rows if row["ts"] is not None]
            newest = max([*times, *([] if newest is None else [newest])], default=None)
        counted = driven.counters.get("late_rows", 0), driven.counters.get("partly_late_rows", 0)
        assert counted == (late, partly)
        if reads_sides:
            put_out = (f"{name} {text}" for name, rows in driven.sides.items() for text in texts(rows))
            assert Counter(put_out) == sides
    finally:
        driven.close()


def _before(turn: Turn, driven: Driven, model: Model) -> None:
    match turn.before:
        case "restart":
            driven.restart()
        case "rescale":
            driven.rescale(turn.shards)
        case "release":
            node = model.release()
            if node is not None:
                driven.release(node)


def plain(value: Any) -> Any:
    """Instants as microseconds."""
    if isinstance(value, datetime):
        return (value - _EPOCH) // timedelta(microseconds=1)
    if isinstance(value, list):
        return [plain(each) for each in value]
    return {name: plain(each) for name, each in value.items()} if isinstance(value, dict) else value


def place(value: Any) -> tuple[Any, ...]:
    """Where a value is among those of its column: null below all, NaN above all numbers."""
    nan = isinstance(value, float) and math.isnan(value)
    return value is not None, nan, 0 if nan or value is None else value


def texts(rows: Rows) -> list[str]:
    """Zero has two signs; a variance is computed in another order of rows, and may differ in its last digits."""

    def rounded(value: Any) -> Any:
        return f"{value + 0.0:.9g}" if isinstance(value, float) else value

    return sorted(repr([(name, rounded(plain(row[name]))) for name in sorted(row)]) for row in rows)
