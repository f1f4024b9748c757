"""The type that code declares for a state, beside the type in the record: whether they fit, and how old values are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import msgspec.inspect as shape

from stateflow.format.records import SchemaVersion, StateSchema
from stateflow.state.values.evolution.decision import Evolution, RefusedError
from stateflow.state.values.evolution.filled import filling, leaves_out
from stateflow.state.values.evolution.migrations import (
    Migration,
    chosen,
    form,
    migrations_of,
    missing,
    plain_one,
)
from stateflow.state.values.evolution.versions import (
    MOST,
    ConvertStored,
    changed,
    converter,
    followed,
    is_direct,
    versioned,
)
from stateflow.state.values.schema import schema_of
from stateflow.state.values.serializers import (
    CustomSerializer,
    Loads,
    Serializer,
    serializer_for,
)


@dataclass(frozen=True, slots=True)
class DeclaredType:
    """A type as the code has it today."""

    schema: str
    into: str = ""
    """`schema` with the aliases of fields; empty when there are none."""
    serializer: Serializer | None = None
    """None for columns, which are not read one by one."""
    closed: bool = False
    """Whether a class refuses fields that it does not know."""
    migrations: tuple[Migration, ...] = ()
    leaves_out: bool = False
    """Whether a value of an earlier type may come without a field that has a default."""

    @property
    def target(self) -> str:
        return self.into or self.schema

    def change(self, old: str) -> Evolution:
        """What the rules make of values of another type. Raises RefusedError."""
        return changed(old, self.target)


def declared_type(hint: Any, migrate: Any = None) -> DeclaredType:
    serializer = serializer_for(hint)
    migrations = migrations_of(migrate)
    if isinstance(hint, (CustomSerializer, Serializer)):
        return DeclaredType(serializer.schema, serializer=serializer, migrations=migrations)
    into = schema_of(hint, aliases=True)
    nodes = list(_nodes(shape.type_info(hint), []))
    return DeclaredType(
        serializer.schema,
        into if into != serializer.schema else "",
        serializer,
        any(node.forbid_unknown_fields for node in nodes if isinstance(node, shape.StructType)),
        migrations,
        any(map(leaves_out, nodes)),
    )


def _nodes(node: Any, seen: list[Any]) -> Iterator[Any]:
    """Every part of a type once: one that contains itself comes back to itself."""
    if any(node is known for known in seen):
        return
    seen.append(node)
    yield node
    for name in getattr(node, "__struct_fields__", ()):
        value = getattr(node, name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, (shape.Type, shape.Field)):
                yield from _nodes(part, seen)


RULES = "rules"
"""Who converts values that no function takes."""


@dataclass(frozen=True, slots=True)
class Change:
    """How a state's type has changed since a record."""

    before: str
    now: str
    changes: tuple[str, ...]
    losses: tuple[str, ...]
    by: str
    """rules, or the names of the functions that convert."""
    alike: tuple[str, ...] = ()
    """Changes of the text that mean the same type."""


def evolved(old: StateSchema, declared: DeclaredType, slot: int) -> tuple[StateSchema, Change | None]:
    """The recorded state under the type that is declared now, and what changed. Raises RefusedError."""
    if old.value == declared.schema:
        readers(declared, old)
        return old, None
    known = next((v for v in old.versions if v.value == declared.schema), None)
    number = known.number if known else max([old.version, *(v.number for v in old.versions)]) + 1
    if number > MOST:
        raise RefusedError(
            f"it has had {MOST + 1} types: a canonical savepoint, made with the code before and restored, stores all values as "
            "of one type again"
        )
    by, change, migrated = _change(old.value, declared)
    edge = SchemaVersion(
        number=old.version,
        value=old.value,
        next=number,
        slot=old.since,
        into=declared.into,
        migrated=migrated,
    )
    schema = msgspec.structs.replace(
        old,
        value=declared.schema,
        version=number,
        since=slot,
        versions=(*(v for v in old.versions if v.number != number), edge),
    )
    readers(declared, schema)
    return schema, Change(old.value, declared.schema, change.changes, change.losses, by, change.alike)


def _change(old: str, declared: DeclaredType) -> tuple[str, Evolution, bool]:
    """Who converts values of another type: a function that names it, rules, or a function of plain data."""
    if (migration := chosen(declared.migrations, old)) is not None:
        return f"migrate {migration.name}", Evolution(changes=(f"{migration.name} converts it",)), True
    migration = plain_one(declared.migrations)
    try:
        change = declared.change(old)
    except RefusedError:
        if migration is None or old.startswith("columns{"):
            raise
        return f"migrate {migration.name}", Evolution(changes=(f"{migration.name} converts it",)), True
    if migration is not None:
        raise RefusedError(
            f"rules and function {migration.name} of migrate= could both convert this: annotate the function with the type that "
            "it takes"
        )
    return RULES, change, False


def readers(declared: DeclaredType, schema: StateSchema) -> dict[int, Loads]:
    """By number of an earlier type: the reader of its headers and values. Raises RefusedError if there is none."""
    if declared.serializer is None:
        for version in schema.versions:
            list(followed(schema, version))
        return {}
    plain_types = {
        version.value
        for version in schema.versions
        if version.migrated and chosen(declared.migrations, version.value) is None
    }
    if len(plain_types) > 1 and plain_one(declared.migrations) is not None:
        raise RefusedError(
            f"values may still be stored as {' and as '.join(sorted(plain_types))}, and which of them migrate= takes is not "
            "said: give a function for each, and annotate what it takes"
        )
    found = {version.number: _reader(declared, schema, version) for version in schema.versions}
    return {number: filling(reader) for number, reader in found.items()} if declared.leaves_out else found


def _reader(declared: DeclaredType, schema: StateSchema, version: SchemaVersion) -> Loads:
    assert declared.serializer is not None
    loads = declared.serializer.loads
    if not any(chosen(declared.migrations, old.value) for old, _ in followed(schema, version)):
        if is_direct(schema, version) and not declared.closed:
            return loads
        if not any(old.migrated for old, _ in followed(schema, version)):
            return _then([converter(old.value, new) for old, new in followed(schema, version)], loads)
    return _migrating(declared, schema, version)


def _migrating(declared: DeclaredType, schema: StateSchema, version: SchemaVersion) -> Loads:
    """The way through functions, with rules before, between and behind them."""
    converts: list[ConvertStored | None] = []
    for old, new in followed(schema, version):
        migration = chosen(declared.migrations, old.value)
        if migration is None and old.migrated:
            migration = plain_one(declared.migrations)
            if migration is None:
                raise missing(old)
        if migration is not None:
            return _then(converts, _through(declared, migration, old.value))
        converts.append(converter(old.value, new))
    assert declared.serializer is not None
    return _then(converts, declared.serializer.loads)


def _through(declared: DeclaredType, migration: Migration, taken: str, depth: int = 0) -> Loads:
    """From stored values of the type `taken` by functions to values of today."""
    assert declared.serializer is not None
    migrated, result, check = migration.reader(taken), migration.result, declared.serializer.check
    if result is None or result.schema == declared.schema:

        def checked(plain: bytes) -> Any:
            value = migrated(plain)
            check(value)
            return value

        return checked
    if depth > len(declared.migrations):
        raise RefusedError(f"migrate function {migration.name} leads back to a type that another one takes")
    dumps = result.dumps
    following = (
        chosen(declared.migrations, result.schema) if form(result.schema) != form(declared.schema) else None
    )
    if following is not None:
        rest = _through(declared, following, result.schema, depth + 1)
    else:
        declared.change(result.schema)
        rest = _then([converter(result.schema, declared.target)], declared.serializer.loads)
    return lambda plain: rest(dumps(migrated(plain)))


def _then(converts: list[ConvertStored | None], loads: Loads) -> Loads:
    steps = [convert for convert in converts if convert is not None]
    if not steps:
        return loads

    def converted(plain: bytes) -> Any:
        for step in steps:
            plain = step(plain)
        return loads(plain)

    return converted


def evolved_serializer(declared: DeclaredType, schema: StateSchema | None) -> Serializer:
    """The serializer that writes values of today's type and reads those of every type that the record knows."""
    assert declared.serializer is not None
    if schema is None or not schema.evolved:
        return declared.serializer
    return versioned(declared.serializer, schema.version, readers(declared, schema))
