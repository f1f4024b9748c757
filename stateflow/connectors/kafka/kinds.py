"""The kinds of sink that write to a topic, for those who know nothing of Spark or of Kafka's client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stateflow.connectors import (
    GETS_CHANGED_KEYS,
    GETS_NEW_ROWS,
    RowType,
    SinkKind,
    UsageError,
    check_upsert,
    require_columns,
)
from stateflow.connectors.kafka.topic import KafkaTopic, is_kafka


def _place(target: KafkaTopic) -> str:
    return target.place


def _renamed(target: KafkaTopic, recorded: str) -> bool:
    # Where the brokers are may be written in another way.
    return target.topic != recorded.rpartition("/")[2]


def _check_target(where: str, target: KafkaTopic) -> None:
    _ = target.topic
    for name, given, otherwise in (
        ("since", target.since, "earliest"), ("per_batch", target.per_batch, None), ("schema", target.schema, ""),
    ):  # fmt: skip
        if given != otherwise:
            raise UsageError(
                f"{where}: {name} of {target} is for reading it and would do nothing: leave it out"
            )
    if "avro" in (target.value, target.key):
        raise UsageError(
            f"{where}: {target} gets no Avro yet: say value='json', or let transform() make bytes and say value='bytes'"
        )
    if unknown := [name for name in target.options if not name.lower().startswith("kafka.")]:
        raise UsageError(
            f"{where}: option {unknown[0]!r} of {target} is for reading it and would do nothing: leave it out; 'kafka.*' are properties of the client"
        )


def _check_append(where: str, target: KafkaTopic, options: Mapping[str, Any], rows: RowType | None) -> None:
    _check_target(where, target)
    keys = options.get("keys")
    if target.key is not None and not keys:
        raise UsageError(
            f"{where} has a key of {target.key}, and nothing says of which columns: say keys='user'"
        )
    require_columns(where, rows, {"keys": keys})


def _check_upsert(where: str, target: KafkaTopic, options: Mapping[str, Any], rows: RowType | None) -> None:
    _check_target(where, target)
    check_upsert(where, target, options, rows)


APPEND = SinkKind(
    name="kafka_append",
    mode="append",
    takes="kafka(topic)",
    accepts=is_kafka,
    implementation="stateflow.connectors.kafka.sink:KafkaAppend",
    made_by="kafka",
    place=_place,
    renamed=_renamed,
    shown=str,
    dataset="kafka",
    tells_slot=True,
    options=frozenset({"keys"}),
    check=_check_append,
    changes="refused",
    starts=GETS_NEW_ROWS,
)
UPSERT = SinkKind(
    name="kafka_upsert",
    mode="upsert",
    takes="kafka(topic)",
    accepts=is_kafka,
    implementation="stateflow.connectors.kafka.sink:KafkaUpsert",
    made_by="kafka",
    place=_place,
    renamed=_renamed,
    shown=str,
    dataset="kafka",
    tells_slot=True,
    options=frozenset({"keys", "order_by", "delete_when"}),
    check=_check_upsert,
    changes="replace",
    starts=GETS_CHANGED_KEYS,
)
