"""Rows as values of Protobuf: of a message that a registry keeps."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from stateflow.connectors import (
    IncompatibleError,
    StateflowError,
    UsageError,
    fields_of,
    inside_of,
    parts_of_schema,
    task_error,
)
from stateflow.connectors.kafka.columns import MADE
from stateflow.connectors.kafka.protobuf import ProtobufFile, file_of
from stateflow.connectors.kafka.protobuf_schema import file_for, name_of
from stateflow.connectors.kafka.registry import SchemaRegistry, registry_of, subject_of

if TYPE_CHECKING:
    import pyarrow as pa

    from stateflow.connectors.kafka.topic import KafkaTopic

Convert = Callable[[Any], Any]
"""From a value of Arrow, as Python has it, to what the class of a message takes."""

_EPOCH = datetime(1970, 1, 1)
_MICROSECOND, _SECOND = timedelta(microseconds=1), timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class ProtobufValues:
    """What tasks do with rows: it goes to them by value."""

    topic: str
    columns: tuple[tuple[str, str], ...]
    """Names and Spark's types."""
    id: int
    """Of the schema in the registry."""
    file: bytes
    """Its descriptor."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches with the column `MADE`."""
        import pyarrow as pa

        try:
            encoded = self._encoder()
            for batch in batches:
                made = pa.array(encoded(batch), pa.binary())
                yield pa.RecordBatch.from_arrays([*batch.columns, made], [*batch.schema.names, MADE])
        except StateflowError as error:
            raise task_error(error) from error

    def _encoder(self) -> Callable[[pa.RecordBatch], list[bytes]]:
        # The first message of the file is a single zero.
        head = b"\0" + self.id.to_bytes(4, "big") + b"\0"
        file = ProtobufFile(self.file)
        message = file.made(file.message(file.messages[0]))
        converts = [_conversion(kind, name) for name, kind in self.columns]
        names = [name for name, _ in self.columns]

        def encoded(batch: pa.RecordBatch) -> list[bytes]:
            columns = [
                values if convert is None else [None if each is None else convert(each) for each in values]
                for values, convert in zip(
                    (batch.column(n).to_pylist() for n in names), converts, strict=True
                )
            ]
            return [
                head + message(**dict(zip(names, row, strict=True))).SerializeToString()
                for row in zip(*columns, strict=True)
            ]

        return encoded


def registered(topic: KafkaTopic, columns: Sequence[tuple[str, str]]) -> ProtobufValues:
    """Registers the message of the columns, or finds that it is. IncompatibleError for a column that Protobuf does not hold."""
    registry = registry_of(topic)
    if registry is None:
        raise UsageError(f"{topic}: its values are Protobuf, and nothing says where the registry is")
    return _registered(registry, topic.topic, tuple(columns))


@cache
def _registered(registry: SchemaRegistry, topic: str, columns: tuple[tuple[str, str], ...]) -> ProtobufValues:
    subject = subject_of(topic)
    newest = registry.newest(subject, "PROTOBUF")
    known = None if newest is None else file_of(newest).descriptor
    file = file_for(name_of(topic), columns, known).SerializeToString(deterministic=True)
    id = registry.register(subject, base64.b64encode(file).decode(), "PROTOBUF")
    return ProtobufValues(topic, columns, id, file)


def _conversion(kind: str, column: str) -> Convert | None:
    """None for values that are taken as they are."""
    outer, inside = inside_of(kind)
    if kind == "timestamp":
        return _instant
    if outer == "struct":
        fields = {name: _conversion(of, column) for name, of in fields_of(inside)}

        def struct(value: Any) -> Any:
            return {
                name: value[name] if convert is None else convert(value[name])
                for name, convert in fields.items()
                if value[name] is not None
            }

        return struct
    if outer == "array":
        item = _conversion(inside, column)

        def array(value: Any) -> Any:
            if None in value:
                raise _null_inside(column, f"filter({column}, each -> each is not null)")
            return value if item is None else [item(each) for each in value]

        return array
    if outer == "map":
        of = _conversion(parts_of_schema(inside)[1].strip(), column)

        def pairs(value: Any) -> Any:
            if any(each is None for _, each in value):
                raise _null_inside(column, f"map_filter({column}, (key, each) -> each is not null)")
            return dict(value) if of is None else {key: of(each) for key, each in value}

        return pairs
    return None


def _instant(value: datetime) -> Any:
    if value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    seconds, rest = divmod(value - _EPOCH, _SECOND)
    return {"seconds": seconds, "nanos": rest // _MICROSECOND * 1000}


def _null_inside(column: str, instead: str) -> IncompatibleError:
    return IncompatibleError(
        f"column {column!r} has a null in a list or map, which Protobuf does not hold: let transform() make {instead} of it, before the sink"
    )
