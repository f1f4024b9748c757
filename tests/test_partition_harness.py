"""A process without keys, as a user's own tests use its harness."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

import stateflow as sf
from stateflow.testing import PartitionHarness
from tests.refusals.refusal import refused


@dataclass
class Reading:
    sensor: int
    value: float


@dataclass
class Numbered:
    number: int
    value: float


HOT = sf.output("hot", Reading)


class Numbering(sf.PartitionProcess[Reading, Numbered]):
    """Numbers the rows of each subtask, across batches, and has a share of the ranges that all of them know."""

    count = sf.OperatorListState(int)
    ranges = sf.UnionListState(str)
    factors = sf.BroadcastState(int, float)

    def restore(self, ctx: sf.Context) -> None:
        self.number = sum(self.count.get())

    def snapshot(self, ctx: sf.Context) -> None:
        self.count.update([self.number] if self.number else [])

    def process_broadcast(self, name: str, rows: Iterator[Any], ctx: sf.Context) -> None:
        self.factors.update(rows)

    def process(self, rows: Iterator[Reading], ctx: sf.Context) -> Iterator[Numbered]:
        assert ctx.key is None
        for row in rows:
            self.number += 1
            self.ranges.add(f"{ctx.subtask}/{ctx.parallelism}:{self.number}")
            ctx.metrics.counter("rows").inc()
            if row.value > 100:
                ctx.emit(HOT, row)
            yield Numbered(self.number, row.value * self.factors.get(row.sensor, 1.0))


def readings(*values: float) -> list[Reading]:
    return [Reading(n, value) for n, value in enumerate(values)]


def test_each_subtask_goes_on_from_its_own_state() -> None:
    harness = PartitionHarness(Numbering, parallelism=2, outputs=[HOT])
    assert harness.rows(*readings(1, 2, 3)) == [Numbered(1, 1), Numbered(2, 3), Numbered(1, 2)]
    harness.broadcast("factors", (0, 10.0))
    assert harness.rows(*readings(1, 200)) == [Numbered(3, 10), Numbered(2, 200)]
    assert harness.side(HOT) == [Reading(1, 200)]
    assert harness.metrics == {"rows": 5}
    assert [harness.state(n).count.get() for n in range(2)] == [[3], [2]]


def test_a_rescale_keeps_every_element_and_the_one_map() -> None:
    harness = PartitionHarness(Numbering, parallelism=3)
    harness.broadcast("factors", (0, 10.0))
    harness.rows(*readings(1, 2, 3, 4))
    for parallelism in (1, 2, 5):
        harness.rescale(parallelism)
        harness.rows()
        states = [harness.state(n) for n in range(parallelism)]
        assert sum(n for state in states for n in state.count.get()) == 4
        assert sum(len(state.ranges.get()) for state in states) == 4
        assert all(state.factors == {0: 10.0} for state in states)


class Told(sf.PartitionProcess[int, int]):
    seen = sf.UnionListState(int)

    def process(self, rows: Iterator[int], ctx: sf.Context) -> Iterator[int]:
        yield len(self.seen.get())
        for row in rows:
            self.seen.add(row)


def test_every_subtask_sees_the_whole_union_in_a_runs_first_batch_only() -> None:
    harness = PartitionHarness(Told, parallelism=2, output="n int")
    assert harness.rows(1, 2, 3) == [0, 0]
    assert harness.rows() == [2, 1]
    harness.restart(after=timedelta(hours=1))
    assert harness.rows() == [3, 3]
    assert harness.rows() == [2, 1]


class Failing(Told):
    def process(self, rows: Iterator[int], ctx: sf.Context) -> Iterator[int]:
        for row in rows:
            if row == 13:
                raise ValueError("unlucky")
            self.seen.add(row)
            yield row


def test_a_failing_subtask_leaves_nothing_of_the_batch() -> None:
    harness = PartitionHarness(Failing, parallelism=2, output="n int")
    harness.rows(1, 2)
    with refused(sf.StateflowError, "'Failing' failed in subtask 1", "ValueError: unlucky"):
        harness.rows(3, 13)
    assert [harness.state(n).seen.get() for n in range(2)] == [[1], [2]]


class Later(sf.PartitionProcess[Reading, Numbered]):
    counts = sf.OperatorListState(float, aliases=["count"])
    ranges = sf.UnionListState(str)
    factors = sf.BroadcastState(int, float)


def test_a_release_of_the_code_goes_on_or_is_refused_as_a_run_would_be() -> None:
    harness = PartitionHarness(Numbering, parallelism=2)
    harness.rows(*readings(1, 2, 3))
    later = PartitionHarness(Later, parallelism=1, after=harness)
    assert sorted(later.state().counts.get()) == [1.0, 2.0]

    class Other(sf.PartitionProcess[Reading, Numbered]):
        counts = sf.OperatorListState(bytes, aliases=["count"])
        ranges = sf.UnionListState(str)
        factors = sf.BroadcastState(int, float)

    with pytest.raises(sf.IncompatibleError, match=r"state 'counts': its type was int"):
        PartitionHarness(Other, after=harness)


def test_state_of_keys_is_refused_where_there_are_none() -> None:
    class Keyed(sf.PartitionProcess[Reading, Numbered]):
        total = sf.ValueState(float)

    with refused(sf.UsageError, "'total' of Keyed", "a key", "PartitionProcess"):
        PartitionHarness(Keyed)
    with refused(sf.UsageError, "KeyedHarness"):
        PartitionHarness(sf.KeyedProcess)  # type: ignore[type-abstract,arg-type]


class Uneven(sf.PartitionProcess[int, int]):
    rates = sf.BroadcastState(str, int)

    def process_broadcast(self, name: str, rows: Iterator[Any], ctx: sf.Context) -> None:
        self.rates["mine"] = ctx.subtask


def test_broadcast_state_that_differs_between_subtasks_is_refused() -> None:
    harness = PartitionHarness(Uneven, parallelism=2, output="n int")
    with refused(sf.StateflowError, "differs between subtasks"):
        harness.broadcast("rates", 1)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_only_process_broadcast_writes_broadcast_state(parallelism: int) -> None:
    class Writing(sf.PartitionProcess[int, int]):
        rates = sf.BroadcastState(str, int)

        def process(self, rows: Iterator[int], ctx: sf.Context) -> Iterator[int]:
            for row in rows:
                self.rates["sum"] = row
                yield row

    harness = PartitionHarness(Writing, parallelism=parallelism, output="n int")
    with refused(sf.UsageError, "operator 'Writing'", "process writes", "broadcast state 'rates'"):
        harness.rows(1, 2)
    assert harness.state().rates == {}


def test_rows_that_a_run_would_refuse_are_refused() -> None:
    class Texts(sf.PartitionProcess[int, int]):
        def process(self, rows: Iterator[int], ctx: sf.Context) -> list[Any]:
            return ["text"]

    with refused(sf.UsageError, "operator 'Texts'", "text"):
        PartitionHarness(Texts, output="n int").rows(1)
