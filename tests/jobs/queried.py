"""Jobs with real shards, made without Spark: user code runs in a harness, and what it stored goes into RocksDB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

import stateflow as sf
from stateflow.compatibility.states import with_index
from stateflow.format.records import Record, Shard, StateSchema
from stateflow.operators.binding import TIMER_IDS, schemas
from stateflow.reading.query import StateReader
from stateflow.state.backends.base import OpenShard
from stateflow.state.backends.openings import OpenShards
from tests.jobs.builder import T0, JobBuilder, opener
from tests.jobs.operators import USER, Key, operator_of
from tests.jobs.state import shard_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
Entries = Mapping[bytes, bytes]
Halves = ((0, 63), (64, 127))


class Row(msgspec.Struct):
    user: int
    sku: str = ""
    amount: float = 0.0


class Balance(sf.KeyedProcess[int, Row, Row]):
    """One state of each kind; all but `secret` may be served."""

    total = sf.ValueState(float, queryable=True)
    secret = sf.ValueState(str)
    items = sf.MapState(str, int, queryable=True)
    log = sf.ListState(str, queryable=True)
    most = sf.ReducingState(float, max, queryable=True)
    mean = sf.AggregatingState(
        tuple[float, int],
        create=lambda: (0.0, 0),
        add=lambda held, value: (held[0] + value, held[1] + 1),
        result=lambda held: held[0] / held[1],
        queryable=True,
    )
    brief = sf.ValueState(int, ttl="1 hour", queryable=True)
    carts = sf.MapState(str, int, ttl="1 hour", queryable=True)
    last = sf.ListState(str, ttl="1 hour", queryable=True)
    idle = sf.Timer("event")

    def process(self, key: int, rows: Any, ctx: Any) -> None:
        for row in rows:
            self.total.value = (self.total.value or 0.0) + row.amount
            self.secret.value = "hidden"
            self.items[row.sku] = self.items.get(row.sku, 0) + 1
            self.log.add(row.sku)
            self.most.add(row.amount)
            self.mean.add(row.amount)
            self.brief.value = 1
            self.carts[row.sku] = 1
            self.last.add(row.sku)
        self.idle.set(NOW + timedelta(hours=key))

    @idle.fires
    def expire(self, key: int, at: datetime, ctx: Any) -> None:
        self.items.clear()


def states_of(process: Any) -> dict[str, StateSchema]:
    """Schemas with the ids that a harness gives."""
    found, next_id = {}, 1
    for name, schema in schemas(process, "x").items():
        schema = msgspec.structs.replace(schema, id=next_id)
        next_id += TIMER_IDS if schema.kind == "timer" else 1
        found[name] = indexed = with_index(schema, None, next_id)
        next_id += indexed.expiry_index == next_id
    return found


def entries_of(harness: sf.testing.KeyedHarness) -> dict[bytes, bytes]:
    return dict(harness._backend.scan(b"", b"\xff" * 8))


class Clock:
    """Stands at the harness's time until it is moved."""

    def __init__(self) -> None:
        self.micros = T0

    def __call__(self) -> int:
        return self.micros

    def forward(self, **time: float) -> None:
        self.micros += timedelta(**time) // timedelta(microseconds=1)


class Counted:
    """Opens shards and counts them."""

    def __init__(self) -> None:
        self.opened: list[tuple[int, int]] = []
        self.closed: list[tuple[int, int]] = []

    def __call__(self, backend: str) -> OpenShard:
        make = opener(backend)

        def open_shard(shard: Shard, directory: Path, fetch: Any) -> Any:
            self.opened.append((shard.first, shard.last))
            made = make(shard, directory, fetch)
            close = made.close

            def closing() -> None:
                self.closed.append((shard.first, shard.last))
                close()

            made.close = closing  # type: ignore[method-assign]
            return made

        return open_shard


class QueriedJob(JobBuilder):
    """A job whose checkpoints hold what it is given."""

    def __init__(
        self,
        place: Path | str,
        name: str = "orders",
        *,
        process: Any = Balance,
        key: Key = USER,
        operator: str = "balance",
        backend: str = "rocksdb",
        **claimed: Any,
    ) -> None:
        self.operator, self.backend, self.key = operator, backend, key
        self.states = states_of(process)
        self.fixed: dict[str, str] = {}
        """Options of the operator that its state holds fast."""
        super().__init__(place, name, clock=Clock(), **claimed)

    def checkpoint(
        self, entries: Entries, shards: Sequence[tuple[int, int]] = Halves, *, complete: bool = True
    ) -> int:
        """A record with these entries, cut into these ranges of key groups."""
        return self.record([self.shard(entries, first, last) for first, last in shards], complete=complete)

    def record(self, shards: Sequence[Shard], *, complete: bool = True) -> int:
        operator = operator_of(
            shards, key=self.key, states=self.states, next_state_id=100, options=self.fixed
        )
        return self.decide(operators={self.operator: operator}, pending=not complete).slot

    def shard(self, entries: Entries, first: int, last: int) -> Shard:
        return shard_of(self.writer, entries.items(), first, last, folder=self.folder, backend=self.backend)

    def reader(
        self,
        folder: Path,
        record: Record | None = None,
        *,
        counted: Counted | None = None,
        shards: OpenShards | None = None,
    ) -> StateReader:
        return self.place(folder, counted).reader(record or self.head(), shards)


def filled(*users: int, rows: int = 2) -> sf.testing.KeyedHarness:
    """Each user with so many rows."""
    harness = sf.testing.KeyedHarness(Balance)
    harness.rows(*(Row(user, f"sku{number % 3}", float(number)) for user in users for number in range(rows)))
    return harness


def queried_job(place: Path, *users: int, checkpoints: int = 3) -> QueriedJob:
    """A job whose run has ended, with these users in each of its checkpoints."""
    job = QueriedJob(place)
    for _ in range(checkpoints):
        job.checkpoint(entries_of(filled(*users)))
    job.beat(ended=True)
    return job
