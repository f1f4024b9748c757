"""What changed between two snapshots: which entries of which state came, went or changed.

It reads the files that the two do not share. What a key held before may stand in a file that both have: it is looked up
there if the file is on this host. If it is not, the entry counts as `written`, which may be new or changed, until the caller asks
for `before`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

from stateflow.errors import CorruptError, IncompatibleError, NotFoundError, UsageError
from stateflow.format.encoding import PREFIX_WIDTH, encode_timestamp, prefix, renumbered, state_range
from stateflow.format.expiry_blocks import is_block, keys_of
from stateflow.format.records import FileRef, OperatorState, Record, Savepoint, StateSchema
from stateflow.format.state_names import names_between
from stateflow.reading.files.differences import (
    UNKNOWN,
    Difference,
    ShardPair,
    ShardSide,
    Stored,
    differing_entries,
    pairs_of_shards,
)
from stateflow.reading.opened_shard import opened_shard
from stateflow.reading.snapshots import ReaderContext
from stateflow.reading.stored_entries import EntryName, StateEntries
from stateflow.savepoints.format import resolved
from stateflow.state.backends.base import Backend
from stateflow.state.expiry.ttl import expired_until
from stateflow.state.keys.text import text_of_key
from stateflow.state.values.plain import comparable, jsonable

StateNames = Mapping[str, Mapping[str, str]]
"""By operator and state of the second point, what the state is called in the first."""
Kind = Literal["came", "went", "expired", "changed", "written", "deleted", "unknown"]
KINDS: Sequence[Kind] = ("came", "went", "expired", "changed", "written", "deleted", "unknown")
"""written: there is something now, which is new or changed. deleted: there is nothing now, and there may have been nothing.
unknown: there may be anything now; this happens if the first point is the later one."""
TEXTS = ("operator", "state", "kind", "key", "namespace", "part", "before", "after")
"""The columns of a row of changes."""
_PLAIN = frozenset(("operator", "state", "kind", "key", "namespace"))
_MISSING = "what has expired, or was deleted with a range of times, is missing here: it stands in files that were not read"
AT_ONCE = 50_000
"""Entries that are looked up together."""


@dataclass(frozen=True, slots=True)
class ComparedSnapshot:
    """One of the two points, and the host's way to its files."""

    name: str
    """In words: `checkpoint 317 of job 'orders'`."""
    record: Record
    context: ReaderContext


@dataclass(frozen=True, slots=True)
class EntryChange:
    """One entry."""

    operator: str
    state: str
    kind: Kind
    key: Any
    namespace: Any
    part: Any
    """Of a map its key, of a list slot and position, of columns what tells entries apart."""
    before: Any
    after: Any
    """As `query` shows them. None where there is nothing, or where it is not known."""

    @property
    def json(self) -> dict[str, Any]:
        return {
            "operator": self.operator,
            "state": self.state,
            "kind": self.kind,
            "key": text_of_key(self.key),
            **EntryName(self.key, self.namespace, self.part).json,
            "before": jsonable(self.before),
            "after": jsonable(self.after),
        }

    @property
    def texts(self) -> dict[str, str | None]:
        """As a row of texts, with values as JSON."""
        return {
            name: value if name in _PLAIN or value is None else json.dumps(value, ensure_ascii=False)
            for name, value in self.json.items()
        }


@dataclass
class Differences:
    """Call `changes` once, then read what it has found out."""

    before: ComparedSnapshot
    after: ComparedSnapshot
    operators: Sequence[str] = ()
    states: Sequence[str] = ()
    """Which to compare; empty: all."""
    look_up: bool | None = None
    """Whether files that both have are fetched to find out what was before. None: read if they are on this host."""
    share: tuple[int, int] = (0, 1)
    """Which of how many shares of the work: of each operator every so many-th pair of shards."""
    names: StateNames | None = None
    """None: as the two records alone tell it."""
    notes: list[str] = field(default_factory=list)
    """What cannot be told entry by entry: states that only one side has, types that changed."""
    on_one_side: list[str] = field(default_factory=list)
    """Operators that only one of the two has."""
    unread: dict[str, FileRef] = field(default_factory=dict)
    """Shared files that were not read, by path, since they are not on this host."""

    def changes(self) -> Iterator[EntryChange]:
        """Operator by operator; within a shard in the order of the keys' bytes."""
        ours, theirs = self.before.record.operators, self.after.record.operators
        for uid in self.comparable():
            yield from _ComparedOperator(self, uid, ours[uid], theirs[uid]).changes()

    def stored(self, uid: str, number: int) -> Iterator[Difference]:
        """The entries of a state, by its id, whose bytes differ, as both points have stored them. Ask with `look_up`, since nothing is
        left unknown then."""
        ours, theirs = self.before.record.operators[uid], self.after.record.operators[uid]
        self._check(uid, ours, theirs)
        for found in _ComparedOperator(self, uid, ours, theirs).differences():
            if found.before != found.after and int.from_bytes(found.key[2:PREFIX_WIDTH], "big") == number:
                yield found

    def unchanged(self, uid: str, number: int) -> Iterator[tuple[bytes, bytes]]:
        """Entries with the same id and the same bytes at both points."""
        ours, theirs = self.before.record.operators[uid], self.after.record.operators[uid]
        return _ComparedOperator(self, uid, ours, theirs).unchanged(number)

    def comparable(self) -> list[str]:
        """The operators whose entries are compared. It notes what cannot be told entry by entry, and reads no state."""
        ours, theirs = self.before.record.operators, self.after.record.operators
        for wanted in self.operators:
            if wanted not in ours and wanted not in theirs:
                known = ", ".join(sorted({*ours, *theirs})) or "none"
                raise NotFoundError(
                    f"neither of the two has an operator {wanted!r}: their operators are {known}"
                )
        names = {
            name
            for side in (ours, theirs)
            for uid, operator in side.items()
            if not self.operators or uid in self.operators
            for name in (*operator.states, *operator.operator_states)
        }
        for state in self.states:
            if state not in names:
                of = f" of {', '.join(self.operators)}" if self.operators else ""
                raise NotFoundError(
                    f"neither of the two has a state {state!r}{of}: their states are {', '.join(sorted(names)) or 'none'}"
                )
        keyed = []
        for uid in sorted({*ours, *theirs}):
            if self.operators and uid not in self.operators:
                continue
            if uid not in ours or uid not in theirs:
                where, became = (self.after.name, "came") if uid in theirs else (self.before.name, "went")
                self.on_one_side.append(uid)
                self.notes.append(
                    f"operator {uid!r} is only in {where}: all of its entries {became}, and are not counted"
                )
                continue
            self._check(uid, ours[uid], theirs[uid])
            if ours[uid].key:
                self._declarations(uid, ours[uid], theirs[uid])
                keyed.append(uid)
            self._elements(uid, ours[uid], theirs[uid])
        return keyed

    def __post_init__(self) -> None:
        if self.names is None:
            self.names = names_of_states(self.before.record, self.after.record)

    def names_of(self, uid: str) -> Mapping[str, str]:
        """By state of the second point, its name in the first."""
        return (self.names or {}).get(uid, {})

    @property
    def renamed(self) -> list[tuple[str, str, str]]:
        """Operator, state and its name in the first point, where that is another one."""
        both = self.before.record.operators.keys() & self.after.record.operators.keys()
        return [
            (uid, name, former)
            for uid in sorted(both)
            if not self.operators or uid in self.operators
            for name, former in sorted(self.names_of(uid).items())
            if name != former and self._wanted(name, former)
        ]

    def _wanted(self, *names: str) -> bool:
        return not self.states or any(name in self.states for name in names)

    def _check(self, uid: str, one: OperatorState, other: OperatorState) -> None:
        if one.key_types != other.key_types:
            kinds = " and ".join(str(dict(each.key)) for each in (one, other))
            raise IncompatibleError(
                f"operator {uid!r} has other keys in the two, {kinds}: choose other operators with --operator, or two points on one side "
                "of that change"
            )
        if one.max_parallelism != other.max_parallelism:
            raise IncompatibleError(
                f"operator {uid!r} has {one.max_parallelism} key groups in one and {other.max_parallelism} in the other: export "
                "both with `stateflow state export` and compare the tables"
            )

    def _declarations(self, uid: str, one: OperatorState, other: OperatorState) -> None:
        former = self.names_of(uid)
        lonely = {
            **dict.fromkeys(one.states.keys() - former.values(), self.before.name),
            **dict.fromkeys(other.states.keys() - former.keys(), self.after.name),
        }
        self.notes += [
            f"state {name!r} of operator {uid!r} is declared only in {where}"
            for name, where in sorted(lonely.items())
            if self._wanted(name)
        ]
        for name, old in sorted(former.items()):
            if not self._wanted(name, old):
                continue
            before, after = one.states[old], other.states[name]
            if name != old:
                self.notes.append(
                    f"state {name!r} of operator {uid!r} is called {old!r} in {self.before.name}"
                )
            if before.value != after.value:
                self.notes.append(
                    f"the type of state {name!r} of operator {uid!r} changed from {before.value} to {after.value}; entries that nobody "
                    "has written since are not listed"
                )

    def _elements(self, uid: str, one: OperatorState, other: OperatorState) -> None:
        for name in sorted({*one.operator_states, *other.operator_states}):
            if not self._wanted(name):
                continue
            before, after = one.operator_states.get(name), other.operator_states.get(name)
            if (before and before.parts) != (after and after.parts):
                counts = [sum(map(len, each.parts)) if each else 0 for each in (before, after)]
                self.notes.append(
                    f"state {name!r} of operator {uid!r}, which has no keys, changed: it had {counts[0]} elements and has {counts[1]}"
                )


@dataclass(frozen=True, slots=True)
class _Overdue:
    """An index of expiries with blocks that are due."""

    side: int
    index: int
    state: int
    moment: int


@dataclass(frozen=True, slots=True)
class _SideOfState:
    """A state in one of the two snapshots."""

    name: str
    schema: StateSchema
    entries: StateEntries
    moment: int | None
    """What expires at or before it had expired by the record's own time."""

    @property
    def number(self) -> int:
        """In the keys of its entries. A timer's queue, and an index of expiries, have others."""
        return self.entries.target.state_id

    def visible(self, stored: Stored) -> bytes | None:
        return stored if isinstance(stored, bytes) and not self.entries.expired(stored, self.moment) else None


@dataclass(frozen=True, slots=True)
class _ComparedState:
    """A state of both snapshots, or of one of them."""

    before: _SideOfState | None
    after: _SideOfState | None

    @property
    def some(self) -> _SideOfState:
        side = self.after or self.before
        assert side is not None
        return side

    @property
    def names(self) -> Sequence[str]:
        return [side.name for side in (self.before, self.after) if side is not None]


class _ComparedOperator:
    """One operator of both snapshots, which has the same keys in both.

    Differences are under the numbers of the earlier side. A state that only the later side has keeps its own number, unless another
    state has it.
    """

    def __init__(self, asked: Differences, uid: str, one: OperatorState, other: OperatorState) -> None:
        self._asked, self._uid = asked, uid
        self._operators = one, other
        self._snapshots = asked.before, asked.after
        befores, afters = (self._sides(snapshot, uid) for snapshot in self._snapshots)
        former = asked.names_of(uid)
        self._states = {
            side.number: _ComparedState(side, None)
            for name, side in befores.items()
            if name not in former.values()
        }
        for name, old in former.items():
            self._states[befores[old].number] = _ComparedState(befores[old], afters[name])
        self._numbers = {afters[name].number: befores[old].number for name, old in former.items()}
        """Of the later side, by its own number."""
        free = max(one.next_state_id, other.next_state_id)
        for name, side in afters.items():
            if name not in former:
                number = side.number if side.number not in self._states else (free := free + 1)
                self._states[number] = _ComparedState(None, side)
                self._numbers[side.number] = number
        self._same_ids = all(theirs == ours for theirs, ours in self._numbers.items())

    @staticmethod
    def _sides(snapshot: ComparedSnapshot, uid: str) -> Mapping[str, _SideOfState]:
        record = snapshot.record
        reader, operator, now = (
            snapshot.context.reader(record),
            record.operators[uid],
            record.now or record.at,
        )
        return {
            name: _SideOfState(
                name,
                schema,
                StateEntries(reader.target(uid, name)),
                expired_until(schema, record.watermark, now),
            )
            for name, schema in operator.states.items()
        }

    def changes(self) -> Iterator[EntryChange]:
        for difference in self.differences():
            yield from self._change(difference)

    def differences(self) -> Iterator[Difference]:
        """Of all states, before it is known which of them count."""
        for pair in self._pairs():
            yield from self._of_pair(pair)

    def unchanged(self, number: int) -> Iterator[tuple[bytes, bytes]]:
        later = next((theirs for theirs, ours in self._numbers.items() if ours == number), number)
        for pair in self._pairs():
            differ = {each.key for each in self._of_pair(pair) if each.before != each.after}
            with _Look(pair, self._snapshots) as look:
                for group in range(pair.first, pair.last + 1):
                    for key, value in look.scan(1, *state_range(group, later)):
                        if (own := renumbered(key, number)) not in differ:
                            yield own, value

    def _pairs(self) -> Iterator[ShardPair]:
        files = [each.context.files() for each in self._snapshots]
        sides = [
            [ShardSide(own, shard) for shard in operator.all_shards]
            for own, operator in zip(files, self._operators, strict=True)
        ]
        number, shares = self._asked.share
        return islice(pairs_of_shards(*sides, share=self._same_ids), number, None, shares)

    def _of_pair(self, pair: ShardPair) -> Iterator[Difference]:
        overdue = self._overdue(pair)
        if not any(pair.own) and not overdue:
            return
        differences, ranges = differing_entries(pair, every=not self._same_ids)
        if not self._same_ids:
            differences = self._translated(differences)
        asked = self._asked
        away = [ref for ref in pair.shared if not pair.before.files.here(ref)]
        read_shared = asked.look_up if asked.look_up is not None else not away
        if not read_shared:
            asked.unread |= {ref.path: ref for ref in away}
            if (ranges or overdue) and _MISSING not in asked.notes:
                asked.notes.append(_MISSING)
            yield from differences
            return
        with _Look(pair, self._snapshots) as look:
            seen: set[bytes] = set()
            for difference in _looked_up(differences, look):
                if ranges or overdue:
                    seen.add(difference.key)
                yield difference
            more = sorted(set(self._hidden(ranges, look)) | set(self._expiring(overdue, look)))
            unseen = (Difference(key, UNKNOWN, UNKNOWN) for key in more if key not in seen)
            yield from _looked_up(unseen, look)

    def _hidden(self, ranges: Sequence[Any], look: _Look) -> Iterator[bytes]:
        """Keys in ranges that one side has deleted at a stroke."""
        for range_ in ranges:
            for side in (0, 1):
                yield from (key for key, _ in look.scan(side, range_.begin, range_.end))

    def _overdue(self, pair: ShardPair) -> list[_Overdue]:
        """Where expired entries may not be deleted yet, which then are on one side only by its time: on the side of the later
        time its index has blocks that are due."""
        if not self._same_ids:
            return []  # every file is read anyway
        found = []
        for number, state in self._states.items():
            if state.before is None or state.after is None or state.before.moment == state.after.moment:
                continue
            moments = state.before.moment, state.after.moment
            later = int(moments[1] is not None and (moments[0] is None or moments[1] > moments[0]))
            side, shard = (state.before, state.after)[later], pair.sides[later].shard
            due = shard.next_event_expiry if side.schema.ttl_time == "event" else shard.next_processing_expiry
            moment, index = side.moment, side.schema.expiry_index
            if index and moment is not None and due is not None and due <= moment:
                found.append(_Overdue(later, index, number, moment))
        return found

    def _expiring(self, overdue: Sequence[_Overdue], look: _Look) -> Iterator[bytes]:
        for each in overdue:
            for group in range(look.pair.first, look.pair.last + 1):
                begin = prefix(group, each.index)
                for key, value in look.scan(each.side, begin, begin + encode_timestamp(each.moment + 1)):
                    if is_block(key):
                        yield from keys_of(value, prefix(group, each.state))

    def _translated(self, differences: Iterator[Difference]) -> Iterator[Difference]:
        """With the entries of the later side under the ids of the earlier one: no file is shared, so both are known."""
        before: dict[bytes, Stored] = {}
        after: dict[bytes, Stored] = {}
        for difference in differences:
            number = int.from_bytes(difference.key[2:PREFIX_WIDTH], "big")
            state = self._states.get(number)
            if difference.before is not None and state is not None and state.before is not None:
                before[difference.key] = difference.before
            own = self._numbers.get(number)
            if difference.after is not None and own is not None:
                after[renumbered(difference.key, own)] = difference.after
        for key in sorted(before.keys() | after.keys()):
            yield Difference(key, before.get(key), after.get(key))

    def _change(self, found: Difference) -> Iterator[EntryChange]:
        state = self._states.get(int.from_bytes(found.key[2:PREFIX_WIDTH], "big"))
        if state is None or not self._asked._wanted(*state.names):
            return
        made = _kind(state, found)
        if made is None:
            return
        kind, before, after = made
        then, now = ((side or state.some).entries for side in (state.before, state.after))
        entry = then.name(found.key)
        yield EntryChange(
            self._uid,
            state.some.name,
            kind,
            entry.key,
            entry.namespace,
            entry.part,
            None if before is None else then.value(entry, before),
            None if after is None else now.value(entry, after),
        )


def _kind(state: _ComparedState, found: Difference) -> tuple[Kind, bytes | None, bytes | None] | None:
    """With what was there before, and what is there now, as it is stored."""
    then, now = state.before, state.after
    if now is None:
        assert then is not None
        if found.before is UNKNOWN:
            return "deleted", None, None
        before = then.visible(found.before)
        return None if before is None else ("went", before, None)
    if then is None:
        if found.after is UNKNOWN:
            return "unknown", None, None
        after = now.visible(found.after)
        return None if after is None else ("came", None, after)
    before, after = then.visible(found.before), now.visible(found.after)
    if found.after is UNKNOWN:
        return None if found.before is UNKNOWN else ("unknown", before, None)
    if found.before is UNKNOWN:
        return ("deleted", None, None) if after is None else ("written", None, after)
    if before is None:
        return None if after is None else ("came", None, after)
    if after is None:
        return ("expired" if now.entries.expired(before, now.moment) else "went", before, None)
    if before == after or _same_value(then.entries, now.entries, before, after, found.key):
        return None
    return "changed", before, after


def _same_value(then: StateEntries, now: StateEntries, before: bytes, after: bytes, key: bytes) -> bool:
    """Whether only its expiry was renewed, or it was written again as a later type."""
    entry = now.name(key)
    # The later type reads what was stored as the earlier one, and not the other way round; either point may be the later.
    later = max(now, then, key=lambda each: each.target.schema.version)
    try:
        return bool(comparable(later.value(entry, before)) == comparable(later.value(entry, after)))
    except (CorruptError, IncompatibleError):
        # Neither type has come from the other one.
        return bool(comparable(then.value(entry, before)) == comparable(now.value(entry, after)))


class _Look:
    """Look-ups in both shards of a pair; each is opened when it is asked for the first time."""

    def __init__(self, pair: ShardPair, snapshots: tuple[ComparedSnapshot, ComparedSnapshot]) -> None:
        self.pair, self._snapshots = pair, snapshots
        self._opened: dict[int, Backend] = {}
        self._stack = ExitStack()

    def __enter__(self) -> _Look:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _side(self, number: int) -> Backend | None:
        shard = self.pair.sides[number].shard
        if not shard.files:
            return None
        if number not in self._opened:
            self._opened[number] = self._stack.enter_context(
                opened_shard(self._snapshots[number].context, shard)
            )
        return self._opened[number]

    def get(self, number: int, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        side = self._side(number)
        return [None] * len(keys) if side is None else side.get_many(keys)

    def scan(self, number: int, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        side = self._side(number)
        return iter(()) if side is None else side.scan(begin, end)


def _looked_up(differences: Iterator[Difference], look: _Look) -> Iterator[Difference]:
    """With what only a look-up knows."""
    while chunk := list(islice(differences, AT_ONCE)):
        found = []
        for number in (0, 1):
            unknown = [d.key for d in chunk if (d.before, d.after)[number] is UNKNOWN]
            found.append(dict(zip(unknown, look.get(number, unknown), strict=True)) if unknown else {})
        for d in chunk:
            yield Difference(
                d.key,
                found[0][d.key] if d.before is UNKNOWN else d.before,
                found[1][d.key] if d.after is UNKNOWN else d.after,
            )


def no_point(text: str, error: NotFoundError) -> NotFoundError:
    """The error for a text that names no checkpoint, and at which there is no savepoint."""
    return NotFoundError(
        f"{text!r} is no point: {error}; write a slot such as 42, tag:NAME, latest, a time such as 2026-11-20T10:00, or a "
        "native savepoint's URL"
    )


def compared_savepoint(savepoint: Savepoint, url: str, job: str) -> Record:
    """The record of a savepoint that is one of the two points; `job`: whose point it is to be."""
    if savepoint.kind != "native":
        raise UsageError(
            f"the savepoint {url} is canonical: it consists of tables; compare it as a table, with `stateflow state export`"
        )
    if savepoint.job != job:
        raise UsageError(
            f"the savepoint {url} is of job {savepoint.job!r}, not of {job!r}: compare job {savepoint.job!r}, or make it the second "
            "point, whose job --with names"
        )
    return resolved(savepoint, url)


def names_of_states(
    before: Record, after: Record, kept: Callable[[], Sequence[Record]] = lambda: ()
) -> StateNames:
    """`kept`: the job's records, ascending. They are asked for where the two alone leave states without a partner."""
    ends = before.operators.keys() & after.operators.keys()
    if any(before.operators[uid].states.keys() != after.operators[uid].states.keys() for uid in ends):
        first, last = sorted((before.slot, after.slot))
        between = [record for record in kept() if first < record.slot < last]
    else:
        between = []
    records = (before, *(between if before.slot <= after.slot else reversed(between)), after)
    return {
        uid: names_between([each.operators[uid].states for each in records if uid in each.operators])
        for uid in ends
    }
