"""What ready-made operators hold can be asked by key: the newest row, what an open window has so far."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import stateflow as sf
from stateflow.errors import UsageError
from stateflow.reading import query
from stateflow.testing import ColumnarHarness
from tests.jobs.queried import QueriedJob
from tests.refusals.refusal import refused

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ROWS = "user long, sku string, amount double, ts timestamp"


def harness(declare: Callable[[Any], Any], **key: Any) -> ColumnarHarness:
    @sf.pipeline("asked")
    def asked(flow: sf.Flow) -> None:
        source = flow.source("in", sf.delta("/in"), ROWS, event_time="ts", watermark="0 seconds")
        declare(source.key_by("user", **key))

    return ColumnarHarness.of(asked.build(), "op")


def reader(run: ColumnarHarness, folder: Path) -> query.StateReader:
    job = QueriedJob(folder / "root", operator="op", backend="memory")
    job.states = dict(run._spec.states)
    job.checkpoint(dict(run._backend.scan(b"", b"\xff" * 8)))
    return job.reader(folder / "host")


def row(user: int, sku: str, amount: float, minute: int) -> dict[str, Any]:
    return {"user": user, "sku": sku, "amount": amount, "ts": NOON + timedelta(minutes=minute)}


def test_the_newest_row_of_a_key_is_put_out_when_it_changes_and_can_be_asked(tmp_path: Path) -> None:
    run = harness(lambda keyed: keyed.latest("op", queryable="prices"))
    assert run.rows(row(1, "tea", 2.0, 5), row(1, "jam", 1.0, 3), row(2, "rum", 9.0, 1)) == [
        row(1, "tea", 2.0, 5),
        row(2, "rum", 9.0, 1),
    ]
    assert run.rows(row(1, "old", 7.0, 4)) == [], "a row from before changes nothing"
    assert run.rows(row(1, "tea", 3.0, 5)) == [row(1, "tea", 3.0, 5)], (
        "of two at one time the larger is the last"
    )
    assert run._spec.states["prices"].queryable
    asked = reader(run, tmp_path)
    found = asked.get("op", "prices", 1)
    assert (found["row_sku"], found["row_amount"]) == ("tea", 3.0)
    asked.close()


def test_what_open_windows_hold_so_far_can_be_asked_by_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = harness(
        lambda keyed: keyed.window(sf.tumbling("1 minute")).aggregate(
            "op", "user long, window_start timestamp, n long, total double",
            queryable=True, n=sf.count(), total=sf.sum("amount"),
        )
    )  # fmt: skip
    for user in range(50):
        run.rows(row(user, "tea", 1.0, 0), row(user, "tea", 2.0, 0), row(user, "jam", 5.0, user % 3 + 1))
    assert run._spec.states["windows"].queryable
    asked = reader(run, tmp_path)
    assert asked.get("op", "windows", 4) == [
        {"at": NOON + timedelta(minutes=1), "n": 2, "total": 3.0},
        {"at": NOON + timedelta(minutes=3), "n": 1, "total": 5.0},
    ]
    first = asked.look_up("op", "windows", 4, limit=1)
    assert (len(first.value), first.more) == (1, True)
    assert not asked.look_up("op", "windows", 999).found
    monkeypatch.setattr(query, "MOST_TIMES", 1)
    with refused(UsageError, "as a table", "`stateflow state export`"):
        asked.get("op", "windows", 4)
    asked.close()


def test_states_are_closed_to_those_who_ask_unless_they_opt_in() -> None:
    def opened(declare: Callable[[Any], Any], **key: Any) -> set[bool]:
        return {schema.queryable for schema in harness(declare, **key)._spec.states.values()}

    assert opened(lambda keyed: keyed.latest("op")) == {False}
    assert opened(lambda keyed: keyed.aggregate("op", "user long, n long", n=sf.count())) == {False}
    assert opened(lambda keyed: keyed.aggregate("op", "user long, n long", queryable=True, n=sf.count())) == {
        True
    }
    assert opened(lambda keyed: keyed.top("op", 3, by="amount", queryable=True)) == {True}
    code = sf.columns({"n": int}, queryable=True)
    assert opened(
        lambda keyed: keyed.process_arrow(
            "op", lambda table, state, ctx: None, state=code, output="user long"
        )
    ) == {True}


def test_the_newest_row_needs_an_order() -> None:
    @sf.pipeline("unordered")
    def unordered(flow: sf.Flow) -> None:
        flow.source("in", sf.delta("/in"), ROWS).key_by("user").latest("op")

    with refused(UsageError, "which row of a key is the last", "key_by"):
        unordered.build()
