"""The first rows of each key: the table that its changes keep is what DuckDB finds over the whole input."""

from __future__ import annotations

import os
import random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from stateflow.pipelines.ready.operators import KeyedRows
from stateflow.pipelines.rows.row_type import row_type
from stateflow.pipelines.top import Top, top
from tests.operators.ready.driving import Driven

SECOND = 1_000_000
ROWS = "shop string, item string, price double, n long, ts timestamp"
SEEDS = range(200 if os.environ.get("STATEFLOW_LONG") else 4)
SCHEMA = pa.schema(
    [
        ("shop", pa.string()), ("item", pa.string()), ("price", pa.float64()), ("n", pa.int64()),
        ("ts", pa.timestamp("us", "UTC")),
    ]
)  # fmt: skip


def table(seed: int, count: int = 200) -> pa.Table:
    chance = random.Random(seed)
    rows = [
        {
            "shop": chance.choice("ab"),
            "item": f"item-{chance.randrange(8)}",
            "price": None if chance.random() < 0.1 else chance.randrange(40) / 4,
            "n": chance.randrange(3),
            "ts": chance.randrange(60) * SECOND,
        }
        for _ in range(count)
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def declared(per: str, order_by: str, n: int = 3, **more: Any) -> Top:
    keyed = KeyedRows("best", row_type(ROWS), ("shop",), (order_by,) if order_by else ())
    return top(keyed, n, by=("-price", "n"), per=per, rank="rank", ttl=None, **more)


class Kept:
    """A table that takes the changes, as an upsert does."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self.rows: dict[Any, dict[str, Any]] = {}
        self._keys = keys

    def take(self, changes: list[dict[str, Any]]) -> None:
        keys = [tuple(row[name] for name in self._keys) for row in changes]
        assert len(keys) == len(set(keys)), "a batch puts out one change per key"
        for key, change in zip(keys, changes, strict=True):
            row = dict(change)
            if row.pop("_op") == "delete":
                self.rows.pop(key, None)
            else:
                self.rows[key] = row


def cut(rows: pa.Table, chance: random.Random) -> list[pa.Table]:
    places = sorted(chance.randrange(rows.num_rows) for _ in range(chance.randrange(10)))
    return [
        rows.slice(a, b - a) for a, b in zip([0, *places], [*places, rows.num_rows], strict=True) if b > a
    ]


CONTENT = "item, price nulls first, n, ts"
LISTED = "select * from (select *, row_number() over (partition by shop order by price desc nulls last, n, {content}) as rank from {rows}) where rank <= 3"
ONE_PER_ITEM = (
    "(select * exclude (place) from (select *, row_number() over (partition by shop, item order by {first}) as place from input) "
    "where place = 1)"
)
QUERIES = {
    ("", ""): "input",
    ("item", ""): ONE_PER_ITEM.format(first=f"price desc nulls last, n, {CONTENT}"),
    ("item", "ts"): ONE_PER_ITEM.format(first="ts desc, item desc, price desc nulls last, n desc"),
}


@pytest.mark.parametrize(("per", "order_by"), QUERIES)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_changes_of_a_list_keep_the_list_of_all_rows(seed: int, per: str, order_by: str) -> None:
    rows, chance = table(seed), random.Random(seed)
    operator = declared(per, order_by)
    driven = Driven(operator, chance.randrange(1, 4))
    assert operator.changes is not None
    kept = Kept(operator.changes)
    for part in cut(rows, chance):
        kept.take(driven.batch(part, None, chance.randrange(1, 4)))
        driven.rescale(chance.randrange(1, 5))
    with duckdb.connect() as engine:
        engine.execute("set timezone = 'UTC'")
        engine.register("input", rows)
        query = LISTED.format(content=CONTENT, rows=QUERIES[per, order_by])
        wanted = (
            engine.sql(query).to_arrow_table().cast(pa.schema([*SCHEMA, ("rank", pa.int64())])).to_pylist()
        )
    assert sorted(map(repr, kept.rows.values())) == sorted(
        repr({**row, "ts": row["ts"]}) for row in pa.Table.from_pylist(wanted).to_pylist()
    )
    if not order_by:
        assert driven.entries() == len(wanted), "what is not in the list is not kept"


def row(item: str, price: float, at: int = 0) -> dict[str, Any]:
    return {"shop": "a", "item": item, "price": price, "n": 0, "ts": at * SECOND}


def changes(driven: Driven, *rows: dict[str, Any]) -> list[tuple[str, str, int]]:
    batch = driven.batch(pa.Table.from_pylist(list(rows), SCHEMA), None)
    return sorted((each["_op"], each["item"], each["rank"]) for each in batch)


def test_what_drops_out_is_deleted_and_what_moves_is_put_out_again() -> None:
    driven = Driven(declared("item", "", n=2))
    assert changes(driven, row("tea", 2), row("jam", 1)) == [("upsert", "jam", 2), ("upsert", "tea", 1)]
    assert changes(driven, row("rum", 3)) == [
        ("delete", "jam", 2),
        ("upsert", "rum", 1),
        ("upsert", "tea", 2),
    ]
    assert changes(driven, row("rum", 3), row("tea", 1)) == [], "what changes nothing puts nothing out"


def test_a_row_that_gets_worse_lets_another_one_back_where_the_last_row_counts() -> None:
    driven = Driven(declared("item", "ts", n=1))
    assert changes(driven, row("tea", 2), row("jam", 1)) == [("upsert", "tea", 1)]
    assert changes(driven, row("tea", 0, at=1)) == [("delete", "tea", 1), ("upsert", "jam", 1)]
    assert changes(driven, row("tea", 9, at=0)) == [], "a row from before the last one does not count"
