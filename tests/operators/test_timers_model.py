"""Any order of setting, clearing and firing timers over several batches does what a plain list of timers would."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stateflow as sf
from stateflow.format.encoding import prefix
from stateflow.format.records import FileRef, Shard
from stateflow.operators import due, firing
from stateflow.operators.binding import TIMER_IDS, schemas
from stateflow.operators.context import Moment
from stateflow.operators.keyed import Chunk, KeyedEngine
from stateflow.pipelines.operators import OperatorSpec
from stateflow.pipelines.rows import row_type
from stateflow.state.backends.base import Backend, OpenShard
from stateflow.state.backends.memory import memory_backend
from stateflow.state.backends.rocksdb import rocksdb_backend
from stateflow.state.keys.codec import KeyCodec
from stateflow.storage.files import checksum

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAMES = ("one", "other", "soon")
CODEC = KeyCodec(("int",))
Action = tuple[str, int | None]
"""A timer, and how many seconds from the timer that fires it is set; None clears it."""


def actions(seed: int, name: str, key: int, at: int, calls: int) -> list[Action]:
    """What a handler does. A key's handlers do nothing after a few calls, so that none fires for ever."""
    random = Random(f"{seed}:{name}:{key}:{at}:{calls}")
    if calls > 5:
        return []
    return [
        (random.choice(NAMES), random.choice([None, -2, 0, 0, 1, 1, 3, 7, 50]))
        for _ in range(random.choice([0, 0, 1, 1, 2]))
    ]


def failure(seed: int, name: str, key: int, at: int, calls: int) -> str:
    """How a handler fails: at its end, or when its changes are written; mostly not at all."""
    return Random(f"fails:{seed}:{name}:{key}:{at}:{calls}").choice(["raises", "wrong type", *[""] * 12])


class Timed(sf.KeyedProcess[int, Any, Any]):
    """Rows are `(timer, seconds)`; None clears the timer."""

    one = sf.Timer("event")
    other = sf.Timer("event")
    soon = sf.Timer("processing")
    calls = sf.ValueState(int, default=0)
    seen = sf.ValueState(list[int], default=list)
    log = sf.ListState(int)

    def process(self, key: int, rows: Any, ctx: sf.Context) -> None:
        for name, seconds in rows:
            timer = getattr(self, name)
            timer.clear() if seconds is None else timer.set(EPOCH + timedelta(seconds=seconds))

    def _fired(self, name: str, key: int, at: datetime, ctx: sf.Context) -> Iterator[Any]:
        seed, seconds = ctx.parameters["seed"], int((at - EPOCH).total_seconds())
        calls = self.calls.value + 1
        self.calls.value = calls
        seen = self.seen.value
        seen.append(seconds)
        self.seen.value = seen
        self.log.add(seconds)
        yield name, key, seconds, calls, list(seen), self.log.get()
        for timer, ahead in actions(seed, name, key, seconds, calls):
            if ahead is None:
                getattr(self, timer).clear()
            else:
                getattr(self, timer).set(at + timedelta(seconds=ahead))
        match failure(seed, name, key, seconds, calls):
            case "raises":
                raise ValueError("as agreed")
            case "wrong type":
                self.log.add("text")  # type: ignore[arg-type]

    @one.fires
    def on_one(self, key: int, at: datetime, ctx: sf.Context) -> Iterator[Any]:
        return self._fired("one", key, at, ctx)

    @other.fires
    def on_other(self, key: int, at: datetime, ctx: sf.Context) -> Iterator[Any]:
        return self._fired("other", key, at, ctx)

    @soon.fires
    def on_soon(self, key: int, at: datetime, ctx: sf.Context) -> Iterator[Any]:
        return self._fired("soon", key, at, ctx)


class Model:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.timers: dict[tuple[int, str], int] = {}
        self.seen: dict[int, list[int]] = {}

    def set(self, key: int, name: str, at: int | None) -> None:
        if at is None:
            self.timers.pop((key, name), None)
        else:
            self.timers[key, name] = at

    def fire(self, limit: int) -> list[Any]:
        fired: list[Any] = []
        waiting: set[tuple[int, str]] = set()
        while due := [
            (at, key % 128, key, name)
            for (key, name), at in self.timers.items()
            if at <= limit and (key, name) not in waiting
        ]:
            at, _, key, name = min(due)
            seen = self.seen.get(key, [])
            del self.timers[key, name]
            if failure(self.seed, name, key, at, len(seen) + 1):
                continue
            seen = self.seen[key] = [*seen, at]
            fired.append((name, key, at, len(seen), seen, seen))
            own = None
            for timer, ahead in actions(self.seed, name, key, at, len(seen)):
                self.set(key, timer, None if ahead is None else at + ahead)
                if timer == name:
                    own = ahead
            if own is not None and own <= 0:
                waiting.add((key, name))
        return fired

    def earliest(self, *names: str) -> int | None:
        return min((at * 10**6 for (_, name), at in self.timers.items() if name in names), default=None)


class Shards:
    """Opens a shard over the files of its last snapshot."""

    def __init__(self, open_shard: OpenShard) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="stateflow-timers-"))
        self._open = open_shard
        self._numbers = count()
        self._files: tuple[FileRef, ...] = ()

    def open(self) -> Backend:
        shard = Shard(0, 127, "any", self._files)
        return self._open(shard, self.root / f"open-{next(self._numbers)}", lambda ref: self.root / ref.path)

    def seal(self, backend: Backend) -> None:
        snapshot = backend.snapshot()
        files = list(snapshot.kept)
        for new in snapshot.new:
            if new.data is not None:
                files.append(FileRef(new.name, len(new.data), "", data=new.data))
            else:
                assert new.path is not None
                stored = f"{next(self._numbers)}-{new.name}"
                shutil.copyfile(new.path, self.root / stored)
                files.append(FileRef(new.name, *checksum(new.path), path=stored))
        self._files = tuple(files)
        backend.close()


def engine(seed: int, slot: int, limit: int) -> KeyedEngine:
    ids, next_id = {}, 1
    for name, schema in schemas(Timed, "op").items():
        ids[name] = next_id
        next_id += TIMER_IDS if schema.kind == "timer" else 1
    row = row_type("n long")
    spec = OperatorSpec("op", Timed, Timed, ("user",), ("int",), (row,), row, {}, ids, "dead_letter", 10**6)
    moment = Moment(slot, limit * 10**6, 1, limit * 10**6, {"seed": seed})
    return KeyedEngine(spec, moment, 0)


def chunk(rows: dict[int, list[Any]]) -> Chunk:
    keys = sorted(rows, key=lambda key: (key % 128, key))
    base = [prefix(key % 128, 0) + CODEC.encode(key) + b"\0" for key in keys]
    return Chunk(
        keys,
        base,
        lambda i: (iter(rows[keys[i]]),),
        lambda state_id: [b[:2] + state_id.to_bytes(2, "big") + b[4:] for b in base],
    )


rows = st.dictionaries(
    # 1 and 129 are in one key group.
    st.sampled_from([1, 2, 129, 5]),
    st.lists(st.tuples(st.sampled_from(NAMES), st.none() | st.integers(-3, 25)), min_size=1, max_size=3),
)
batches = st.lists(st.tuples(rows, st.integers(0, 8)), min_size=1, max_size=4)


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=batches,
    seed=st.integers(0, 10**6),
    block=st.sampled_from([1, 2, 3, 10_000]),
    remembered=st.sampled_from([0, 1, 100]),
)
def test_timers_fire_as_a_plain_list_of_them_would(
    kind: str, batches: list[Any], seed: int, block: int, remembered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firing, "FIRED_AT_ONCE", block)
    monkeypatch.setattr(due, "LEAST", 1 if block < 10 else 4)
    monkeypatch.setattr(firing, "REMEMBERED", remembered)
    shards, model = Shards(memory_backend() if kind == "memory" else rocksdb_backend()), Model(seed)
    limit = 0
    try:
        for slot, (rows, ahead) in enumerate(batches, 1):
            limit += ahead
            backend = shards.open()
            made = engine(seed, slot, limit)
            made.attach(backend)
            if rows:
                made.run(chunk(rows))
            for key, sets in rows.items():
                for name, seconds in sets:
                    model.set(key, name, seconds)
            for _ in made.fire(range(128)):
                pass
            assert made.out == model.fire(limit)
            earliest = model.earliest("one", "other"), model.earliest("soon")
            assert made.next_timers(range(128)) == earliest
            queues = {timer.queue_id for timer in made.binding.timers.values()}
            times = {timer.state_id for timer in made.binding.timers.values()}
            ids = [int.from_bytes(key[2:4], "big") for key, _ in backend.scan(b"", b"\xff" * 8)]
            assert sum(i in queues for i in ids) == sum(i in times for i in ids) == len(model.timers)
            shards.seal(backend)
    finally:
        shutil.rmtree(shards.root)
