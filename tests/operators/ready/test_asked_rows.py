"""What `stateflow query` finds in the states of `top` and `latest`: the columns that the guide names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import stateflow as sf
from stateflow.pipelines.streams import KeyedStream
from stateflow.testing import ColumnarHarness


@dataclass
class Sale:
    shop: str
    product: str
    revenue: int
    n: int


def row(product: str, revenue: int, n: int, **others: Any) -> dict[str, Any]:
    stored = {"row_product": product, "row_revenue": revenue, "row_n": n}
    return {"is_row": True, **others, **stored}


@pytest.mark.parametrize(
    ("order", "ask", "state", "found"),
    [
        (
            "n",
            lambda k: k.top("op", 1, by="-revenue", per="product"),
            "rows",
            [row("jam", 1, 1, place_in_list=0), row("tea", 2, 1, place_in_list=1)],
        ),
        (
            (),
            lambda k: k.top("op", 1, by="-revenue", per="product"),
            "rows",
            [row("tea", 2, 1, place_in_list=0)],
        ),
        ("revenue", lambda k: k.latest("op"), "newest", [row("tea", 2, 1)]),
        ("revenue", lambda k: k.latest("op", queryable="sales"), "sales", [row("tea", 2, 1)]),
    ],
)
def test_a_state_has_the_rows_that_the_guide_says(
    order: Any, ask: Callable[[KeyedStream], sf.Stream], state: str, found: list[dict[str, Any]]
) -> None:
    @sf.pipeline("sales")
    def sales(flow: sf.Flow) -> None:
        ask(flow.source("in", sf.delta("/in"), Sale).key_by("shop", order_by=order)).upsert(
            "out", sf.delta("/out")
        )

    harness = ColumnarHarness.of(sales.build(), "op")
    harness.rows(Sale("a", "jam", 1, 1), Sale("a", "tea", 2, 1))
    held: Any = harness.state(state)
    keys = pa.table({"shop": ["a"]})
    entries = held.entries(keys, row="at") if state == "rows" else held.get(keys)
    columns = [name for name in entries.column_names if name not in ("at", "shop")]
    assert sorted(entries.select(columns).to_pylist(), key=lambda each: each["row_product"]) == found


def test_the_newest_row_of_a_key_that_is_silent_for_its_ttl_is_forgotten() -> None:
    def asked(**options: Any) -> ColumnarHarness:
        @sf.pipeline("sales")
        def sales(flow: sf.Flow) -> None:
            keyed = flow.source("in", sf.delta("/in"), Sale).key_by("shop", order_by="n")
            keyed.latest("op", **options).upsert("out", sf.delta("/out"))

        return ColumnarHarness.of(sales.build(), "op")

    forgets, keeps = asked(ttl="7 days"), asked()
    for harness in (forgets, keeps):
        assert harness.rows(Sale("a", "jam", 1, 5)) == [Sale("a", "jam", 1, 5)]
        harness.advance(now=timedelta(days=6))
        assert harness.rows(Sale("a", "old", 1, 3)) == [], "the row of the larger n is the last"
        assert harness.rows(Sale("a", "tea", 1, 6)) == [Sale("a", "tea", 1, 6)]
        harness.advance(now=timedelta(days=6))
        assert harness.rows(Sale("a", "old", 1, 3)) == [], "the newer row has begun anew"
        harness.advance(now=timedelta(days=2))
    assert forgets.rows(Sale("a", "old", 1, 3)) == [Sale("a", "old", 1, 3)]
    assert keeps.rows(Sale("a", "old", 1, 3)) == []
