"""A state that is gone while another is new: nothing is lost without a word, and every advice leads on."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import stateflow as sf
from stateflow.compatibility.flows import check_flow, compare
from stateflow.compatibility.states import element_names, resolve_states
from stateflow.errors import UsageError
from stateflow.format.records import OperatorListState, OperatorState
from stateflow.format.state_names import former_names
from tests.compatibility.allowed import allowing
from tests.compatibility.test_compatibility import flow, process, record_of, resolved, state_of
from tests.refusals.refusal import refused

SEEN = {"total": sf.ValueState(float), "seen": sf.ListState(int)}


def timer(**options: Any) -> dict[str, Any]:
    made = sf.Timer("processing", **options)
    made.handler = "fired"
    return {"fired": lambda self: None, "timer": made}


def named(name: str, states: dict[str, Any]) -> dict[str, Any]:
    return {name if key == "timer" else key: value for key, value in states.items()}


def refusal(now: Any, before: Any) -> str:
    checked = compare(flow(now), "job", before)
    assert not checked.compatible
    with pytest.raises(sf.IncompatibleError) as caught:
        check_flow(flow(now), before)
    assert checked.problems == [str(caught.value)]
    return str(caught.value)


REPLACED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "another type": ({"seen": sf.ValueState(int)}, {"seen_v2": sf.ValueState(str)}),
    "another kind": ({"seen": sf.ValueState(int)}, {"seen_v2": sf.ListState(int)}),
    "the same type": ({"seen": sf.ValueState(int)}, {"seen_v2": sf.ValueState(int)}),
    "a map": ({"seen": sf.MapState(str, int)}, {"seen_v2": sf.MapState(str, int)}),
    "a map under other keys": ({"seen": sf.MapState(str, int)}, {"seen_v2": sf.MapState(int, int)}),
    "a timer": (named("seen", timer()), named("seen_v2", timer())),
    "operator state": ({"seen": sf.OperatorListState(int)}, {"seen_v2": sf.OperatorListState(int)}),
    "operator state of another type": (
        {"seen": sf.OperatorListState(int)},
        {"seen_v2": sf.UnionListState(int)},
    ),
    "broadcast state": ({"seen": sf.BroadcastState(str, int)}, {"seen_v2": sf.BroadcastState(str, int)}),
    "operator state by state": ({"seen": sf.OperatorListState(int)}, {"seen_v2": sf.ListState(int)}),
}


def recorded(states: dict[str, Any]) -> Any:
    made = process(**states)
    elements = {
        name: OperatorListState(
            kind=declared.kind,
            schema="map<str,int>" if declared.kind == "broadcast" else "int",
            parts=((b"x",),),
        )
        for name, declared in made.declarations().operator.items()
    }
    return record_of(op=msgspec.structs.replace(state_of(made), operator_states=elements))


@pytest.mark.parametrize("case", REPLACED)
def test_what_begins_empty_beside_a_lost_state_is_refused_until_the_lost_one_is_named(case: str) -> None:
    before, after = REPLACED[case]
    said = refusal(process(**after), recorded(before))
    assert "'seen'" in said
    assert "'seen_v2'" in said
    # Each advice is followed: afterwards the code fits.
    assert ("migrate=" in said) == (case == "another type")
    if alias := re.search(r"aliases=(\(.*?,\))", said):
        other = {"timer": lambda: named("seen_v2", timer(aliases=eval(alias[1])))}
        kinds: dict[str, Callable[[], dict[str, Any]]] = {
            "another type": lambda: {"seen_v2": sf.ValueState(str, aliases=eval(alias[1]), migrate=str)},
            "the same type": lambda: {"seen_v2": sf.ValueState(int, aliases=eval(alias[1]))},
            "a map": lambda: {"seen_v2": sf.MapState(str, int, aliases=eval(alias[1]))},
            "a timer": other["timer"],
            "operator state": lambda: {"seen_v2": sf.OperatorListState(int, aliases=eval(alias[1]))},
            "broadcast state": lambda: {"seen_v2": sf.BroadcastState(str, int, aliases=eval(alias[1]))},
        }
        assert compare(flow(process(**kinds[case]())), "job", recorded(before)).compatible
    else:
        assert "declare 'seen' again" in said
        both = {**after, **before}
        assert compare(flow(process(**both)), "job", recorded(before)).compatible
    forgets = re.search(r"write forgets = (\(.*?,\)) in class Made", said)
    assert forgets is not None
    assert compare(flow(process(**after, forgets=eval(forgets[1]))), "job", recorded(before)).compatible


@pytest.mark.parametrize(
    "change",
    [{"seen": sf.ListState(str)}, {"seen": sf.ValueState(int)}],
)
def test_the_advice_for_a_changed_state_is_followed_to_its_end(change: dict[str, Any]) -> None:
    before = record_of(op=state_of(process(**SEEN)))
    said = refusal(process(total=sf.ValueState(float), **change), before)
    assert "give the changed state another name and write forgets" in said
    renamed = {"total": sf.ValueState(float), "seen_v2": change["seen"].__class__(change["seen"].type)}
    refusal(process(**renamed), before)
    assert compare(flow(process(**renamed, forgets=("seen",))), "job", before).compatible


def test_what_is_forgotten_stays_in_the_record_and_is_asked_for_no_more() -> None:
    before = state_of(process(**SEEN))
    letting_go = process(total=sf.ValueState(float), seen_v2=sf.ListState(str), forgets=("seen",))
    [checked] = compare(flow(letting_go), "job", record_of(op=before)).operators
    assert checked.states == {"total": "kept", "seen_v2": "new", "seen": "forgotten"}
    after = state_of(letting_go, before)
    assert after.states["seen"] == msgspec.structs.replace(
        before.states["seen"], forgotten=True, undeclared=True
    )
    # The next release needs not say it again, even when it adds one more.
    later = process(total=sf.ValueState(float), seen_v2=sf.ListState(str), more=sf.ValueState(int))
    assert compare(flow(later), "job", record_of(op=after)).compatible
    # Declared again, it is there again.
    assert state_of(process(**SEEN, seen_v2=sf.ListState(str)), after).states["seen"] == before.states["seen"]


@pytest.mark.parametrize("allowed", [False, True])
def test_a_state_does_not_go_on_from_one_that_was_let_go_in_place_of_its_own(allowed: bool) -> None:
    let_go = state_of(
        process(net=sf.ValueState(int), forgets=("total",)), state_of(process(total=sf.ValueState(int)))
    )
    before = record_of(op=let_go)
    assert resolved(process(amount=sf.ValueState(int, aliases=["total", "net"])), let_go) == {
        "amount": let_go.states["net"].id,
        "total": let_go.states["total"].id,
    }
    # The name of the other one, which still has its entries, is taken.
    back = flow(process(total=sf.ValueState(int, aliases=["net"])))
    with refused(sf.IncompatibleError, "'total'", "'net'", "give it a third name") as caught:
        check_flow(allowing(back) if allowed else back, before)
    aliases = re.search(r"aliases=(\(.*?,\))", str(caught.value))
    assert aliases is not None
    third = process(sum=sf.ValueState(int, aliases=eval(aliases[1])))
    assert compare(flow(third), "job", before).compatible
    assert resolved(third, let_go)["sum"] == let_go.states["net"].id
    # Where nothing else fits, it is there again.
    assert resolved(process(all=sf.ValueState(int, aliases=["total"])), let_go)["all"] == 1


def test_a_state_dropped_earlier_is_named_when_a_new_one_comes() -> None:
    dropped = state_of(process(total=sf.ValueState(float)), state_of(process(**SEEN)))
    said = refusal(process(total=sf.ValueState(float), seen_v2=sf.ListState(str)), record_of(op=dropped))
    assert 'forgets = ("seen",)' in said


def test_an_operator_that_becomes_columnar_names_what_it_lets_go_of() -> None:
    def columnar(**options: Any) -> Any:
        def declare(flow: sf.Flow) -> None:
            source = flow.source("in", sf.delta("/nowhere"), Row)
            source.key_by("user").process_arrow(
                "op", lambda table, state, ctx: table, state={"n": int}, output="n long", **options
            ).collect("out", sf.memory("x"))

        return sf.pipeline("job")(declare).build()

    before = record_of(op=state_of(process(total=sf.ValueState(float))))
    with pytest.raises(sf.IncompatibleError, match=r'give process_arrow forgets=\("total",\)'):
        check_flow(columnar(), before)
    check_flow(columnar(forgets=("total",)), before)


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (sf.columns({"n": int}, by={"sku": str}), ""),
        (sf.columns({"n": int}), "was key, sku (str) and is key now"),
        (sf.columns({"n": int}, by={"sku": int}), "was key, sku (str) and is key, sku (int) now"),
        (
            sf.columns({"n": int}, by={"sku": str}, timed=True),
            "was key, sku (str) and is time, key, sku (str) now",
        ),
    ],
)
def test_what_orders_the_entries_of_a_columnar_state_stays(state: Any, problem: str) -> None:
    def columnar(layout: Any) -> Any:
        def declare(flow: sf.Flow) -> None:
            source = flow.source("in", sf.delta("/nowhere"), Row)
            source.key_by("user").process_arrow(
                "op", lambda table, state, ctx: table, state={"carts": layout}, output="n long"
            ).collect("out", sf.memory("x"))

        return sf.pipeline("job")(declare).build()

    before = columnar(sf.columns({"n": int}, by={"sku": str}))
    (node,) = before.operators
    states, _ = resolve_states(node, None)
    held = msgspec.structs.replace(state_of(process(total=sf.ValueState(float))), states=states)
    if not problem:
        check_flow(columnar(state), record_of(op=held))
        return
    with pytest.raises(sf.IncompatibleError) as refused:
        check_flow(columnar(state), record_of(op=held))
    assert f"its order of entries {problem}" in str(refused.value)


class Row(msgspec.Struct):
    user: int


@pytest.mark.parametrize(
    ("states", "problem"),
    [
        ({"forgets": "seen"}, "list names of states"),
        ({"seen": sf.ValueState(int), "forgets": ("seen",)}, "forgets 'seen', which state 'seen' is or was"),
        (
            {"late": sf.ValueState(int, aliases=["seen"]), "forgets": ("seen",)},
            "which state 'late' is or was",
        ),
    ],
)
def test_what_is_forgotten_is_a_list_of_other_states(states: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        process(**states).declarations()


@pytest.mark.parametrize("kind", [sf.OperatorListState, sf.UnionListState])
@pytest.mark.parametrize("keyed_first", [True, False])
def test_a_state_of_the_key_and_one_of_the_subtask_are_two_under_one_name(
    keyed_first: bool, kind: type[sf.OperatorListState[int]]
) -> None:
    kinds: list[Any] = [sf.ListState, kind] if keyed_first else [kind, sf.ListState]
    before = recorded({"seen": kinds[0](int)})
    said = refusal(process(seen=kinds[1](int)), before)
    assert "begin empty" in said
    assert "give the one of today another name" in said
    refusal(process(seen_v2=kinds[1](int)), before)
    forgets = re.search(r"write forgets = (\(.*?,\)) in class Made", said)
    assert forgets is not None
    renamed = process(seen_v2=kinds[1](int), forgets=eval(forgets[1]))
    assert compare(flow(renamed), "job", before).compatible


def _aliased(kind: type[Any], *aliases: str) -> Any:
    return kind(int, aliases=aliases)


@pytest.mark.parametrize("kind", [sf.ValueState, sf.OperatorListState])
@pytest.mark.parametrize(("name", "aliases"), [("c", ("b", "a")), ("b", ("a",))])
def test_two_states_of_the_record_do_not_become_one(
    kind: type[Any], name: str, aliases: tuple[str, ...]
) -> None:
    before = recorded({"a": kind(int), "b": kind(int)})
    said = refusal(process(**{name: _aliased(kind, *aliases)}), before)
    assert "'b', 'a'" in said
    assert "leave it that alias alone" in said
    for alone in ("a", "b"):
        assert compare(flow(process(c=_aliased(kind, alone))), "job", before).compatible
    forgets = re.search(r"write forgets = (\(.*?,\)) in class Made", said)
    assert forgets is not None
    assert compare(flow(process(c=_aliased(kind, "b"), forgets=eval(forgets[1]))), "job", before).compatible
    # One that was let go before is asked for no more.
    if kind is sf.ValueState:
        gone = state_of(process(c=sf.ValueState(int, aliases=["b"]), forgets=("a",)), before.operators["op"])
        both = process(c=sf.ValueState(int, aliases=["b", "a"]))
        assert compare(flow(both), "job", record_of(op=gone)).compatible


REUSED: dict[str, Callable[..., Any]] = {
    "of a key": lambda **options: sf.ValueState(float, **options),
    "of a subtask": lambda **options: sf.OperatorListState(float, **options),
}


def through(*releases: Any) -> OperatorState:
    """What a job has recorded after runs with each of these releases."""
    before = None
    for process_type in releases:
        before = recorded_after(process_type, before)
    assert before is not None
    return before


def recorded_after(process_type: Any, before: OperatorState | None) -> OperatorState:
    elements = before.operator_states if before is not None else {}
    names = element_names(flow(process_type).operators[0], before) if before is not None else {}
    states = {
        name: OperatorListState(
            "list",
            "float",
            ((b"x",),),
            former_names(name, names[name], elements[names[name]].former) if name in names else (),
        )
        for name in process_type.declarations().operator
    }
    return msgspec.structs.replace(state_of(process_type, before), operator_states=states)


@pytest.mark.parametrize("kind", REUSED)
@pytest.mark.parametrize("more", [0, 2])
def test_code_of_before_a_renaming_does_not_take_the_state_that_has_the_old_name_now(
    kind: str, more: int
) -> None:
    made = REUSED[kind]
    again = process(money=made(), total=made())
    before = record_of(
        op=through(process(total=made()), process(money=made(aliases=["total"])), again, *[again] * more)
    )
    said = refusal(process(total=made()), before)
    assert "'money'" in said
    assert compare(flow(process(money=made())), "job", before).compatible
    forgets = re.search(r"write forgets = (\(.*?,\)) in class Made", said)
    assert forgets is not None
    assert compare(flow(process(total=made(), forgets=eval(forgets[1]))), "job", before).compatible
    # The release that reused the name goes on, and the first one does from its own checkpoint.
    assert compare(flow(again), "job", before).compatible
    own = record_of(op=through(process(total=made())))
    assert compare(flow(process(total=made())), "job", own).compatible
