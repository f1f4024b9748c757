"""Rows that an operator keeps from one release of the code to the next."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import stateflow as sf
from stateflow.testing import ColumnarHarness
from tests.refusals.refusal import refused

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


@dataclass
class Sale:
    shop: str
    amount: float
    ts: datetime


@dataclass
class LaterSale:
    shop: str
    amount: float
    ts: datetime
    channel: str = "web"


def release(rows: type, operator: str, after: ColumnarHarness | None = None) -> ColumnarHarness:
    @sf.pipeline("sales")
    def sales(flow: sf.Flow) -> None:
        source = flow.source("sales", sf.delta("/sales"), rows, event_time="ts", watermark="1 minute")
        match operator:
            case "first":
                out = source.deduplicate("kept", by="shop", within="1 day")
            case "last":
                out = source.deduplicate("kept", by="shop", within="1 day", keep="last")
        out.collect("out", sf.memory("out"))

    return ColumnarHarness.of(sales.build(), "kept", after=after)


def test_a_release_of_a_columnar_operator_is_refused_as_a_run_would() -> None:
    before = release(Sale, "first")
    before.rows(Sale("a", 1.0, at(1)))
    with refused(sf.StateflowError, "operator 'kept'"):
        release(LaterSale, "last", before)


def test_one_that_is_written_by_hand_goes_on_with_its_state_and_its_clock() -> None:
    def add(rows: Any, state: Any, ctx: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        [shop] = set(rows["shop"].to_pylist())
        key = rows.select(["shop"]).slice(0, 1)
        total = (state.get(key)["total"][0].as_py() or 0.0) + pc.sum(rows["amount"]).as_py()
        values = {"total": [total]} | {name: [1] for name in state.schema.names if name != "total"}
        state.put(key, pa.table(values))
        return pa.table({"shop": [shop], "total": [total]})

    def made(columns: dict[str, Any], after: ColumnarHarness | None = None) -> ColumnarHarness:
        return ColumnarHarness(
            add, Sale, key="shop", state=columns, output="shop string, total double", after=after
        )

    before = made({"total": float})
    before.rows(Sale("a", 1.0, at(1)))
    before.advance(at(5))
    after = made({"total": float, "n": int}, before)
    assert after.watermark == at(5)
    assert after.rows(Sale("a", 2.0, at(6))) == [{"shop": "a", "total": 3.0}]
    assert before.rows(Sale("a", 5.0, at(6))) == [{"shop": "a", "total": 6.0}], "it is not the later one's"
    with refused(sf.StateflowError, "total"):
        made({"total": str}, after)


@dataclass
class Whole:
    shop: str
    amount: int
    ts: datetime


def read_again(harness: ColumnarHarness) -> None:
    harness.rows(Sale("a", 2.5, at(2)), Sale("b", 2.5, at(2)))
    harness.advance(at(3000))


class Amounts(sf.WindowProcess[str, Any, Any]):
    def process(self, key: str, window: Any, rows: list[Any], ctx: Any) -> Any:
        return [(key, repr([row.amount for row in rows]))]


def amounts(rows: type, after: ColumnarHarness | None = None) -> ColumnarHarness:
    @sf.pipeline("amounts")
    def declared(flow: sf.Flow) -> None:
        source = flow.source("sales", sf.delta("/sales"), rows, event_time="ts", watermark="1 minute")
        windows = source.key_by("shop", order_by="amount").window(sf.tumbling("1 day"))
        windows.process("op", Amounts, output="shop string, amounts string").collect("out", sf.memory("out"))

    return ColumnarHarness.of(declared.build(), "op", after=after)


def test_code_per_window_gets_a_float_where_an_int_was_kept() -> None:
    before = amounts(Whole)
    before.rows(Whole("a", 5, at(1)))
    after = amounts(Sale, before)
    after.rows(Sale("a", 2.5, at(2)))
    assert after.advance(at(3000)) == [{"shop": "a", "amounts": "[2.5, 5.0]"}]
    before.rows(Whole("a", 2**53 + 1, at(1)))
    large = amounts(Sale, before)
    with refused(sf.StateTypeError, "operator 'op'", "'amount'", "9007199254740993", "another uid"):
        large.advance(at(3000))


@pytest.mark.parametrize("operator", ["largest", "last"])
def test_a_kept_int_that_no_float_is_equal_to_is_refused_with_its_key(operator: str) -> None:
    def of(rows: type, kind: str, before: ColumnarHarness | None = None) -> ColumnarHarness:
        @sf.pipeline("widened")
        def widened(flow: sf.Flow) -> None:
            source = flow.source("sales", sf.delta("/sales"), rows, event_time="ts", watermark="1 minute")
            if operator == "last":
                out = source.deduplicate("kept", by="shop", within="1 day", keep="last")
            else:
                out = source.key_by("shop").aggregate("kept", f"shop string, n {kind}", n=sf.max("amount"))
            out.collect("out", sf.memory("out"))

        return ColumnarHarness.of(widened.build(), "kept", after=before)

    before = of(Whole, "long")
    before.rows(Whole("a", 2**53 + 1, at(1)), Whole("b", 5, at(1)))
    after = of(Sale, "double", before)
    where = "operator 'kept', state 'waiting'" if operator == "last" else "operator 'kept'"
    with refused(sf.StateTypeError, where, "key 'a'", "9007199254740993", "declare the column as int again"):
        read_again(after)
    again = of(Whole, "long", before)
    assert operator == "last" or again.rows(Whole("a", 1, at(2))) == [{"shop": "a", "n": 2**53 + 1}]
