"""Operators as records have them, of shards that are there or that nobody opens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stateflow.format.records import FileRef, OperatorState, Shard

Key = Sequence[tuple[str, str]]
USER = (("user", "int"),)


def operator_of(
    shards: Sequence[Shard] | None = None, *, key: Key = USER, groups: int = 128, **fields: Any
) -> OperatorState:
    """A subtask for each of these shards; with `()` one subtask, which has stored nothing. Otherwise no shard is named, and the operator
    counts as one that has stored something."""
    return OperatorState(
        key=tuple(key),
        max_parallelism=groups,
        assignment=tuple((shard.first, shard.last) for shard in shards or ()) or ((0, groups - 1),),
        shards=() if shards is None else tuple((shard,) for shard in shards) or ((),),
        **fields,
    )


def one_shard(
    *files: FileRef,
    key: tuple[str, str] = ("k", "long"),
    groups: int = 1,
    backend: str = "fake",
    entries: int = 0,
    times: int = 1,
    **fields: Any,
) -> OperatorState:
    """One subtask has all key groups, in one shard of these files; or in so many handles of it."""
    shard = Shard(first=0, last=groups - 1, backend=backend, files=files, entries=entries)
    made = operator_of([shard], key=(key,), groups=groups, **fields)
    return msgspec.structs.replace(made, shards=((shard,) * times,))
