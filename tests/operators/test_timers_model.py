"""Any order of setting, clearing and firing timers over several batches does what a plain list of timers would."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import stateflow as sf
from stateflow.format.encoding import prefix
from stateflow.format.records import FileRef, Shard
from stateflow.operators import due, firing
from stateflow.operators.binding import TIMER_IDS, schemas
from stateflow.operators.context import Moment
from stateflow.operators.keyed import Chunk, KeyedEngine
from stateflow.pipelines.processes.operator_spec import OperatorSpec
from stateflow.pipelines.rows.row_type import row_type
from stateflow.state.backends.base import Backend, OpenShard
from stateflow.state.backends.memory import memory_backend
from stateflow.state.backends.rocksdb import rocksdb_backend
from stateflow.state.keys.codec import KeyCodec
from stateflow.storage.files import checksum
from tests.in_memory import IN_MEMORY

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAMES = ("each", "one", "other", "soon")
NAMESPACED = ("each", "one")
CODEC = KeyCodec(("int",))
Action = tuple[str, str, str | None, int]
"""set, clear or clear_key; a timer; a namespace; a number of seconds."""


def actions(seed: int, turn: Any) -> list[Action]:
    """What a handler does, in seconds from the timer that fires."""
    random, made = Random(f"{seed}:{turn}"), []
    if turn[-1] > 5:
        return []  # so that none fires for ever
    for _ in range(random.choice([0, 0, 1, 1, 2])):
        name = random.choice(NAMES)
        namespace = random.choice([None, "a", "b"]) if name in NAMESPACED else None
        what = random.choice([*["set"] * 5, "clear", "clear", "clear_key"])
        made.append((what, name, namespace, random.choice([-2, 0, 0, 1, 1, 3, 7, 50])))
    return made


def failure(seed: int, turn: Any) -> str:
    """How a handler fails: at its end, or when its changes are written; mostly not at all."""
    return Random(f"fails:{seed}:{turn}").choice(["raises", "wrong type", "wrong view", *[""] * 15])


class Timed(sf.KeyedProcess[int, Any, Any]):
    """Rows are actions, in seconds from 1970."""

    one = sf.Timer("event", namespace=str)
    other = sf.Timer("event")
    soon = sf.Timer("processing")
    each = sf.Timer("event", many=True, namespace=str)
    seen = sf.ValueState(list[int], default=list)
    log = sf.ListState(int)
    calls = sf.ValueState(int, default=0, namespace=str)
    names = sf.MapState(int, str, namespace=str)
    turns: Counter[int]

    def open(self, ctx: sf.Context) -> None:
        self.turns = Counter()

    def _do(self, action: Action, origin: datetime, ctx: sf.Context) -> None:
        what, name, namespace, seconds = action
        timer = getattr(self, name)
        timer = timer.under(namespace) if name in NAMESPACED else timer
        at = origin + timedelta(seconds=seconds)
        match what:
            case "clear_key":
                ctx.clear_key()
            case "set":
                timer.set(at)
            case _:
                timer.clear(at) if name == "each" else timer.clear()

    def process(self, key: int, rows: Any, ctx: sf.Context) -> None:
        assert ctx.namespace is None
        for action in rows:
            self._do(action, EPOCH, ctx)

    def _fired(self, name: str, key: int, at: datetime, ctx: sf.Context) -> Iterator[Any]:
        seed, seconds = ctx.parameters["seed"], int((at - EPOCH).total_seconds())
        self.turns[key] += 1
        turn = (name, key, ctx.namespace, seconds, self.turns[key])
        seen = self.seen.value
        seen.append(seconds)
        self.seen.value = seen
        self.log.add(seconds)
        calls, names = self.calls.at(ctx.namespace), self.names.at(ctx.namespace)
        calls.value += 1
        names[seconds] = name
        if name == "one":
            assert self.one.under(ctx.namespace).at == at
        times = [int((each - EPOCH).total_seconds()) for each in self.each.under(ctx.namespace).all()]
        yield *turn, list(seen), self.log.get(), calls.value, self.calls.namespaces(), times
        assert self.names.namespaces() == self.calls.namespaces()
        for action in actions(seed, turn):
            self._do(action, at, ctx)
        match failure(seed, turn):
            case "raises":
                raise ValueError("as agreed")
            case "wrong type":
                self.log.add("text")  # type: ignore[arg-type]
            case "wrong view":
                self.calls.at("a").value = "text"  # type: ignore[assignment]

    @each.fires
    def on_each(self, key: int, at: datetime, ctx: sf.Context) -> Iterator[Any]:
        return self._fired("each", key, at, ctx)

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
        self.timers: set[tuple[int, str, str | None, int]] = set()
        self.seen: dict[int, list[int]] = {}
        self.calls: dict[tuple[int, str | None], int] = {}
        self.times: dict[tuple[int, str | None], set[int]] = {}

    def do(self, key: int, action: Action, origin: int) -> None:
        what, name, namespace, seconds = action
        timer = (key, name, namespace)
        if what == "clear_key":
            self.timers = {each for each in self.timers if each[0] != key}
            self.seen.pop(key, None)
            self.calls = {each: count for each, count in self.calls.items() if each[0] != key}
            self.times = {each: times for each, times in self.times.items() if each[0] != key}
        elif name == "each":
            if what == "set":
                self.timers.add((*timer, origin + seconds))
            else:
                self.timers.discard((*timer, origin + seconds))
        else:
            self.timers = {each for each in self.timers if each[:3] != timer}
            if what == "set":
                self.timers.add((*timer, origin + seconds))

    def fire(self, limit: int) -> list[Any]:
        fired: list[Any] = []
        waiting: set[Any] = set()
        turns: Counter[int] = Counter()
        while due := [
            (at, key % 128, key, namespace or "", name)
            for key, name, namespace, at in self.timers
            if at <= limit and not {(key, name, namespace), (key, name, namespace, at)} & waiting
        ]:
            at, _, key, named, name = min(due)
            namespace = named or None
            timer = (key, name, namespace)
            turns[key] += 1
            turn = (name, key, namespace, at, turns[key])
            times = sorted(each[3] for each in self.timers if each[:3] == (key, "each", namespace))
            self.timers.remove((*timer, at))
            if failure(self.seed, turn):
                continue
            seen = self.seen[key] = [*self.seen.get(key, []), at]
            calls = self.calls[key, namespace] = self.calls.get((key, namespace), 0) + 1
            self.times.setdefault((key, namespace), set()).add(at)
            names = sorted(each for of_key, each in self.calls if of_key == key and each is not None)
            fired.append((*turn, seen, seen, calls, names, times))
            for action in actions(self.seed, turn):
                self.do(key, action, at)
            for again in [each for each in self.timers if each[:3] == timer and each[3] <= at]:
                waiting.add(again if name == "each" else timer)
        return fired

    def earliest(self, *names: str) -> int | None:
        return min((at * 10**6 for _, name, _, at in self.timers if name in names), default=None)


class Shards:
    """Opens a shard over the files of its last snapshot."""

    def __init__(self, open_shard: OpenShard) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="stateflow-timers-", dir=IN_MEMORY))
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


actions_of_rows = st.tuples(
    st.sampled_from(["set", "set", "set", "clear", "clear_key"]),
    st.sampled_from(NAMES),
    st.sampled_from([None, "a", "b"]),
    st.integers(-3, 25),
).map(lambda row: row if row[1] in NAMESPACED else (*row[:2], None, row[3]))


def entries(model: Model) -> int:
    """Two per timer; of each key the list that it has seen, and each element in the log; per namespace a count, and an entry
    of a map per time."""
    seen = sum(1 + len(times) for times in model.seen.values())
    return 2 * len(model.timers) + seen + sum(1 + len(times) for times in model.times.values())


actions_of_rows = st.tuples(
    st.sampled_from(["set", "set", "set", "clear", "clear_key"]),
    st.sampled_from(NAMES),
    st.sampled_from([None, "a", "b"]),
    st.integers(-3, 25),
).map(lambda row: row if row[1] in NAMESPACED else (*row[:2], None, row[3]))


rows = st.dictionaries(
    # 1 and 129 are in one key group.
    st.sampled_from([1, 2, 129, 5]),
    st.lists(actions_of_rows, min_size=1, max_size=4),
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
@example(
    batches=[({1: [("set", "each", "a", 3)], 2: [("set", "each", None, 0)]}, 3)],
    seed=0,
    block=1,
    remembered=0,
)
@example(
    batches=[({1: [("set", "each", "a", 0), ("set", "each", "a", -3)], 2: [("set", "each", None, -1)]}, 0)],
    seed=3927,
    block=1,
    remembered=100,
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
            made.open()
            if rows:
                made.run(chunk(rows))
            for key, of_key in rows.items():
                for action in of_key:
                    model.do(key, action, 0)
            for _ in made.fire(range(128)):
                pass
            assert made.out == model.fire(limit)
            earliest = model.earliest("each", "one", "other"), model.earliest("soon")
            assert made.next_timers(range(128)) == earliest
            assert len(list(backend.scan(b"", b"\xff" * 8))) == entries(model)
            shards.seal(backend)
    finally:
        shutil.rmtree(shards.root)
