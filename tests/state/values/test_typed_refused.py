"""Damage is reported with its key, and what could not be read back is not written."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import time
from typing import Any, Literal

import pyarrow as pa
import pytest

from stateflow.errors import CorruptError, IncompatibleError, UsageError
from stateflow.format.encoding import EMPTY_NAMESPACE, prefix
from stateflow.state.tabular import StateTable
from stateflow.state.values.serializers import serializer_for
from tests.refusals.refusal import refused
from tests.state.values.typed_values import (
    KEY,
    NOON,
    Colour,
    Level,
    Mixed,
    Old,
    Order,
    Place,
    table_of,
)


@pytest.mark.parametrize("schema", ["bool", "int", "float", "str", "date", "datetime", "decimal", "optional<int>",
                                    "struct Old{a:int}", "list<str>", "columns{a:int}", "columns{a:str}"])  # fmt: skip
@pytest.mark.parametrize("damage", ["", "00", "7f00", "02", "8209", "04ff", "08ff", "0878", "0b", "0b91", "09c1",
                                    "09019f", "06ffffff7f", "07ffffffffffffff7f", "89000000"])  # fmt: skip
def test_damage_is_reported_with_its_key(schema: str, damage: str) -> None:
    raw = bytes.fromhex(damage)
    table = table_of(schema, kind="columns" if schema.startswith("columns") else "value")
    if (schema, damage) in {("str", "0878"), ("columns{a:int}", "0b91")}:
        return  # That is a value.
    with pytest.raises((CorruptError, IncompatibleError), match=r"state 'total', key 0: a stored value"):
        table.decode([prefix(1, 7) + KEY.encode(0) + EMPTY_NAMESPACE], [raw])


def test_a_damaged_value_among_others_is_the_one_that_is_named() -> None:
    serializer = serializer_for(Order)
    table = table_of(serializer.schema)
    good = serializer.dumps(Order(1, 2.0, NOON))
    keys = [prefix(1, 7) + KEY.encode(n) + EMPTY_NAMESPACE for n in (10, 11, 12)]
    with refused(CorruptError, "state 'total', key 11", "is damaged"):
        table.decode(keys, [good, good[:-1], good])
    with refused(IncompatibleError, "key 12", "another way (code 11)"):
        table.decode(keys, [good, good, b"\x0b"])
    with refused(IncompatibleError, "key 11", "the declared type struct Order"):
        table.decode(keys, [good, serializer_for(int).dumps(1), good])


def rows_of(table: StateTable, values: Sequence[Any]) -> pa.RecordBatch:
    users = pa.array(range(len(values)), pa.int64())
    return pa.record_batch({"user": users, "value": pa.array(values, table.schema.field("value").type)})


WRONG: list[tuple[Any, list[Any], str]] = [
    (int, [1, None], "value holds 1 nulls: drop such rows"),
    (Old, [{"a": None}], r"value\.a holds 1 nulls, but its type is not optional"),
    (Old, [{"a": 1}, None], "value holds 1 nulls, but its type is not optional"),
    (Place, [{"x": None, "y": "y", "z": None}], r"value\.x holds 1 nulls"),
    (Mixed, [{"a": None, "b": 1}], r"value\.a holds 1 nulls"),
    (list[Old], [[{"a": 1}, {"a": None}]], r"value\[\]\.a holds 1 nulls"),
    (dict[str, int], [[("a", None)]], r"value\.value holds 1 nulls"),
    (dict[str, int], [[("b", 0)], [("a", 1), ("b", 2), ("a", 3)]], "value has the key 'a' twice"),
    (Colour, ["r", "green"], "value holds 'green', which is no enum Colour"),
    (Literal["x", None], ["y"], "value holds 'y', which is no literal"),
    (list[Level], [[1], [3]], r"value holds \[3\], which is no list<enum Level"),
    (uuid.UUID, ["nobody"], "value holds 'nobody', which is no uuid"),
    (time, ["25:00"], "value holds '25:00', which is no time"),
    (int | str, [b"\x01\x02"], "value holds 0102, which is no MessagePack"),
    (int | str, [b"\x81"], "value holds 81, which is no MessagePack"),
]


@pytest.mark.parametrize(("hint", "values", "says"), WRONG, ids=str)
def test_a_value_that_could_not_be_read_back_is_refused(hint: Any, values: list[Any], says: str) -> None:
    table = table_of(serializer_for(hint).schema)
    with pytest.raises(UsageError, match=f"^state 'total': {says}"):
        table.encode(rows_of(table, values))


def test_times_that_python_has_not_are_refused() -> None:
    far = {"datetime": pa.array([2**62], pa.int64()).cast(pa.timestamp("us", "UTC")),
           "date": pa.array([2**30], pa.int32()).cast(pa.date32())}  # fmt: skip
    for name, array in far.items():
        for schema, column in ((name, array), (f"optional<{name}>", array), (f"columns{{a:{name}}}", None)):
            if column is None:
                if name == "date":
                    continue
                column = pa.StructArray.from_arrays([array], names=["a"])
            table = table_of(schema, kind="columns" if "columns" in schema else "value")
            batch = pa.record_batch({"user": pa.array([1]), "value": column})
            with refused(UsageError, "outside of the years 1 to 9999"):
                table.encode(batch)


def test_bytes_in_the_column_stored_that_are_no_value_are_refused() -> None:
    table = table_of("struct Old{a:int}")
    batch = rows_of(table, [{"a": 1}]).append_column("stored", pa.array([b"\x81\x01"], pa.binary()))
    with refused(UsageError, "state 'total'", "stored holds bytes"):
        table.encode(batch)
