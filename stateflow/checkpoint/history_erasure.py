"""Which shards' files may still hold the bytes of a key that no query finds there.

A database that deletes a key leaves the old bytes in its files. When a rescale cuts a shard, all pieces share its files.
Each piece deletes the keys of its siblings, and again the bytes stay. So an erasure looks at more than the key's own shard.

The slot in a file's name does not tell. A merge writes old entries into a new file, unless the deletion of the siblings' keys
is among what it merges; and an erasure copies the files of a claimed savepoint under a new slot.
"""

from __future__ import annotations

from stateflow.format.records import Shard

TABLE = ".sst"


def may_hold(shard: Shard, group: int, cut: int) -> bool:
    """Whether the files of a shard may hold bytes of a key group, judged by the record alone. `cut` is that of the record: without
    a restore or a rescale a shard never had other key groups."""
    if not shard.files:
        return False
    return spans(shard, group) or (cut > 0 and any(ref.name.endswith(TABLE) for ref in shard.files))


def spans(shard: Shard, group: int) -> bool:
    """Whether the key group belongs to the shard, or did when its files were written."""
    first = shard.first if shard.physical_first is None else shard.physical_first
    last = shard.last if shard.physical_last is None else shard.physical_last
    return first <= group <= last
