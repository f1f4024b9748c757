"""When it went wrong: the first kept checkpoint in which a predicate holds.

A binary search needs a predicate that stays true once it is. It finds a checkpoint in which the predicate holds while it does not in
the one before; a scan looks at all and finds the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec

from stateflow.format.records import OperatorState, Record
from stateflow.reading.diff import ComparedSnapshot, Differences, EntryChange
from stateflow.reading.past_states import (
    KeyOfState,
    NoSuchEntriesError,
    PastStates,
    nothing_stored,
    number_of_checkpoints,
    other_names,
    with_other_keys,
)
from stateflow.reading.predicates import Predicate
from stateflow.reading.snapshots import ReaderContext
from stateflow.reading.stored_entries import EntryName
from stateflow.state.keys.text import text_of_key
from stateflow.state.values.plain import jsonable

_AT_ONCE = 1024
"""Changes for which a condition is evaluated in one go: for one alone it takes a hundred times as long as to read it."""


@dataclass(frozen=True, slots=True)
class FirstBad:
    """The answer of a bisection. `record` is None when the predicate holds nowhere that was looked at."""

    record: Record | None
    before: Record | None
    """The kept checkpoint before it; None when it is the first one that is kept."""
    value: Any
    previous: Any
    """As `query` shows them."""
    entry: EntryName | None
    """Of a search over a whole state: whose entry was found, and which."""
    checkpoints: int
    edits: int
    """As in a history: restores, rescales and erasures are looked at, and not counted as checkpoints."""
    look_ups: int
    """Look-ups of the key, each in a record; of a search over a whole state the checkpoints that were compared."""
    scanned: bool
    other_keys: tuple[int, ...] = ()
    """As in a history."""
    renamed: Mapping[int, str] = field(default_factory=dict)
    """As in a history."""
    other_types: tuple[int, ...] = ()
    """Checkpoints in which the type of the state lacks what the condition needs; they are not looked at."""
    nothing: str = ""
    """Where no look-up found anything under the key, that sentence."""

    @property
    def key_text(self) -> str:
        """The key as the command line writes it."""
        return "" if self.entry is None else text_of_key(self.entry.key)

    @property
    def json(self) -> dict[str, Any]:
        """As a document."""
        record, before = self.record, self.before
        return {
            "checkpoint": record.slot if record else None,
            "at": record.at if record else None,
            "value": jsonable(self.value),
            "before": before.slot if before else None,
            "previous": jsonable(self.previous),
            **({} if self.entry is None else {"key": self.key_text, **self.entry.json}),
            "look_ups": self.look_ups,
            "checkpoints": self.checkpoints,
            "edits": self.edits,
            "scanned": self.scanned,
        }


def first_of_key(
    records: Sequence[Record], states: PastStates, asked: KeyOfState, predicate: Predicate, *, scan: bool
) -> FirstBad:
    """In these records, which ascend."""
    values: dict[int, Any] = {}
    found_any = False
    asked = asked.across(records)

    def value(at: int) -> Any:
        nonlocal found_any
        if at < 0:
            return None
        if at not in values:
            try:
                result = states.look_up(records[at], asked)
            except NoSuchEntriesError:
                result = None  # the state had no such entries then
            is_there = result is not None and result.found
            found_any = found_any or is_there
            values[at] = result.value if result is not None and is_there else None
        return values[at]

    def holds(at: int) -> bool:
        return predicate.holds(value(at), value(at - 1) if predicate.uses_previous else None)

    if records:
        states.target(records[-1], asked)
    others = with_other_keys(records, records[-1], asked.operator) if records else ()
    records = [record for record in records if record.slot not in others]
    count, scanned = len(records), scan or predicate.uses_previous
    if scanned:
        # The first kept checkpoint has none before it, so nothing is known of what came before.
        first = int(predicate.uses_previous)
        found = next((at for at in range(first, count) if holds(at)), count)
    else:
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if holds(middle):
                high = middle
            else:
                low = middle + 1
        found = low
    there = found < count
    return FirstBad(
        record=records[found] if there else None,
        before=records[found - 1] if there and found else None,
        value=values.get(found) if there else None,
        previous=values.get(found - 1) if there and found else None,
        entry=None,
        checkpoints=(checkpoints := number_of_checkpoints(records)),
        edits=count - checkpoints,
        other_keys=others,
        renamed=asked.renamed,
        look_ups=states.look_ups,
        scanned=scanned,
        nothing="" if found_any or not records else nothing_stored(records[-1], asked),
    )


def first_of_any(
    records: Sequence[Record], context: ReaderContext, operator: str, state: str, predicate: Predicate
) -> FirstBad:
    """Over all keys of a state: the whole state of the first record, then what each further record changed. Of an entry that went
    the value is None."""
    others = with_other_keys(records, records[-1], operator)
    renamed = other_names(records, operator, state)
    records = [
        _with_name(record, operator, renamed.get(record.slot, state), state)
        for record in records
        if record.slot not in others
    ]
    compared = 0

    def answer(at: int | None, change: EntryChange | None) -> FirstBad:
        count = number_of_checkpoints(records)
        return FirstBad(
            record=None if at is None else records[at],
            before=records[at - 1] if at else None,
            value=change.after if change else None,
            previous=change.before if change else None,
            entry=EntryName(change.key, change.namespace, change.part) if change else None,
            checkpoints=count,
            edits=len(records) - count,
            look_ups=compared,
            scanned=True,
            other_keys=others,
            renamed=renamed,
        )

    for at, record in enumerate(records):
        if record.operators.get(operator) is None or state not in record.operators[operator].states:
            continue
        if not at and predicate.uses_previous:
            continue  # nobody knows what came before
        compared += 1
        before = records[at - 1] if at else _emptied(record)
        changes = _changes(before, record, context, operator, state)
        while chunk := list(islice(changes, _AT_ONCE)):
            meets = predicate.of_each([(change.after, change.before) for change in chunk])
            if found := next((change for change, meet in zip(chunk, meets, strict=False) if meet), None):
                return answer(at, found)
    return answer(None, None)


def _changes(
    before: Record, record: Record, context: ReaderContext, operator: str, state: str
) -> Iterator[EntryChange]:
    if operator not in before.operators or state not in before.operators[operator].states:
        before = _emptied(record)
    differences = Differences(
        ComparedSnapshot(f"checkpoint {before.slot}", before, context),
        ComparedSnapshot(f"checkpoint {record.slot}", record, context),
        operators=[operator],
        states=[state],
        look_up=True,
    )
    return differences.changes()


def _with_name(record: Record, operator: str, former: str, name: str) -> Record:
    """The record as if its state had always had its later name."""
    if former == name:
        return record
    owner = record.operators[operator]
    states = {name if each == former else each: schema for each, schema in owner.states.items()}
    owner = msgspec.structs.replace(owner, states=states)
    return msgspec.structs.replace(record, operators={**record.operators, operator: owner})


def _emptied(record: Record) -> Record:
    """The same declarations without any state."""

    def bare(owner: OperatorState) -> OperatorState:
        shards = tuple(
            tuple(msgspec.structs.replace(shard, files=()) for shard in subtask) for subtask in owner.shards
        )
        return msgspec.structs.replace(owner, shards=shards)

    return msgspec.structs.replace(
        record, operators={uid: bare(owner) for uid, owner in record.operators.items()}
    )
