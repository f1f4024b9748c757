"""What of a record's state a flow does not take up, and whether that may be: all that `--allow-non-restored-state` decides is here."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stateflow.compatibility.states import (
    BEGIN_ANEW,
    declared_elements,
    declared_states,
    element_names,
    exact_count,
    forgets,
    keeps_nothing,
    let_go,
    recorded_names,
    state_type,
)
from stateflow.errors import IncompatibleError
from stateflow.format.records import OperatorState, Record, StateSchema, total_size
from stateflow.format.source_offsets import kind_of, left_topics, replaced_topics, topics_read
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.graph import KeyedNode, SourceNode, sources_of
from stateflow.pipelines.ready.operators import ReadyOperator
from stateflow.quantities import several, size_text
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
    warning: str = ""
    """Of rows that operators have and that are read again, or would be. The caller ends it with who takes that back."""
    forgotten: str = ""
    """Of sources whose position the next checkpoint forgets, while operators or outputs keep what they have of them. The caller ends it
    with who brings that back."""
    dropped: tuple[str, ...] = ()
    """A sentence for each operator whose state goes, with what that holds."""
    left: tuple[str, ...] = ()
    """A sentence for each source that names topics of Kafka no more."""

    @property
    def refusal(self) -> str:
        """Of what shows in the uids alone."""
        return self._without_operator(*self.operators, where=f"{self.where}: ") or self.sources

    def of_operator(self, uid: str) -> str:
        """The refusal of one of `operators`."""
        return self._without_operator(uid)

    def of_states(self, node: KeyedNode, before: OperatorState, given: Collection[str] = ()) -> str:
        """The refusal of states of an operator that is still there. Those in `given` do not begin empty: they get entries."""
        return "" if self.allowed else replaced(node, before, given)

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
    where = f"pipeline {flow.name!r} does not fit checkpoint {record.slot}"
    gone = sorted(set(record.operators) - {node.uid for node in flow.operators})
    lost = sorted(set(record.sources) - {node.uid for node in flow.sources})
    new = [node for node in flow.sources if node.uid not in record.sources] if lost else []
    refusal = _read_again(lost, new, where) if new and not allowed else ""
    topics = [each for node in flow.sources if (each := _Topics.of(node, record)).left]
    if not refusal and not allowed:
        refusal = next((each.refusal(where) for each in topics if each.new), "")
    keeps = [node for node in flow.operators if node.uid in record.operators]
    warning = _counted_again(keeps, lost, new) if new and allowed else ""
    dropped = tuple(_dropped(uid, record) for uid in gone) if allowed else ()
    # Beside new sources the position goes, too, but another sentence may name the checkpoint that has it.
    told = bool(refusal or (new and (warning or dropped)))
    forgotten = _forgotten(keeps, lost) if lost and not told else ""
    left = tuple(left_topics(each.uid, each.left) for each in topics)
    return NonRestored(tuple(gone), where, refusal, allowed, warning, forgotten, dropped, left)


class _Topics(NamedTuple):
    """What has changed of the topics of Kafka that a source names."""

    uid: str
    left: list[str]
    new: list[str]

    @classmethod
    def of(cls, node: SourceNode, record: Record) -> _Topics:
        named, state = node.factory.topics, record.sources.get(node.uid)
        if state is None or not named:
            return cls(node.uid, [], [])
        # A connector's position may look like one of Kafka.
        before = topics_read(state) if state.kind == "kafka" else []
        known = {topic for line in state.lines if kind_of(line) == "kafka" for topic in json.loads(line)}
        known |= {name.partition("/")[2] for name in state.left}
        left = [topic for topic in before if topic not in named]
        return cls(node.uid, left, [topic for topic in named if topic not in known])

    def refusal(self, where: str) -> str:
        return f"{where}: {replaced_topics(self.uid, self.left, self.new)}"


def _dropped(uid: str, record: Record) -> str:
    state = record.operators[uid]
    entries = sum(shard.entries for shard in state.all_shards)
    held = f"about {several(entries, 'entry', 'entries')}, {size_text(total_size(state.files))}"
    return f"the state of operator {uid!r} ({held}) has no operator in this pipeline and is dropped (--allow-non-restored-state)"


def lets_go(flow: Flow, record: Record | None) -> bool:
    """Whether the record still has state that the caller of the flow lets go of, so that the next run would ask for it once more."""
    if record is None or not flow.allow_non_restored_state:
        return False
    before = record.operators
    nodes = {node.uid: node for node in flow.operators}
    return any(uid not in nodes or replaced(nodes[uid], state) for uid, state in before.items())


def _read_again(lost: Sequence[str], new: Sequence[SourceNode], where: str) -> str:
    """A source under another uid would be read from its beginning once more, into state that has its rows."""
    return (
        f"{where}: it knows how far source {_names(lost)} was read, which "
        f"is not in this pipeline any more, and source {_names(each.uid for each in new)} is new and would be read from its "
        "beginning: give it the uid that it had, or accept that with --allow-non-restored-state, and give the operators behind it and all their other sources new uids, too, if "
        "they should not count twice what both have"
    )


def _forgotten(keeps: Sequence[KeyedNode], lost: Sequence[str]) -> str:
    """No record says which outputs a source fed. Without operators it is outputs that have its rows."""
    keeping = (
        f", while operator {_names(each.uid for each in keeps)} keeps what it has of it" if keeps else ""
    )
    twice = "count twice" if keeps else "come a second time into outputs that append"
    return (
        f"source {_names(lost)} is not in this pipeline any more, and the next checkpoint forgets how far it was read{keeping}: should it come back "
        f"under this uid, it is read from its beginning, and its rows {twice}"
    )


def _counted_again(keeping: Sequence[KeyedNode], lost: Sequence[str], new: Sequence[SourceNode]) -> str:
    begin = [node for node in new if not node.factory.since]
    keeps = [node.uid for node in keeping if not sources_of(node).isdisjoint(begin)]
    if not keeps:
        return ""
    return (
        f"source {_names(each.uid for each in begin)} is read from its beginning, and operator {_names(keeps)} keeps what it has counted of source "
        f"{_names(lost)}: what both have counts twice there; if that is not meant, give the operators behind the source new uids, and the source "
        "another one again, with --allow-non-restored-state"
    )


def _names(uids: Iterable[str]) -> str:
    return ", ".join(map(repr, uids))


def check_replaced(node: KeyedNode, before: OperatorState) -> None:
    """Raises IncompatibleError: harnesses let nothing go."""
    if refusal := replaced(node, before):
        raise IncompatibleError(refusal)


def replaced(node: KeyedNode, before: OperatorState, given: Collection[str] = ()) -> str:
    """A state that is gone while another one is new may be the same to its author: the new one would begin empty, unless it is one of
    `given`, which get entries."""
    if keeps_nothing(before):
        return ""
    if refusal := _two_of_one(node, before):
        return refusal
    gone = _gone(node, before)
    new = {name: form for name, form in _new(node, before).items() if name not in given}
    if refusal := _reused_name(node, before, gone):
        return refusal
    if not gone or not new:
        return ""
    if isinstance(node.columnar, ReadyOperator):
        # Code names neither state, so it can take over none of them, nor let it go.
        step = "put its options back"
        if count := next((count for name in new if (count := exact_count(node, name))), ""):
            step = (
                f"{count!r} counts exactly, which takes other state in windows that overlap, so say approximate=True for it, count it in a second "
                "operator beside this one"
            )
        return (
            f"operator {node.uid!r} has state {_names(gone)} in the checkpoint, and is to have {_names(new)} now, which would begin empty: {step}, "
            f"or {BEGIN_ANEW}"
        )
    if kept := next((name for name in gone if name in new), ""):
        return (
            f"operator {node.uid!r}: state {kept!r} was {_described(gone[kept])}, and is {_described(new[kept])} now, which would begin empty: give "
            f"the one of today another name; then, if the values of the other one may go, {let_go(node, kept)}"
        )
    alike = ((old, name) for old in gone for name in new if _same_kind(gone[old], new[name]))
    old, name = next(alike, (next(iter(gone)), next(iter(new))))
    return (
        f"operator {node.uid!r}: state {old!r}, {_described(gone[old])}, is not declared any more, and {name!r}, "
        f"{_described(new[name])}, is new and would begin empty: {_how_to_keep(node, old, name, gone[old], new[name])}; "
        f"if its values may go, {let_go(node, old)}"
    )


def _two_of_one(node: KeyedNode, before: OperatorState) -> str:
    """Of two states of the record that are one of today, one would be left out without a word."""
    keyed = {name for name, schema in before.states.items() if not schema.forgotten}
    today = [
        *((name, schema.aliases, keyed) for name, schema in declared_states(node).items()),
        *((name, each.aliases, before.operator_states) for name, each in declared_elements(node).items()),
    ]
    for name, aliases, recorded in today:
        found = [each for each in (name, *aliases) if each in recorded]
        if len(found) > 1:
            return (
                f"operator {node.uid!r}: state {name!r} goes by the names of several states of the checkpoint, {_names(found)}, and can go on from one: "
                f"leave it that alias alone; then, if the values of another one may go, {let_go(node, found[-1])}"
            )
    return ""


def _reused_name(node: KeyedNode, before: OperatorState, gone: Iterable[str]) -> str:
    """Code of before two releases: one renamed the state, and one gave its name to another."""
    found = {*recorded_names(node, before).values(), *element_names(node, before).values()}
    for old in gone:
        former = (before.states[old] if old in before.states else before.operator_states[old]).former
        if name := next((each for each in former if each in found), ""):
            return (
                f"operator {node.uid!r}: state {old!r} of the checkpoint was called {name!r} in an earlier release, and is not declared, while its "
                f"{name!r} is another state: code of before the renaming would take that one for its own, and needs a checkpoint of its own release, "
                f"or {old!r} as the name of its state; if the code is newer, and the values of {old!r} may go, {let_go(node, old)}"
            )
    return ""


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
    """The states of the record that the code neither declares nor lets go of. One of a key and one of a subtask are two, whatever their
    names."""
    keyed = {*declared_states(node), *recorded_names(node, before).values(), *forgets(node)}
    elements = {*declared_elements(node), *element_names(node, before).values(), *forgets(node)}
    return {
        **{
            name: _Form(schema.kind, schema.value, schema.map_key)
            for name, schema in before.states.items()
            # An exact count under another name begins anew, and what it knew goes with its count.
            if not schema.forgotten and name not in keyed and not exact_count(node, name)
        },
        **{
            name: _elements_form(state.kind, state.schema)
            for name, state in before.operator_states.items()
            if name not in elements
        },
    }


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
    article = "an" if kind[0] in "aeiou" else "a"
    return f"{article} {kind} of {map_key + ' to ' if map_key else ''}{value}"
