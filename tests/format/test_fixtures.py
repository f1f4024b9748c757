"""Every field that a stored body can have is in a fixture, and the bodies of the fixtures are read and written as they are.

Whoever adds a field before the release of 0.1.0 makes the fixture anew: `tests/fixtures/format_1/make.py`. After the release the
fixture stays as it is, and a new field gets one in a folder of its own.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.inspect import Metadata, StructType, type_info

from stateflow.format import records
from stateflow.format.records import (
    DeadMark,
    EpochClaim,
    JobIdentity,
    Outcome,
    Pin,
    Record,
    Savepoint,
    SavepointClaim,
    decode,
    encode,
)

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
ARCHIVES = sorted(FIXTURES.glob("*/*.tar.gz"))
KINDS: dict[str, type[Any]] = {
    r"chk-\d+/_pending": Record,
    r"chk-\d+/_metadata": Outcome,
    r"chk-\d+/_dead-[^/]+": DeadMark,
    r"epochs/\d+": EpochClaim,
    r"pins/[^/]+": Pin,
    r"job": JobIdentity,
    r"savepoint-[^/]+/_metadata": Savepoint,
    r"_claimed": SavepointClaim,
}


def kind_of(name: str) -> type[Any]:
    [kind] = (kind for pattern, kind in KINDS.items() if re.search(rf"(^|/){pattern}$", name))
    return kind


@cache
def bodies(archive: Path) -> list[tuple[str, bytes]]:
    """The stored bodies of an archive, by name; what a run tells of itself while it lives is not kept."""
    found = []
    with tarfile.open(archive) as packed:
        for member in packed:
            kept = member.isfile() and "/control/" not in member.name
            content = packed.extractfile(member) if kept else None
            if content is not None and (data := content.read()).startswith(b"stateflow "):
                found.append((member.name, data))
    return found


def fields_of(kind: msgspec.inspect.Type, value: Any) -> Iterator[tuple[str, str]]:
    """The fields of structs that JSON of this type has, as struct and field."""
    while isinstance(kind, Metadata):
        kind = kind.type
    if isinstance(kind, msgspec.inspect.UnionType):
        kind = next((one for one in kind.types if not isinstance(one, msgspec.inspect.NoneType)), kind)
    if isinstance(kind, StructType):
        fields = kind.fields
        items = (
            value.items()
            if isinstance(value, dict)
            else zip([f.encode_name for f in fields], value, strict=False)
        )
        types = {field.encode_name: field.type for field in fields}
        for name, inner in items:
            yield kind.cls.__name__, name
            yield from fields_of(types[name], inner)
    elif isinstance(kind, msgspec.inspect.DictType) and isinstance(value, dict):
        for inner in value.values():
            yield from fields_of(kind.value_type, inner)
    elif isinstance(kind, msgspec.inspect.VarTupleType | msgspec.inspect.ListType) and value:
        for inner in value:
            yield from fields_of(kind.item_type, inner)


def found_in(archive: Path) -> set[tuple[str, str]]:
    return {
        field
        for name, data in bodies(archive)
        for field in fields_of(type_info(kind_of(name)), msgspec.json.decode(data.split(b"\n")[1]))
    }


def every_field() -> set[tuple[str, str]]:
    """But the number of the format: it stands in the first line, and in the body once it is another than 1."""
    structs = [s for s in vars(records).values() if isinstance(s, type) and issubclass(s, msgspec.Struct)]
    return {
        (struct.__name__, field.encode_name)
        for struct in structs
        if struct.__module__ == records.__name__
        for field in msgspec.structs.fields(struct)
        if field.encode_name != "format"
    }


def test_every_field_of_a_stored_body_is_in_a_fixture() -> None:
    found = set().union(*map(found_in, ARCHIVES))
    missing = every_field() - found
    assert not missing, f"no fixture has {sorted(missing)}: let tests/fixtures/format_1/make.py write them"


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_stored_bodies_are_read_and_say_the_same(archive: Path) -> None:
    for name, data in bodies(archive):
        body = decode(data, kind_of(name), name)
        assert encode(body).split(b"\n")[1] == data.split(b"\n")[1], f"{name} says something else now"
