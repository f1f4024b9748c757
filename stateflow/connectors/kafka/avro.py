"""Avro's binary encoding: a decoder per schema, made once, and whether what it gives fits the fields of a row class."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

from stateflow.connectors import fields_of, inside_of, parts_of_schema
from stateflow.connectors.kafka.columns import zigzag

Decode = Callable[[bytes, int], tuple[Any, int]]
"""From bytes and a position: the value there, and the position behind it."""

EXACT = Context(prec=76)
"""Python's own context would round what has more than 28 digits."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = date(1970, 1, 1)
_FITS = {
    "null": (),
    "boolean": ("boolean",),
    "int": ("int", "bigint", "float", "double"),
    "long": ("bigint",),
    "float": ("float", "double"),
    "double": ("double",),
    "string": ("string",),
    "enum": ("string",),
    "bytes": ("binary",),
    "fixed": ("binary",),
    "date": ("date",),
    "timestamp": ("timestamp",),
    "timestamp_ntz": ("timestamp_ntz",),
}
"""Spark's types that take any value of Avro's."""


class AvroMisfit(ValueError):
    """A schema or a value that is not what is expected, in words."""


class AvroSchema:
    """A schema of a writer."""

    def __init__(self, text: str, named: Iterable[str] = ()) -> None:
        """AvroMisfit for a text that is none. `named` are schemas whose types it names, each after those that it names itself."""
        self._named: dict[str, Any] = {}
        for each in named:
            self._resolved(_parsed(each), "")
        self.root = self._resolved(_parsed(text), "")
        self._made: dict[int, Decode] = {}
        self._decode = self._decoder(self.root)

    def decode(self, data: bytes, at: int = 0) -> Any:
        """The value that begins there and ends with the data."""
        try:
            value, end = self._decode(data, at)
        except (IndexError, struct.error, UnicodeDecodeError, OverflowError) as error:
            raise AvroMisfit("its bytes are not of this schema") from error
        if end != len(data):
            raise AvroMisfit("its bytes go on behind the end of the value")
        return value

    def names(self) -> frozenset[str]:
        """The paths of all its fields, with dots between the names."""
        return frozenset(_names_in(self.root, "", ()))

    def require(self, columns: Mapping[str, str], wanted: Iterable[Sequence[str]] = ()) -> None:
        """AvroMisfit if a field of these names has values that a column's type does not take, or none of `wanted` names is there. Another
        field that is missing is null."""
        if isinstance(self.root, list) or self.root["type"] != "record":
            raise AvroMisfit("its schema is no record")
        there = [each["name"] for each in self.root["fields"]]
        for names in wanted:
            if not set(names) & set(there):
                raise AvroMisfit(f"its schema has no {names[0]!r}; it has {', '.join(there)}")
        for name, spark in columns.items():
            field = next((each for each in self.root["fields"] if each["name"] == name), None)
            if field is not None and (misfit := self._misfit(field["type"], spark)):
                raise AvroMisfit(f"{name!r} is {misfit} in its schema, and a {spark} in the row class")

    def _misfit(self, node: Any, spark: str) -> str:
        """What does not fit, in words; empty if all does."""
        if isinstance(node, list):
            return next((found for each in node if (found := self._misfit(each, spark))), "")
        kind = _kind(node)
        outer, inside = inside_of(spark)
        if kind == "null":
            return ""
        if kind == "array" and outer == "array":
            return self._misfit(node["items"], inside)
        if kind == "map" and outer == "map":
            key, value = parts_of_schema(inside)
            return self._misfit(node["values"], value.strip()) if key.strip() == "string" else "a map"
        if kind == "record" and outer == "struct":
            types = {each["name"]: each["type"] for each in node["fields"]}
            pairs = ((types[name], of) for name, of in fields_of(inside) if name in types)
            return next((found for each, of in pairs if (found := self._misfit(each, of))), "")
        if kind == "decimal" and spark.startswith("decimal"):
            precision, scale = (int(part) for part in spark[len("decimal(") : -1].split(","))
            fits = (
                node.get("scale", 0) <= scale
                and node["precision"] - node.get("scale", 0) <= precision - scale
            )
            return "" if fits else f"a decimal({node['precision']},{node.get('scale', 0)})"
        return "" if spark in _FITS.get(kind, ()) else f"{'an' if kind[0] in 'aei' else 'a'} {kind}"

    def _resolved(self, node: Any, namespace: str) -> Any:
        """The same with definitions in the place of names."""
        if isinstance(node, list):
            return [self._resolved(each, namespace) for each in node]
        if isinstance(node, str):
            if node in _PRIMITIVES:
                return {"type": node}
            for name in (node, f"{namespace}.{node}"):
                if name in self._named:
                    return self._named[name]
            raise AvroMisfit(f"the schema names {node!r}, which it does not define")
        if not isinstance(node, dict) or "type" not in node:
            raise AvroMisfit("it is no schema of Avro")
        kind = node["type"]
        if isinstance(kind, dict | list):
            return self._resolved(kind, namespace)
        made = dict(node)
        if kind in ("record", "enum", "fixed"):
            name = made.get("name", "")
            space = made.get("namespace") or (name.rpartition(".")[0] or namespace)
            self._named[name if "." in name or not space else f"{space}.{name}"] = made
            if kind == "record":
                made["fields"] = [
                    {**each, "type": self._resolved(each["type"], space)} for each in made.get("fields", ())
                ]
        elif kind == "array":
            made["items"] = self._resolved(made["items"], namespace)
        elif kind == "map":
            made["values"] = self._resolved(made["values"], namespace)
        elif kind not in _PRIMITIVES:
            return self._resolved(kind, namespace)
        return made

    def _decoder(self, node: Any) -> Decode:
        if isinstance(node, list):
            return _union([self._decoder(each) for each in node])
        if (known := self._made.get(id(node))) is not None:
            return known
        # A record may hold itself.
        self._made[id(node)] = lambda data, at: self._made[id(node)](data, at)
        made = self._decoder_of(node)
        self._made[id(node)] = made
        return made

    def _decoder_of(self, node: Any) -> Decode:
        kind = node["type"]
        if kind == "record":
            return _record([(each["name"], self._decoder(each["type"])) for each in node["fields"]])
        if kind == "array":
            return _blocks(self._decoder(node["items"]))
        if kind == "map":
            return _map(self._decoder(node["values"]))
        if kind == "enum":
            symbols = node["symbols"]
            return _then(zigzag, lambda index: symbols[index])
        plain = _fixed(node["size"]) if kind == "fixed" else _PRIMITIVES[kind]
        convert = _conversion(node)
        return plain if convert is None else _then(plain, convert)


def _names_in(node: Any, before: str, within: tuple[int, ...]) -> Iterator[str]:
    """`within`: the records around it, as a record may hold itself."""
    if isinstance(node, list):
        for each in node:
            yield from _names_in(each, before, within)
    elif node["type"] == "record" and id(node) not in within:
        for field in node["fields"]:
            yield before + field["name"]
            yield from _names_in(field["type"], f"{before}{field['name']}.", (*within, id(node)))
    elif node["type"] in ("array", "map"):
        yield from _names_in(node["items" if node["type"] == "array" else "values"], before, within)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()


def _kind(node: Any) -> str:
    """The type that values come in."""
    logical, kind = node.get("logicalType", ""), str(node["type"])
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return "decimal"
    if logical == "date" and kind == "int":
        return "date"
    if logical in ("timestamp-millis", "timestamp-micros") and kind == "long":
        return "timestamp"
    if logical in ("local-timestamp-millis", "local-timestamp-micros") and kind == "long":
        return "timestamp_ntz"
    return kind


def _conversion(node: Any) -> Callable[[Any], Any] | None:
    kind = _kind(node)
    if kind == "decimal":
        scale = int(node.get("scale", 0))
        return lambda raw: Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-scale, EXACT)
    if kind == "date":
        return lambda days: _DAY + timedelta(days=days)
    if kind in ("timestamp", "timestamp_ntz"):
        unit = 1000 if node["logicalType"].endswith("-millis") else 1
        start = _EPOCH if kind == "timestamp" else _EPOCH.replace(tzinfo=None)
        return lambda count: start + timedelta(microseconds=count * unit)
    return None


def _then(decode: Decode, convert: Callable[[Any], Any]) -> Decode:
    def decoded(data: bytes, at: int) -> tuple[Any, int]:
        value, end = decode(data, at)
        return convert(value), end

    return decoded


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = zigzag(data, at)
    end = at + length
    if length < 0 or end > len(data):
        raise IndexError(length)
    return data[at:end], end


def _string(data: bytes, at: int) -> tuple[str, int]:
    raw, end = _bytes(data, at)
    return raw.decode(), end


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    if data[at] > 1:
        raise IndexError(at)
    return data[at] == 1, at + 1


def _fixed(size: int) -> Decode:
    def decoded(data: bytes, at: int) -> tuple[bytes, int]:
        if at + size > len(data):
            raise IndexError(at)
        return data[at : at + size], at + size

    return decoded


def _number(format: str, size: int) -> Decode:
    unpack = struct.Struct(format).unpack_from
    return lambda data, at: (unpack(data, at)[0], at + size)


def _union(branches: list[Decode]) -> Decode:
    def decoded(data: bytes, at: int) -> tuple[Any, int]:
        index, at = zigzag(data, at)
        if index < 0:
            raise IndexError(index)
        return branches[index](data, at)

    return decoded


def _record(fields: list[tuple[str, Decode]]) -> Decode:
    def decoded(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        found = {}
        for name, decode in fields:
            found[name], at = decode(data, at)
        return found, at

    return decoded


def _blocks(item: Decode) -> Decode:
    def decoded(data: bytes, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while True:
            count, at = zigzag(data, at)
            if count == 0:
                return found, at
            if count < 0:
                _, at = zigzag(data, at)
            if abs(count) > len(data):
                raise IndexError(count)
            for _ in range(abs(count)):
                value, at = item(data, at)
                found.append(value)

    return decoded


def _map(value: Decode) -> Decode:
    def pair(data: bytes, at: int) -> tuple[tuple[str, Any], int]:
        key, at = _string(data, at)
        found, at = value(data, at)
        return (key, found), at

    return _then(_blocks(pair), dict)


_PRIMITIVES: dict[str, Decode] = {
    "null": lambda data, at: (None, at),
    "boolean": _boolean,
    "int": zigzag,
    "long": zigzag,
    "float": _number("<f", 4),
    "double": _number("<d", 8),
    "bytes": _bytes,
    "string": _string,
}
