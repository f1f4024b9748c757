"""All that an operator keeps of one key: its entries as they are stored, and what they say as `query` shows it."""

from __future__ import annotations

import shlex
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from stateflow.errors import NotFoundError
from stateflow.format.encoding import (
    EMPTY_NAMESPACE,
    NAMESPACE,
    PREFIX_WIDTH,
    TIME_WIDTH,
    after,
    split,
    state_range,
)
from stateflow.format.keygroups import xxhash64
from stateflow.format.records import FileRef, OperatorState, Owner, Record, Shard
from stateflow.reading.past_states import with_other_keys
from stateflow.reading.query import LookupResult, StateReader, Target, key_from_text, unknown_operator
from stateflow.reading.stored_entries import StateEntries
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.keys.text import text_of_key
from stateflow.storage.cache import FileCache

Entries = Sequence[tuple[bytes, bytes]]
_IN_MEMORY = FileRef(name="entries", size=0, xxh3="0" * 16, data=b"")


class EntriesShard:
    """Sorted entries as a shard that is only read."""

    def __init__(self, entries: Entries) -> None:
        self._keys = [key for key, _ in entries]
        self._entries = dict(entries)

    def get(self, key: bytes) -> bytes | None:
        return self._entries.get(key)

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        found = self._keys[bisect_left(self._keys, begin) : bisect_left(self._keys, end)]
        return iter([(key, self._entries[key]) for key in found])

    def scan_parts(self, begin: bytes, end: bytes, at: int, part: bytes) -> Iterator[tuple[bytes, bytes]]:
        return (entry for entry in self.scan(begin, end) if entry[0].startswith(part, at))

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True)
class KeyState:
    """The state of one key, at a moment: what had expired by then is hidden, as user code does not see it."""

    uid: str
    operator: OperatorState
    key: Any
    entries: Entries
    now: int
    watermark: int | None

    @property
    def unborn(self) -> KeyState:
        """The same declarations before anything was stored, for this key or without a key."""
        return replace(self, entries=(), operator=msgspec.structs.replace(self.operator, operator_states={}))

    @cached_property
    def _reader(self) -> StateReader:
        shard = Shard(0, self.operator.max_parallelism - 1, "memory", files=(_IN_MEMORY,))
        operator = msgspec.structs.replace(self.operator, shards=((shard,),))
        record = Record(
            kind="checkpoint", job="", slot=0, epoch=0, writer="", owner=Owner(run=""), watermark=self.watermark,
            operators={self.uid: operator},
        )  # fmt: skip
        entries = EntriesShard(self.entries)
        nowhere = Path()
        return StateReader(
            _nothing,
            record,
            cache=FileCache(nowhere, 0),
            scratch=nowhere,
            open_shard=_nothing,
            clock=lambda: self.now,
            read_files=lambda shard: entries,
        )

    @property
    def subtask(self) -> int:
        """The one that has the key; 0 if it cannot be told."""
        codec = KeyCodec([kind for _, kind in self.operator.key])
        key = tuple(self.key) if len(self.operator.key) > 1 else self.key
        group = xxhash64(codec.decode(codec.encode(key), 0)[0]) % self.operator.max_parallelism
        owners = (at for at, (first, last) in enumerate(self.operator.assignment) if first <= group <= last)
        return next(owners, 0)

    def target(self, state: str) -> Target:
        return self._reader.target(self.uid, state)

    def look_up(self, state: str, namespace: Any = None) -> LookupResult:
        return self._reader.look_up(self.uid, state, self.key, namespace=namespace, limit=None)

    def namespaces(self, state: str) -> list[Any]:
        """The namespaces of a state in which the key has something."""
        target = self.target(state)
        if target.namespace_codec is None:
            return []
        named, begin = StateEntries(target), target.place(self.key)[1][:-1]
        found = (named.name(key).namespace for key, _ in self.entries if key.startswith(begin))
        return list(dict.fromkeys(each for each in found if each is not None))

    def values(self) -> dict[str, Any]:
        """What each state and timer has, as JSON; what has nothing is left out. A namespace stands in brackets behind the name."""
        values = {}
        for state in self.operator.states:
            for namespace in (None, *self.namespaces(state)):
                result = self.look_up(state, namespace)
                if result.found:
                    name = state if namespace is None else f"{state}[{text_of_key(namespace)}]"
                    values[name] = result.json
        return values


def _nothing(name: str) -> Any:
    raise AssertionError("all entries are in memory")


def key_state(reader: StateReader, uid: str, key: Any, *, now: int, watermark: int | None) -> KeyState:
    """What the reader's record has of the key; an operator that it does not have raises NotFoundError."""
    operator = reader.record.operators.get(uid)
    if operator is None:
        raise NotFoundError(unknown_operator(reader.record, uid))
    targets = [reader.target(uid, state) for state in operator.states]
    entries = sorted(entry for target in targets for entry in _entries(reader, target, key))
    return KeyState(uid, operator, key, entries, now, watermark)


def last_changes(
    records: Sequence[Record], reader: Callable[[Record], StateReader], uid: str, text: str, most: int
) -> list[int]:
    """The newest of these checkpoints, which ascend, that changed anything of a key in the operator."""
    found: list[int] = []
    later: tuple[Record, Entries] | None = None
    newest = next((record for record in reversed(records) if uid in record.operators), None)
    others = () if newest is None else with_other_keys(records, newest, uid)
    for record in reversed(records):
        operator = record.operators.get(uid)
        if record.slot in others or len(found) == most:
            continue
        if operator is None:
            # The batch above was the operator's first.
            if later is not None and later[1]:
                found.append(later[0].slot)
            later = None
            continue
        if later is not None and later[0].operators[uid].shards == operator.shards:
            entries = later[1]
        else:
            key = key_from_text(operator, text)
            entries = key_state(reader(record), uid, key, now=record.now, watermark=record.watermark).entries
        if later is not None and later[1] != entries:
            found.append(later[0].slot)
        later = record, entries
    return found[::-1]


def _entries(reader: StateReader, target: Target, key: Any) -> Iterator[tuple[bytes, bytes]]:
    """The entries of the key in a state, of a timer also those of its queue."""
    full = target.place(key)[1][:-1]
    group, own = split(full).group, full[PREFIX_WIDTH:]
    schema, uid = target.schema, target.operator
    if not schema.timed:
        # Behind the key stands a namespace, which begins with 00 or 01.
        yield from reader.entries(uid, group, full + EMPTY_NAMESPACE, after(full + NAMESPACE))
    if schema.timed or schema.kind == "timer":
        # The time stands before the key.
        begins, at = (own + EMPTY_NAMESPACE, own + NAMESPACE), PREFIX_WIDTH + TIME_WIDTH
        for entry in reader.entries(uid, group, *state_range(group, schema.id)):
            if entry[0].startswith(begins, at):
                yield entry


def as_last_argument(key: str) -> str:
    """A key's text as the end of a command line: quoted, and behind `--` where it looks like an option."""
    return f"{'-- ' if key.startswith('-') else ''}{shlex.quote(key)}"
