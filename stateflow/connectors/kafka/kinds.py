"""The kinds of sink that write to a topic, for those who know nothing of Spark or of Kafka's client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stateflow.connectors import (
    GETS_NEW_ROWS,
    RowType,
    SinkKind,
    UsageError,
    check_upsert,
    for_reading,
    names_of,
    require_columns,
    required,
    upsert_kind,
)
from stateflow.connectors.kafka.settings import settings_of
from stateflow.connectors.kafka.topic import KafkaTopic

TEXTS = {"string": "string", "bytes": "binary"}
"""Types of a column that is a key or a value as it is."""


def _require(target: KafkaTopic) -> None:
    required("confluent_kafka", "kafka", str(target))
    if target.value == "protobuf":
        required("google.protobuf", "kafka", str(target))
    settings_of(target)


def _renamed(target: KafkaTopic, recorded: str) -> bool:
    # Where the brokers are may be written in another way.
    return target.topic != recorded.rpartition("/")[2]


def _check_target(where: str, target: KafkaTopic) -> None:
    _ = target.topic
    for name, given, otherwise in (
        ("since", target.since, "earliest"), ("per_batch", target.per_batch, None), ("schema", target.schema, ""),
        ("schema", target.descriptors, b""), ("message", target.message, ""),
    ):  # fmt: skip
        if given != otherwise:
            raise for_reading(where, name, target)
    if target.key == "avro":
        raise UsageError(
            f"{where}: {target} gets no key of Avro yet: say key='json', or let transform() make bytes and say key='bytes'"
        )
    if unknown := [name for name in target.options if not name.lower().startswith("kafka.")]:
        raise for_reading(where, f"option {unknown[0]!r}", target, "'kafka.*' are properties of the client")


def one_column(what: str, part: str, form: str, columns: Sequence[tuple[str, str]]) -> None:
    """UsageError for a key or a value that is one text or one row of bytes, and would be made of other columns. `columns` are names and types."""
    if form in TEXTS and [kind for _, kind in columns] != [TEXTS[form]]:
        told = ", ".join(f"{name} {kind}" for name, kind in columns) or "no column"
        raise UsageError(
            f"{what}: a {part} of {form} is one column of the type {TEXTS[form]}, and here it is {told}: say {part}='json', or let transform() "
            "make one column"
        )


def _check_columns(where: str, target: KafkaTopic, options: Mapping[str, Any], rows: RowType | None) -> None:
    """The same, as far as the rows are declared."""
    if rows is None:
        return
    keys = {key.lower() for key in names_of(options.get("keys"))}
    columns = [(f.name, f.type) for f in rows.fields if f.name != options.get("operation")]
    one_column(where, "value", target.value, [each for each in columns if each[0].lower() not in keys])
    if target.key is not None:
        one_column(where, "key", target.key, [each for each in columns if each[0].lower() in keys])


def _check_append(where: str, target: KafkaTopic, options: Mapping[str, Any], rows: RowType | None) -> None:
    _check_target(where, target)
    keys = options.get("keys")
    if target.key is not None and not keys:
        raise UsageError(
            f"{where} has a key of {target.key}, and nothing says of which columns: say keys='user'"
        )
    require_columns(where, rows, {"keys": keys})
    _check_columns(where, target, options, rows)


def _check_upsert(where: str, target: KafkaTopic, options: Mapping[str, Any], rows: RowType | None) -> None:
    _check_target(where, target)
    check_upsert(where, target, options, rows)
    _check_columns(where, target, options, rows)


APPEND = SinkKind(
    name="kafka_append",
    mode="append",
    takes="kafka(topic)",
    accepts=lambda target: isinstance(target, KafkaTopic),
    implementation="stateflow.connectors.kafka.sink:KafkaAppend",
    made_by="kafka",
    place=lambda target: target.place,
    renamed=_renamed,
    require=_require,
    shown=str,
    dataset="kafka",
    tells_slot=True,
    options=frozenset({"keys"}),
    check=_check_append,
    changes="refused",
    starts=GETS_NEW_ROWS,
)
UPSERT = upsert_kind(
    APPEND,
    "kafka_upsert",
    "stateflow.connectors.kafka.sink:KafkaUpsert",
    check=_check_upsert,
    one_row_per_key=False,
)
