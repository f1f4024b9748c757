"""The types that a state's stored values may have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from stateflow.format.records import Record, StateSchema


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """One type of one state. Values are rewritten only when they change, so earlier types stay."""

    operator: str
    state: str
    number: int
    type: str
    slot: int
    """The record that introduced it; 0: the state began with it."""
    today: bool
    by: str
    """How its values become values of the next type: rules or migrate; empty for today's type."""

    def document(self) -> dict[str, Any]:
        return asdict(self)


def stored_schemas(record: Record | None) -> list[StoredSchema]:
    """Of every keyed state, oldest first."""
    if record is None:
        return []
    return [
        schema
        for uid, operator in sorted(record.operators.items())
        for name, state in operator.states.items()
        for schema in _of(uid, name, state)
    ]


def _of(uid: str, name: str, state: StateSchema) -> Iterator[StoredSchema]:
    for version in state.versions:
        by = "migrate" if version.migrated else "rules"
        yield StoredSchema(uid, name, version.number, version.value, version.slot, False, by)
    yield StoredSchema(uid, name, state.version, state.value, state.since, True, "")
