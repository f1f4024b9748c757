"""Of output rows that replace each other one leaves per batch, also when a key's rows come in several tables."""

from __future__ import annotations

import pyarrow as pa

from stateflow.operators.ready.grouping.latest_rows import LatestRows


def rows(**values: int) -> pa.Table:
    return pa.table(
        {"k": pa.array(list(values), pa.string()), "n": pa.array(list(values.values()), pa.int64())}
    )


def test_a_key_that_goes_on_is_held_back_also_over_a_table_out_of_which_nothing_came_for_it() -> None:
    latest = LatestRows((("k", "str"),), ("k",))
    left = [*latest.put(rows(a=1, b=1), rows(a=0, b=0))]
    left += latest.put(rows(c=2), rows(b=0, c=0))
    left += latest.put(rows(b=3), rows(b=0))
    left += latest.rest()
    found = [row for table in left for row in table.to_pylist()]
    assert sorted((row["k"], row["n"]) for row in found) == [("a", 1), ("b", 3), ("c", 2)]
