"""Makes a job with state, without a run."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    import pyarrow as pa

    from stateflow.checkpoint.claim import claim
    from stateflow.checkpoint.draft import Draft
    from stateflow.format.keygroups import default_assignment
    from stateflow.format.layout import JobLayout
    from stateflow.format.records import Owner, Shard, StateSchema
    from stateflow.state.backends.rocksdb import rocksdb_backend
    from stateflow.state.backends.rocksdb_options import RocksOptions
    from stateflow.state.keys.codec import KeyCodec
    from stateflow.state.keys.hashing import key_groups_of
    from stateflow.state.values.serializers import serializer_for
    from stateflow.storage.roots import open_store
    from tests.jobs.state import operator_of, sealed

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
        max_parallelism=GROUPS,
        states={STATE: StateSchema(id=1, kind="value", value=entries_out.schema, queryable=True)},
        next_state_id=2,
    )
    writer.complete(writer.decide(Draft("checkpoint", now=now(), operators={OPERATOR: operator})), {})
