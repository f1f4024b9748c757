"""What `watermark=` takes for a source whose partitions are not equally far in event time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class PerPartition:
    """A delay behind the partition that is furthest behind."""

    delay: str | timedelta


def per_partition(delay: str | timedelta) -> PerPartition:
    """A watermark by the partitions of `sf.kafka(...)`: `delay` behind the one whose newest row is the oldest.

    So rows of a partition that lags, as that of a slow producer, are not late. A partition without rows for `source_idle_timeout`
    no longer holds the watermark back.
    """
    return PerPartition(delay)
