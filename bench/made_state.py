"""Makes a job with state, without a run."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

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


def make(root: Path, keys: int, *, shards: int = 8, serializer: Any = float, values: Values = floats) -> None:
    """One checkpoint with a value for each of the keys 0..keys-1; `serializer` is what its state declares.

    Shards are written by the backend and uploaded as a task does it, in the order of their keys.
    """
    import numpy as np

    from stateflow.checkpoint.claim import claim
    from stateflow.checkpoint.draft import Draft
    from stateflow.format.keygroups import default_assignment
    from stateflow.format.layout import JobLayout
    from stateflow.format.records import OperatorState, Owner, Shard, StateSchema
    from stateflow.state.backends.rocksdb import rocksdb_backend
    from stateflow.state.backends.rocksdb_options import RocksOptions
    from stateflow.state.columnstate import hash_longs
    from stateflow.state.keys.codec import KeyCodec
    from stateflow.state.values.serializers import serializer_for
    from stateflow.storage.files import inline, upload_file
    from stateflow.storage.roots import open_store

    store, layout = open_store(str(root)), JobLayout(JOB)
    writer = claim(
        store,
        layout,
        owner=Owner(run=JOB),
        ids=lambda: uuid.uuid4().hex,
        clock=now,
        carry_out=lambda *_: {},
    )
    entries_out, codec = serializer_for(serializer), KeyCodec(("int",))
    every = np.arange(keys, dtype=np.int64)
    groups = hash_longs(every) % GROUPS
    order = np.argsort(groups, kind="stable")
    every, groups = every[order], groups[order]
    assignment = default_assignment(shards, GROUPS)
    handles = []
    for first, last in assignment:
        begin, end = np.searchsorted(groups, [first, last + 1]).tolist()
        backend = rocksdb_backend(RocksOptions())(
            Shard(first, last, "rocksdb"), root.parent / f"made-{first}", lambda ref: Path(ref.path)
        )
        for at in range(begin, end, _CHUNK):
            own = slice(at, min(at + _CHUNK, end))
            full = codec.encode_many([every[own]], groups[own], 1)
            backend.write(zip(full, map(entries_out.dumps, values(every[own].tolist())), strict=True))
        files = tuple(
            inline(new.name, new.data)
            if new.data is not None
            else upload_file(
                store,
                layout.shared_file(writer.epoch, writer.next_slot, uuid.uuid4().hex, ".sst"),
                new.path,
                new.name,
            )
            for new in backend.snapshot().new
            if new.data is not None or new.path is not None
        )
        backend.close()
        handles.append((Shard(first, last, "rocksdb", files, entries=end - begin),))
    operator = OperatorState(
        key=(("user", "int"),),
        max_parallelism=GROUPS,
        assignment=assignment,
        shards=tuple(handles),
        states={STATE: StateSchema(id=1, kind="value", value=entries_out.schema, queryable=True)},
        next_state_id=2,
    )
    writer.complete(writer.decide(Draft("checkpoint", now=now(), operators={OPERATOR: operator})), {})
