"""Rows as values of Avro: the schema of their columns, which a registry keeps, and an encoder for it."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from stateflow.connectors import IncompatibleError, UsageError, fields_of, inside_of, parts_of_schema
from stateflow.connectors.kafka.avro import EXACT
from stateflow.connectors.kafka.columns import MADE
from stateflow.connectors.kafka.registry import registry_of, subject_of

if TYPE_CHECKING:
    import pyarrow as pa

    from stateflow.connectors.kafka.topic import KafkaTopic

Encode = Callable[[Any, bytearray], None]
"""Appends a value."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class AvroValues:
    """What tasks do with rows: it goes to them by value."""

    topic: str
    columns: tuple[tuple[str, str], ...]
    """Names and Spark's types."""
    id: int
    """Of the schema in the registry."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches with the column `MADE`."""
        import pyarrow as pa

        head = b"\0" + self.id.to_bytes(4, "big")
        encoders = [_optional(kind, name, name)[1] for name, kind in self.columns]
        for batch in batches:
            values = []
            for row in zip(*(batch.column(name).to_pylist() for name, _ in self.columns), strict=True):
                out = bytearray(head)
                for encode, value in zip(encoders, row, strict=True):
                    encode(value, out)
                values.append(bytes(out))
            yield pa.RecordBatch.from_arrays(
                [*batch.columns, pa.array(values, pa.binary())], [*batch.schema.names, MADE]
            )


def registered(topic: KafkaTopic, columns: Sequence[tuple[str, str]]) -> AvroValues:
    """Registers the schema of the columns, or finds that it is. IncompatibleError for a column that Avro does not hold."""
    registry = registry_of(topic)
    if registry is None:
        raise UsageError(f"{topic}: its values are Avro, and nothing says where the registry is")
    text = json.dumps(schema_of(topic.topic, columns))
    id = registry.register(subject_of(topic.topic), text, "AVRO")
    return AvroValues(topic.topic, tuple(columns), id)


def schema_of(topic: str, columns: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """A record of fields that may be null, so that columns can come and go."""
    return _record(re.sub(r"\W", "_", topic, flags=re.ASCII), columns)[0]


def _record(name: str, columns: Sequence[tuple[str, str]], column: str = "") -> tuple[dict[str, Any], Encode]:
    name = name if _NAME.fullmatch(name) else f"_{name}"
    fields, encoders = [], []
    for field, kind in columns:
        if _NAME.fullmatch(field) is None:
            raise IncompatibleError(
                f"column {field!r} has a name that Avro does not take, which has letters of ASCII, digits and _: rename it in a transform()"
            )
        schema, encode = _optional(kind, f"{name}_{field}", column or field)
        fields.append({"name": field, "type": schema, "default": None})
        encoders.append((field, encode))

    def encoded(value: Any, out: bytearray) -> None:
        for field, encode in encoders:
            encode(value[field], out)

    return {"type": "record", "name": name, "fields": fields}, encoded


def _optional(kind: str, name: str, column: str) -> tuple[list[Any], Encode]:
    schema, encode = _typed(kind.strip(), name, column)

    def encoded(value: Any, out: bytearray) -> None:
        if value is None:
            out.append(0)
        else:
            out.append(2)
            encode(value, out)

    return ["null", schema], encoded


def _typed(kind: str, name: str, column: str) -> tuple[Any, Encode]:
    outer, inside = inside_of(kind)
    if outer == "struct":
        return _record(name, fields_of(inside), column)
    if outer == "array":
        schema, item = _optional(inside, name, column)
        return {"type": "array", "items": schema}, _blocks(item)
    if outer == "map":
        key, value = parts_of_schema(inside)
        if key.strip() == "string":
            schema, encode = _optional(value, name, column)

            def pair(each: tuple[str, Any], out: bytearray) -> None:
                _text(each[0], out)
                encode(each[1], out)

            return {"type": "map", "values": schema}, _blocks(pair)
    if kind.startswith("decimal("):
        precision, scale = (int(part) for part in kind[len("decimal(") : -1].split(","))

        def decimal(value: Decimal, out: bytearray) -> None:
            unscaled = int(value.scaleb(scale, EXACT))
            _bytes(unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True), out)

        return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}, decimal
    if kind not in _PLAIN:
        raise IncompatibleError(
            f"column {column!r} is {kind}, which Avro does not hold: make text or a number of it in a transform() before the sink"
        )
    return _PLAIN[kind]


def _blocks(item: Callable[[Any, bytearray], None]) -> Encode:
    def encoded(values: Any, out: bytearray) -> None:
        if values:
            _long(len(values), out)
            for each in values:
                item(each, out)
        out.append(0)

    return encoded


def _long(value: int, out: bytearray) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _bytes(value: bytes, out: bytearray) -> None:
    _long(len(value), out)
    out += value


def _text(value: str, out: bytearray) -> None:
    _bytes(value.encode(), out)


def _number(format: str) -> Encode:
    pack = struct.Struct(format).pack

    def encoded(value: float, out: bytearray) -> None:
        out += pack(value)

    return encoded


def _time(value: datetime, out: bytearray) -> None:
    if value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    _long((value - _EPOCH) // _MICROSECOND, out)


def _day(value: date, out: bytearray) -> None:
    _long(value.toordinal() - _EPOCH.toordinal(), out)


_PLAIN: dict[str, tuple[Any, Encode]] = {
    "boolean": ("boolean", lambda value, out: out.append(value)),
    "tinyint": ("int", _long),
    "smallint": ("int", _long),
    "int": ("int", _long),
    "bigint": ("long", _long),
    "float": ("float", _number("<f")),
    "double": ("double", _number("<d")),
    "string": ("string", _text),
    "binary": ("bytes", _bytes),
    "date": ({"type": "int", "logicalType": "date"}, _day),
    "timestamp": ({"type": "long", "logicalType": "timestamp-micros"}, _time),
    "timestamp_ntz": ({"type": "long", "logicalType": "local-timestamp-micros"}, _time),
}
