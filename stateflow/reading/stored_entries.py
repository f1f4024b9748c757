"""Stored entries as people read them: whose key, which part of the state, and the value by the type that its record declares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stateflow.format.encoding import NAMESPACE, PREFIX_WIDTH, TIME_WIDTH, read_timestamp
from stateflow.format.instants import instant, nearest_instant
from stateflow.reading.query import Target, has_expired
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.keys.text import text_of_key
from stateflow.state.values.plain import jsonable


@dataclass(frozen=True, slots=True)
class EntryName:
    """What tells an entry of a state apart."""

    key: Any
    namespace: Any = None
    part: Any = None
    """The key of a map's entry, the place in a list, the columns that tell entries apart; None where a key has one entry."""

    @property
    def text(self) -> str:
        """The key, with its namespace in brackets."""
        within = "" if self.namespace is None else f"[{text_of_key(self.namespace)}]"
        return f"{text_of_key(self.key)}{within}"

    @property
    def json(self) -> dict[str, Any]:
        """What tells the entries of a key apart, as a document."""
        return {
            "namespace": None if self.namespace is None else text_of_key(self.namespace),
            "part": jsonable(self.part),
        }


class StateEntries:
    """One state of one record."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._codec = target.codec.decode
        self._by = [name for name, _ in target.schema.by]
        self._by_codec = KeyCodec([kind for _, kind in target.schema.by]) if target.schema.by else None

    def name(self, full: bytes) -> EntryName:
        schema, at = self.target.schema, PREFIX_WIDTH
        part: Any = None
        if schema.timed:
            part = {"at": nearest_instant(read_timestamp(full, at))}
            at += TIME_WIDTH
        key, at = self._codec(full, at)
        namespace = None
        if full[at : at + 1] == NAMESPACE and self.target.namespace_codec is not None:
            namespace, at = self.target.namespace_codec.decode(full, at + 1)
        else:
            at += 1
        if self._by_codec is not None:
            values = self._by_codec.decode(full, at)[0]
            values = values if len(self._by) > 1 else (values,)
            part = (part or {}) | dict(zip(self._by, values, strict=True))
        elif self.target.map_codec is not None:
            part = self.target.map_codec.decode(full, at)[0]
        elif schema.kind == "list":
            part = [int.from_bytes(full[at : at + 8], "big"), int.from_bytes(full[at + 8 : at + 12], "big")]
        elif schema.many and len(full) > at:
            part = instant(read_timestamp(full, at))
        return EntryName(key, namespace, part)

    def value(self, name: EntryName, raw: bytes) -> Any:
        """A join's block comes as its rows."""
        if self.target.schema.kind == "timer":
            return name.part if name.part is not None else self.target.plain(raw)
        value = self.target.plain(raw)
        if self.target.rows is None:
            return value
        parts = name.part if isinstance(name.part, dict) else {}
        return self.target.rows.of([{**parts, **value}])

    def expired(self, raw: bytes, moment: int | None) -> bool:
        """Whether it has a time to live that is over at this moment."""
        return self.target.schema.kind != "timer" and has_expired(raw, moment)
