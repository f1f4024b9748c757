"""The watermark of several sources: who holds it, who is idle. Without a Spark session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import stateflow as sf
from stateflow.format.records import SourceState
from stateflow.pipelines.flow import Flow
from stateflow.spark.inputs.observations import Observation, event_time_in_sql
from stateflow.spark.inputs.silence import found_nothing
from stateflow.spark.inputs.watermark import advanced, holder_of, watermark_of

SECOND = 1_000_000
HOUR = 3600 * SECOND
IDLE = 300 * SECOND
DELAY = 60 * SECOND


@dataclass
class Event:
    user: int
    ts: datetime


def flow_of(*uids: str) -> Flow:
    @sf.pipeline("watermarks")
    def made(flow: sf.Flow) -> None:
        for uid in uids:
            source = flow.source(uid, sf.delta("/nowhere"), Event, event_time="ts", watermark="1 minute")
            source.append(f"out-{uid}", sf.delta(f"/nowhere/{uid}"))

    return made.build()


TWO = flow_of("a", "b")


def seen(event_time: int | None, active: int | None) -> SourceState:
    """A source that had rows when somebody looked last."""
    return SourceState(lines=("-",), event_time=event_time, active=active, looked=active)


def known(sources: Mapping[str, SourceState], now: int) -> dict[str, SourceState]:
    """Somebody has looked into all of them until `now`."""
    return found_nothing(sources, dict.fromkeys(sources, now))


def watermark(
    sources: Mapping[str, SourceState], now: int, before: int | None = None, idle: int = IDLE
) -> int | None:
    return watermark_of(TWO, known(sources, now), before, idle)


def mark(a: Any, b: Any, now: int, before: int | None = None, idle: int = IDLE) -> int | None:
    return watermark({"a": a, "b": b}, now, before, idle)


def holder(a: Any, b: Any, now: int, idle: int = IDLE) -> str | None:
    found = holder_of(TWO, known({"a": a, "b": b}, now), idle)
    return found.source if found else None


def test_the_lowest_source_holds_the_watermark() -> None:
    a, b = seen(10 * HOUR, 900 * SECOND), seen(8 * HOUR, 900 * SECOND)
    assert mark(a, b, 901 * SECOND) == 8 * HOUR - DELAY
    assert mark(a, b, 901 * SECOND, before=9 * HOUR) == 9 * HOUR, "it never goes back"
    assert watermark({"a": a}, 901 * SECOND, 5) == 5, "a source that has not begun holds it"
    assert watermark({}, 0) is None


def test_older_rows_of_a_source_do_not_take_its_event_time_back() -> None:
    """The watermark would not go back by it, but wait for this source while another one catches up."""
    positions = {"a": seen(10 * HOUR, 900 * SECOND), "b": seen(7 * HOUR, 900 * SECOND)}
    before = watermark(positions, 901 * SECOND)
    assert before == 7 * HOUR - DELAY
    batch = {"a": Observation(1, 8 * HOUR), "b": Observation(1, 9 * HOUR)}
    after = advanced(positions, batch, 902 * SECOND)
    assert {uid: state.event_time for uid, state in after.items()} == {"a": 10 * HOUR, "b": 9 * HOUR}
    assert watermark(after, 903 * SECOND, before) == 9 * HOUR - DELAY


def test_rows_without_a_time_leave_the_event_time_of_their_source_as_it_is() -> None:
    positions = {"a": seen(10 * HOUR, 900 * SECOND)}
    assert advanced(positions, {"a": Observation(3, None)}, 902 * SECOND)["a"].event_time == 10 * HOUR


def test_a_source_without_rows_for_the_timeout_no_longer_holds_it() -> None:
    a, b = seen(10 * HOUR, 900 * SECOND), seen(8 * HOUR, 600 * SECOND)
    assert mark(a, b, 900 * SECOND) == 8 * HOUR - DELAY
    assert mark(a, b, 901 * SECOND) == 10 * HOUR - DELAY
    assert mark(a, b, 901 * SECOND, idle=0) == 8 * HOUR - DELAY, "0 is never"
    empty = seen(None, 600 * SECOND)
    assert (mark(a, empty, 900 * SECOND, before=7), mark(a, empty, 901 * SECOND)) == (7, 10 * HOUR - DELAY)


def test_it_also_says_so_where_all_sources_have_had_no_rows_for_as_long() -> None:
    """As at the start of a batch that follows a long one, or of a run."""
    a, b = seen(10 * HOUR, 900 * SECOND), seen(8 * HOUR, 600 * SECOND)
    assert mark(a, b, 100 * HOUR) == 10 * HOUR - DELAY
    both = seen(8 * HOUR, 900 * SECOND)
    assert mark(a, both, 100 * HOUR) == 8 * HOUR - DELAY, (
        "both had rows in the last batch, however long it took"
    )


def test_the_source_that_holds_it_is_named_while_others_are_ahead() -> None:
    a, b = seen(10 * HOUR, 900 * SECOND), seen(8 * HOUR, 700 * SECOND)
    assert holder(a, b, 901 * SECOND) == "b"
    assert holder(b, a, 901 * SECOND) == "a"
    assert holder(a, seen(None, 700 * SECOND), 901 * SECOND) == "b", "it has had no rows at all"
    assert holder(a, b, 1001 * SECOND) is None, "it is idle"
    assert holder(a, seen(8 * HOUR, 900 * SECOND), 901 * SECOND) is None, "it had rows in the last batch"
    assert holder(a, seen(11 * HOUR, 700 * SECOND), 901 * SECOND) is None, "it is ahead"
    assert holder(a, seen(None, 900 * SECOND), 901 * SECOND) == "b", "its rows in the last batch had no time"
    assert holder(a, seen(None, 901 * SECOND), 902 * SECOND) is None, "it has just begun"
    assert holder_of(TWO, {}, IDLE) is None
    assert holder_of(flow_of("a"), known({"a": a}, 901 * SECOND), IDLE) is None


def test_the_column_of_event_times_may_have_a_backtick_in_its_name() -> None:
    assert event_time_in_sql("t`s") == "unix_micros(cast(`t``s` as timestamp))"
