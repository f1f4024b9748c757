"""Releases that change the rows which a join keeps: what `check` says of them, for each join and each side."""

from __future__ import annotations

from dataclasses import make_dataclass
from datetime import datetime
from typing import Annotated, Any

import msgspec
import pytest

import stateflow as sf
from stateflow.compatibility.flows import Check, check_flow, compare
from stateflow.errors import IncompatibleError
from stateflow.format.records import Record
from stateflow.pipelines.graph import KeyedNode
from tests.compatibility.allowed import allowing
from tests.compatibility.test_ready_options import recorded
from tests.refusals.refusal import refused

FIELDS = {"tag": str | None, "number": int | None, "more": bool | None}

Made = make_dataclass("Made", [("user", int), ("left_ts", datetime)])

JOINS: dict[str, Any] = {
    "interval": lambda left, right, made: left.join("op", right, made, within=("0 minutes", "1 hour")),
    "as-of": lambda left, right, made: left.join_asof("op", right, made),
    "latest": lambda left, right, made: left.join_latest("op", right, made),
    "window": lambda left, right, made: left.window(sf.tumbling("1 hour")).join("op", right, made),
}
STATES = {
    ("interval", "left"): "waiting",
    ("interval", "right"): "waiting",
    ("as-of", "left"): "waiting",
    ("as-of", "right"): "versions",
    ("latest", "right"): "versions",
    ("window", "left"): "left",
    ("window", "right"): "right",
}


def joined(left: Any, right: Any) -> Made:  # type: ignore[valid-type]
    raise NotImplementedError


def flow_of(join: str, output: Any = joined, **fields: dict[str, Any]) -> tuple[KeyedNode, sf.Flow]:
    """A join whose inputs have these fields beside the key and the time."""

    @sf.pipeline("joins")
    def joins(flow: sf.Flow) -> None:
        inputs = [
            flow.source(
                side,
                sf.delta(f"/{side}"),
                make_dataclass(side, [("user", int), ("ts", datetime), *fields.get(side, FIELDS).items()]),
                event_time="ts",
                watermark="1 minute",
            ).key_by("user")
            for side in ("left", "right")
        ]
        JOINS[join](*inputs, output).collect("out", sf.memory("rows-of-joins"))

    flow = joins.build()
    [node] = flow.operators
    return node, flow


def checked(join: str, before: Record, **fields: Any) -> Check:
    return compare(allowing(flow_of(join, **fields)[1]), "options", before)


def without(*names: str) -> dict[str, Any]:
    return {name: hint for name, hint in FIELDS.items() if name not in names}


RENAMED, REMOVED = {"label": str | None, **without("tag")}, without("tag")
ADDED, WIDENED = {**FIELDS, "label": str | None}, {**FIELDS, "number": float | None}
ALIASED = {"label": Annotated[str | None, sf.field(aliases=["tag"])], **without("tag")}
SWAPPED = {**FIELDS, "number": Annotated[int | None, sf.field(aliases=["tag"])]}


@pytest.mark.parametrize(("join", "side"), STATES)
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (RENAMED, "kept, evolves by rules: column {0}.label is new; loses values: column {0}.tag is gone"),
        (REMOVED, "kept, evolves by rules; loses values: column {0}.tag is gone"),
        (ADDED, "kept, evolves by rules: column {0}.label is new"),
        (WIDENED, "kept, evolves by rules: column {0}.number: int becomes float"),
        (ALIASED, "kept, evolves by rules: column {0}.label was tag"),
    ],
    ids=["renamed", "removed", "added", "widened", "renamed with an alias"],
)
def test_check_says_what_becomes_of_the_rows_that_are_kept(
    join: str, side: str, fields: dict[str, Any], said: str
) -> None:
    before = recorded(flow_of(join)[0])
    check = checked(join, before, **{side: fields})
    [operator] = check.operators
    assert check.compatible
    assert operator.states[STATES[join, side]] == said.format(side).replace("was tag", f"was {side}.tag")
    assert len(operator.evolution) == 1, "the other states are kept as they are"
    with refused(IncompatibleError, f"state op.{STATES[join, side]} ", "leave out --strict"):
        check.refuse_evolution()


@pytest.mark.parametrize(("join", "side"), STATES)
def test_a_type_that_does_not_hold_what_is_kept_is_refused(join: str, side: str) -> None:
    before = recorded(flow_of(join)[0])
    retyped = {side: {**FIELDS, "tag": int | None}}
    [operator] = checked(join, before, **retyped).operators
    assert f"column {side}.tag: str cannot become int by itself" in operator.problem
    assert operator.problem.startswith("operator 'op'")
    assert "put it back, or give" in operator.problem
    with pytest.raises(IncompatibleError) as caught:
        check_flow(allowing(flow_of(join, **retyped)[1]), before)
    assert str(caught.value) == operator.problem, "a run says what check says"


def nothing_changes(check: Check) -> bool:
    [operator] = check.operators
    return check.compatible and not operator.evolution and set(operator.states.values()) == {"kept"}


@pytest.mark.parametrize("join", JOINS)
def test_nothing_changes_for_rows_that_stay_as_they_are(join: str) -> None:
    before = recorded(flow_of(join)[0])
    assert nothing_changes(checked(join, before))
    assert nothing_changes(checked(join, before, left=SWAPPED, right=SWAPPED)), (
        "a column's own name comes first"
    )
    moved = dict(reversed(FIELDS.items()))
    assert nothing_changes(checked(join, before, left=moved, right=moved))
    kept = recorded(flow_of(join, Made)[0])
    assert nothing_changes(checked(join, kept, output=Made)), (
        "columns that the output does not have are not kept"
    )


def test_left_rows_that_do_not_wait_are_not_compared() -> None:
    assert nothing_changes(checked("latest", recorded(flow_of("latest")[0]), left=RENAMED))


@pytest.mark.parametrize("join", JOINS)
def test_records_that_do_not_tell_the_columns_are_taken(join: str) -> None:
    record = recorded(flow_of(join)[0])
    operator = record.operators["op"]
    options = {name: value for name, value in operator.options.items() if not name.startswith("rows of")}
    assert options != operator.options
    before = msgspec.structs.replace(
        record, operators={"op": msgspec.structs.replace(operator, options=options)}
    )
    assert nothing_changes(checked(join, before, left=RENAMED, right=RENAMED))


def test_a_join_without_entries_may_have_other_rows() -> None:
    empty = recorded(flow_of("as-of")[0], files=False)
    assert nothing_changes(checked("as-of", empty, right={**FIELDS, "tag": int | None}))
