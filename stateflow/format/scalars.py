"""The scalar types of keys, values and rows: a row per type. Every other table of types is derived from this one.

`encoding` documents the bytes of keys, `serializers` those of values. Both are frozen, and so are names and codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Scalar:
    """One scalar type under all its names."""

    name: str
    """What records call it."""
    type: type[Any]
    arrow: tuple[Any, ...]
    """The function of pyarrow that makes its Arrow type, and the arguments. DAG files are parsed without pyarrow."""
    code: int = 0
    """The first byte of its stored values; 0: they are stored as MessagePack."""
    form: str = ""
    """The bytes of its stored values as `struct` and numpy write them; empty: their length varies."""
    spark: str = ""
    """What Spark's DDL calls it; empty: rows do not have it."""
    other_spark: tuple[str, ...] = ()
    """Narrower types of Spark that can be a key of this type."""
    is_key: bool = False
    key_words: tuple[str, ...] = ()
    """The words of its part of a key as numpy writes them; empty: 00 01 ends the part."""
    key_example: str = ""
    """What people write for such a key."""
    is_column: bool = False
    """Whether columnar operators have state of this type."""


SCALARS = (
    Scalar(
        "bool", bool, ("bool_",), 1, "B", "boolean",
        is_key=True, key_words=(">u1",), key_example="true or false", is_column=True,
    ),
    Scalar(
        "int", int, ("int64",), 2, "q", "bigint", ("int", "smallint", "tinyint"),
        is_key=True, key_words=(">u8",), key_example="a whole number of 64 bits, such as 42", is_column=True,
    ),
    Scalar("float", float, ("float64",), 3, "d", "double", is_column=True),
    Scalar(
        "str", str, ("string",), 4, "", "string", is_key=True, key_example="text", is_column=True,
    ),
    Scalar(
        "bytes", bytes, ("binary",), 5, "", "binary",
        is_key=True, key_example="Base64, such as aGVsbG8=", is_column=True,
    ),
    Scalar(
        "date", date, ("date32",), 6, "i", "date",
        is_key=True, key_words=(">u4",), key_example="a date such as 2026-01-31",
    ),
    Scalar(
        "datetime", datetime, ("timestamp", "us", "UTC"), 7, "q", "timestamp", is_key=True, key_words=(">u8",),
        key_example="an instant with its zone, such as 2026-01-31T12:00:00Z", is_column=True,
    ),
    Scalar(
        "decimal", Decimal, ("decimal128", 38, 18), 8, "", "decimal(38,18)",
        is_key=True, key_words=(">u8", ">u8"), key_example="a decimal number such as 12.50",
    ),
    Scalar("time", time, ("string",)),
    Scalar("timedelta", timedelta, ("duration", "us")),
    Scalar("uuid", UUID, ("string",)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ColumnType:
    """One scalar type of a row's columns."""

    name: str
    """What Spark's DDL calls it, without digits."""
    family: str
    """Types of a family differ in size alone."""
    type: type[Any]
    arrow: tuple[Any, ...]
    """As of `Scalar`."""
    form: str = ""
    """The bytes of a value as `struct` and numpy write them; empty: their length varies, or no number has them."""
    alias: str = ""
    """Another name that Spark takes."""


COLUMN_TYPES = (
    ColumnType("boolean", "bool", bool, ("bool_",), "?"),
    ColumnType("tinyint", "int", int, ("int8",), "b", "byte"),
    ColumnType("smallint", "int", int, ("int16",), "h", "short"),
    ColumnType("int", "int", int, ("int32",), "i", "integer"),
    ColumnType("bigint", "int", int, ("int64",), "q", "long"),
    ColumnType("float", "single", float, ("float32",), "f", "real"),
    ColumnType("double", "double", float, ("float64",), "d"),
    ColumnType("decimal", "decimal", Decimal, ("decimal128", 10, 0)),
    ColumnType("string", "text", str, ("string",)),
    ColumnType("binary", "bytes", bytes, ("binary",)),
    ColumnType("date", "date", date, ("date32",), "i"),
    ColumnType("timestamp", "time", datetime, ("timestamp", "us", "UTC"), "q"),
    ColumnType("timestamp_ltz", "time", datetime, ("timestamp", "us", "UTC"), "q"),
    ColumnType("timestamp_ntz", "time", datetime, ("timestamp", "us"), "q"),
)
INTEGERS = tuple(column.name for column in COLUMN_TYPES if column.family == "int")
FLOATS = tuple(column.name for column in COLUMN_TYPES if column.type is float)

BY_NAME: Mapping[str, Scalar] = {scalar.name: scalar for scalar in SCALARS}
BY_TYPE: Mapping[Any, Scalar] = {scalar.type: scalar for scalar in SCALARS}
KEYS = tuple(scalar for scalar in SCALARS if scalar.is_key)
KEY_TYPES = tuple(scalar.name for scalar in KEYS)
CODED = tuple(scalar for scalar in SCALARS if scalar.code)
"""The types whose values have a form of their own, without MessagePack."""
FIXED_COLUMNS = tuple(scalar.name for scalar in SCALARS if scalar.is_column and scalar.form)
"""When all columns of a columnar state are of these types, its values have one width."""
SHORT_MASK = 16
"""Most columns of such values whose null mask takes two bytes; that of more takes eight."""
