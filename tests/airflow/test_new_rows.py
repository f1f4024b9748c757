"""A watcher calls for a run once for the same rows, bears what goes wrong, and says it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger

from stateflow.airflow import NewRowsTrigger
from stateflow.airflow.triggers import new_rows
from stateflow.airflow.triggers.new_rows import CALL_AGAIN, Called, calls
from stateflow.errors import NotFoundError
from stateflow.jobs.unread import Unread
from tests.airflow.conftest import Connect
from tests.refusals.refusal import refused

QUIET = Unread(position="p1", newest="", epoch=1, beats=None)
ROWS = replace(QUIET, newest="v4", text="version 4")
MORE = replace(QUIET, newest="v5")
LAST = Called("p1", "v4", 1, at=1000.0)


@pytest.mark.parametrize(
    ("seen", "before", "last", "now", "expected"),
    [
        (QUIET, None, None, 0, False),
        (ROWS, None, None, 0, True),
        (ROWS, ROWS, LAST, 1001, False),  # the same rows from the same position
        (replace(ROWS, epoch=2), ROWS, LAST, 10**9, False),  # the run has failed: Airflow's to try again
        (MORE, ROWS, LAST, 1001, False),  # the run that was called for has not begun, and will read them too
        (MORE, ROWS, LAST, 1000 + CALL_AGAIN, True),  # nobody has heard the call
        (ROWS, ROWS, LAST, 1000 + CALL_AGAIN, True),
        (replace(MORE, epoch=2), ROWS, LAST, 1001, True),  # its run has come and gone without reading
        (replace(MORE, position="p2"), ROWS, LAST, 1001, True),  # it has read, and more has come
        (replace(ROWS, epoch=2, beats=7), replace(ROWS, epoch=2, beats=6), None, 0, False),  # a run lives
        (replace(ROWS, epoch=2, beats=7), None, None, 0, False),  # nobody knows yet whether it does
        (replace(ROWS, epoch=2, beats=7), replace(ROWS, epoch=2, beats=7), None, 0, True),  # it died
    ],
)
def test_when_a_run_is_called_for(
    seen: Unread, before: Unread | None, last: Called | None, now: float, expected: bool
) -> None:
    assert calls(seen, before, last, now) is expected


class Kept:
    """Airflow's store of an asset's state."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    async def aget(self, key: str) -> Any:
        return self.values.get(key)

    async def aset(self, key: str, value: Any) -> None:
        assert len(key) <= 512, "a name that Airflow's table does not hold"
        self.values[key] = json.loads(json.dumps(value))


def watched(
    seen: Iterable[Unread | Exception],
    monkeypatch: pytest.MonkeyPatch,
    kept: Kept | None = None,
    **where: str,
) -> tuple[list[Any], list[float]]:
    """The events of a trigger that sees this, and its pauses."""
    answers, pauses, found = iter(seen), [], []
    trigger = NewRowsTrigger(job="orders", interval=timedelta(seconds=10), **where)
    trigger.asset_state_store = kept  # type: ignore[assignment]

    class EndError(Exception):
        pass

    def look() -> Unread:
        answer = next(answers, None)
        if answer is None:
            raise EndError
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def gathered() -> None:
        async for event in trigger.run():
            found.append(event.payload)  # noqa: PERF401

    monkeypatch.setattr(trigger, "_look", look)
    monkeypatch.setattr(new_rows.asyncio, "sleep", sleep)
    with pytest.raises(EndError):
        asyncio.run(gathered())
    return found, pauses


def test_it_calls_once_and_looks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    found, pauses = watched([QUIET, ROWS, ROWS, replace(QUIET, position="p2"), ROWS], monkeypatch)
    assert found == [{"job": "orders", "found": "version 4"}]
    assert pauses == [10] * 5


def test_a_triggerer_that_begins_anew_does_not_call_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept()
    assert len(watched([ROWS, ROWS], monkeypatch, kept)[0]) == 1
    assert watched([ROWS, ROWS], monkeypatch, kept)[0] == []
    assert len(watched([replace(MORE, position="p2")], monkeypatch, kept)[0]) == 1


def test_jobs_of_the_same_name_in_two_roots_are_called_for_each_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Kept()
    for where in ({}, {"stateflow_conn_id": "lake"}, {"checkpoint_dir": "/lake" * 200}):
        for called in (1, 0):
            assert len(watched([ROWS], monkeypatch, kept, **where)[0]) == called


def test_a_triggerer_that_dies_with_its_call_calls_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept()
    trigger = NewRowsTrigger(job="orders")
    trigger.asset_state_store = kept  # type: ignore[assignment]
    monkeypatch.setattr(trigger, "_look", lambda: ROWS)

    async def first_event() -> Any:
        return await anext(aiter(trigger.run()))

    assert asyncio.run(first_event()).payload["job"] == "orders"
    assert kept.values == {}, "whether Airflow has the event is not known yet"
    assert len(watched([ROWS], monkeypatch, kept)[0]) == 1


def test_what_goes_wrong_is_an_error_at_growing_intervals_and_the_watcher_lives_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = NotFoundError("job 'orders' has no checkpoint")
    with caplog.at_level(logging.ERROR):
        found, pauses = watched([*[wrong] * 6, ROWS], monkeypatch)
    assert pauses == [20, 40, 80, 160, 300, 300, 10]
    assert len(found) == 1


def test_it_is_a_watcher_whose_arguments_go_through_airflows_database() -> None:
    trigger = NewRowsTrigger(job="orders", sources=["events"], places={"events": "/data/orders"})
    path, arguments = trigger.serialize()
    assert path == "stateflow.airflow.triggers.new_rows.NewRowsTrigger"
    assert NewRowsTrigger(**json.loads(json.dumps(arguments))).serialize() == (path, arguments)
    assert isinstance(BaseEventTrigger.hash(path, arguments), int)
    Asset("new-orders", watchers=[AssetWatcher(name="orders", trigger=trigger)])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [({"interval": 0.5}, "less than a second"), ({"sources": "events"}, r"write sources=\['events'\]")],
)
def test_arguments_that_cannot_be_meant_fail_the_dags_file(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        NewRowsTrigger(job="orders", **arguments)


def test_a_look_goes_through_the_connection(tmp_path: Path, connect: Connect) -> None:
    connect(tmp_path)
    with refused(NotFoundError, "no job 'odrers' in", "run it once, or correct"):
        NewRowsTrigger(job="odrers")._look()
