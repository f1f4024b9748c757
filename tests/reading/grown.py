"""A job that grows batch by batch in real state files, beside a plain model: per checkpoint what it stores, and what each entry
means to a person."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any

import msgspec

from stateflow.checkpoint.rescale import rescaled
from stateflow.format.encoding import EMPTY_NAMESPACE, NAMESPACE, encode_timestamp, list_position, prefix
from stateflow.format.expiry_blocks import block, block_key
from stateflow.format.instants import instant
from stateflow.format.keygroups import default_assignment, xxhash64
from stateflow.format.records import FileRef, Kind, OperatorState, Record, SchemaVersion, Shard, StateSchema
from stateflow.reading.diff import ComparedSnapshot
from stateflow.state.backends.base import NewFile, OpenShard
from stateflow.state.backends.memory import memory_backend
from stateflow.state.backends.rocksdb import rocksdb_backend
from stateflow.state.backends.rocksdb_options import MIB, RocksOptions
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.values.evolution.versions import versioned
from stateflow.state.values.serializers import EXPIRES, RAW_CODE, Serializer, serializer_for
from stateflow.storage.cache import FileCache
from stateflow.storage.files import inline, upload_file
from tests.jobs.builder import JobBuilder
from tests.jobs.operators import operator_of

GROUPS = 8
SECOND = 1_000_000
TOTAL, ITEMS, LOG, BRIEF, INDEX, IDLE, KEPT = 1, 2, 3, 4, 5, 6, 8
OPEN, PEAK, ALARMS, WAITING, SHORT, SHORT_INDEX, CHAT, CHAT_INDEX, RECENT, RECENT_INDEX = (
    10,
    11,
    12,
    *range(14, 21),
)
TTL = {"event": 5 * SECOND, "processing": 25 * SECOND}
SKU = (("sku", "str"),)
SCHEMAS = {
    "total": StateSchema(id=TOTAL, kind="value", value="int"),
    "items": StateSchema(id=ITEMS, kind="map", value="int", map_key="str"),
    "log": StateSchema(id=LOG, kind="list", value="str"),
    "brief": StateSchema(id=BRIEF, kind="value", value="int", expiry_index=INDEX),
    "idle": StateSchema(id=IDLE, kind="timer", value="event"),
    "kept": StateSchema(id=KEPT, kind="columns", value="columns{note:str}", by=SKU),
}
EVERY_KIND = {
    **SCHEMAS,
    "open": StateSchema(id=OPEN, kind="aggregating", value="int", namespace="str"),
    "peak": StateSchema(id=PEAK, kind="reducing", value="int"),
    "alarms": StateSchema(id=ALARMS, kind="timer", value="event", many=True, namespace="str"),
    "waiting": StateSchema(id=WAITING, kind="columns", value="columns{note:str}", by=SKU, timed=True),
    "short": StateSchema(id=SHORT, kind="map", value="int", map_key="str", expiry_index=SHORT_INDEX),
    "chat": StateSchema(id=CHAT, kind="list", value="str", expiry_index=CHAT_INDEX, namespace="str"),
    "recent": StateSchema(
        id=RECENT, kind="columns", value="columns{note:str}", by=SKU, timed=True, expiry_index=RECENT_INDEX
    ),
}
_int, _str, _float = serializer_for(int), serializer_for(str), serializer_for(float)
_user = KeyCodec(["int"]).encode
_name = KeyCodec(["str"]).encode
Model = dict[bytes, bytes]


_stamp = Struct(">Bq").pack
Changes = dict[bytes, bytes | None]


@dataclass(frozen=True, slots=True)
class Meaning:
    """A stored entry, as a person is to see it."""

    state: str
    user: int
    namespace: str | None
    part: Any
    value: Any
    expiry: int | None = None


def note(number: int, expiry: int | None = None) -> bytes:
    """A stored row of columns."""
    head = bytes((RAW_CODE,)) if expiry is None else _stamp(RAW_CODE | EXPIRES, expiry)
    return head + msgspec.msgpack.encode([f"n{number}"])


def full(state: int, user: int, namespace: str | None = None) -> bytes:
    within = EMPTY_NAMESPACE if namespace is None else NAMESPACE + _name(namespace)
    return prefix(xxhash64(user) % GROUPS, state) + _user(user) + within


class GrownJob(JobBuilder):
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
        schemas: Mapping[str, StateSchema] = SCHEMAS,
        ids_from: int = 0,
    ) -> None:
        """`ttl_time` is the time of half of the states that expire; the others have the other one."""
        self.backend, self.rng = backend, random.Random(seed)
        self.inline_threshold = inline_threshold
        self.models: dict[int, Model] = {}
        self.meanings: dict[tuple[bytes, bytes], Meaning] = {}
        """Of stored entries that are a state's."""
        self.users: dict[bytes, int] = {}
        """Whose entry it is, also of queues and indexes."""
        self.due: dict[bytes, tuple[str, int, bytes]] = {}
        """Blocks of the expiry indexes that are still there: their state, when they come due, and the entry that they name."""
        self.dues: dict[int, dict[bytes, tuple[str, int, bytes]]] = {}
        self.mark = self.now = self.blocks = 0
        other = {"event": "processing", "processing": "event"}[ttl_time]
        self.times = {"brief": ttl_time, "short": other, "chat": ttl_time, "recent": other}
        self.schemas = {
            name: msgspec.structs.replace(
                schema,
                id=schema.id + ids_from,
                expiry_index=schema.expiry_index and schema.expiry_index + ids_from,
                **(
                    {"ttl": TTL[self.times[name]], "ttl_time": self.times[name]} if name in self.times else {}
                ),
            )
            for name, schema in schemas.items()
        }
        self.numbers = {"total": _int, "open": _int}
        super().__init__(root, name)

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
        shards = [Shard(first, last, self.backend) for first, last in default_assignment(2, GROUPS)]
        return operator_of(shards, groups=GROUPS, states=self.schemas, next_state_id=1000)

    # -- what changes the job

    def batch(
        self,
        change: Callable[[Model], Changes] = lambda model: {},
        *,
        ranges: tuple[tuple[bytes, bytes], ...] = (),
        seconds: int = 1,
    ) -> int:
        """A checkpoint in which these entries are put and deleted, and then these ranges."""
        self.mark += seconds * SECOND
        self.now = self.clock()
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

    def record(self, operator: OperatorState, model: Model, kind: Kind = "checkpoint", **fields: Any) -> int:
        times = {"watermark": self.mark, "now": self.now}
        slot = self.decide(kind=kind, operators={"balance": operator}, **{**times, **fields}).slot
        self.models[slot], self.dues[slot] = model, dict(self.due)
        return slot

    def rescale(self, parallelism: int) -> int:
        return self.record(
            rescaled(self.operator(), parallelism, "operator 'balance'"), self.model, "rescale"
        )

    def join_pieces(self) -> int:
        """A batch that makes one shard of what a rescale has left in pieces."""
        operator, model = self.operator(), self.model
        self.now = self.clock()
        shards = tuple(
            (self._anew(min(s.first for s in task), max(s.last for s in task), model),)
            for task in operator.shards
        )
        return self.record(msgspec.structs.replace(operator, shards=shards), model)

    def restore(self, slot: int) -> int:
        """Its state becomes that of an earlier checkpoint."""
        record = self.at(slot)
        self.mark, self.due = record.watermark or 0, dict(self.dues[slot])
        return self.record(
            record.operators["balance"], dict(self.models[slot]), "restore", now=record.now, based_on=slot
        )

    def erase(self, user: int) -> int:
        """The shards with the user's key group are written anew without the user."""
        operator = self.operator()
        model = {key: raw for key, raw in self.model.items() if self.users.get(key) != user}
        self.due = {key: due for key, due in self.due.items() if self.users[key] != user}
        group = xxhash64(user) % GROUPS
        shards = tuple(
            tuple(
                self._anew(shard.first, shard.last, model) if shard.first <= group <= shard.last else shard
                for shard in task
            )
            for task in operator.shards
        )
        return self.record(msgspec.structs.replace(operator, shards=shards), model, "erase")

    def evolve(self) -> None:
        """From the next batch on, totals are floats. What is stored stays as it is."""
        for name in self.numbers.keys() & self.schemas.keys():
            self.numbers[name] = versioned(_float, 1, {0: _int.loads})
            self.schemas[name] = msgspec.structs.replace(
                self.schemas[name], value="float", version=1, versions=(SchemaVersion(0, "int", 1),)
            )

    @property
    def total(self) -> Serializer:
        return self.numbers["total"]

    def moment(self, record: Record, state: str) -> int | None:
        """The time by which an entry of the state has expired."""
        time = self.times.get(state)
        return None if time is None else record.watermark if time == "event" else record.now

    def meant(self, slot: int) -> list[Meaning]:
        """What a checkpoint holds, as a person is to see it."""
        record = self.at(slot)
        moments = {state: self.moment(record, state) for state in record.operators["balance"].states}
        found = [m for entry in self.models[slot].items() if (m := self.meanings.get(entry)) is not None]
        return [m for m in found if m.expiry is None or m.expiry > (moments[m.state] or 0)]

    def _stored(self, file: NewFile) -> FileRef:
        if file.data is not None:
            return inline(file.name, file.data)
        assert file.path is not None
        writer, unique = self.writer, uuid.UUID(int=self.rng.getrandbits(128)).hex
        path = writer.layout.shared_file(writer.epoch, writer.next_slot, unique, file.path.suffix or ".bin")
        return upload_file(writer.store, path, file.path, file.name)

    def _anew(self, first: int, last: int, model: Model) -> Shard:
        """A shard with all that the model has of these key groups, in files of its own."""
        return self._grown(Shard(first, last, self.backend), model, ())

    def _grown(
        self, shard: Shard, changes: Mapping[bytes, bytes | None], ranges: tuple[tuple[bytes, bytes], ...]
    ) -> Shard:
        place = self.folder / f"task-{uuid.uuid4().hex}"
        fetched = self.folder / f"fetched-{uuid.uuid4().hex}"
        fetched.mkdir()
        fetch = FileCache(self.folder / "tasks", 1 << 30).fetcher(self.store_of, fetched)
        own = {k: v for k, v in changes.items() if shard.first <= int.from_bytes(k[:2], "big") <= shard.last}
        backend = self.open_shard()(shard, place, fetch)
        backend.write(own.items())
        for begin, end in ranges:
            low, high = max(begin, prefix(shard.first, 0)), min(end, prefix(shard.last + 1, 0))
            if low < high:
                backend.delete_range(low, high)
        snapshot = backend.snapshot()
        refs = (*snapshot.kept, *map(self._stored, snapshot.new))
        backend.close()
        groups = range(shard.first, shard.last + 1)
        due: dict[str, list[int]] = {"event": [], "processing": []}
        for key, (state, at, _) in self.due.items():
            if int.from_bytes(key[:2], "big") in groups:
                due[self.times[state]].append(at)
        return msgspec.structs.replace(
            shard,
            files=refs,
            physical_first=None,
            physical_last=None,
            next_event_expiry=min(due["event"], default=None),
            next_processing_expiry=min(due["processing"], default=None),
        )

    # -- entries

    def some(self, users: int, most: int = 6) -> Callable[[Model], Changes]:
        """Random changes of every kind of state."""

        def change(model: Model) -> Changes:
            rng, made = self.rng, Changes()
            for _ in range(rng.randint(0, most)):
                user = rng.randrange(users)
                if rng.random() < 0.3:
                    made |= dict.fromkeys(
                        key for key in model if self.users[key] == user and key not in self.due
                    )
                    continue
                for state in rng.sample(list(self.schemas), min(7, len(self.schemas))):
                    made |= self.put(
                        model,
                        state,
                        user,
                        rng.randrange(4),
                        f"sku{rng.randrange(3)}",
                        rng.choice((None, "a", "b")),
                    )
            if rng.random() < 0.5:
                made |= self._swept(model)
            return made

        return change

    def passed(self, group: int) -> tuple[bytes, bytes]:
        """Of a state that is ordered by time, all that lies before the watermark: a batch deletes it at a stroke."""
        number = self.schemas["waiting"].id
        return prefix(group, number), prefix(group, number) + encode_timestamp(self.mark)

    def put(
        self, model: Model, state: str, user: int, number: int, sku: str = "", within: str | None = None
    ) -> Changes:
        """An entry of a state that means this number, with what has to be put and deleted beside it."""
        schema = self.schemas[state]
        namespace = within if schema.namespace else None
        key, part = full(schema.id, user, namespace), None
        expiry = None
        if (time := self.times.get(state)) is not None:
            expiry = TTL[time] + (self.mark if time == "event" else self.now)
        if schema.kind == "timer":
            return self._timer(model, schema, state, user, number * 20 + len(sku), namespace)
        if schema.kind == "columns":
            key, part = key + _name(sku), {"sku": sku}
            if schema.timed:
                at = self.mark + (number - 2) * SECOND
                key, part = key[:4] + encode_timestamp(at) + key[4:], {"at": instant(at), **part}
            raw, value = note(number, expiry), {"note": f"n{number}"}
        else:
            serializer, value = self.numbers.get(state, _int), number
            if schema.kind == "map":
                key, part = key + _name(sku), sku
            elif schema.kind == "list":
                serializer, value = _str, f"x{number}"
                position = self.writer.next_slot, self.rng.randrange(9)
                key, part = key + list_position(*position), list(position)
            raw = serializer.dumps(value) if expiry is None else serializer.dumps_with_expiry(value, expiry)
        self.users[key] = user
        self.meanings[key, raw] = Meaning(state, user, namespace, part, value, expiry)
        return {key: raw} if expiry is None else {key: raw, **self._block(state, key, expiry)}

    def _block(self, state: str, key: bytes, expiry: int) -> Changes:
        index, group = self.schemas[state].expiry_index, int.from_bytes(key[:2], "big")
        self.blocks += 1
        named = block_key(group, index, expiry, self.writer.next_slot, self.blocks)
        self.due[named], self.users[named] = (state, expiry, key), self.users[key]
        return {named: block([key[4:]])}

    def _timer(
        self, model: Model, schema: StateSchema, state: str, user: int, second: int, namespace: str | None
    ) -> Changes:
        key, at = full(schema.id + 1, user, namespace), second * SECOND
        queue, raw, gone = prefix(xxhash64(user) % GROUPS, schema.id), b"", Changes()
        if schema.many:
            key += encode_timestamp(at)
        else:
            raw = at.to_bytes(8, "big", signed=True)
            if (before := model.get(key)) is not None:
                gone = {queue + encode_timestamp(int.from_bytes(before, "big", signed=True)) + key[4:]: None}
        queued = queue + encode_timestamp(at) + full(schema.id, user, namespace)[4:]
        self.users[key] = self.users[queued] = user
        self.meanings[key, raw] = Meaning(
            state, user, namespace, instant(at) if schema.many else None, instant(at)
        )
        return {**gone, key: raw, queued: b""}

    def _swept(self, model: Model) -> Changes:
        """Some of the blocks that have come due go, with what they name and what has expired of it."""
        made = Changes()
        clocks = {"event": self.mark, "processing": self.now}
        for named, (state, due, key) in list(self.due.items()):
            clock = clocks[self.times[state]]
            if due > clock or self.rng.random() < 0.3:
                continue
            del self.due[named]
            made[named] = None
            meaning = self.meanings.get((key, model.get(key, b"")))
            if meaning is not None and meaning.expiry is not None and meaning.expiry <= clock:
                made[key] = None
        return made

    def save(self, slot: int, url: str) -> None:
        """A native savepoint of a checkpoint."""
        self.native(url, self.at(slot))

    def snapshot(self, slot: int, host: Path) -> ComparedSnapshot:
        return ComparedSnapshot(f"checkpoint {slot}", self.at(slot), self.place(host))


def put(job: GrownJob, **totals: int | None) -> int:
    """The totals of users by their names, `u1`; None removes one."""
    return job.batch(
        lambda model: {
            full(TOTAL, int(user[1:])): None if value is None else _int.dumps(value)
            for user, value in totals.items()
        }
    )


def fall_below_zero(job: GrownJob) -> None:
    """Six checkpoints: user 1 falls below zero in the fourth, and user 3 goes in the fifth."""
    put(job, u1=5, u2=1)
    put(job, u2=2)
    put(job, u1=8)
    put(job, u1=-3, u3=4)
    put(job, u3=None)
    put(job, u1=-1)
