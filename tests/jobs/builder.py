"""Builds jobs for tests, in any store, by the calls that the library itself makes: no pipeline runs, and no Spark.

`JobBuilder` claims a job, decides and completes the records that it is given, and leaves the signs that runs leave: heartbeats,
progress, tags, savepoints, what a collection removes. Most tests say it in one line with one of the rooms' other files:

- `made.py`: the orders example with so many checkpoints, of any age, ended or running, and its restores and forks;
- `queried.py`: checkpoints with real state files, of what user code has stored; `state.py`: of given states;
- `records.py`: the log and the history of a job that is months old;
- `log.py`: records and logs as values, in no store; `files.py` and `snapshots.py`: what records name, and savepoints of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from stateflow.checkpoint.claim import claim
from stateflow.checkpoint.collection import CollectionReport, collect
from stateflow.checkpoint.control import (
    INPUT_DRAINED,
    Heartbeat,
    Progress,
    RunOutcome,
    beat,
    report_progress,
)
from stateflow.checkpoint.draft import Draft
from stateflow.checkpoint.log import Log, read_log
from stateflow.checkpoint.pins import list_pins, pin, release
from stateflow.checkpoint.retention import Retention
from stateflow.checkpoint.writer import Writer
from stateflow.config.options import Options, load
from stateflow.errors import StateflowError
from stateflow.format.layout import JobLayout
from stateflow.format.records import Kind, Owner, Pin, Record, Savepoint
from stateflow.jobs.job import Job
from stateflow.reading.snapshots import ReaderContext
from stateflow.savepoints.native import create_native
from stateflow.savepoints.publish import SavepointFacts
from stateflow.state.backends.base import OpenShard
from stateflow.state.backends.choice import ShardReaders
from stateflow.state.backends.rocksdb_options import MIB, RocksOptions
from stateflow.storage.cache import FileCache
from stateflow.storage.roots import open_recorded, open_store
from stateflow.storage.store import Store

T0 = 1_767_225_600_000_000
"""2026-01-01, in microseconds."""
opener = ShardReaders(RocksOptions(write_buffer=MIB, inline_threshold=0))


def options_of(root: str | Path, folder: Path | None = None, **given: Any) -> Options:
    """Those of a command over this root whose own folders are in `folder`, or beside the root."""
    place = folder or Path(root).parent
    own = {
        "checkpoint_dir": str(root),
        "cache_dir": str(place / "cache"),
        "scratch_dir": str(place / "scratch"),
        "local_fsync": False,
    }
    return load(code={**own, **given}, env={}, folder=place)


def long_id(short: str) -> str:
    """The id `id7` in the form in which names of a savepoint's files have it."""
    return f"{int(short.removeprefix('id')):032x}"


def before_now(ago: timedelta) -> Callable[[], int]:
    """A clock that is late by so much."""
    return lambda: time.time_ns() // 1000 - ago // timedelta(microseconds=1)


class JobBuilder:
    """The job `name` in a store or below a root, and the run that has claimed it; with `run=""` nobody has yet.

    Its ids and its clock never repeat: each look at the clock is a `tick` later, unless another clock is given.
    """

    def __init__(
        self,
        place: str | Path | Store,
        name: str = "orders",
        *,
        run: str = "run",
        retained: int | None = None,
        clock: Callable[[], int] | None = None,
        folder: Path | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """`retained` checkpoints are kept, as the run announces. Other files than the job's, such as caches, are in `folder`, which is
        the one that a root on a disk is in, unless another is given."""
        self.storage_options = storage_options or {}
        self.store = (
            open_store(str(place), self.storage_options, fsync=False)
            if isinstance(place, str | Path)
            else place
        )
        self.root = str(place) if isinstance(place, str | Path) else place.url
        local = self.store.local_root
        # Whatever needs a folder beside a root that is on no disk fails, instead of writing where the tests run.
        self.folder = folder or (local.parent if local else Path(os.devnull))
        self.name, self.retained = name, retained
        self.layout = JobLayout(name)
        self.ticks = 0
        """Also where a copy of the job has to go on: no id is ever given again."""
        self.tick = 1_000_000
        """How long a tick takes, in microseconds."""
        if clock is not None:
            self.clock = clock  # type: ignore[method-assign]
        if run:
            self.begin(run)

    def ids(self) -> str:
        self.ticks += 1
        return f"id{self.ticks}"

    def clock(self) -> int:
        self.ticks += 1
        return T0 + self.ticks * self.tick

    def owner(self, run: str = "run") -> Owner:
        return Owner(run=run, host="here", pid=1, user="tester")

    # -- runs and their records

    def carry_out(self, record: Record, still_owner: Callable[[], None]) -> Mapping[str, str]:
        raise StateflowError("the table is not to be had")

    def claim(self, run: str = "run", retained: Retention | int | None = None) -> Writer:
        return claim(
            self.store,
            self.layout,
            owner=self.owner(run),
            ids=self.ids,
            clock=lambda: self.clock(),  # a test may give the job another one
            carry_out=self.carry_out,
            retained=retained or self.retained,
            probe=lambda store, ids: None,
        )

    def begin(self, run: str, retained: Retention | int | None = None) -> Writer:
        """A run claims the job, and makes its records from now on."""
        self.writer = self.claim(run, retained)
        return self.writer

    def decide(
        self,
        *,
        kind: Kind = "checkpoint",
        outcomes: Mapping[str, str] | None = None,
        timings: Mapping[str, Any] | None = None,
        pending: bool = False,
        **fields: Any,
    ) -> Record:
        """A record, such as a checkpoint, with these fields of a draft; one that is `pending` is decided and not carried out."""
        permit = self.writer.decide(Draft(kind, **{"now": self.clock(), **fields}))
        if not pending:
            self.writer.complete(permit, outcomes or {}, timings or {})
        return permit.record

    def log(self) -> Log:
        return read_log(self.store, self.layout)

    def at(self, slot: int) -> Record:
        return self.log().record(slot)

    def head(self) -> Record:
        """What the run has decided last."""
        head = self.writer.parent
        assert head is not None
        return head

    # -- signs of life

    def beat(self, counter: int = 1, *, at: int | None = None, **fields: Any) -> None:
        """A heartbeat of the run, or of another `epoch` and `owner`; its last one has `ended` and may have an `outcome`."""
        own = {} if "epoch" in fields else {"epoch": self.writer.epoch, "owner": self.writer.owner}
        now = self.clock() if at is None else at
        beat(self.store, self.layout, Heartbeat(counter=counter, at=now, **{**own, **fields}))

    def drained(self, *, ago: timedelta = timedelta(0)) -> None:
        """The run has ended by the clock of this machine, with nothing left to read."""
        self.beat(99, at=before_now(ago)(), ended=True, outcome=RunOutcome(stopped=INPUT_DRAINED))

    def progress(self, slot: int) -> None:
        found = Progress(
            epoch=self.writer.epoch, slot=slot, statistics={"processed_rows": 100}, at=self.clock()
        )
        report_progress(self.store, self.layout, found)

    # -- what keeps and removes records

    def tag(self, slot: int, name: str) -> Pin:
        return pin(
            self.store,
            self.layout,
            slot,
            kind="tag",
            name=name,
            owner=self.owner(),
            ids=self.ids,
            clock=self.clock,
        )

    def untag(self, name: str) -> None:
        for made in list_pins(self.store, self.layout):
            if made.name == name:
                release(self.store, self.layout, made.id)

    def collect(self, retained: Retention | int | None = None, orphans: bool = True) -> CollectionReport:
        return collect(
            self.store,
            self.layout,
            collector=self.ids(),
            retained=retained or self.retained or 3,
            orphans=orphans,
        )

    # -- savepoints, and the library's own objects

    def native(
        self,
        target: str | Path | Store,
        record: Record | None = None,
        *,
        owner: Owner | None = None,
        **how: Any,
    ) -> Savepoint:
        """A native savepoint of a record, or of the newest one."""
        place = open_store(str(target), fsync=False) if isinstance(target, str | Path) else target
        return create_native(
            self.store, self.layout, record or self.head(), place, SavepointFacts(name="s", owner=owner or self.owner()),
            ids=lambda: long_id(self.ids()), clock=self.clock, open_base=self.store_of, scratch=self.folder / "scratch", **how,
        )  # fmt: skip

    def store_of(self, base: str) -> Store:
        """The store of what a reference is relative to: the root, or a savepoint."""
        return open_recorded(base, {}, root=self.root) if base else self.store

    def place(self, folder: Path, open_with: Callable[[str], OpenShard] | None = None) -> ReaderContext:
        """A host that reads the job's state, and has fetched nothing yet."""
        return ReaderContext(
            root=self.root,
            cache=FileCache(folder / "cache", 1 << 30),
            scratch=folder / "scratch",
            open_shard=open_with or opener,
            clock=self.clock,
        )

    def options(self, **given: Any) -> Options:
        return options_of(self.root, self.folder, **{"storage_options": dict(self.storage_options), **given})

    def opened(self, name: str = "") -> Job:
        """The library's own object, of this job or of another one in the root."""
        return Job(self.root, name or self.name, storage_options=self.storage_options)
