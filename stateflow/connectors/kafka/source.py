"""Messages of Kafka as rows of a row class: what a flow reads from `kafka(...)`.

A message that does not fit fails the batch, as a line of a file does, or comes in a column of its own.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from stateflow.connectors import (
    PARTITION,
    READERS,
    Field,
    Misfits,
    Reading,
    RecentTexts,
    RowType,
    StateflowError,
    UsageError,
    as_of_today,
    check_reader_options,
    columns_to_read,
    former_names,
    quoted,
    required,
    row_type,
    text_in_sql,
)
from stateflow.connectors.kafka.avro import AvroMisfit, AvroSchema
from stateflow.connectors.kafka.avro_rows import AvroRows
from stateflow.connectors.kafka.cluster import Cluster
from stateflow.connectors.kafka.columns import (
    DELETED,
    HEADERS,
    KEY,
    MESSAGE,
    PARSED,
    PARTS,
    PREFIX,
    REASON,
    check_columns,
    of_message,
    sql_of,
    type_of_parsed,
)
from stateflow.connectors.kafka.kinds import TEXTS
from stateflow.connectors.kafka.protobuf_message import descriptors_of, protobuf_rows
from stateflow.connectors.kafka.registry import SchemaRegistry, registry_of
from stateflow.connectors.kafka.settings import java_settings
from stateflow.connectors.kafka.topic import DESCRIBED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from stateflow.connectors.kafka.protobuf_rows import ProtobufRows
    from stateflow.connectors.kafka.topic import KafkaTopic

BROKEN = "columnNameOfCorruptRecord"
_ACCEPTS = "failondataloss"
_SHORTLY = 3.0
"""Seconds that a plan waits for brokers."""
_NUMBERS = 1 << 32
"""A partition's number is its topic's place among the topics times this, and its own number in the topic."""
_ARGUMENTS = {
    "subscribe": "the topics, kafka('orders', 'returns', ...)",
    "subscribepattern": "each topic by its name, kafka('orders', 'returns', ...)",
    "assign": "the topics, kafka('orders', 'returns', ...)",
    "startingoffsets": "since='earliest' or since='latest'",
    "startingoffsetsbytimestamp": "since=datetime(2026, 1, 31, tzinfo=UTC)",
    "startingtimestamp": "since=datetime(2026, 1, 31, tzinfo=UTC)",
    "includeheaders": "kafka_headers: dict[str, bytes] in the row class",
}
"""By the option of Spark's reader in small letters."""
_SOURCE_OPTIONS = frozenset(name.lower() for name in READERS["kafka"])
_STRICT = {"mode": "FAILFAST", "enableDateTimeParsingFallback": "false"}
_TEXT = f"cast({MESSAGE}.value as string)"
_KEY_TEXT = f"cast({MESSAGE}.key as string)"
_PARSED_KEY, _LEFT = "_sf_key", "_sf_left"
_WHERE = (
    f"concat('the message at offset ', {MESSAGE}.offset, ' of topic ', {MESSAGE}.topic, ', partition ', {MESSAGE}.partition, "
    "', has a row')"
)
_ADVICE = "; correct what writes the topic, and "


@dataclass(frozen=True, slots=True)
class KafkaMessages(RecentTexts):
    """Topics with the row class of their source."""

    topic: KafkaTopic
    rows: RowType

    jars = "kafka"
    offset_kind = "kafka"

    @property
    def topics(self) -> tuple[str, ...]:
        return self.topic.topics

    def columns(self, rows: RowType | None) -> RowType | None:
        return self.rows

    has_partitions = True

    def streaming(self, spark: SparkSession) -> DataFrame:
        """The messages as a stream of rows."""
        return self.parsed(self._messages(spark))

    def streaming_with_partitions(self, spark: SparkSession) -> DataFrame:
        topics = ", ".join(text_in_sql(name) for name in self.topic.topics)
        number = f"(array_position(array({topics}), {MESSAGE}.topic) - 1) * {_NUMBERS}L + {MESSAGE}.partition"
        return self.parsed(self._messages(spark), {PARTITION: number})

    def partitions(self, position: str) -> dict[int, str]:
        return {
            self.topic.topics.index(topic) * _NUMBERS + int(partition): f"{topic}/{partition}"
            for topic, offsets in json.loads(position).items()
            if topic in self.topic.topics
            for partition in offsets
        }

    def _messages(self, spark: SparkSession) -> DataFrame:
        if self.registry is not None:
            self.registry.check()
        return spark.readStream.format("kafka").options(**self._reader_options()).load()

    def parsed(self, messages: DataFrame, beside: Mapping[str, str] = MappingProxyType({})) -> DataFrame:
        """The rows of messages as Spark's source gives them; `beside`: more columns, and the SQL that makes them of the message."""
        frame = messages.selectExpr(f"struct(*) as {MESSAGE}")
        if self.topic.value in DESCRIBED:
            # Before anything else is beside the message, which all goes through Python.
            decoder = self._decoder()
            message = frame.schema[MESSAGE].dataType.simpleString()
            frame = frame.mapInArrow(
                decoder, f"{MESSAGE} {message}, {PARSED} {type_of_parsed(decoder.columns)}, {REASON} string"
            )
        reasons = self._reasons_of_key()
        if self.key_format == "json":
            frame = frame.selectExpr(
                "*", f"{self._from_json(self._key_in_json, self._key_columns)} as {_PARSED_KEY}"
            )
        if self.topic.value == "json":
            frame = frame.selectExpr("*", f"{self._from_json(_TEXT, self._columns)} as {PARSED}")
            reasons += [*self._reasons_of_deletion(), *self._reasons_of_json()]
        elif self.topic.value in DESCRIBED:
            reasons += [*self._reasons_of_deletion(), (f"{REASON} is not null", REASON)]
        elif self.topic.value == "string":
            reasons.append((f"not is_valid_utf8({_TEXT})", "'it is no text in UTF-8'"))
        return self._fitted(frame, reasons, beside)

    @property
    def reader_options(self) -> dict[str, str]:
        """How a value of JSON is read: the user's options, and defaults for the others."""
        given = {
            name: value
            for name, value in self.topic.options.items()
            if "." not in name and name.lower() not in _SOURCE_OPTIONS
        }
        own = {name.lower() for name in given}
        return {name: value for name, value in _STRICT.items() if name.lower() not in own} | given

    @property
    def column_of_broken_rows(self) -> str:
        """The column for messages that do not fit; empty without one."""
        return self._option(BROKEN)

    @property
    def key_format(self) -> str:
        """How the key is written, if the row class asks for it; else empty."""
        field = self.rows.field(KEY)
        if field is None:
            return ""
        return self.topic.key or {"binary": "bytes", "string": "string"}.get(field.type, "json")

    @property
    def since(self) -> str:
        """Where it begins, for a job that has read nothing; empty for the default."""
        since = self.topic.since
        if isinstance(since, datetime):
            return f"since={since.isoformat()}"
        return "" if since == "earliest" else f"since={since}"

    def begins_at_end(self, spark: SparkSession, position: str) -> bool:
        """Whether no message is at or behind these offsets, of a source that begins at a time."""
        return isinstance(self.topic.since, datetime) and not self._between(spark, position, "latest").take(1)

    def require(self) -> None:
        """UsageError for a connection that this process does not have."""
        java_settings(self.topic)
        if self.topic.value == "protobuf":
            required("google.protobuf", "kafka", str(self.topic))

    def reads(self, place: str) -> bool:
        """Whether a source of them would read what is written to a place."""
        return self.topic.holds(place)

    def kept(self) -> Mapping[tuple[str, int], tuple[int, int]]:
        if any(
            name.lower() == _ACCEPTS and value.lower() == "false"
            for name, value in self.topic.options.items()
        ):
            return {}
        found: dict[tuple[str, int], tuple[int, int]] = {}
        try:
            for name in self.topic.topics:
                spans = Cluster(replace(self.topic, topics=(name,)), _SHORTLY).kept()
                found.update({(name, number): span for number, span in spans.items()})
        except StateflowError:
            # No client, no brokers from here, or a topic that this user may not see.
            return {}
        return found

    @property
    def beside(self) -> frozenset[str]:
        """Names of fields that the message gives, and not the text of its value."""
        return frozenset(of_message(self.rows))

    @property
    def parts(self) -> Mapping[str, str]:
        return PARTS

    def recent(self, spark: SparkSession, position: str, count: int) -> list[str]:
        """Values before these offsets, a few of each partition, as they are written."""
        if self.topic.value != "json":
            return []
        return [value.decode(errors="replace") for value in self._values_before(spark, position, count)]

    def names(self, spark: SparkSession, position: str, count: int) -> frozenset[str]:
        """The fields that the writers' schemas have."""
        if self.topic.value not in DESCRIBED:
            return frozenset()
        try:
            values = self._values_before(spark, position, count) if self.registry is not None else []
            found = self._decoder().names(values)
        except StateflowError:
            # The registry is gone meanwhile: the next batch will tell.
            return frozenset()
        # A message whose schema lacks a field that always has a value is a bad one, and has been told.
        return found | {name for names in self._wanted for name in names} if found else found

    def unnamed(
        self, spark: SparkSession, position: str, count: int, absent: Collection[str]
    ) -> Mapping[str, str]:
        """Numbers of Protobuf that the schema does not know: a field may have another one by now, and by a file nobody says that its writer had
        this schema."""
        if self.topic.value != "protobuf" or self.registry is not None:
            return {}
        decoder = protobuf_rows(self.topic, self._columns, self._wanted)
        found = decoder.strangers(self._values_before(spark, position, count), absent)
        return {
            name: f"a field {number} that {decoder.message} does not know" for name, number in found.items()
        }

    def _values_before(self, spark: SparkSession, position: str, count: int) -> list[bytes]:
        """A few of each partition."""
        starts = {
            topic: {partition: max(0, end - count) for partition, end in partitions.items()}
            for topic, partitions in json.loads(position).items()
        }
        messages = self._between(spark, json.dumps(starts), position)
        return [bytes(row[0]) for row in messages.select("value").limit(count).collect() if row[0]]

    def _between(self, spark: SparkSession, start: str, end: str) -> DataFrame:
        """Messages between two positions, as Spark's source gives them."""
        options = {
            **self._reader_options(),
            "failOnDataLoss": "false",
            "startingOffsets": start,
            "endingOffsets": end,
        }
        options.pop("startingTimestamp", None)
        return spark.read.format("kafka").options(**options).load()

    def _reader_options(self) -> dict[str, str]:
        topic = self.topic
        options = {
            name: value
            for name, value in topic.options.items()
            if name.lower() in _SOURCE_OPTIONS or ("." in name and not name.lower().startswith("kafka."))
        }
        options |= {f"kafka.{name}": value for name, value in java_settings(topic).items()}
        options["subscribe"] = ",".join(topic.topics)
        # Else the job would read what a writer has taken back, and what a killed one has left: Kafka's clients in Java do by default.
        options.setdefault("kafka.isolation.level", "read_committed")
        if self.rows.field(HEADERS) is not None:
            options["includeHeaders"] = "true"
        if topic.per_batch is not None:
            options["maxOffsetsPerTrigger"] = str(topic.per_batch)
        if isinstance(topic.since, datetime):
            options["startingTimestamp"] = str(int(topic.since.timestamp() * 1000))
            # Where no message is so new, it begins with the next one.
            options["startingOffsetsByTimestampStrategy"] = "latest"
        else:
            options["startingOffsets"] = topic.since
        return options

    @property
    def _values(self) -> RowType:
        """The fields that stand in the value."""
        broken = self.column_of_broken_rows
        fields = (f for f in self.rows.fields if not f.name.startswith(PREFIX) and f.name != broken)
        return RowType(self.rows.name, tuple(fields), self.rows.make, self.rows.typed)

    @property
    def _columns(self) -> dict[str, str]:
        return columns_to_read(self._values)

    @property
    def _key_columns(self) -> dict[str, str]:
        field = self.rows.field(KEY)
        return {} if field is None else {"k": field.type}

    @property
    def _key_in_json(self) -> str:
        # Spark reads objects alone, and a key may be a number.
        return f"concat('{{\"k\":', {_KEY_TEXT}, '}}')"

    @property
    def _reading(self) -> Reading:
        if self.topic.value in DESCRIBED:
            return Reading(False)
        texts = not self._option("locale")
        return Reading(texts, dates=texts and not self._option("dateFormat"))

    def _from_json(self, text: str, columns: Mapping[str, str]) -> str:
        read = [f"{quoted(name)} {self._reading.type(type)}" for name, type in columns.items()]
        schema = ", ".join([*read, f"{_LEFT} string"])
        options = {
            **{
                name: value
                for name, value in self.reader_options.items()
                if name.lower() not in (BROKEN.lower(), "mode")
            },
            "mode": "PERMISSIVE",
            BROKEN: _LEFT,
        }
        pairs = ", ".join(text_in_sql(word) for pair in options.items() for word in pair)
        return f"from_json({text}, {text_in_sql(schema)}, map({pairs}))"

    def _reasons_of_key(self) -> list[tuple[str, str]]:
        """Conditions for keys that do not fit, each with SQL for the sentence that says why."""
        utf8 = (f"not is_valid_utf8({_KEY_TEXT})", "'its key is no text in UTF-8'")
        if self.key_format == "string":
            return [utf8]
        if self.key_format == "json":
            # Within its object a key such as `1,"k":2` would be two fields, and `1}` its end. In a list they are two elements, or no JSON.
            alone = f"coalesce(json_array_length(concat('[', {_KEY_TEXT}, ']')), 0) = 1"
            wrong = f"{MESSAGE}.key is not null and ({_PARSED_KEY}.{_LEFT} is not null or not {alone})"
            return [
                utf8,
                (wrong, f"concat('its key ', left({_KEY_TEXT}, 100), ' is no JSON of the declared type')"),
            ]
        return []

    def _reasons_of_deletion(self) -> list[tuple[str, str]]:
        if self.rows.field(DELETED) is not None:
            return []
        said = text_in_sql(
            f"it has no value, as a message that deletes a key: a field {DELETED}: bool lets such messages in"
        )
        return [(f"{MESSAGE}.value is null", said)]

    def _reasons_of_json(self) -> list[tuple[str, str]]:
        """The same of values. Spark itself would make nulls of them, or read a part."""
        return [
            (f"not is_valid_utf8({_TEXT})", "'it is no text in UTF-8'"),
            (
                f"not startswith(ltrim(' \\n\\r\\t', {_TEXT}), '{{')",
                f"concat('it is no object of JSON: ', left({_TEXT}, 100))",
            ),
            (
                f"{PARSED}.{_LEFT} is not null",
                f"concat('it is no JSON, or a value in it is not of the declared type: ', left({_TEXT}, 100))",
            ),
        ]

    def _fitted(
        self, frame: DataFrame, reasons: list[tuple[str, str]], beside: Mapping[str, str]
    ) -> DataFrame:
        broken, mode = self.column_of_broken_rows, self.reader_options["mode"].upper()
        of_key = self._reasons_of_key()
        wrong, wrong_key = (
            " or ".join(f"coalesce({condition}, false)" for condition, _ in some)
            for some in (reasons, of_key)
        )
        said = (
            f"case {' '.join(f'when {condition} then {reason}' for condition, reason in reasons)} end"
            if reasons
            else "''"
        )
        columns = {**self._columns}
        if self.key_format == "json":
            columns[KEY] = self._key_columns["k"]
        misfits = Misfits(
            columns if not broken else {**columns, broken: "string"},
            self._reading, mode, broken, row=self._row, where=_WHERE, advice=_ADVICE,
        )  # fmt: skip
        # The check is part of every column: Spark does not evaluate what nobody asks for.
        otherwise = "null" if broken or mode != "FAILFAST" else misfits.failure(said)

        def checked(sql: str, type: str) -> str:
            if not wrong or (mode == "PERMISSIVE" and not broken):
                return sql
            return f"if({wrong}, cast({otherwise} as {type}), {sql})"

        def checked_key(sql: str, type: str) -> str:
            # A message whose value alone does not fit keeps its key.
            if not broken:
                return checked(sql, type)
            return f"if({wrong_key}, cast(null as {type}), {sql})" if wrong_key else sql

        if wrong and mode == "DROPMALFORMED" and not broken:
            frame = frame.where(f"not ({wrong})")
        read = self._reading
        fields = []
        for name, type in self._columns.items():
            text = self.topic.value == "json" or self.topic.value in DESCRIBED
            sql = f"{PARSED}.{quoted(name)}" if text else f"cast({MESSAGE}.value as {type})"
            fields.append(f"{checked(sql, read.type(type) if text else type)} as {quoted(name)}")
        fields += [self._of_message(field, checked_key) for field in of_message(self.rows).values()]
        if broken:
            # The value says nothing of a key that does not fit.
            keyed = "".join(
                f"when {condition} then concat({said}, ': ', {self._row}) " for condition, said in of_key
            )
            kept = f"case {keyed}else {self._row} end" if keyed else self._row
            fields.append(f"if({wrong or 'false'}, {kept}, cast(null as string)) as {quoted(broken)}")
        frame = frame.selectExpr(MESSAGE, *fields)
        if mode == "DROPMALFORMED" and not broken and misfits.condition:
            frame = frame.where(f"not coalesce({misfits.condition}, false)")
        others = [quoted(name) for name in of_message(self.rows) if name not in columns]
        more = [f"{sql} as {name}" for name, sql in beside.items()]
        frame = frame.selectExpr(*misfits.selected, *others, *more)
        return frame.selectExpr(*as_of_today(self.rows), *beside)

    @property
    def _row(self) -> str:
        """SQL for a message that does not fit, as text."""
        text = f"base64({MESSAGE}.value)" if self.topic.value in DESCRIBED else _TEXT
        return f"coalesce({text}, '')"

    @property
    def registry(self) -> SchemaRegistry | None:
        """Where the writers' schemas are; None if a file has the schema, or the value has none."""
        return registry_of(self.topic)

    def _decoder(self) -> AvroRows | ProtobufRows:
        if self.topic.value == "protobuf":
            return protobuf_rows(self.topic, self._columns, self._wanted)
        return AvroRows(self._columns, self._wanted, self.registry, schema_text(self.topic))

    @property
    def _wanted(self) -> tuple[tuple[str, ...], ...]:
        """Of each field that always has a value the names of today and before."""
        values = self._values
        former = {field.name: names for field, names in former_names(values)}
        return tuple(
            (field.name, *former.get(field.name, ()))
            for field in values.fields
            if field.default is None and (not field.nullable or not values.typed)
        )

    def _of_message(self, field: Field, checked: Any) -> str:
        if field.name != KEY:
            return f"{sql_of(field)} as {quoted(field.name)}"
        if self.key_format == "json":
            type = self._reading.type(field.type)
            return f"{checked(f'{_PARSED_KEY}.k', type)} as {KEY}"
        return f"{checked(f'cast({MESSAGE}.key as {field.type})', field.type)} as {KEY}"

    def _option(self, name: str) -> str:
        return next((value for each, value in self.topic.options.items() if each.lower() == name.lower()), "")

    def __str__(self) -> str:
        return str(self.topic)


def messages_of(uid: str, topic: KafkaTopic, rows: RowType | None) -> KafkaMessages:
    """What a source reads. UsageError for a row class that no message has."""
    where = f"source {uid!r}"
    if topic.key == "avro":
        raise UsageError(
            f"{where}: a key of Avro cannot be read: say key='bytes', and take it apart in a transform"
        )
    if topic.value == "protobuf" and not topic.registry:
        descriptors_of(topic)
    elif topic.value != "protobuf":
        schema_text(topic)
    _check_said(where, topic)
    reader = f"kafka {topic.value}" if f"kafka {topic.value}" in READERS else "kafka"
    check_reader_options(f"{where}, {topic}", reader, topic.options)
    _check_limits(where, topic)
    type = TEXTS.get(topic.value)
    if rows is None:
        if type is None:
            raise UsageError(
                f"{where}: the fields of {topic} are those of a row class: give it one, as in flow.source({uid!r}, sf.kafka(...), Order)"
            )
        rows = row_type(f"value {type}")
    check_columns(where, rows)
    made = KafkaMessages(topic, rows)
    _check_key(where, made)
    own = [field for field in rows.fields if not field.name.startswith(PREFIX)]
    if type is not None and (len(own) > 1 or any(field.type != type for field in own)):
        word = {"string": "str", "binary": "bytes"}[type]
        raise UsageError(
            f"{where}: a value of {topic.value!r} is one field of {word}, and {rows.name} has "
            f"{', '.join(f'{f.name} ({f.type})' for f in own)}: declare one, such as value: {word}, beside those that begin with {PREFIX!r}"
        )
    broken = made.column_of_broken_rows
    if broken and (broken, "string") not in {(field.name, field.type) for field in rows.fields}:
        raise UsageError(
            f"{where}: {BROKEN} is {broken!r}, and {rows.name} has no such column of text, so that messages which do not fit would be "
            f"nulls without a word: add a field {broken}: str | None = None"
        )
    return made


def schema_text(topic: KafkaTopic) -> str:
    """The schema in the file; empty without one. UsageError where it cannot be read."""
    if not topic.schema:
        return ""
    try:
        text = Path(topic.schema).read_text(encoding="utf-8")
        AvroSchema(text)
    except (OSError, UnicodeDecodeError, AvroMisfit, KeyError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"{topic}: the Avro schema {topic.schema} cannot be read ({reason}): give the path of a file of Avro's schema in JSON (.avsc)"
        ) from None
    return text


def _check_said(where: str, topic: KafkaTopic) -> None:
    """UsageError for options of Spark's reader that `sf.kafka` has arguments for."""
    for name in topic.options:
        if (instead := _ARGUMENTS.get(name.lower())) is not None:
            raise UsageError(f"{where}, {topic}: instead of option {name!r} say {instead}")


def _check_limits(where: str, topic: KafkaTopic) -> None:
    given = {name.lower() for name in topic.options}
    if topic.per_batch is not None and "maxoffsetspertrigger" in given:
        raise UsageError(f"{where}: per_batch and maxOffsetsPerTrigger are the same: leave one of them out")
    if "minoffsetspertrigger" in given:
        # Spark then leaves messages unread that are there, at the end of a run as well. They would count as silence.
        raise UsageError(
            f"{where}: minOffsetsPerTrigger keeps messages back, which would be late by the time that they are read: leave it out, and let "
            "trigger='1 minute' make fewer and larger batches"
        )


def _check_key(where: str, messages: KafkaMessages) -> None:
    field, topic = messages.rows.field(KEY), messages.topic
    if field is None and topic.key is not None:
        raise UsageError(
            f"{where}: key={topic.key!r} would do nothing, as {messages.rows.name} has no field {KEY}: add one, or leave it out"
        )
    expected = TEXTS.get(messages.key_format)
    if field is not None and expected is not None and field.type != expected:
        raise UsageError(
            f"{where}: {KEY} of {messages.rows.name} is a {field.type}, and a key of {topic.key!r} is "
            f"{'str' if expected == 'string' else 'bytes'}: declare it so, or say key='json'"
        )
