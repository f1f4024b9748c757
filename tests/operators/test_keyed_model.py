"""A process per key puts out what plain dicts of its states and timers give, whatever comes between its batches.

Every kind of state, with and without a ttl and namespaces, and every kind of timer; code that fails; batches that are lost; and
releases that add, remove and rename states, change their types by rule and by function, and give them another ttl and namespaces.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, make_dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from itertools import count
from pathlib import Path
from random import Random
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stateflow as sf
from stateflow.format.expiry_blocks import AT_ONCE
from stateflow.format.keygroups import key_group
from stateflow.operators import due, firing
from stateflow.state.tabular import tables_of
from tests.in_memory import IN_MEMORY
from tests.jobs.operators import operator_of
from tests.operators.expiring import GROUPS, Expiring
from tests.operators.lives import LATER, Lives, Living, check_indexes, with_ttl
from tests.operators.plays import Play, Row, Rows, Said, Turn, model, played, plays, rows_of, times
from tests.operators.ready.driving import END, SECOND
from tests.operators.test_feeds import applied, stored

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# ---- types of values ----

Field = tuple[str, str, Any, tuple[str, ...]]
"""Name, type, default (or `...`), aliases."""
TYPES: dict[str, Any] = {
    "int": int, "float": float, "decimal": Decimal, "str": str, "int?": int | None, "float?": float | None,
    "ints": list[int], "floats": list[float],
}  # fmt: skip
WIDER = {
    "int": ["float", "decimal", "int?"],
    "int?": ["float?"],
    "float": ["float?"],
    "ints": ["floats"],
}
DEFAULTS: dict[str, Any] = {
    "int": 7, "float": 0.5, "decimal": Decimal("0.1"), "str": "d", "int?": None, "float?": 2.5
}  # fmt: skip


def value_of(kind: str, number: int) -> Any:
    """A value to store; of a type that allows None sometimes None."""
    match kind:
        case "float":
            return number / 4
        case "decimal":
            return Decimal(number) / 100
        case "str":
            return "abc"[: number % 4] + str(number)
        case "int?" | "float?":
            return None if number % 3 == 0 else value_of(kind[:-1], number)
        case "ints" | "floats":
            return [value_of(kind[:-1], each) for each in range(number % 3)]
    return number


def converted(kind: str, into: str, value: Any) -> Any:
    """What a value is as another type."""
    if value is None or kind == into:
        return value
    if isinstance(value, list):
        return list(map(float, value))
    match into:
        case "decimal":
            return Decimal(value)
        case "float" | "float?":
            return float(value)
        case "str":
            return f"<{value}>"
    return value


def from_whole(old: int) -> str:
    return f"<{old}>"


def from_real(old: float) -> str:
    return f"<{old}>"


FUNCTIONS = {"int": from_whole, "float": from_real}


@cache
def class_of(fields: tuple[Field, ...]) -> Any:
    ordered = sorted(fields, key=lambda each: each[2] is not ...)
    columns = [
        (
            name,
            Annotated[TYPES[kind], sf.field(aliases=list(aliases))] if aliases else TYPES[kind],
            *([] if default is ... else [field(default=default)]),
        )
        for name, kind, default, aliases in ordered
    ]
    return make_dataclass("Record", columns)


# ---- what a release declares ----


@dataclass(frozen=True)
class State(Living):
    """A state or a timer, as a release declares it. What it is called changes, its id in the model does not."""

    kind: str
    """value, items, table; words, most, held, whose values are numbers; one, soon, each: timers."""
    name: str
    fields: tuple[Field, ...] = ()
    number: str = "int"
    aliases: tuple[str, ...] = ()
    namespaced: bool = False
    many: bool = False
    migrates: str = ""
    """The type that a function makes texts of."""

    @property
    def is_timer(self) -> bool:
        return self.kind in ("one", "soon", "each")

    @property
    def is_record(self) -> bool:
        return self.kind in ("value", "items", "table")

    @property
    def type(self) -> Any:
        if self.is_record:
            return class_of(self.fields)
        return list[TYPES[self.number]] if self.kind == "words" else TYPES[self.number]  # type: ignore[misc]

    def made(self, number: int) -> Any:
        """What is stored, as the model has it: of a record its fields."""
        if self.is_record:
            return {name: value_of(kind, number + at) for at, (name, kind, _, _) in enumerate(self.fields)}
        return value_of(self.number, number)

    def shown(self, value: Any) -> Any:
        """What code sees of it."""
        return self.type(**deepcopy(value)) if self.is_record and value is not None else value

    def declaration(self) -> Any:
        more: dict[str, Any] = {
            "aliases": self.aliases,
            "namespace": str if self.namespaced else None,
        }
        if self.is_timer:
            return sf.Timer("processing" if self.kind == "soon" else "event", many=self.many, **more)
        if self.ttl:
            more["ttl"] = self.declared_ttl
        if self.migrates:
            more["migrate"] = FUNCTIONS[self.migrates]
        match self.kind:
            case "items":
                return sf.ListState(self.type, **more)
            case "table":
                return sf.MapState(int, self.type, **more)
            case "most":
                return sf.ReducingState(self.type, max, **more)
            case "held":
                return sf.AggregatingState(self.type, create=self.type, add=lambda held, more: held + more, result=repr, **more)  # fmt: skip
            case "words":
                return sf.ValueState(self.type, default=list, **more)
        return sf.ValueState(self.type, **more)


Release = Mapping[str, State]
"""By id."""
IDS = {
    "value": "value", "second": "value", "items": "items", "table": "table", "words": "words", "most": "most", "held": "held",
    "one": "one", "other": "one", "soon": "soon", "each": "each",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    releases: list[Release]
    seed: int = 0
    """Of what handlers do."""
    fails: bool = False
    """Rows and handlers fail, and their keys are diverted."""
    fed: bool = False
    """What feeds say of the states is compared with these."""
    block: int = 10_000
    """How many timers fire at once."""
    remembered: int = 100_000
    turns: int = 1
    """In how many batches every key group is looked through for what has expired."""


@st.composite
def new_state(draw: Any, name: str, plain: bool) -> State:
    kinds = st.sampled_from(sorted(TYPES))
    fields = tuple((f"f{n}", draw(kinds), ..., ()) for n in range(draw(st.integers(1, 3))))
    made = State(IDS[name], name, fields, namespaced=draw(st.booleans()), many=name == "each")
    return made if made.is_timer else draw(with_ttl(replace(made, time="processing" if plain else draw(st.sampled_from(["processing", "event"])))))  # fmt: skip


@st.composite
def next_fields(draw: Any, fields: tuple[Field, ...], number: int) -> tuple[Field, ...]:
    """What another release may make of a record, by rule."""
    out: list[Field] = []
    for name, kind, default, _ in fields:
        what = draw(st.sampled_from(["keep", "keep", "remove", "rename", "widen", "fill", "default"]))
        if what == "remove" and len(fields) > 1:
            continue
        if what == "widen" and kind in WIDER:
            kind = draw(st.sampled_from(WIDER[kind]))
            default = default if default is ... else DEFAULTS[kind]
        if what == "fill" and kind.endswith("?") and default is not None:
            kind, default = kind[:-1], DEFAULTS[kind[:-1]]
        if what == "default" and kind in DEFAULTS:
            default = DEFAULTS[kind]
        renamed = what == "rename"
        out.append((f"{name}_{number}", kind, default, (name,)) if renamed else (name, kind, default, ()))
    if draw(st.booleans()):
        kind = draw(st.sampled_from(sorted(DEFAULTS)))
        out.append((f"new{number}", kind, DEFAULTS[kind], ()))
    return tuple(draw(st.permutations(out))) or (("last", "int", 1, ()),)


@st.composite
def next_state(draw: Any, state: State, number: int) -> State:
    changed = replace(state, aliases=())
    for what in draw(st.lists(st.sampled_from(["rename", "type", "type", "ttl", "namespaces"]), max_size=3)):
        if what == "rename":
            changed = replace(changed, name=f"{state.name}_{number}", aliases=(state.name,))
        elif what == "namespaces":
            changed = replace(changed, namespaced=True, many=True)
        elif what == "ttl" and not state.is_timer:
            changed = draw(with_ttl(changed))
        elif what == "type" and state.is_record:
            changed = replace(changed, fields=draw(next_fields(state.fields, number)))
        elif what == "type" and state.number == "int":
            kind = draw(st.sampled_from(["float"] if state.kind == "words" else ["float", "str"]))
            changed = replace(changed, number=kind, migrates="int" if kind == "str" else "")
        elif what == "type" and state.number == "float" and state.kind != "words":
            changed = replace(changed, number="str", migrates="float")
    return changed


@st.composite
def cases(draw: Any) -> Case:
    turns, fed = draw(st.sampled_from([1, 1, 1, 1, 3])), draw(st.integers(0, 3)) == 0
    here = {name for name in IDS if draw(st.integers(0, 2))} or {"value"}
    known: dict[str, State] = {name: draw(new_state(name, turns > 1)) for name in IDS if name in here}
    releases = [dict(known)]
    for number in range(1, draw(st.integers(1, 1 if turns > 1 else 4))):
        for name in IDS:
            if draw(st.integers(0, 5)) == 0:
                # What a release leaves out stays, and comes back with its declaration.
                here = here ^ {name} if len(here) > 1 else here | {name}
            if name in here:
                known[name] = draw(next_state(known[name], number)) if name in known else draw(new_state(name, False))  # fmt: skip
        releases.append({name: state for name, state in known.items() if name in here})
    return Case(
        releases, draw(st.integers(0, 10**6)), draw(st.booleans()), fed,
        draw(st.sampled_from([1, 2, 3, 10_000])), draw(st.sampled_from([0, 1, 100])), turns,
    )  # fmt: skip


# ---- what code does ----

VALUES: dict[str, tuple[Any, ...]] = {
    "user": (1, 1, 2, 5, 129), "what": ("set",) * 6 + ("read", "read", "read", "clear", "clear", "names", "clear_key", "fail"),
    "pick": tuple(range(len(IDS))), "namespace": (None, "a", "b"), "number": tuple(range(-3, 6)),
    "seconds": (-9, -2, 0, 0, 1, 1, 3, 7, 20),
}  # fmt: skip
ROW = rows_of({name: st.sampled_from(values) for name, values in VALUES.items()} | {"ts": times})
SCHEMA = pa.schema(
    [
        (name, pa.string() if name in ("what", "namespace") else pa.int64()) for name in VALUES
    ] + [("ts", pa.timestamp("us", "UTC"))]
)  # fmt: skip


def target(release: Release, row: Row) -> tuple[str, State]:
    """Which state a row is about."""
    name = list(release)[row["pick"] % len(release)]
    return name, release[name]


def of_handler(case: Case, turn: Any) -> Rows:
    """What a handler does, by name of the timer, key, namespace, time and how often the key has had a turn."""
    chance = Random(f"{case.seed}:{turn}")
    some = 0 if turn[-1] > 5 else chance.choice([0, 1, 1, 2, 3])  # so that none fires for ever
    return [{name: chance.choice(values) for name, values in VALUES.items()} for _ in range(some)]


def process_of(case: Case, number: int) -> type[Any]:
    """The code of a release. The rows of a key are dicts with a time, which timers are set from."""
    release = case.releases[number]

    def opened(self: Any, ctx: sf.Context) -> None:
        self.turns, self.order = Counter[int](), count()

    def done(self: Any, row: Row, origin: datetime, ctx: sf.Context) -> Iterator[Any]:
        _, state = target(release, row)
        if row["what"] == "clear_key":
            ctx.clear_key()
            return
        held = getattr(self, state.name)
        if is_failure(case, row):
            fail(held.at(row["namespace"]) if state.namespaced and not state.is_timer else held, state)
            return
        if row["what"] == "names":
            yield from [("names", state.name, held.namespaces())] if state.namespaced else []
            return
        if state.namespaced:
            held = (held.under if state.is_timer else held.at)(row["namespace"])
        if state.is_timer:
            yield from timed(held, state, row, origin + timedelta(seconds=row["seconds"]))
        else:
            yield from changed(held, state, row)

    def process(self: Any, key: int, rows: Iterator[Row], ctx: sf.Context) -> Iterator[Any]:
        for row in rows:
            yield from done(self, row, row["ts"], ctx)
            if is_failure(case, row):
                return

    def fires(name: str) -> Any:
        def fired(self: Any, key: int, at: datetime, ctx: sf.Context) -> Iterator[Any]:
            self.turns[key] += 1
            turn = (name, key, ctx.namespace, micros(at), self.turns[key])
            yield next(self.order), *turn
            for row in of_handler(case, turn):
                yield from done(self, row, at, ctx)
                if is_failure(case, row):
                    return

        fired.__name__ = f"on_{name}"
        return fired

    body: dict[str, Any] = {"open": opened, "process": process}
    for state in release.values():
        body[state.name] = made = state.declaration()
        if state.is_timer:
            body[f"on_{state.name}"] = made.fires(fires(state.name))
    return type("Made", (sf.KeyedProcess,), body)


def is_failure(case: Case, row: Row) -> bool:
    return case.fails and row["what"] == "fail"


def fail(held: Any, state: State) -> None:
    """At once, or when what was changed is written."""
    match state.kind:
        case "value":
            held.value = object()
        case "items":
            held.add(object())
        case _:
            raise ValueError("as agreed")


def micros(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)


def timed(timer: Any, state: State, row: Row, at: datetime) -> Iterator[Any]:
    match row["what"]:
        case "set":
            timer.set(at)
        case "clear":
            timer.clear(at) if state.many else timer.clear()
        case _:
            found = timer.all() if state.many else [timer.at] if timer.at is not None else []
            yield "times", state.name, list(map(micros, found))


def changed(held: Any, state: State, row: Row) -> Iterator[Any]:
    number = row["number"]
    match row["what"], state.kind:
        case "set", "value":
            held.value = state.shown(state.made(number))
        case "set", "words":
            words = held.value
            words.append(state.made(number))
            held.value = words
        case "set", "table":
            held[number % 3] = state.shown(state.made(number))
        case "set", _:
            held.add(state.shown(state.made(number)))
        case "clear", "table" if number % 2:
            held.pop(number % 3, None)
        case "clear", _:
            held.clear()
        case _, "value" | "words":
            yield state.name, held.value
        case _, "table" if number % 2:
            yield state.name, held.get(number % 3)
        case _, "table":
            yield state.name, dict(held.items())
        case _, _:
            yield state.name, held.get()


# ---- the model ----


class Refused(Exception):
    pass


@dataclass
class Keyed(Lives):
    case: Case
    driven: KeyedDriven
    code: int = 0
    timers: set[tuple[str, int, str | None, int]] = field(default_factory=set)
    single: set[tuple[str, int, str | None, int]] = field(default_factory=set)
    """Those that may be stored in the form with one time per key still. To set one again looks nothing up, and stores it twice."""
    added: Any = field(default_factory=count)

    @property
    def declared(self) -> Release:
        return self.case.releases[self.code]

    def release(self) -> Any:
        if self.code + 1 == len(self.case.releases):
            return None
        before, self.code = self.declared, self.code + 1
        for name, state in self.declared.items():
            old = before.get(name) or self._last(name)
            if old is None:
                continue
            self.go_on(name, old, state)
            if state.many and not old.many:
                self.single |= {each for each in self.timers if each[0] == name}
            for place, entry in self.entries.items():
                if place[0] == name:
                    entry.value = stepped(old, state, entry.value)
        return process_of(self.case, self.code)

    def _last(self, name: str) -> State | None:
        """A state of earlier code, as it was declared last."""
        return next((each[name] for each in reversed(self.case.releases[: self.code]) if name in each), None)

    def batch(self, pieces: list[list[Rows]], mark: int | None) -> Said:
        self.mark, self.now = mark, self.driven.now
        said, before = Said(), len(self.entries)
        self.expire()
        if self.case.turns == 1:
            said.rows.append(told("expired", before - len(self.entries)))
        for [piece] in pieces:
            for key in dict.fromkeys(row["user"] for row in piece):
                rows = [row for row in piece if row["user"] == key]
                kept = deepcopy((self.entries, self.timers))
                try:
                    out = [each for row in rows for each in self._do(row, key, row["ts"])]
                    said.rows += [told(*each) for each in out]
                except Refused:
                    self.entries, self.timers = kept
                    said.rows.append(told("dead", repr(key), len(rows)))
        self._fire(said)
        self.single &= self.timers
        if self.case.turns == 1 and not self.single:
            said.kept = len(self.entries) + 2 * len(self.timers)
        if self.case.fed and self.case.turns == 1:
            said.rows += self._tables()
        return said

    # What code does

    def _do(self, row: Row, key: int, origin: int) -> Iterator[Any]:
        name, state = target(self.declared, row)
        match row["what"]:
            case "clear_key":
                self.entries = {
                    p: e for p, e in self.entries.items() if p[0] not in self.declared or p[1] != key
                }
                self.timers = {t for t in self.timers if t[0] not in self.declared or t[1] != key}
            case _ if is_failure(self.case, row):
                raise Refused
            case "names":
                yield from [("names", state.name, self._names(name, state, key))] if state.namespaced else []
            case what:
                timer = name, key, row["namespace"] if state.namespaced else None
                if state.is_timer:
                    yield from self._do_timer(what, state, timer, origin + row["seconds"] * SECOND)
                else:
                    yield from self._do_state(what, state, timer, row["number"])

    def _names(self, name: str, state: State, key: int) -> list[str | None]:
        """Those that hold something. Looking for that reads the first entry."""
        if state.is_timer:
            return sorted(
                {str(each[2]) for each in self.timers if each[:2] == (name, key) and each[2] is not None}
            )
        found = {place[2] for place in self.entries if place[:2] == (name, key) and place[2] is not None}
        for namespace in found:
            self.see(self._places((name, key, namespace))[:1])
        return sorted(found)  # type: ignore[type-var]

    def _places(self, held: tuple[str, int, str | None]) -> list[tuple[str, int, str | None, Any]]:
        """Those of an id, a key and a namespace: each says which of the entries of these it is."""
        return sorted(place for place in self.entries if place[:3] == held)

    def _do_timer(self, what: str, state: State, timer: Any, at: int) -> Iterator[Any]:
        mine = {each for each in self.timers if each[:3] == timer}
        if what in ("set", "clear"):
            self.timers -= {(*timer, at)} if state.many else mine
            self.timers |= {(*timer, at)} if what == "set" else set()
        else:
            yield "times", state.name, sorted(each[3] for each in mine)

    def _do_state(self, what: str, state: State, held: Any, number: int) -> Iterator[Any]:
        places, one = self._places(held), state.kind == "table" and number % 2 == 1
        if one and what != "set":
            places = [place for place in places if place[3] == number % 3]
        if what == "set":
            value, part = state.made(number), 0
            match state.kind:
                case "table":
                    part = number % 3
                case "items":
                    part = next(self.added)
                case "words":
                    value = [*(self.see(places) or [[]])[0], value]
                case "most" | "held" if places:
                    [before] = self.see(places)
                    value = max(before, value) if state.kind == "most" else before + value
                case "held":
                    value = state.type() + value
            self.put((*held, part), value)
        elif what == "clear":
            for place in places:
                del self.entries[place]
        else:
            values = [state.shown(value) for value in self.see(places)]
            match state.kind:
                case "items":
                    yield state.name, values
                case "table" if not one:
                    yield state.name, {place[3]: value for place, value in zip(places, values, strict=True)}
                case "held":
                    yield state.name, repr(values[0]) if values else None
                case "words":
                    yield state.name, values[0] if values else []
                case _:
                    yield state.name, values[0] if values else None

    # Timers

    def _fire(self, said: Said) -> None:
        """In time order, shard by shard. A timer that its handler sets to a time that is due waits for the next batch."""
        turns, order = Counter[int](), count()
        for groups in self.driven.ranges:
            waiting = set[Any]()
            while waits := [
                (at, key_group(key, GROUPS), key, namespace or "", self.declared[name].name, name)
                for name, key, namespace, at in self.timers
                if name in self.declared and key_group(key, GROUPS) in groups and self._is_due(name, at)
                and not {(name, key, namespace), (name, key, namespace, at)} & waiting
            ]:  # fmt: skip
                at, _, key, named, called, name = min(waits)
                timer = name, key, named or None
                turns[key] += 1
                self.timers.remove((*timer, at))
                turn = (called, key, timer[2], at, turns[key])
                kept, out = deepcopy((self.entries, self.timers)), [(next(order), *turn)]
                self.timers.add((*timer, at))
                try:
                    again = self._handle(timer, turn, out)
                except Refused:
                    self.entries, self.timers = kept
                    said.rows.append(told("dead", repr(key), 0))
                    continue
                said.rows += [told(*each) for each in out]
                for each in again:
                    waiting.add(each if self.declared[name].many else timer)
        said.rows.append(told("next", self._next("one", "each"), self._next("soon")))

    def _handle(self, timer: Any, turn: Any, out: list[Any]) -> list[Any]:
        """Gives what the timer is set to again that is due."""
        rows, at, mine = of_handler(self.case, turn), turn[3], timer[0]
        is_set = False
        for row in rows:
            out += self._do(row, timer[1], at)
            name, state = target(self.declared, row)
            if row["what"] == "set" and name == mine and (row["namespace"] if state.namespaced else None) == timer[2]:  # fmt: skip
                is_set = is_set or not state.many or row["seconds"] == 0
        if not is_set:
            self.timers.discard((*timer, at))
        return [each for each in self.timers if each[:3] == timer and each[3] <= at]

    def _is_due(self, name: str, at: int) -> bool:
        limit = self.now if self.declared[name].kind == "soon" else self.mark
        return limit is not None and at <= limit

    def _next(self, *kinds: str) -> int | None:
        return min((t[3] for t in self.timers if t[0] in self.declared and self.declared[t[0]].kind in kinds), default=None)  # fmt: skip

    # What is seen from outside

    def _tables(self) -> Rows:
        return [
            told("table", state.name, place[1], place[2], shown_fields(state, entry.value))
            for place, entry in self.entries.items()
            if (state := self.declared.get(place[0])) is not None and state.is_record
        ]


def shown_fields(state: State, value: Any) -> Any:
    """Without the class: what is not there is null, whatever the class has for it."""
    values = [(name, value.get(name)) for name in sorted(each[0] for each in state.fields)]
    return [(name, each.normalize() if isinstance(each, Decimal) else each) for name, each in values]


def stepped(old: State, new: State, value: Any) -> Any:
    """A stored value after a release. Fields that it lacks take their default when it is read."""
    if not new.is_record:
        kind = f"{old.number}s", f"{new.number}s"
        return converted(old.number, new.number, value) if new.kind != "words" else converted(*kind, value)
    before, out = {name: kind for name, kind, _, _ in old.fields}, {}
    for name, kind, _, aliases in new.fields:
        source = next((one for one in (name, *aliases) if one in before), None)
        if source is None or source not in value or (value[source] is None and not kind.endswith("?")):
            continue
        out[name] = converted(before[source], kind, value[source])
    return out


def told(*values: Any) -> Row:
    return {"told": repr(values)}


# ---- the operator ----


class KeyedDriven:
    """The job of `expiring`, as plays drive it."""

    def __init__(self, case: Case, play: Play, folder: Path) -> None:
        self.case = case
        self.job = Expiring(
            folder, play.backend, None, lambda _: process_of(case, 0), fed={} if case.fed else None
        )
        self.job.rescale(play.shards)
        self.now = 0
        self.pieces: list[list[pa.Table]] = []
        self.sides: dict[str, Rows] = {}
        self.counters: dict[str, int] = {}
        self._last: tuple[Any, ...] = ({}, None, 1)
        self._held: dict[str, Any] | None = {}
        """By state, what its feed has said; None: a release has changed how that is shown."""
        self._code = 0

    @property
    def ranges(self) -> list[range]:
        return [range(shard.first, shard.last + 1) for shard in self.job.shards]

    def restart(self) -> None:
        """The last rows come again, in a batch that fails before it is decided: nothing of it stays."""
        job = self.job
        before = job.schemas, job.next_id, list(job.shards), self._held
        self._run(*self._last)
        job.schemas, job.next_id, job.shards, self._held = before

    def rescale(self, shards: int) -> None:
        self.job.rescale(shards)

    def release(self, process: Any) -> None:
        here = {schema.id for schema in self._declared()}
        away = {schema.id for schema in self.job.schemas.values()} - here
        self.job.release(process)
        self._code, self._held = self._code + 1, None
        if any(schema.id in away and schema.expiry_index for schema in self._declared()):
            # Shards tell nothing of a state that is away. What has expired of it meanwhile goes with what is due next, here at once.
            at_once = {"next_event_expiry": AT_ONCE, "next_processing_expiry": AT_ONCE}
            self.job.shards = [msgspec.structs.replace(shard, **at_once) for shard in self.job.shards]

    def batch(self, table: pa.Table, mark: int | None, tables: int) -> Rows:
        rows: dict[int, Rows] = {}
        for row in table.to_pylist():
            rows.setdefault(row["user"], []).append(row)
        self.now = max([self.now, *(micros(row["ts"]) for row in table.to_pylist())])
        if mark == END:
            self.now += LATER
        self._last = rows, mark, tables
        out = self._run(*self._last)
        self.pieces = [[pa.Table.from_pylist([row for key in keys for row in rows[key]], SCHEMA)] for keys in self.job.pieces]  # fmt: skip
        return out

    def _run(self, rows: dict[int, Rows], mark: int | None, chunk: int) -> Rows:
        job, before = self.job, self.job.expired
        contents = job.contents() if job.fed is not None else {}
        on_error = "dead_letter" if self.case.fails else "fail"
        out = [told(*each) for each in job.batch(rows, self.now, mark, chunk=chunk, on_error=on_error)]
        out += [told("dead", letter[1], letter[5]) for letter in job.letters]
        earliest = [min((each[at] for each in job.next_timers if each[at] is not None), default=None) for at in (0, 1)]  # fmt: skip
        out.append(told("next", *earliest))
        if self.case.turns == 1:
            out.append(told("expired", job.expired - before))
        if len(self.case.releases) == 1:
            # A watermark may lie before 1970, and so may what expires by it.
            job.check(-END)
        if job.fed is not None:
            self._compare_feeds(contents)
            # What has expired stays in the tables until its key group has its turn.
            out += self._tables() if self.case.turns == 1 else []
        return out

    def _fed(self) -> dict[str, Any]:
        if self.job.fed is None:
            return {}
        return {state.name: self.job.schemas[state.name] for state in self._states() if not state.is_timer}

    def _states(self) -> list[State]:
        return list(self.case.releases[self._code].values())

    def _declared(self) -> list[Any]:
        names = vars(self.job.process)
        return [schema for name, schema in self.job.schemas.items() if name in names]

    def _compare_feeds(self, before: dict[bytes, bytes]) -> None:
        assert self.job.fed is not None
        last, self._held, after = self._held, {}, self.job.contents()
        for name, schema in self._fed().items():
            shown = stored(self.job, name, schema, before) if last is None else last.get(name, {})
            held = self._held[name] = dict(shown)
            applied(held, self.job.fed[name])
            assert {(row["slot"], row["state"]) for row in self.job.fed[name]} <= {(self.job.slot, name)}
            assert held == stored(self.job, name, schema, after)

    def _tables(self) -> Rows:
        tables = tables_of(operator_of(states=self.job.schemas, next_state_id=self.job.next_id))
        rows, found = list[Row](), self.job.contents()
        for state in self._states():
            if not state.is_record:
                continue
            number = self.job.schemas[state.name].id.to_bytes(2, "big")
            mine = {key: raw for key, raw in found.items() if key[2:4] == number}
            shown: Rows = (
                tables[state.name].decode(list(mine), list(mine.values())).to_pylist() if mine else []
            )
            rows += [
                told(
                    "table", state.name, row["user"], row.get("namespace"), shown_fields(state, row["value"])
                )
                for row in shown
            ]
        return rows

    def entries(self) -> int:
        """Without those of indexes."""
        found, (_, mark, _) = self.job.contents(), self._last
        check_indexes(found, self.job.shards, self._declared(), self.now, mark)
        every = {schema.expiry_index for schema in self.job.schemas.values()}
        return sum(int.from_bytes(key[2:4], "big") not in every for key in found)

    def close(self) -> None:
        """The test takes the folder away."""


def check(case: Case, play: Play) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        patch.setattr(firing, "FIRED_AT_ONCE", case.block)
        patch.setattr(due, "LEAST", 1 if case.block < 10 else 4)
        patch.setattr(firing, "REMEMBERED", case.remembered)
        if case.turns > 1:
            patch.setattr("stateflow.operators.expiry.LARGE", 0)
            patch.setattr("stateflow.operators.expiry.TURNS", case.turns)
        driven = KeyedDriven(case, play, Path(folder) / "job")
        played(play, driven, Keyed(case, driven), [SCHEMA])  # type: ignore[arg-type]


@pytest.mark.slow
@model(80, 7000)
@given(case=cases(), play=plays(ROW, releases=True))
def test_states_and_timers_are_those_of_plain_dicts(case: Case, play: Play) -> None:
    check(case, play)


# ---- dense plays, of what drawn ones seldom have ----


def turn(second: int, rows: list[Row], before: str = "") -> Turn:
    return Turn([[{**row, "ts": second * SECOND} for row in rows]], before=before)


def of_each(case: Case, what: str, users: range, number: int = 1) -> list[Row]:
    """The same for each state of each of these keys, with a namespace and without."""
    return [
        {"user": user, "what": what, "pick": pick, "namespace": namespace, "number": number, "seconds": 0}
        for user in users for pick in range(len(case.releases[0])) for namespace in (None, "a")
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_of_many_timers_that_are_due_handlers_move_and_clear_others(seed: int) -> None:
    chance = Random(seed)
    names = ("one", "other", "soon", "each", "value")
    timers = {name: State(IDS[name], name, (("f", "int", ..., ()),), many=name == "each", namespaced=name in ("one", "each")) for name in names}  # fmt: skip
    drawn = [
        [{name: chance.choice(values) for name, values in VALUES.items()} for _ in range(40)]
        for _ in range(4)
    ]
    turns = [turn(20 + 12 * number, rows) for number, rows in enumerate(drawn)]
    check(Case([timers], seed, fails=seed % 2 == 1), Play(turns, 0, "memory", 1 + seed % 2))


def with_ttls(*ttls: tuple[int, str], renew: str = "write") -> Case:
    """Every kind of state, with one of these ttls after the other: how many seconds, and what becomes of older entries."""
    kinds = {name: kind for name, kind in IDS.items() if kind not in ("one", "soon", "each")}
    states = {name: State(kind, name, (("f", "int", ..., ()),), namespaced=name == "table") for name, kind in kinds.items()}  # fmt: skip
    return Case([
        {name: replace(state, ttl=length * SECOND, existing=existing, renew=renew) for name, state in states.items()}
        for length, existing in ttls
    ])  # fmt: skip


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_a_ttl_that_is_new_or_takes_older_entries_along_looks_at_all_of_them_once_more(backend: str) -> None:
    case = with_ttls((0, "keep"), (10, "keep"), (10, "from now"), (0, "keep"))
    turns = [turn(20, of_each(case, "set", range(6)))]
    for second in range(22, 80, 14):
        turns.append(turn(second, of_each(case, "set", range(3)), "release"))
        turns.append(turn(second + 1, of_each(case, "set", range(6, 8))))
        turns.append(turn(second + 12, of_each(case, "read", range(8))))
    check(case, Play(turns, 0, backend, 2))


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@pytest.mark.parametrize("first", [0, 10])
def test_what_is_read_lives_on_from_then(first: int, backend: str) -> None:
    case = with_ttls((first, "keep"), (10, "keep"), renew="read")
    turns = [turn(20, of_each(case, "set", range(6)))]
    turns += [
        turn(second, of_each(case, "read", range(3)), before)
        for second, before in ((27, "release"), (34, ""), (41, ""), (48, ""), (70, ""))
    ]
    check(case, Play(turns, 0, backend, 2))


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_what_is_due_as_a_sweep_comes_along_counts_once(backend: str) -> None:
    case = with_ttls((10, "keep"), (10, "from now"))
    turns = [turn(20, of_each(case, "set", range(6))), turn(31, of_each(case, "read", range(6)), "release")]
    check(case, Play(turns, 0, backend, 2))


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_a_new_ttl_does_not_wait_until_something_else_is_due(backend: str) -> None:
    before, after = with_ttls((0, "keep"), (10, "from now")).releases
    longest = {"table": replace(before["table"], ttl=100 * SECOND)}
    case = Case([{**before, **longest}, {**after, **longest}])
    turns = [turn(20, of_each(case, "set", range(6)))]
    turns += [turn(22, of_each(case, "set", range(1)), "release"), turn(33, of_each(case, "read", range(6)))]
    check(case, Play(turns, 0, backend, 1))


@pytest.mark.parametrize("renew", ["write", "read"])
@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_what_is_written_under_a_shorter_ttl_leaves_by_it(backend: str, renew: str) -> None:
    case = with_ttls((40, "keep"), (10, "keep"), renew=renew)
    turns = [turn(20, of_each(case, "set", range(6))), turn(22, of_each(case, "set", range(3)), "release")]
    turns.append(turn(24, of_each(case, "read", range(3, 6))))
    turns += [turn(second, of_each(case, "read", range(8, 9))) for second in (33, 35, 61)]
    check(case, Play(turns, 0, backend, 2))
