"""Spark's own `xxhash64` gives the same key groups as ours."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from stateflow.format.keygroups import xxhash64

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS: list[tuple[Any, ...]] = [
    (
        True,
        1,
        "a",
        b"\0\1",
        date(2026, 11, 20),
        datetime(2026, 11, 20, 9, 30, 0, 1, tzinfo=UTC),
        Decimal("1.5"),
    ),
    (False, -1, "", b"", date(1969, 12, 31), datetime(1969, 12, 31, 23, tzinfo=UTC), Decimal("-1.5")),
    (True, 2**63 - 1, "héé\0", b"x" * 100, date(1, 1, 1), datetime(2, 1, 1, tzinfo=UTC), Decimal(0)),
    (
        False,
        -(2**63),
        "x" * 31,
        b"\xff" * 8,
        date(9999, 12, 31),
        datetime(9998, 1, 1, tzinfo=UTC),
        Decimal("1e-18"),
    ),
    (None, 5, None, b"\x80", None, None, Decimal("12345678901234567890.123456789012345678")),
    (True, None, "\U0001f600", None, date(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC), Decimal("-1e-18")),
    (False, 0, "z", b"z", date(2000, 2, 29), datetime(2000, 2, 29, tzinfo=UTC), None),
    (
        True,
        127,
        "y",
        b"y",
        date(2000, 1, 1),
        datetime(2000, 1, 1, tzinfo=UTC),
        Decimal("-0.000000000000000128"),
    ),
]
SCHEMA = "bo boolean, lo long, st string, bi binary, da date, ts timestamp, de decimal(38,18)"


def test_spark_hashes_every_key_type_and_their_combination_alike(spark: SparkSession) -> None:
    frame = spark.createDataFrame(ROWS, SCHEMA)
    names = frame.columns
    hashes = frame.selectExpr(
        *[f"xxhash64({name})" for name in names], f"xxhash64({', '.join(names)})"
    ).collect()
    for row, hashed in zip(ROWS, hashes, strict=True):
        assert [xxhash64(part) for part in row] == list(hashed)[:-1], row
        assert xxhash64(row) == hashed[-1], row


def test_spark_computes_the_same_key_group(spark: SparkSession) -> None:
    groups = spark.range(-50, 50).selectExpr("id", "cast(pmod(xxhash64(id), 100) as int) as g").collect()
    assert [row.g for row in groups] == [xxhash64(row.id) % 100 for row in groups]
