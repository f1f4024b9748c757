"""One key of a past batch, run again: the same code gives what the record has, for every kind of operator; other code does not."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.config.options import Options
from stateflow.debugging.stops import Stops, code_of
from stateflow.debugging.trial import Trial
from stateflow.errors import DisagreementError, NotFoundError, UsageError, UserCodeError
from stateflow.jobs.job import Job
from stateflow.reading.history import KeyHistory
from tests.refusals.refusal import refused
from tests.spark.pipelines import Workbench, at

pytestmark = pytest.mark.system


@dataclass
class Order:
    id: int
    user: int
    amount: float
    ts: datetime


@dataclass
class Total:
    user: int
    total: float
    luck: float
    asked_at: datetime


class Balance(sf.KeyedProcess[int, Order, Total]):
    total = sf.ValueState(float, default=0.0)
    seen = sf.ListState(int)
    luck = sf.ValueState(float, default=0.0)
    remind = sf.Timer("event")

    def process(self, key: int, rows: Any, ctx: sf.Context) -> Any:
        for row in rows:
            self.total.value += self.worth(row)
            self.seen.add(row.id)
        self.luck.value = ctx.random.random()
        if self.remind.at is None:
            self.remind.set(row.ts)
        yield Total(key, self.total.value, self.luck.value, ctx.now)

    def worth(self, row: Order) -> float:
        return row.amount

    @remind.fires
    def on_remind(self, key: int, when: datetime, ctx: sf.Context) -> Any:
        self.seen.add(-1)
        yield Total(key, -1.0, ctx.random.random(), ctx.now)


class Doubled(Balance):
    def worth(self, row: Order) -> float:
        return row.amount * 2


class Broken(Balance):
    def worth(self, row: Order) -> float:
        return row.amount / 0


def unheard(frame: Any, delivery: Any) -> None:
    """A sink of a test that looks at state."""


def names_of(keys: list[int]) -> list[dict[str, Any]]:
    return [{"name": f"user {key}"} for key in keys]


def nobody(keys: list[int]) -> list[dict[str, Any]]:
    raise AssertionError("nobody is called")


@dataclass
class Shop:
    bench: Workbench
    pipeline: Callable[..., sf.Pipeline]

    @property
    def slots(self) -> list[int]:
        return [record.slot for record in self.bench.records("shop")]

    def history(self, operator: str, state: str, key: Any) -> KeyHistory:
        job = Job(str(self.bench.folder / "root"), "shop")
        pipeline = self.pipeline(Balance, nobody)
        return job.history_of(operator, state, str(key), rows=pipeline, options=self.options())

    def options(self) -> Options:
        return self.bench.options()

    def debug(self, operator: str, key: Any, at: Any, process: Any = Balance, run: Any = None) -> Trial:
        job = Job(str(self.bench.folder / "root"), "shop")
        found = job.debug(
            self.pipeline(process, nobody), operator, str(key), at, options=self.options(), run=run
        )
        assert found is not None, "somebody has left"
        return found


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """Three batches of orders of users 0 to 3; the timers of one batch fire in the next."""
    from stateflow.spark.session.shipping import by_value
    from tests.debugging import test_debugging
    from tests.spark import pipelines

    bench = Workbench(spark, tmp_path_factory.mktemp("debug"))
    by_value([pipelines, test_debugging])

    def pipeline(process: Any, look_up: Any = names_of) -> sf.Pipeline:
        @sf.pipeline("shop")
        def orders(flow: sf.Flow) -> None:
            rows = flow.source(
                "orders",
                bench.source("orders", "id int, user int, amount double, ts timestamp"),
                Order,
                event_time="ts",
                watermark="0 seconds",
            )
            totals = rows.key_by("user").process("balance", process)
            totals.for_each_batch("totals", unheard)
            last = totals.key_by("user").aggregate(
                "last", "user long, total double, n long", total=sf.sum("total"), n=sf.count()
            )
            last.for_each_batch("last", unheard)
            windows = (
                rows.key_by("user")
                .window(sf.tumbling("3 minutes"))
                .aggregate("windows", "user long, window_start timestamp, n long", n=sf.count())
            )
            windows.for_each_batch("windows", unheard)
            named = rows.key_by("user").enrich("names", look_up, "id long, user long, name string")
            named.for_each_batch("named", unheard)

        return orders

    for minute in range(3):
        bench.rows(
            "orders",
            [
                Order(10 * minute + user + 100 * twice, user, 1.0 + minute, at(2 * minute + twice / 10))
                for user in range(minute, minute + 2)
                for twice in range(2)
            ],
        )
    bench.run(pipeline(Balance), retained_checkpoints=20)
    return Shop(bench, pipeline)


@pytest.mark.parametrize("operator", ["balance", "last", "windows", "names"])
def test_the_same_code_gives_what_the_record_has(shop: Shop, operator: str) -> None:
    trial = shop.debug(operator, 1, shop.slots[2])

    assert trial.is_same, trial.document()
    assert trial.verdict == f"this code gives the same as what checkpoint {shop.slots[2]} holds for key 1"
    assert trial.before
    assert trial.after
    assert trial.after != trial.before or operator == "names", "who was asked before is not asked again"


def test_chance_the_clock_rows_and_a_timer_that_was_due_are_those_of_then(shop: Shop) -> None:
    trial = shop.debug("balance", 1, shop.slots[2])

    assert [row["id"] for (rows,) in [trial.rows] for row in rows] == [11, 111]
    assert trial.before["seen"] == [1, 101]
    assert trial.after["seen"] == trial.then["seen"]
    assert trial.after["luck"] == trial.then["luck"] != trial.before["luck"]
    assert [row["total"] for row in trial.output[""]][-1] == -1.0, "the timer fired"
    assert trial.notes == []


def test_rows_behind_an_operator_are_said_to_be_made_anew(shop: Shop) -> None:
    assert any("this code made them anew" in note for note in shop.debug("last", 1, shop.slots[2]).notes)


def test_other_code_gives_something_else_and_the_state_is_named(shop: Shop) -> None:
    trial = shop.debug("balance", 1, shop.slots[2], Doubled)

    assert trial.differences == ["total"]
    assert trial.verdict.endswith(": total")
    assert trial.after["total"] == trial.before["total"] + 8.0
    assert trial.then["total"] == trial.before["total"] + 4.0
    first = shop.debug("balance", 0, shop.slots[1])
    assert (first.before, first.is_same) == ({}, True)


def test_the_debugger_stops_at_the_first_line_of_each_function_that_gets_the_key(shop: Shop) -> None:
    typed = io.StringIO("p key\np list(self.seen)\ncontinue\np when\ncontinue\n")
    shown = io.StringIO()

    trial = shop.debug(
        "balance",
        1,
        shop.slots[2],
        run=lambda past, code: Stops(
            code_of(past.node.process_type), stdin=typed, stdout=shown
        ).run_until_done(code),
    )

    assert trial.is_same, "looking on changes nothing"
    said = shown.getvalue()
    assert "-> for row in rows:" in said
    assert "[1, 101]" in said
    assert "-> self.seen.add(-1)" in said
    assert "datetime.datetime(2026, 1, 1" in said
    assert said.count("->") == 2


def test_who_leaves_the_debugger_gets_no_answer_and_errors_of_the_code_are_not_hidden(shop: Shop) -> None:
    def under(typed: str) -> Any:
        return lambda past, code: Stops(
            code_of(past.node.process_type), stdin=io.StringIO(typed), stdout=io.StringIO()
        ).run_until_done(code)

    with pytest.raises(AssertionError, match="somebody has left"):
        shop.debug("balance", 1, shop.slots[2], run=under("quit\n"))
    with pytest.raises(UserCodeError, match="ZeroDivisionError"):
        shop.debug("balance", 1, shop.slots[2], Broken, run=under("continue\n"))


def test_what_cannot_be_debugged_is_refused_with_the_next_step(shop: Shop) -> None:
    with refused(NotFoundError, "no operator 'balanc'", "balance, last, windows, names"):
        shop.debug("balanc", 1, shop.slots[2])
    with refused(
        NotFoundError,
        f"checkpoint {shop.slots[3]} had no rows of key 0",
        "'balance'",
        f"{shop.slots[1]}, {shop.slots[2]}; ",
        "`stateflow history shop balance ",
    ):
        shop.debug("balance", 0, shop.slots[3])
    before, slot = shop.slots[2:4]
    with pytest.raises(NotFoundError, match="no kept checkpoint changed it") as caught:
        shop.debug("balance", 4711, slot)
    told = str(caught.value).rpartition("; `")[2]
    assert told == f"stateflow diff shop {before} {slot} --operator balance` shows keys that it changed"
    with Job(str(shop.bench.folder / "root"), "shop").diff(
        str(before), str(slot), operators=["balance"]
    ) as changed:
        assert {change.key for change in changed.changes()}
    with pytest.raises(UsageError, match="is int, and 'ann' is not one"):
        shop.debug("balance", "ann", shop.slots[2])
    with pytest.raises(NotFoundError, match="checkpoint 99"):
        shop.debug("balance", 1, 99)
    with pytest.raises(UsageError, match="names no checkpoint"):
        shop.debug("balance", 1, str(shop.bench.folder / "root"))

    first = shop.bench.folder / "orders" / "00002.json"
    away = first.rename(first.with_suffix(".away"))
    try:
        with refused(DisagreementError, "source 'orders'", "lacks 1 of 1 files"):
            shop.debug("balance", 1, shop.slots[2])
    finally:
        away.rename(first)


def test_a_history_shows_the_rows_of_each_version_and_what_is_gone(shop: Shop) -> None:
    found = shop.history("balance", "total", 1)

    ids = {slot: [row["id"] for row in rows.inputs[0]] for slot, rows in found.rows.items()}
    assert ids == {shop.slots[1]: [1, 101], shop.slots[2]: [11, 111]}
    assert [found.rows[slot].since for slot in ids] == shop.slots[:2]

    first = shop.bench.folder / "orders" / "00002.json"
    away = first.rename(first.with_suffix(".away"))
    try:
        rows = shop.history("balance", "total", 1).rows
    finally:
        away.rename(first)
    assert "lacks 1 of 1 files" in rows[shop.slots[2]].why
    assert [row["id"] for row in rows[shop.slots[1]].inputs[0]] == [1, 101], "the others are still shown"
