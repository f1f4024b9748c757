"""Does the code fit the recorded state? Pure, so that `stateflow check` can answer before a run writes anything."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from stateflow.compatibility.input_origins import exchanged, input_options, recorded_columns
from stateflow.compatibility.renamed_columns import reused_names, reused_since
from stateflow.errors import CorruptError, IncompatibleError, StateflowError
from stateflow.format.expiry_blocks import AT_ONCE
from stateflow.format.records import (
    OPTION_AGGREGATE,
    OPTION_KIND,
    OPTION_ROWS,
    OperatorListState,
    OperatorState,
    Record,
    SchemaVersion,
    Shard,
    StateSchema,
)
from stateflow.format.state_names import former_names, found_names, names_in
from stateflow.operators.binding import TIMER_IDS, schemas, type_of
from stateflow.pipelines.graph import KeyedNode
from stateflow.pipelines.ready.fixed_options import LATENESS, aggregate_option, duration
from stateflow.pipelines.ready.operators import (
    ReadyOperator,
    RunningAggregate,
    WindowAggregate,
    counted_distinct,
)
from stateflow.pipelines.ready.stored_forms import is_same_form
from stateflow.pipelines.rows.row_type import RowType
from stateflow.state.declare import OperatorState as DeclaredOperatorState
from stateflow.state.values.evolution.decision import RefusedError, refuse_taken_alias
from stateflow.state.values.evolution.declared_types import RULES, Change, DeclaredType, evolved, readers
from stateflow.state.values.evolution.evolved_columns import columns_evolution
from stateflow.state.values.evolution.renamed_back import refuse_renamed_back
from stateflow.state.values.schema_text import read_columns
from stateflow.state.values.serializers import serializer_for

FIRST_STATE_ID = 1
_HELD_BACK = "held back"
"""Name of an option: by how much the operators before it hold an operator back."""
BEGIN_ANEW = "give the operator another uid, under which it begins anew, and let the old state go with --allow-non-restored-state"


def fixed_options(node: KeyedNode) -> dict[str, str]:
    """What an operator's inputs are; and of a ready-made one its kind, the options that its state is made with and the columns of rows in its
    blocks."""
    declared, inputs = node.columnar, input_options(node)
    if not isinstance(declared, ReadyOperator):
        return inputs
    held_back = {_HELD_BACK: duration(node.held_back)} if node.held_back else {}
    kind = {OPTION_KIND: declared.kind}
    return {
        **kind, **declared.description, **declared.fixed, **inputs, **held_back, **_columns_of_blocks(declared), **_forms(declared)
    }  # fmt: skip


def _columns_of_blocks(declared: ReadyOperator) -> dict[str, str]:
    return {f"{OPTION_ROWS}{state}": layout.schema().value for state, layout in declared.blocks.items()}


def _forms(declared: ReadyOperator) -> dict[str, str]:
    return {_values_of(column): form for column, form in declared.forms.items()}


def _values_of(column: str) -> str:
    return f"kind of values in column {column!r}"


_EARLIER = "earlier "
"""Before the name of an option that only earlier code had."""
_OF_VALUES = (OPTION_AGGREGATE, "kind of values in ")
"""How the names of options begin that say what is stored under the name of an aggregate or of a column."""


def _check_forms(node: KeyedNode, declared: ReadyOperator, before: OperatorState) -> None:
    """Refuses a column of rows in state whose values would be read as others. Records of before this was noted do not tell."""
    for column, now in declared.forms.items():
        names = (column, *declared.renamed.get(column, ()))
        was = next((form for name in names if (form := _noted(before, _values_of(name), ""))), now)
        if not is_same_form(was, now):
            raise IncompatibleError(
                f"operator {node.uid!r} keeps rows whose column {column!r} had {was} and has {now} now, and would read them as other values: put it "
                f"back, or {BEGIN_ANEW}"
            )


def options_behind(node: KeyedNode, before: OperatorState | None) -> dict[str, str]:
    """The options of a record behind a batch. What earlier code has noted of aggregates and columns that today's does not have stays: entries
    that nobody has written since have their values still, and code that has them again reads those."""
    now = fixed_options(node)
    if before is None or _is_empty(before) or now.get(OPTION_KIND) != before.options.get(OPTION_KIND):
        return now
    noted = {name.removeprefix(_EARLIER): text for name, text in before.options.items()}
    left = {name: text for name, text in noted.items() if name.startswith(_OF_VALUES) and name not in now}
    return now | {f"{_EARLIER}{name}": text for name, text in left.items()}


def _noted(before: OperatorState, option: str, otherwise: str) -> str:
    return before.options.get(option, before.options.get(f"{_EARLIER}{option}", otherwise))


def changed_blocks(node: KeyedNode, before: OperatorState) -> dict[str, Change]:
    """By state, the changes of the columns of rows in its blocks. Raises IncompatibleError for changes that do not fit."""
    declared, changes = node.columnar, {}
    if not isinstance(declared, ReadyOperator) or _is_empty(before):
        return {}
    for state, now in zip(declared.blocks, _columns_of_blocks(declared).values(), strict=True):
        was = before.options.get(f"{OPTION_ROWS}{state}", now)
        try:
            _refuse_reused_columns(node, before, was, now)
            if was == now:
                continue
            change = columns_evolution(was, now, declared.renamed)
        except RefusedError as refusal:
            raise IncompatibleError(
                f"operator {node.uid!r}: the rows that state {state!r} keeps do not fit ({refusal}): put it back, or {BEGIN_ANEW}"
            ) from None
        if change.changes:  # not only other places
            changes[state] = Change(was, now, change.changes, change.losses, RULES)
    return changes


def check_options(node: KeyedNode, before: OperatorState) -> None:
    """Refuses a key, an order of inputs and options that the state was not made with. Code of the user's own has no other options than its
    inputs."""
    if _is_empty(before):
        return
    if were := exchanged(node, before.options):
        raise IncompatibleError(
            f"operator {node.uid!r}: its inputs were {were} and have changed places, and its state knows the rows of each by the side that they came "
            f"from: put them back, or {BEGIN_ANEW}"
        )
    if node.rows and node.rows[0] is not None:
        check_another_key(node, node.rows[0], before)
    declared = node.columnar
    if not isinstance(declared, ReadyOperator):
        return
    kind, was = declared.kind, before.options.get(OPTION_KIND)
    if kind != was:
        raise IncompatibleError(
            f"operator {node.uid!r} was {'code of your own' if was is None else repr(was)} and is {kind!r} now, which cannot read "
            f"its state: {BEGIN_ANEW}"
        )
    held_back, was_held_back = duration(node.held_back), before.options.get(_HELD_BACK, duration(0))
    if held_back != was_held_back:
        raise IncompatibleError(
            f"operator {node.uid!r}: the operators before it held it back by {was_held_back}, and by {held_back} now (a lateness, a "
            f"window's length, the bounds of a join), so that rows would be late for it or come twice: put them back, or {BEGIN_ANEW}"
        )
    _check_forms(node, declared, before)
    names = _former_names(node), _reused_since(node.rows, before)
    for name, value in declared.fixed.items():
        was = _noted(before, name, value)
        # Others may have the words of columns: a duration its unit, a join its kind.
        former, reused = names if name.startswith(_OF_COLUMNS) else ({}, {})
        if value in (was, _with_names(former, was)):
            _refuse_reused_name(node, f"its {name} was {was}", reused, _COLUMN.findall(was))
        elif not declared.reads_as(name, was) and _with_names(former | reused, was) != value:
            other = BEGIN_ANEW
            if OPTION_AGGREGATE in name:
                other = "give the changed aggregate another name, under which it begins anew"
            raise IncompatibleError(
                f"operator {node.uid!r}: its {name} was {was} and is {value} now, and its state was made with the former: put it "
                f"back, or {other}"
            )
    if isinstance(declared, RunningAggregate | WindowAggregate):
        _check_new_aggregates(node, declared, before)


def _check_new_aggregates(
    node: KeyedNode, declared: RunningAggregate | WindowAggregate, before: OperatorState
) -> None:
    """Refuses a new aggregate whose state column another one had: entries have that one's values in it. Records of before aggregates were
    noted do not tell which are new."""
    noted = {name.removeprefix(_EARLIER) for name in before.options}
    if not any(name.startswith(OPTION_AGGREGATE) for name in noted):
        return
    stored = {
        field.name
        for name, state in before.states.items()
        if name in declared.states and state.kind == "columns"
        for text in (state.value, *(version.value for version in state.versions))
        for field in read_columns(text)
    }
    for each in declared.aggregates:
        taken = next((column for column in each.partials if column in stored), "")
        if taken and aggregate_option(each.name) not in noted:
            raise IncompatibleError(
                f"operator {node.uid!r}: its new aggregate {each.name!r} would go on from the values in column {taken!r} of its state, which an "
                "aggregate of an earlier release kept: give it another name, under which it begins anew"
            )


_OF_COLUMNS = (OPTION_AGGREGATE, "by", "event time", "order_by of ", "per", "where")
"""How the names of options begin that name columns."""
_COLUMN = re.compile(r"'[^']*'|\w+(?!\w| ?[\d(])")
"""A word before a bracket is a function, and one before a number says what that is, such as `limit 10`."""


def _with_names(renamed: Mapping[str, str], option: str) -> str:
    """An option of earlier code, in which columns have today's names. Text in quotes is a value and stays."""
    return _COLUMN.sub(lambda word: renamed.get(word[0], word[0]), option)


def _former_names(node: KeyedNode) -> dict[str, str]:
    """By name that no column has today, the column that had it."""
    fields = [field for rows in node.rows if rows is not None for field in rows.fields]
    now = {field.name for field in fields}
    renamed = {alias: field.name for field in fields for alias in field.aliases if alias not in now}
    for side, rows in zip(("left_", "right_"), node.rows, strict=False):
        if rows is not None:
            # So a join's condition calls the columns of its rows.
            renamed |= {
                side + alias: side + field.name
                for field in rows.fields
                for alias in field.aliases
                if alias not in rows.names
            }
    return renamed


def _reused_names(
    inputs: Sequence[RowType | None], reused: Callable[[int, RowType], dict[str, str]]
) -> dict[str, str]:
    """Reused names of all inputs. A join puts the side before names, in its condition and in its blocks."""
    names: dict[str, str] = {}
    for n, (side, rows) in enumerate(zip(("left", "right"), inputs, strict=False)):
        own = {} if rows is None else reused(n, rows)
        for before in ("", f"{side}_", f"{side}.") if len(inputs) > 1 else ("",):
            names |= {before + old: before + name for old, name in own.items()}
    return names


def _reused_since(inputs: Sequence[RowType | None], before: OperatorState) -> dict[str, str]:
    """By name that another column has since the record, the column that its code meant by it. Records of before columns were noted do not
    tell."""
    return _reused_names(
        inputs,
        lambda n, rows: reused_since(rows, recorded_columns(before.options, n)),
    )


def _refuse_reused_name(
    node: KeyedNode, made_with: str, reused: Mapping[str, str], names: Iterable[str]
) -> None:
    """Refuses the former name of a column for another one in what the state was made with."""
    for old in (name for name in names if name in reused):
        try:
            refuse_taken_alias(f"column {reused[old]}", reused[old], (old,), (old,), (old,))
        except RefusedError as refusal:
            raise IncompatibleError(
                f"operator {node.uid!r}: {made_with}: {refusal}, or say {reused[old]!r} there, which goes on from it"
            ) from None


def _refuse_reused_columns(node: KeyedNode, before: OperatorState, was: str, now: str) -> None:
    """Refuses that one of two columns goes on from what rows in state have of the other one. Raises RefusedError."""
    if not (names := _reused_names(node.rows, lambda _, rows: reused_names(rows))):
        return
    reused = _reused_since(node.rows, before)
    kept, today = ({field.name for field in read_columns(text)} for text in (was, now))
    for old, name in names.items():
        if name not in kept and (old if old in reused else name) in today:
            refuse_taken_alias(f"column {name}", name, (old,), kept, {*today, old})


def _is_empty(before: OperatorState) -> bool:
    """Whether it has no entries. Those of a canonical savepoint lie in tables, and it has no shards."""
    return bool(before.shards) and not any(before.files)


def keeps_nothing(before: OperatorState) -> bool:
    """Whether it has neither entries nor state without keys, so that nothing is lost with any of its states."""
    return _is_empty(before) and not before.operator_states


def check_another_key(node: KeyedNode, rows: RowType, before: OperatorState) -> None:
    """A key column under another name is renamed, unless its rows still have the old one: then it is another column. Rows without a
    declared type are known to Spark only: the run compares those."""
    columns = node.keyed[0].columns if node.keyed else ()
    if _is_empty(before) or len(columns) != len(before.key):
        return
    recorded = [name for name, _ in before.key]
    reused = {old: name for old, name in _reused_since((rows,), before).items() if name not in recorded}
    _refuse_reused_name(
        node, f"it was keyed by {', '.join(recorded)}", reused, [name for name in recorded if name in columns]
    )
    if sorted(columns) == sorted(recorded):
        return  # `check_key_columns` tells of their order
    for old, new in zip(recorded, columns, strict=True):
        if old != new and rows.field(old) is not None and reused.get(old) != new:
            raise IncompatibleError(
                f"operator {node.uid!r} was keyed by {old!r}, which its rows still have, and is keyed by {new!r} now: state would be "
                f"found under another key; key it by {old!r} again, or if {new!r} is its new name, drop the old column with "
                "transform()"
            )


def let_go(node: KeyedNode, name: str) -> str:
    """How the code says that a state's values may go. Those of a ready-made operator have no names in code."""
    if isinstance(node.columnar, ReadyOperator):
        return BEGIN_ANEW
    if node.columnar is not None:
        return f'give process_arrow forgets=("{name}",)'
    assert node.process_type is not None
    return f'write forgets = ("{name}",) in class {node.process_type.__name__}'


def forgets(node: KeyedNode) -> frozenset[str]:
    """The states of earlier code that an operator lets go of."""
    if node.columnar is not None:
        return node.forgets
    assert node.process_type is not None
    return node.process_type.declarations().forgets


def declared_states(node: KeyedNode) -> dict[str, StateSchema]:
    """The states of an operator as its code declares them, still without ids."""
    if node.columnar is not None:
        return {name: layout.schema() for name, layout in node.columnar.states.items()}
    assert node.process_type is not None
    return schemas(node.process_type, node.uid)


def declared_elements(node: KeyedNode) -> dict[str, DeclaredOperatorState[Any]]:
    """The operator states, which have no key."""
    return {} if node.process_type is None else node.process_type.declarations().operator


def recorded_names(node: KeyedNode, before: OperatorState) -> dict[str, str]:
    """By declared state, its name in the record, if it is there."""
    return names_in(declared_states(node), before.states)


def element_names(node: KeyedNode, before: OperatorState) -> dict[str, str]:
    """By declared operator state, its name in the record, if it is there."""
    return found_names({n: d.aliases for n, d in declared_elements(node).items()}, before.operator_states)


def resolve_states(
    node: KeyedNode, before: OperatorState | None, slot: int = 0, given: Collection[str] = ()
) -> tuple[dict[str, StateSchema], int]:
    """Every state with its id, and the next free id. What was declared before keeps its id, under an alias too.

    `slot` is of the record that the states are for: it introduces types that have changed. Of the states in `given` all
    entries come anew, so they need not fit what is recorded.
    """
    resolved, next_id, _ = compared_states(node, before, slot, given)
    return resolved, next_id


def compared_states(
    node: KeyedNode, before: OperatorState | None, slot: int = 0, given: Collection[str] = ()
) -> tuple[dict[str, StateSchema], int, dict[str, Change]]:
    """As `resolve_states`, with the changes of the states' types."""
    recorded = dict(before.states) if before else {}
    next_id = before.next_state_id if before else FIRST_STATE_ID
    declared = declared_states(node)
    names = names_in(declared, before.states) if before else {}
    left = recorded.keys() - set(names.values())
    resolved: dict[str, StateSchema] = {}
    blocks = changed_blocks(node, before) if before else {}
    changes = {name: change for name, change in blocks.items() if name not in given}
    empty = before is not None and _is_empty(before)
    for name, schema in declared.items():
        old = recorded.pop(names[name]) if name in names else None
        if name != names.get(name, name) and name in left:
            raise _name_of_another(node, name, names[name])
        if old is None or (name in given and old.kind != schema.kind):
            schema = msgspec.structs.replace(schema, id=next_id)
            next_id += TIMER_IDS if schema.kind == "timer" else 1
        elif name in given:
            schema = msgspec.structs.replace(schema, id=old.id)
        else:
            if not empty:
                _refuse_values_missed(node, name, old)
                _refuse_ttl_again(node, name, old, schema)
            _check_same(node, name, old, schema)
            _check_wider(node, name, old, schema)
            _check_ttl_time(node, name, old, schema)
            kept, change = _evolved(node, name, old, schema.value, slot)
            # Nothing is stored as an earlier type: its columns are nobody's, and may come back.
            versions = () if empty else kept.versions
            schema = msgspec.structs.replace(
                schema, id=old.id, version=kept.version, since=kept.since, versions=versions
            )
            if change is not None:
                changes[name] = change
        if old is not None and old.id == schema.id:
            schema = msgspec.structs.replace(schema, former=former_names(name, names[name], old.former))
        resolved[name] = indexed = with_index(schema, old, next_id)
        next_id += indexed.expiry_index == next_id
    # States that the code no longer declares keep their entries: they come back with their declaration, but for exact counts.
    nothing_kept = before is not None and keeps_nothing(before)
    for name, old in recorded.items():
        forgotten = old.forgotten or name in forgets(node) or bool(exact_count(node, name)) or nothing_kept
        resolved[name] = msgspec.structs.replace(old, forgotten=forgotten, undeclared=True)
    return resolved, next_id, changes


def _name_of_another(node: KeyedNode, name: str, recorded_as: str) -> IncompatibleError:
    """A record has one state of a name. The one that an earlier release let go of has its entries still, and keeps its name."""
    return IncompatibleError(
        f"operator {node.uid!r}: state {name!r} would go on from {recorded_as!r} of the checkpoint, which still has another {name!r} that an "
        f'earlier release let go of: give it a third name, with aliases=("{recorded_as}",)'
    )


def exact_count(node: KeyedNode, state: str) -> str:
    """The aggregate of a ready-made operator whose known values are in the state; empty for any other state."""
    return counted_distinct(state) if isinstance(node.columnar, ReadyOperator) else ""


def _refuse_values_missed(node: KeyedNode, name: str, old: StateSchema) -> None:
    """An exact count that comes back would begin at nothing, and take values of before for known ones."""
    if old.forgotten and (count := exact_count(node, name)):
        raise IncompatibleError(
            f"operator {node.uid!r} counts different values in {count!r} again, which an earlier release left out: the count is gone, and the "
            "values that it knew would not count again; give it another name, under which it begins anew, or restore a checkpoint of before"
        )


def with_index(schema: StateSchema, old: StateSchema | None, next_id: int) -> StateSchema:
    """The state with its index of expiries. A ttl that is new to a state begins a sweep over the entries that it has."""
    if old is not None and schema.ttl is None:
        return msgspec.structs.replace(
            schema, expiry_index=old.expiry_index, expiry_sweep=old.expiry_sweep, ttl_time=old.ttl_time
        )
    if schema.ttl is None:
        return schema
    if old is None:
        return msgspec.structs.replace(schema, expiry_index=next_id)
    unknown = old.ttl is None or (schema.ttl_existing and not old.ttl_existing)
    return msgspec.structs.replace(
        schema, expiry_index=old.expiry_index or next_id, expiry_sweep=old.expiry_sweep + unknown
    )


def state_type(node: KeyedNode, name: str, schema: str) -> DeclaredType:
    """The declared type of a state that has values; `schema` is its text."""
    if node.columnar is not None:
        return DeclaredType(schema, node.columnar.states[name].with_aliases)
    assert node.process_type is not None
    return type_of(node.process_type, node.uid, name)


def _evolved(
    node: KeyedNode, name: str, old: StateSchema, now: str, slot: int
) -> tuple[StateSchema, Change | None]:
    """The recorded state under the type `now` of the code."""
    if old.value == now and not old.evolved:
        return old, None
    declared = state_type(node, name, now)
    try:
        refuse_renamed_back(old, declared)
        return evolved(old, declared, slot)
    except RefusedError as refusal:
        if old.value == now:
            raise IncompatibleError(f"operator {node.uid!r}, state {name!r}: {refusal}") from None
        changed = _changed(node, name, "type", old.value, now, f" ({refusal})")
        if not old.since or all(version.value != now for version in old.versions):
            raise changed from None
        below = _unreadable_since(old, declared)
        newer = NewerTypeError(
            f"{changed}; this is an earlier type of the state, so to go back to its code, restore a checkpoint below {below}, which "
            "introduced a type that it cannot read"
        )
        newer.below = below
        raise newer from None


def _unreadable_since(old: StateSchema, declared: DeclaredType) -> int:
    """The first record that has values which this code cannot read. The state once had this code's type."""
    types = sorted(old.versions, key=lambda version: version.slot)
    since = old.since
    for at in reversed(range(len(types))):
        if types[at].value == declared.schema or all(
            _reads(declared, old, types[: n + 1]) for n in range(at + 1)
        ):
            break
        since = types[at].slot
    return since


def _reads(declared: DeclaredType, state: StateSchema, types: Sequence[SchemaVersion]) -> bool:
    """Whether code reads the last of these types, which follow each other."""
    last = types[-1]
    then = StateSchema(
        id=0, kind=state.kind, value=last.value, version=last.number, versions=tuple(types[:-1])
    )
    try:
        refuse_renamed_back(then, declared)
        evolved(StateSchema(id=0, kind=state.kind, value=last.value), declared, 0)
    except (RefusedError, CorruptError):
        return False
    return True


class NewerTypeError(IncompatibleError):
    """Newer code has changed the type of a state. This code still has the earlier type, and cannot read what the newer code
    wrote."""

    below = 0
    """The record that introduced a type which this code cannot read. Every checkpoint below it can be restored for this
    code."""


def changed_elements(node: KeyedNode, before: OperatorState) -> dict[str, Change]:
    """The changes of the types of operator states. Raises IncompatibleError for changes that do not fit."""
    changes = {}
    for name, old_name in element_names(node, before).items():
        old, declaration = before.operator_states[old_name], declared_elements(node)[name]
        if old.kind != declaration.kind:
            raise _changed(node, name, "kind", old.kind, declaration.kind)
        _, change = _evolved(node, name, _of_elements(old), serializer_for(declaration.type).schema, 0)
        if change is not None:
            changes[name] = change
    return changes


def todays_elements(node: KeyedNode, before: OperatorState) -> dict[str, tuple[tuple[bytes, ...], ...]]:
    """The elements that the record has for each declared operator state, as today's type stores them."""
    elements = {}
    for name, old_name in element_names(node, before).items():
        old, declaration = before.operator_states[old_name], declared_elements(node)[name]
        serializer = serializer_for(declaration.type)
        schema, change = _evolved(node, name, _of_elements(old), serializer.schema, 0)
        elements[name] = old.parts
        if change is not None:
            loads, dumps = readers(state_type(node, name, serializer.schema), schema)[0], serializer.dumps
            try:
                elements[name] = tuple(tuple(dumps(loads(raw)) for raw in part) for part in old.parts)
            except StateflowError as error:
                raise type(error)(f"operator {node.uid!r}, state {name!r}: {error}") from error
    return elements


def _of_elements(state: OperatorListState) -> StateSchema:
    return StateSchema(id=0, kind=state.kind, value=state.schema)


def _check_same(node: KeyedNode, name: str, old: StateSchema, new: StateSchema) -> None:
    for what, before, now in (
        ("kind", old.kind, new.kind),
        ("time", old.value, new.value) if old.kind == "timer" else ("", "", ""),
        ("map key type", old.map_key, new.map_key),
        ("order of entries", _entries(old), _entries(new)),
    ):
        if before != now:
            raise _changed(node, name, what, before, now)


def _check_wider(node: KeyedNode, name: str, old: StateSchema, new: StateSchema) -> None:
    """A state may get namespaces, and a timer many times per key. Neither may lose them, since entries may lie under them."""
    if old.namespace and old.namespace != new.namespace:
        raise _changed(node, name, "namespace", old.namespace, new.namespace or "none")
    if old.many and not new.many:
        raise _changed(node, name, "number of times per key", "many", "one")


def _refuse_ttl_again(node: KeyedNode, name: str, old: StateSchema, new: StateSchema) -> None:
    """Entries of before a ttl was taken out still have their expiries. Nobody can tell them from those that a ttl of today would write."""
    if new.ttl is not None and old.ttl is None and old.expiry_index:
        raise IncompatibleError(
            f"operator {node.uid!r}, state {name!r}: an earlier release took its ttl out, so that what it had lives on, and with a ttl now "
            f"entries of before would expire at once: leave out its ttl, restore a checkpoint of before it was taken out, or {_anew(node, name)}"
        )


def _check_ttl_time(node: KeyedNode, name: str, old: StateSchema, new: StateSchema) -> None:
    """An entry has the instant at which it expires, and not by which time: by the other one, it would leave at any moment or never."""
    if new.ttl is None or old.ttl is None or old.ttl_time == new.ttl_time:
        return
    raise IncompatibleError(
        f"operator {node.uid!r}, state {name!r}: its ttl counted {old.ttl_time} time and counts {new.ttl_time} time now, by which what is "
        f"stored would expire too early or never: write time={old.ttl_time!r} in its ttl, or {_anew(node, name)}"
    )


def _anew(node: KeyedNode, name: str) -> str:
    if isinstance(node.columnar, ReadyOperator):
        return BEGIN_ANEW
    return f"if its values may go, give the state another name and {let_go(node, name)}"


def _changed(
    node: KeyedNode, name: str, what: str, before: str, now: str, why: str = ""
) -> IncompatibleError:
    migrate = (
        ", or give the state a function migrate= that converts"
        if what == "type" and node.columnar is None
        else ""
    )
    if isinstance(node.columnar, ReadyOperator):
        return IncompatibleError(
            f"operator {node.uid!r} keeps {before} in its {name!r}, and is to keep {now} now{why}: put the {what} of its rows back, or give the "
            "operator another uid, under which it begins anew"
        )
    return IncompatibleError(
        f"operator {node.uid!r}, state {name!r}: its {what} was {before} and is {now} now{why}: put the {what} back{migrate}; "
        f"or, if its values may go, give the changed state another name and {let_go(node, name)}"
    )


def _entries(schema: StateSchema) -> str:
    """The columns that tell the entries of a key apart in a columnar state."""
    names = [*(["time"] if schema.timed else []), "key", *(f"{name} ({kind})" for name, kind in schema.by)]
    return ", ".join(names)


def check_key_columns(uid: str, columns: tuple[str, ...], before: OperatorState) -> None:
    """Compares how many there are, and their order; `check_key` compares their types once these are known."""
    recorded = tuple(name for name, _ in before.key)
    if columns != recorded and sorted(columns) == sorted(recorded):
        raise IncompatibleError(
            f"operator {uid!r} was keyed by {', '.join(recorded)} and is keyed by {', '.join(columns)} now: state would be "
            "found under another key; key by the columns in their old order"
        )
    if len(columns) != len(before.key):
        raise IncompatibleError(
            f"operator {uid!r} was keyed by {_key(before.key)} and is keyed by "
            f"{', '.join(columns) or 'no column'} now: state cannot be found under another key; give it a new uid"
        )


def check_key(uid: str, types: tuple[str, ...], before: OperatorState) -> None:
    """The types of the key must be what they were: its bytes and its key group depend on them."""
    if before.key_types != types:
        raise IncompatibleError(
            f"operator {uid!r} was keyed by {_key(before.key)} and its key is ({', '.join(types)}) now: state cannot be "
            "found under another key; give the operator a new uid, or cast the key back"
        )


def _key(key: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name} ({kind})" for name, kind in key) or "no column"


def indexes(states: Mapping[str, StateSchema]) -> dict[str, StateSchema]:
    """The states that have an index of expiries."""
    return {name: schema for name, schema in states.items() if schema.expiry_index}


def begun_shards(
    node: KeyedNode, before: OperatorState, states: Mapping[str, StateSchema]
) -> tuple[tuple[Shard, ...], ...]:
    """The operator's shards, as this code begins with them; `states` are those that it has resolved.

    When a shard is next due, earlier code has reckoned from its own states and options. Where that may be wrong for this code, shards are to
    be opened at once, also those without rows, and say it anew: a sweep begins, a state is declared again, or rows wait less long.
    """
    old = {schema.id: schema for schema in before.states.values()}
    again = [s for s in states.values() if s.id in old and old[s.id].undeclared and not s.undeclared]
    begun = [s for s in states.values() if s.expiry_sweep > (old[s.id].expiry_sweep if s.id in old else 0)]
    expiries = {s.ttl_time for s in (*begun, *again) if s.expiry_index}
    timers = {s.value if s.kind == "timer" else "event" for s in again if s.kind == "timer" or s.timed}
    if fixed_options(node).get(LATENESS) != before.options.get(LATENESS):
        timers.add("event")
    if not expiries and not timers:
        return before.shards

    def due(shard: Shard) -> Shard:
        return msgspec.structs.replace(
            shard,
            next_event_timer=AT_ONCE if "event" in timers else shard.next_event_timer,
            next_processing_timer=AT_ONCE if "processing" in timers else shard.next_processing_timer,
            next_event_expiry=AT_ONCE if "event" in expiries else shard.next_event_expiry,
            next_processing_expiry=AT_ONCE if "processing" in expiries else shard.next_processing_expiry,
        )

    return tuple(tuple(due(shard) if shard.files else shard for shard in task) for task in before.shards)


def as_begun(nodes: Iterable[KeyedNode], record: Record) -> Record:
    """The record with the shards as a run of this code begins with them, so that it tells whether that would fire a timer."""
    operators = dict(record.operators)
    for node in nodes:
        if (before := operators.get(node.uid)) is not None:
            states, _ = resolve_states(node, before)
            operators[node.uid] = msgspec.structs.replace(before, shards=begun_shards(node, before, states))
    return msgspec.structs.replace(record, operators=operators)


def state_ids(states: Mapping[str, StateSchema]) -> dict[str, int]:
    return {name: schema.id for name, schema in states.items()}


def where_to_go_back(error: NewerTypeError, checkpoints: Collection[int]) -> str:
    """Which of the job's checkpoints the code can read, as the end of a sentence."""
    older = [slot for slot in checkpoints if slot < error.below]
    if older:
        return f": the newest of them is checkpoint:{max(older)}"
    return ": none of them is kept, so restore a savepoint from before it" if checkpoints else ""
