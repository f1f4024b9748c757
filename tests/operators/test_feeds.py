"""What a task puts out of its states' changes: applied to an empty dict it gives the stored state after every batch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import stateflow as sf
from stateflow.format.records import SchemaVersion, Shard, StateSchema
from stateflow.operators.context import Moment
from stateflow.spark.task.state_feeds import StateFeeds, TaskFeed
from stateflow.state.backends.memory import memory_backend
from stateflow.state.backends.watched import WatchedBackend, WrittenEntries
from stateflow.state.change_rows import ChangeRows, changed
from stateflow.state.columns.state import ColumnState
from stateflow.state.values.evolution.declared_types import declared_type, evolved_serializer
from stateflow.state.values.serializers import serializer_for
from tests.operators.expiring import SECOND, Expiring, Kept, full_key

OF_BATCHES = ("kind", "before", "after", "slot", "time")
Held = dict[tuple[Any, ...], Any]
TTL = "10 s"


def entry(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(value for name, value in row.items() if name not in OF_BATCHES)


def applied(held: Held, rows: list[dict[str, Any]]) -> None:
    """Each row goes on from the one before, changes something, and is the only one of its entry in the batch."""
    assert len({entry(row) for row in rows}) == len(rows)
    for row in rows:
        assert held.get(entry(row)) == row["before"] != row["after"]
        assert (row["after"] is None) == (row["kind"] in ("delete", "expire"))
        held.pop(entry(row), None)
        if row["after"] is not None:
            held[entry(row)] = row["after"]


def stored(job: Expiring, name: str, schema: StateSchema, contents: Mapping[bytes, bytes]) -> Held:
    number = schema.id.to_bytes(2, "big")
    entries = {key: raw for key, raw in sorted(contents.items()) if key[2:4] == number}
    if not entries:
        return {}
    written = WrittenEntries(list(entries), [None] * len(entries), list(entries.values()), ())
    rows = ChangeRows((("user", "int"),), name, schema).rows(changed(written, job.shown[name]), 0, 0)
    return {entry(row): row["after"] for row in rows.to_pylist()}


@pytest.fixture
def job(tmp_path: Path) -> Expiring:
    return Expiring(tmp_path, "memory", sf.ttl(TTL), fed={})


def kinds(job: Expiring, state: str) -> list[tuple[Any, ...]]:
    assert job.fed is not None
    return [(row["user"], row["kind"], row["before"], row["after"]) for row in job.fed[state]]


def test_many_writes_of_a_batch_are_one_row_and_an_equal_value_is_none(job: Expiring) -> None:
    job.batch({1: [("set", 5), ("set", 6)], 2: [("set", 7)]}, 0)
    assert kinds(job, "value") == [(1, "put", None, 6), (2, "put", None, 7)]
    job.batch({1: [("set", 8), ("set", 6)], 2: [("clear", 0), ("set", 7)]}, SECOND)
    assert kinds(job, "value") == []
    job.batch({1: [("clear", 0)], 3: [("set", 1), ("clear", 0)]}, 2 * SECOND)
    assert kinds(job, "value") == [(1, "delete", 6, None)]


def test_an_entry_whose_time_is_over_is_told_by_the_batch_that_lets_it_go(job: Expiring) -> None:
    job.batch({1: [("set", 5), ("put", 4)], 2: [("set", 6)], 3: [("set", 7)]}, 0)
    job.batch({2: [("set", 6)]}, 11 * SECOND)
    # Expired and set again to what it was: nothing has changed for who reads the feed.
    assert kinds(job, "value") == [(1, "expire", 5, None), (3, "expire", 7, None)]
    assert kinds(job, "table") == [(1, "expire", 4, None)]
    job.batch({2: [("set", 9)]}, 30 * SECOND)
    assert kinds(job, "value") == [(2, "put", 6, 9)]


def test_the_elements_of_a_list_and_the_entries_of_a_map_are_rows_of_their_own(job: Expiring) -> None:
    job.batch({1: [("append", 5), ("append", 6), ("put", 4), ("put", 5)]}, 0)
    job.batch({1: [("append", 7), ("remove", 1)]}, SECOND)
    assert job.fed is not None
    (row,) = job.fed["items"]
    assert (row["added_slot"], row["position"], row["before"], row["after"]) == (2, 0, None, 7)
    (row,) = job.fed["table"]
    assert (row["map_key"], row["kind"], row["before"], row["after"]) == (1, "delete", 4, None)
    job.batch({1: [("clear", 0)]}, 2 * SECOND)
    assert [(row["added_slot"], row["kind"], row["before"]) for row in job.fed["items"]] == [
        (1, "delete", 5), (1, "delete", 6), (2, "delete", 7)
    ]  # fmt: skip


def test_values_of_an_earlier_type_are_compared_and_shown_as_those_of_today() -> None:
    schema = StateSchema(
        id=1, kind="value", value="float", version=1, versions=(SchemaVersion(number=0, value="int", next=1),)
    )
    serializer = evolved_serializer(declared_type(float, None), schema)
    shard = WatchedBackend(filled({1: serializer_for(int).dumps(5), 2: serializer_for(int).dumps(6)}), [1])
    shard.write([(place(1), serializer.dumps(5.0)), (place(2), serializer.dumps(7.0))])
    (row,) = fed(shard, schema, serializer)
    assert (row["user"], row["kind"], row["before"], row["after"]) == (2, "put", 6.0, 7.0)


def test_a_set_in_another_order_is_the_same_value() -> None:
    schema, serializer = StateSchema(id=1, kind="value", value="set<int>"), serializer_for(set[int])
    pack = serializer_for(list[int]).dumps
    shard = WatchedBackend(filled({1: pack([1, 2]), 2: pack([1, 2])}), [1])
    shard.write([(place(1), pack([2, 1])), (place(2), pack([2, 3]))])
    assert [row["user"] for row in fed(shard, schema, serializer)] == [2]


def test_due_entries_that_go_as_a_range_are_deletions_one_by_one(tmp_path: Path) -> None:
    schema = msgspec.structs.replace(sf.columns({"n": int}, timed=True).schema(), id=1)
    backend = memory_backend()(Shard(0, 7, "memory"), tmp_path, lambda ref: tmp_path)
    state = ColumnState((("user", "int"),), schema, 8, "operator 'op'")
    state.attach(backend, range(8), empty=True)
    state.put(pa.array([1, 2]), pa.table({"n": [5, 6]}), at=pa.array([10, 20]))
    shard = WatchedBackend(backend, [1])
    state.attach(shard, range(8))
    state.delete_due(15)
    state.put(pa.array([2, 3]), pa.table({"n": [7, 8]}), at=pa.array([20, 30]))
    rows = fed(shard, schema, None)
    told = sorted(
        (row["user"], row["at"].microsecond, row["kind"], row["before"], row["after"]) for row in rows
    )
    assert told == [
        (1, 10, "delete", {"n": 5}, None), (2, 20, "put", {"n": 6}, {"n": 7}), (3, 30, "put", None, {"n": 8})
    ]  # fmt: skip


def test_what_an_entry_was_is_what_it_was_before_the_first_write() -> None:
    schema, serializer = StateSchema(id=1, kind="value", value="int"), serializer_for(int)
    five, six, seven = map(serializer.dumps, (5, 6, 7))
    shard = WatchedBackend(filled({1: five, 2: five}), [1])
    shard.write([(place(1), six), (place(2), six)])
    assert (shard.get(place(1)), shard.get_many([place(2)])) == (six, [six])
    shard.write([(place(1), seven), (place(2), None)])
    told = [(row["user"], row["kind"], row["before"], row["after"]) for row in fed(shard, schema, serializer)]
    assert sorted(told) == [(1, "put", 5, 7), (2, "delete", 5, None)]


def test_what_has_expired_and_was_set_and_deleted_again_was_deleted() -> None:
    schema, serializer = StateSchema(id=1, kind="value", value="int"), serializer_for(int)
    shard = WatchedBackend(filled({1: serializer.dumps(5), 2: serializer.dumps(6)}), [1])
    with shard.expiry():
        shard.write([(place(1), None), (place(2), None)])
    shard.write([(place(1), serializer.dumps(7)), (place(1), None)])
    told = [(row["user"], row["kind"], row["before"]) for row in fed(shard, schema, serializer)]
    assert sorted(told) == [(1, "delete", 5), (2, "expire", 6)]


def place(user: int) -> bytes:
    return full_key(user)[:2] + b"\0\1" + full_key(user)[4:]


def filled(raws: Mapping[int, bytes]) -> Any:
    backend = memory_backend()(Shard(0, 7, "memory"), Path("/nowhere"), lambda ref: Path())
    backend.write((place(user), raw) for user, raw in raws.items())
    return backend


def fed(shard: WatchedBackend, schema: StateSchema, serializer: Any) -> list[dict[str, Any]]:
    key, kept = (("user", "int"),), Kept()
    feed = TaskFeed("feed", key, "state", schema, ChangeRows(key, "state", schema).schema)
    StateFeeds([feed], Moment(1, 0, 1, None), lambda state: serializer).put_out(shard, {"feed": kept})
    return kept.rows
