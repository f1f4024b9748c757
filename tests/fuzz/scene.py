"""What a fuzzed input begins with: a root and a savepoint that are whole, as the library itself has made them."""

from __future__ import annotations

import hashlib
import itertools
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import stateflow as sf
from stateflow.checkpoint.statistics import keep_history
from stateflow.config.options import Options
from stateflow.format.records import Owner, Prepared, SourceState
from stateflow.jobs.job import Job
from stateflow.storage.local import LocalStore
from stateflow.storage.roots import FOR_TESTS
from stateflow.storage.store import Store
from tests.jobs.builder import T0, options_of
from tests.jobs.files import stored
from tests.jobs.operators import operator_of
from tests.jobs.queried import QueriedJob, entries_of
from tests.jobs.state import shard_of
from tests.memory_store import MemoryStore, _named, named_store

PARAMETERS = {"input": "/data/orders", "output": "/data/totals"}
OFFSET = '{"sourceVersion":1,"reservoirId":"r","reservoirVersion":%d,"index":-1,"isStartingVersion":false}'
KEYS = (3, 4, 700)
"""Keys that are looked up: the last one was never seen."""
MEMORY = "memory://fuzz"
FOR_TESTS["memory"] = named_store  # the fuzzer runs without pytest, too


@dataclass
class Order:
    user: int
    sku: str
    amount: float
    ts: datetime


class Account(sf.KeyedProcess[int, Order, Order]):
    """State of each kind that a look-up has code for."""

    total = sf.ValueState(float, queryable=True)
    items = sf.MapState(str, int, queryable=True)
    log = sf.ListState(str, queryable=True)
    most = sf.ReducingState(float, max, queryable=True)
    brief = sf.MapState(str, int, ttl="1 hour", queryable=True)
    days = sf.MapState(tuple[int, str], dict[str, list[int]], queryable=True)
    idle = sf.Timer("event")

    def process(self, key: int, rows: Any, ctx: Any) -> None:
        for row in rows:
            self.total.value = (self.total.value or 0.0) + row.amount
            self.items[row.sku] = self.items.get(row.sku, 0) + 1
            self.log.add(row.sku)
            self.most.add(row.amount)
            self.brief[row.sku] = 1
            self.days[key, row.sku] = {row.sku: [key]}
        self.idle.set(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=key))

    @idle.fires
    def forget(self, key: int, at: datetime, ctx: Any) -> None:
        self.items.clear()


@sf.pipeline("orders")
def orders(flow: sf.Flow, *, input: str, output: str) -> None:
    source = sf.delta(input)
    events = flow.source("events", source, Order, event_time="ts", watermark="1 hour")
    events.key_by("user", order_by="ts").process("balance", Account).append("totals", sf.delta(output))


@dataclass(frozen=True)
class Base:
    """The objects of a root and of a savepoint beside it, by `root/...` and `savepoint/...`."""

    objects: Mapping[str, bytes]
    states: tuple[str, ...]


@lru_cache(maxsize=1)
def base() -> Base:
    """Made once, in memory; `memory://fuzz` and `memory://fuzz-savepoint` are its places."""
    folder = Path(tempfile.mkdtemp(prefix="stateflow-fuzz-"))
    try:
        root, savepoint = named_store("fuzz"), named_store("fuzz-savepoint")
        root.restore({})
        savepoint.restore({})
        # The corpus names files: they have the same names in every process.
        names = (uuid.UUID(int=number) for number in itertools.count())
        with patch("tests.jobs.state.uuid.uuid4", lambda: next(names)):
            return _made(folder, root, savepoint)
    finally:
        shutil.rmtree(folder)


def _made(folder: Path, root: MemoryStore, savepoint: MemoryStore) -> Base:
    job = _Made(folder)
    for rows in range(1, 6):
        job.batch(rows)
    job.beat(2, ended=True)
    job.progress(5)
    keep_history(job.store, job.layout, job.log(), [1, 2, 3])
    library = Job(MEMORY, "orders", clock=job.clock, ids=job.ids, acts_as=job.owner("maker"))
    library.tag("v1", "checkpoint:4", note="before prices")
    options = options_for(MEMORY, folder)
    library.savepoint("native", options=options, to="memory://fuzz-savepoint", note="by *ann*", max_files=4)
    library.savepoint("native", options=options, name="daily")
    library.restore("tag:v1", orders, PARAMETERS, options=options).apply()
    job.begin("second")
    job.batch(6)
    job.beat(1)
    objects = {f"root/{path}": body for path, body in root.snapshot().items()}
    objects |= {f"savepoint/{path}": body for path, body in savepoint.snapshot().items()}
    return Base(dict(sorted(objects.items())), tuple(job.states))


class _Made(QueriedJob):
    """A job of this pipeline with real shards, a source with a log of its own and a sink with staged files."""

    def __init__(self, folder: Path) -> None:
        super().__init__(MEMORY, process=Account, folder=folder)

    def carry_out(self, record: Any, still_owner: Any) -> Mapping[str, str]:
        return dict.fromkeys(record.sinks, "committed")

    def batch(self, rows: int) -> None:
        harness = sf.testing.KeyedHarness(Account)
        at = datetime(2026, 1, 1, tzinfo=UTC)
        harness.rows(*(Order(user, _sku(user, row), 1.5, at) for user in range(1, 30) for row in range(rows)))
        slot = self.writer.next_slot
        entries = entries_of(harness).items()
        shards = [
            shard_of(self.writer, entries, first, last, folder=self.folder, backend=backend)
            for first, last, backend in ((0, 63, "rocksdb"), (64, 127, "memory"))
        ]
        path = self.layout.shared_file(self.writer.epoch, slot, f"log{slot}", ".log")
        log = stored(self.store, path, b"v1\n{}", name="0/7.compact")
        staged = self.layout.staged_file(self.writer.epoch, slot, f"out{slot}", ".parquet")
        out = stored(self.store, staged, b"PAR1 rows PAR1")
        last_commit = self.writer.last_commits.get("totals")
        self.decide(
            operators={
                "balance": operator_of(
                    shards, key=self.key, states=self.states, next_state_id=100, hosts=("here", "there")
                )
            },
            sources={"events": SourceState((OFFSET % slot,), (log,), "delta", T0, T0)},
            sinks={
                "totals": Prepared(
                    "delta_append",
                    "/data/totals",
                    last_commit,
                    payload={"actions": ["{}"]},
                    files=(out,),
                    rows=rows,
                )
            },
            outcomes={"totals": "committed"},
            now=T0 + slot,
            watermark=T0,
            parameters=PARAMETERS,
            versions={"stateflow": "0.1.0"},
            statistics={
                "trigger_timestamp": T0 // 1000,
                "processed_rows": rows,
                "watermark_held_by": "events",
                "watermark_held_since": T0,
                "operators": {
                    "balance": {"rows_in": rows, "rows_out": rows, "keys": 2, "timers": 0, "dead_letters": 0}
                },
                "metrics": {"uploaded_bytes": 10, "cache_hits": 1},
                "timings": {"prepare totals": 1.25},
            },
        )


def _sku(user: int, row: int) -> str:
    """One of them is long, and does not compress: a shard has a file of its own when it is larger than 20 KiB."""
    return (
        f"sku{row}" if row else "".join(hashlib.sha512(f"{user} {n}".encode()).hexdigest() for n in range(8))
    )


def _removed(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def options_for(root: str, folder: Path) -> Options:
    return options_of(root, folder, inline_threshold="0")


_numbers = itertools.count(1)


@dataclass
class Scene:
    """One input, stored: in memory, or in folders beside a canary."""

    folder: Path
    on_disk: bool = False
    canary: MemoryStore = field(default_factory=lambda: named_store("canary"))

    @property
    def root(self) -> str:
        return str(self.folder / "root") if self.on_disk else MEMORY

    @property
    def savepoint(self) -> str:
        return str(self.folder / "savepoint") if self.on_disk else f"{MEMORY}-savepoint"

    @property
    def store(self) -> Store:
        return LocalStore(Path(self.root), fsync=False) if self.on_disk else named_store("fuzz")

    @property
    def savepoint_store(self) -> Store:
        return (
            LocalStore(Path(self.savepoint), fsync=False) if self.on_disk else named_store("fuzz-savepoint")
        )

    def lay(self, objects: Mapping[str, bytes], links: Mapping[str, str]) -> None:
        """Puts the input in place of the last one."""
        for name in [name for name in _named if name not in ("fuzz", "fuzz-savepoint", "canary")]:
            del _named[name]
        shutil.rmtree(self.folder / "cache", ignore_errors=True)
        if not self.on_disk:
            for top, name in (("root/", "fuzz"), ("savepoint/", "fuzz-savepoint")):
                store = named_store(name)
                store.calls.clear()
                store.restore({p.removeprefix(top): b for p, b in objects.items() if p.startswith(top)})
            return
        for top in ("root", "savepoint"):
            _removed(self.folder / top)
            (self.folder / top).mkdir()
        for path, body in objects.items():
            target = self.folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(body)
        for path, target_path in links.items():
            place = self.folder / path
            if (
                path in ("root", "savepoint")
                or not place.parent.is_dir()
                or place.parent.resolve() != place.parent
            ):
                continue  # what a person names is trusted; and a link is laid only where no other one leads
            _removed(place)
            place.symlink_to(self.folder / target_path)

    def job(self, name: str = "orders") -> Job:
        """Time passes only while somebody sleeps."""
        now = [0.0]

        def sleep(seconds: float) -> None:
            now[0] += seconds

        return Job(
            self.root,
            name,
            clock=lambda: T0 + 10**10,
            monotonic=lambda: now[0],
            sleep=sleep,
            ids=lambda: f"fuzz{next(_numbers)}",
            acts_as=Owner(run="fuzz", host="fuzz", pid=1, user="fuzz"),
        )

    @property
    def options(self) -> Options:
        return options_for(self.root, self.folder)
