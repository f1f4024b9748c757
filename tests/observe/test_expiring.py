"""What `show` knows of state that expires."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stateflow.format.instants import END_OF_TIME
from stateflow.format.records import ExpiryShare, Shard, StateSchema
from stateflow.observe.status import OperatorStatus, _operator
from tests.jobs.log import record
from tests.jobs.operators import operator_of

DAY = 86_400 * 10**6


def status(shard: Shard, statistics: dict[str, Any], watermark: int | None = None) -> OperatorStatus:
    states = {
        "seen": StateSchema(id=1, kind="value", value="bool", ttl=7 * DAY, ttl_renew="read", expiry_index=2),
        "carts": StateSchema(id=3, kind="value", value="int", ttl=DAY, ttl_time="event", expiry_index=4),
        "total": StateSchema(id=5, kind="value", value="int"),
    }
    operator = operator_of([shard], groups=8, states=states)
    made = record(3, now=100, watermark=watermark, operators={"op": operator}, statistics=statistics)
    return _operator("op", made)


EMPTY = Shard(first=0, last=7, backend="memory")


def test_states_tell_how_long_they_live() -> None:
    assert status(EMPTY, {}).ttl == {
        "seen": "1 week after it was read or written, in processing time",
        "carts": "1 day after it was written, in event time",
    }


@pytest.mark.parametrize(
    ("statistics", "expired"), [({}, 0), ({"operators": {"op": {"expired": 7}}}, 7), ({"operators": 5}, 0)]
)
def test_what_expired_is_what_the_batch_has_noted(statistics: dict[str, Any], expired: int) -> None:
    assert status(EMPTY, statistics).expired == expired


@pytest.mark.parametrize(
    ("due", "watermark", "waits"),
    [
        ({}, None, False),
        ({"next_processing_expiry": 101}, None, False),
        ({"next_processing_expiry": 100}, None, True),
        ({"next_event_expiry": 50}, None, False),
        ({"next_event_expiry": 50}, 49, False),
        ({"next_event_expiry": 50}, 50, True),
        ({"next_event_expiry": 50}, END_OF_TIME, False),
    ],
)
def test_entries_wait_when_a_shard_has_some_that_are_due(
    due: dict[str, int], watermark: int | None, waits: bool
) -> None:
    assert status(msgspec.structs.replace(EMPTY, **due), {}, watermark).expiring is waits


SEEN, CARTS, TOTAL = 1, 3, 5


@pytest.mark.parametrize(
    ("share", "watermark", "live", "expired"),
    [
        (ExpiryShare(SEEN, 101, 200, 4, 4000), None, {"seen": 4000, "carts": 0}, {"seen": 0, "carts": 0}),
        (ExpiryShare(SEEN, 0, 100, 4, 4000), None, {"seen": 0, "carts": 0}, {"seen": 4000, "carts": 0}),
        (ExpiryShare(SEEN, 50, 250, 4, 4000), None, {"seen": 3000, "carts": 0}, {"seen": 1000, "carts": 0}),
        (ExpiryShare(CARTS, 0, 10, 4, 4000), None, {"seen": 0, "carts": 4000}, {"seen": 0, "carts": 0}),
        (ExpiryShare(CARTS, 0, 10, 4, 4000), 20, {"seen": 0, "carts": 0}, {"seen": 0, "carts": 4000}),
        (
            ExpiryShare(CARTS, 0, 10, 4, 4000),
            END_OF_TIME,
            {"seen": 0, "carts": 4000},
            {"seen": 0, "carts": 0},
        ),
        (ExpiryShare(TOTAL, 0, 10, 4, 4000), 20, {"seen": 0, "carts": 0}, {"seen": 0, "carts": 0}),
    ],
)
def test_bytes_are_live_or_expired_by_the_time_of_the_head(
    share: ExpiryShare, watermark: int | None, live: dict[str, int], expired: dict[str, int]
) -> None:
    seen = status(msgspec.structs.replace(EMPTY, expiring=(share,)), {}, watermark)
    assert (seen.live_bytes, seen.expired_bytes) == (live, expired)
