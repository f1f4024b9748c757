"""Running aggregates with a ttl: a key that had no row for so long begins anew."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import stateflow as sf
from stateflow.errors import UsageError
from stateflow.testing import ColumnarHarness
from tests.refusals.refusal import refused

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def flow_with(ttl: Any, **aggregates: Any) -> sf.Flow:
    @sf.pipeline("totals")
    def totals(flow: sf.Flow) -> None:
        rows = flow.source("in", sf.delta("/in"), "user long, amount long")
        names = ", ".join(f"{name} long" for name in aggregates)
        rows.key_by("user").aggregate("op", f"user long, {names}", ttl=ttl, **aggregates)

    return totals.build()


def test_a_key_is_forgotten_that_long_after_its_last_row() -> None:
    harness = ColumnarHarness.of(flow_with("10 minutes", n=sf.sum("amount")), "op", now=NOW)

    def added(*rows: tuple[int, int]) -> list[Any]:
        return sorted(harness.rows(*({"user": user, "amount": amount} for user, amount in rows)), key=str)

    assert added((1, 5), (2, 7)) == [{"user": 1, "n": 5}, {"user": 2, "n": 7}]
    harness.advance(now=timedelta(minutes=6))
    assert added((1, 1)) == [{"user": 1, "n": 6}]
    harness.advance(now=timedelta(minutes=6))
    # The second key's row is twelve minutes old, the first key's six.
    assert added((1, 1), (2, 1)) == [{"user": 1, "n": 7}, {"user": 2, "n": 1}]


def test_values_that_are_known_one_by_one_have_no_ttl() -> None:
    with refused(UsageError, "n keeps each value for ever", "ttl", "approximate=True"):
        flow_with("1 day", n=sf.count_distinct("amount"))
    flow_with("1 day", n=sf.count_distinct("amount", approximate=True))


def test_an_aggregate_cannot_be_called_ttl() -> None:
    with pytest.raises(UsageError, match="give the aggregate another name"):
        flow_with(sf.sum("amount"), n=sf.count())
