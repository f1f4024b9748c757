"""What of a record's state a flow does not take up, and whether that may be: all that `--allow-non-restored-state` decides is here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from stateflow.compatibility.states import (
    declared_elements,
    declared_states,
    element_names,
    forgets,
    let_go,
    recorded_names,
    state_type,
)
from stateflow.errors import IncompatibleError
from stateflow.format.records import OperatorState, Record, StateSchema
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.graph import KeyedNode
from stateflow.state.values.evolution.decision import RefusedError
from stateflow.state.values.evolution.declared_types import evolved
from stateflow.state.values.serializers import serializer_for


@dataclass(frozen=True, slots=True)
class NonRestored:
    """What the flow leaves where it is. A refusal is empty of what is allowed."""

    operators: tuple[str, ...]
    """The uids of those whose state has no operator any more."""
    where: str
    sources: str
    """The refusal of sources that would be read from their beginning once more."""
    allowed: bool

    @property
    def refusal(self) -> str:
        """Of what shows in the uids alone."""
        return self._without_operator(*self.operators, where=f"{self.where}: ") or self.sources

    def of_operator(self, uid: str) -> str:
        """The refusal of one of `operators`."""
        return self._without_operator(uid)

    def of_states(self, node: KeyedNode, before: OperatorState) -> str:
        """The refusal of states of an operator that is still there."""
        return "" if self.allowed else replaced(node, before)

    def _without_operator(self, *uids: str, where: str = "") -> str:
        if self.allowed or not uids:
            return ""
        return (
            f"{where}state of operator {', '.join(map(repr, uids))} has no operator in this pipeline: give an operator that uid "
            "again, or drop the state with --allow-non-restored-state"
        )


def non_restored(flow: Flow, record: Record | None) -> NonRestored:
    allowed = flow.allow_non_restored_state
    if record is None:
        return NonRestored((), "", "", allowed)
    where = f"job {flow.name!r}, checkpoint {record.slot}"
    gone = sorted(set(record.operators) - {node.uid for node in flow.operators})
    sources = "" if allowed else _read_again(flow, record, where)
    return NonRestored(tuple(gone), where, sources, allowed)


def _read_again(flow: Flow, record: Record, where: str) -> str:
    """A source under another uid would be read from its beginning once more, into state that has its rows."""
    uids = {node.uid for node in flow.sources}
    lost, new = sorted(set(record.sources) - uids), sorted(uids - set(record.sources))
    if not lost or not new:
        return ""
    return (
        f"{where}: it knows how far source {', '.join(map(repr, lost))} was read, which "
        f"is not in this pipeline any more, and source {', '.join(map(repr, new))} is new and would be read from its "
        "beginning: give it the uid that it had, or accept that with --allow-non-restored-state"
    )


def check_replaced(node: KeyedNode, before: OperatorState) -> None:
    """Raises IncompatibleError: harnesses let nothing go."""
    if refusal := replaced(node, before):
        raise IncompatibleError(refusal)


def replaced(node: KeyedNode, before: OperatorState) -> str:
    """A state that is gone while another one is new may be the same to its author: the new one would begin empty."""
    gone, new = _gone(node, before), _new(node, before)
    if not gone or not new:
        return ""
    alike = ((old, name) for old in gone for name in new if _same_kind(gone[old], new[name]))
    old, name = next(alike, (next(iter(gone)), next(iter(new))))
    return (
        f"operator {node.uid!r}: state {old!r}, {_described(gone[old])}, is not declared any more, and {name!r}, "
        f"{_described(new[name])}, is new and would begin empty: {_how_to_keep(node, old, name, gone[old], new[name])}; "
        f"if its values may go, {let_go(node, old)}"
    )


def _how_to_keep(node: KeyedNode, old: str, name: str, was: _Form, now: _Form) -> str:
    if not _same_kind(was, now):
        return f"if its values matter, declare {old!r} again"
    alias = f'if it is the same state, declare it with aliases=("{old}",)'
    try:
        if was.value != now.value:
            evolved(StateSchema(id=0, kind=was.kind, value=was.value), state_type(node, name, now.value), 0)
    except RefusedError:
        return f"{alias} and a function migrate= that converts its values"
    return alias


def _same_kind(one: _Form, other: _Form) -> bool:
    timers_alike = one.kind != "timer" or one.value == other.value
    return one.kind == other.kind and one.map_key == other.map_key and timers_alike


class _Form(NamedTuple):
    kind: str
    value: str
    map_key: str


def _gone(node: KeyedNode, before: OperatorState) -> dict[str, _Form]:
    """The states of the record that the code neither declares nor lets go of."""
    declared = {name for taken in (declared_states(node), declared_elements(node)) for name in taken}
    renamed = {*recorded_names(node, before).values(), *element_names(node, before).values()}
    forms: dict[str, _Form] = {
        name: _Form(schema.kind, schema.value, schema.map_key)
        for name, schema in before.states.items()
        if not schema.forgotten
    }
    forms |= {name: _elements_form(s.kind, s.schema) for name, s in before.operator_states.items()}
    kept = declared | renamed | forgets(node)
    return {name: form for name, form in forms.items() if name not in kept}


def _new(node: KeyedNode, before: OperatorState) -> dict[str, _Form]:
    keyed, elements = recorded_names(node, before), element_names(node, before)
    return {
        **{n: _Form(s.kind, s.value, s.map_key) for n, s in declared_states(node).items() if n not in keyed},
        **{
            name: _elements_form(declaration.kind, serializer_for(declaration.type).schema)
            for name, declaration in declared_elements(node).items()
            if name not in elements
        },
    }


def _elements_form(kind: str, schema: str) -> _Form:
    return _Form(f"operator state ({kind})", schema, "")


def _described(form: _Form) -> str:
    kind, value, map_key = form
    return f"a {kind} of {map_key + ' to ' if map_key else ''}{value}"
