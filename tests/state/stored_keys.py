"""Full keys as a run stores them, put together by hand."""

from __future__ import annotations

from stateflow.format.encoding import EMPTY_NAMESPACE, encode_timestamp, prefix


def timer_key(group: int, state_id: int, timestamp: int, key: bytes) -> bytes:
    """A timer's entry in its queue; `key` is encoded already."""
    return prefix(group, state_id) + encode_timestamp(timestamp) + key + EMPTY_NAMESPACE
