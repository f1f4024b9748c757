"""Does the code fit the recorded state? Tables of what may change and what may not."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from datetime import datetime
from typing import Any

import msgspec
import pytest

import stateflow as sf
from stateflow.compatibility.flows import OperatorCheck, check_flow, compare
from stateflow.compatibility.non_restored import non_restored
from stateflow.compatibility.states import check_key, resolve_states, state_ids
from stateflow.format.records import OperatorListState, OperatorState, Record, SourceState
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.pipeline import Pipeline
from tests.compatibility.allowed import allowing
from tests.jobs.log import record
from tests.jobs.operators import operator_of
from tests.operators.releases import flow_of
from tests.refusals.refusal import lacking, refused


@dataclass
class Order:
    user: int
    sku: str


def process(**states: Any) -> Any:
    return type("Made", (sf.KeyedProcess,), states)


def flow(process_type: Any, *columns: str, uid: str = "op") -> Flow:
    def declare(flow: Flow) -> None:
        source = flow.source("in", sf.delta("/nowhere"), Order)
        if process_type is not None:
            source.key_by(*(columns or ("user",))).process(uid, process_type, output="n long").collect(
                "out", sf.memory("x")
            )
        else:
            source.collect("out", sf.memory("x"))

    return Pipeline("job", declare).build()


def record_of(**operators: OperatorState) -> Record:
    return record(operators=operators)


def state_of(process_type: Any, before: OperatorState | None = None) -> OperatorState:
    [node] = flow(process_type).operators
    states, next_id = resolve_states(node, before)
    return operator_of(states=states, next_state_id=next_id)


def resolved(process_type: Any, before: OperatorState) -> dict[str, int]:
    return state_ids(state_of(process_type, before).states)


BEFORE = process(total=sf.ValueState(float), skus=sf.MapState(str, int))


def test_a_new_operator_numbers_its_states_and_gives_a_timer_two_numbers() -> None:
    timer = sf.Timer("processing")
    timer.handler = "x"
    made = state_of(process(a=sf.ValueState(int), b=sf.ListState(str), c=timer, x=lambda self: None))
    assert state_ids(made.states) == {"a": 1, "b": 2, "c": 3}
    assert made.next_state_id == 5


def test_states_keep_their_numbers_whatever_comes_and_goes() -> None:
    before = state_of(BEFORE)
    more = state_of(
        process(new=sf.ValueState(int), skus=sf.MapState(str, int), total=sf.ValueState(float)), before
    )
    assert state_ids(more.states) == {"total": 1, "skus": 2, "new": 3}
    fewer = state_of(process(skus=sf.MapState(str, int)), more)
    assert state_ids(fewer.states) == {"total": 1, "skus": 2, "new": 3}, (
        "what is not declared comes back with its declaration"
    )
    assert resolved(process(other=sf.ValueState(int)), fewer)["other"] == 4


def test_an_alias_takes_over_what_it_names() -> None:
    before = state_of(BEFORE)
    found = resolved(process(sum=sf.ValueState(float, aliases=["total"]), skus=sf.MapState(str, int)), before)
    assert found == {"sum": 1, "skus": 2}


def test_older_code_finds_a_state_under_the_name_that_newer_code_gave_it() -> None:
    before = state_of(BEFORE)
    renamed = process(sum=sf.ValueState(float, aliases=["total"]), skus=sf.MapState(str, int))
    after = state_of(renamed, before)
    [checked] = compare(flow(BEFORE), "job", record_of(op=after)).operators
    assert checked.states == {"total": "renamed from sum", "skus": "kept"}
    assert resolved(BEFORE, after) == {"total": 1, "skus": 2}
    # A name that was given away and is declared beside the new one is another state.
    both = process(sum=sf.ValueState(float), skus=sf.MapState(str, int), total=sf.ValueState(int))
    assert resolved(both, after) == {"sum": 1, "skus": 2, "total": 3}


def test_a_state_of_its_own_name_wins_over_an_alias() -> None:
    before = state_of(process(total=sf.ValueState(float), sum=sf.ValueState(float)))
    found = resolved(process(sum=sf.ValueState(float, aliases=["total"])), before)
    assert found["sum"] == before.states["sum"].id


Narrow = make_dataclass("Item", [("sku", str)])
Wide = make_dataclass("Item", [("sku", str), ("price", float, 0.0)])


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"total": sf.ValueState(str)}, "its type was float and is str now"),
        ({"total": sf.ListState(float)}, "its kind was value and is list now"),
        ({"total": sf.ReducingState(float, max)}, "its kind was value and is reducing now"),
        ({"skus": sf.MapState(int, int)}, "its map key type was str and is int now"),
        ({"skus": sf.MapState(str, str)}, "its type was int and is str now"),
    ],
)
def test_a_changed_declaration_is_refused_with_the_next_step(change: dict[str, Any], what: str) -> None:
    with pytest.raises(sf.IncompatibleError) as caught:
        check_flow(flow(process(**change)), record_of(op=state_of(BEFORE)))
    said = str(caught.value)
    assert said.startswith(f"operator 'op', state '{next(iter(change))}': {what}")
    assert f": put the {what.split(' was')[0][4:]} back" in said


def test_a_lost_operator_is_refused_unless_it_is_dropped_on_purpose() -> None:
    lost = record_of(op=state_of(BEFORE))
    with refused(sf.IncompatibleError, "checkpoint 7", "'op'", "--allow-non-restored-state"):
        check_flow(flow(BEFORE, uid="other"), lost)
    check_flow(allowing(flow(BEFORE, uid="other")), lost)
    check_flow(flow(BEFORE), lost)
    check_flow(flow(None), None)


def test_another_key_is_refused() -> None:
    before = state_of(BEFORE)
    with refused(sf.IncompatibleError, "keyed by user (int)", "keyed by user, sku now"):
        check_flow(flow(BEFORE, "user", "sku"), record_of(op=before))
    with refused(sf.IncompatibleError, "keyed by user (int)", "its key is (str) now"):
        check_key("op", ("str",), before)
    check_key("op", ("int",), before)


def test_queryable_and_ttl_may_change() -> None:
    before = state_of(BEFORE)
    changed = state_of(process(total=sf.ValueState(float, ttl="1 day", queryable=True)), before)
    assert changed.states["total"] == msgspec.structs.replace(
        before.states["total"],
        ttl=86_400_000_000,
        queryable=True,
        expiry_index=changed.next_state_id - 1,
        expiry_sweep=1,
    )


@pytest.mark.parametrize(
    ("was", "now", "told"), [("1 day", None, 1), ("1 day", "9 days", 0), (None, None, 0)]
)
def test_a_ttl_that_is_gone_is_told_once(was: Any, now: Any, told: int) -> None:
    before = state_of(process(total=sf.ValueState(float, ttl=was)))
    declared = flow(process(sum=sf.ValueState(float, ttl=now, aliases=["total"])))
    warnings = compare(declared, "orders", record_of(op=before)).warnings
    assert len(warnings) == told
    for sentence in warnings:
        assert lacking(sentence, ("'op'", "'sum'", "no ttl", "expired", "`stateflow show orders`")) == []
    [node] = declared.operators
    states, next_id = resolve_states(node, before)
    after = operator_of(states=states, next_state_id=next_id)
    assert compare(declared, "orders", record_of(op=after)).warnings == ()
    nothing = msgspec.structs.replace(before, shards=((),))
    assert compare(declared, "orders", record_of(op=nothing)).warnings == ()


def timely(
    time: Any, before: OperatorState | None = None, name: str = "total", **names: Any
) -> OperatorState:
    """An operator with a state whose ttl counts this time; without a ttl for None."""
    made = process(**{name: sf.ValueState(float, ttl=time and sf.ttl("1 day", time=time))}, **names)
    [node] = flow_of(made).operators
    states, next_id = resolve_states(node, before)
    return operator_of(states=states, next_state_id=next_id)


@pytest.mark.parametrize(("was", "now"), [("event", "processing"), ("processing", "event")])
def test_a_ttl_goes_on_counting_the_same_time(was: Any, now: Any) -> None:
    before = timely(was)
    named = "'op', state 'total'", f"{was} time", f"{now} time", f"time='{was}'", 'forgets = ("total",)'
    with refused(sf.IncompatibleError, *named):
        timely(now, before)
    assert timely(was, before).states["total"].ttl_time == was
    # What the sentence advises.
    anew = timely(now, before, "sum", forgets=("total",)).states["sum"]
    assert (anew.ttl_time, anew.id > before.states["total"].id) == (now, True)
    assert timely(now, timely(None)).states["total"].ttl_time == now


@pytest.mark.parametrize("again", ["event", "processing"])
def test_a_ttl_that_was_taken_out_does_not_come_back(again: Any) -> None:
    before = timely("event")
    without = timely(None, before)
    for each in (without, timely(None, without)):
        with refused(sf.IncompatibleError, "'op', state 'total'", "ttl", 'forgets = ("total",)'):
            timely(again, each)
        # What the sentence advises.
        anew = timely(again, each, "sum", forgets=("total",)).states["sum"]
        assert anew.id > before.states["total"].id
    empty = msgspec.structs.replace(without, shards=((),))
    assert timely(again, empty).states["total"].ttl_time == again


def reading(*uids: str) -> Record:
    sources = {uid: SourceState(lines=("-",), kind="delta") for uid in uids}
    return msgspec.structs.replace(record_of(op=state_of(BEFORE)), sources=sources)


def test_a_source_under_another_uid_is_refused_unless_it_is_meant() -> None:
    with refused(sf.IncompatibleError, "source 'events' was read", "'in' is new", "the uid that it had"):
        check_flow(flow(BEFORE), reading("events"))
    check_flow(allowing(flow(BEFORE)), reading("events"))
    # One that goes, and one that comes, are what they look like.
    check_flow(flow(BEFORE), reading("in", "events"))
    check_flow(flow(BEFORE), reading())


@pytest.mark.parametrize("operator", ["op", "op2", ""])
@pytest.mark.parametrize("kept", [("in",), ()])
def test_whoever_lets_a_source_go_is_told_which_checkpoint_knows_its_position(
    operator: str, kept: tuple[str, ...]
) -> None:
    before = reading("events", *kept)
    if not operator:
        before = msgspec.structs.replace(before, operators={})
    checked = compare(allowing(flow(BEFORE, uid=operator or "op")), "job", before)
    assert checked.drops
    assert [sentence for sentence in checked.warnings if "tag:before-drop-7" in sentence]
    refusing = compare(flow(BEFORE), "job", reading("events"))
    assert (refusing.drops, [each for each in refusing.warnings if "before-drop" in each]) == (False, [])


def test_a_state_that_looks_renamed_is_refused_unless_it_is_meant() -> None:
    before = record_of(op=state_of(BEFORE))
    renamed = process(sum=sf.ValueState(float), skus=sf.MapState(str, int))
    with refused(sf.IncompatibleError, "'total'", "is not declared", "'sum'", 'aliases=("total",)'):
        check_flow(flow(renamed), before)
    check_flow(allowing(flow(renamed)), before)
    check_flow(flow(process(sum=sf.ValueState(float, aliases=["total"]), skus=sf.MapState(str, int))), before)
    # Beside it, or alone gone: nothing of it can have been meant.
    both = process(sum=sf.ValueState(float), total=sf.ValueState(float), skus=sf.MapState(str, int))
    check_flow(flow(both), before)
    check_flow(flow(process(skus=sf.MapState(str, int))), before)


def test_a_comparison_names_both() -> None:
    renamed = process(sum=sf.ValueState(float), skus=sf.MapState(str, int))
    found = compare(flow(renamed), "job", reading("events"))
    assert not found.compatible
    assert ["source" in problem for problem in found.problems] == [True, False]
    assert compare(allowing(flow(renamed)), "job", reading("events")).compatible


class Counting(sf.PartitionProcess[Order, Order]):
    seen = sf.OperatorListState(int, aliases=["count"])
    fresh = sf.UnionListState(str)
    forgets = ("gone",)


def partitioned() -> Flow:
    def declare(flow: Flow) -> None:
        rows = flow.source("in", sf.delta("/nowhere"), Order)
        rows.process_partition("op", Counting, parallelism=2).collect("out", sf.memory("x"))

    return Pipeline("job", declare).build()


def bare(groups: int, *names: str) -> Record:
    elements = {name: OperatorListState("list", "int", ((),)) for name in names}
    return record_of(op=operator_of((), key=(), groups=groups, operator_states=elements))


@pytest.mark.parametrize(
    ("entries", "counts", "told"),
    [
        (1, {}, "about 1 entry, which is converted as it is read"),
        (1_200, {}, "about 1,200 entries, which are converted as they are read"),
        (9, {"seen": 1}, "seen has 1 entry, which is converted as it is read"),
        (
            9,
            {"seen": 1, "all": 2},
            "seen has 1 entry, all has 2 entries, which are converted as they are read",
        ),
        (None, {}, ""),
    ],
)
def test_what_is_converted_is_counted_in_a_sentence(
    entries: int | None, counts: dict[str, int], told: str
) -> None:
    assert OperatorCheck("op", "compatible", {}, entries=entries, counts=counts).conversion == told


def test_operator_state_is_told_with_what_becomes_of_it() -> None:
    (new,) = compare(partitioned(), "job", None).operators
    assert new.states == {"seen": "new", "fresh": "new"}
    (check,) = compare(partitioned(), "job", bare(4, "count", "gone")).operators
    assert check.states == {"seen": "renamed from count", "fresh": "new", "gone": "dropped"}
    (lost,) = compare(partitioned(), "job", bare(4, "count", "left")).operators
    assert "state 'left', an operator state (list) of int, is not declared any more" in lost.problem


def test_an_operator_without_keys_stays_one_and_has_room_for_its_subtasks() -> None:
    keyed = flow(process(seen=sf.OperatorListState(int)))
    (check,) = compare(keyed, "job", bare(4, "seen")).operators
    assert "was keyed by no column and is keyed by user now" in check.problem
    (narrow,) = compare(partitioned(), "job", bare(1, "seen")).operators
    assert "operator 'op' cannot have parallelism 2: use 1 to 1" in narrow.problem


@dataclass
class Timed:
    user: int
    ts: datetime


@pytest.mark.parametrize(("read", "count"), [(False, 1), (True, 0)])
def test_late_rows_of_a_source_that_nobody_reads_are_warned_of(read: bool, count: int) -> None:
    def declare(flow: Flow) -> None:
        late = sf.output("late", Timed)
        events = flow.source(
            "in", sf.delta("/nowhere"), Timed, event_time="ts", watermark="1 minute", late=late
        )
        events.collect("out", sf.memory("x"))
        if read:
            events.side(late).collect("late", sf.memory("y"))

    warnings = compare(Pipeline("job", declare).build(), "job", None).warnings
    assert len(warnings) == count
    for warning in warnings:
        assert warning == (
            "source 'in' splits off its late rows (late=), which nobody reads, so that they would be lost: append .side('late') to "
            "a table, or leave late= out to get them with ctx.late"
        )


@pytest.mark.parametrize(("read", "count"), [(False, 1), (True, 0)])
def test_dead_letters_that_nobody_reads_are_warned_of(read: bool, count: int) -> None:
    def declare(flow: Flow) -> None:
        keyed = flow.source("in", sf.delta("/nowhere"), Order).key_by("user")
        out = keyed.process("op", process(seen=sf.ValueState(int)), output="n long", on_error="dead_letter")
        out.collect("out", sf.memory("x"))
        if read:
            out.dead_letters.collect("bad", sf.memory("y"))

    warnings = compare(Pipeline("job", declare).build(), "job", None).warnings
    assert len(warnings) == count
    for warning in warnings:
        assert warning == (
            "operator 'op' diverts rows to .dead_letters (on_error='dead_letter'), which nobody reads, so that they would be lost: "
            "append .dead_letters to a table"
        )


@pytest.mark.parametrize(
    ("read", "queryable", "count"), [(True, False, 0), (False, True, 0), (False, False, 1)]
)
def test_rows_of_an_operator_that_nobody_reads_are_warned_of(read: bool, queryable: bool, count: int) -> None:
    def declare(flow: Flow) -> None:
        keyed = flow.source("in", sf.delta("/nowhere"), Order).key_by("user")
        rows = keyed.aggregate("op", "user long, n long", n=sf.count(), queryable=queryable)
        if read:
            rows.upsert("out", sf.delta("/out"))

    warnings = compare(Pipeline("job", declare).build(), "job", None).warnings
    assert [warning.split(":")[0] for warning in warnings] == [
        "nobody reads the rows of operator 'op', so that they are in no table"
    ] * count


@pytest.mark.parametrize("allowed", [False, True])
def test_what_is_not_restored_is_said_once_and_allowed_as_a_whole(allowed: bool) -> None:
    renamed = process(sum=sf.ValueState(float), skus=sf.MapState(str, int))
    before = msgspec.structs.replace(
        reading("events"), operators={"op": state_of(BEFORE), "gone": state_of(BEFORE)}
    )
    declared = allowing(flow(renamed), allowed)
    left = non_restored(declared, before)
    assert left.operators == ("gone",)
    said = (
        left.refusal,
        left.of_operator("gone"),
        left.sources,
        left.of_states(declared.operators[0], before.operators["op"]),
    )
    if allowed:
        assert said == ("", "", "", "")
    else:
        assert said[0] == f"pipeline 'job' does not fit checkpoint 7: {said[1]}"
        assert ["'gone'" in said[1], "'events'" in said[2], "'total'" in said[3]] == [True] * 3
    checked = compare(declared, "job", before)
    assert checked.compatible == allowed
    assert [each.verdict for each in checked.operators if each.uid == "gone"] == [
        "dropped" if allowed else "incompatible"
    ]
    nothing = non_restored(flow(BEFORE), record_of(op=state_of(BEFORE)))
    assert (nothing.operators, nothing.refusal) == ((), "")
