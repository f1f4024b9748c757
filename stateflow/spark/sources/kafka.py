"""Positions in Kafka topics, as Spark's source writes them: per partition the next record to read."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime

from stateflow.errors import DisagreementError
from stateflow.format.source_offsets import UNDER_NEW_UIDS
from stateflow.spark.internals.read_limits import Limited, unlimited
from stateflow.spark.internals.sources import MicroBatchStream

Partitions = Mapping[tuple[str, int], int]
"""Offsets by topic and partition."""


def parse(line: str) -> dict[tuple[str, int], int]:
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in json.loads(line).items()
        for partition, offset in partitions.items()
    }


def line_of(offsets: Partitions) -> str:
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(topics, separators=(",", ":"))


def end_lines_of(
    stream: MicroBatchStream, from_line: str, until: datetime, limit: Limited = unlimited
) -> Iterator[str]:
    """The end of each batch through `until`, by the records' time and under the source's rate limit.

    A partition ends before its first record that is later than the bound. The next run reads what follows.
    """
    current = parse(from_line)
    target = _offsets_after(stream, until)
    ahead = {partition: max(end, current.get(partition, 0)) for partition, end in target.items()}
    target = {**current, **ahead}
    while any(current.get(partition, 0) < end for partition, end in target.items()):
        current = next_end(current, parse(stream.planned_end(line_of(current), limit())), target)
        yield line_of(current)


def lies_behind(stream: MicroBatchStream, line: str, until: datetime) -> bool:
    """Whether a partition has been read beyond its first record that is later than `until`."""
    target = _offsets_after(stream, until)
    return any(offset > target.get(partition, offset) for partition, offset in parse(line).items())


def next_end(current: Partitions, planned: Partitions, target: Partitions) -> dict[tuple[str, int], int]:
    """The end that the source planned, cut at the target; or the target, when the source planned nothing new."""
    cut = {
        partition: max(current.get(partition, 0), min(planned.get(partition, end), end))
        for partition, end in target.items()
    }
    advances = any(offset > current.get(partition, 0) for partition, offset in cut.items())
    return cut if advances else dict(target)


def with_added(recorded: Partitions, earliest: Partitions) -> dict[tuple[str, int], int]:
    """Where a reader of whole topics has to go on: a partition that a topic got since has to be read from its first record."""
    known = {topic for topic, _ in recorded}
    added = {at: 0 for at in earliest if at[0] in known}
    return {**added, **recorded}


def apart(recorded: Partitions, named: Collection[tuple[str, int]]) -> tuple[Partitions, Partitions]:
    """Those that a source names, and the others."""
    here = {at: offset for at, offset in recorded.items() if at in named}
    return here, {at: offset for at, offset in recorded.items() if at not in here}


def cut_beginnings(recorded: Partitions, earliest: Partitions) -> dict[tuple[str, int], int]:
    """Where partitions begin that a reader has not been told to read before, as far as their first records are gone. `recorded` has those that
    it has to read from there."""
    return {at: first for at, first in earliest.items() if at not in recorded and first > 0}


def check_kafka(uid: str, recorded: Partitions, earliest: Partitions, latest: Partitions) -> None:
    """Refuses offsets that the topics no longer have."""
    loss = missing_offsets(recorded, earliest, latest)
    if loss:
        # A later checkpoint is behind what retention has removed, and no help where the topic ends too early.
        later = any(offset < earliest.get(at, 0) for at, offset in recorded.items())
        raise DisagreementError(
            f"source {uid!r} {loss}; {'restore the job to a later checkpoint, if it has one, ' if later else ''}give the source {UNDER_NEW_UIDS} to "
            "read the topic anew, or accept the loss with the source's option failOnDataLoss=false"
        )


def accepted_losses(
    uid: str,
    recorded: Partitions,
    earliest: Partitions,
    latest: Partitions,
    anew: Collection[tuple[str, int]],
) -> list[str]:
    """What a source with failOnDataLoss=false goes on without, a sentence for each partition. `anew`: those whose topic has another id."""
    found = []
    for (topic, partition), offset in sorted(recorded.items()):
        at = (topic, partition)
        loss = missing_offsets({at: offset}, earliest, latest)
        if loss and at in earliest and offset < earliest[at]:
            loss += f": {earliest[at] - offset} offsets are lost"
        elif not loss and at in anew and offset > earliest[at]:
            loss = (
                f"goes on at offset {offset} of topic {topic!r} partition {partition}, which was made anew: "
                f"{offset - earliest[at]} offsets before it are not read"
            )
        if loss:
            found.append(f"source {uid!r}, whose failOnDataLoss=false accepts it, {loss}")
    return found


def check_same_topics(uid: str, recorded: Mapping[str, str | None], now: Mapping[str, str]) -> None:
    """DisagreementError for a topic that was made anew, and may have other messages at the recorded offsets. Records of former versions, and
    older brokers, know no ids."""
    for topic in made_anew(recorded, now):
        raise DisagreementError(
            f"source {uid!r} has read a topic {topic!r} that is gone: the one of this name was made anew (it has another id), and has other messages "
            f"at the same offsets; give the source {UNDER_NEW_UIDS} to read it from its beginning, or, where it is a copy with the same offsets, run "
            "once with the source's option failOnDataLoss=false"
        )


def replaced_in_run(uid: str, anew: Collection[str]) -> list[str]:
    """What a source with failOnDataLoss=false goes on without where topics were made anew while a run reads them."""
    return [
        f"source {uid!r}, whose failOnDataLoss=false accepts it, goes on at the same offsets of topic {topic!r}, which was made anew while the run "
        "read it: the offsets before them are not read"
        for topic in anew
    ]


def made_anew(recorded: Mapping[str, str | None], now: Mapping[str, str]) -> list[str]:
    """The topics that have another id than when they were read."""
    return [topic for topic, id in sorted(now.items()) if recorded.get(topic) not in (None, id)]


def missing_offsets(recorded: Partitions, earliest: Partitions, latest: Partitions) -> str:
    """What a reader at `recorded` would miss, in words; empty when it misses nothing."""
    for (topic, partition), offset in sorted(recorded.items()):
        first, end = earliest.get((topic, partition)), latest.get((topic, partition))
        if first is None or end is None:
            return f"has read topic {topic!r} partition {partition} up to offset {offset}, but it is gone"
        if offset < first:
            return (
                f"has to go on at offset {offset} of topic {topic!r} partition {partition}, but the topic's retention "
                f"has removed everything before offset {first}"
            )
        if offset > end:
            return (
                f"has read topic {topic!r} partition {partition} up to offset {offset}, but it now ends at {end}: "
                "the topic was recreated, or what was read is of a transaction that is still open (then run again once it has ended)"
            )
    return ""


def missing_between(begin: Partitions, end: Partitions, earliest: Partitions, latest: Partitions) -> str:
    """What is gone of the records from `begin` to `end`, in words. A partition of which there are none may have lost any other."""
    read = read_between(begin, end)
    return missing_offsets(read, earliest, latest) or missing_offsets(
        {partition: end[partition] for partition in read}, earliest, latest
    )


def read_between(begin: Partitions, end: Partitions) -> Partitions:
    """The partitions of which records were read from `begin` to `end`, with where each begins."""
    return {at: begin.get(at, 0) for at, to in end.items() if to > begin.get(at, 0)}


def _offsets_after(stream: MicroBatchStream, until: datetime) -> dict[tuple[str, int], int]:
    return parse(stream.kafka_after(int(until.timestamp() * 1000) + 1))
