"""Real state files: entries go through the backends into a store, as a task's do."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from stateflow.checkpoint.writer import Writer
from stateflow.format.encoding import EMPTY_NAMESPACE, list_position, prefix
from stateflow.format.instants import micros_since_epoch
from stateflow.format.keygroups import default_assignment, xxhash64
from stateflow.format.records import FileRef, OperatorState, Shard, StateSchema
from stateflow.state.backends.base import NewFile, OpenShard
from stateflow.state.backends.memory import memory_backend
from stateflow.state.backends.rocksdb import rocksdb_backend
from stateflow.state.backends.rocksdb_options import MIB, RocksOptions
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.values.arrow.column_values import BLANK
from stateflow.state.values.serializers import serializer_for
from stateflow.storage.files import inline, upload_file
from tests.jobs.operators import Key, operator_of
from tests.state.stored_keys import timer_key

Entry = tuple[bytes, bytes]


def writable(backend: str, inline_threshold: int = 0) -> OpenShard:
    if backend == "memory":
        return memory_backend(inline_threshold)
    return rocksdb_backend(RocksOptions(write_buffer=MIB, inline_threshold=inline_threshold))


def sealed(
    writer: Writer, shard: Shard, chunks: Iterable[Iterable[Entry]], folder: Path, open_shard: OpenShard
) -> Shard:
    """The empty `shard` with these entries, in files of the writer's next record."""

    def kept(file: NewFile) -> FileRef:
        if file.data is not None:
            return inline(file.name, file.data)
        assert file.path is not None
        suffix = file.path.suffix or ".bin"
        path = writer.layout.shared_file(writer.epoch, writer.next_slot, uuid.uuid4().hex, suffix)
        return upload_file(writer.store, path, file.path, file.name)

    folder.parent.mkdir(parents=True, exist_ok=True)
    backend = open_shard(shard, folder, lambda ref: Path(ref.path))
    for chunk in chunks:
        backend.write(chunk)
    snapshot = backend.snapshot()
    files = tuple(map(kept, snapshot.new))
    backend.close()
    return msgspec.structs.replace(shard, files=files, entries=snapshot.entries)


def shard_of(
    writer: Writer,
    entries: Iterable[Entry],
    first: int,
    last: int,
    *,
    folder: Path,
    backend: str = "rocksdb",
    inline_threshold: int = 0,
) -> Shard:
    """Those of the entries that are in these key groups."""
    own = sorted(entry for entry in entries if first <= int.from_bytes(entry[0][:2]) <= last)
    place = folder / f"made-{uuid.uuid4().hex}"
    return sealed(writer, Shard(first, last, backend), [own], place, writable(backend, inline_threshold))


@dataclass
class Held:
    """One state: how it is declared, and what it holds by key."""

    kind: str
    type: Any
    content: Mapping[Any, Any]
    """value: one value; list: values; map: a mapping; timer: an instant; columns (without columns, timed): an instant."""
    map_key: str = ""
    ttl: int | None = None
    expires: Mapping[Any, int] = field(default_factory=dict)
    """By key, when there is a ttl."""

    @property
    def schema(self) -> StateSchema:
        text = self.type if self.kind in ("timer", "columns") else serializer_for(self.type).schema
        timed = self.kind == "columns"
        return StateSchema(id=0, kind=self.kind, value=text, map_key=self.map_key, ttl=self.ttl, timed=timed)

    def entries(self, state_id: int, key: Key, most: int) -> list[Entry]:
        codec = KeyCodec([kind for _, kind in key])
        out: list[Entry] = []
        for given, content in self.content.items():
            group, encoded = xxhash64(given) % most, codec.encode(given)
            full = prefix(group, state_id) + encoded + EMPTY_NAMESPACE
            expiry = self.expires.get(given) if self.ttl is not None else None
            match self.kind:
                case "list":
                    for position, value in enumerate(content):
                        out.append((full + list_position(3, position), self._stored(value, expiry)))
                case "map":
                    names = KeyCodec(self.map_key.split(","))
                    for name, value in content.items():
                        out.append((full + names.encode(name), self._stored(value, expiry)))
                case "timer":
                    at = micros_since_epoch(content)
                    out.append((timer_key(group, state_id, at, encoded), b""))
                    per_key = prefix(group, state_id + 1) + encoded + EMPTY_NAMESPACE
                    out.append((per_key, at.to_bytes(8, "big", signed=True)))
                case "columns":
                    at = micros_since_epoch(content)
                    out.append((timer_key(group, state_id, at, encoded), BLANK))
                case _:
                    out.append((full, self._stored(content, expiry)))
        return out

    def _stored(self, value: Any, expiry: int | None) -> bytes:
        serializer = serializer_for(self.type)
        return serializer.dumps(value) if expiry is None else serializer.dumps_with_expiry(value, expiry)


def held_operator(
    writer: Writer,
    key: Key,
    states: Mapping[str, Held],
    folder: Path,
    *,
    parallelism: int = 2,
    max_parallelism: int = 16,
    backend: str = "rocksdb",
    inline_threshold: int = 0,
    **fields: Any,
) -> OperatorState:
    """An operator with shards of this state in the store."""
    schemas: dict[str, StateSchema] = {}
    next_id, entries = 1, []
    for name, held in states.items():
        schemas[name] = msgspec.structs.replace(held.schema, id=next_id)
        entries += held.entries(next_id, key, max_parallelism)
        next_id += 2 if held.kind == "timer" else 1
    shards = [
        shard_of(
            writer, entries, first, last, folder=folder, backend=backend, inline_threshold=inline_threshold
        )
        for first, last in default_assignment(parallelism, max_parallelism)
    ]
    return operator_of(
        shards, key=key, states=schemas, next_state_id=next_id, groups=max_parallelism, **fields
    )
