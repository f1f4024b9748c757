"""The values of columnar operators, many at once."""

from __future__ import annotations

import pyarrow as pa
import pytest

from stateflow.state.values.arrow.column_values import ColumnBytes

TEXTS = pa.table({"name": ["a", None, "", "d"], "n": [1, 2, None, 0]})
FIXED = pa.table({"n": pa.array([1, None, -1, 0]), "share": pa.array([0.0, 0.5, None, 0.0])})


@pytest.mark.parametrize(
    ("schema", "table"), [("columns{name:str,n:int}", TEXTS), ("columns{n:int,share:float}", FIXED)]
)
@pytest.mark.parametrize(
    "places", [[0, 1, 2, 3], [None, 3, None, None, 1, 0, None], [None, None], []], ids=str
)
def test_each_value_comes_back_in_its_place_and_null_where_there_is_none(
    schema: str, table: pa.Table, places: list[int | None]
) -> None:
    values = ColumnBytes(schema)
    raws = values.write([column.combine_chunks() for column in table.columns], len(table))
    read = values.read([None if place is None else raws[place] for place in places])
    assert read.equals(table.take(pa.array(places, pa.int64())))
