"""Messages of Kafka that a job would read again and that are gone: a plan and a check say it, without Spark. librdkafka plays the brokers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

import stateflow as sf
from stateflow.errors import DisagreementError
from stateflow.format.records import SourceState
from stateflow.pipelines.inputs.input import Input
from stateflow.spark.inputs.lost_messages import lost_messages
from stateflow.spark.sources.kafka import check_kafka
from tests.jobs.builder import JobBuilder, options_of


@dataclass
class Numbered:
    number: int


@dataclass(frozen=True)
class KeptTopic(Input):
    """A topic `orders` of which brokers have so much."""

    spans: Mapping[tuple[str, int], tuple[int, int]]
    topics = ("orders",)

    def streaming(self, spark: Any) -> Any:
        raise NotImplementedError

    def kept(self) -> Mapping[tuple[str, int], tuple[int, int]]:
        return self.spans


def state(**partitions: int) -> SourceState:
    offsets = {name.removeprefix("p"): offset for name, offset in partitions.items()}
    return SourceState(lines=(json.dumps({"orders": offsets}),), kind="kafka")


@pytest.mark.parametrize(
    ("kept", "named"),
    [
        ({0: (0, 9), 1: (0, 0)}, ""),
        ({0: (4, 4), 1: (0, 9)}, ""),
        ({0: (6, 9), 1: (0, 9)}, "offset 4 of topic 'orders' partition 0"),
        ({0: (0, 9), 1: (0, 9), 2: (3, 9)}, "offset 0 of topic 'orders' partition 2"),  # it came since
        ({0: (0, 3), 1: (0, 9)}, "now ends at 3"),
        ({0: (0, 9)}, "partition 1 up to offset 0, but it is gone"),
        ({}, ""),  # nobody can ask
    ],
)
def test_what_a_run_would_refuse_of_a_topic_is_known_from_its_ends(
    kept: dict[int, tuple[int, int]], named: str
) -> None:
    flow = sf.Flow("reader")
    flow.source("events", KeptTopic({("orders", number): span for number, span in kept.items()}))
    recorded = {"events": state(p0=4, p1=0), "other": state(p0=99)}
    found = list(lost_messages(flow.sources, recorded))
    assert [named in each and "'events'" in each for each in found] == [True] * bool(named)


@pytest.fixture
def brokers() -> Iterator[str]:
    """With three messages of the topic."""
    producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    broker = producer.list_topics(timeout=30).brokers[1]
    for number in range(3):
        producer.produce("orders", json.dumps({"number": number}), partition=0)
    assert producer.flush(30) == 0
    yield f"{broker.host}:{broker.port}"
    producer.flush(1)


def reader(servers: str, **options: str) -> sf.Pipeline:
    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        rows = flow.source("events", sf.kafka("orders", bootstrap=servers, options=options), Numbered)
        rows.append("out", sf.delta("/data/out"))

    return orders


def test_a_plan_and_a_check_warn_of_it_and_nobody_waits_for_brokers_that_do_not_answer(
    tmp_path: Path, brokers: str
) -> None:
    made = JobBuilder(str(tmp_path / "root"))
    for offset in (5, 2):
        made.decide(sources={"events": state(p0=offset)})
    first, second = (record.slot for record in made.log().checkpoints)
    job = sf.Job(str(tmp_path / "root"), "orders")

    digests: dict[int, set[str]] = {}

    def warned(pipeline: sf.Pipeline, slot: int) -> list[str]:
        plan = job.restore(f"checkpoint:{slot}", pipeline, {}, options=options_of(tmp_path / "root"))
        digests.setdefault(slot, set()).add(plan.digest)
        return [each for each in plan.warnings if each.startswith("a run would not begin: source 'events'")]

    [said] = warned(reader(brokers), first)
    assert "up to offset 5, but it now ends at 3" in said
    assert warned(reader(brokers), second) == []
    assert warned(reader(brokers, failOnDataLoss="false"), first) == []
    assert warned(reader("127.0.0.1:1"), first) == []
    assert [len(each) for each in digests.values()] == [1, 1], "an approval does not hang on it"

    assert said not in job.check(reader(brokers)).warnings
    made.decide(sources={"events": state(p0=5)})
    assert said in job.check(reader(brokers)).warnings
    with pytest.raises(DisagreementError) as run_says:
        check_kafka("events", {("orders", 0): 5}, {("orders", 0): 0}, {("orders", 0): 3})
    assert said.endswith(str(run_says.value))
