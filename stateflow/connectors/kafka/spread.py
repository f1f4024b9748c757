"""Over how many partitions the keys of an upsert are spread: always as many as they began with.

Compaction keeps the newest message of a key in each partition. In a topic that has more partitions than before, a key would go to
another one, and its old message would stay in the old one for ever, beside a delete that came too late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from stateflow.connectors import Prepared

if TYPE_CHECKING:
    from types import ModuleType

PARTITIONS = "partitions"
"""In a record's payload."""
BY_KEY = -1
"""For librdkafka, a partition that its partitioner chooses."""
Chosen = Callable[[bytes | None], int]
"""The partition of a key."""


def begun_with(last: Prepared | None, topic_id: str, now: int) -> int:
    """How many the keys began with, by the sink's last record."""
    if last is None or last.payload.get("topic_id") != topic_id:
        return now
    return int(last.payload.get(PARTITIONS) or now)


def grown(what: str, begun: int, now: int) -> str:
    """The warning for a topic that has more by now; empty if it has not."""
    if now <= begun:
        return ""
    return (
        f"{what} has {now} partitions by now, and the upsert began with {begun}: its keys stay in the first {begun}, where deletes and "
        "compaction find them; to spread them over all, write to a new topic under a new sink uid"
    )


def chosen(driver: ModuleType, partitioner: str, partitions: int | None) -> Chosen:
    """As librdkafka's partitioner of this name does in a topic of so many partitions. BY_KEY where they were not kept, or where it goes
    by no key."""
    hashed = getattr(driver, partitioner.removesuffix("_random"), None)
    if partitions is None or hashed is None:
        return lambda key: BY_KEY
    return lambda key: BY_KEY if key is None else int(hashed(key, partitions))
