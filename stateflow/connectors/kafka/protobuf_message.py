"""Which message of Protobuf a source reads: decided, and compared with the row class, before a row is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from stateflow.connectors import UsageError
from stateflow.connectors.kafka.protobuf import ProtobufFile, ProtobufMisfit, file_of, file_of_set, misfit_of
from stateflow.connectors.kafka.protobuf_rows import ProtobufRows
from stateflow.connectors.kafka.registry import SchemaRegistry, registry_of, subject_of

if TYPE_CHECKING:
    from stateflow.connectors.kafka.topic import KafkaTopic

Wanted = tuple[tuple[str, ...], ...]


def protobuf_rows(topic: KafkaTopic, columns: Mapping[str, str], wanted: Wanted) -> ProtobufRows:
    """How a topic's messages become rows. UsageError for a message that is not there, or does not fit the row class."""
    registry = registry_of(topic)
    if registry is None:
        files = descriptors_of(topic)
        what = f"the descriptors in {topic.schema}" if topic.schema else "the class of its message"
        message = _checked(topic, file_of_set(files), what, columns, wanted)
        return ProtobufRows(columns, message, wanted, files=files)
    found = {name: _newest(topic, name, registry, columns, wanted) for name in topic.topics}
    if len(set(found.values())) > 1:
        said = ", ".join(f"{message} in {name}" for name, message in found.items())
        raise UsageError(
            f"{topic} have messages of several types ({said}): give each type a source of its own"
        )
    return ProtobufRows(columns, found[topic.topics[0]], wanted, registry)


def descriptors_of(topic: KafkaTopic) -> bytes:
    """The set of descriptors where there is no registry. UsageError where it cannot be read."""
    if topic.descriptors:
        return topic.descriptors
    try:
        files = Path(topic.schema).read_bytes()
        file_of_set(files)
    except (OSError, ProtobufMisfit) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"{topic}: the Protobuf descriptors {topic.schema} cannot be read ({reason}): give the path of a file that "
            "protoc --include_imports -o orders.desc orders.proto has made, or the class of a message"
        ) from None
    return files


def _newest(
    topic: KafkaTopic, name: str, registry: SchemaRegistry, columns: Mapping[str, str], wanted: Wanted
) -> str:
    newest = registry.newest(subject_of(name), "PROTOBUF")
    if newest is not None:
        return _checked(topic, file_of(newest), newest.what, columns, wanted)
    if not topic.message:
        raise UsageError(
            f"{topic}: the schema registry {registry.url} has no subject {subject_of(name)}, so nobody says which message the topic has: say "
            "message='shop.Order', the full name that its writers have registered under another subject"
        )
    return topic.message


def _checked(
    topic: KafkaTopic, file: ProtobufFile, what: str, columns: Mapping[str, str], wanted: Wanted
) -> str:
    try:
        message = topic.message or _only(file)
        if misfit := misfit_of(file.message(message), columns, wanted):
            raise UsageError(f"{topic}: {misfit} ({what}): correct the row class, or read another topic")
    except ProtobufMisfit as error:
        raise UsageError(
            f"{topic}: {what}: {error}: say message= with the full name of one that is there"
        ) from None
    return message


def _only(file: ProtobufFile) -> str:
    if len(file.messages) != 1:
        raise ProtobufMisfit(
            f"of the messages {', '.join(file.messages) or 'none'} nobody says which the topic has"
        )
    return file.messages[0]
