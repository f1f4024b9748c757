"""Does the code fit the recorded state? Pure, so that `stateflow check` can answer before a run writes anything."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stateflow.errors import IncompatibleError
from stateflow.format.records import OperatorState, Record, StateSchema
from stateflow.operators.binding import TIMER_IDS, schemas
from stateflow.pipelines.flow import Flow, KeyedNode

FIRST_STATE_ID = 1


def check_flow(flow: Flow, record: Record | None, *, allow_non_restored_state: bool = False) -> None:
    """Raises IncompatibleError for the first thing that does not fit."""
    if record is None:
        return
    nodes = {node.uid: node for node in flow.operators}
    lost = sorted(set(record.operators) - set(nodes))
    if lost and not allow_non_restored_state:
        raise IncompatibleError(
            f"job {flow.name!r}, checkpoint {record.slot}: state of operator {', '.join(map(repr, lost))} has no operator "
            "in this pipeline: give an operator that uid again, or drop the state with --allow-non-restored-state"
        )
    if not allow_non_restored_state:
        check_sources(flow, record)
    for uid, node in nodes.items():
        if uid in record.operators:
            resolve_states(node, record.operators[uid])
            check_key_columns(node, record.operators[uid])
            if not allow_non_restored_state:
                check_renamed(node, record.operators[uid])


def check_sources(flow: Flow, record: Record) -> None:
    """A source under another uid would be read from its beginning once more, into state that has its rows."""
    uids = {node.uid for node in flow.sources}
    lost, new = sorted(set(record.sources) - uids), sorted(uids - set(record.sources))
    if lost and new:
        raise IncompatibleError(
            f"job {flow.name!r}, checkpoint {record.slot}: it knows how far source {', '.join(map(repr, lost))} was read, which "
            f"is not in this pipeline any more, and source {', '.join(map(repr, new))} is new and would be read from its "
            "beginning: give it the uid that it had, or accept that with --allow-non-restored-state"
        )


def check_renamed(node: KeyedNode, before: OperatorState) -> None:
    """A renamed state would begin empty, while its entries stay under the old name."""
    resolved, _ = resolve_states(node, before)
    declared = set(declared_states(node))
    ids = {schema.id for schema in before.states.values()}
    for name in sorted(declared):
        new = resolved[name]
        if new.id in ids:
            continue
        for old_name, old in before.states.items():
            alike = (old.kind, old.value, old.map_key) == (new.kind, new.value, new.map_key)
            if old_name in resolved and old_name not in declared and alike:
                raise IncompatibleError(
                    f"operator {node.uid!r}: state {old_name!r} is not declared any more and {name!r}, of the same type, is new and "
                    f'would begin empty: if it was renamed, declare it with aliases=("{old_name}",); if not, accept that with '
                    "--allow-non-restored-state"
                )


def declared_states(node: KeyedNode) -> dict[str, StateSchema]:
    """The states of an operator as its code declares them, still without ids."""
    if node.columnar is not None:
        return {name: layout.schema() for name, layout in node.columnar.states.items()}
    assert node.process_type is not None
    return schemas(node.process_type, node.uid)


def resolve_states(node: KeyedNode, before: OperatorState | None) -> tuple[dict[str, StateSchema], int]:
    """Every state with its id, and the next free id. What was declared before keeps its id, under an alias too."""
    recorded = dict(before.states) if before else {}
    next_id = before.next_state_id if before else FIRST_STATE_ID
    resolved: dict[str, StateSchema] = {}
    for name, schema in declared_states(node).items():
        old_name = next((n for n in (name, *schema.aliases) if n in recorded), None)
        if old_name is None:
            resolved[name] = msgspec.structs.replace(schema, id=next_id)
            next_id += TIMER_IDS if schema.kind == "timer" else 1
            continue
        old = recorded.pop(old_name)
        _check_same(node.uid, name, old, schema)
        resolved[name] = msgspec.structs.replace(schema, id=old.id)
    # States that the code no longer declares keep their entries: they come back with their declaration.
    resolved.update(recorded)
    return resolved, next_id


def _check_same(uid: str, name: str, old: StateSchema, new: StateSchema) -> None:
    for what, before, now in (
        ("kind", old.kind, new.kind),
        ("type", old.value, new.value),
        ("map key type", old.map_key, new.map_key),
        ("order of entries", _entries(old), _entries(new)),
    ):
        if before != now:
            raise IncompatibleError(
                f"operator {uid!r}, state {name!r}: its {what} was {before} and is {now} now: "
                "give the changed state another name, or put the type back"
            )


def _entries(schema: StateSchema) -> str:
    """What tells the entries of a columnar state's key apart."""
    names = [*(["time"] if schema.timed else []), "key", *(f"{name} ({kind})" for name, kind in schema.by)]
    return ", ".join(names)


def check_key_columns(node: KeyedNode, before: OperatorState) -> None:
    """Compares how many there are; `check_key` compares their types once these are known."""
    if node.keyed and len(node.keyed[0].columns) != len(before.key):
        raise IncompatibleError(
            f"operator {node.uid!r} was keyed by {_key(before.key)} and is keyed by "
            f"{', '.join(node.keyed[0].columns)} now: state cannot be found under another key; give it a new uid"
        )


def check_key(uid: str, types: tuple[str, ...], before: OperatorState) -> None:
    """The types of the key must be what they were: its bytes and its key group depend on them."""
    recorded = tuple(kind for _, kind in before.key)
    if recorded != types:
        raise IncompatibleError(
            f"operator {uid!r} was keyed by {_key(before.key)} and its key is ({', '.join(types)}) now: state cannot be "
            "found under another key; give the operator a new uid, or cast the key back"
        )


def _key(key: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in key)


def state_ids(states: Mapping[str, StateSchema]) -> dict[str, int]:
    return {name: schema.id for name, schema in states.items()}
