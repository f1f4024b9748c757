"""Where bytes of a key may lie although nobody can look them up there any more.

A deletion leaves the old bytes in a database's files, and a shard that was cut leaves the files to all its pieces: each
deletes what its siblings own, which again leaves the bytes. So a key's own shard is not the only one to look at.
"""

from __future__ import annotations

from collections.abc import Iterable

from stateflow.checkpoint.statistics import HistoryLine
from stateflow.checkpoint.writer import CUTS
from stateflow.format.layout import origin_of
from stateflow.format.records import FileRef, Record, Shard

TABLE = ".sst"


def newest_cut(record: Record, lines: Iterable[HistoryLine]) -> int:
    """The record that last brought in shards from elsewhere, or gave them other key groups; 0 when none ever did.

    The lines count, too: records of early versions do not say it.
    """
    return max([record.cut, *(line.id for line in lines if line.kind in CUTS)])


def may_hold(shard: Shard, group: int, cut: int) -> bool:
    """Whether the files of a shard may have bytes of a key group, going by names alone."""
    if not shard.files:
        return False
    return spans(shard, group) or any(_older(ref, cut) for ref in shard.files)


def spans(shard: Shard, group: int) -> bool:
    """Whether the group is the shard's own, or was when its files were written."""
    first = shard.first if shard.physical_first is None else shard.physical_first
    last = shard.last if shard.physical_last is None else shard.physical_last
    return first <= group <= last


def _older(ref: FileRef, cut: int) -> bool:
    """Written before the shard had its key groups, or nobody knows when."""
    if not cut or not ref.name.endswith(TABLE):
        return False
    origin = origin_of(ref.path) if ref.path and not ref.base else None
    return origin is None or origin[1] <= cut
