"""Jobs whose checkpoints hold given state, made through the protocol and the state backends, without a run."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from stateflow.checkpoint.claim import claim
from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.pins import pin
from stateflow.checkpoint.writer import Writer
from stateflow.config.options import Options, load
from stateflow.format.encoding import EMPTY_NAMESPACE, list_position, prefix, timer_key
from stateflow.format.instants import micros_since_epoch
from stateflow.format.keygroups import default_assignment, xxhash64
from stateflow.format.layout import JobLayout
from stateflow.format.records import (
    FileRef,
    OperatorListState,
    OperatorState,
    Owner,
    Record,
    Shard,
    SourceState,
    StateSchema,
)
from stateflow.state.backends.choice import Backends
from stateflow.state.backends.rocksdb_options import RocksOptions
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.values.serializers import serializer_for
from stateflow.storage.files import inline, upload_file
from stateflow.storage.roots import open_store

T0 = 1_767_225_600_000_000
"""2026-01-01, in microseconds."""
Key = Sequence[tuple[str, str]]
Entry = tuple[bytes, bytes]


@dataclass
class Held:
    """One state: how it is declared, and what it holds by key."""

    kind: str
    type: Any
    content: Mapping[Any, Any]
    """value: one value; list: values; map: a mapping; timer: an instant."""
    map_key: str = ""
    ttl: int | None = None
    expires: Mapping[Any, int] = field(default_factory=dict)
    """By key, when there is a ttl."""

    @property
    def schema(self) -> StateSchema:
        text = self.type if self.kind in ("timer", "columns") else serializer_for(self.type).schema
        return StateSchema(id=0, kind=self.kind, value=text, map_key=self.map_key, ttl=self.ttl)

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
                case _:
                    out.append((full, self._stored(content, expiry)))
        return out

    def _stored(self, value: Any, expiry: int | None) -> bytes:
        serializer = serializer_for(self.type)
        return serializer.dumps(value) if expiry is None else serializer.dumps_with_expiry(value, expiry)


@dataclass
class Holding:
    """A job that holds state in `folder/root`."""

    folder: Path
    name: str = "orders"
    retained: int | None = None
    root: str = ""
    """Another place than `folder/root`."""
    storage_options: Mapping[str, str] = field(default_factory=dict)
    writer: Writer = field(init=False)
    ticks: Any = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.root = self.root or str(self.folder / "root")
        self.store = open_store(self.root, self.storage_options, fsync=False)
        self.layout = JobLayout(self.name)
        self.writer = claim(
            self.store, self.layout, owner=self.owner, ids=self.ids, clock=self.clock,
            carry_out=lambda record, last, still_owner: {}, retained=self.retained,
        )  # fmt: skip

    owner = Owner(run="run", host="here", pid=1, user="tester")

    def ids(self) -> str:
        return f"id{next(self.ticks):06d}"

    def clock(self) -> int:
        return T0 + next(self.ticks) * 1_000_000

    @property
    def options(self) -> Options:
        given = {
            "checkpoint_dir": self.root,
            "cache_dir": str(self.folder / "cache"),
            "scratch_dir": str(self.folder / "scratch"),
            "local_fsync": False,
            "storage_options": dict(self.storage_options),
        }
        return load(code=given, env={}, folder=self.folder)

    @property
    def given(self) -> dict[str, str]:
        """The same as options of a data source."""
        names = ("checkpoint_dir", "cache_dir", "scratch_dir")
        plain = {name: str(getattr(self.options, name)) for name in names}
        return {**plain, **{f"storage.{name}": value for name, value in self.storage_options.items()}}

    def operator(
        self,
        key: Key,
        states: Mapping[str, Held],
        *,
        parallelism: int = 2,
        max_parallelism: int = 16,
        backend: str = "rocksdb",
        inline_threshold: int = 0,
        elements: Mapping[str, OperatorListState] = {},
    ) -> OperatorState:
        """An operator with shards of this state in the store."""
        schemas: dict[str, StateSchema] = {}
        next_id, entries = 1, []
        for name, held in states.items():
            schemas[name] = msgspec.structs.replace(held.schema, id=next_id)
            entries += held.entries(next_id, key, max_parallelism)
            next_id += 2 if held.kind == "timer" else 1
        assignment = default_assignment(parallelism, max_parallelism)
        return OperatorState(
            key=tuple(key),
            max_parallelism=max_parallelism,
            assignment=assignment,
            shards=tuple(
                (self.shard(first, last, entries, backend, inline_threshold),) for first, last in assignment
            ),
            states=schemas,
            next_state_id=next_id,
            operator_states=dict(elements),
        )

    def shard(
        self, first: int, last: int, entries: Sequence[Entry], backend: str, inline_threshold: int
    ) -> Shard:
        own = sorted(e for e in entries if first <= int.from_bytes(e[0][:2], "big") <= last)
        shard = Shard(first=first, last=last, backend=backend)
        folder = self.folder / "made" / uuid.uuid4().hex
        folder.parent.mkdir(exist_ok=True)
        opened = Backends(RocksOptions(inline_threshold=inline_threshold))(backend)(shard, folder, _no_fetch)
        opened.write(own)
        snapshot = opened.snapshot()
        files: list[FileRef] = []
        for new in snapshot.new:
            if new.data is not None:
                files.append(inline(new.name, new.data))
            else:
                assert new.path is not None
                path = self.layout.shared_file(
                    self.writer.epoch, self.writer.next_slot, uuid.uuid4().hex, new.path.suffix
                )
                files.append(upload_file(self.store, path, new.path, new.name))
        opened.close()
        return msgspec.structs.replace(shard, files=tuple(files), entries=snapshot.entries)

    def checkpoint(self, sources: Mapping[str, SourceState] = {}, **operators: OperatorState) -> Record:
        """A complete checkpoint."""
        permit = self.writer.decide(
            Draft("checkpoint", now=self.clock(), operators=dict(operators), sources=dict(sources))
        )
        self.writer.complete(permit, {})
        return permit.record

    def tag(self, slot: int, name: str) -> None:
        pin(
            self.store, self.layout, slot, kind="tag", name=name, owner=self.owner, ids=self.ids, clock=self.clock
        )  # fmt: skip

    def cached(self) -> list[Path]:
        """Files that readers have fetched."""
        folder = self.folder / "cache" / "state"
        return [p for p in folder.iterdir() if not p.name.startswith(".")] if folder.is_dir() else []


def _no_fetch(ref: FileRef) -> Path:
    raise AssertionError(f"{ref.name} is not there")


def plain(rows: Sequence[Any], *names: str) -> list[tuple[Any, ...]]:
    """Columns of rows, sorted."""
    return sorted(tuple(row[name] for name in names) for row in rows)


def utc(value: datetime | None) -> datetime | None:
    """Spark hands out local times without a zone."""
    return value.astimezone() if value is not None else None


Factory = Callable[[], Holding]
