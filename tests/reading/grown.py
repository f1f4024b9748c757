"""A job that grows batch by batch in real state files, beside a plain model: a dict of its stored entries per checkpoint."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from stateflow.checkpoint.rescale import rescaled
from stateflow.format.encoding import EMPTY_NAMESPACE, list_position, prefix
from stateflow.format.expiry_blocks import block, block_key
from stateflow.format.keygroups import default_assignment, xxhash64
from stateflow.format.records import FileRef, OperatorState, Record, SchemaVersion, Shard, StateSchema
from stateflow.reading.diff import ComparedSnapshot
from stateflow.reading.snapshots import ReaderContext
from stateflow.savepoints.native import create_native
from stateflow.state.backends.base import NewFile, OpenShard
from stateflow.state.backends.choice import ShardReaders
from stateflow.state.backends.memory import memory_backend
from stateflow.state.backends.rocksdb import rocksdb_backend
from stateflow.state.backends.rocksdb_options import MIB, RocksOptions
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.values.evolution.versions import versioned
from stateflow.state.values.serializers import RAW_CODE, serializer_for
from stateflow.storage.cache import FileCache
from stateflow.storage.files import inline, upload_file
from stateflow.storage.roots import open_store
from tests.jobs.fake import ClaimedJob
from tests.state.stored_keys import timer_key

GROUPS = 8
SECOND = 1_000_000
TOTAL, ITEMS, LOG, BRIEF, INDEX, IDLE, KEPT = 1, 2, 3, 4, 5, 6, 8
SCHEMAS = {
    "total": StateSchema(id=TOTAL, kind="value", value="int"),
    "items": StateSchema(id=ITEMS, kind="map", value="int", map_key="str"),
    "log": StateSchema(id=LOG, kind="list", value="str"),
    "brief": StateSchema(
        id=BRIEF, kind="value", value="int", ttl=5 * SECOND, ttl_time="event", expiry_index=INDEX
    ),
    "idle": StateSchema(id=IDLE, kind="timer", value="event"),
    "kept": StateSchema(id=KEPT, kind="columns", value="columns{note:str}", by=(("sku", "str"),)),
}
KEY = (("user", "int"),)
_int, _str, _float = serializer_for(int), serializer_for(str), serializer_for(float)
_user = KeyCodec(["int"]).encode
_name = KeyCodec(["str"]).encode
Model = dict[bytes, bytes]


def note(number: int) -> bytes:
    """A stored row of columns."""
    return bytes((RAW_CODE,)) + msgspec.msgpack.encode([f"n{number}"])


def full(state: int, user: int) -> bytes:
    return prefix(xxhash64(user) % GROUPS, state) + _user(user) + EMPTY_NAMESPACE


class GrownJob(ClaimedJob):
    """Each checkpoint goes on from the files of the one before, as a task's does."""

    def __init__(
        self,
        root: Path,
        name: str = "orders",
        *,
        backend: str = "rocksdb",
        seed: int = 0,
        inline_threshold: int = 0,
        ttl_time: str = "event",
    ) -> None:
        self.folder, self.backend, self.rng = root.parent, backend, random.Random(seed)
        self.inline_threshold = inline_threshold
        self.models: dict[int, Model] = {}
        self.due: dict[bytes, int] = {}
        """Blocks of the expiry index that are still there, with when they come due."""
        self.dues: dict[int, dict[bytes, int]] = {}
        self.mark = 0
        self.schemas = dict(SCHEMAS)
        self.ttl_time = ttl_time
        self.schemas["brief"] = msgspec.structs.replace(SCHEMAS["brief"], ttl_time=ttl_time)
        self.total = _int
        super().__init__(str(root), name)

    @property
    def model(self) -> Model:
        return dict(self.models[max(self.models)]) if self.models else {}

    def open_shard(self) -> OpenShard:
        if self.backend == "memory":
            return memory_backend(self.inline_threshold)
        return rocksdb_backend(RocksOptions(write_buffer=MIB, inline_threshold=self.inline_threshold))

    def operator(self) -> OperatorState:
        if self.models:
            return self.head().operators["balance"]
        parts = default_assignment(2, GROUPS)
        return OperatorState(
            key=KEY,
            max_parallelism=GROUPS,
            assignment=parts,
            shards=tuple((Shard(first, last, self.backend),) for first, last in parts),
            states=self.schemas,
            next_state_id=20,
        )

    def batch(
        self,
        change: Callable[[Model], dict[bytes, bytes | None]] = lambda model: {},
        *,
        ranges: tuple[tuple[bytes, bytes], ...] = (),
        seconds: int = 1,
    ) -> int:
        """A checkpoint in which these entries are put and deleted, and then these ranges."""
        self.mark += seconds * SECOND
        model = self.model
        changes = change(model)
        operator = self.operator()
        shards = tuple(
            tuple(self._grown(shard, changes, ranges) for shard in subtask) for subtask in operator.shards
        )
        for key, value in changes.items():
            model[key] = value  # type: ignore[assignment]
        for begin, end in ranges:
            for key in [key for key in model if begin <= key < end]:
                model[key] = None  # type: ignore[assignment]
        grown = msgspec.structs.replace(operator, shards=shards, states=self.schemas)
        return self.record(grown, {key: value for key, value in model.items() if value is not None})

    def record(self, operator: OperatorState, model: Model) -> int:
        times = {"watermark": self.mark} if self.ttl_time == "event" else {"now": self.mark}
        slot = self.decide(operators={"balance": operator}, **times).slot
        self.models[slot], self.dues[slot] = model, dict(self.due)
        return slot

    def rescale(self, parallelism: int) -> int:
        return self.record(rescaled(self.operator(), parallelism, "operator 'balance'"), self.model)

    def restore(self, slot: int) -> int:
        """Its state becomes that of an earlier checkpoint."""
        record = self.at(slot)
        self.mark, self.due = self.clock_of(record) or 0, dict(self.dues[slot])
        return self.record(record.operators["balance"], dict(self.models[slot]))

    def evolve(self) -> None:
        """From the next batch on, totals are floats. What is stored stays as it is."""
        self.total = versioned(_float, 1, {0: _int.loads})
        self.schemas["total"] = msgspec.structs.replace(
            SCHEMAS["total"], value="float", version=1, versions=(SchemaVersion(0, "int", 1),)
        )

    def clock_of(self, record: Record) -> int | None:
        """The time by which an entry of `brief` has expired."""
        return record.watermark if self.ttl_time == "event" else record.now

    def at(self, slot: int) -> Record:
        return self.log().record(slot)

    def _grown(
        self, shard: Shard, changes: dict[bytes, bytes | None], ranges: tuple[tuple[bytes, bytes], ...]
    ) -> Shard:
        writer = self.writer

        def stored(file: NewFile) -> FileRef:
            if file.data is not None:
                return inline(file.name, file.data)
            assert file.path is not None
            unique = uuid.UUID(int=self.rng.getrandbits(128)).hex
            path = writer.layout.shared_file(
                writer.epoch, writer.next_slot, unique, file.path.suffix or ".bin"
            )
            return upload_file(writer.store, path, file.path, file.name)

        place = self.folder / f"task-{uuid.uuid4().hex}"
        fetched = self.folder / f"fetched-{uuid.uuid4().hex}"
        fetched.mkdir()
        fetch = FileCache(self.folder / "tasks", 1 << 30).fetcher(lambda base: self.store, fetched)
        own = {k: v for k, v in changes.items() if shard.first <= int.from_bytes(k[:2], "big") <= shard.last}
        backend = self.open_shard()(shard, place, fetch)
        backend.write(own.items())
        for begin, end in ranges:
            low, high = max(begin, prefix(shard.first, 0)), min(end, prefix(shard.last + 1, 0))
            backend.delete_range(low, high)
        snapshot = backend.snapshot()
        refs = (*snapshot.kept, *map(stored, snapshot.new))
        backend.close()
        groups = range(shard.first, shard.last + 1)
        due = [at for key, at in self.due.items() if int.from_bytes(key[:2], "big") in groups]
        return msgspec.structs.replace(
            shard,
            files=refs,
            physical_first=None,
            physical_last=None,
            **{f"next_{self.ttl_time}_expiry": min(due, default=None)},
        )

    def some(self, users: int, most: int = 6) -> Callable[[Model], dict[bytes, bytes | None]]:
        """Random changes of every kind of state."""

        def change(model: Model) -> dict[bytes, bytes | None]:
            rng, made = self.rng, {}
            for _ in range(rng.randint(0, most)):
                user = rng.randrange(users)
                if rng.random() < 0.3:
                    made |= dict.fromkeys(
                        key for key in model if key[4:12] == _user(user) and key[2:4] != bytes((0, BRIEF))
                    )
                    continue
                made[full(TOTAL, user)] = self.total.dumps(rng.randrange(4))
                made[full(KEPT, user) + _name(f"sku{rng.randrange(3)}")] = note(rng.randrange(3))
                made[full(ITEMS, user) + _name(f"sku{rng.randrange(3)}")] = _int.dumps(rng.randrange(3))
                made[full(LOG, user) + list_position(self.writer.next_slot, rng.randrange(9))] = _str.dumps(
                    "x"
                )
                made |= self._timer(model, user, rng.randrange(100) * SECOND)
                made |= self._brief(user, rng.randrange(3))
            if rng.random() < 0.5:
                made |= self._swept(model)
            return made

        return change

    def _timer(self, model: Model, user: int, at: int) -> Any:
        group, key = xxhash64(user) % GROUPS, _user(user)
        before = model.get(full(IDLE + 1, user))
        gone = {} if before is None else {timer_key(group, IDLE, int.from_bytes(before, "big"), key): None}
        return {
            **gone,
            timer_key(group, IDLE, at, key): b"",
            full(IDLE + 1, user): at.to_bytes(8, "big", signed=True),
        }

    def _brief(self, user: int, value: int) -> Any:
        due, key = self.mark + 5 * SECOND, full(BRIEF, user)
        named = block_key(xxhash64(user) % GROUPS, INDEX, due, self.writer.next_slot, len(self.due))
        self.due[named] = due
        return {key: _int.dumps_with_expiry(value, due), named: block([key[4:]])}

    def _swept(self, model: Model) -> Any:
        """What has expired goes, and so do the blocks that have come due."""
        made: dict[bytes, bytes | None] = {}
        for key, raw in model.items():
            if key[2:4] == bytes((0, BRIEF)) and int.from_bytes(raw[1:9], "big", signed=True) <= self.mark:
                made[key] = None
        for named in [named for named, due in self.due.items() if due <= self.mark]:
            del self.due[named]
            made[named] = None
        return made

    def save(self, slot: int, url: str) -> None:
        """A native savepoint of a checkpoint."""
        create_native(
            self.store, self.layout, self.at(slot), open_store(url, fsync=False), name="s", owner=self.owner(), note="",
            ids=self.ids, clock=self.clock, open_base=lambda base: self.store, scratch=self.folder / "scratch", offsets={},
        )  # fmt: skip

    def context(self, host: Path) -> ReaderContext:
        return ReaderContext(
            root=self.root,
            cache=FileCache(host / "cache", 1 << 30),
            scratch=host / "scratch",
            open_shard=ShardReaders(RocksOptions(write_buffer=MIB, inline_threshold=0)),
            clock=self.clock,
        )

    def snapshot(self, slot: int, host: Path) -> ComparedSnapshot:
        return ComparedSnapshot(f"checkpoint {slot}", self.at(slot), self.context(host))
