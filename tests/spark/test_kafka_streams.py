"""Which stream of a source of Kafka goes on with which partition, told without a broker."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from stateflow.errors import IncompatibleError
from stateflow.format.records import LeftTopic, SourceState
from stateflow.spark.sources.availability import Available, check_available
from stateflow.spark.sources.kafka import line_of, parse
from stateflow.spark.sources.kafka_streams import (
    KafkaStream,
    left_and_new,
    left_of_topics,
    recorded_ids,
    settled,
)
from stateflow.spark.sources.leaves import LeafDescription
from tests.refusals.refusal import refused

A, A1, B, C = ("a", 0), ("a", 1), ("b", 0), ("c", 0)
IDS = {"a": "id of a", "b": "id of b", "c": "id of c"}


@dataclass
class Before:
    """A stream before it is settled. Brokers tell ids unless `known` or `now` says otherwise."""

    read: Mapping[tuple[str, int], int]
    named: Collection[tuple[str, int]]
    left: Mapping[tuple[str, int], int] = field(default_factory=dict)
    known: Mapping[str, str] = field(default_factory=lambda: IDS)
    now: Mapping[str, str] = field(default_factory=lambda: IDS)
    left_ids: Mapping[str, str] = field(default_factory=lambda: IDS)

    def at(self, place: int) -> KafkaStream:
        return KafkaStream(place, self.read, self.left, self.named, self.known, self.now, self.left_ids)


OTHER = {"a": "another a", "b": "id of b", "c": "id of c"}


@pytest.mark.parametrize(
    ("streams", "here", "away", "unsure"),
    [
        ([Before({A: 2}, [A]), Before({B: 3}, [B])], [{A: 2}, {B: 3}], [{}, {}], {}),
        ([Before({A: 2}, [B]), Before({B: 3}, [A])], [{B: 3}, {A: 2}], [{}, {}], {}),
        ([Before({A: 2, B: 3}, [A]), Before({C: 4}, [B, C])], [{A: 2}, {B: 3, C: 4}], [{}, {}], {}),
        ([Before({A: 2}, [C]), Before({B: 3}, [B])], [{}, {B: 3}], [{A: 2}, {}], {}),
        ([Before({A: 2}, [A]), Before({B: 3}, [A, B])], [{A: 2}, {B: 3}], [{}, {}], {}),
        ([Before({A: 2, A1: 5}, [A]), Before({B: 3}, [A1, B])], [{A: 2}, {A1: 5, B: 3}], [{}, {}], {}),
        ([Before({C: 4}, [C], {A: 2}), Before({B: 3}, [A, B])], [{C: 4}, {A: 2, B: 3}], [{}, {}], {}),
        ([Before({C: 4}, [C], {A: 2}), Before({B: 3}, [A, B], {A: 1})], [{C: 4}, {A: 1, B: 3}], [{A: 2}, {}], {}),
        ([Before({A: 2}, [C]), Before({B: 3}, [A, B], {A: 1})], [{}, {A: 1, B: 3}], [{A: 2}, {}], {1: {A}}),
        ([Before({A: 2}, [C], known=OTHER), Before({B: 3}, [A, B])], [{}, {B: 3}], [{A: 2}, {}], {1: {A}}),
        (
            [Before({C: 4}, [C], {A: 2}, left_ids=OTHER), Before({B: 3}, [A, B])],
            [{C: 4}, {B: 3}], [{A: 2}, {}], {1: {A}},
        ),
        ([Before({A: 2}, [C], known={}), Before({B: 3}, [A, B])], [{}, {B: 3}], [{A: 2}, {}], {1: {A}}),
        ([Before({A: 2}, [C]), Before({B: 3}, [A, B], now={})], [{}, {B: 3}], [{A: 2}, {}], {1: {A}}),
        (
            [Before({A: 2}, [C]), Before({A: 3}, [C]), Before({B: 4}, [A, B])],
            [{}, {}, {B: 4}], [{A: 2}, {A: 3}, {}], {2: {A}},
        ),
        (
            [Before({A: 2}, [C]), Before({B: 3}, [A, B]), Before({C: 4}, [A, C])],
            [{}, {B: 3}, {C: 4}], [{A: 2}, {}, {}], {1: {A}, 2: {A}},
        ),
    ],
    ids=[
        "as it was", "swapped", "one topic moves", "one topic is left", "both read it", "one partition moves",
        "left before", "left before by both", "two positions", "of another cluster", "of another topic", "an older record", "an older broker",
        "two leave it", "two name it",
    ],
)  # fmt: skip
def test_a_topic_goes_along_from_the_one_stream_that_leaves_it_if_it_is_the_same(
    streams: list[Before],
    here: list[dict[tuple[str, int], int]],
    away: list[dict[tuple[str, int], int]],
    unsure: dict[int, set[tuple[str, int]]],
) -> None:
    found = settled([each.at(place) for place, each in enumerate(streams)])
    assert [found.here[place] for place in range(len(streams))] == here
    assert [found.away[place] for place in range(len(streams))] == away
    assert found.unsure == unsure


@pytest.mark.parametrize(
    ("streams", "left", "new"),
    [
        ([Before({A: 2}, [A])], [], []),
        ([Before({A: 2}, [B])], ["a"], ["b"]),
        ([Before({A: 0}, [B])], [], ["b"]),
        ([Before({A: 2}, [B], {B: 3})], ["a"], []),
        ([Before({A: 2, A1: 0}, [A, B])], [], ["b"]),
        ([Before({A: 2}, [B]), Before({B: 3}, [A])], [], []),
        ([Before({A: 2}, [B]), Before({B: 3}, [C])], ["a"], ["c"]),
    ],
    ids=["as it was", "in its place", "nothing read", "back again", "beside it", "swapped", "moved and in a place"],
)  # fmt: skip
def test_a_topic_is_new_or_left_if_it_is_so_in_all_streams_of_its_source(
    streams: list[Before], left: list[str], new: list[str]
) -> None:
    assert left_and_new([each.at(place) for place, each in enumerate(streams)]) == (left, new)


@pytest.mark.parametrize(
    ("streams", "left"),
    [
        ([Before({A: 2, A1: 3}, [A, A1])], []),
        ([Before({A: 2, A1: 3}, [A])], [A1]),
        ([Before({A: 2, A1: 0}, [A])], []),
        ([Before({A: 2, A1: 3}, [B])], []),
        ([Before({A: 2, A1: 3}, [A]), Before({B: 3}, [A1])], []),
        ([Before({A: 2, A1: 3}, [A]), Before({A1: 3}, [A1], known=OTHER, now=OTHER)], [A1]),
        ([Before({A: 2, A1: 3}, [A]), Before({A1: 3}, [A1], known={}, now={})], []),
        ([Before({A: 2, A1: 3}, [A, A1], now=OTHER)], []),
    ],
    ids=["as it was", "one less", "nothing read", "the whole topic", "moved", "another cluster's", "perhaps", "made anew"],
)  # fmt: skip
def test_a_partition_is_left_if_no_stream_names_it_and_one_goes_on_with_its_topic(
    streams: list[Before], left: list[tuple[str, int]]
) -> None:
    assert left_of_topics([each.at(place) for place, each in enumerate(streams)]) == left


def test_what_a_stream_has_left_keeps_the_id_that_it_was_read_under() -> None:
    left = {
        "0/a": LeftTopic({"1": 3}, "another a"),
        "0/b": LeftTopic({"0": 3}),
        "1/c": LeftTopic({"0": 3}, "id of c"),
    }
    recorded = SourceState(lines=('{"a":{"0":2}}', "-"), topic_ids={"0/a": "id of a"}, left=left)
    assert recorded_ids(recorded, 0) == ({"a": "id of a"}, {"a": "another a"})
    assert recorded_ids(recorded, 1) == ({}, {"c": "id of c"})


@pytest.mark.parametrize(
    ("stream", "anew", "back"),
    [
        (Before({A: 2}, [A, A1], {A1: 3}), [], {"a": "id of a"}),
        (Before({A: 2}, [A, A1], {A1: 3}, left_ids=OTHER), [A1], {"a": "another a"}),
        (Before({A: 2}, [A], {A1: 3}, left_ids=OTHER), [], {}),
        (Before({A: 2}, [A, A1], {A1: 3}, left_ids={}), [], {}),
        (Before({A: 2}, [A, A1], {A1: 3}, left_ids=OTHER, now={}), [], {"a": "another a"}),
        (Before({A: 2}, [A], known=OTHER), [A], {}),
        (Before({B: 2}, [A, A1, B], {A: 2, A1: 3}, left_ids=OTHER), [A, A1], {"a": "another a"}),
        (Before({B: 2}, [A1, B], {A: 2}, left_ids=OTHER), [], {}),
    ],
    ids=[
        "the same topic", "another one since", "it stays away", "an older record", "an older broker", "read under it",
        "the whole topic comes back", "another partition comes",
    ],
)  # fmt: skip
def test_a_partition_that_comes_back_is_one_of_the_topic_that_was_left(
    stream: Before, anew: list[tuple[str, int]], back: dict[str, str]
) -> None:
    made = stream.at(0)
    goes_on = settled([made]).here[0]
    assert made.made_anew(goes_on) == anew
    assert made.ids_back(goes_on) == back


@pytest.mark.parametrize(
    ("stream", "id"),
    [
        (Before({A: 2, A1: 3}, [A]), "id of a"),
        (Before({A: 2}, [A], {A1: 3}, left_ids=OTHER), "another a"),
        (Before({A: 2}, [("a", 2)], {A1: 3}, left_ids=OTHER), "another a"),
        (Before({A: 2}, [("a", 2)], {A1: 3}, known=OTHER), "another a"),
        (Before({A: 2}, [B], {A1: 3}, left_ids=OTHER, now={"b": "id of b"}), "another a"),
        (Before({A: 2}, [B], {A1: 3}, left_ids={}), "id of a"),
        (Before({A: 2}, [B], known={}, now={}), ""),
    ],
    ids=[
        "left now", "left before", "one of each", "one of each, read under the older", "one of each, none asked for",
        "an older record of it", "an older broker",
    ],
)  # fmt: skip
def test_partitions_that_are_left_at_different_times_keep_the_id_of_the_topic_that_is_gone(
    stream: Before, id: str
) -> None:
    made = stream.at(0)
    assert made.id_to_leave(settled([made]).away[0].keys()) == id


@dataclass
class OnBrokers:
    """A stream's relation and reader at once: the partitions that its brokers have, all of them whole."""

    ends: Mapping[tuple[str, int], int]
    reads_micro_batches = True

    def stream(self, spark: Any, folder: str) -> OnBrokers:
        return self

    def kafka_range(self) -> tuple[str, str]:
        return line_of(dict.fromkeys(self.ends, 0)), line_of(self.ends)

    def stop(self) -> None:
        """Nothing runs."""


A2, A3 = ("a", 2), ("a", 3)


def goes_on(
    recorded: SourceState, *streams: tuple[str, Mapping[tuple[str, int], int]], allowed: bool = False
) -> Available:
    """What a source goes on with whose streams each name topics of a cluster of its own. Its brokers tell the ids of topics."""
    leaves = [
        LeafDescription(
            "kafka", "kafka", topics, {"subscribe": topics}, cast(Any, OnBrokers(ends)),
            {topic: f"{topic} of {place}" for topic in topics.split(",")}, "events", place, place,
        )
        for place, (topics, ends) in enumerate(streams)
    ]  # fmt: skip
    return check_available(
        cast(Any, None), leaves, {"events": recorded}, Path("/nowhere"), allow_non_restored_state=allowed
    )


def test_a_topic_that_a_stream_leaves_is_none_of_another_cluster_s_of_the_same_name() -> None:
    of_a = {A: 1, A1: 1, A2: 1, A3: 1}
    ids = {"0/a": "a of 0", "0/b": "b of 0", "1/a": "a of 1"}
    recorded = SourceState(lines=(line_of({**of_a, B: 1}), line_of({A: 1, A1: 1})), topic_ids=ids)
    found = goes_on(recorded, ("b", {B: 1}), ("a", {A: 1, A1: 1}))
    assert [parse(line) for line in found.moved["events"].lines] == [{B: 1}, {A: 1, A1: 1}]
    assert found.moved["events"].left == {"0/a": LeftTopic({str(number): 1 for _, number in of_a}, "a of 0")}


def test_a_stream_that_is_allowed_to_take_a_topic_over_begins_with_the_partitions_that_its_brokers_have() -> (
    None
):
    ids = {"0/a": "a of 0", "0/b": "b of 0", "1/c": "c of 1"}
    recorded = SourceState(lines=(line_of({A: 1, A1: 1, B: 1}), line_of({C: 1})), topic_ids=ids)
    streams = ("b", {B: 1}), ("a,c", {A: 1, C: 1})
    with refused(IncompatibleError, "'events'", "stream 1", "'a'", "--allow-non-restored-state"):
        goes_on(recorded, *streams)
    found = goes_on(recorded, *streams, allowed=True)
    assert parse(found.moved["events"].lines[1]) == {A: 0, C: 1}
    assert goes_on(found.moved["events"], *streams).losses == []
