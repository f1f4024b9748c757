"""Which slot of which job a cluster has: the messages of a slot and the slot itself are in one transaction.

The slot stands in two places, and both are written in that transaction.

- As the metadata of an offset that the sink's own consumer group commits. It is read at once, and shows nothing of a transaction that
  is still open. But brokers forget the offsets of a group that nobody uses after a while (`offsets.retention.minutes`, seven days):
  a job that rests over a holiday would find none.
- As a message of a topic that is compacted, so that the newest of each sink stays for good. It is read where the group has no offset.
  Reading it means reading the topic, and waiting for the open transactions of others: once per pause, and not with every batch.

So a slot that is gone from both was never there, or somebody has deleted it: then a job with slots in its log stops, and says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stateflow.connectors import DisagreementError, SinkSlot

TOPIC = "stateflow-slots"
"""The compacted topic. One partition has the slots of all."""
MAKE_TOPIC = f"kafka-topics.sh --create --topic {TOPIC} --partitions 1 --config cleanup.policy=compact"
_NAME = re.compile(r"stateflow-([0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-(.+)")


@dataclass(frozen=True, slots=True)
class TopicSlot:
    """What came last from a sink."""

    slot: int
    mark: int
    """Of the record: another log may decide another record for the same slot."""
    topic_id: str
    """Of the topic that got the messages: one that is made anew has another id."""

    def text(self, job_name: str) -> str:
        """As it is kept; the job's name is for people."""
        kept = {"slot": self.slot, "mark": self.mark, "topic_id": self.topic_id, "job": job_name}
        return json.dumps(kept, separators=(",", ":"))


def parsed(text: str | None, what: str) -> TopicSlot | None:
    if not text:
        return None
    try:
        kept = json.loads(text)
        return TopicSlot(int(kept["slot"]), int(kept["mark"]), str(kept["topic_id"]))
    except (ValueError, KeyError, TypeError):
        raise DisagreementError(
            f"{what}: the slot of this job is {text[:100]!r}, which a newer version of stateflow or somebody else has written: run the job with "
            "the version that wrote it, or give the sink a new uid"
        ) from None


def name_of(at: SinkSlot) -> str:
    """Of the sink's consumer group, its transactions, and its slot in the compacted topic."""
    return f"stateflow-{at.job}-{at.sink}"


def read(
    at: SinkSlot, what: str, group: Callable[[str], str | None], topic: Callable[[str], str | None]
) -> TopicSlot | None:
    """The slot, from the two places."""
    name = name_of(at)
    return parsed(group(name) or topic(name), what)


def writers(kept: Mapping[str, str], topic_id: str) -> dict[str, str]:
    """Names of jobs by the `app_id` of the sinks that have written to the topic with this id. `kept` are the slots of a cluster by `name_of`."""
    found = {}
    for name, text in kept.items():
        try:
            slot = json.loads(text)
            if (match := _NAME.fullmatch(name)) and slot["topic_id"] == topic_id:
                found[SinkSlot(match[1], "", match[2], 0, 0).app_id] = str(slot["job"])
        except (ValueError, KeyError, TypeError):
            continue  # what a newer version has written says nothing to this one
    return found


def refuse_made_anew(topic_id: str, now: str, what: str, at: SinkSlot, *, decided: bool = False) -> None:
    """DisagreementError for a topic that is not the one which got the last slot, or which a `decided` record is for."""
    if topic_id != now:
        raise lost_topic(f"{what} was deleted and made anew", at, "", decided=decided)


def lost_topic(what: str, at: SinkSlot, first: str, *, decided: bool) -> DisagreementError:
    """The error for a topic that is gone; `first` is what has to be done before the sink goes on with another one."""
    given_up = (
        f", behind `stateflow abandon {at.job_name} {at.slot}`, which gives up the rows that are decided for the old one"
        if decided
        else ""
    )
    return DisagreementError(
        f"sink and log disagree: {what}, so that messages of job {at.job_name!r} are missing: {first}give sink {at.sink!r} a new uid{given_up}, and "
        "it goes on with the new topic"
    )
