"""Kafka's positions: ends are cut per partition, and what a topic has lost is said in words."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from stateflow.errors import DisagreementError
from stateflow.spark.inputs.readable import LostInput, lost_sentence
from stateflow.spark.internals.sources import MicroBatchStream
from stateflow.spark.sources.kafka import (
    accepted_losses,
    check_kafka,
    check_same_topics,
    cut_beginnings,
    end_lines_of,
    line_of,
    missing_between,
    missing_offsets,
    next_end,
    parse,
    with_added,
)
from stateflow.spark.sources.kafka_topics import not_named
from tests.refusals.refusal import refused

A, B, C = ("orders", 0), ("orders", 1), ("orders", 10)


def test_a_line_is_read_and_written_in_numeric_order() -> None:
    line = '{"orders":{"0":12,"1":5,"10":7}}'
    assert parse(line) == {A: 12, B: 5, C: 7}
    assert line_of({C: 7, B: 5, A: 12}) == line


@pytest.mark.parametrize(
    ("planned", "end"),
    [
        ({A: 4, B: 4}, {A: 4, B: 4}),
        ({A: 9, B: 4}, {A: 6, B: 4}),
        ({A: 99, B: 99, C: 99}, {A: 6, B: 8}),
        ({A: 2, B: 2}, {A: 6, B: 8}),
    ],
    ids=["within", "one partition is cut", "all are cut", "the source would rather wait"],
)
def test_a_batch_ends_where_the_source_planned_or_at_the_bound(
    planned: dict[tuple[str, int], int], end: dict[tuple[str, int], int]
) -> None:
    assert next_end({A: 2, B: 2}, planned, {A: 6, B: 8}) == end


def test_a_partition_that_is_already_behind_the_bound_does_not_go_back() -> None:
    assert next_end({A: 9, B: 2}, {A: 12, B: 5}, {A: 9, B: 8}) == {A: 9, B: 5}


@pytest.mark.parametrize(
    ("recorded", "words"),
    [
        ({A: 5}, ""),
        ({A: 3}, ""),
        ({A: 9}, ""),
        (
            {A: 2},
            "offset 2 of topic 'orders' partition 0, .* retention has removed .* before offset 3",
        ),
        ({A: 10}, "partition 0 up to offset 10, but it now ends at 9: the topic was recreated"),
        ({B: 1}, "partition 1 up to offset 1, but it is gone"),
    ],
)
def test_what_a_topic_no_longer_has_is_named(recorded: dict[tuple[str, int], int], words: str) -> None:
    said = missing_offsets(recorded, {A: 3}, {A: 9})
    assert bool(said) == bool(words)
    assert re.search(words, said)


def test_a_later_checkpoint_is_advised_only_where_it_helps() -> None:
    ways = ("'events'", "a new uid", "--allow-non-restored-state", "failOnDataLoss=false")
    with refused(DisagreementError, "to a later checkpoint, if it has one", *ways):
        check_kafka("events", {A: 2}, {A: 3}, {A: 9})
    for recorded in ({A: 10}, {B: 1}):
        with refused(DisagreementError, *ways) as caught:
            check_kafka("events", recorded, {A: 3}, {A: 9})
        assert "checkpoint" not in str(caught.value)


@pytest.mark.parametrize(
    ("begin", "end", "words"),
    [
        ({A: 3, B: 0}, {A: 9, B: 0}, ""),
        ({A: 3, B: 0}, {A: 9, B: 2}, "offset 0 of topic 'orders' partition 1, .* before offset 1"),
        ({A: 3}, {A: 9, B: 2}, "offset 0 of topic 'orders' partition 1, .* before offset 1"),
        ({A: 1}, {A: 1}, ""),
        ({A: 3, C: 2}, {A: 4, C: 2}, ""),
        ({A: 3, C: 2}, {A: 4, C: 3}, "partition 10 up to offset 2, but it is gone"),
        ({A: 3}, {A: 10}, "partition 0 up to offset 10, but it now ends at 9"),
    ],
    ids=["no other", "some", "some of a new partition", "nothing read", "a partition not read", "one read", "recreated"],
)  # fmt: skip
def test_of_what_a_topic_has_lost_only_that_counts_which_a_batch_read(
    begin: dict[tuple[str, int], int], end: dict[tuple[str, int], int], words: str
) -> None:
    said = missing_between(begin, end, {A: 3, B: 1}, {A: 9, B: 2})
    assert bool(said) == bool(words)
    assert re.search(words, said)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "returns, orders"}, ""),
        ({"assign": '{"orders":[0,1,10]}'}, ""),
        ({"subscribe": "returns"}, "topic 'orders'"),
        ({"assign": '{"returns":[0,1]}'}, "topic 'orders'"),
        ({"assign": '{"orders":[0,10]}'}, "topic 'orders' partition 1"),
    ],
)
def test_what_a_batch_has_read_and_the_code_does_not_name_is_told(
    options: dict[str, str], words: str
) -> None:
    assert not_named(cast(Any, None), options, {C: 0, B: 2, A: 1}) == words


@pytest.mark.parametrize(
    ("by_code", "slots", "way"),
    [
        (False, [3, 4, 7], "the input from checkpoint 7 on is still there: begin there"),
        (False, [3, 4], "put back what is gone, or take batches that ran since"),
        (True, [3, 4, 7], "the input from checkpoint 7 on is still there: begin there, or take code that names the topic"),
        (True, [3, 4], "take code that names the topic, or take batches that ran since"),
    ],
)  # fmt: skip
def test_what_to_do_about_input_that_cannot_be_read_again(by_code: bool, slots: list[int], way: str) -> None:
    said = lost_sentence({4: LostInput("why", by_code)}, slots)
    assert said == f"the input of checkpoint 4 cannot be read again: why; {way}"


@pytest.mark.parametrize(
    ("recorded", "anew", "words"),
    [
        ({A: 3, B: 1}, (), []),
        ({A: 1, B: 0}, (), ["'orders' partition 0.*2 offsets are lost", "'orders' partition 1.*1 offsets are lost"]),
        ({A: 12}, (), ["now ends at 9"]),
        ({C: 4}, (), ["partition 10 up to offset 4, but it is gone"]),
        ({A: 4, B: 2}, (B,), ["partition 1, which was made anew: 1 offsets before it are not read"]),
    ],
    ids=["nothing", "retention", "shorter", "a partition", "another topic"],
)  # fmt: skip
def test_a_loss_that_is_accepted_is_counted(
    recorded: dict[tuple[str, int], int], anew: tuple[tuple[str, int], ...], words: list[str]
) -> None:
    said = accepted_losses("events", recorded, {A: 3, B: 1}, {A: 9, B: 2}, anew)
    assert len(said) == len(words)
    for sentence, expected in zip(said, words, strict=True):
        assert re.search(f"'events', whose failOnDataLoss=false accepts it, .*{expected}", sentence)


def test_a_partition_is_read_from_its_first_record_if_its_topic_is_known() -> None:
    earliest = {A: 3, B: 1, ("returns", 0): 4, ("returns", 1): 0}
    expected = with_added({A: 5}, earliest)
    assert expected == {A: 5, B: 0}
    assert cut_beginnings(expected, earliest) == {("returns", 0): 4}


class Broker(MicroBatchStream):
    """As much of Spark's reader as planning touches: at most 4 records a batch, the bound is at 10."""

    def __init__(self) -> None:
        self.asked_after = 0

    def kafka_after(self, millis: int) -> str:
        self.asked_after = millis
        return line_of({A: 10})

    def planned_end(self, start: str, limit: object = None) -> str:
        return line_of({A: parse(start)[A] + 4})


def test_a_topic_with_another_id_is_another_one_and_an_older_record_knows_no_id() -> None:
    check_same_topics("events", {"orders": None, "returns": "a"}, {"orders": "x", "returns": "a"})
    with refused(DisagreementError, "source 'events'", "topic 'returns'", "gone"):
        check_same_topics("events", {"orders": "x", "returns": "a"}, {"orders": "x", "returns": "b"})


def test_a_bounded_run_ends_before_the_first_later_record_in_batches_of_the_rate_limit() -> None:
    broker, noon = Broker(), datetime(2024, 5, 1, 12, tzinfo=UTC)
    ends = list(end_lines_of(broker, line_of({A: 1}), noon))
    assert [parse(line)[A] for line in ends] == [5, 9, 10]
    assert broker.asked_after == int(noon.timestamp() * 1000) + 1
    assert list(end_lines_of(broker, line_of({A: 10}), noon)) == []
    assert list(end_lines_of(broker, line_of({A: 30}), noon)) == []
