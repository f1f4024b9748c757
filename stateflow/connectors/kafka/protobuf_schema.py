"""The message that a registry keeps for the columns of a sink.

Readers know a field by its number. A column has the number that the registry's newest schema gives its name, a new one has a new number,
and one that is gone keeps its own: no number ever means two columns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from stateflow.connectors import IncompatibleError, fields_of, inside_of, parts_of_schema
from stateflow.connectors.kafka.protobuf import TIMESTAMP, runtime

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TYPES = {
    "boolean": "TYPE_BOOL",
    "tinyint": "TYPE_INT32",
    "smallint": "TYPE_INT32",
    "int": "TYPE_INT32",
    "bigint": "TYPE_INT64",
    "float": "TYPE_FLOAT",
    "double": "TYPE_DOUBLE",
    "string": "TYPE_STRING",
    "binary": "TYPE_BYTES",
}
_KEYS = frozenset({"boolean", "tinyint", "smallint", "int", "bigint", "string"})
"""Types of a map's keys."""
_KEPT_BY_PROTOBUF = range(19000, 20000)
"""Numbers that no field may have."""


def name_of(topic: str) -> str:
    """The message of a topic's values."""
    name = re.sub(r"\W", "_", topic, flags=re.ASCII)
    return name if _NAME.fullmatch(name) else f"_{name}"


def file_for(name: str, columns: Sequence[tuple[str, str]], known: Any = None) -> Any:
    """The descriptor of a file with the message of the columns, where the fields of a `known` file keep their numbers."""
    file = runtime("descriptor_pb2").FileDescriptorProto(name=f"{name}.proto", syntax="proto3")
    before = None
    if known is not None and not known.package:
        before = next((each for each in known.message_type if each.name == name), None)
    _Message(file.message_type.add(name=name), f".{name}", before).fill(columns, "")
    if TIMESTAMP.encode() in file.SerializeToString():
        file.dependency.append("google/protobuf/timestamp.proto")
    return file


class _Message:
    """A message that is being made."""

    def __init__(self, made: Any, scope: str, before: Any) -> None:
        self.made, self.scope = made, scope
        self.before = {} if before is None else {each.name: each for each in before.field}
        self.nested_before = {} if before is None else {each.name: each for each in before.nested_type}
        self.enums_before = [] if before is None else list(before.enum_type)
        self.names: set[str] = set()
        self.last = max((each.number for each in self.before.values()), default=0)

    def fill(self, columns: Sequence[tuple[str, str]], column: str) -> None:
        names = list(dict.fromkeys([*(name for name, _ in columns), *self.before]))
        self._check(names, column)
        self.names = set(names)
        fields = [self._field(name, kind, column or name) for name, kind in columns]
        fields += [self._kept(each) for name, each in self.before.items() if name not in dict(columns)]
        self.made.enum_type.extend(self.enums_before)
        there = {each.name for each in self.made.nested_type}
        self.made.nested_type.extend(each for name, each in self.nested_before.items() if name not in there)
        for field in sorted(fields, key=lambda each: int(each.number)):
            self._add(field)

    def _check(self, names: Sequence[str], column: str) -> None:
        seen: dict[str, str] = {}
        for name in names:
            if _NAME.fullmatch(name) is None:
                raise IncompatibleError(
                    f"column {name!r} has a name that Protobuf does not take, which has letters of ASCII, digits and _: rename it in a transform()"
                )
            other = seen.setdefault(_camel(name).lower(), name)
            if other != name:
                where = f" in column {column!r}" if column else ""
                raise IncompatibleError(
                    f"the names {other!r} and {name!r}{where} are one name in Protobuf's JSON: rename one in a transform()"
                )

    def _field(self, name: str, kind: str, column: str) -> Any:
        field = runtime("descriptor_pb2").FieldDescriptorProto(name=name, label="LABEL_OPTIONAL")
        field.number = self.before[name].number if name in self.before else self._free()
        outer, inside = inside_of(kind)
        if outer == "array":
            field.label = type(field).LABEL_REPEATED
            self._typed(field, name, inside, column)
        elif outer == "map":
            key, value = (part.strip() for part in parts_of_schema(inside))
            if key not in _KEYS:
                raise _not_held(column, kind)
            field.label, field.type = type(field).LABEL_REPEATED, type(field).TYPE_MESSAGE
            entry = self.made.nested_type.add(name=f"{_camel(name, first=True)}Entry")
            entry.options.map_entry = True
            self._typed(entry.field.add(name="key", number=1, label="LABEL_OPTIONAL"), name, key, column)
            self._typed(entry.field.add(name="value", number=2, label="LABEL_OPTIONAL"), name, value, column)
            field.type_name = f"{self.scope}.{entry.name}"
        else:
            self._typed(field, name, kind, column)
        return field

    def _typed(self, field: Any, name: str, kind: str, column: str) -> None:
        outer, inside = inside_of(kind)
        if outer == "struct":
            nested = self._nested(name)
            field.type = type(field).TYPE_MESSAGE
            field.type_name = f"{self.scope}.{nested}"
            made = self.made.nested_type.add(name=nested)
            _Message(made, field.type_name, self.nested_before.get(nested)).fill(fields_of(inside), column)
        elif kind == "timestamp":
            field.type, field.type_name = type(field).TYPE_MESSAGE, f".{TIMESTAMP}"
        elif kind in _TYPES:
            field.type = getattr(type(field), _TYPES[kind])
        else:
            raise _not_held(column, kind)

    def _nested(self, name: str) -> str:
        """The message for a struct: fields and messages of one message share their names."""
        nested = f"{_camel(name, first=True)}Row"
        while nested in self.names:
            nested += "_"
        self.names.add(nested)
        return nested

    def _kept(self, field: Any) -> Any:
        """A field whose column is gone."""
        kept = type(field)()
        kept.CopyFrom(field)
        for each in ("oneof_index", "proto3_optional", "default_value"):
            kept.ClearField(each)
        if kept.label != type(kept).LABEL_REPEATED:
            kept.label = type(kept).LABEL_OPTIONAL
        return kept

    def _add(self, field: Any) -> None:
        made = self.made.field.add()
        made.CopyFrom(field)
        if made.label != type(made).LABEL_REPEATED and made.type != type(made).TYPE_MESSAGE:
            # Proto3 has a field that may be absent as the only one of a choice.
            made.proto3_optional, made.oneof_index = True, len(self.made.oneof_decl)
            self.made.oneof_decl.add(name=f"_{made.name}")

    def _free(self) -> int:
        self.last += 1
        if self.last in _KEPT_BY_PROTOBUF:
            self.last = _KEPT_BY_PROTOBUF.stop
        return self.last


def _camel(name: str, first: bool = False) -> str:
    """A name as Protobuf's JSON has it."""
    parts = name.split("_")
    return "".join(part[:1].upper() + part[1:] if k or first else part for k, part in enumerate(parts))


def _not_held(column: str, kind: str) -> IncompatibleError:
    return IncompatibleError(
        f"column {column!r} is {kind}, which Protobuf does not hold: make text or a number of it in a transform() before the sink"
    )
