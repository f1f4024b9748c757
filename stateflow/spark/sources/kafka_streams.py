"""Which stream of a source of Kafka goes on with what: a topic that one stream leaves and another one names goes on there, where it stood."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stateflow.format.records import SourceState
from stateflow.format.source_offsets import kind_of
from stateflow.spark.sources.kafka import Partitions, apart, parse

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class KafkaStream:
    """A stream of a source: what a record says of it, and what it names today."""

    place: int
    read: Partitions
    """As its line in the record has them."""
    left: Partitions
    """How far those were read that it has left before."""
    named: Collection[Partition]
    """Those that it names today."""
    known_ids: Mapping[str, str]
    """What brokers called the topics that the record has of it."""
    ids: Mapping[str, str]
    """What they call those that it names, as far as they tell it."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Where the streams of a source go on, by their places."""

    here: Mapping[int, Partitions]
    """Those that a stream goes on with."""
    away: Mapping[int, Partitions]
    """Those that it leaves."""
    unsure: Mapping[int, Collection[Partition]]
    """Those that are new to a stream, and that another one leaves which may not have read the same messages."""


def recorded_stream(recorded: SourceState, place: int) -> tuple[Partitions, Partitions]:
    """How far a stream has read what it named last, and what it has left before."""
    return parse(recorded.lines[place]), _left(recorded, f"{place}/")


def recorded_partitions(recorded: SourceState) -> Collection[Partition]:
    """All that a source has read."""
    lines = [parse(line) for line in recorded.lines if kind_of(line) == "kafka"]
    return {at for known in (*lines, _left(recorded)) for at in known}


def recorded_ids(recorded: SourceState, place: int) -> dict[str, str]:
    """What brokers called the topics that a stream has read, with those that it has left."""
    ids = {**{name: topic.id for name, topic in recorded.left.items() if topic.id}, **recorded.topic_ids}
    return {name.partition("/")[2]: id for name, id in ids.items() if name.startswith(f"{place}/")}


def settled(streams: Sequence[KafkaStream]) -> Settled:
    """Two streams have read a topic of one name in two clusters, or with two conditions. So a stream takes a topic over only from the one stream
    that leaves it, and only if brokers tell that it is the same one."""
    parts = {each.place: apart({**each.left, **each.read}, each.named) for each in streams}
    here = {place: dict(mine) for place, (mine, _) in parts.items()}
    away = {place: dict(others) for place, (_, others) in parts.items()}
    unsure: dict[int, set[Partition]] = {}
    for taker in streams:
        for at, givers in _offered(taker, streams):
            rivals = [each for each in streams if at in each.named and at not in each.read]
            if len(givers) > 1 or len(rivals) > 1 or at in taker.left or not _same(at[0], givers[0], taker):
                unsure.setdefault(taker.place, set()).add(at)
            else:
                here[taker.place][at] = away[givers[0].place].pop(at)
    return Settled(here, away, unsure)


def left_and_new(streams: Sequence[KafkaStream]) -> tuple[list[str], list[str]]:
    """The topics that a source has read a message of and names in no stream any more, and those that are new to all of its streams."""
    named = {topic for each in streams for topic, _ in each.named}
    read = {topic for each in streams for (topic, _), offset in each.read.items() if offset}
    known = {topic for each in streams for topic, _ in (*each.read, *each.left)}
    return sorted(read - named), sorted(named - known)


def left_of_topics(streams: Sequence[KafkaStream]) -> list[Partition]:
    """The partitions that a source has read a message of and names in no stream any more, of topics that it goes on with."""
    named = {at for each in streams for at in each.named}
    read = {at for each in streams for at, offset in each.read.items() if offset}
    topics = {topic for topic, _ in named}
    return sorted(at for at in read - named if at[0] in topics)


def _offered(
    taker: KafkaStream, streams: Sequence[KafkaStream]
) -> Iterator[tuple[Partition, list[KafkaStream]]]:
    """What a stream names anew, with those that have read it and do not name it."""
    for at in sorted(set(taker.named) - set(taker.read)):
        others = [each for each in streams if at not in each.named]
        givers = [each for each in others if at in each.read]
        # One that comes back goes on where this stream has left it, whatever others have left before.
        if at not in taker.left:
            givers += [each for each in others if at in each.left and at not in each.read]
        if givers:
            yield at, givers


def _same(topic: str, giver: KafkaStream, taker: KafkaStream) -> bool:
    return topic in taker.ids and giver.known_ids.get(topic) == taker.ids[topic]


def _left(recorded: SourceState, stream: str = "") -> dict[Partition, int]:
    return {
        (name.partition("/")[2], int(partition)): offset
        for name, topic in recorded.left.items()
        if name.startswith(stream)
        for partition, offset in topic.offsets.items()
    }
