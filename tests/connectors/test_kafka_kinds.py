"""Topics as targets of a pipeline, before Spark or a broker is there. `tests/refusals/kafka.py` has what is refused."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import stateflow as sf
from stateflow.connectors import UsageError
from stateflow.connectors.kafka import slots
from stateflow.connectors.kafka.cluster import Cluster
from tests.refusals.refusal import refused

OUT = sf.kafka("out", bootstrap="broker:9092")


@dataclass
class Order:
    user: str
    amount: float


def test_a_dry_run_writes_into_a_folder_and_to_no_topic(tmp_path: Path) -> None:
    from stateflow.pipelines.redirected import RedirectedPipeline

    def shop(flow: sf.Flow) -> None:
        orders = flow.source("orders", sf.files("/in", "json"), Order)
        orders.upsert("out", OUT, keys="user", order_by="amount")

    [sink] = RedirectedPipeline("shop", shop, folder=tmp_path).build().sinks
    assert (sink.sink_kind.name, sink.output) == ("delta_upsert", str(tmp_path / "out"))


def test_without_the_client_a_run_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with refused(UsageError, "Kafka topic out", "confluent_kafka", "pip install 'stateflow-spark[kafka]'"):
        Cluster(OUT)


def test_writers_are_those_whose_slots_are_of_the_topic() -> None:
    one, two = "3f2b6c1e11114a6e9d3f0123456789ab", "3f2b6c1e-1111-4a6e-9d3f-0123456789ab"
    kept = {
        f"stateflow-{one}-out-of-all": slots.TopicSlot(4, 5, "here").text("orders"),
        f"stateflow-{two}-out": slots.TopicSlot(4, 5, "here").text("more"),
        f"stateflow-{one}-other": slots.TopicSlot(4, 5, "elsewhere").text("orders"),
        f"stateflow-{one}-newer": "[]",
        "somebody": slots.TopicSlot(4, 5, "here").text("x"),
        "something": "no json",
    }
    assert slots.writers(kept, "here") == {
        f"stateflow/{one}/out-of-all": "orders",
        f"stateflow/{two}/out": "more",
    }
