"""What comes after a deduplication takes its rows, although they come when the watermark has reached them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import stateflow as sf
from stateflow.pipelines.held_back import comes_when_reached


@dataclass
class Event:
    id: str
    shop: str
    amount: int
    ts: datetime


def flow_of(keep: str, within: str | None = "1 day") -> sf.Flow:
    flow = sf.Flow("flow")
    rows = flow.source("in", sf.delta("/in"), Event, event_time="ts", watermark="1 minute")
    single = rows.deduplicate("once", by="id", within=within, keep=keep)
    more = single.transform(lambda frame: frame, type=Event).union(rows)
    out = (
        more.key_by("shop")
        .window(sf.tumbling("1 hour"))
        .aggregate(
            "hours",
            "shop string, n long, total long, window_end timestamp",
            n=sf.count(),
            total=sf.sum("amount"),
        )
    )
    out.append("out", sf.delta("/out"))
    return flow


def test_an_operator_knows_of_a_deduplication_before_it() -> None:
    told = {node.uid: comes_when_reached(node) for node in flow_of("first").operators}
    assert told == {"once": False, "hours": True}


def test_the_last_of_each_key_holds_a_window_back_by_as_long_as_it_waits() -> None:
    told = {node.uid: (comes_when_reached(node), node.held_back) for node in flow_of("last").operators}
    assert told == {"once": (False, 0), "hours": (True, 86_400 * 1_000_000)}


def test_the_newest_of_the_last_rows_is_told_by_their_time() -> None:
    flow = sf.Flow("flow")
    rows = flow.source("in", sf.delta("/in"), Event, event_time="ts", watermark="1 minute")
    last = rows.deduplicate("once", by="id", within="1 day", keep="last").key_by("shop")
    last.latest("newest").upsert("out", sf.delta("/out"))
    assert [node.uid for node in flow.operators] == ["once", "newest"]
