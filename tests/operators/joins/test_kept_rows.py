"""Rows that a join has written are read without Arrow as they were, whatever their columns."""

from __future__ import annotations

import random
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stateflow.errors import CorruptError, UsageError
from stateflow.operators.joins.row_blocks import RowBlocks, Rows
from stateflow.state.values.kept_rows import rows_of
from tests.refusals.refusal import refused

VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "tinyint": [-128, 127],
    "smallint": [-(1 << 15), 5],
    "int": [-(1 << 31), 7],
    "bigint": [(1 << 63) - 1, -(1 << 63)],
    "float": [0.5, -1.25],
    "double": [1e300, -0.1],
    "date": [date(1969, 12, 31), date(2026, 2, 3)],
    "timestamp": [datetime(2026, 1, 1, 12, 0, 0, 7, tzinfo=UTC), datetime(1969, 1, 1, tzinfo=UTC)],
    "timestamp_ntz": [datetime(2026, 1, 1, 12)],
    "decimal(38,3)": [Decimal("-" + "9" * 35 + ".125"), Decimal("0.001")],
    "decimal(10)": [Decimal(42)],
    "string": ["", "a,b|c:é"],
    "binary": [b"", b"\xff\x00"],
    "varchar(9)": ["nine"],
}


@pytest.mark.parametrize("seed", range(30))
def test_rows_come_back_as_they_were_written(seed: int) -> None:
    chance = random.Random(seed)
    kinds = chance.sample(list(VALUES), chance.randrange(len(VALUES)))
    layout = RowBlocks([(f"c {number}", kind) for number, kind in enumerate(kinds)])
    count = chance.randrange(5)
    values = [[chance.choice([None, *VALUES[kind]]) for _ in range(count)] for kind in kinds]
    columns = pa.table(list(map(pa.array, values, layout.schema.types)), schema=layout.schema)
    times = [chance.randrange(-(10**15), 10**15) for _ in range(count)]
    matched = [chance.random() < 0.5 for _ in range(count)]
    rows = Rows(np.array(times, dtype=np.int64), np.array(matched, dtype=bool), columns)
    blocks = layout.write(rows, np.array([count]))
    read = list(rows_of(layout.text, blocks.rows[0].as_py(), blocks.texts[0].as_py()))
    assert [(row.at, row.has_partner) for row in read] == list(zip(times, matched, strict=True))
    # A table without columns has no rows for Arrow.
    assert [dict(row.columns) for row in read] == (columns.to_pylist() if kinds else [{}] * count)


@pytest.mark.parametrize(
    ("kind", "form", "far"),
    [("timestamp", "q", 1 << 60), ("timestamp_ntz", "q", -(1 << 60)), ("date", "i", 2_932_897)],
)
def test_a_time_of_spark_that_python_has_not_is_no_damage(kind: str, form: str, far: int) -> None:
    block = struct.pack(f"<q{form}sB", 0, far, b"\0", 0)
    with refused(UsageError, "'seen'", "the years 1 to 9999", "before the join"):
        list(rows_of(f"seen:{kind}", block, None))


def test_rows_that_do_not_fit_their_columns_are_damaged() -> None:
    with refused(CorruptError, "'n:bigint'", "`stateflow verify`"):
        list(rows_of("n:bigint", b"short", None))
