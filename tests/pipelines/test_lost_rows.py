"""Late rows are lost where an operator counts them and none of its late outputs is read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

import stateflow as sf
from stateflow.pipelines.lost_rows import LostRows, added, lost_rows


@dataclass
class Click:
    id: int
    ts: datetime


@dataclass
class PerMinute:
    id: int
    n: int


@dataclass
class Pair:
    id: int
    left_ts: datetime


def flow_of(*read: str) -> sf.Flow:
    @sf.pipeline("clicks")
    def clicks(flow: sf.Flow) -> None:
        events = flow.source("clicks", sf.delta("/in"), Click, event_time="ts", watermark="1 minute")
        keyed = events.key_by("id")
        outputs = {
            "minutes": keyed.window(sf.tumbling("1 minute")).aggregate("minutes", PerMinute, n=sf.count()),
            "pairs": keyed.join("pairs", keyed, Pair, within=("0 minutes", "1 minute")),
            "total": keyed.aggregate("total", PerMinute, n=sf.count()),
        }
        for each in read:
            operator, side = each.split(".")
            outputs[operator].side(side).append(each.replace(".", "-"), sf.delta(f"/{each}"))

    return clicks.build()


def noted(**counts: int) -> dict[str, Any]:
    return {uid: {"counters": {"late_rows": count, "mine": 7}} for uid, count in counts.items()}


@pytest.mark.parametrize(
    ("read", "lost"),
    [
        ((), [LostRows("minutes", ("late",), 3), LostRows("pairs", ("late_left", "late_right"), 4)]),
        (("minutes.late",), [LostRows("pairs", ("late_left", "late_right"), 4)]),
        (("pairs.late_left",), [LostRows("minutes", ("late",), 3)]),
    ],
)
def test_rows_are_lost_where_no_late_output_is_read(read: tuple[str, ...], lost: list[LostRows]) -> None:
    assert lost_rows(flow_of(*read), noted(minutes=3, pairs=4)) == lost


def test_nothing_is_lost_where_no_row_was_late() -> None:
    assert lost_rows(flow_of(), {"minutes": {"counters": {"mine": 7}}, "total": {}}) == []


def test_a_run_adds_up_what_its_batches_lost() -> None:
    flow, total = flow_of(), dict[str, LostRows]()
    for batch in (noted(minutes=3), noted(), noted(minutes=2, pairs=1)):
        total = added(total, lost_rows(flow, batch))
    assert [(each.operator, each.rows) for each in total.values()] == [("minutes", 5), ("pairs", 1)]
