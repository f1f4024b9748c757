"""What joins hold now can be asked by key: rows that wait, and versions that are known."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import stateflow as sf
from stateflow.format.instants import BEGIN_OF_TIME, END_OF_TIME
from stateflow.reading.rows_of_joins import RowsOfJoin
from stateflow.testing import ColumnarHarness
from tests.jobs.queried import QueriedJob
from tests.refusals.refusal import refused
from tests.serve.conftest import served_over

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LEFT = "ad long, price double, note string, ts timestamp"
RIGHT = "ad long, page string, ts timestamp"
OUT = "ad long, price double, page string"


def at(minute: int) -> datetime:
    return NOON + timedelta(minutes=minute)


def left(ad: int, price: float, minute: int) -> dict[str, Any]:
    return {"ad": ad, "price": price, "note": "not kept", "ts": at(minute)}


def right(ad: int, page: str | None, minute: int) -> dict[str, Any]:
    return {"ad": ad, "page": page, "ts": at(minute)}


def harness(join: Callable[[Any, Any], Any], *, timed: bool = True) -> ColumnarHarness:
    @sf.pipeline("orders")
    def asked(flow: sf.Flow) -> None:
        time: dict[str, Any] = {"event_time": "ts", "watermark": "0 seconds"} if timed else {}
        one = flow.source("left", sf.delta("/left"), LEFT, **time).key_by("ad")
        other = flow.source("right", sf.delta("/right"), RIGHT, **time).key_by("ad")
        join(one, other)

    return ColumnarHarness.of(asked.build(), "op")


def job_of(run: ColumnarHarness, folder: Path) -> QueriedJob:
    job = QueriedJob(folder / "root", operator="op", backend="memory", key=(("ad", "int"),))
    job.states, job.fixed = dict(run._spec.states), dict(run._state.options)
    job.checkpoint(dict(run._backend.scan(b"", b"\xff" * 8)))
    return job


def asked(run: ColumnarHarness, folder: Path, state: str, key: int, **options: Any) -> Any:
    reader = job_of(run, folder).reader(folder / "host")
    try:
        return reader.look_up("op", state, key, **options)
    finally:
        reader.close()


def interval(**options: Any) -> ColumnarHarness:
    return harness(lambda a, b: a.join("op", b, OUT, within=("-1 minute", "1 minute"), how="left", **options))


def test_an_interval_join_tells_the_rows_of_both_inputs_that_wait(tmp_path: Path) -> None:
    run = interval(queryable=True)
    run.both([left(1, 0.5, 9), left(1, 0.25, 1), left(2, 9.0, 1)], [right(1, "/b", 10), right(1, None, 5)])
    rows = [
        {"side": "left", "has_partner": False, "at": at(1), "row_price": 0.25},
        {"side": "right", "has_partner": False, "at": at(5), "row_page": None},
        {"side": "left", "has_partner": True, "at": at(9), "row_price": 0.5},
        {"side": "right", "has_partner": True, "at": at(10), "row_page": "/b"},
    ]
    found = asked(run, tmp_path, "waiting", 1)
    assert (found.found, found.what, found.more) == (True, "list", False)
    assert found.value == rows
    first = asked(run, tmp_path / "again", "waiting", 1, limit=2)
    assert (first.value, first.more) == (rows[:2], True)
    nothing = asked(run, tmp_path / "other", "waiting", 999)
    assert (nothing.found, nothing.value) == (False, [])


def test_an_as_of_join_tells_versions_and_left_rows_that_wait(tmp_path: Path) -> None:
    run = harness(lambda a, b: a.join_asof("op", b, OUT, queryable=True))
    run.both([left(1, 0.5, 9)], [right(1, "/b", 10), right(1, "/a", 5)])
    assert asked(run, tmp_path, "versions", 1).value == [
        {"at": at(5), "row_page": "/a"},
        {"at": at(10), "row_page": "/b"},
    ]
    assert asked(run, tmp_path / "2", "versions", 1, limit=1).more
    assert asked(run, tmp_path / "3", "waiting", 1).value == [{"at": at(9), "row_price": 0.5}]
    assert asked(run, tmp_path / "4", "versions", 2).value == []


@pytest.mark.parametrize("timed", [True, False])
def test_a_latest_join_tells_the_newest_row(tmp_path: Path, timed: bool) -> None:
    run = harness(lambda a, b: a.join_latest("op", b, OUT, ttl="1 day", queryable=True), timed=timed)
    run.both([], [right(1, "/b", 10)])
    run.both([], [right(1, "/c", 20)])
    found = asked(run, tmp_path, "versions", 1)
    assert found.value == ({"at": at(20)} if timed else {}) | {"row_page": "/c"}
    assert found.what == "columns"
    nothing = asked(run, tmp_path / "2", "versions", 2)
    assert (nothing.found, nothing.value) == (False, None)


@pytest.mark.parametrize(
    ("window", "shown"),
    [
        (sf.tumbling("10 minutes"), [("window_end", 10), ("window_end", 20)]),
        (sf.session("4 minutes"), [("session_start", 1), ("session_start", 12)]),
    ],
)
def test_a_window_join_tells_the_rows_of_open_windows(
    tmp_path: Path, window: Any, shown: list[tuple[str, int]]
) -> None:
    run = harness(lambda a, b: a.window(window).join("op", b, OUT, queryable=True))
    run.both([left(1, 0.5, 1), left(1, 0.75, 3), left(1, 0.25, 12)], [right(1, "/b", 14)])
    (name, first), (_, second) = shown
    assert asked(run, tmp_path, "left", 1).value == [
        {name: at(first), "at": at(1), "row_price": 0.5},
        {name: at(first), "at": at(3), "row_price": 0.75},
        {name: at(second), "at": at(12), "row_price": 0.25},
    ]
    assert asked(run, tmp_path / "2", "right", 1).value == [
        {name: at(second), "at": at(14), "row_page": "/b"}
    ]


def test_a_row_whose_event_time_python_does_not_have_is_told_in_one_sentence() -> None:
    versions = RowsOfJoin(both=False, named={}, timed=True, single=False)
    for micros in (END_OF_TIME + 1, BEGIN_OF_TIME - 1, 2**63 - 1):
        block = {"layout": "", "rows": struct.pack("<qB", micros, 0), "texts": None}
        with refused(sf.UsageError, "event time", "years 1 to 9999", "before the join"):
            versions.of([block])


def test_the_service_answers_with_rows_that_opted_in_and_with_no_others(tmp_path: Path) -> None:
    run = interval(queryable=True)
    run.both([left(1, 0.5, 9)], [])
    with served_over(job_of(run, tmp_path), tmp_path / "host") as served, served.client() as client:
        (row,) = client.get("orders", "op", "waiting", 1)
        assert row == {"side": "left", "has_partner": False, "at": "2026-01-01T12:09:00Z", "row_price": 0.5}
        assert client.get_many("orders", "op", "waiting", [1, 2]) == [[row], []]
    assert not any(schema.queryable for schema in interval()._spec.states.values())


def test_rows_of_records_that_do_not_tell_their_columns_are_shown_as_they_are_stored(tmp_path: Path) -> None:
    run = interval()
    run.both([left(1, 0.5, 9)], [])
    job = job_of(run, tmp_path)
    job.fixed = {}
    job.checkpoint(dict(run._backend.scan(b"", b"\xff" * 8)))
    reader = job.reader(tmp_path / "host")
    (entry,) = reader.get("op", "waiting", 1)
    assert isinstance(entry["left_rows"], bytes)
    reader.close()
