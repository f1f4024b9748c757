"""The states of a job's kept checkpoints, each as user code saw it then, without a database.

What had expired by a record's own time is hidden, as it was from the batch: by the processing time of the batch, or by its
watermark.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec

from stateflow.errors import CorruptError, NotFoundError, UsageError
from stateflow.format.records import Record
from stateflow.format.state_names import names_along
from stateflow.reading.files.shard_files import ShardFiles, StateFiles
from stateflow.reading.query import LIMIT, LookupResult, StateReader, Target
from stateflow.reading.snapshots import ReaderContext
from stateflow.state.keys.text import forms_of_key

READERS = 32
"""Requests at once to a store over a network."""
DISK_READERS = 4
"""Records read at once from a disk. Each waits until the disk keeps its name, which on a busy machine takes a millisecond."""

_FIRST = 10
"""Slots that a sentence names."""


class NoSuchEntriesError(UsageError):
    """A record's state cannot have the entries that are asked for: its keys, map keys or namespaces are of another kind. Whoever looks
    through many records takes it for nothing, and no other refusal."""


@dataclass(frozen=True)
class KeyOfState:
    """What a look-up asks for. Keys are texts, as the command line takes them."""

    operator: str
    state: str
    key: str
    map_key: str | None = None
    namespace: str | None = None
    limit: int | None = LIMIT
    renamed: Mapping[int, str] = field(default_factory=dict, hash=False)
    """By slot, what the state was called in records that have another name for it."""

    def name_in(self, record: Record) -> str:
        return self.renamed.get(record.slot, self.state)

    def across(self, records: Sequence[Record]) -> KeyOfState:
        """The same, which knows the state's other names in these records."""
        return replace(self, renamed=other_names(records, self.operator, self.state))


@dataclass
class PastStates:
    """Look-ups in any record of a job. Nobody pins the records: what is collected meanwhile is named."""

    context: ReaderContext
    look_ups: int = 0
    files: StateFiles = field(init=False)
    _counting: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        self.files = self.context.files()

    @property
    def readers(self) -> int:
        """Threads that look at once: with a store over a network they wait most of the time."""
        return 1 if self.context.store().local_root is not None else READERS

    def reader(self, record: Record, *, at: Record | None = None) -> StateReader:
        """Of the state of `record`. With `at` it hides what had expired by the time of that record."""
        clock = at or record
        seen = msgspec.structs.replace(record, watermark=clock.watermark)
        return file_reader(replace(self.context, clock=lambda: clock.now or clock.at), seen, self.files)

    def look_up(self, record: Record, asked: KeyOfState, *, at: Record | None = None) -> LookupResult | None:
        """What the state held for the key; None where the record has no such state. NoSuchEntriesError where it has other keys."""
        with self._counting:
            self.look_ups += 1
        reader = self.reader(record, at=at)
        try:
            target = reader.target(asked.operator, asked.name_in(record))
            key, map_key, namespace = _checked(target, asked)
        except NotFoundError:
            return None
        except UsageError as error:
            raise NoSuchEntriesError(str(error)) from None
        look_up = partial(
            reader.look_up, asked.operator, asked.name_in(record), key, map_key, namespace=namespace
        )
        result = look_up(limit=asked.limit)
        # Behind very many expired entries there may be live ones: a history may not call them deleted.
        return look_up(limit=None) if result.more and not result.found else result

    def target(self, record: Record, asked: KeyOfState) -> Target:
        """The state in this record, with the key, map key and namespace checked against it."""
        target = self.reader(record).target(asked.operator, asked.name_in(record))
        _checked(target, asked)
        return target


def _checked(target: Target, asked: KeyOfState) -> tuple[Any, Any, Any]:
    """The key, map key and namespace, which fit the state; else UsageError."""
    key: Any = target.key_of_text(asked.key)
    namespace = None if asked.namespace is None else target.namespace_of_text(asked.namespace)
    target.place(key, namespace)
    map_key = None if asked.map_key is None else target.map_key_of_text(asked.map_key)
    if map_key is not None:
        target.entry(map_key)
    return key, map_key, namespace


def nothing_stored(record: Record, asked: KeyOfState) -> str:
    """The sentence for a key under which no checkpoint has anything. The record has the state."""
    operator = record.operators[asked.operator]
    schema = operator.states[asked.name_in(record)]
    parts = {"key": asked.key, "map key": asked.map_key, "namespace": asked.namespace}
    under = " and ".join(f"{name} {text}" for name, text in parts.items() if text is not None)
    namespaces = (
        f"; state {asked.state!r} has namespaces: name one with --namespace"
        if schema.namespace and asked.namespace is None
        else ""
    )
    return (
        f"no checkpoint that was looked at has anything under {under}: a key of operator {asked.operator!r} is "
        f"{forms_of_key(operator.key)}{namespaces}"
    )


def with_other_keys(records: Sequence[Record], newest: Record, operator: str) -> tuple[int, ...]:
    """The slots whose operator has another type of key than in `newest`: there the same text names another key, if any."""
    types = newest.operators[operator].key_types
    return tuple(
        record.slot
        for record in records
        if operator in record.operators and record.operators[operator].key_types != types
    )


def other_names(records: Sequence[Record], operator: str, state: str) -> dict[int, str]:
    """By slot, what a state is called in those of the records, which ascend, that have another name for it. The records on both sides
    of the newest one that has `state` are followed by what renamed states say of their earlier names."""
    having = [record.operators[operator].states for record in records if operator in record.operators]
    slots = [record.slot for record in records if operator in record.operators]
    newest = next((at for at in reversed(range(len(having))) if state in having[at]), None)
    if newest is None:
        return {}
    found: dict[int, str] = {}
    for away in (range(newest, -1, -1), range(newest, len(having))):
        names = names_along([having[at] for at in away], state)
        found |= {slots[at]: name for at, name in zip(away, names, strict=True) if name and name != state}
    return found


def notes_on_records(other_keys: Sequence[int], renamed: Mapping[int, str]) -> list[str]:
    """In which records the key was not looked up, and where the state has another name, as sentences."""
    notes = []
    if other_keys:
        notes.append(
            f"in checkpoint {slots_text(other_keys)} the operator had keys of another type, and the key was not looked up there"
        )
    for name in dict.fromkeys(renamed.values()):
        slots = [slot for slot, other in sorted(renamed.items()) if other == name]
        where = f"checkpoint {slots[0]}" if len(slots) == 1 else f"checkpoints {slots[0]} to {slots[-1]}"
        notes.append(f"in {where} the state is called {name!r}")
    return notes


def slots_text(slots: Sequence[int]) -> str:
    return ", ".join(map(str, slots[:_FIRST])) + ("..." if len(slots) > _FIRST else "")


def number_of_checkpoints(records: Sequence[Record]) -> int:
    """Without restores and other edits, as the retention counts."""
    return sum(record.kind == "checkpoint" for record in records)


def file_reader(context: ReaderContext, record: Record, files: StateFiles | None = None) -> StateReader:
    """Reads state where its files are, so there is nothing to close. Nobody pins the record."""
    own = files or context.files()
    return context.reader(record, read_files=lambda shard: ShardFiles(own, shard))


def gone(error: Exception) -> bool:
    """Whether a look-up failed since the checkpoint's files are not there any more."""
    return isinstance(error, CorruptError | NotFoundError) and "is missing" in str(error)
