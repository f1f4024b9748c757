"""A release in which rows may be less late: windows that are open already close by it, too, and take no row that is late by it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import stateflow as sf
from stateflow.format.instants import micros_since_epoch
from stateflow.pipelines.graph import KeyedNode
from stateflow.testing import ColumnarHarness
from tests.operators.ready.driving import Driven

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def windows(lateness: str) -> sf.Flow:
    flow = sf.Flow("flow")
    rows = flow.source("in", sf.delta("/in"), "k long, ts timestamp", event_time="ts", watermark="1 minute")
    cut = rows.key_by("k").window(sf.tumbling("1 minute"), lateness=lateness)
    cut.aggregate("op", "k long, window_start timestamp, n long", n=sf.count())
    return flow


def windows_node(lateness: str) -> KeyedNode:
    return windows(lateness).operators[0]


def row(key: int, at: datetime) -> pa.Table:
    columns = {"k": pa.int64(), "ts": pa.timestamp("us", tz="UTC")}
    return pa.Table.from_pylist([{"k": key, "ts": at}], pa.schema(columns))


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("key", [1, 2])
def test_a_window_that_is_open_closes_by_the_lateness_of_today(shards: int, key: int) -> None:
    """In a batch whose rows are of the same key, or of another."""
    driven = Driven.of(windows_node("12 hours"), shards)
    assert driven.batch(row(1, NOON), None) == []
    driven.release(windows_node("1 minute"))
    out = driven.batch(row(key, NOON + 31 * MINUTE), micros_since_epoch(NOON + 30 * MINUTE))
    assert out == [{"k": 1, "window_start": NOON, "n": 1}]
    driven.close()


def test_the_harness_closes_a_window_that_is_open_as_a_run_does() -> None:
    def harness(lateness: str, after: ColumnarHarness | None = None) -> ColumnarHarness:
        return ColumnarHarness.of(windows(lateness), "op", after=after)

    first = harness("12 hours")
    first.rows({"k": 1, "ts": NOON})
    assert harness("1 minute", first).advance(NOON + 30 * MINUTE) == [{"k": 1, "window_start": NOON, "n": 1}]
    assert harness("12 hours", first).advance(NOON + 30 * MINUTE) == []
