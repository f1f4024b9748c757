"""Lists with a ttl: nothing comes out for a row that expires, and the next batch of its key puts the others where they are now."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import stateflow as sf
from stateflow.testing import ColumnarHarness

Put = Callable[..., list[tuple[Any, ...]]]


def made(per: str) -> tuple[ColumnarHarness, Put]:
    @sf.pipeline("lists")
    def lists(flow: sf.Flow) -> None:
        rows = flow.source("in", sf.delta("/in"), "user long, item string, price long")
        rows.key_by("user").top("op", 3, by="-price", per=per, ttl="10 minutes")

    harness = ColumnarHarness.of(lists.build(), "op", now=datetime(2026, 1, 1, tzinfo=UTC))

    def put(**prices: int) -> list[tuple[Any, ...]]:
        out = harness.rows(*({"user": 1, "item": item, "price": price} for item, price in prices.items()))
        return sorted((row["rank"], row["item"], row["_op"]) for row in out)

    return harness, put


@pytest.mark.parametrize("per", ["", "item"])
def test_the_rows_behind_one_that_has_expired_move_up(per: str) -> None:
    harness, put = made(per)
    put(a=30)
    harness.advance(now=timedelta(minutes=6))
    assert put(b=20, c=10) == [(2, "b", "upsert"), (3, "c", "upsert")]
    harness.advance(now=timedelta(minutes=6))
    assert put(d=5) == [(1, "b", "upsert"), (2, "c", "upsert"), (3, "d", "upsert")]


@pytest.mark.parametrize("per", ["", "item"])
def test_a_list_that_has_got_shorter_has_no_row_twice(per: str) -> None:
    harness, put = made(per)
    put(a=30, b=20)
    harness.advance(now=timedelta(minutes=6))
    assert put(c=10) == [(3, "c", "upsert")]
    harness.advance(now=timedelta(minutes=6))
    # By key and rank there would be another row of c; by key and item the first one has been replaced.
    gone = [] if per else [(3, "c", "delete")]
    assert put(d=5) == [(1, "c", "upsert"), (2, "d", "upsert"), *gone]
    assert put(e=1) == [(3, "e", "upsert")]
    assert put(f=40) == [(1, "f", "upsert"), (2, "c", "upsert"), (3, "d", "upsert")] + (
        [(3, "e", "delete")] if per else []
    )
