"""What happened to a key: its value after each kept checkpoint in which it changed.

Checkpoints whose shard of the key has the same files and the same type are not looked at, unless time alone may change what
they show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from stateflow.errors import NotFoundError, StateflowError, UsageError
from stateflow.format.keygroups import xxhash64
from stateflow.format.records import Record
from stateflow.quantities import several
from stateflow.reading.files.shard_files import identity
from stateflow.reading.past_states import (
    KeyOfState,
    NoSuchEntriesError,
    PastStates,
    gone,
    notes_on_records,
    nothing_stored,
    number_of_checkpoints,
    with_other_keys,
)
from stateflow.reading.query import LookupResult
from stateflow.state.values.plain import comparable

What = Literal["kept", "set", "changed", "deleted", "expired", "undeclared", "not there"]
"""kept: the value of the first checkpoint that there is. undeclared: that record has no such state. not there: an erasure,
after which there is nothing. Nobody knows any more whether there was something before."""

_EDITS = frozenset(("restore", "erase"))


@dataclass(frozen=True, slots=True)
class KeyVersion:
    """What a state held for a key from one checkpoint on."""

    slot: int
    at: int
    """When the checkpoint was decided, in microseconds."""
    kind: str
    """Of the record: checkpoint, restore, rescale, erase."""
    what: What
    result: LookupResult | None
    run: str
    dag_run: str
    versions: dict[str, str]
    """Of the code, as the record has them."""

    @property
    def value(self) -> Any:
        """As JSON; None when there is none."""
        return None if self.result is None or not self.result.found else self.result.json


@dataclass(frozen=True, slots=True)
class RowsOfVersion:
    """The rows that the key got in the batches up to a version, since the kept checkpoint before it."""

    since: int | None = None
    """That checkpoint; None if the job began here, or if it is not kept."""
    inputs: Sequence[Sequence[dict[str, Any]]] = ()
    """Of each input of the operator, as JSON."""
    why: str = ""
    """Why they cannot be read any more, as a sentence."""


@dataclass(frozen=True, slots=True)
class KeyHistory:
    """The versions of a key, oldest first."""

    versions: Sequence[KeyVersion]
    checkpoints: int
    """How many were kept in the time that was asked for, without `edits`."""
    edits: int
    """Restores, rescales and erasures in that time, which were read, too. No retention counts them."""
    look_ups: int
    collected: tuple[int, ...]
    """Checkpoints that were collected while their state was read."""
    more: bool
    """Whether older versions were left out."""
    other_keys: tuple[int, ...] = ()
    """Checkpoints in which the operator had another type of key, so that the key is not looked up there."""
    nothing: str = ""
    """Why there is no version, as a sentence."""
    renamed: Mapping[int, str] = field(default_factory=dict)
    """By slot, what the state was called in checkpoints that have another name for it."""
    begins_later: int | None = None
    """The oldest kept checkpoint, if what was asked for reaches further back."""
    rows: Mapping[int, RowsOfVersion] = field(default_factory=dict)
    """By slot, the rows of the versions, if they were asked for."""

    @property
    def notes(self) -> list[str]:
        """What is not kept or was not looked at, and where the state has another name, as sentences."""
        notes = []
        if self.begins_later is not None:
            notes.append(f"nothing from before checkpoint {self.begins_later} is kept")
        notes += notes_on_records(self.other_keys, self.renamed)
        if self.collected:
            notes.append(
                f"{several(len(self.collected), 'checkpoint')} ({', '.join(map(str, self.collected))}) collected meanwhile, and left out"
            )
        return notes


def history_of_key(
    records: Sequence[Record], states: PastStates, asked: KeyOfState, *, limit: int | None = None
) -> KeyHistory:
    """The newest `limit` versions of the key in these records, which ascend."""
    if not records:
        return KeyHistory((), 0, 0, 0, (), False)
    asked = asked.across(records)
    newest = _newest_with(records, states, asked)
    others = with_other_keys(records, newest, asked.operator)
    collected: list[int] = []
    with ThreadPoolExecutor(states.readers, "stateflow-history") as pool:
        ahead = _Ahead(records, states, asked, frozenset(others), pool)
        versions = list(_versions(records, states, asked, collected, ahead))
    shown = versions if limit is None else versions[-limit:]
    checkpoints = number_of_checkpoints(records)
    return KeyHistory(
        shown,
        checkpoints,
        len(records) - checkpoints,
        states.look_ups,
        tuple(collected),
        len(shown) < len(versions),
        others,
        "" if versions else nothing_stored(newest, asked),
        renamed=asked.renamed,
    )


def _newest_with(records: Sequence[Record], states: PastStates, asked: KeyOfState) -> Record:
    """The newest record with the state. Raises for a state that no record has, and for a key that the newest record with the state cannot have."""
    failed: NotFoundError | None = None
    for record in reversed(records):
        try:
            states.target(record, asked)
            return record
        except NotFoundError as error:
            failed = failed or error
    assert failed is not None
    raise failed


class _Ahead:
    """Looks at the records before their turn, many at once: all that do not show the same as the one before them."""

    def __init__(
        self,
        records: Sequence[Record],
        states: PastStates,
        asked: KeyOfState,
        others: frozenset[int],
        pool: ThreadPoolExecutor,
    ) -> None:
        self._states, self._asked, self._others = states, asked, others
        self.prints = [
            ("another type of key",) if record.slot in others else _fingerprint(record, asked, states)
            for record in records
        ]
        self._results: dict[int, Future[LookupResult | None]] = {}
        for at, record in enumerate(records):
            if record.slot in others:
                continue
            if not at or record.kind in _EDITS or not _same(self.prints[at - 1], self.prints[at]):
                self._results[record.slot] = pool.submit(states.look_up, record, asked)

    def look_up(self, record: Record) -> LookupResult | None:
        if record.slot in self._others:
            return None
        result = self._results.pop(record.slot, None)
        return self._states.look_up(record, self._asked) if result is None else result.result()


def _versions(
    records: Sequence[Record],
    states: PastStates,
    asked: KeyOfState,
    collected: list[int],
    ahead: _Ahead,
) -> Iterator[KeyVersion]:
    before: tuple[Record, LookupResult | None] | None = None
    seen: tuple[object, ...] | None = None
    for record, print_ in zip(records, ahead.prints, strict=True):
        if before is not None and _same(seen, print_) and record.kind not in _EDITS:
            before = record, before[1]
            continue
        try:
            result = ahead.look_up(record)
        except NoSuchEntriesError:
            result = None  # the state had no such entries then
        except StateflowError as error:
            if not gone(error):
                raise
            collected.append(record.slot)
            continue
        what = _what(before, record, result, states, asked)
        if what is not None:
            yield _version(record, what, result)
        before, seen = (record, result), print_


def _fingerprint(record: Record, asked: KeyOfState, states: PastStates) -> tuple[object, ...] | None:
    """The same for two records that show the same; None where only a look can tell."""
    operator = record.operators.get(asked.operator)
    schema = operator.states.get(asked.name_in(record)) if operator else None
    if operator is None or schema is None:
        return ("undeclared",)
    if schema.ttl is not None:
        return None
    try:
        target = states.reader(record).target(asked.operator, asked.name_in(record))
        codec = target.codec
        key = codec.decode(codec.encode(target.key_of_text(asked.key)), 0)[0]
    except UsageError:
        return ("another type of key",)
    group = xxhash64(key) % operator.max_parallelism
    shard = next((s for s in operator.all_shards if s.first <= group <= s.last), None)
    if shard is None:
        return None
    kind = schema.id, schema.kind, schema.value, schema.version
    return kind, tuple(identity(ref) for ref in shard.files)


def _same(one: tuple[object, ...] | None, other: tuple[object, ...] | None) -> bool:
    """Whether two fingerprints say that two records show the same."""
    return one is not None and one == other


def _what(
    before: tuple[Record, LookupResult | None] | None,
    record: Record,
    result: LookupResult | None,
    states: PastStates,
    asked: KeyOfState,
) -> What | None:
    """What happened; None when nothing did."""
    found = result is not None and result.found
    if before is None:
        return "kept" if found else ("not there" if record.kind == "erase" else None)
    held = before[1]
    was_found = held is not None and held.found
    if result is None:
        return "undeclared" if held is not None else None
    if not found:
        if not was_found:
            return "not there" if record.kind == "erase" else None
        return "expired" if _expired(before[0], record, states, asked) else "deleted"
    if not was_found:
        return "set"
    assert held is not None
    same = held.more == result.more and _same_value(held, result)
    if same and held.more:
        # The same beginning: what is behind it may have changed.
        whole = replace(asked, limit=None)
        same = _same_value(states.look_up(before[0], whole), states.look_up(record, whole))
    return None if same and record.kind not in _EDITS else "changed" if not same else None


def _same_value(one: LookupResult | None, other: LookupResult | None) -> bool:
    return bool(comparable(one and one.value) == comparable(other and other.value))


def _expired(before: Record, record: Record, states: PastStates, asked: KeyOfState) -> bool:
    """Whether what the record before held had expired by the time of this one."""
    operator = before.operators[asked.operator]
    if operator.states[asked.name_in(before)].ttl is None:
        return False
    try:
        result = states.look_up(before, asked, at=record)
    except NoSuchEntriesError:
        return False
    return result is not None and not result.found


def _version(record: Record, what: What, result: LookupResult | None) -> KeyVersion:
    return KeyVersion(
        slot=record.slot,
        at=record.at,
        kind=record.kind,
        what=what,
        result=result,
        run=record.owner.run,
        dag_run=record.owner.dag_run,
        versions=dict(record.versions),
    )
