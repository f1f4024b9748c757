"""A broadcast rule reaches the keys that have something in a state, whatever the kind of state."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import stateflow as sf
from stateflow.errors import UserCodeError
from stateflow.format.encoding import prefix
from stateflow.format.records import Shard
from stateflow.operators import visiting
from stateflow.operators.context import Moment
from stateflow.operators.keyed import KeyedEngine
from stateflow.pipelines.processes.operator_spec import OperatorSpec
from stateflow.pipelines.rows.row_type import RowType
from stateflow.state.backends.base import Backend
from stateflow.state.backends.memory import memory_backend
from stateflow.state.backends.rocksdb import rocksdb_backend
from stateflow.testing import KeyedHarness
from tests.refusals.refusal import refused

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Priced(sf.KeyedProcess[int, Any, Any]):
    factor = sf.BroadcastState(str, float)
    total = sf.ValueState(float, ttl="1 hour")
    items = sf.MapState(str, float, namespace=str)
    log = sf.ListState(str)
    alarm = sf.Timer("processing")

    def process(self, key: int, rows: Any, ctx: sf.Context) -> None:
        for _, what, value in rows:
            if what == "total":
                self.total.value = value
            elif what == "log":
                self.log.add(str(value))
            else:
                self.items.at(what)["x"] = value

    def process_broadcast(self, name: str, rows: Iterator[Any], ctx: sf.Context) -> None:
        for what, factor in rows:
            self.factor[what] = factor
            if what == "total":
                ctx.for_each_key(self.total, self.reprice)
            if what == "items":
                ctx.for_each_key(self.items, self.count)
            if what == "log":
                ctx.for_each_key(self.log, self.forget)

    def reprice(self, key: int, ctx: sf.Context) -> Iterator[Any]:
        assert ctx.key == key
        self.total.value = (self.total.value or 0) * self.factor["total"]
        self.alarm.set(ctx.now + timedelta(minutes=1))
        yield "repriced", key, self.total.value

    def count(self, key: int, ctx: sf.Context) -> list[Any]:
        return [("items", key, len(self.items.namespaces()))]

    def forget(self, key: int, ctx: sf.Context) -> None:
        ctx.clear_key()

    @alarm.fires
    def ring(self, key: int, at: datetime, ctx: sf.Context) -> Iterator[Any]:
        yield "rang", key, self.total.value


@pytest.fixture
def harness() -> KeyedHarness:
    return KeyedHarness(Priced, key=lambda row: row[0], now=NOON)


def test_a_rule_reaches_every_key_of_the_state_and_no_other(harness: KeyedHarness) -> None:
    harness.rows((1, "total", 2.0), (2, "total", 3.0), (3, "log", 1.0))
    assert sorted(harness.broadcast("rates", ("total", 10.0))) == [
        ("repriced", 1, 20.0),
        ("repriced", 2, 30.0),
    ]
    assert [harness.state(key).total.value for key in (1, 2, 3)] == [20.0, 30.0, None]
    assert sorted(harness.advance(now=timedelta(minutes=1))) == [("rang", 1, 20.0), ("rang", 2, 30.0)]


def test_a_key_is_visited_once_however_many_entries_and_namespaces_it_has(harness: KeyedHarness) -> None:
    harness.rows((1, "a", 1.0), (1, "b", 1.0), (2, "b", 1.0), (3, "total", 1.0))
    assert sorted(harness.broadcast("rates", ("items", 1.0))) == [("items", 1, 2), ("items", 2, 1)]


def test_what_has_expired_is_not_visited(harness: KeyedHarness) -> None:
    harness.rows((1, "total", 2.0))
    harness.advance(now=timedelta(minutes=30))
    harness.rows((2, "total", 3.0))
    harness.advance(now=timedelta(minutes=40))
    assert harness.broadcast("rates", ("total", 2.0)) == [("repriced", 2, 6.0)]


def test_a_visit_may_clear_its_key(harness: KeyedHarness) -> None:
    harness.rows((1, "log", 1.0), (1, "total", 1.0), (1, "a", 1.0), (2, "total", 1.0))
    harness.broadcast("rates", ("log", 0.0))
    of_operator = {"factor": {"log": 0.0}}
    assert (harness.snapshot(1), harness.snapshot(2)) == (of_operator, {"total": 1.0, **of_operator})


def test_two_visits_of_a_batch_see_each_others_changes(harness: KeyedHarness) -> None:
    harness.rows((1, "total", 2.0))
    told = harness.broadcast("rates", ("total", 2.0), ("total", 3.0))
    assert told == [("repriced", 1, 6.0), ("repriced", 1, 18.0)], "the map has the last factor in both"


def test_what_cannot_be_visited_is_refused() -> None:
    class Wrong(Priced):
        def process(self, key: int, rows: Any, ctx: sf.Context) -> None:
            ctx.for_each_key(self.total, self.reprice)

        def process_broadcast(self, name: str, rows: Iterator[Any], ctx: sf.Context) -> None:
            ctx.for_each_key(self.alarm if name == "timer" else 3, self.reprice)

    harness = KeyedHarness(Wrong, key=lambda row: row[0])
    for name in ("timer", "number"):
        with refused(
            sf.UsageError, "'Wrong'", "process_broadcast", "ctx.for_each_key", "takes a keyed state"
        ):
            harness.broadcast(name, 1)
    with pytest.raises(sf.UsageError, match="visits its keys in process_broadcast"):
        harness.rows((1, "total", 1.0))


class Brittle(Priced):
    def reprice(self, key: int, ctx: sf.Context) -> Iterator[Any]:
        self.total.value = -1.0
        yield "lost", key, 0.0
        if key == 2:
            raise ValueError("not this one")


def test_a_key_on_which_a_visit_fails_is_named_or_diverted() -> None:
    rows = [(1, "total", 1.0), (2, "total", 2.0), (3, "total", 3.0)]
    failing = KeyedHarness(Brittle, key=lambda row: row[0])
    failing.rows(*rows)
    with refused(UserCodeError, "operator 'Brittle'", "key 2", "not this one"):
        failing.broadcast("rates", ("total", 1.0))
    assert failing.state(1).total.value == 1.0, "nothing of the batch was stored"
    diverting = KeyedHarness(Brittle, key=lambda row: row[0], on_error="dead_letter")
    diverting.rows(*rows)
    told = diverting.broadcast("rates", ("total", 1.0))
    assert sorted(key for _, key, _ in told) == [1, 3]
    assert [diverting.state(key).total.value for key in (1, 2, 3)] == [-1.0, 2.0, -1.0]
    assert len(diverting.dead_letters) == 1


class Mutating(sf.KeyedProcess[int, Any, Any]):
    items = sf.ValueState(list[int], default=list)

    def process(self, key: int, rows: Any, ctx: sf.Context) -> None:
        self.items.value = [key]

    def process_broadcast(self, name: str, rows: Iterator[Any], ctx: sf.Context) -> None:
        ctx.for_each_key(self.items, self.grow)

    def grow(self, key: int, ctx: sf.Context) -> None:
        self.items.value.append(0)


def test_the_harness_finds_what_a_visit_changes_in_place_and_does_not_set() -> None:
    harness = KeyedHarness(Mutating, key=lambda row: row)
    harness.rows(1, 2, 3)
    with refused(sf.UsageError, "items"):
        harness.broadcast("rates", 1)


class Adding(sf.KeyedProcess[int, Any, Any]):
    total = sf.ValueState(int)

    def process_broadcast(self, name: str, rows: Iterator[Any], ctx: sf.Context) -> None:
        ctx.for_each_key(self.total, self.add)

    def add(self, key: int, ctx: sf.Context) -> Iterator[Any]:
        self.total.value += 1
        yield key


class Brief(sf.KeyedProcess[int, Any, Any]):
    """Both kinds of entries: one per key, and several."""

    total = sf.ValueState(int, ttl="1 hour")
    items = sf.MapState(int, int, ttl="1 hour")

    def process_broadcast(self, name: str, rows: Iterator[Any], ctx: sf.Context) -> None:
        ctx.for_each_key(self.total if name == "total" else self.items, lambda key, ctx: [key])


def engine_over(backend: Backend, process: Any = Adding, now: int = 0) -> KeyedEngine:
    rows = RowType("Any", (), lambda *values: values, False)
    ids = {"total": 1, "items": 2}
    spec = OperatorSpec("op", process, process, ("k",), ("int",), (rows,), rows, state_ids=ids)
    engine = KeyedEngine(spec, Moment(1, now, 0, None), 0)
    engine.attach(backend)
    return engine


@pytest.mark.parametrize("opener", [memory_backend, rocksdb_backend])
def test_keys_come_in_the_order_of_the_state_in_blocks_and_nothing_more_is_in_memory(
    opener: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visiting, "VISITED_AT_ONCE", 100)
    backend = opener()(Shard(first=0, last=1, backend="x"), tmp_path, lambda ref: tmp_path)
    engine = engine_over(backend)
    number = engine.binding.stored[0].serializer
    full = {key: prefix(key % 2, 1) + engine.codec.encode(key) + b"\0" for key in range(-500, 500)}
    backend.write((full[key], number.dumps(key)) for key in full)
    engine.broadcast("rates", [])
    largest = 0
    told: list[int] = []
    for _ in engine.visit(range(2)):
        largest = max(largest, len(engine.out))
        told += engine.out
        engine.out.clear()
    assert told == sorted(full, key=lambda key: full[key])
    assert largest == 100
    assert all(number.loads(backend.get(full[key]) or b"") == key + 1 for key in full)
    assert engine.changed
    backend.close()


@pytest.mark.parametrize("name", ["total", "items"])
def test_what_has_expired_and_is_still_stored_is_not_visited(tmp_path: Path, name: str) -> None:
    backend = memory_backend()(Shard(first=0, last=0, backend="x"), tmp_path, lambda ref: tmp_path)
    engine = engine_over(backend, Brief, now=10)
    number, codec = engine.binding.stored[0].serializer, engine.codec
    for key, expiry in {1: 9, 2: 11, 3: 10}.items():
        base = prefix(0, 1 if name == "total" else 2) + codec.encode(key) + b"\0"
        for part in (b"",) if name == "total" else (codec.encode(7), codec.encode(8)):
            backend.write([(base + part, number.dumps_with_expiry(5, expiry))])
    engine.broadcast(name, [])
    for _ in engine.visit(range(1)):
        pass
    assert engine.out == [2]
