"""Rows get the answers that a plain dict has for their keys, and only what it lacks is asked for, whatever comes between batches.

Answers with every ttl and without; services that fail on some keys, on each first call, or altogether for a batch; and releases that
add, remove, rename and widen fields of answers, and give them another ttl.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from datetime import UTC, datetime
from random import Random
from types import SimpleNamespace
from typing import Annotated, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stateflow as sf
from stateflow.errors import UserCodeError
from stateflow.format.encoding import split
from stateflow.pipelines.graph import KeyedNode
from stateflow.pipelines.processes.operator_spec import DEAD_LETTERS
from stateflow.pipelines.ready.enrichment import ANSWERS, ASKED
from tests.operators.lives import LATER, Lives, Living, check_indexes, with_ttl
from tests.operators.plays import Play, Row, Rows, Said, Turn, model, plain, played, plays, rows_of, times
from tests.operators.ready.driving import END, SECOND, Driven

VALUES: dict[str, tuple[Any, ...]] = {
    "k": ("x", "x", "y", "", None), "site": (1, 1, 1, 2, None), "n": (None, 1, 2, 3), "t": (None, "", "äö"),
}  # fmt: skip
ROWS = "k string, site int, n long, t string, ts timestamp"
SCHEMA = pa.schema(
    [("k", pa.string()), ("site", pa.int32()), ("n", pa.int64()), ("t", pa.string()), ("ts", pa.timestamp("us", "UTC"))]
)  # fmt: skip
OF_ROWS = {"k": str | None, "site": int | None, "n": int | None, "t": str | None, "ts": datetime | None}
ROW = rows_of({name: st.sampled_from(values) for name, values in VALUES.items()} | {"ts": st.one_of(*[times] * 9, st.none())})  # fmt: skip
SHORT, WHOLE, SINGLE = (Annotated[kind | None, name] for kind, name in ((int, "smallint"), (int, "int"), (float, "float")))  # fmt: skip
ANSWERED: dict[str, tuple[list[Any], tuple[Any, ...]]] = {
    "size": ([SHORT, WHOLE, int | None, SINGLE, float | None], (None, 0, 1, -300)),
    "count": ([int | None, float | None], (None, 7, 8)),
    "score": ([float | None, SINGLE], (None, 0.5, -2.25)),
    "country": ([str | None], (None, "", "SE", "long" * 9)),
    "flag": ([bytes | None], (None, b"", b"\x00\xff")),
    "seen": ([datetime | None], (None, datetime(1969, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC))),
    "is_new": ([bool | None], (None, True, False)),
}
"""By field of an answer: the types that it can have, of which releases make wider ones, and its values."""
REALS = (SINGLE, float | None)


@dataclass(frozen=True)
class Answered:
    """A field of answers, as a release declares it. What it is called changes, `of` does not."""

    of: str
    name: str
    type: Any
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Release(Living):
    fields: tuple[Answered, ...]
    output: tuple[str, ...]
    """The fields, and the columns of rows that come out, in their order."""
    diverts: bool
    batch: int
    retries: int


@dataclass(frozen=True)
class Case:
    keys: tuple[str, ...]
    releases: list[Release]
    seed: int
    concurrency: int
    answers: str
    """dict, object, or again: the same dicts with every call."""
    is_async: bool
    poisoned: int
    """One key of so many is poisoned in a batch; 0: none."""
    trembles: bool
    """The first attempt of every call fails, where calls are repeated."""


@st.composite
def cases(draw: Any) -> Case:
    releases: list[Release] = []
    unused, time = draw(st.permutations(sorted(ANSWERED))), draw(st.sampled_from(["processing", "event"]))
    for number in range(draw(st.integers(1, 4))):
        fields = draw(next_fields(releases[-1].fields, number)) if releases else []
        least = 0 if fields else 1
        new, unused = unused[: (count := draw(st.integers(least, 2)))], unused[count:]
        if not fields and not new:  # All have been there.
            break
        fields += [Answered(name, name, draw(st.sampled_from(ANSWERED[name][0]))) for name in new]
        columns = draw(st.sets(st.sampled_from(sorted(OF_ROWS))))
        made = Release(
            tuple(fields), tuple(draw(st.permutations([*(each.name for each in fields), *sorted(columns)]))),
            draw(st.booleans()), draw(st.sampled_from([1, 2, 3, 100])), draw(st.sampled_from([0, 1, 3])), time=time,
        )  # fmt: skip
        before = releases[-1] if releases else made
        same_ttl = replace(
            made, ttl=before.ttl, renew=before.renew, existing=before.existing, had_ttl=before.had_ttl
        )
        releases.append(draw(with_ttl(same_ttl)) if not releases or draw(st.booleans()) else same_ttl)
    answers = draw(st.sampled_from(["dict", "object", "again"]))
    return Case(
        draw(st.sampled_from([("k",), ("k", "site"), ("site",)])), releases, draw(st.integers(0, 10**6)),
        1 if answers == "again" else draw(st.integers(1, 3)), answers, draw(st.booleans()), draw(st.sampled_from([0, 2, 5])),
        draw(st.booleans()),
    )  # fmt: skip


@st.composite
def next_fields(draw: Any, fields: Sequence[Answered], number: int) -> list[Answered]:
    """What another release may make of the answers that are stored. What it takes out never comes back."""
    out = []
    for each in fields:
        what = draw(st.sampled_from(["keep", "keep", "keep", "remove", "rename", "widen"]))
        kept = replace(each, aliases=())
        if what == "rename":
            kept = replace(each, name=f"{each.of}_{number}", aliases=(each.name,))
        if what == "widen":
            kinds = ANSWERED[each.of][0]
            # A whole number may become a real one, and no real one a whole one.
            kept = replace(kept, type=draw(st.sampled_from([k for k in kinds if k in REALS or each.type not in REALS])))  # fmt: skip
        out += [kept] if what != "remove" else []
    return out


def node_of(case: Case, number: int) -> KeyedNode:
    release = case.releases[number]
    types = {each.name: Annotated[each.type, sf.field(aliases=list(each.aliases))] if each.aliases else each.type for each in release.fields}  # fmt: skip
    output = make_dataclass("Output", [(name, (types | OF_ROWS)[name]) for name in release.output])

    @sf.pipeline("made")
    def made(flow: sf.Flow) -> None:
        rows = flow.source("in", sf.delta("/in"), ROWS, event_time="ts", watermark="0 seconds")
        rows.key_by(*case.keys).enrich(
            "op", ask_later if case.is_async else ask, output, batch=release.batch, concurrency=case.concurrency, ttl=release.declared_ttl,
            retries=release.retries, backoff="0 seconds", rate=1e6 if case.seed % 3 == 0 else None,
            on_error="dead_letter" if release.diverts else "fail",
        )  # fmt: skip

    return made.build().operators[0]


# ---- the service ----


class PoisonedError(Exception):
    pass


@dataclass
class Service:
    """Gives other answers with every batch."""

    case: Case
    code: int = 0
    batch: int = 0
    is_healed: bool = False
    calls: list[list[Any]] = field(default_factory=list)
    used: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def release(self) -> Release:
        return self.case.releases[self.code]

    def chance(self, key: Any, what: str = "") -> Random:
        return Random(f"{self.case.seed}:{self.batch}:{key}:{what}")

    def is_poisoned(self, key: Any) -> bool:
        often = self.case.poisoned
        return often > 0 and not self.is_healed and self.chance(key, "poisoned").randrange(often) == 0

    def answer(self, key: Any) -> dict[str, Any] | None:
        """By name."""
        chance = self.chance(key)
        if chance.randrange(4) == 0:
            return None
        return {each.name: as_type(chance.choice(ANSWERED[each.of][1]), each.type) for each in self.release.fields}  # fmt: skip

    def ask(self, keys: list[Any]) -> list[Any]:
        trembles = self.case.trembles and self.release.retries and keys not in self.calls
        self.calls.append(list(keys))
        if trembles:
            raise ConnectionError("no line")
        if any(map(self.is_poisoned, keys)):
            raise PoisonedError("as agreed")
        return [self._given(at, self.answer(key)) for at, key in enumerate(keys)]

    def _given(self, at: int, answer: dict[str, Any] | None) -> Any:
        if answer is None or self.case.answers == "dict":
            return answer
        if self.case.answers == "object":
            return SimpleNamespace(**answer)
        used = self.used.setdefault(at, {})
        for name, value in answer.items():
            if isinstance(value, bytes) and isinstance(buffer := used.get(name), bytearray):
                buffer[:] = value
            else:
                used[name] = bytearray(value) if isinstance(value, bytes) else value
        return used


SERVICES: list[Service] = []
"""The last one is that of the play: operators go to their tasks as bytes, and functions of modules by name."""


def ask(keys: list[Any]) -> list[Any]:
    return SERVICES[-1].ask(keys)


async def ask_later(keys: list[Any]) -> list[Any]:
    return SERVICES[-1].ask(keys)


def as_type(value: Any, kind: Any) -> Any:
    return float(value) if kind in REALS and value is not None else value


# ---- the model ----


@dataclass
class Enrichment(Lives):
    case: Case
    driven: EnrichmentDriven
    code: int = 0

    @property
    def release_now(self) -> Release:
        return self.case.releases[self.code]

    @property
    def declared(self) -> dict[str, Release]:
        return {ANSWERS: self.release_now}

    def release(self) -> KeyedNode | None:
        """Answers that are stored go on with the fields that both releases have."""
        if self.code + 1 == len(self.case.releases):
            return None
        old, self.code = self.release_now, self.code + 1
        self.go_on(ANSWERS, old, self.release_now)
        for entry in self.entries.values():
            entry.value = {
                each.of: as_type(entry.value[each.of], each.type)
                for each in self.release_now.fields if each.of in entry.value
            }  # fmt: skip
        return node_of(self.case, self.code)

    def batch(self, pieces: list[list[Rows]], mark: int | None) -> Said:
        self.mark, self.now, said = mark, self.driven.now, Said()
        service = self.driven.service
        self.expire()
        asked, calls, times = set[Any](), 0, 0
        for [piece] in pieces:
            keys = [self._key(row) for row in piece]
            rows = dict[Any, Rows]()
            for key, row in zip(keys, piece, strict=True):
                rows.setdefault(key, []).append(row)
            known = [key for key in rows if key is not None and (ANSWERS, key) in self.entries]
            missing = [key for key in rows if key is not None and key not in known]
            answers = dict(zip(known, self.see([(ANSWERS, key) for key in known]), strict=True))
            asked.update(missing)
            times += len(missing)
            calls += -(-len(missing) // self.release_now.batch)
            for key in missing:
                if service.is_poisoned(key):
                    said.rows.append(told("letter", repr(key), sorted(map(shown, rows.pop(key)))))
                    continue
                given = service.answer(key) or {}
                answers[key] = {each.of: given.get(each.name) for each in self.release_now.fields}
                self.put((ANSWERS, key), answers[key])
            said.rows += [self._out(row, answers.get(key, {})) for key, mine in rows.items() for row in mine]
        said.rows += [told("asked", key) for key in asked]
        calls *= 2 if self.case.trembles and self.release_now.retries else 1
        said.rows.append(told("asked", times, 0 if self.case.poisoned else calls))
        said.kept = len(self.entries)
        return said

    def _key(self, row: Row) -> Any:
        key = tuple(row[name] for name in self.case.keys)
        return None if None in key else key[0] if len(key) == 1 else key

    def _out(self, row: Row, answer: Row) -> Row:
        values = row | {each.name: answer.get(each.of) for each in self.release_now.fields}
        return {name: values[name] for name in self.release_now.output}


def told(*values: Any) -> Row:
    return {"told": repr(values)}


def shown(row: Row) -> str:
    """What a dead letter has of a row, apart from its time."""
    return repr([row[name] for name in VALUES])


# ---- the operator ----


class EnrichmentDriven(Driven):
    service: Service

    @classmethod
    def made(cls, case: Case, play: Play) -> EnrichmentDriven:
        driven = cls.of(node_of(case, 0), play.shards, backend=play.backend)
        assert isinstance(driven, EnrichmentDriven)
        driven.service = Service(case)
        SERVICES[:] = [driven.service]
        return driven

    def release(self, node: KeyedNode) -> None:
        self.service.code += 1
        super().release(node)

    def batch(self, rows: pa.Table | None, watermark: int | None, tables: int = 1) -> Rows:
        """A batch that fails has changed nothing, and comes again when the service answers."""
        assert rows is not None
        service = self.service
        service.batch, service.is_healed = service.batch + 1, False
        self.now = max([self.now, *(plain(row["ts"]) for row in rows.to_pylist() if row["ts"] is not None)])
        self.now += LATER if watermark == END else 0
        if service.release.diverts or not service.case.poisoned:
            return self._tried(rows, watermark, tables)
        sealed = self.seal()
        self.open(sealed)
        try:
            return self._tried(rows, watermark, tables)
        except UserCodeError as error:
            if not self._blames_a_poisoned_key(str(error)):
                raise
            for _, backend, _ in self._shards:
                backend.close()
            self.open(sealed)
            service.is_healed = True
            return self._tried(rows, watermark, tables)

    def _blames_a_poisoned_key(self, error: str) -> bool:
        asked = (key for keys in self.service.calls for key in keys)
        return any(f" {key!r}, in " in error for key in asked if self.service.is_poisoned(key))

    def _tried(self, rows: pa.Table, watermark: int | None, tables: int) -> Rows:
        self.service.calls.clear()
        self.counters, self.sides = {}, {}
        out = list(super().batch(rows, watermark, tables))
        calls, case = self.service.calls, self.service.case
        assert all(len(keys) <= self.service.release.batch for keys in calls)
        for letter in self.sides.get(DEAD_LETTERS, []):
            of_key = json.loads(letter["rows"])
            assert (letter["error"], letter["row_count"]) == ("PoisonedError: as agreed", len(of_key))
            out.append(told("letter", letter["key"], sorted(map(shown, of_key))))
        out += [told("asked", key) for key in {key for keys in calls for key in keys}]
        return [*out, told("asked", self.counters.get(ASKED, 0), 0 if case.poisoned else len(calls))]

    def entries(self) -> int:
        found = [key for _, backend, _ in self._shards for key, _ in backend.scan(b"", b"\xff" * 8)]
        schema = self._states[ANSWERS]
        check_indexes(found, [shard for _, _, shard in self._shards], [schema], self.now, self._watermark)
        return sum(split(key).state_id == schema.id for key in found)


def check(case: Case, play: Play) -> None:
    driven = EnrichmentDriven.made(case, play)
    played(play, driven, Enrichment(case, driven), [SCHEMA], reads_sides=False)


def with_ttls(*ttls: tuple[int, str, str], poisoned: int = 0) -> Case:
    """Every field, with one of these ttls after the other: how many seconds, what renews, and what becomes of older answers. With
    each release every field gets another name."""
    releases = []
    for number, (length, renew, existing) in enumerate(ttls):
        fields = tuple(
            Answered(name, f"{name}_{number}", kinds[0], (f"{name}_{number - 1}",)) for name, (kinds, _) in ANSWERED.items()
        )  # fmt: skip
        names = (*(each.name for each in fields), "k", "n")
        releases.append(
            Release(fields, names, number % 2 == 1, 1, 1, ttl=length * SECOND, renew=renew, existing=existing)
        )
    return Case(("k", "site"), releases, len(ttls), 1, "again", False, poisoned, False)


def dense(seed: int, seconds: Sequence[int], releases: Sequence[int]) -> Play:
    """Batches at these seconds, each of a few keys; before some of them a release."""
    chance, turns = Random(seed), []
    for second in seconds:
        keys = chance.sample([(k, site) for k in ("x", "y", "") for site in (1, 2)], 3)
        rows = [{"k": k, "site": site, "n": n, "t": None, "ts": second * SECOND} for k, site in keys for n in range(2)]  # fmt: skip
        turns.append(Turn([rows], before="release" if second in releases else chance.choice(["", "restart"])))
    return Play(turns, 0, chance.choice(["memory", "rocksdb"]), 2)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("poisoned", [0, 3])
def test_answers_that_are_used_live_on(poisoned: int, seed: int) -> None:
    check(with_ttls((10, "read", "keep"), poisoned=poisoned), dense(seed, range(20, 80, 4), ()))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("renew", ["write", "read"])
def test_answers_go_on_under_another_ttl(renew: str, seed: int) -> None:
    ttls = (0, renew, "keep"), (40, renew, "from now"), (10, renew, "keep"), (0, renew, "keep")
    check(with_ttls(*ttls), dense(seed, range(20, 110, 5), (30, 70, 90)))


@pytest.mark.slow
@model(60, 5000)
@given(case=cases(), play=plays(ROW, releases=True))
def test_rows_get_the_answers_that_a_dict_has(case: Case, play: Play) -> None:
    check(case, play)
