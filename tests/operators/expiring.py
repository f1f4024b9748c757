"""An operator with a ttl on every kind of state, driven batch by batch over sealed shards, as tasks drive it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

import stateflow as sf
from stateflow.checkpoint.rescale import clipped
from stateflow.compatibility.states import begun_shards, indexes, resolve_states, state_ids
from stateflow.format.encoding import PREFIX_WIDTH, prefix, split, split_timer
from stateflow.format.expiry_blocks import is_block, keys_of
from stateflow.format.keygroups import key_group
from stateflow.format.records import Shard, StateSchema
from stateflow.operators.context import Moment
from stateflow.operators.keyed import Chunk, KeyedEngine
from stateflow.pipelines.processes.operator_spec import DEAD_LETTERS, OperatorSpec
from stateflow.pipelines.rows.row_type import row_type
from stateflow.spark.task.state_feeds import StateFeeds, TaskFeed, todays_values
from stateflow.state.backends.base import Backend, OpenShard
from stateflow.state.backends.memory import memory_backend
from stateflow.state.backends.rocksdb import rocksdb_backend
from stateflow.state.backends.rocksdb_options import MIB, RocksOptions
from stateflow.state.change_rows import ChangeRows
from stateflow.state.expiry.ttl import Ttl
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.values.expiries import expiry_of
from tests.jobs.operators import operator_of
from tests.operators.releases import flow_of
from tests.state.sealed import kept

GROUPS = 8
SECOND = 10**6
CODEC = KeyCodec(("int",))
BACKENDS = {
    "memory": memory_backend,
    "rocksdb": lambda: rocksdb_backend(RocksOptions(write_buffer=MIB)),
}


def process_with(ttl: Ttl | str | None) -> type[Any]:
    """Rows are `(what to do, argument)`; what it reads goes out as `(key, what, found)`."""

    class Everything(sf.KeyedProcess[int, Any, Any]):
        value = sf.ValueState(int, ttl=ttl)
        words = sf.ValueState(list[int], default=list, ttl=ttl)
        total = sf.ReducingState(int, lambda a, b: a + b, ttl=ttl)
        count = sf.AggregatingState(
            int, create=lambda: 0, add=lambda held, _: held + 1, result=lambda held: held, ttl=ttl
        )
        items = sf.ListState(int, ttl=ttl)
        table = sf.MapState(int, int, ttl=ttl)

        def process(self, key: int, rows: Iterator[Any], ctx: sf.Context) -> Iterator[Any]:
            for what, number in rows:
                if what == "set":
                    self.value.value = number
                    self.words.value = [number]
                elif what == "add":
                    self.total.add(number)
                    self.count.add(number)
                elif what == "append":
                    self.items.add(number)
                elif what == "put":
                    self.table[number % 3] = number
                elif what == "clear":
                    self.value.clear()
                    self.words.clear()
                    self.items.clear()
                elif what == "remove":
                    self.table.pop(number % 3, None)
                elif what == "read":
                    yield key, "value", self.value.value
                    yield key, "words", self.words.value
                    yield key, "total", self.total.get()
                    yield key, "count", self.count.get()
                    yield key, "items", self.items.get()
                    yield key, "table", dict(self.table.items())

    return Everything


Rows = dict[int, list[tuple[str, int]]]
"""What a batch does with each key."""


class Kept:
    """The staged file of a feed."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, batch: Any) -> None:
        self.rows += batch.to_pylist()


@dataclass
class Expiring:
    """A job of one operator. Every batch opens its shards, and seals them."""

    folder: Path
    kind: str
    ttl: Ttl | str | None
    make: Callable[[Ttl | str | None], type[Any]] = process_with
    open_shard: OpenShard = field(init=False)
    shards: list[Shard] = field(init=False)
    process: type[Any] = field(init=False)
    schemas: dict[str, StateSchema] = field(default_factory=dict)
    next_id: int = 1
    slot: int = 0
    expired: int = 0
    pieces: list[list[int]] = field(default_factory=list)
    """The keys of the latest batch, as they were handed to the engine."""
    letters: list[Any] = field(default_factory=list)
    """The dead letters of the latest batch."""
    next_timers: list[tuple[int | None, int | None]] = field(default_factory=list)
    """Of each shard, after the latest batch."""
    fed: dict[str, list[dict[str, Any]]] | None = None
    """The rows of the feed of each state in the latest batch; None: they have none."""
    shown: dict[str, Any] = field(default_factory=dict)
    """What makes values of today's type of those that are stored, by state, as feeds do."""

    def __post_init__(self) -> None:
        self.open_shard = BACKENDS[self.kind]()
        self.shards = [Shard(0, GROUPS - 1, self.kind)]
        (self.folder / "files").mkdir(parents=True)
        self.declare(self.ttl)

    def declare(self, ttl: Ttl | str | None) -> None:
        """From now on the states have this ttl."""
        self.ttl = ttl
        self.release(self.make(ttl))

    def release(self, process: type[Any]) -> None:
        """From now on with this code, whose states are compared with those that there are."""
        [node] = flow_of(process).operators
        before = operator_of(self.shards, states=self.schemas, next_state_id=self.next_id)
        states, self.next_id = resolve_states(node, before, self.slot + 1)
        self.shards = [shard for [shard] in begun_shards(node, before, states)]
        # As a record has it: what a decoder of JSON makes of it.
        self.schemas = msgspec.json.decode(msgspec.json.encode(states), type=dict[str, StateSchema])
        self.process = process

    def batch(
        self, rows: Mapping[int, list[Any]], now: int, watermark: int | None = None, *, chunk: int = 3,
        without_rows: bool = False, on_error: str = "fail", parameters: Mapping[str, Any] | None = None,
    ) -> list[Any]:  # fmt: skip
        """Runs the rows, and gives what they read."""
        self.slot += 1
        row, schemas = row_type("n long"), self.schemas
        spec = OperatorSpec(
            "op", self.process, self.process, ("user",), ("int",), (row,), row, {}, state_ids(schemas), on_error,
            indexes=indexes(schemas), evolved={name: schema for name, schema in schemas.items() if schema.evolved},
        )  # fmt: skip
        moment = Moment(self.slot, now, 1, watermark, parameters or {})
        engine = KeyedEngine(spec, moment, 0)
        engine.open()
        declared = {name: schema for name, schema in schemas.items() if name in vars(engine.process)}
        feeds = self._feeds(moment, engine, declared) if self.fed is not None else None
        files = {name: Kept() for name in declared}
        self.shown = {
            name: todays_values(schema, vars(engine.process)[name].serializer)[0]
            for name, schema in declared.items()
            if schema.kind != "timer"
        }
        self.pieces, self.next_timers = [], []
        ordered = sorted(rows, key=full_key)
        for at, shard in enumerate(self.shards):
            backend = self.open(shard)
            groups = range(shard.first, shard.last + 1)
            watched = feeds.watch(backend) if feeds is not None else None
            engine.attach(watched or backend, shard.expiring)
            due = shard.next_event_expiry, shard.next_processing_expiry
            with watched.expiry() if watched is not None else nullcontext():
                engine.expiry.expire(groups, due, shard.entries, without_rows=without_rows)
            keys = [key for key in ordered if key_group(key, GROUPS) in groups]
            for begin in range(0, len(keys), chunk):
                self.pieces.append(keys[begin : begin + chunk])
                engine.run(chunk_of(self.pieces[-1], rows))
            if engine.binding.timers:
                for _ in engine.fire(groups):
                    pass
            self.next_timers.append(engine.next_timers(groups))
            event, processing = engine.expiry.finish()
            if feeds is not None and watched is not None:
                feeds.put_out(watched, files)
            sealed = self._sealed(shard, backend, event, processing)
            self.shards[at] = msgspec.structs.replace(sealed, expiring=engine.expiry.shares)
        if self.fed is not None:
            self.fed = {name: kept.rows for name, kept in files.items()}
        self.expired += engine.expiry.expired
        self.letters = engine.context.sides.get(DEAD_LETTERS, [])
        return list(engine.out)

    def _feeds(self, moment: Moment, engine: KeyedEngine, declared: Mapping[str, StateSchema]) -> StateFeeds:
        key = (("user", "int"),)
        feeds = [
            TaskFeed(name, key, name, schema, ChangeRows(key, name, schema).schema)
            for name, schema in declared.items()
            if schema.kind != "timer"
        ]
        return StateFeeds(feeds, moment, lambda state: vars(engine.process)[state].serializer)

    def _sealed(self, shard: Shard, backend: Backend, event: int | None, processing: int | None) -> Shard:
        snapshot = backend.snapshot()
        files = kept(snapshot, self.folder / "files")
        backend.close()
        return Shard(
            shard.first, shard.last, self.kind, files, next_event_expiry=event,
            next_processing_expiry=processing, entries=snapshot.entries,
        )  # fmt: skip

    def open(self, shard: Shard) -> Backend:
        directory = self.folder / f"open-{self.slot}-{shard.first}-{len(list(self.folder.iterdir()))}"
        return self.open_shard(shard, directory, lambda ref: self.folder / "files" / ref.path)

    def rescale(self, parts: int) -> None:
        """Hands the key groups to so many shards, as far as pieces of shards go."""
        width = -(-GROUPS // parts)
        ranges = [(first, min(first + width, GROUPS) - 1) for first in range(0, GROUPS, width)]
        self.shards = [
            piece
            for first, last in ranges
            for shard in self.shards
            if (piece := clipped(shard, first, last)) is not None
        ]

    def contents(self) -> dict[bytes, bytes]:
        entries: dict[bytes, bytes] = {}
        for shard in self.shards:
            backend = self.open(shard)
            entries.update(backend.scan(prefix(shard.first, 0), prefix(shard.last + 1, 0)))
            backend.close()
        return entries

    def entries(self) -> dict[bytes, bytes]:
        """Those of the states, without their indexes."""
        own = {schema.id for schema in self.schemas.values() if schema.kind != "timer"}
        return {key: raw for key, raw in self.contents().items() if split(key).state_id in own}

    def blocks(self) -> list[tuple[bytes, int]]:
        """Every entry that a block names, and when the block is due."""
        state_of = {s.expiry_index: s.id for s in self.schemas.values() if s.expiry_index}
        named = []
        for key, value in self.contents().items():
            group, index_id, body = split(key)
            if index_id in state_of and is_block(key):
                due = split_timer(body)[0]
                named += [(full, due) for full in keys_of(value, prefix(group, state_of[index_id]))]
        return named

    def check(self, gone: int, clock: int | None = None) -> None:
        """Nothing is left that had expired at `gone`, and the rest is named by a block that comes due in time."""
        soonest: dict[bytes, int] = {}
        for key, due in self.blocks():
            soonest[key] = min(due, soonest.get(key, due))
        for key, raw in self.entries().items():
            expiry = expiry_of(raw)
            if expiry is None:
                continue
            assert expiry > gone, f"{key[PREFIX_WIDTH:].hex()} has expired and is still stored"
            assert soonest.get(key, expiry + 1) <= expiry, f"no block names {key.hex()} in time"


def full_key(key: int) -> bytes:
    return prefix(key_group(key, GROUPS), 0) + CODEC.encode(key) + b"\0"


def chunk_of(keys: Sequence[int], rows: Mapping[int, list[Any]]) -> Chunk:
    base = [full_key(key) for key in keys]
    ends = list(accumulate(len(rows[key]) for key in keys))
    return Chunk(
        list(keys),
        base,
        lambda i: (iter(rows[keys[i]]),),
        lambda state_id: [full[:2] + state_id.to_bytes(2, "big") + full[4:] for full in base],
        ([row for key in keys for row in rows[key]], [0, *ends[:-1]], ends),
    )
