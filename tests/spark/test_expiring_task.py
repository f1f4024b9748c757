"""A task with a ttl, driven without Spark: its shards say when the next entry expires, and are opened for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

import stateflow as sf
from stateflow.format.keygroups import key_group
from stateflow.format.records import ExpiryShare, Shard, StateSchema
from stateflow.jobs.erasure import _Keep
from stateflow.operators.binding import schemas
from stateflow.operators.context import Moment
from stateflow.spark.state_tables.load import loaded_index
from stateflow.spark.task.shards import TaskShards
from stateflow.spark.task.subtask import EXPIRY_TURNS, worker
from stateflow.state.backends.base import Backend
from stateflow.state.keys.codec import KeyCodec
from tests.jobs.operators import operator_of
from tests.operators.expiring import Expiring
from tests.spark.test_worker import Acks, Event, Total, batch, task

SECOND = 10**6


class Seen(sf.KeyedProcess[int, Event, Total]):
    total = sf.ValueState(float, ttl="5 s")

    def process(self, key: int, rows: Iterator[Event], ctx: sf.Context) -> Iterator[Total]:
        yield Total(key, self.total.value or 0.0)
        self.total.value = (self.total.value or 0.0) + sum(row.amount for row in rows)


def schema() -> dict[str, StateSchema]:
    return {n: msgspec.structs.replace(s, id=1, expiry_index=2) for n, s in schemas(Seen, "sum").items()}


def run(folder: Path, shards: tuple[Shard, ...], slot: int, *rows: Any) -> tuple[Shard, ...]:
    made = task(folder, Seen, shards[0], slot)
    made = replace(
        made,
        spec=replace(made.spec, indexes=schema()),
        moment=Moment(slot, slot * SECOND, 1, None),
        shards=(shards,),
    )
    acks = Acks()
    list(worker(made, acks)(iter(rows)))
    return acks.acks[0].shards


def test_a_shard_without_rows_is_opened_when_its_turn_comes(tmp_path: Path) -> None:
    shards: tuple[Shard, ...] = (Shard(first=0, last=127, backend="rocksdb"),)
    shards = run(tmp_path, shards, 1, batch(1, 2))
    assert shards[0].next_processing_expiry == 6 * SECOND
    assert shards[0].next_event_expiry is None
    assert [(s.state, s.first, s.last, s.entries) for s in shards[0].expiring] == [
        (1, 6 * SECOND, 6 * SECOND, 2)
    ]
    files = shards[0].files
    opened = []
    for slot in range(2, 6 + EXPIRY_TURNS):
        shards = run(tmp_path, shards, slot)
        if shards[0].files != files:
            opened.append(slot)
            files = shards[0].files
    assert len(opened) == 1
    assert 6 <= opened[0] < 6 + EXPIRY_TURNS
    assert shards[0].next_processing_expiry is None
    assert shards[0].entries == 0
    assert shards[0].expiring == ()


def test_an_erased_key_leaves_no_byte_in_the_index(tmp_path: Path) -> None:
    job = Expiring(tmp_path, "memory", "10 s")
    job.batch({key: [("set", 1), ("append", 2), ("put", 1)] for key in range(40)}, 0)
    operator = operator_of(groups=8, states=job.schemas)
    keep, key = _Keep(operator, 7), KeyCodec(("int",)).encode(7)
    before = job.contents()
    after = {full: kept for full, raw in before.items() if (kept := keep(full, raw)) is not None}
    group = key_group(7, 8)
    assert any(key in raw for full, raw in before.items() if full[:2] == group.to_bytes(2, "big"))
    assert not any(key in full + raw for full, raw in after.items())
    assert keep.dropped == 4
    others = {full for full in before if key not in full}
    assert {full for full in after if len(full) < 24} == {full for full in others if len(full) < 24}


def test_loaded_entries_are_indexed_by_the_expiries_that_they_have(tmp_path: Path) -> None:
    job = Expiring(tmp_path, "memory", "10 s")
    for second in range(3):
        job.batch({key: [("set", 1), ("append", 2)] for key in range(second, 40, 3)}, second * SECOND)
    for state in job.schemas.values():
        state_id, expiry = loaded_index(state)
        entries = {key: raw for key, raw in job.entries().items() if key[2:4] == state_id}
        expiry.index(list(entries), list(entries.values()))
        rebuilt = dict(expiry.blocks())
        named = [key for key in job.contents() if int.from_bytes(key[2:4], "big") == state.expiry_index]
        assert sorted(raw for raw in rebuilt.values() if raw) == sorted(job.contents()[key] for key in named)
        assert expiry.next == (10 * SECOND if entries else None)


def test_joined_shards_expire_when_the_first_of_them_does(tmp_path: Path) -> None:
    one, other = ExpiryShare(1, 5, 9, 2, 20), ExpiryShare(1, 3, 4, 3, 30)
    parts = (
        Shard(first=0, last=3, backend="memory", next_processing_expiry=5, entries=2, expiring=(one,)),
        Shard(
            first=4,
            last=7,
            backend="memory",
            next_processing_expiry=3,
            next_event_expiry=9,
            entries=3,
            expiring=(other,),
        ),
    )
    storage: Any = task(tmp_path, Seen, parts[0]).storage
    opener: Any = lambda name: _no_backend  # noqa: E731
    (joined,) = TaskShards(parts, storage, opener, join_limit=1).inputs
    assert (joined.next_processing_expiry, joined.next_event_expiry, joined.entries) == (3, 9, 5)
    assert joined.expiring == (other, one)


def _no_backend(*_: Any) -> Backend:
    raise AssertionError("nothing is opened")
