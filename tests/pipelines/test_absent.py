"""Columns without a value in a batch: which of them are misspelt, which may be missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import msgspec
import pytest

import stateflow as sf
from stateflow.pipelines.absent import Absence, absences
from stateflow.pipelines.rows.row_type import row_type
from stateflow.state.values.schema import schema_of
from tests.refusals.refusal import refused


@dataclass
class Order:
    user: int
    amout: float
    note: str | None = None
    channel: str = "web"


@dataclass
class Renamed:
    user: int
    takings: Annotated[float, sf.field(aliases=["revenue"])]


@pytest.mark.parametrize(
    ("declared", "absent", "in_files", "expected"),
    [
        # A misspelt field that always has a value, by its class: refused.
        (Order, ["amout"], ["user", "amount"], [Absence("amout", "amount")]),
        # The files name it, and it is null in each row.
        (Order, ["amout"], ["user", "amout", "amount"], []),
        # Nothing is like it: somebody should know all the same.
        (Order, ["amout"], ["user"], [Absence("amout")]),
        # What may be missing is missing.
        (Order, ["note", "channel"], ["user", "amout"], []),
        # What may be missing, and may be misspelt.
        (Order, ["note"], ["user", "amout", "notes"], [Absence("note", "notes", wanted=False)]),
        (Order, ["channel"], ["user", "amout", "chanel"], [Absence("channel", "chanel", wanted=False)]),
        # JSON's names have a case.
        (Order, ["user"], ["User", "amout"], [Absence("user", "User")]),
        # A former name will do.
        (Renamed, ["takings"], ["user", "revenue"], []),
        (Renamed, ["takings"], ["user", "taking"], [Absence("takings", "taking")]),
        # A schema in words says nothing of nulls, and means its columns.
        ("user long, amout double", ["amout"], ["user", "amount"], [Absence("amout", "amount")]),
        # Another field of the class is no misspelling of this one.
        ("price double, prices double", ["price"], ["prices"], [Absence("price")]),
    ],
)
def test_a_field_that_files_lack_is_misspelt_missing_or_meant(
    declared: Any, absent: list[str], in_files: list[str], expected: list[Absence]
) -> None:
    assert list(absences(row_type(declared), absent, in_files)) == expected


@dataclass
class Message:
    user: int
    key: str | None = None
    offset: int | None = None
    kafka_offset: int = 0


def test_a_name_of_what_comes_beside_the_texts_is_told_where_it_may_be_missing_too() -> None:
    parts = {"key": "kafka_key", "offset": "kafka_offset"}
    found = list(absences(row_type(Message), ["key", "offset"], ["user"], parts))
    assert found == [Absence("key", wanted=False, part="kafka_key")]
    assert not found[0].refused
    assert list(absences(row_type(Message), ["key"], ["user", "key"], parts)) == []


def test_only_what_is_as_good_as_certain_is_refused() -> None:
    assert Absence("amout", "amount").refused
    assert not Absence("amout").refused
    assert not Absence("note", "notes", wanted=False).refused


def test_aliases_that_stand_where_a_default_stands_are_refused() -> None:
    @dataclass
    class Plain:
        takings: float = sf.field(aliases=["revenue"])  # type: ignore[assignment]

    class Struct(msgspec.Struct):
        takings: float = sf.field(aliases=["revenue"])  # type: ignore[assignment]

    class Named(NamedTuple):
        takings: float = sf.field(aliases=["revenue"])  # type: ignore[assignment]

    for declared in (Plain, Struct, Named):
        with refused(sf.UsageError, "Annotated[float,", "sf.field(aliases=['revenue'])]"):
            row_type(declared)
        with pytest.raises(sf.UsageError, match="stands where a field's default stands"):
            schema_of(declared, aliases=True)
