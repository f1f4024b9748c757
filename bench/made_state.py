"""Makes a job with state, without a run."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stateflow.checkpoint.writer import Writer
    from stateflow.format.layout import JobLayout
    from stateflow.storage.store import Store

JOB, OPERATOR, STATE = "bench", "totals", "total"
GROUPS = 128
_CHUNK = 200_000
"""How many values to keep in memory at once."""

Values = Callable[[Sequence[int]], Iterable[Any]]
"""The value of each of these keys."""


def floats(keys: Sequence[int]) -> Iterable[float]:
    return map(float, keys)


def now() -> int:
    return time.time_ns() // 1000


def claimed(store: Store, layout: JobLayout, **more: Any) -> Writer:
    """Who decides and completes records of the job by the protocol, like a run; no sink has anything to carry out."""
    from stateflow.checkpoint.claim import claim
    from stateflow.format.records import Owner

    return claim(
        store,
        layout,
        owner=Owner(run=JOB),
        ids=lambda: uuid.uuid4().hex,
        clock=now,
        carry_out=lambda *_: {},
        **more,
    )


def make(root: Path, keys: int, *, shards: int = 8, serializer: Any = float, values: Values = floats) -> None:
    """One checkpoint with a value for each of the keys 0..keys-1; `serializer` is what its state declares.

    Shards are written by the backend and uploaded as a task does it, in the order of their keys.
    """
    import numpy as np
    import pyarrow as pa

    from stateflow.checkpoint.draft import Draft
    from stateflow.format.keygroups import default_assignment
    from stateflow.format.layout import JobLayout
    from stateflow.format.records import Shard, StateSchema
    from stateflow.state.backends.rocksdb import rocksdb_backend
    from stateflow.state.backends.rocksdb_options import RocksOptions
    from stateflow.state.keys.codec import KeyCodec
    from stateflow.state.keys.hashing import key_groups_of
    from stateflow.state.values.serializers import serializer_for
    from stateflow.storage.roots import open_store
    from tests.jobs.operators import operator_of
    from tests.jobs.state import sealed

    store, layout = open_store(str(root)), JobLayout(JOB)
    writer = claimed(store, layout)
    entries_out, codec = serializer_for(serializer), KeyCodec(("int",))
    every = np.arange(keys, dtype=np.int64)
    groups = key_groups_of(("int",), [pa.array(every)], GROUPS)
    order = np.argsort(groups, kind="stable")
    every, groups = every[order], groups[order]

    def chunks(begin: int, end: int) -> Iterator[Iterable[tuple[bytes, bytes]]]:
        for at in range(begin, end, _CHUNK):
            own = slice(at, min(at + _CHUNK, end))
            full = codec.encode_many([every[own]], groups[own], 1)
            yield zip(full, map(entries_out.dumps, values(every[own].tolist())), strict=True)

    made = []
    for first, last in default_assignment(shards, GROUPS):
        begin, end = np.searchsorted(groups, [first, last + 1]).tolist()
        shard = Shard(first, last, "rocksdb")
        folder = root.parent / f"made-{first}"
        made.append(sealed(writer, shard, chunks(begin, end), folder, rocksdb_backend(RocksOptions())))
    operator = operator_of(
        made,
        key=(("user", "int"),),
        groups=GROUPS,
        states={STATE: StateSchema(id=1, kind="value", value=entries_out.schema, queryable=True)},
        next_state_id=2,
    )
    writer.complete(writer.decide(Draft("checkpoint", now=now(), operators={OPERATOR: operator})), {})


def go_on(root: Path, batches: Iterable[tuple[Sequence[int], float]]) -> None:
    """A checkpoint for each batch, in which its keys get the value. It goes on from the files of the one before, as a task does."""
    import msgspec
    import numpy as np
    import pyarrow as pa

    from stateflow.checkpoint.draft import Draft
    from stateflow.checkpoint.log import read_log
    from stateflow.format.layout import JobLayout
    from stateflow.format.records import FileRef
    from stateflow.state.backends.base import NewFile
    from stateflow.state.backends.rocksdb import rocksdb_backend
    from stateflow.state.backends.rocksdb_options import RocksOptions
    from stateflow.state.keys.codec import KeyCodec
    from stateflow.state.keys.hashing import key_groups_of
    from stateflow.state.values.serializers import serializer_for
    from stateflow.storage.files import inline, upload_file
    from stateflow.storage.roots import open_store

    store, layout = open_store(str(root), fsync=False), JobLayout(JOB)
    writer = claimed(store, layout)
    head = read_log(store, layout).head
    assert head is not None
    operator = head.operators[OPERATOR]
    shards = [shard for subtask in operator.shards for shard in subtask]
    open_shard, codec, dumps = (
        rocksdb_backend(RocksOptions()),
        KeyCodec(("int",)),
        serializer_for(float).dumps,
    )

    def stored(file: NewFile) -> FileRef:
        if file.data is not None:
            return inline(file.name, file.data)
        assert file.path is not None
        path = layout.shared_file(
            writer.epoch, writer.next_slot, uuid.uuid4().hex, file.path.suffix or ".bin"
        )
        return upload_file(store, path, file.path, file.name)

    for keys, value in batches:
        own = np.asarray(keys, dtype=np.int64)
        groups = key_groups_of(("int",), [pa.array(own)], GROUPS)
        order = np.argsort(groups, kind="stable")
        full, raw = codec.encode_many([own[order]], groups[order], 1), dumps(float(value))
        for at, shard in enumerate(shards):
            begin, end = np.searchsorted(groups[order], [shard.first, shard.last + 1]).tolist()
            if begin == end:
                continue
            folder = root.parent / f"made-{uuid.uuid4().hex}"
            backend = open_shard(shard, folder, lambda ref: root / ref.path)
            backend.write((key, raw) for key in full[begin:end])
            snapshot = backend.snapshot()
            files = (*snapshot.kept, *map(stored, snapshot.new))
            backend.close()
            shards[at] = msgspec.structs.replace(shard, files=files, entries=snapshot.entries)
        made = msgspec.structs.replace(operator, shards=tuple((shard,) for shard in shards))
        writer.complete(writer.decide(Draft("checkpoint", now=now(), operators={OPERATOR: made})), {})
