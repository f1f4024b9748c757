"""When shards are next due, after a release: earlier code has reckoned from its own states and options."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import stateflow as sf
from stateflow.compatibility.states import (
    as_begun,
    begun_shards,
    fixed_options,
    options_behind,
    resolve_states,
)
from stateflow.format.expiry_blocks import AT_ONCE
from stateflow.format.records import FileRef, OperatorState, Shard, SourceState
from stateflow.pipelines.graph import KeyedNode
from stateflow.spark.inputs.lookahead import look_ahead
from stateflow.spark.sources.delta_log import Ahead
from stateflow.spark.sources.delta_offset import DeltaOffset
from tests.compatibility.test_compatibility import process
from tests.compatibility.test_ready_options import MINUTE, Declare, code, node_of, together, windows
from tests.jobs.log import record
from tests.jobs.operators import operator_of
from tests.spark.test_lookahead import THREE, log

FILE = FileRef("000001.sst", 1, "0" * 16, data=b"x")
DUE = {
    "next_event_timer": 40,
    "next_processing_timer": 41,
    "next_event_expiry": 42,
    "next_processing_expiry": 43,
}
LEFT = {"n": sf.ValueState(int)}


def timer(time: Any) -> dict[str, Any]:
    made = sf.Timer(time)
    made.handler = "fired"
    return {"fired": lambda self: None, "again": made}


def timed(state: dict[str, Any]) -> Declare:
    def nothing(rows: Any, states: Any, ctx: Any) -> None:
        return None

    def due(states: Any, ctx: Any) -> None:
        return None

    on_due = due if "again" in state else None
    return lambda s: s.keyed().process_arrow("op", nothing, state=state, on_due=on_due, output="n double")


def after(*releases: KeyedNode, due: dict[str, int] = DUE) -> OperatorState:
    """What the record has behind a run of each of these releases."""
    before = None
    for slot, node in enumerate(releases):
        states, next_id = resolve_states(node, before, slot)
        before = operator_of(
            [Shard(0, 63, "rocksdb", (FILE,), **due), Shard(64, 127, "rocksdb")],
            states=states, next_state_id=next_id, options=options_behind(node, before),
        )  # fmt: skip
    assert before is not None
    return before


def at_once(now: KeyedNode, before: OperatorState) -> set[str]:
    """The times of the shard with files that are to be found anew."""
    [[held], [empty]] = begun_shards(now, before, resolve_states(now, before, 9)[0])
    assert empty == before.shards[1][0], "an empty shard has nothing to open"
    assert msgspec.structs.replace(held, **DUE) == before.shards[0][0]
    changed = {name for name, at in DUE.items() if getattr(held, name) != at}
    assert all(getattr(held, name) == AT_ONCE for name in changed)
    return changed


def processed(**states: Any) -> Declare:
    return lambda s: s.keyed().process("op", process(**states), output="n double")


def of_process(**states: Any) -> KeyedNode:
    return node_of(processed(**states))[0]


AGAIN: dict[str, tuple[KeyedNode, KeyedNode, set[str]]] = {
    "a timer of event time": (of_process(**LEFT, **timer("event")), of_process(**LEFT), {"next_event_timer"}),
    "a timer of processing time": (
        of_process(**LEFT, **timer("processing")), of_process(**LEFT), {"next_processing_timer"},
    ),
    "timed entries": (
        node_of(timed({"n": sf.columns({"n": int}), "again": sf.columns({"n": int}, timed=True)}))[0],
        node_of(timed({"n": sf.columns({"n": int}), "x": sf.columns({"n": int})}))[0],
        {"next_event_timer"},
    ),
    "a ttl of event time": (
        of_process(**LEFT, again=sf.ValueState(int, ttl=sf.ttl("1 day", time="event"))), of_process(**LEFT),
        {"next_event_expiry"},
    ),
    "a ttl of processing time": (
        of_process(**LEFT, again=sf.ValueState(int, ttl="1 day")), of_process(**LEFT), {"next_processing_expiry"},
    ),
    "plain values": (of_process(**LEFT, again=sf.ListState(int)), of_process(**LEFT), set()),
}  # fmt: skip


@pytest.mark.parametrize("case", AGAIN)
def test_what_a_state_has_that_is_declared_again_is_looked_for_at_once(case: str) -> None:
    whole, without, times = AGAIN[case]
    assert at_once(whole, after(whole, without)) == times
    assert at_once(whole, after(whole, without, without)) == times
    # Nobody looks where nothing has changed, nor at what is still not declared.
    assert at_once(whole, after(whole)) == at_once(without, after(whole, without)) == set()
    assert at_once(without, after(whole)) == at_once(whole, after(whole, without, whole)) == set()


@pytest.mark.parametrize("made", [windows, code, together])
def test_rows_that_wait_less_long_are_looked_for_at_once(made: Any) -> None:
    before, now = (node_of(made(MINUTE, lateness=length))[0] for length in ("1 hour", "1 minute"))
    assert at_once(now, after(before)) == {"next_event_timer"}
    assert at_once(now, after(before, now)) == at_once(before, after(before)) == set()
    assert fixed_options(now) != fixed_options(before)


@pytest.mark.parametrize("again", [True, False])
def test_whoever_looks_ahead_sees_that_a_timer_would_fire(again: bool) -> None:
    whole, without = processed(**LEFT, **timer("event")), processed(**LEFT)
    before = after(node_of(whole)[0], node_of(without)[0], due={})
    source = SourceState(lines=(DeltaOffset("t", 3).line(),), kind="delta")
    head = record(kind="restore", operators={"op": before}, sources={"sales": source}, watermark=50)
    now = node_of(whole if again else without)[1]
    assert (as_begun(now.operators, head) != head) == again
    found: Any = SimpleNamespace(head=head)
    ahead = look_ahead(now, found, lambda path: log(*THREE), None, now=60, idle_after=0)
    assert ahead is (None if again else Ahead.NOTHING)
