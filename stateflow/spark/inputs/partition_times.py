"""How far event time is in a source whose partitions are not equally far: by the one that is furthest behind. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from stateflow.format.records import PartitionTime
from stateflow.spark.inputs.silence import is_idle

Times = Mapping[str, PartitionTime]
"""By `<topic>/<partition>`."""


def lowest_partition(partitions: Times, idle_after: int) -> str | None:
    """The partition that the watermark goes by: the one that is furthest behind of those that are not idle, and the one that is
    furthest ahead if all are idle. None if no row had a time. A partition that has had no rows yet is not among them.
    """
    timed = {name: each.event_time for name, each in partitions.items() if each.event_time is not None}
    awake = [name for name in timed if not is_idle(partitions[name].silent, idle_after)]
    if awake:
        return min(awake, key=lambda name: (timed[name], name))
    return max(timed, key=lambda name: (timed[name], name), default=None)


def advanced_partitions(
    partitions: Times,
    seen: Mapping[str, int | None],
    there: Collection[str],
    now: int,
    *,
    read_through: Collection[str] = (),
    gained: int = 0,
) -> dict[str, PartitionTime]:
    """The times after a batch. `seen`: the newest event time of each partition that had rows, None if none of them had a time. `there`: the
    partitions that the source has; any other one is forgotten. `read_through`: of the others, those that were read to their end, and
    are silent for as much longer as the batch has `gained`.
    """
    after = {
        name: msgspec.structs.replace(each, silent=each.silent + gained) if name in read_through else each
        for name, each in partitions.items()
        if name in there
    }
    for name, event_time in seen.items():
        before = partitions.get(name, PartitionTime()).event_time
        times = [time for time in (before, event_time) if time is not None]
        after[name] = PartitionTime(event_time=max(times, default=None), active=now)
    return dict(sorted(after.items()))


def kept_awake(partitions: Times, now: int) -> dict[str, PartitionTime]:
    """Event times of a source that this batch skipped: no partition becomes idle by that."""
    return {name: msgspec.structs.replace(each, active=now, silent=0) for name, each in partitions.items()}
