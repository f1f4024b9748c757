"""Descriptors of Protobuf: the messages of a file, and whether one fits the fields of a row class."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stateflow.connectors import UsageError, fields_of, inside_of, parts_of_schema, required

if TYPE_CHECKING:
    from stateflow.connectors.kafka.registry import RegisteredSchema

TIMESTAMP = "google.protobuf.Timestamp"
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)
_WELL_KNOWN = (
    "any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct", "timestamp", "type", "wrappers",
)  # fmt: skip
"""Files that Protobuf brings, which a file imports without anybody giving them."""
_LABELS = ("double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group", "message", "bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64")  # fmt: skip
_FITS: Mapping[str, tuple[str, ...]] = {
    "bool": ("boolean",),
    "double": ("double",),
    "float": ("float", "double"),
    **dict.fromkeys(("int32", "sint32", "sfixed32"), ("int", "bigint", "float", "double")),
    **dict.fromkeys(("int64", "sint64", "sfixed64"), ("bigint",)),
    **dict.fromkeys(("uint32", "fixed32"), ("bigint", "double")),
    # A number that a bigint does not hold is refused when it comes.
    **dict.fromkeys(("uint64", "fixed64"), ("bigint", "decimal(20,0)")),
    "string": ("string",),
    "bytes": ("binary",),
    "enum": ("string", "int", "bigint"),
}
"""Spark's types that take values of Protobuf's."""


_REGISTERED = "registered.proto"
"""The file of a schema that nobody imports."""


class ProtobufMisfit(ValueError):
    """A schema or a value that is not what is expected, in words."""


class ProtobufFile:
    """The messages of a file, as a writer has them."""

    def __init__(self, descriptor: bytes, imports: Iterable[bytes] = ()) -> None:
        """ProtobufMisfit for bytes that are no descriptor of a file, or whose imports are not all there."""
        self._factory = runtime("message_factory")
        self._pool = runtime("descriptor_pool").DescriptorPool()
        self.descriptor = parsed(descriptor)
        files = [runtime(f"{each}_pb2").DESCRIPTOR.serialized_pb for each in _WELL_KNOWN]
        given = [parsed(each) for each in imports]
        self._files = {each.name: each for each in (*map(parsed, files), *given, self.descriptor)}
        self._added: set[str] = set()
        for each in (self.descriptor, *given):
            self._add(each.name, ())

    @property
    def messages(self) -> list[str]:
        """Full names of the messages that stand at the top of the file."""
        prefix = f"{self.descriptor.package}." if self.descriptor.package else ""
        return [f"{prefix}{each.name}" for each in self.descriptor.message_type]

    def at(self, path: Sequence[int]) -> str:
        """The full name of the message at these indexes, each in the one before. ProtobufMisfit if there is none."""
        level, names = self.descriptor.message_type, []
        for index in path:
            if not 0 <= index < len(level):
                raise ProtobufMisfit(
                    f"it is of message number {'.'.join(map(str, path))}, which its schema does not have"
                )
            names.append(level[index].name)
            level = level[index].nested_type
        return ".".join([*filter(None, [self.descriptor.package]), *names])

    def message(self, name: str) -> Any:
        """The descriptor of a message of this full name. ProtobufMisfit if there is none."""
        try:
            return self._pool.FindMessageTypeByName(name)
        except KeyError:
            raise ProtobufMisfit(
                f"it has no message {name!r}; it has {', '.join(self.messages) or 'none'}"
            ) from None

    def made(self, descriptor: Any) -> Any:
        """The class of a message."""
        return self._factory.GetMessageClass(descriptor)

    def _add(self, name: str, road: tuple[str, ...]) -> None:
        """Adds a file behind those that it imports, as the pool wants it."""
        if name in road:
            raise ProtobufMisfit(
                f"its imports make a circle: {' -> '.join((*road[road.index(name) :], name))}"
            )
        if name in self._added:
            return
        if name not in self._files:
            raise ProtobufMisfit(f"{road[-1]} imports {name}, which nobody gives")
        for each in self._files[name].dependency:
            self._add(each, (*road, name))
        try:
            self._pool.AddSerializedFile(self._files[name].SerializeToString())
        except TypeError as error:
            raise ProtobufMisfit(f"{name} is no valid file of Protobuf ({error})") from error
        self._added.add(name)


def file_of(schema: RegisteredSchema) -> ProtobufFile:
    """The file that a registry has given. UsageError where it cannot be read."""
    try:
        return ProtobufFile(
            _named(schema.text, _REGISTERED), [_named(text, name) for name, text in schema.references]
        )
    except binascii.Error:
        raise UsageError(
            f"{schema.what} comes as text, and not as the descriptor that was asked for with format=serialized: take a registry that has it, or "
            "leave the registry out and give schema='orders.desc', as protoc --include_imports -o orders.desc makes it"
        ) from None
    except ProtobufMisfit as error:
        raise UsageError(
            f"{schema.what} cannot be read ({error}): register it anew, with what it imports as references"
        ) from None


def file_of_set(files: bytes) -> ProtobufFile:
    """The last file of a set, as protoc writes it behind all that it imports. ProtobufMisfit for other bytes."""
    try:
        found = runtime("descriptor_pb2").FileDescriptorSet.FromString(files).file
    except runtime("message").DecodeError:
        raise ProtobufMisfit("it is no set of descriptors") from None
    if not found:
        raise ProtobufMisfit("it has no file")
    *imports, last = (each.SerializeToString() for each in found)
    return ProtobufFile(last, imports)


def set_of(descriptor: Any) -> bytes:
    """The file of a message, behind all that it imports, as a set."""
    made, seen = runtime("descriptor_pb2").FileDescriptorSet(), set()

    def add(file: Any) -> None:
        if file.name not in seen:
            seen.add(file.name)
            for each in file.dependencies:
                add(each)
            made.file.add().ParseFromString(file.serialized_pb)

    add(descriptor.file)
    return bytes(made.SerializeToString())


def _named(text: str, name: str) -> bytes:
    """The descriptor under the name by which others import it, which a registry need not keep."""
    found = parsed(base64.b64decode(text, validate=True))
    found.name = name
    return bytes(found.SerializeToString())


def misfit_of(descriptor: Any, columns: Mapping[str, str], wanted: Iterable[Sequence[str]] = ()) -> str:
    """What of a message's fields does not fit the columns, in words; empty if all do. A field that is missing is null, unless it is `wanted`
    under one of its names."""
    there = descriptor.fields_by_name
    for names in wanted:
        if not set(names) & set(there):
            return f"its message {descriptor.full_name} has no {names[0]!r}; it has {', '.join(there) or 'no field'}"
    for name, spark in columns.items():
        if name in there and (misfit := _misfit(there[name], spark)):
            return (
                f"{name!r} is {misfit} in its message {descriptor.full_name}, and a {spark} in the row class"
            )
    return ""


def _misfit(field: Any, spark: str) -> str:
    outer, inside = inside_of(spark)
    if is_map(field):
        if outer != "map":
            return "a map"
        key, value = (part.strip() for part in parts_of_schema(inside))
        pair = field.message_type.fields_by_name
        return _misfit(pair["key"], key) or _misfit(pair["value"], value)
    if field.is_repeated:
        return _single(field, inside) if outer == "array" else "a list"
    return _single(field, spark)


def _single(field: Any, spark: str) -> str:
    """The same of one value."""
    message = field.message_type
    if message is None:
        kind = kind_of(field)
        return "" if spark in _FITS.get(kind, ()) else f"{'an' if kind[0] in 'aei' else 'a'} {kind}"
    if message.full_name == TIMESTAMP and spark == "timestamp":
        return ""
    if message.full_name in WRAPPERS:
        found = _single(message.fields_by_name["value"], spark)
        return f"a {message.name} ({found})" if found else ""
    outer, inside = inside_of(spark)
    if outer != "struct":
        return f"a message {message.full_name}"
    there = message.fields_by_name
    return next(
        (
            f"a message {message.full_name} whose {name!r} is {found}"
            for name, of in fields_of(inside)
            if name in there and (found := _misfit(there[name], of))
        ),
        "",
    )


def names_in(descriptor: Any) -> frozenset[str]:
    """The paths of all fields of a message, with dots between the names."""
    return frozenset(_names_in(descriptor, "", ()))


def _names_in(descriptor: Any, before: str, within: tuple[str, ...]) -> Iterator[str]:
    """`within`: the messages around it, as a message may hold itself."""
    if descriptor.full_name in within:
        return
    for field in descriptor.fields:
        yield before + field.name
        # The keys of a map are no names.
        message = (
            field.message_type.fields_by_name["value"].message_type if is_map(field) else field.message_type
        )
        if message is not None and message.full_name not in (TIMESTAMP, *WRAPPERS):
            yield from _names_in(message, f"{before}{field.name}.", (*within, descriptor.full_name))


def kind_of(field: Any) -> str:
    """The word for a field's type in a `.proto` file."""
    return _LABELS[field.type - 1]


def is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def parsed(data: bytes) -> Any:
    """The descriptor of a file. ProtobufMisfit for other bytes."""
    try:
        return runtime("descriptor_pb2").FileDescriptorProto.FromString(data)
    except runtime("message").DecodeError:
        raise ProtobufMisfit("it is no descriptor of a file") from None


def runtime(module: str) -> ModuleType:
    """A module of Protobuf's own package. UsageError with the command that installs it, where it is not there."""
    return required(f"google.protobuf.{module}", "kafka", "value='protobuf'")
