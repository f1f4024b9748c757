"""Operators, releases and accidents of a job in an order that a seed draws. After each step a plain model, what a query finds and what
the feeds' tables say are the same at every slot; so are differences and histories at the end."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.errors import StateflowError
from stateflow.format.records import Owner, Record
from stateflow.jobs.erasure import plan_erase
from stateflow.jobs.job import Job
from stateflow.reading.snapshots import reader_context
from stateflow.spark.sinks.memory import MemorySink
from tests.spark.pipelines import ORDER, Order, Workbench, at

pytestmark = pytest.mark.usefixtures("own_classes")

USERS = range(5)
STATES = ("total", "items", "per")


@dataclass
class Spent:
    amount: float = 0.0


@dataclass
class SpentOften:
    amount: float = 0.0
    orders: int = 7


@dataclass(frozen=True)
class Release:
    """What a pipeline says."""

    spent: type[Any] = Spent
    names: tuple[str, ...] = STATES
    fed: frozenset[str] = frozenset(STATES)
    table: int = 0
    """Tables get another number when a run has warned of them."""

    def pipeline(self, bench: Workbench) -> sf.Pipeline:
        spent, items, per = self.names
        declared = {
            spent: sf.ValueState(self.spent, default=self.spent, aliases=_others("total", spent)),
            items: sf.ListState(int, aliases=_others("items", items)),
            per: sf.MapState(str, int, aliases=_others("per", per)),
        }

        def process(self: Any, key: int, rows: Any, ctx: Any) -> Any:
            held = Held(
                getattr(self, spent).value.amount if getattr(self, spent).exists() else None,
                list(getattr(self, items)),
                dict(getattr(self, per).items()),
            )
            before = replace(held, items=list(held.items), per=dict(held.per))
            for row in rows:
                held.take(row.sku, row.amount)
            value = getattr(self, spent).value
            if held.total is None:
                getattr(self, spent).clear()
            else:
                value.amount = held.total
                getattr(self, spent).value = value
            if held.items[: len(before.items)] == before.items:
                for item in held.items[len(before.items) :]:
                    getattr(self, items).add(item)
            else:
                getattr(self, items).update(held.items)
            for gone in before.per.keys() - held.per.keys():
                getattr(self, per).pop(gone)
            for name, number in held.per.items():
                getattr(self, per)[name] = number
            yield from ()

        operator = type("Played", (sf.KeyedProcess,), {**declared, "process": process})

        @sf.pipeline("played")
        def played(flow: sf.Flow) -> None:
            rows = flow.source("orders", bench.source("orders", ORDER), Order)
            rows.key_by("user").process("op", operator, output="user long")
            for state, name in zip(STATES, self.names, strict=True):
                if state in self.fed:
                    flow.state_changes("op", state=name).collect(self.sink(state), self.rows(bench, state))

        return played

    def sink(self, state: str) -> str:
        return f"{state}-{self.table}"

    def rows(self, bench: Workbench, state: str) -> Any:
        return sf.memory(f"{bench.folder}/{self.sink(state)}")


def _others(state: str, name: str) -> list[str]:
    return [each for each in (state, f"{state}_2") if each != name]


@dataclass
class Held:
    """What a key has, in the operator and in the model."""

    total: float | None = None
    items: list[int] = field(default_factory=list)
    per: dict[str, int] = field(default_factory=dict)

    def take(self, what: str, amount: float) -> None:
        if what == "clear":
            self.total, self.items, self.per = None, [], {}
        elif what == "trim":
            self.items = self.items[-2:]
        elif what == "again":
            self.total = self.total or 0.0
        else:
            self.total = (self.total or 0.0) + amount
            self.items = [*self.items, int(amount)]
            self.per = {**self.per, f"k{int(amount) % 3}": int(amount)}


Model = Mapping[int, Held]
"""By user."""


class Game:
    def __init__(self, spark: SparkSession, folder: Path, seed: int) -> None:
        self.bench, self.rng = Workbench(spark, folder), random.Random(seed)
        self.release, self.backend = Release(), ("rocksdb", "memory")[seed % 2]
        self.files: list[list[Order]] = []
        self.models: dict[int, tuple[int, Model]] = {0: (0, {})}
        """By slot the files read so far, and what the keys have."""
        self.erased: dict[int, int] = {}
        """By slot of the erasure the user."""
        self.queried: dict[int, Model] = {}
        self.compared = 0
        self.job = Job(str(folder / "root"), "played")

    @property
    def options(self) -> Any:
        return self.bench.options()

    def play(self, steps: int) -> None:
        self.run(2)
        moves = [
            self.restore,
            self.restore,
            self.evolve,
            self.rename,
            self.without,
            self.rescale,
            self.erase,
            self.fail,
        ]
        for move in self.rng.sample(moves, steps):
            move()
        self.release = replace(self.release, fed=frozenset(STATES))
        self.run(1)

    # -- moves

    def run(self, batches: int) -> None:
        for _ in range(batches):
            users = self.rng.sample(USERS, self.rng.randint(1, 3))
            kinds = ["add", "add", "again", "clear", "trim"]
            rows = [
                Order(user, self.rng.choice(kinds), float(self.rng.randint(1, 9)), at(len(self.files)))
                for user in users
                for _ in range(2)
            ]
            self.files.append(rows)
            self.bench.rows("orders", rows)
        pipeline = self.release.pipeline(self.bench)
        report = self.bench.run(pipeline, retained_checkpoints=80, backend=self.backend, parallelism=2)
        warned = [each for each in report.warnings if "the feed of" in each]
        self.check(
            {state for state in STATES if any(f"({self.release.sink(state)})" in each for each in warned)}
        )
        if any("still have those of the erased key" not in each for each in warned):
            self.release = replace(self.release, table=self.release.table + 1)

    def restore(self) -> None:
        record = self.rng.choice(self.job.log().checkpoints)
        parallelism = self.rng.choice((0, 1, 3))
        plan = self.job.restore(
            f"checkpoint:{record.slot}",
            self.release.pipeline(self.bench),
            options=self.options,
            parallelism=parallelism,
        )
        plan.apply()
        self.run(1)

    def rescale(self) -> None:
        self.job.rescale(self.rng.choice((1, 3, 4)))
        self.run(1)

    def erase(self) -> None:
        user = self.rng.choice(USERS)
        erased = plan_erase(self.job, str(user), self.options, absent=True).apply(Owner(run="officer"))
        self.erased[erased.checkpoint] = user
        self.check(set())
        self.run(1)

    def evolve(self) -> None:
        self.release = replace(self.release, spent=SpentOften)
        self.run(2)

    def rename(self) -> None:
        at_ = self.rng.randrange(len(STATES))
        names = [f"{name}_2" if number == at_ else name for number, name in enumerate(self.release.names)]
        self.release = replace(self.release, names=tuple(names))
        self.run(1)

    def without(self) -> None:
        before, some = self.release, self.rng.choice(STATES)
        self.release = replace(before, fed=frozenset((some,)))
        self.run(2)
        self.release = replace(before, fed=frozenset(STATES), table=self.release.table)
        self.run(1)

    def fail(self) -> None:
        """Once, before a sink has prepared or committed."""
        step, calls = self.rng.choice(("prepare", "commit")), iter([False] * self.rng.randrange(3) + [True])
        right = getattr(MemorySink, step)

        def wrong(*given: Any) -> Any:
            if next(calls, False):
                raise ConnectionError("an accident")
            return right(*given)

        with pytest.MonkeyPatch.context() as accident, suppress(ConnectionError, StateflowError):
            accident.setattr(MemorySink, step, staticmethod(wrong) if step == "commit" else wrong)
            self.run(1)
        self.run(0)

    # -- what is the same

    def check(self, warned: set[str]) -> None:
        chain = [record for record in self.job.log().chain if record.carries_state]
        for record in chain:
            if record.slot not in self.models:
                self.models[record.slot] = self.model_of(record)
                if record.slot in {each.slot for each in self.job.log().checkpoints}:
                    self.queried[record.slot] = self.queried_at(record)
                    assert self.queried[record.slot] == self.models[record.slot][1], record.slot
        for state in STATES:
            if state not in self.release.fed or state in warned:
                continue
            sink = self.release.sink(state)
            told = [
                record.slot
                for record, following in zip(chain, [*chain[1:], None], strict=True)
                if sink in record.sinks or (following is not None and sink in following.sinks)
            ]
            self.is_told(state, [slot for slot in told if slot in self.queried])

    def model_of(self, record: Record) -> tuple[int, Model]:
        read, keys = self.models[record.based_on or 0]
        held = {user: replace(own, items=list(own.items), per=dict(own.per)) for user, own in keys.items()}
        if record.kind == "erase":
            held.pop(self.erased[record.slot], None)
        if record.kind == "checkpoint" and record.statistics.get("processed_rows"):
            for row in self.files[read]:
                held.setdefault(row.user, Held()).take(row.sku, row.amount)
            read += 1
        return read, {user: own for user, own in held.items() if own != Held()}

    def queried_at(self, record: Record) -> Model:
        if "op" not in record.operators:
            return {}
        reader = reader_context(self.options, self.job.root, self.job.clock).reader(record)
        states = record.operators["op"].states
        names = [next(name for name in (f"{state}_2", state) if name in states) for state in STATES]
        found = {}
        for user in USERS:
            total, items, per = (reader.get("op", name, user) for name in names)
            found[user] = Held(None if total is None else total["amount"], items or [], per or {})
        reader.close()
        return {user: own for user, own in found.items() if own != Held()}

    def is_told(self, state: str, slots: list[int]) -> None:
        """Applied to nothing, the rows up to a slot are the state there, and each goes on from the one before it."""
        rows = self.release.rows(self.bench, state).rows
        held: dict[Any, Any] = {}
        for slot in sorted({*slots, *self.erased, *(row["slot"] for row in rows)}):
            if slot in self.erased:
                held = {entry: value for entry, value in held.items() if entry[0] != self.erased[slot]}
            here = [(_entry(row), row) for row in rows if row["slot"] == slot]
            assert len({entry for entry, _ in here}) == len(here), here
            for entry, row in here:
                assert _shown(held.pop(entry, None)) == _shown(row["before"]), (row, rows)
                if row["kind"] not in ("delete", "expire"):
                    held[entry] = row["after"]
            if slot in slots and rows and slot >= rows[0]["slot"]:
                assert _by_user(state, held) == _of_model(state, self.models[slot][1]), (state, slot, rows)
                self.compared += 1


def _entry(row: Mapping[str, Any]) -> tuple[Any, ...]:
    names = ("user", "map_key", "added_slot", "position")
    return tuple(row[name] for name in names if name in row)


def _shown(value: Any) -> Any:
    return value["amount"] if isinstance(value, dict) else value


def _by_user(state: str, held: Mapping[Any, Any]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for (user, *part), value in sorted(held.items()):
        if state == "total":
            found[user] = value["amount"]
        elif state == "items":
            found.setdefault(user, []).append(value)
        else:
            found.setdefault(user, {})[part[0]] = value
    return found


def _of_model(state: str, model: Model) -> dict[int, Any]:
    found = {user: getattr(own, state) for user, own in model.items()}
    return {user: value for user, value in found.items() if value not in (None, [], {})}


@pytest.mark.system
@pytest.mark.parametrize("seed", range(2))
def test_the_model_a_query_and_the_feeds_agree_at_every_slot(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    game = Game(spark, tmp_path, seed)
    game.play(5)
    assert game.compared > 20
