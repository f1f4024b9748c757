"""Whether a timer would fire without new input. Pure."""

from __future__ import annotations

from stateflow.format.records import Record


def timers_due(record: Record, watermark: int | None, now: int, *, draining: bool = False) -> bool:
    """Whether a batch without input would fire a timer. `watermark` is that of the batch; a drain fires event time only."""
    shards = (s for operator in record.operators.values() for s in operator.all_shards)
    return any(
        (s.next_event_timer is not None and watermark is not None and s.next_event_timer <= watermark)
        or (not draining and s.next_processing_timer is not None and s.next_processing_timer <= now)
        for s in shards
    )
