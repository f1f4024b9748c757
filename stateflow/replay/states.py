"""Keyed state of two checkpoints, compared key by key. Shards that consist of the same files are not read.

`reading/diff.py` compares entry by entry, and of two shards it reads only the files that differ. So it does not know the number
of keys, which `max_changed` needs, nor the other states of a key, which a report shows. A replay reads its
shards as a whole anyway to count the keys, and has seen by then which of them differ: on top of a diff this would be more code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from stateflow.format.encoding import NAMESPACE, PREFIX_WIDTH, TIME_WIDTH, prefix
from stateflow.format.records import OperatorListState, OperatorState, Shard
from stateflow.format.state_names import found_names, names_in
from stateflow.reading.key_state import EntriesShard
from stateflow.reading.query import LookupResult, StateReader, Target
from stateflow.reading.stored_entries import EntryName
from stateflow.replay.rows import DIFFERENT, GONE, NEW
from stateflow.state.values.plain import comparable, jsonable

SHOWN = 100
"""Entries of a list or a map that a change shows."""
_PART = 1000
"""Changes that are in memory at once, beside those that are kept."""
OPERATOR_GONE, STATE_GONE = "the operator is gone", "the state is gone"
OTHER_KEYS = "its key has other types than before"
OTHER_NAMESPACES = "its namespaces have other types than before"


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One key whose state is not as it was."""

    kind: str
    """gone, new, different"""
    key: Any
    """With its namespace in brackets, if it has one."""
    before: Any
    after: Any


@dataclass(frozen=True)
class StateChanges:
    """How one state differs from what it was."""

    operator: str
    state: str
    keys: int = 0
    """Keys that were looked at, each in each of its namespaces: those of shards with other files than before."""
    counts: dict[str, int] = field(default_factory=dict)
    changes: tuple[KeyChange, ...] = ()
    """The first ones."""
    note: str = ""
    """Why it could not be compared key by key."""
    key_columns: tuple[str, ...] = ()
    """What the operator's key consists of."""

    @property
    def changed(self) -> int:
        return sum(self.counts.values())


HearChanges = Callable[[StateChanges], object]
"""Hears of changes of a state. It is given a part of them, and no counts."""


def state_changes(
    before: StateReader, after: StateReader, most: int, hear: HearChanges = lambda part: None
) -> Iterator[StateChanges]:
    """Every state of `after` beside the same one of `before`; `most` changes of each are kept. `hear` gets all of them, in parts."""
    for uid in before.record.operators:
        if uid not in after.record.operators:
            yield StateChanges(uid, "", note=OPERATOR_GONE)
    for uid, operator in after.record.operators.items():
        old = before.record.operators.get(uid)
        if old is None:
            yield StateChanges(uid, "", note="the operator is new")
            continue
        if old.key_types != operator.key_types:
            yield StateChanges(uid, "", note=OTHER_KEYS)
            continue
        former = names_in(operator.states, old.states)
        for name in sorted(old.states.keys() - former.values()):
            yield StateChanges(uid, name, note=STATE_GONE)
        for name in sorted(operator.states):
            if name not in former:
                yield StateChanges(uid, name, note="the state is new")
            elif old.states[former[name]].namespace != operator.states[name].namespace:
                yield StateChanges(uid, name, note=OTHER_NAMESPACES)
            else:
                yield _compared(before, after, uid, (former[name], name), most, hear)
        yield from _without_keys(uid, old.operator_states, operator.operator_states, hear)


def _without_keys(
    uid: str,
    before: Mapping[str, OperatorListState],
    after: Mapping[str, OperatorListState],
    hear: HearChanges,
) -> Iterator[StateChanges]:
    """State of subtasks, which is compared as a whole."""
    former = found_names({name: state.former for name, state in after.items()}, before)
    for name in sorted(before.keys() - former.values()):
        yield StateChanges(uid, name, note=STATE_GONE)
    for name, state in sorted(after.items()):
        if name not in former:
            yield StateChanges(uid, name, note="the state is new")
            continue
        alike = sorted(map(sorted, before[former[name]].parts)) == sorted(map(sorted, state.parts))
        if not alike:
            hear(StateChanges(uid, name, changes=(KeyChange(DIFFERENT, None, None, None),)))
        yield StateChanges(uid, name, counts={} if alike else {DIFFERENT: 1}, note="it belongs to subtasks")


def _compared(
    before: StateReader,
    after: StateReader,
    uid: str,
    names: tuple[str, str],
    most: int,
    hear: HearChanges,
) -> StateChanges:
    """`names`: what the state is called before and after."""
    former, name = names
    counts: dict[str, int] = {}
    changes: list[KeyChange] = []
    part: list[KeyChange] = []
    keys = 0

    def hand_over() -> None:
        hear(StateChanges(uid, name, changes=tuple(part)))
        part.clear()

    for key, namespace, stored in _keys(before, after, uid, names):
        keys += 1
        if stored is None:
            continue
        old = before.look_up_in(stored[0], uid, former, key, namespace=namespace)
        new = after.look_up_in(stored[1], uid, name, key, namespace=namespace)
        if old.found == new.found and comparable(old.json) == comparable(new.json):
            continue  # the same value, stored in another way; or expired in both
        kind = DIFFERENT if old.found and new.found else GONE if old.found else NEW
        counts[kind] = counts.get(kind, 0) + 1
        shown = jsonable(key) if namespace is None else EntryName(key, namespace).text
        part.append(KeyChange(kind, shown, _beginning(old), _beginning(new)))
        changes += part[-1:] if len(changes) < most else []
        if len(part) == _PART:
            hand_over()
    if part:
        hand_over()
    columns = tuple(column for column, _ in after.record.operators[uid].key)
    return StateChanges(uid, name, keys, counts, tuple(changes), key_columns=columns)


def _beginning(result: LookupResult) -> Any:
    """What a change shows of it."""
    if not result.found:
        return None
    shown = result.json
    if isinstance(shown, dict) and result.what == "map":
        return dict(islice(shown.items(), SHOWN))
    return shown[:SHOWN] if isinstance(shown, list) and result.what == "list" else shown


def _keys(
    before: StateReader, after: StateReader, uid: str, names: tuple[str, str]
) -> Iterator[tuple[Any, Any, tuple[EntriesShard, EntriesShard] | None]]:
    """Each key with entries on a side, in each of its namespaces, and all its entries on each side; None where they are the same bytes."""
    old, new = before.target(uid, names[0]), after.target(uid, names[1])
    groups = _groups_to_read(before.record.operators[uid], after.record.operators[uid])
    for group in groups:
        ours = _by_key(before, old, group)
        theirs = _by_key(after, new, group)
        for place in dict.fromkeys([*ours, *theirs]):
            key, end = old.codec.decode(place, 0)
            held, holds = ours.get(place, []), theirs.get(place, [])
            stored = (
                None
                if held == holds
                else (_as_stored(old, group, place, held), _as_stored(new, group, place, holds))
            )
            yield key, _namespace(old, place, end)[0], stored


def _as_stored(
    target: Target, group: int, place: bytes, entries: Sequence[tuple[bytes, bytes]]
) -> EntriesShard:
    """The entries of a key and namespace as they are in the key group. They are at hand, and a look-up in the state would go through those
    of every other key."""
    begin, width = prefix(group, target.state_id), TIME_WIDTH if target.schema.timed else 0
    return EntriesShard([(begin + part[:width] + place + part[width:], raw) for part, raw in entries])


def _namespace(target: Target, stored: bytes, at: int) -> tuple[Any, int]:
    """The namespace that stands behind a key, if one does, and where it ends."""
    if target.namespace_codec is None or stored[at : at + 1] != NAMESPACE:
        return None, at
    return target.namespace_codec.decode(stored, at + 1)


def _by_key(reader: StateReader, target: Target, group: int) -> dict[bytes, list[tuple[bytes, bytes]]]:
    """The entries of a key group by their key and namespace, each with what else is in its key."""
    begin = PREFIX_WIDTH + (TIME_WIDTH if target.schema.timed else 0)
    found: dict[bytes, list[tuple[bytes, bytes]]] = {}
    ends = prefix(group, target.state_id), prefix(group, target.state_id + 1)
    for full, raw in reader.entries(target.operator, group, *ends):
        end = _namespace(target, full, target.codec.decode(full, begin)[1])[1]
        found.setdefault(full[begin:end], []).append((full[PREFIX_WIDTH:begin] + full[end:], raw))
    return found


def _groups_to_read(before: OperatorState, after: OperatorState) -> Iterator[int]:
    """The key groups whose shards do not consist of the same files."""
    same = {*map(_shape, before.all_shards)} & {*map(_shape, after.all_shards)}
    for shard in after.all_shards:
        if _shape(shard) not in same:
            yield from range(shard.first, shard.last + 1)


def _shape(shard: Shard) -> tuple[Any, ...]:
    return shard.first, shard.last, frozenset(ref.place for ref in shard.files)
