"""How far event time is in a source whose partitions are not equally far: by the one that is furthest behind. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from stateflow.format.records import PartitionTime

Times = Mapping[str, PartitionTime]
"""By `<topic>/<partition>`."""


def lowest_partition(partitions: Times, now: int, idle_after: int) -> str | None:
    """The partition that the watermark goes by: the one that is furthest behind of those that are not idle, and the one that is
    furthest ahead if all are idle. None if no row had a time. A partition that has had no rows yet is not among them.
    """
    timed = {name: each.event_time for name, each in partitions.items() if each.event_time is not None}
    awake = [name for name in timed if not is_idle(partitions[name], now, idle_after)]
    if awake:
        return min(awake, key=lambda name: (timed[name], name))
    return max(timed, key=lambda name: (timed[name], name), default=None)


def is_idle(partition: PartitionTime, now: int, idle_after: int) -> bool:
    """Whether it has had no rows for `idle_after`, as of `now`; 0 is never."""
    return idle_after > 0 and partition.active is not None and now - partition.active > idle_after


def advanced_partitions(
    partitions: Times, seen: Mapping[str, int | None], there: Collection[str], now: int
) -> dict[str, PartitionTime]:
    """The times after a batch. `seen`: the newest event time of each partition that had rows, None if none of them had a time. `there`: the
    partitions that the source has; any other one is forgotten.
    """
    after = {name: each for name, each in partitions.items() if name in there}
    for name, event_time in seen.items():
        before = partitions.get(name, PartitionTime()).event_time
        times = [time for time in (before, event_time) if time is not None]
        after[name] = PartitionTime(event_time=max(times, default=None), active=now)
    return dict(sorted(after.items()))


def kept_awake(partitions: Times, now: int) -> dict[str, PartitionTime]:
    """The times of a source of which the batch was to take nothing: no partition becomes idle by that."""
    return {name: msgspec.structs.replace(each, active=now) for name, each in partitions.items()}
