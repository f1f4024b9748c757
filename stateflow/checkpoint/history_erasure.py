"""Which shards' files may still hold the bytes of a key that no query finds there.

A database that deletes a key leaves the old bytes in its files. When a rescale cuts a shard, all pieces share its files.
Each piece deletes the keys of its siblings, and again the bytes stay. So an erasure looks at more than the key's own shard.
"""

from __future__ import annotations

from stateflow.format.layout import origin_of
from stateflow.format.records import FileRef, Shard

TABLE = ".sst"


def may_hold(shard: Shard, group: int, cut: int) -> bool:
    """Whether the files of a shard may hold bytes of a key group, judged by their names. `cut` is that of the record."""
    if not shard.files:
        return False
    return spans(shard, group) or any(_older(ref, cut) for ref in shard.files)


def spans(shard: Shard, group: int) -> bool:
    """Whether the key group belongs to the shard, or did when its files were written."""
    first = shard.first if shard.physical_first is None else shard.physical_first
    last = shard.last if shard.physical_last is None else shard.physical_last
    return first <= group <= last


def _older(ref: FileRef, cut: int) -> bool:
    """Whether the file is older than the shard's key groups, or of unknown age."""
    if not cut or not ref.name.endswith(TABLE):
        return False
    origin = origin_of(ref.path) if ref.path and not ref.base else None
    return origin is None or origin[1] <= cut
