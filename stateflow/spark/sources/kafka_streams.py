"""Which stream of a source of Kafka goes on with what: a topic that one stream leaves and another one names goes on there, where it stood."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stateflow.format.records import SourceState
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
    """What brokers called the topics that it has read, by the record."""
    ids: Mapping[str, str]
    """What they call those that it names, as far as they tell it."""
    left_ids: Mapping[str, str] = field(default_factory=dict)
    """What they called those that it has left before. The other partitions of such a topic may be those of one that was made anew since."""

    def ids_back(self, goes_on: Partitions) -> dict[str, str]:
        """The ids that topics had when the stream left those of their partitions that it goes on with again."""
        back = {at[0] for at in goes_on if self._was_left(at)}
        return {topic: self.left_ids[topic] for topic in sorted(back) if topic in self.left_ids}

    def made_anew(self, goes_on: Partitions) -> list[Partition]:
        """Those of the partitions whose topic has another id than when they were read."""
        return [at for at in sorted(goes_on) if self._is_gone(at[0], self.known_id(at))]

    def known_id(self, at: Partition) -> str:
        """What brokers called the topic of a partition when the stream read it; empty where the record does not say."""
        return (self.left_ids if self._was_left(at) else self.known_ids).get(at[0], "")

    def id_to_leave(self, left: Collection[Partition]) -> str:
        """The id of a topic whose partitions are left. The record has one for all of them. Where they have several, it is that of a topic that is
        gone: with the newer one, a partition of the other topic would go on in it without a word."""
        # Those that were left before come first: their topic is the older one, also where brokers do not tell.
        ids = [(at[0], self.known_id(at)) for at in sorted(left, key=self.read.__contains__)]
        known = [id for _, id in ids if id]
        return next((id for topic, id in ids if self._is_gone(topic, id)), known[0] if known else "")

    def may_name(self, at: Partition, reader: KafkaStream) -> bool:
        """Whether it names a partition that a stream has read, as far as brokers tell topics of one name apart."""
        return at in self.named and (self is reader or not self._is_gone(at[0], reader.known_id(at)))

    def _was_left(self, at: Partition) -> bool:
        return at in self.left and at not in self.read

    def _is_gone(self, topic: str, id: str) -> bool:
        return bool(id) and self.ids.get(topic, id) != id


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


def recorded_ids(recorded: SourceState, place: int) -> tuple[dict[str, str], dict[str, str]]:
    """What brokers called the topics that a stream has read, and those that it has left."""
    left = {name: topic.id for name, topic in recorded.left.items() if topic.id}
    return _of_stream(recorded.topic_ids, place), _of_stream(left, place)


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
            if len(givers) > 1 or len(rivals) > 1 or at in taker.left or not _same(at, givers[0], taker):
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
    """The partitions that a source has read a message of and names in no stream any more, of topics that it goes on with. A topic of another
    cluster may have the name."""
    topics = {topic for each in streams for topic, _ in each.named}
    left = {
        at
        for each in streams
        for at, offset in each.read.items()
        if offset and not any(other.may_name(at, each) for other in streams)
    }
    return sorted(at for at in left if at[0] in topics)


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


def _same(at: Partition, giver: KafkaStream, taker: KafkaStream) -> bool:
    return at[0] in taker.ids and giver.known_id(at) == taker.ids[at[0]]


def _of_stream(ids: Mapping[str, str], place: int) -> dict[str, str]:
    return {name.partition("/")[2]: id for name, id in ids.items() if name.startswith(f"{place}/")}


def _left(recorded: SourceState, stream: str) -> dict[Partition, int]:
    return {
        (name.partition("/")[2], int(partition)): offset
        for name, topic in recorded.left.items()
        if name.startswith(stream)
        for partition, offset in topic.offsets.items()
    }
