"""A timer as user code sets it, down to its entries."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from stateflow.format.encoding import prefix
from stateflow.format.records import Shard
from stateflow.state.backends.memory import memory_backend
from stateflow.state.cursor import Change, Cursor
from stateflow.state.timers import BoundTimer


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
