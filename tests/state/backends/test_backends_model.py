"""Any order of operations, batches and abandoned attempts gives what a sorted dict would."""

from __future__ import annotations

import shutil
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stateflow.format.records import Shard
from stateflow.state.backends.base import Backend, OpenShard
from stateflow.state.backends.memory import memory_backend
from stateflow.state.backends.rocksdb import rocksdb_backend
from stateflow.state.backends.rocksdb_options import MIB, RocksOptions
from tests.in_memory import IN_MEMORY
from tests.state.sealed import kept

GROUPS = 6
groups = st.integers(0, GROUPS - 1)
names = st.binary(min_size=0, max_size=2) | st.sampled_from([b"\xff", b"\xff\xff", b"\0", b"a", b"b"])
keys = st.builds(lambda group, name: group.to_bytes(2, "big") + name, groups, names)
# A few values of this size fill the write buffer, so that files are made in the middle of a batch.
values = st.binary(max_size=4) | st.just(300 << 10).map(bytes)


class Machine(RuleBasedStateMachine):
    open_shard: OpenShard

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="stateflow-model-", dir=IN_MEMORY))
        self.numbers = count()
        self.files = self.root / "files"
        self.files.mkdir()
        self.shard = Shard(0, GROUPS - 1, "any")
        self.sealed: dict[bytes, bytes] = {}
        self.model: dict[bytes, bytes] = {}
        self.scans: list[tuple[Any, list[tuple[bytes, bytes]]]] = []
        self.backend: Backend = self.opened()

    def opened(self) -> Backend:
        return self.open_shard(
            self.shard, self.root / f"open-{next(self.numbers)}", lambda ref: self.files / ref.path
        )

    def seal(self) -> None:
        files = kept(self.backend.snapshot(), self.files)
        self.backend.close()
        self.shard = Shard(self.shard.first, self.shard.last, "any", files)
        self.sealed = dict(self.model)

    def within(self, begin: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        return sorted((key, value) for key, value in self.model.items() if begin <= key < end)

    @rule(changes=st.lists(st.tuples(keys, st.none() | values), max_size=8))
    def write(self, changes: list[tuple[bytes, bytes | None]]) -> None:
        self.backend.write(iter(changes))
        for key, value in changes:
            if value is None:
                self.model.pop(key, None)
            else:
                self.model[key] = value

    @rule(group=groups, step=st.integers(1, 3))
    def put_many(self, group: int, step: int) -> None:
        """More than are deleted one by one when a range is."""
        entries = [
            (b"%b%b" % (group.to_bytes(2, "big"), n.to_bytes(2, "big")), b"m") for n in range(0, 900, step)
        ]
        self.backend.write(entries)
        self.model.update(entries)

    @rule(begin=keys, end=keys)
    def delete_range(self, begin: bytes, end: bytes) -> None:
        self.backend.delete_range(begin, end)
        for key, _ in self.within(begin, end):
            del self.model[key]

    @rule(key=keys)
    def get(self, key: bytes) -> None:
        assert self.backend.get(key) == self.model.get(key)

    @rule(wanted=st.lists(keys, max_size=10))
    def get_many(self, wanted: list[bytes]) -> None:
        assert list(self.backend.get_many(wanted)) == [self.model.get(key) for key in wanted]

    @rule(begin=keys, end=keys)
    def first(self, begin: bytes, end: bytes) -> None:
        assert self.backend.first(begin, end) == next((key for key, _ in self.within(begin, end)), None)

    @rule(begin=keys, end=keys)
    def scan(self, begin: bytes, end: bytes) -> None:
        assert list(self.backend.scan(begin, end)) == self.within(begin, end)

    @rule(wanted=st.sets(st.binary(min_size=1, max_size=1), max_size=4), group=groups)
    def scan_many(self, wanted: set[bytes], group: int) -> None:
        begins = sorted(group.to_bytes(2, "big") + name for name in wanted if name != b"\xff")
        found = [self.within(begin, begin[:-1] + bytes((begin[-1] + 1,))) for begin in begins]
        assert list(self.backend.scan_many(begins)) == found

    @rule(begin=keys, end=keys)
    def begin_scan(self, begin: bytes, end: bytes) -> None:
        self.scans.append((self.backend.scan(begin, end), self.within(begin, end)))

    @rule()
    def end_scans(self) -> None:
        scans, self.scans = self.scans, []
        for scan, expected in scans:
            assert list(scan) == expected

    @rule()
    def next_batch(self) -> None:
        self.end_scans()
        self.seal()
        self.backend = self.opened()

    @rule()
    def abandon(self) -> None:
        self.end_scans()
        self.backend.close()
        self.model = dict(self.sealed)
        self.backend = self.opened()

    @rule(first=groups, last=groups)
    def split(self, first: int, last: int) -> None:
        if not self.shard.first <= first <= last <= self.shard.last:
            return
        self.end_scans()
        self.seal()
        whole = self.shard
        # Rules put keys of any group, so the files may hold every one of them.
        self.shard = Shard(first, last, "any", whole.files, physical_first=0, physical_last=GROUPS - 1)
        self.model = dict(self.within(first.to_bytes(2, "big"), (last + 1).to_bytes(2, "big")))
        self.sealed = dict(self.model)
        self.backend = self.opened()

    @invariant()
    def everything_is_there(self) -> None:
        if next(self.numbers) % 7 == 0:
            assert list(self.backend.scan(b"\0\0", b"\xff")) == self.within(b"\0\0", b"\xff")

    def teardown(self) -> None:
        self.end_scans()
        self.seal()
        self.backend = self.opened()
        assert dict(self.backend.scan(b"\0\0", b"\xff")) == self.model
        self.backend.close()
        shutil.rmtree(self.root)


class MemoryMachine(Machine):
    open_shard = staticmethod(memory_backend())


class RocksMachine(Machine):
    open_shard = staticmethod(rocksdb_backend(RocksOptions(write_buffer=MIB, inline_threshold=4 << 10)))


checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
MemoryMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=checks
)
RocksMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=checks
)
TestMemory = MemoryMachine.TestCase
TestRocks = RocksMachine.TestCase
