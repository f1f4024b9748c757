"""Topics as targets of a pipeline: what is refused where it is declared, before Spark or a broker is there."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import stateflow as sf
from stateflow.connectors import UsageError
from stateflow.connectors.kafka import slots
from stateflow.connectors.kafka.cluster import Cluster

OUT = sf.kafka("out", bootstrap="broker:9092")


@dataclass
class Order:
    user: str
    amount: float


def declared(mode: str, target: Any, *others: Any, **options: Any) -> Any:
    def shop(flow: sf.Flow) -> None:
        orders = flow.source("orders", sf.files("/in", "json"), Order)
        getattr(orders, mode)("out", target, **options)
        for number, other in enumerate(others):
            orders.append(f"other-{number}", other)

    return sf.pipeline("shop")(shop).build()


@pytest.mark.parametrize(
    ("mode", "target", "options", "why"),
    [
        ("append", sf.kafka("a", "b", bootstrap="b:1"), {}, "Kafka topics a, b are several, and a sink writes to one topic"),
        ("append", sf.kafka("a", bootstrap="b:1", since="latest"), {}, "since of Kafka topic a is for reading it and would do nothing"),
        ("append", sf.kafka("a", bootstrap="b:1", per_batch=5), {}, "per_batch of Kafka topic a is for reading it"),
        ("append", sf.kafka("a", bootstrap="b:1", options={"failOnDataLoss": "false"}), {}, "option 'failOnDataLoss' of Kafka topic a is for reading"),
        ("append", sf.kafka("a", bootstrap="b:1", key="avro", registry="http://r:1"), {"keys": "user"}, "Kafka topic a gets no key of Avro yet: say key='json'"),
        ("append", sf.kafka("a", bootstrap="b:1", key="string"), {}, "nothing says of which columns: say keys='user'"),
        ("append", sf.kafka("a", bootstrap="b:1", value="string"), {}, "one column of the type string, and here it is user string, amount double"),
        ("append", sf.kafka("a", bootstrap="b:1", value="string"), {"keys": "user"}, "a value of string .* here it is amount double: say value='json'"),
        ("upsert", sf.kafka("a", bootstrap="b:1", key="bytes"), {"keys": "user"}, "a key of bytes is one column of the type binary, and here it is user"),
        ("append", OUT, {"keys": "nobody"}, "Order has no column 'nobody' for keys"),
        ("append", OUT, {"order_by": "amount"}, "does not take order_by"),
        ("upsert", OUT, {}, "has no key columns: say keys="),
        ("upsert", OUT, {"keys": "user", "delete_when": "gone"}, "gone"),
    ],
)  # fmt: skip
def test_a_target_that_cannot_be_written_is_refused_where_it_is_declared(
    mode: str, target: Any, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        declared(mode, target, **options)


def test_two_sinks_cannot_write_to_one_topic_however_its_brokers_are_written() -> None:
    one, other = (sf.kafka("out", bootstrap=brokers) for brokers in ("b:9092,a:9092", "A:9092, b:9092"))
    with pytest.raises(
        UsageError, match="sinks 'out' and 'other-0' write to one place, Kafka topic out: give each"
    ):
        declared("append", one, other)


def test_a_dry_run_writes_into_a_folder_and_to_no_topic(tmp_path: Path) -> None:
    from stateflow.pipelines.redirected import RedirectedPipeline

    def shop(flow: sf.Flow) -> None:
        orders = flow.source("orders", sf.files("/in", "json"), Order)
        orders.upsert("out", OUT, keys="user", order_by="amount")

    [sink] = RedirectedPipeline("shop", shop, folder=tmp_path).build().sinks
    assert (sink.sink_kind.name, sink.output) == ("delta_upsert", str(tmp_path / "out"))


def test_without_the_client_a_run_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(
        UsageError,
        match=r"^Kafka topic out needs the package confluent_kafka, .*pip install 'stateflow-spark\[kafka\]'$",
    ):
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
