"""A user's function as a sink: called until it returns, and never by a run that was replaced."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from stateflow.errors import DisagreementError, FencedError, StateflowError, UsageError
from stateflow.pipelines.delivery import Delivery
from stateflow.pipelines.inputs.tables import delta
from stateflow.spark.sinks.function import FunctionSink
from stateflow.spark.sinks.memory import MemorySink, memory
from stateflow.testing.sink_log import SinkLog, make_sink
from tests.refusals.refusal import refused


class Delivered:
    """A user's own store: keeps what it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Delivery, list[int]]] = []
        self.failing = False

    def __call__(self, frame: DataFrame, delivery: Delivery) -> None:
        self.calls.append((delivery, sorted(row["n"] for row in frame.collect())))
        if self.failing:
            raise ConnectionError("the warehouse is away")


@pytest.fixture
def delivered() -> Delivered:
    return Delivered()


@pytest.fixture
def log(spark: SparkSession, tmp_path: Path, delivered: Delivered) -> SinkLog:
    return SinkLog(spark, tmp_path / "root", functions={"totals": delivered})


def first(log: SinkLog) -> Delivery:
    return Delivery(f"{log.job}/totals", 1, "orders", "totals", "w1")


def numbers(spark: SparkSession, *values: int) -> DataFrame:
    return spark.createDataFrame([(v,) for v in values], "n long")


def test_the_function_sees_the_rows_and_the_delivery_after_the_decision(
    spark: SparkSession, log: SinkLog, delivered: Delivered
) -> None:
    prepared = log.prepare(FunctionSink(delivered), numbers(spark, 1, 2))
    assert delivered.calls == []
    assert log.commit(prepared) == "committed"
    assert delivered.calls == [(first(log), [1, 2])]


def test_a_job_that_is_made_again_has_another_key(
    spark: SparkSession, log: SinkLog, delivered: Delivered
) -> None:
    log.deliver(FunctionSink(delivered), numbers(spark, 1))
    again = replace(log, job="another", slot=0, last=None)
    again.deliver(FunctionSink(delivered), numbers(spark, 1))
    assert [(d.key, d.slot) for d, _ in delivered.calls] == [(f"{log.job}/totals", 1), ("another/totals", 1)]


def test_a_function_of_earlier_releases_gets_the_number_alone(spark: SparkSession, log: SinkLog) -> None:
    calls: list[Any] = []

    def deliver(frame: DataFrame, checkpoint_id: int) -> None:
        calls.append(checkpoint_id)

    log.functions = {"totals": deliver}
    log.deliver(FunctionSink(deliver), numbers(spark, 1))
    assert calls == [1]


def test_a_function_that_fails_blocks_and_is_called_again_with_the_same_rows(
    spark: SparkSession, log: SinkLog, delivered: Delivered
) -> None:
    prepared = log.prepare(FunctionSink(delivered), numbers(spark, 1, 2))
    delivered.failing = True
    with refused(StateflowError, "warehouse is away", "stateflow abandon orders 1"):
        log.commit(prepared)
    delivered.failing = False
    assert log.commit(prepared) == "committed"
    assert delivered.calls == [(first(log), [1, 2])] * 2


def test_a_replaced_run_that_wakes_up_does_not_call(
    spark: SparkSession, log: SinkLog, delivered: Delivered
) -> None:
    prepared = log.prepare(FunctionSink(delivered), numbers(spark, 1))
    checks = iter([None, FencedError("epoch 2 has taken over")])

    def still_owner() -> None:
        found = next(checks)
        if found is not None:
            raise found

    log.still_owner = still_owner
    with pytest.raises(FencedError):
        log.commit(prepared)
    assert delivered.calls == []


def test_a_batch_without_rows_calls_nobody(spark: SparkSession, log: SinkLog, delivered: Delivered) -> None:
    assert log.deliver(FunctionSink(delivered), numbers(spark)) == "none"
    assert delivered.calls == []


def test_leftovers_of_a_failed_attempt_are_not_delivered(
    spark: SparkSession, log: SinkLog, delivered: Delivered
) -> None:
    log.prepare(FunctionSink(delivered), numbers(spark, 1, 2))
    log.slot -= 1
    log.deliver(FunctionSink(delivered), numbers(spark, 3))
    assert len(list((log.root / "orders" / "staged").iterdir())) > 1
    assert delivered.calls == [(first(log), [3])]


def test_a_pipeline_without_the_function_says_what_to_do(
    spark: SparkSession, log: SinkLog, delivered: Delivered
) -> None:
    prepared = log.prepare(FunctionSink(delivered), numbers(spark, 1))
    log.functions = {}
    with refused(DisagreementError, "function of sink 'totals'", "stateflow abandon orders 1"):
        log.commit(prepared)


def test_memory_keeps_a_slot_once_and_in_order(spark: SparkSession, log: SinkLog) -> None:
    table = memory("once")
    table.clear()
    schema = "n long, at timestamp"
    at = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    first = log.prepare(MemorySink(table), spark.createDataFrame([(1, at)], schema))
    second = log.prepare(MemorySink(table), spark.createDataFrame([(2, None)], schema))
    assert [log.commit(second, 2), log.commit(first, 1), log.commit(first, 1)] == [
        "committed",
        "committed",
        "already",
    ]
    assert table.rows == [{"n": 1, "at": at}, {"n": 2, "at": None}]
    assert [slot for slot, _ in table.batches] == [1, 2]


def test_a_flows_declarations_become_sinks(tmp_path: Path) -> None:
    table = delta(str(tmp_path))
    assert make_sink("a", "append", table).kind == "delta_append"
    assert make_sink("b", "upsert", table, {"keys": ("id",), "order_by": None}).kind == "delta_upsert"
    assert make_sink("c", "function", print).kind == "function"
    assert make_sink("d", "collect", memory("d")).kind == "memory"
    with refused(UsageError, "sink 'e' (append)", "'out'", "delta(path)"):
        make_sink("e", "append", "out")
    with refused(UsageError, "does not take colour"):
        make_sink("f", "append", table, {"colour": "red"})
