"""Columns with a ttl: what has expired is not given, and leaves the store."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import stateflow as sf
from stateflow.format.encoding import prefix, split
from stateflow.format.records import Shard, StateSchema
from stateflow.operators.expiry import OperatorExpiry
from stateflow.state.backends.base import Backend
from stateflow.state.backends.memory import memory_backend
from stateflow.state.columns.layout import ColumnLayout
from stateflow.state.columns.state import ColumnState
from stateflow.state.expiry.index import expiry_of_schema
from stateflow.state.tabular import StateTable
from stateflow.state.values.plain import plain_reader
from tests.refusals.refusal import refused

SECOND = 10**6
GROUPS = 8


def schema_of(layout: ColumnLayout) -> StateSchema:
    layout.check("operator 'x'")
    return msgspec.structs.replace(layout.schema(), id=1, expiry_index=2)


class Columns:
    """One state over one backend. Every `at` begins a batch."""

    def __init__(self, layout: ColumnLayout, folder: Path) -> None:
        self.schema = schema_of(layout)
        shard = Shard(first=0, last=GROUPS - 1, backend="memory")
        self.backend: Backend = memory_backend()(shard, folder / "shard", lambda ref: Path(ref.path))
        self.slot = 0
        self.known: Any = (None, None)

    def at(self, clock: int) -> ColumnState:
        self.slot += 1
        moments = (0, clock) if self.schema.ttl_time == "event" else (clock, None)
        expiry = expiry_of_schema(self.schema, *moments, self.slot)
        assert expiry is not None
        self.expiry = OperatorExpiry([expiry], self.slot)
        self.expiry.attach(self.backend)
        self.expiry.expire(range(GROUPS), self.known, 1000)
        state = ColumnState([("user", "int")], self.schema, GROUPS, "operator 'x'", expiry)
        state.attach(self.backend, range(GROUPS))
        return state

    def done(self) -> None:
        self.known = self.expiry.finish()

    def entries(self) -> list[tuple[bytes, bytes]]:
        found = self.backend.scan(prefix(0, 0), prefix(GROUPS, 0))
        return [(key, raw) for key, raw in found if split(key).state_id == 1]


def keys(*users: int) -> pa.Array:
    return pa.array(users, pa.int64())


@pytest.mark.slow
@pytest.mark.parametrize("renew", ["write", "read"])
@pytest.mark.parametrize("time", ["processing", "event"])
@pytest.mark.parametrize("text", [False, True])
def test_columns_expire_as_a_plain_model_says(tmp_path: Path, time: Any, text: bool, renew: Any) -> None:
    kind = str if text else int
    columns = Columns(sf.columns({"n": kind}, ttl=sf.ttl("10 s", time=time, renew=renew)), tmp_path)
    chance, model, clock = random.Random(7), {}, 100 * SECOND
    for _ in range(150):
        clock += chance.randrange(4 * SECOND)
        state = columns.at(clock)
        live = {user: value for user, (value, expiry) in model.items() if expiry > clock}
        users = sorted(chance.sample(range(30), 6))
        if chance.random() < 0.8:
            assert state.get(keys(*users))["n"].to_pylist() == [live.get(user) for user in users]
            assert state.has(keys(*users)).to_pylist() == [user in live for user in users]
            if renew == "read":
                model.update({u: (live[u], clock + 10 * SECOND) for u in users if u in live})
        if chance.random() < 0.2:
            state.delete(keys(*users[:2]))
            for user in users[:2]:
                model.pop(user, None)
        else:
            values = [kind(chance.randrange(100)) for _ in users]
            state.put(keys(*users), pa.table({"n": values}))
            model.update({u: (v, clock + 10 * SECOND) for u, v in zip(users, values, strict=True)})
        columns.done()
        assert len(columns.entries()) == sum(expiry > clock for _, expiry in model.values())
    columns.at(clock + 10 * SECOND)
    columns.done()
    assert list(columns.backend.scan(prefix(0, 0), prefix(GROUPS, 0))) == []


def test_several_entries_of_a_key_expire_one_by_one(tmp_path: Path) -> None:
    columns = Columns(sf.columns({"n": int}, by={"day": int}, ttl="10 s"), tmp_path)
    for second in range(3):
        columns.at(second * SECOND).put(keys(1), pa.table({"n": [second]}), by=pa.array([second]))
        columns.done()
    assert columns.at(11 * SECOND).entries(keys(1)).to_pylist() == [{"user": 1, "day": 2, "n": 2}]
    assert len(columns.entries()) == 1


def test_listing_the_entries_of_a_key_renews_them_and_writes_nothing_twice(tmp_path: Path) -> None:
    columns = Columns(sf.columns({"n": int}, by={"day": int}, ttl=sf.ttl("10 s", renew="read")), tmp_path)
    columns.at(0).put(keys(1, 2), pa.table({"n": [5, 6]}), by=pa.array([0, 0]))
    columns.done()
    state = columns.at(6 * SECOND)
    assert state.entries(keys(1)).to_pylist() == [{"user": 1, "day": 0, "n": 5}]
    assert state.changed
    columns.done()
    state = columns.at(6 * SECOND)
    state.entries(keys(1))
    assert not state.changed, "it has this expiry already"
    columns.done()
    assert columns.at(11 * SECOND).entries(keys(1, 2))["user"].to_pylist() == [1]
    columns.done()
    columns.at(21 * SECOND)
    columns.done()
    assert columns.entries() == []


@pytest.mark.parametrize("kind", [int, str])
def test_entries_stay_and_are_read_when_their_ttl_is_taken_away(tmp_path: Path, kind: Any) -> None:
    columns, day = Columns(sf.columns({"n": kind}, by={"day": int}, ttl="10 s"), tmp_path), pa.array([0])
    columns.at(0).put(keys(1), pa.table({"n": [kind(5)]}), by=day)
    columns.done()
    columns.schema = msgspec.structs.replace(columns.schema, ttl=None)
    state = columns.at(60 * SECOND)
    assert state.get(keys(1), by=day)["n"].to_pylist() == [kind(5)]
    assert state.entries(keys(1)).to_pylist() == [{"user": 1, "day": 0, "n": kind(5)}]
    assert state.has(keys(1), by=day).to_pylist() == [True]


@pytest.mark.parametrize("kind", [int, str])
def test_tables_and_queries_read_what_expires(tmp_path: Path, kind: Any) -> None:
    columns = Columns(sf.columns({"n": kind}, ttl="10 s"), tmp_path)
    columns.at(SECOND).put(keys(1, 2), pa.table({"n": [kind(5), kind(6)]}))
    full, raws = zip(*columns.entries(), strict=True)
    table = StateTable([("user", "int")], GROUPS, "columns", columns.schema)
    rows = table.decode(full, raws).to_pylist()
    assert sorted((row["user"], row["value"]["n"]) for row in rows) == [(1, kind(5)), (2, kind(6))]
    assert {row["expires_at"].timestamp() for row in rows} == {11.0}
    assert dict(zip(*table.encode(table.decode(full, raws)), strict=True)) == dict(columns.entries())
    assert sorted(plain_reader(columns.schema)(raw)["n"] for raw in raws) == [kind(5), kind(6)]


def test_what_a_ttl_cannot_mean_is_refused() -> None:
    with refused(sf.UsageError, "delete_due()", "ttl="):
        sf.columns({"n": int}, timed=True, ttl="1 day").check("x")
