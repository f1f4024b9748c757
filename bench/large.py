"""Batches on state up to far beyond memory, beside what the disk can do; and what else one does with such a state."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import random
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.generate import CACHE
from bench.made_state import GROUPS, JOB, OPERATOR, STATE, claimed, now
from bench.measurement import Measurement, Plot, Results, Section, Workplace, at_most, median, seconds
from bench.measurement import size as bytes_

SIDES = ("0.1", "1", "10", "25", "50")
"""GB of state, about."""
KINDS = ("recent", "uniform", "cold")
"""recent: the keys that were made last. uniform: any keys. cold: any keys, none of them in memory."""
SHARDS, TASKS, VALUE = 8, 2, 84
KEYS_AT_ONCE = 20_000
"""A task looks up the keys of so many rows at a time."""
_PART = 10_000_000
_BLOCK = 8 << 10
"""Bytes that a look-up reads: a block of RocksDB's lies across two pages."""
_LONG = 4 << 20
THREADS = (1, 2, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class Size:
    keys_per_gb: int
    touched: int
    batches: int
    cold: int
    """Batches that find nothing in memory."""
    reading: float
    """Seconds of each measurement of the disk."""

    def keys(self, side: str) -> int:
        return round(float(side) * self.keys_per_gb)


def run(side: str, size: Size, workplace: Workplace) -> dict[str, Any]:
    keys = size.keys(side)
    # It stays after an interruption, and only until it has been measured: never two of them are on the disk.
    folder = CACHE / "large" / f"{keys}-keys"
    filling = filled(folder, keys, workplace.say)
    root = folder / "root"
    files = [path for path in (root / JOB / "shared").rglob("*") if path.is_file()]
    found: dict[str, Any] = {
        "filling": filling,
        "bytes": sum(path.stat().st_size for path in files),
        "files": len(files),
    }
    workplace.say("what the disk can do")
    found["disk"] = disk(files, size.reading)
    for kind in KINDS:
        count = size.cold if kind == "cold" else size.batches
        found[kind] = batches(folder, keys, kind, min(size.touched, keys // 2), count, workplace.say)
    found["acts"] = acts(root, keys, workplace)
    shutil.rmtree(folder)
    return found


def filled(folder: Path, keys: int, say: Callable[[str], None]) -> float:
    """Makes a job whose state has these keys, by several processes; the seconds that it took. What an interrupted run has made is
    not made again."""
    import msgspec

    from stateflow.checkpoint.draft import Draft
    from stateflow.format.keygroups import default_assignment
    from stateflow.format.layout import JobLayout
    from stateflow.format.records import Shard, StateSchema
    from stateflow.state.values.serializers import serializer_for
    from stateflow.storage.roots import open_store
    from tests.jobs.operators import operator_of

    done = folder / "seconds"
    if done.exists():
        return float(done.read_text())
    began = time.perf_counter()
    ids = folder / "ids"
    ids.mkdir(parents=True, exist_ok=True)
    store, layout = open_store(str(folder / "root"), fsync=False), JobLayout(JOB)
    writer = claimed(store, layout)
    assignment = default_assignment(SHARDS, GROUPS)
    with ProcessPoolExecutor(TASKS, multiprocessing.get_context("spawn")) as tasks:
        starts = range(0, keys, _PART)
        for number, _ in enumerate(tasks.map(partial(_sort_out, ids, keys, assignment), starts), 1):
            say(f"sorted {min(number * _PART, keys):,} of {keys:,} keys by shard")
        make = partial(_make_shard, folder, writer.epoch, writer.next_slot, len(starts))
        shards = []
        for packed in tasks.map(make, assignment):
            shards.append(msgspec.msgpack.decode(packed, type=Shard))
            say(f"wrote {len(shards)} of {SHARDS} shards, {time.perf_counter() - began:.0f} s")
    operator = operator_of(
        shards,
        key=(("user", "int"),),
        groups=GROUPS,
        states={STATE: StateSchema(id=1, kind="value", value=serializer_for(bytes).schema, queryable=True)},
        next_state_id=2,
    )
    writer.complete(writer.decide(Draft("checkpoint", now=now(), operators={OPERATOR: operator})), {})
    shutil.rmtree(ids)
    took = time.perf_counter() - began
    done.write_text(str(took))
    return took


def _sort_out(ids: Path, keys: int, assignment: Sequence[tuple[int, int]], start: int) -> None:
    """Files the keys of a part by shard, with their key groups."""
    import numpy as np
    import pyarrow as pa

    from stateflow.state.keys.hashing import key_groups_of

    if (ids / f"{start}.done").exists():
        return
    own = np.arange(start, min(start + _PART, keys), dtype=np.int64)
    groups = key_groups_of(("int",), [pa.array(own)], GROUPS).astype(np.int16)
    for first, last in assignment:
        within = (groups >= first) & (groups <= last)
        np.save(ids / f"{start}-{first}.npy", own[within])
        np.save(ids / f"{start}-{first}-groups.npy", groups[within])
    (ids / f"{start}.done").touch()


def _make_shard(folder: Path, epoch: int, slot: int, parts: int, groups_of: tuple[int, int]) -> bytes:
    """Writes a shard as a task does; the packed handle."""
    import msgspec
    import numpy as np

    from bench.snapshots import incompressible
    from stateflow.format.records import Shard
    from stateflow.state.backends.rocksdb import rocksdb_backend
    from stateflow.state.backends.rocksdb_options import RocksOptions
    from stateflow.state.keys.codec import KeyCodec
    from stateflow.state.values.serializers import serializer_for

    first, last = groups_of
    ids, handle = folder / "ids", folder / "ids" / f"shard-{first}"
    if handle.exists():
        return handle.read_bytes()
    names = [f"{at * _PART}-{first}" for at in range(parts)]
    own = np.concatenate([np.load(ids / f"{name}.npy") for name in names])
    groups = np.concatenate([np.load(ids / f"{name}-groups.npy") for name in names])
    order = np.argsort(groups, kind="stable")
    own, groups = own[order], groups[order]
    del order
    codec, dumps, values = KeyCodec(("int",)), serializer_for(bytes).dumps, incompressible(VALUE)
    place = folder / f"open-{first}"
    shutil.rmtree(place, ignore_errors=True)
    # The shard will be large: its files are written as those of large shards are.
    options = RocksOptions(preset="large") if len(own) * 100 > 1 << 30 else RocksOptions()
    backend = rocksdb_backend(options)(Shard(first, last, "rocksdb"), place, lambda ref: Path(ref.path))
    for at in range(0, len(own), 200_000):
        chunk = own[at : at + 200_000]
        full = codec.encode_many([chunk], groups[at : at + 200_000], 1)
        backend.write(zip(full, map(dumps, values(chunk.tolist())), strict=True))
    made = _sealed(backend, Shard(first, last, "rocksdb"), folder / "root", epoch, slot)
    packed = msgspec.msgpack.encode(made)
    handle.write_bytes(packed)
    return packed


def _sealed(backend: Any, shard: Any, root: Path, epoch: int, slot: int) -> Any:
    """The handle of the shard's snapshot, whose new files are uploaded: linked into the root."""
    import msgspec

    from stateflow.format.layout import JobLayout
    from stateflow.storage.files import inline, upload_file
    from stateflow.storage.roots import open_store

    store, layout = open_store(str(root), fsync=False), JobLayout(JOB)
    snapshot = backend.snapshot()
    files = list(snapshot.kept)
    for file in snapshot.new:
        if file.data is not None:
            files.append(inline(file.name, file.data))
            continue
        path = layout.shared_file(epoch, slot, uuid.uuid4().hex, file.path.suffix or ".bin")
        files.append(upload_file(store, path, file.path, file.name))
    backend.close()
    return msgspec.structs.replace(shard, files=tuple(files), entries=snapshot.entries)


def batches(
    folder: Path, keys: int, kind: str, touched: int, count: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Batches that read and write `touched` keys each, by two tasks of four shards; their seconds."""
    import msgspec
    import numpy as np
    import pyarrow as pa

    from stateflow.checkpoint.log import read_log
    from stateflow.format.layout import JobLayout
    from stateflow.state.keys.hashing import key_groups_of
    from stateflow.storage.roots import open_store

    store = open_store(str(folder / "root"), fsync=False)
    head = read_log(store, JobLayout(JOB)).head
    assert head is not None
    shards = [shard for subtask in head.operators[OPERATOR].shards for shard in subtask]
    base = {ref.path for shard in shards for ref in shard.files}
    cache = _storage(folder, 0).cache()
    for shard in shards:
        for ref in shard.files:
            if ref.data is None:
                cache.add(store, ref, folder / "root" / ref.path)
    chance = np.random.default_rng(1)
    took, looked_up, written = [], [], []
    with ProcessPoolExecutor(TASKS, multiprocessing.get_context("spawn")) as tasks:
        list(tasks.map(_warm_up, range(TASKS * 4)))
        for number in range(count):
            span = min(keys, 4 * touched) if kind == "recent" else keys
            own = np.unique(chance.integers(keys - span, keys, touched))
            groups = key_groups_of(("int",), [pa.array(own)], GROUPS)
            work = []
            for shard in shards:
                within = (groups >= shard.first) & (groups <= shard.last)
                place = np.argsort(groups[within], kind="stable")
                work.append((msgspec.msgpack.encode(shard), own[within][place], groups[within][place]))
            if kind == "cold":
                forget(folder / "root" / JOB)
            step = partial(_task, folder, 1_000_000 + number)
            began = time.perf_counter()
            results = list(tasks.map(step, (work[at::TASKS] for at in range(TASKS))))
            took.append(time.perf_counter() - began)
            looked_up.append(max(result[1] for result in results))
            written.append(sum(result[2] for result in results))
            before, shards = shards, [None] * len(work)
            for at, result in enumerate(results):
                shards[at::TASKS] = [msgspec.msgpack.decode(each, type=type(before[0])) for each in result[0]]
            _remove(folder, before, base | {ref.path for shard in shards for ref in shard.files})
            say(f"{kind}, batch {number + 1} of {count}: {took[-1]:.2f} s, {looked_up[-1]:.2f} s of look-ups")
    _remove(folder, shards, base)
    return {"seconds": took, "look_ups": looked_up, "new_bytes": written, "touched": touched}


def _remove(folder: Path, shards: Sequence[Any], needed: set[str]) -> None:
    """Removes the shards' files that are not needed, as a collection does."""
    storage = _storage(folder, 0)
    for ref in {ref.path: ref for shard in shards for ref in shard.files if ref.data is None}.values():
        if ref.path not in needed:
            storage.cache().distrust(storage.store(), ref)
            (folder / "root" / ref.path).unlink()


def _storage(folder: Path, slot: int) -> Any:
    from stateflow.spark.task.storage import TaskStorage

    return TaskStorage(
        root=str(folder / "root"),
        job=JOB,
        epoch=1,
        slot=slot,
        cache_dir=str(folder / "cache"),
        cache_bytes=1 << 40,
        scratch_dir=str(folder / "scratch"),
        fsync=False,
    )


def _warm_up(number: int) -> None:
    import stateflow.spark.task.shards
    import stateflow.state.backends.rocksdb  # noqa: F401

    time.sleep(0.1)


def _task(folder: Path, slot: int, work: Sequence[tuple[bytes, Any, Any]]) -> tuple[list[bytes], float, int]:
    """A batch of some shards, one after the other, as a task has them: their new handles, the seconds of the look-ups, and the
    bytes of new files."""
    import msgspec

    from stateflow.format.records import Shard
    from stateflow.spark.task.shards import TaskShards
    from stateflow.state.backends.choice import Backends
    from stateflow.state.backends.rocksdb_options import RocksOptions
    from stateflow.state.keys.codec import KeyCodec

    codec, looking = KeyCodec(("int",)), 0.0
    inputs = tuple(msgspec.msgpack.decode(packed, type=Shard) for packed, _, _ in work)
    shards = TaskShards(inputs, _storage(folder, slot), Backends(RocksOptions(merges="beside")))
    for number, (_, keys, groups) in enumerate(work):
        backend = shards.open(number)
        full = codec.encode_many([keys], groups, 1)
        for at in range(0, len(full), KEYS_AT_ONCE):
            chunk = full[at : at + KEYS_AT_ONCE]
            began = time.perf_counter()
            values = backend.get_many(chunk)
            looking += time.perf_counter() - began
            if None in values:
                raise AssertionError("a key is missing from the state")
            backend.write((key, value) for key, value in zip(chunk, values, strict=True))
        shards.finish(number, backend, (None, None))
    handles = shards.handles()
    new = int(shards.metrics["uploaded_bytes"])
    shards.close()
    return list(map(msgspec.msgpack.encode, handles)), looking, new


def forget(folder: Path) -> None:
    """Has the system drop what it has of the files from memory."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def disk(files: Sequence[Path], duration: float) -> dict[str, Any]:
    """Reads a second of a block at random by so many threads, past the system's cache, and bytes a second in sequence."""
    large = [path for path in files if path.stat().st_size > 2 * _LONG]
    if not large:
        return {}
    with ProcessPoolExecutor(TASKS, multiprocessing.get_context("spawn")) as tasks:
        list(tasks.map(_warm_up, range(TASKS * 4)))
        rates: dict[str, float] = {}
        for threads in THREADS:
            processes = min(threads, TASKS)
            read = partial(_read, large, _BLOCK, threads // processes, duration)
            rates[str(threads)] = sum(tasks.map(read, range(processes)))
        long = _LONG * sum(tasks.map(partial(_read, large, _LONG, 4, duration), range(TASKS)))
    return {"reads": rates, "sequence": long}


def _read(files: Sequence[Path], length: int, threads: int, duration: float, seed: int) -> float:
    """Reads a second of this length, at random places."""
    opened = [(os.open(path, os.O_RDONLY | os.O_DIRECT), path.stat().st_size // length) for path in files]
    until = time.perf_counter() + duration

    def one(number: int) -> int:
        chance, piece, count = random.Random(1000 * seed + number), mmap.mmap(-1, length), 0
        while time.perf_counter() < until:
            descriptor, places = chance.choice(opened)
            os.preadv(descriptor, [piece], chance.randrange(places) * length)
            count += 1
        return count

    with ThreadPoolExecutor(threads) as pool:
        count = sum(pool.map(one, range(threads)))
    for descriptor, _ in opened:
        os.close(descriptor)
    return count / duration


def acts(root: Path, keys: int, workplace: Workplace) -> dict[str, float]:
    """Seconds of a savepoint, a restore from it, a rescale and a first query."""
    from bench.snapshots import options, restored, timed
    from stateflow.format.records import Owner
    from stateflow.jobs.job import Job
    from stateflow.reading.snapshots import ReaderContext, checkpoint_reader
    from stateflow.state.backends.choice import ShardReaders
    from stateflow.state.backends.rocksdb_options import RocksOptions
    from stateflow.storage.cache import FileCache

    found: dict[str, float] = {}
    job = Job(str(root), JOB)
    workplace.say("a savepoint")
    found["savepoint"], made = timed(lambda: job.savepoint(options=options(root, workplace)))
    url = str(root / made.url.removeprefix(job.store.url + "/"))
    workplace.say("a restore")
    found["restore"], _ = restored(workplace, root, url, "restored")
    workplace.say("a rescale")
    found["rescale"], _ = timed(lambda: job.rescale(SHARDS * 2))
    workplace.say("a query")
    here = ReaderContext(
        str(root),
        FileCache(workplace.folder / "cache", 1 << 40),
        workplace.folder / "scratch",
        ShardReaders(RocksOptions()),
        now,
    )

    def ask() -> None:
        with checkpoint_reader(here, JOB, owner=Owner(run=JOB), ids=lambda: uuid.uuid4().hex) as reader:
            if reader.get(OPERATOR, STATE, keys // 2) is None:
                raise AssertionError("a key is missing from the state")

    found["query"], _ = timed(ask)
    return found


def limit(trial: Any, touched: int) -> float | None:
    """Seconds in which the disk reads a block for each key, or everything in sequence."""
    if not trial["disk"]:
        return None
    rates = trial["disk"]["reads"].values()
    return min(touched / max(rates), float(trial["bytes"] / trial["disk"]["sequence"]))


def section(results: Results, size: Size) -> Section:
    sides = [side for side in SIDES if side in results.by_side]
    rows, targets = [], []
    for side in sides:
        trial = results.first(side)
        bound = limit(trial, trial["uniform"]["touched"])
        rows.append(
            [
                f"{size.keys(side):,}",
                bytes_(trial["bytes"]),
                *(
                    f"{seconds(median(trial[kind]['seconds']))} ({seconds(median(trial[kind]['look_ups']))})"
                    for kind in KINDS
                ),
                "-" if bound is None else seconds(bound),
                *(
                    f"{max(trial[kind]['seconds']) / median(trial[kind]['seconds']):.2f}"
                    for kind in KINDS[:2]
                ),
                seconds(trial["filling"]),
            ]
        )
        if bound is not None:
            text = (
                f"{size.keys(side):,} keys: look-ups of cold keys take at most 1.3 times what the disk takes"
            )
            targets.append(at_most(text, median(trial["cold"]["look_ups"]) / bound, 1.3))
        for kind in KINDS[:2]:
            times = trial[kind]["seconds"]
            text = f"{size.keys(side):,} keys, {kind}: the slowest batch takes at most 1.5 times the median"
            targets.append(at_most(text, max(times) / median(times), 1.5))
    largest = results.first(sides[-1])
    if len(sides) > 1:
        recent = [median(results.first(side)["recent"]["seconds"]) for side in (sides[1], sides[-1])]
        text = (
            f"recent keys of {size.keys(sides[-1]):,} cost at most 1.3 times those of {size.keys(sides[1]):,}"
        )
        targets.append(at_most(text, recent[1] / recent[0], 1.3))
    reads = ", ".join(f"{rate:,.0f} by {count}" for count, rate in largest["disk"].get("reads", {}).items())
    text = (
        f"Batches that read and write {size.touched:,} keys (at most half of all), by {TASKS} tasks with {SHARDS} shards, without Spark, with merges beside the batches: "
        "the median batch, and of it the look-ups. Recent keys are any of the last four times as many, uniform ones any of all, cold "
        "ones the same with no page of the files in memory. The limit is what the disk takes to read a block for each key, or "
        f"everything in sequence. At the largest size it gives these reads of {bytes_(_BLOCK)} a second, past the system's cache: "
        f"{reads} threads; in sequence {bytes_(largest['disk'].get('sequence', 0))} a second. A savepoint of it takes "
        f"{seconds(largest['acts']['savepoint'])}, a restore {seconds(largest['acts']['restore'])}, a rescale "
        f"{seconds(largest['acts']['rescale'])}, a first query {seconds(largest['acts']['query'])}."
    )
    plot = Plot(
        "large",
        f"Batches of {size.touched:,} keys",
        "lines",
        [size.keys(side) for side in sides],
        {kind: [median(results.first(side)[kind]["seconds"]) for side in sides] for kind in KINDS},
        "keys of the state",
        "seconds",
    )
    header = (
        "keys",
        "state",
        *(f"{kind} (look-ups)" for kind in KINDS),
        "limit",
        *(f"slowest / median, {kind}" for kind in KINDS[:2]),
        "filling",
    )
    return Section(text, header, rows, targets, [plot])


MEASUREMENT = Measurement(
    "large",
    "State beyond memory",
    SIDES,
    {
        "full": Size(10_000_000, 393_000, 12, 4, 4),
        "quick": Size(20_000, 10_000, 6, 2, 0.5),
    },
    run,
    section,
    repeats=1,
    minutes={"full": 40, "quick": 1.5},
    named_only=True,
    whole=False,
    patience=90,
)
