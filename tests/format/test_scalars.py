"""The table of scalar types: what is frozen in it, and that every other table has its types."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

import stateflow as sf
from stateflow.format.scalars import CODED, KEY_TYPES, SCALARS, Scalar
from stateflow.pipelines.rows.row_type import key_type, spark_type
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.keys.text import key_of_plain
from stateflow.state.tabular import values_of
from stateflow.state.values.key_types import key_types_for
from stateflow.state.values.plain import plain_reader
from stateflow.state.values.schema_text import ScalarText, read_schema
from stateflow.state.values.serializers import serializer_for
from tests.refusals.refusal import refused
from tests.state.values.test_plain import schema_for

VALUES: dict[Any, Any] = {
    bool: True,
    int: 5,
    float: 0.5,
    str: "a",
    bytes: b"\0",
    date: date(2026, 1, 1),
    datetime: datetime(2026, 1, 1, tzinfo=UTC),
    Decimal: Decimal("1.5"),
    time: time(1, 2),
    timedelta: timedelta(seconds=1),
    UUID: UUID(int=7),
}
each = pytest.mark.parametrize("scalar", SCALARS, ids=lambda scalar: scalar.name)


def test_names_and_codes_never_change() -> None:
    assert {scalar.name: scalar.code for scalar in CODED} == {
        "bool": 1, "int": 2, "float": 3, "str": 4, "bytes": 5, "date": 6, "datetime": 7, "decimal": 8,
    }  # fmt: skip
    assert KEY_TYPES == ("bool", "int", "str", "bytes", "date", "datetime", "decimal")
    assert {scalar.name for scalar in SCALARS if not scalar.code} == {"time", "timedelta", "uuid"}


@each
def test_a_value_of_every_type_is_stored_under_its_code_and_read_back(scalar: Scalar) -> None:
    value, serializer = VALUES[scalar.type], serializer_for(scalar.type)
    stored = serializer.dumps(value)
    assert serializer.schema == scalar.name
    assert read_schema(scalar.name) == ScalarText(scalar.name)
    assert stored[0] == (scalar.code or 9)
    assert serializer.loads(stored) == value
    read = plain_reader(schema_for(scalar.name))(stored)
    assert read == (str(value) if scalar.name in ("time", "uuid") else value)
    table = values_of(schema_for(scalar.name), "state 'x'")
    column = table.read([stored]).column
    assert column.type == table.arrow
    assert table.write(column, None) == [stored]


@each
def test_a_type_is_a_key_everywhere_or_nowhere(scalar: Scalar) -> None:
    if not scalar.is_key:
        with refused(sf.UsageError, "cannot be a key"):
            key_types_for(scalar.type)
        with refused(sf.UsageError, "cannot be a key type"):
            KeyCodec([scalar.name])
        return
    assert key_types_for(scalar.type) == (scalar.name,)
    assert key_type(spark_type(scalar.type, "a field")[0]) == scalar.name
    codec, value = KeyCodec([scalar.name]), VALUES[scalar.type]
    assert codec.decode(codec.encode(value), 0)[0] == value
    with refused(sf.UsageError, f"write {scalar.key_example}"):
        key_of_plain([("k", scalar.name)], None)


@each
def test_a_scalar_is_a_default_for_every_key(scalar: Scalar) -> None:
    value = VALUES[scalar.type]
    assert sf.ValueState(scalar.type, default=value).default == value
