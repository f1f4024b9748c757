"""Values of Protobuf as columns, in Arrow batches: each message by the schema of its writer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from stateflow.connectors import NotFoundError, StateflowError, UsageError, arrow_type, task_error
from stateflow.connectors.kafka.columns import MESSAGE, with_parsed, zigzag
from stateflow.connectors.kafka.protobuf import (
    ProtobufMisfit,
    file_of,
    file_of_set,
    misfit_of,
    names_in,
    runtime,
)
from stateflow.connectors.kafka.protobuf_columns import Column, columns_of
from stateflow.connectors.kafka.registry import OtherSchemaType, SchemaRegistry

if TYPE_CHECKING:
    import pyarrow as pa

_MAGIC = 5
"""Bytes before a value that say its schema: a zero, and the id. What message of the file it is follows."""


@dataclass(frozen=True, slots=True)
class ProtobufRows:
    """What tasks do with messages: it goes to them by value."""

    columns: Mapping[str, str]
    """Spark's types of the fields."""
    message: str
    """The full name of the only message that is read."""
    wanted: tuple[tuple[str, ...], ...] = ()
    """Of each field that always has a value the names of today and before: a writer's schema has one of them."""
    registry: SchemaRegistry | None = None
    files: bytes = field(default=b"", repr=False)
    """A set of descriptors, where there is no registry."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches with two more columns: the fields of the value, and why there are none."""
        for batch in batches:
            values = batch.column(MESSAGE).field("value").to_pylist()
            try:
                parsed, reasons = self._columns(values)
            except StateflowError as error:
                raise task_error(error) from error
            yield with_parsed(batch, parsed, reasons)

    def names(self, values: Iterable[bytes]) -> frozenset[str]:
        """The paths of the fields in the schemas of values; one that nobody can read has none."""
        if self.registry is None:
            return names_in(file_of_set(self.files).message(self.message))
        found: set[str] = set()
        for head in set(map(_head, values)):
            try:
                id, path = _written_by(head)
                file = file_of(self.registry.schema(id, "PROTOBUF"))
                found |= names_in(file.message(file.at(path)))
            except (ProtobufMisfit, NotFoundError, UsageError):
                continue
        return frozenset(found)

    def strangers(self, values: Iterable[bytes], absent: Iterable[str]) -> dict[str, int]:
        """By field, of those that are absent, a number in a message without it that the file does not know."""
        file, unknown = file_of_set(self.files), runtime("unknown_fields").UnknownFieldSet
        descriptor = file.message(self.message)
        names = [name for name in absent if name in descriptor.fields_by_name]
        found: dict[str, int] = {}
        for value in values:
            try:
                message = file.made(descriptor).FromString(value)
            except runtime("message").DecodeError:
                continue
            numbers = {each.field_number for each in unknown(message)}
            set_ = {field.name for field, _ in message.ListFields()}
            if numbers and set_:
                found |= {name: min(numbers) for name in names if name not in set_ and name not in found}
        return found

    def _columns(self, values: Sequence[bytes | None]) -> tuple[pa.Array, list[str | None]]:
        import pyarrow as pa

        groups: dict[bytes, list[int]] = {}
        for n, value in enumerate(values):
            if value is not None:
                groups.setdefault(b"" if self.registry is None else _head(value), []).append(n)
        parts: list[pa.Array] = [self._empty]
        rows: list[int | None] = [None] * len(values)
        reasons: list[str | None] = [None] * len(values)
        count = 0
        for head, places in groups.items():
            reader = self._reader(head)
            if isinstance(reader, str):
                for n in places:
                    reasons[n] = reader
                continue
            size = len(head)
            found = reader([(values[n] or b"")[size:] for n in places])
            for k, reason in found.reasons.items():
                reasons[places[k]] = reason
            for array, of in found.parts:
                parts.append(array)
                for k in of:
                    rows[places[k]], count = count, count + 1
        return pa.concat_arrays(parts).take(pa.array(rows, pa.int64())), reasons

    @property
    def _empty(self) -> pa.Array:
        import pyarrow as pa

        return pa.array([], pa.struct([(name, arrow_type(type)) for name, type in self.columns.items()]))

    def _reader(self, head: bytes) -> _Reader | str:
        columns = tuple(self.columns.items())
        try:
            return _reader(self.registry, self.files, self.message, head, columns, self.wanted)
        except (NotFoundError, OtherSchemaType) as error:
            # Its bytes say a schema that nobody has registered, or one of Avro: a message that came to this topic by mistake.
            return str(error)


@dataclass(slots=True)
class _Read:
    parts: list[tuple[pa.Array, list[int]]] = field(default_factory=list)
    """Rows, and of each which value it is."""
    reasons: dict[int, str] = field(default_factory=dict)
    """Of a value that cannot be read, why."""


_Reader = Callable[[Sequence[bytes]], _Read]


@cache
def _reader(
    registry: SchemaRegistry | None,
    files: bytes,
    message: str,
    head: bytes,
    columns: tuple[tuple[str, str], ...],
    wanted: tuple[tuple[str, ...], ...],
) -> _Reader | str:
    """What reads values that begin with `head`; why they do not fit, if they do not."""
    try:
        if registry is None:
            file, name, where = file_of_set(files), message, ""
        else:
            id, path = _written_by(head)
            file, where = file_of(registry.schema(id, "PROTOBUF")), f" (schema {id})"
            name = file.at(path)
        if name != message:
            return f"it is a {name}, and the source reads {message}: give each message a topic of its own, or say message={name!r}{where}"
        descriptor = file.message(name)
    except ProtobufMisfit as error:
        return str(error)
    if misfit := misfit_of(descriptor, dict(columns), wanted):
        return f"{misfit}{where}"
    strict = [name for names in wanted for name in names] if registry is None else None
    return _reading(file.made(descriptor).FromString, columns_of(descriptor, dict(columns), strict), registry)


def _reading(parse: Callable[[bytes], Any], columns: Column, registry: SchemaRegistry | None) -> _Reader:
    broken = runtime("message").DecodeError

    def read(values: Sequence[bytes]) -> _Read:
        found, messages, of = _Read(), [], []
        for k, value in enumerate(values):
            try:
                messages.append(parse(value))
                of.append(k)
            except broken:
                found.reasons[k] = "its bytes are not of this schema"
                if registry is None and value[:1] == b"\0":
                    found.reasons[k] += (
                        ": they may begin with the id of a schema, whose registry registry= has to name"
                    )
        if messages:
            _halved(columns, messages, of, found)
        return found

    return read


def _halved(columns: Column, messages: list[Any], of: list[int], found: _Read) -> None:
    """Reads all at once; where one does not fit, the halves, until it is alone."""
    try:
        found.parts.append((columns(messages), of))
    except (ProtobufMisfit, UnicodeDecodeError) as error:
        if len(messages) == 1:
            found.reasons[of[0]] = (
                str(error) if isinstance(error, ProtobufMisfit) else "it has text that is not in UTF-8"
            )
            return
        middle = len(messages) // 2
        _halved(columns, messages[:middle], of[:middle], found)
        _halved(columns, messages[middle:], of[middle:], found)


def _head(value: bytes) -> bytes:
    """The bytes that say whose schema and which message it is; empty if it begins with none."""
    if value[:1] != b"\0":
        return b""
    # The first message of a file is a single zero.
    if value[_MAGIC : _MAGIC + 1] == b"\0":
        return value[: _MAGIC + 1]
    try:
        return value[: _path(value)[1]]
    except IndexError:
        return b""


def _written_by(head: bytes) -> tuple[int, list[int]]:
    """The id of the schema, and where in its file the message stands."""
    if not head:
        raise ProtobufMisfit(
            "it does not begin with the id of a schema and the place of a message, as a writer with a registry writes it"
        )
    return int.from_bytes(head[1:_MAGIC], "big"), _path(head)[0]


def _path(value: bytes) -> tuple[list[int], int]:
    """The indexes of a message, and the position behind them. IndexError if there are none."""
    count, at = zigzag(value, _MAGIC)
    if count == 0:
        return [0], at
    if not 0 < count <= len(value):
        raise IndexError(count)
    path = []
    for _ in range(count):
        index, at = zigzag(value, at)
        path.append(index)
    return path, at
