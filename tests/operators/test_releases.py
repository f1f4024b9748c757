"""State outlives its code: what one release wrote, the next ones read, by rule or by a function, on both backends."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

import stateflow as sf
from stateflow.compatibility.flows import check_flow, compare
from stateflow.errors import UserCodeError
from tests.operators.releases import Releases, flow_of, opened, process_of
from tests.refusals.refusal import refused

BACKENDS = ("memory", "rocksdb")
LONG = bool(os.environ.get("STATEFLOW_LONG"))


@pytest.fixture(params=BACKENDS)
def releases(request: pytest.FixtureRequest, tmp_path: Path) -> Releases:
    return Releases(opened(request.param, tmp_path))


@dataclass
class Order:
    sku: str
    amount: int


@dataclass
class OrderNow:
    sku: str
    total: Annotated[float, sf.field(aliases=["amount"])]
    note: str = "-"


def states_of(record: Any, number: Any, **options: Any) -> Any:
    return process_of(
        value=sf.ValueState(record, **options),
        items=sf.ListState(record, **options),
        per=sf.MapState(str, list[record], **({} if options.get("migrate") else options)),
        most=sf.ReducingState(number, max),
        held=sf.AggregatingState(
            number, create=lambda: number(0), add=lambda a, v: a + v, result=lambda a: a
        ),
        late=sf.ValueState(number, ttl="1 day"),
    )


def write(record: Any, number: Any) -> Any:
    def act(process: Any, key: int) -> None:
        process.value.value = record("tea", key)
        process.items.add(record("jam", key))
        process.per["x"] = [record("oil", key)]
        process.most.add(number(key))
        process.held.add(number(key))
        process.late.value = number(key)

    return act


def read(process: Any, key: int) -> Any:
    return (
        process.value.value, process.items.get(), process.per.get("x"), process.most.get(), process.held.get(),
        process.late.value,
    )  # fmt: skip


def test_every_kind_of_state_is_read_under_its_new_type_and_written_back_only_when_it_changes(
    releases: Releases,
) -> None:
    releases.run(states_of(Order, int), {1: [write(Order, int)], 2: [write(Order, int)]})
    before = {name: releases.stored(name) for name in ("value", "items", "per", "most", "held", "late")}
    now = states_of(OrderNow, float)
    expected = [
        (
            OrderNow("tea", key),
            [OrderNow("jam", key)],
            [OrderNow("oil", key)],
            float(key),
            float(key),
            float(key),
        )
        for key in (1, 2)
    ]
    assert releases.run(now, {1: [read], 2: [read]}) == expected
    assert {name: releases.stored(name) for name in before} == before, "reading writes nothing"
    releases.run(now, {1: [write(OrderNow, float)]})
    value, items, per, most, held, late = releases.run(now, {1: [read], 2: [read]})[0]
    assert (value, items) == (OrderNow("tea", 1), [OrderNow("jam", 1), OrderNow("jam", 1)])
    assert (per, most, held, late) == ([OrderNow("oil", 1)], 1.0, 2.0, 1.0)
    changed = dict(releases.stored("value"))
    assert [raw == changed[key] for key, raw in before["value"]] == [False, True]


def test_tables_and_savepoints_see_one_type_whatever_wrote_the_values(releases: Releases) -> None:
    releases.run(states_of(Order, int), {1: [write(Order, int)], 2: [write(Order, int)]})
    now = states_of(OrderNow, float)
    releases.run(now, {1: [write(OrderNow, float)]})
    assert [(row["user"], row["value"]) for row in releases.table("value")] == [
        (1, {"sku": "tea", "total": 1.0, "note": "-"}),
        (2, {"sku": "tea", "total": 2.0, "note": None}),
    ]
    assert [row["value"] for row in releases.table("most")] == [1.0, 2.0]
    assert all(row["expires_at"] is not None for row in releases.table("late"))
    # What a table has is what is stored again, and read again.
    assert releases.operator is not None
    from stateflow.state.tabular import tables_of

    for name in ("value", "items", "per", "most", "held", "late"):
        table: Any = tables_of(releases.operator)[name]
        entries = releases.stored(name)
        batch = table.decode([k for k, _ in entries], [v for _, v in entries])
        keys, values = table.encode(batch)
        own = [key for key, _ in entries]  # in key groups of the test's own
        assert [key[2:] for key in keys] == [key[2:] for key in own]
        assert table.decode(own, values) == batch
        releases.on.write(zip(own, values, strict=True))
    assert releases.run(now, {2: [read]})[0][:2] == (OrderNow("tea", 2), [OrderNow("jam", 2)])


def test_a_release_may_be_rolled_back_where_rules_allow_both_ways(releases: Releases) -> None:
    wide = make_dataclass("Order", [("sku", str), ("amount", int), ("note", str, field(default="-"))])
    old, new = process_of(value=sf.ValueState(Order)), process_of(value=sf.ValueState(wide))

    def value(process: Any, key: int) -> Any:
        return process.value.value

    def put(record: Any) -> Any:
        return lambda process, key: setattr(process.value, "value", record("tea", key))

    releases.run(old, {1: [put(Order)], 2: [put(Order)]})
    releases.run(new, {2: [put(wide)]})
    assert releases.run(old, {1: [value], 2: [value]}) == [Order("tea", 1), Order("tea", 2)]
    assert releases.run(new, {1: [value], 2: [value]}) == [wide("tea", 1), wide("tea", 2)]


def test_older_code_goes_on_with_a_renamed_state_as_long_as_the_newer_code_names_the_older_name(
    releases: Releases,
) -> None:
    older, newer = process_of(n=sf.ValueState(int)), process_of(cnt=sf.ValueState(int, aliases=["n"]))
    releases.run(older, {1: [lambda p, key: setattr(p.n, "value", 1)]})
    releases.run(newer, {1: [lambda p, key: setattr(p.cnt, "value", p.cnt.value + 1)]})
    [checked] = compare(flow_of(older), "job", releases.record).operators
    assert checked.states == {"n": "renamed from cnt"}
    assert releases.run(older, {1: [lambda p, key: p.n.value]}) == [2]
    releases.run(newer, {1: []})
    releases.run(process_of(cnt=sf.ValueState(int)), {1: []})
    with refused(sf.IncompatibleError, "'cnt'", "'n'", 'aliases=("cnt",)'):
        releases.run(older, {1: []})
    # What the sentence advises.
    advised = process_of(n=sf.ValueState(int, aliases=("cnt",)))
    assert releases.run(advised, {1: [lambda p, key: p.n.value]}) == [2]


def test_what_older_code_cannot_read_names_where_to_go_back_to(releases: Releases) -> None:
    releases.run(process_of(value=sf.ValueState(int)), {1: [lambda p, k: setattr(p.value, "value", 1)]})
    releases.run(process_of(value=sf.ValueState(float)), {1: [lambda p, k: setattr(p.value, "value", 1.5)]})
    with refused(sf.IncompatibleError, "restore a checkpoint below 2"):
        releases.run(process_of(value=sf.ValueState(int)), {1: []})
    checked = compare(
        flow_of(process_of(value=sf.ValueState(int))), "job", releases.record, checkpoints=(1, 2, 3)
    )
    assert checked.problems[0].endswith("the newest of them is checkpoint:1")
    flow = flow_of(process_of(value=sf.ValueState(int)))
    for kept, where in {
        (1, 2, 3): "the newest of them is checkpoint:1",
        (2, 3): "restore a savepoint from before it",
    }.items():
        with pytest.raises(sf.IncompatibleError, match=f"restore a checkpoint below 2, .*: .*{where}$"):
            check_flow(flow, releases.record, checkpoints=kept)


def counted(**fields: Any) -> Any:
    """A class `Seen` of these fields: each has a default, and perhaps an alias."""
    return make_dataclass(
        "Seen",
        [
            (name, Annotated[int, sf.field(aliases=[alias])] if alias else int, field(default=0))
            for name, alias in fields.items()
        ],
    )


def basket(seen: Any) -> Any:
    return make_dataclass("Basket", [("seen", seen), ("lines", list[seen])])


FORMS: dict[str, tuple[Any, Any, Any]] = {
    "itself": (lambda seen: seen, lambda made, seen: seen, lambda value: value),
    "nested": (
        basket,
        lambda made, seen: made(seen, [seen]),
        lambda value: value.lines[0] if value.lines == [value.seen] else None,
    ),
    "in a map": (
        lambda seen: dict[str, seen],
        lambda made, seen: {"x": seen},
        lambda value: value["x"],
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_code_of_before_a_renamed_field_does_not_begin_it_at_its_default(
    releases: Releases, form: str
) -> None:
    wrap, put, get = FORMS[form]

    def release(seen: Any, **options: Any) -> tuple[Any, Any, Any]:
        made = wrap(seen)

        def write(process: Any, key: int) -> None:
            process.value.value = put(made, seen(key))

        return (
            process_of(value=sf.ValueState(made, **options)),
            write,
            lambda process, key: get(process.value.value),
        )

    first, write_first, _ = release(counted(sum=""))
    renamed, write_renamed, _ = release(counted(total="sum"))
    releases.run(first, {1: [write_first]})
    releases.run(renamed, {2: [write_renamed]})
    with refused(sf.IncompatibleError, "sum is called", "total since", "restore a checkpoint below 2"):
        releases.run(first, {1: []})
    # The next release of all: its field of the earlier name is another one.
    of_the_second = releases.operator
    releases.run(release(counted(total="", sum=""))[0], {1: []})
    with refused(sf.IncompatibleError, "another field has the earlier name", "restore a checkpoint below 2"):
        releases.run(first, {1: []})
    releases.operator = of_the_second
    seen = counted(sum="total")
    again, _, read = release(seen)
    assert releases.run(again, {1: [read], 2: [read]}) == [seen(1), seen(2)]


def test_a_function_takes_code_back_over_a_renamed_field(releases: Releases) -> None:
    old, new = counted(sum=""), counted(total="sum")
    releases.run(process_of(value=sf.ValueState(old)), {1: [lambda p, k: setattr(p.value, "value", old(k))]})
    releases.run(process_of(value=sf.ValueState(new)), {1: [lambda p, k: setattr(p.value, "value", new(7))]})

    def back(value: new) -> old:  # type: ignore[valid-type]
        return old(value.total)

    back.__annotations__ = {"value": new, "return": old}
    undone = process_of(value=sf.ValueState(old, migrate=back))
    assert releases.run(undone, {1: [lambda p, k: p.value.value]}) == [old(7)]


def setting(value: Any) -> Any:
    return {1: [lambda process, key: setattr(process.value, "value", value)]}


def problem(releases: Releases, process: Any, *checkpoints: int) -> str:
    return compare(flow_of(process), "job", releases.record, checkpoints=checkpoints).problems[0]


def test_code_of_three_releases_ago_names_what_it_can_read_itself(releases: Releases) -> None:
    """A checkpoint between the releases holds types that it cannot read, either."""

    def as_text(old: float) -> str:
        return str(old)

    whole, real = process_of(value=sf.ValueState(int)), process_of(value=sf.ValueState(float))
    for process, value in (
        (whole, 1),
        (real, 1.5),
        (process_of(value=sf.ValueState(str, migrate=as_text)), "x"),
    ):
        releases.run(process, setting(value))
    cannot = "which introduced a type that it cannot read: "
    assert problem(releases, whole, 1, 2).endswith(f"below 2, {cannot}the newest of them is checkpoint:1")
    assert problem(releases, real, 1, 2).endswith(f"below 3, {cannot}the newest of them is checkpoint:2")
    assert problem(releases, whole, 2).endswith(
        f"below 2, {cannot}none of them is kept, so restore a savepoint from before it"
    )


def test_older_code_goes_back_no_further_than_to_what_it_can_read(releases: Releases) -> None:
    wide = make_dataclass("Order", [("sku", str), ("amount", int), ("note", str, field(default="-"))])
    narrow = process_of(value=sf.ValueState(Order))

    def as_text(old: Any) -> str:
        return str(old)

    as_text.__annotations__["old"] = wide
    for process, value in (
        (narrow, Order("tea", 1)),
        (process_of(value=sf.ValueState(wide)), wide("tea", 1, "x")),
        (process_of(value=sf.ValueState(str, migrate=as_text)), "x"),
    ):
        releases.run(process, setting(value))
    assert problem(releases, narrow, 1, 2).endswith("the newest of them is checkpoint:2")


# ---- migrate= ----


def to_now(old: Order) -> OrderNow:
    if old.amount == 13:
        raise ValueError("thirteen")
    return OrderNow(old.sku, old.amount / 100)


def all_now(old: list[Order]) -> list[OrderNow]:
    return list(map(to_now, old))


@pytest.mark.parametrize("prefetched", [False, True])
def test_a_function_that_fails_names_operator_state_key_and_value_and_diverts_only_its_key(
    releases: Releases, prefetched: bool
) -> None:
    before = process_of(value=sf.ValueState(Order))
    releases.run(
        before,
        {
            key: [lambda p, k: setattr(p.value, "value", Order("tea", 100 * k if k < 13 else k))]
            for key in (1, 2, 13)
        },
    )
    now = process_of(value=sf.ValueState(OrderNow, migrate=to_now))

    def value(process: Any, key: int) -> Any:
        return process.value.value.total

    said = r"operator 'op', state 'value', key 13: migrate function to_now failed on the stored value Order\(sku='tea', amount=13\)"
    with pytest.raises(UserCodeError, match=said):
        releases.run(now, {13: [value]})
    acts = {1: [value], 13: [value], 2: [value]}
    if prefetched:
        # A state that every key reads is looked up for all keys of the next chunk at once.
        from stateflow.operators import keyed

        original = keyed.KeyedEngine.attach

        def attach(engine: Any, backend: Any) -> None:
            original(engine, backend)
            engine._reads._often.update(state.state_id for state in engine.binding.stored)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(keyed.KeyedEngine, "attach", attach)
            assert releases.run(now, acts, on_error="dead_letter") == [1.0, 2.0]
    else:
        assert releases.run(now, acts, on_error="dead_letter") == [1.0, 2.0]
    assert [(row[1], row[2].split(": ")[0]) for row in releases.dead] == [("13", "UserCodeError")]


def test_functions_convert_every_kind_of_state(releases: Releases) -> None:
    releases.run(states_of(Order, int), {2: [write(Order, int)]})
    now = process_of(
        value=sf.ValueState(OrderNow, migrate=to_now),
        items=sf.ListState(OrderNow, migrate=to_now),
        per=sf.MapState(str, list[OrderNow], migrate=all_now),
        most=sf.ReducingState(str, max, migrate=str),
        held=sf.AggregatingState(str, create=str, add=lambda a, v: a + v, result=lambda a: a, migrate=str),
        late=sf.ValueState(str, ttl="1 day", migrate=str),
    )
    assert releases.run(now, {2: [read]}) == [
        (OrderNow("tea", 0.02), [OrderNow("jam", 0.02)], [OrderNow("oil", 0.02)], "2", "2", "2")
    ]
