"""Rows as messages: which columns are the key, and what bytes key and value become. Spark makes them, before a record is decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING

from stateflow.connectors import DELETE, UsageError, as_json, check_as_json, from_json, quoted
from stateflow.connectors.kafka.columns import MADE
from stateflow.connectors.kafka.kinds import TEXTS, one_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from stateflow.connectors.kafka.avro_values import AvroValues
    from stateflow.connectors.kafka.protobuf_values import ProtobufValues
    from stateflow.connectors.kafka.topic import KafkaTopic

KEY, VALUE, SIZE = "key", "value", "size"
"""Columns of staged messages."""
OPERATION = "operation"
"""A column of them that says what deletes, where rows can."""
MEANT = "meant"
"""A column of them without a value where a message would be taken for a delete, and is none."""
ORDER = "order{}"
"""Columns of them that say which message of a key is the last."""
_VALUE_AS_IT_IS, _KEY_AS_IT_IS, _KEY_AS_JSON = "value_as_it_is", "key_as_it_is", "key_as_json"
"""What a record keeps of columns that messages of text or bytes are made of."""
OVERHEAD = 300
"""Bytes of a message beside key and value: its headers and the batch around it."""


def check(
    what: str, topic: KafkaTopic, schema: StructType, keys: Sequence[str], operation: str
) -> tuple[list[str], list[str]]:
    """The columns of the key and those of the value. UsageError for rows that are no such messages."""
    names = {name.lower(): name for name in schema.names}
    missing = [key for key in (*keys, *filter(None, [operation])) if key.lower() not in names]
    if missing:
        raise UsageError(f"{what}: the output has no column {missing[0]!r}; it has {', '.join(schema.names)}")
    own = [names[key.lower()] for key in keys]
    values = [name for name in schema.names if name != operation]
    types = {field.name: field.dataType.simpleString() for field in schema}
    if topic.value in TEXTS:
        values = [name for name in values if name not in own]
        one_column(what, "value", topic.value, [(name, types[name]) for name in values])
    elif topic.value == "json":
        check_as_json(what, ((name, types[name]) for name in values))
    one_column(what, "key", topic.key or "", [(name, types[name]) for name in own])
    return own, values


def messages(
    frame: DataFrame,
    topic: KafkaTopic,
    keys: Sequence[str],
    values: Sequence[str],
    operation: str,
    order_by: Sequence[str],
    encoder: AvroValues | ProtobufValues | None = None,
) -> DataFrame:
    """The rows as they are staged: key, value, how many bytes they have, by what messages of one key are ordered, and what deletes."""
    if encoder is not None:
        # Behind all columns, of which the key is made.
        frame = frame.mapInArrow(encoder, deepcopy(frame.schema).add(MADE, "binary"))
        value = MADE
    else:
        value = as_json(values) if topic.value == "json" else quoted(values[0])
    more = list[str]()
    if operation:
        deletes = f"{quoted(operation)} = '{DELETE}'"
        more.append(f"{quoted(operation)} AS {OPERATION}")
        if topic.value in TEXTS:  # all others make a value of every row
            more.append(f"CASE WHEN {deletes} OR {value} IS NOT NULL THEN true END AS {MEANT}")
        value = f"CASE WHEN {deletes} THEN NULL ELSE {value} END"
    order = [f"{quoted(name)} AS {ORDER.format(k)}" for k, name in enumerate(order_by)]
    key = _key(frame.schema, topic, keys)
    both = (f"CAST({key} AS BINARY) AS {KEY}", f"CAST({value} AS BINARY) AS {VALUE}")
    made = frame.selectExpr(*both, *order, *more)
    size = " + ".join(f"coalesce(octet_length({name}), 0)" for name in (KEY, VALUE))
    return made.selectExpr("*", f"{size} + {OVERHEAD} AS {SIZE}")


def kept(
    schema: StructType, topic: KafkaTopic, keys: Sequence[str], values: Sequence[str]
) -> dict[str, list[list[str]]]:
    """What a record keeps of columns, by names and types, so that `put_out` makes rows of messages; empty where Spark cannot make them."""

    def typed(names: Sequence[str]) -> list[list[str]]:
        return [[name, schema[name].dataType.simpleString()] for name in names]

    if topic.value == "json":
        return {"columns": typed(values)}
    if topic.value not in TEXTS:
        return {}
    # The columns of the key are not in the value.
    return {_VALUE_AS_IT_IS: typed(values), _form_of_key(schema, topic, keys): typed(keys)}


def put_out(columns: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """An expression for the struct that the pipeline put out, over staged messages, by what a record keeps of the columns; else empty."""
    if of_json := columns.get("columns"):
        return from_json(f"cast({VALUE} as string)", of_json)
    if not (value := columns.get(_VALUE_AS_IT_IS)):
        return ""
    fields = [(name, f"cast({VALUE} as {kind})") for name, kind in value]
    fields += [(name, f"cast({KEY} as {kind})") for name, kind in columns.get(_KEY_AS_IT_IS, ())]
    if of_key := columns.get(_KEY_AS_JSON):
        parsed = from_json(f"cast({KEY} as string)", of_key)
        fields += [(name, f"{parsed}.{quoted(name)}") for name, _ in of_key]
    return f"struct({', '.join(f'{part} AS {quoted(name)}' for name, part in fields)})"


def newest(rows: DataFrame, order_by: Sequence[str]) -> DataFrame:
    """Of each key the last message. Among equals the content decides, the same way every time."""
    order = [f"{ORDER.format(k)} DESC NULLS LAST" for k in range(len(order_by))]
    ordered = ", ".join([*order, f"{VALUE} DESC NULLS LAST"])
    place = f"row_number() OVER (PARTITION BY {KEY} ORDER BY {ordered})"
    return rows.selectExpr("*", f"{place} AS place").where("place = 1").drop("place")


def _key(schema: StructType, topic: KafkaTopic, keys: Sequence[str]) -> str:
    if not keys:
        return "NULL"
    if _form_of_key(schema, topic, keys) == _KEY_AS_IT_IS:
        return quoted(keys[0])
    # A key with a null in it is none: it is refused, and not written as a text with null in it.
    absent = " OR ".join(f"{quoted(name)} IS NULL" for name in keys)
    return f"CASE WHEN {absent} THEN NULL ELSE {as_json(keys)} END"


def _form_of_key(schema: StructType, topic: KafkaTopic, keys: Sequence[str]) -> str:
    is_text = len(keys) == 1 and schema[keys[0]].dataType.simpleString() in TEXTS.values()
    return _KEY_AS_IT_IS if topic.key in TEXTS or (topic.key is None and is_text) else _KEY_AS_JSON
