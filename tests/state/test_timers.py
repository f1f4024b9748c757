"""A timer as user code sets it, down to its entries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import stateflow as sf
from stateflow.errors import UsageError
from stateflow.format.encoding import prefix
from stateflow.format.records import Shard
from stateflow.state.backends.memory import memory_backend
from stateflow.state.cursor import Change, Cursor
from stateflow.state.timers import BoundTimer
from stateflow.testing import KeyedHarness
from tests.refusals.refusal import refused


@dataclass
class Wake:
    user: int


def test_the_bytes_of_a_timer_never_change(tmp_path: Path) -> None:
    cursor = Cursor(1, 0)
    cursor.backend = memory_backend()(Shard(0, 127, "memory"), tmp_path / "shard", lambda _: tmp_path)
    cursor.base = [prefix(5, 0) + b"K\0"]
    timer = BoundTimer(cursor, "orders", "idle", 9, "event")
    timer.begin(1, None)
    timer.set(datetime(1970, 1, 1, 0, 0, 0, 1, UTC))
    changes: list[Change] = []
    timer.collect(None, changes)
    assert [(key.hex(), value.hex()) for key, value in changes if value is not None] == [
        ("0005" + "0009" + "8000000000000001" + "4b00", ""),
        ("0005" + "000a" + "4b00", "0000000000000001"),
    ]


def sleeper(at: datetime | timedelta, many: bool) -> KeyedHarness:
    class Sleeper(sf.KeyedProcess[int, Wake, Any]):
        wake = sf.Timer("processing", many=many)

        def process(self, key: int, rows: Iterator[Wake], ctx: sf.Context) -> None:
            self.wake.set(at)

        @wake.fires
        def woken(self, key: int, at: datetime, ctx: sf.Context) -> Any:
            yield key

    return KeyedHarness(Sleeper)


@pytest.mark.parametrize("many", [False, True], ids=["one time", "many times"])
def test_a_time_that_no_timer_can_show_is_refused(many: bool) -> None:
    late = datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))
    for far in (timedelta.max, timedelta(days=365 * 9000), timedelta(days=-365 * 9000)):
        with refused(UsageError, "timer 'wake'", "key 1", repr(far), "set a shorter time"):
            sleeper(far, many).rows(Wake(1))
    with refused(UsageError, "'wake'", "key 1", str(late)):
        sleeper(late, many).rows(Wake(1))
    for at in (datetime.max.replace(tzinfo=UTC), timedelta(days=365)):
        harness = sleeper(at, many)
        assert harness.rows(Wake(1)) == []
        assert harness.advance(now=timedelta(days=366)) == ([1] if at == timedelta(days=365) else [])
