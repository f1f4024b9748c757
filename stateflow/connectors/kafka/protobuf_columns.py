"""Messages of Protobuf as columns of Arrow: a field of all messages at once, and no row as an object of Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from stateflow.connectors import arrow_type, fields_of, inside_of, parts_of_schema
from stateflow.connectors.kafka.protobuf import TIMESTAMP, WRAPPERS, ProtobufMisfit, is_map, runtime

if TYPE_CHECKING:
    import pyarrow as pa

Column = Callable[[Sequence[Any]], "pa.Array"]
"""From messages, or from values, one for each."""

_FIRST_SECOND, _LAST_SECOND = -62135596800, 253402300799
"""Of the years 1 and 9999, between which Protobuf's timestamps are."""


def columns_of(descriptor: Any, columns: Mapping[str, str], strict: Iterable[str] | None = None) -> Column:
    """The columns as a struct, of a message that `misfit_of` has nothing against; ProtobufMisfit for values that do not fit.

    A message that lacks a field, and has another that its schema does not know, may have that field under another number. Where nobody says
    that its writer had this schema, `strict` are fields for which such a message is a misfit; so is then one of unknown fields alone.
    """
    read = {name: _field(descriptor.fields_by_name.get(name), type) for name, type in columns.items()}
    strangers = _strangers(descriptor, strict)

    def made(messages: Sequence[Any]) -> pa.Array:
        import pyarrow as pa

        strangers(messages)
        fields = [pa.field(name, arrow_type(type)) for name, type in columns.items()]
        if not fields:
            return pa.array([{}] * len(messages), pa.struct([]))
        return pa.StructArray.from_arrays([column(messages) for column in read.values()], fields=fields)

    return made


def _strangers(descriptor: Any, asked: Iterable[str] | None) -> Callable[[Sequence[Any]], None]:
    """Refuses messages with fields of other types than their schema says, which would be read as fields that are not there."""
    unknown = runtime("unknown_fields").UnknownFieldSet
    known = {field.number: field for field in descriptor.fields}
    wanted = [name for name in asked or () if name in descriptor.fields_by_name]

    def checked(messages: Sequence[Any]) -> None:
        for message in messages:
            found = unknown(message)
            if not len(found):
                continue
            numbers = {each.field_number for each in found}
            if other := sorted(numbers & set(known)):
                raise ProtobufMisfit(_stranger(known[other[0]], found))
            set_ = {field.name for field, _ in message.ListFields()}
            if asked is not None and not set_:
                raise ProtobufMisfit(
                    f"it has none of the fields of {descriptor.full_name}, and others: it is another message"
                )
            if absent := [name for name in wanted if name not in set_]:
                raise ProtobufMisfit(
                    f"it has no {absent[0]!r}, and has a field {min(numbers)} that {descriptor.full_name} does not know: give schema= as its writer has it"
                )

    return checked


def _stranger(field: Any, found: Any) -> str:
    """Why a field's values are among those that its schema does not know."""
    if field.enum_type is not None and field.enum_type.is_closed:
        # An enum of proto2 keeps numbers without a name there, each as a whole number.
        numbers = {each.data for each in found if each.field_number == field.number and each.wire_type == 0}
        if numbers:
            return (
                f"{field.name!r} is {min(numbers)}, of which {field.enum_type.full_name} has no name in its schema: give schema= as its "
                "writer has it"
            )
    return f"its field {field.number} ({field.name!r} of {field.containing_type.full_name}) has another type than its schema says"


def _field(field: Any, type: str) -> Column:
    """A field of messages."""
    if field is None:
        return lambda messages: _plain("", [None] * len(messages), type)
    get = attrgetter(field.name)
    if is_map(field):
        return _map(field, type, get)
    if field.is_repeated:
        items = _values(field, inside_of(type)[1])

        def listed(messages: Sequence[Any]) -> pa.Array:
            import pyarrow as pa

            lists = list(map(get, messages))
            return pa.ListArray.from_arrays(
                _offsets(lists), items(list(chain.from_iterable(lists))), type=arrow_type(type)
            )

        return listed
    values = _values(field, type)
    if field.message_type is None and (not field.has_presence or field.has_default_value):
        return lambda messages: values(list(map(get, messages)))
    name = field.name
    return lambda messages: values([get(each) if each.HasField(name) else None for each in messages])


def _map(field: Any, type: str, get: Callable[[Any], Any]) -> Column:
    key_type, value_type = (part.strip() for part in parts_of_schema(inside_of(type)[1]))
    pair = field.message_type.fields_by_name
    keys, values = _values(pair["key"], key_type), _values(pair["value"], value_type)

    def made(messages: Sequence[Any]) -> pa.Array:
        import pyarrow as pa

        maps = list(map(get, messages))
        pairs = list(chain.from_iterable(each.items() for each in maps))
        return pa.MapArray.from_arrays(
            _offsets(maps), keys([k for k, _ in pairs]), values([v for _, v in pairs]), type=arrow_type(type)
        )

    return made


def _values(field: Any, type: str) -> Column:
    """Values of a field's type, one by one; None for one that is not there."""
    message = field.message_type
    if message is not None and message.full_name == TIMESTAMP and type == "timestamp":
        return _instants
    if message is not None and message.full_name in WRAPPERS:
        inside = _values(message.fields_by_name["value"], type)
        return lambda values: inside([None if each is None else each.value for each in values])
    if message is not None:
        return _structs(message, type)
    if field.enum_type is not None and type == "string":
        return _names(field)
    return lambda values: _plain(field.name, values, type)


def _plain(name: str, values: Sequence[Any], type: str) -> pa.Array:
    import pyarrow as pa

    try:
        return pa.array(values, arrow_type(type))
    except (OverflowError, pa.ArrowInvalid) as error:
        if type == "string":
            raise ProtobufMisfit("it has text that is not in UTF-8") from error
        raise ProtobufMisfit(f"{name!r} has a number that a {type} does not hold") from error


def _structs(message: Any, type: str) -> Column:
    columns = dict(fields_of(inside_of(type)[1]))
    inside, empty = columns_of(message, columns), None

    def made(values: Sequence[Any]) -> pa.Array:
        import numpy as np
        import pyarrow as pa

        nonlocal empty
        empty = empty or runtime("message_factory").GetMessageClass(message)()
        absent = np.fromiter((each is None for each in values), bool, len(values))
        found = inside([empty if each is None else each for each in values])
        fields = [pa.field(name, arrow_type(of)) for name, of in columns.items()]
        return pa.StructArray.from_arrays(found.flatten(), fields=fields, mask=pa.array(absent))

    return made


def _names(field: Any) -> Column:
    # Of names that share a number the first is the one to write.
    names: dict[Any, str | None] = {each.number: each.name for each in reversed(field.enum_type.values)}
    names[None] = None

    def made(values: Sequence[Any]) -> pa.Array:
        try:
            return _plain(field.name, [names[each] for each in values], "string")
        except KeyError as error:
            raise ProtobufMisfit(
                f"{field.name!r} is {error.args[0]}, of which {field.enum_type.full_name} has no name in its schema: declare it as int"
            ) from None

    return made


def _instants(values: Sequence[Any]) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    absent = np.fromiter((each is None for each in values), bool, len(values))
    seconds = np.fromiter((0 if each is None else each.seconds for each in values), np.int64, len(values))
    nanos = np.fromiter((0 if each is None else each.nanos for each in values), np.int64, len(values))
    wrong = (seconds < _FIRST_SECOND) | (seconds > _LAST_SECOND) | (nanos < 0) | (nanos > 999_999_999)
    if wrong.any():
        raise ProtobufMisfit(
            "it has a timestamp outside of the years 1 to 9999, or with nanoseconds below 0 or of a second and more"
        )
    micros = pa.array(seconds * 1_000_000 + nanos // 1000, pa.int64(), mask=absent)
    return micros.cast(arrow_type("timestamp"))


def _offsets(parts: Sequence[Any]) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    offsets = np.zeros(len(parts) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, parts), np.int32, len(parts)), out=offsets[1:])
    return pa.array(offsets)
