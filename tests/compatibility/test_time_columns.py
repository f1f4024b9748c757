"""A release that takes the event time of a source from another column, whose rows the old one's times would judge."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import pytest

import stateflow as sf
from stateflow.compatibility.flows import check_flow, compare
from stateflow.errors import IncompatibleError
from stateflow.format.records import SourceState
from stateflow.pipelines.flow import Flow
from tests.jobs.log import record
from tests.refusals.refusal import refused

LINE = '{"sourceVersion":1,"reservoirId":"d6c7","reservoirVersion":8,"index":-1,"isStartingVersion":false}'
REACHED = 1_767_225_600_000_000


@dataclass
class Order:
    user: int
    created: datetime
    processed: datetime


@dataclass
class Renamed:
    user: int
    created: datetime
    done: Annotated[datetime, sf.field(aliases=["processed"])]


@dataclass
class Reused(Renamed):
    """`processed` is a new column, of another meaning than the one that was called so."""

    processed: datetime


def flow(rows: Any, column: str | None, *, function: bool = False) -> Flow:
    @sf.pipeline("times")
    def times(flow: sf.Flow) -> None:
        timed = {} if column is None else {"event_time": column, "watermark": "10 minutes"}
        place = (lambda spark: None) if function else sf.delta("/nowhere")
        flow.source("src", place, rows, **timed).collect("out", sf.memory("times"))

    return times.build()


def of(column: str, reached: int | None = REACHED, columns: tuple[str, ...] = ()) -> SourceState:
    return SourceState(lines=(LINE,), kind="delta", event_time=reached, time_column=column, columns=columns)


ORDER, BOTH = ("user", "created", "processed"), ("user", "created", "done", "processed")


@pytest.mark.parametrize("function", [False, True], ids=["table", "function"])
@pytest.mark.parametrize("rows", [Order, None])
def test_the_times_of_another_column_are_refused_with_the_way_on(rows: Any, function: bool) -> None:
    before, now = record(sources={"src": of("processed")}), flow(rows, "created", function=function)
    check = compare(now, "times", before)
    assert check.sources == {"src": "incompatible"}
    [sentence] = check.problems
    for named in ("source 'src'", "'processed'", "'created'", "aliases=['processed']", "--reset-watermark"):
        assert named in sentence
    with refused(IncompatibleError, sentence):
        check_flow(now, before)


@pytest.mark.parametrize(
    ("before", "rows", "column"),
    [
        (of("processed"), Order, "processed"),
        (of("processed"), Renamed, "done"),
        (of("processed"), Order, None),
        (of("processed", reached=None), Order, "created"),
        (of(""), Order, "created"),
        (of("processed", columns=ORDER), Reused, "done"),
        (of("processed", columns=BOTH), Reused, "processed"),
        (of("processed"), Reused, "processed"),
    ],
    ids=[
        "the same",
        "renamed",
        "none",
        "none yet",
        "of before it was noted",
        "renamed and its name reused",
        "another one with that name",
        "of before its neighbours were noted",
    ],
)
def test_times_that_may_be_of_the_same_column_go_on(
    before: SourceState, rows: Any, column: str | None
) -> None:
    recorded, now = record(sources={"src": before}), flow(rows, column)
    assert compare(now, "times", recorded).sources == {"src": "continues"}
    check_flow(now, recorded)


@pytest.mark.parametrize(
    ("columns", "now", "named"),
    [
        (ORDER, "processed", ("'processed'", "'done'", "event_time='done'")),
        (ORDER, "created", ("'created'", "event_time='done'")),
        (BOTH, "done", ("'processed'", "'done'")),
    ],
)
def test_the_times_of_a_column_with_a_reused_name_are_refused(
    columns: tuple[str, ...], now: str, named: tuple[str, ...]
) -> None:
    before = record(sources={"src": of("processed", columns=columns)})
    with refused(IncompatibleError, "source 'src'", *named, "--reset-watermark"):
        check_flow(flow(Reused, now), before)
