"""`flow.state_changes`: its columns, and what is refused before Spark is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from typing import Any

import msgspec
import pytest

import stateflow as sf
from stateflow.errors import UsageError
from stateflow.pipelines.flow import Flow
from tests.refusals.refusal import lacking, refused


class Order(msgspec.Struct):
    user: int
    amount: float


class Address(msgspec.Struct):
    street: str
    since: date | None
    tags: list[str]


class Balance(sf.KeyedProcess[int, Order, Order]):
    total = sf.ValueState(float, default=0.0)
    address = sf.ValueState(Address)
    seen = sf.ListState(str)
    per_day = sf.MapState(date, float)
    spent = sf.ValueState(timedelta)
    late = sf.Timer("processing")

    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Iterator[Order]:
        yield from rows

    @late.fires
    def on_late(self, key: int, at: datetime, ctx: sf.Context) -> None: ...


def flow_with(declare: Callable[[Flow, Any], object] = lambda flow, keyed: None, rows: Any = Order) -> Flow:
    flow = Flow("orders")
    keyed = flow.source("in", lambda spark: spark, rows).key_by("user")
    keyed.process("balance", Balance)
    declare(flow, keyed)
    return flow


def refusal(call: Callable[[Flow, Any], object], rows: Any = Order) -> str:
    with pytest.raises(UsageError) as caught:
        flow_with(call, rows)
    return str(caught.value)


@pytest.mark.parametrize(
    ("state", "columns"),
    [
        ("total", "`user` bigint, `state` string, `kind` string, `before` double, `after` double"),
        (
            "address",
            (
                "`user` bigint, `state` string, `kind` string, `before` struct<street:string,since:date,tags:array<string>>, "
                "`after` struct<street:string,since:date,tags:array<string>>"
            ),
        ),
        (
            "seen",
            "`user` bigint, `added_slot` bigint, `position` bigint, `state` string, `kind` string, `before` string, `after` string",
        ),
        (
            "per_day",
            "`user` bigint, `map_key` date, `state` string, `kind` string, `before` double, `after` double",
        ),
    ],
)
def test_a_feed_has_the_columns_of_its_entries(state: str, columns: str) -> None:
    stream = flow_with().state_changes("balance", state=state)
    assert stream.rows is not None
    assert stream.rows.ddl == f"{columns}, `slot` bigint, `time` timestamp"


def test_a_column_that_the_key_has_already_gets_an_underscore() -> None:
    flow = Flow("orders")
    rows = flow.source("in", lambda spark: spark, "slot long, kind string, amount double")
    rows.key_by("slot", "kind").process_arrow(
        "sums", lambda rows, state, ctx: rows, state={"total": float}, output="slot long"
    )
    stream = flow.state_changes("sums")
    assert stream.rows is not None
    assert stream.rows.names == ("slot", "kind", "state", "kind_", "before", "after", "slot_", "time")


REFUSED: list[tuple[Callable[[Flow, Any], object], tuple[str, ...]]] = [
    (lambda flow, keyed: flow.state_changes("balence"), ("no operator 'balence'", "did you mean balance?")),
    (lambda flow, keyed: flow.state_changes("x"), ("no operator 'x'", "so far it has 'balance'")),
    (lambda flow, keyed: flow.state_changes("balance", state="totl"),
     ("operator 'balance'", "no state 'totl'", "did you mean total?")),
    (lambda flow, keyed: flow.state_changes("balance", state="late"),
     ("'late' of operator 'balance' is a timer", "'total', 'address', 'seen', ")),
    (lambda flow, keyed: flow.state_changes("balance"), ("such as flow.state_changes('balance', state='total')",)),
    (lambda flow, keyed: flow.state_changes("balance", state="spent"),
     ("operator 'balance', state 'spent'", "a duration[us]", "as a number or as text")),
    (lambda flow, keyed: [flow.state_changes("balance", state="total") for _ in range(2)],
     ("state 'total'", "taken already", "give it both sinks")),
    (lambda flow, keyed: [keyed.aggregate("sums", "user long, n long", n=sf.count()), flow.state_changes("sums")],
     ("operator 'sums' (running aggregate)", "take its rows", "a process of your own")),
]  # fmt: skip


@pytest.mark.parametrize(("call", "named"), REFUSED)
def test_what_has_no_feed_is_refused_in_one_sentence(
    call: Callable[[Flow, Any], object], named: tuple[str, ...]
) -> None:
    assert not lacking(refusal(call), named)


class Nothing(sf.KeyedProcess[int, Order, Order]):
    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Iterator[Order]:
        yield from rows


class Whole(sf.PartitionProcess[Order, Order]):
    def process(self, rows: Iterator[Order], ctx: sf.Context) -> Iterator[Order]:
        yield from rows


def test_operators_without_state_of_keys_have_no_feed() -> None:
    def nothing(flow: Flow, keyed: Any) -> None:
        keyed.process("none", Nothing)
        flow.state_changes("none")

    def whole(flow: Flow, keyed: Any) -> None:
        keyed.stream.process_partition("whole", Whole)
        flow.state_changes("whole")

    assert not lacking(refusal(nothing), ("operator 'none'", "no state of keys", "leave its feed out"))
    assert not lacking(refusal(whole), ("operator 'whole'", "no key"))


def test_a_key_whose_type_only_spark_knows_is_refused() -> None:
    flow = Flow("orders")
    rows = flow.source("in", lambda spark: spark)
    rows.key_by("user").process_arrow(
        "sums", lambda rows, state, ctx: rows, state={"total": float}, output="user long"
    )
    with refused(UsageError, "key column 'user'", "operator 'sums'", "is not known"):
        flow.state_changes("sums")


def test_a_side_output_cannot_be_called_as_a_feed_is() -> None:
    flow = Flow("orders")
    keyed = flow.source("in", lambda spark: spark, Order).key_by("user")
    keyed.process("balance", Balance, outputs=[sf.output("changes-of-total", Order)])
    with refused(UsageError, "side output 'changes-of-total'", "state 'total'"):
        flow.state_changes("balance", state="total")


def test_a_feed_that_nobody_reads_is_refused() -> None:
    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        keyed = flow.source("in", lambda spark: spark, Order).key_by("user")
        keyed.process("balance", Balance).append("out", sf.delta("/tmp/out"))
        flow.state_changes("balance", state="total")

    with refused(UsageError, "does nothing", "state 'total'", "operator 'balance'"):
        orders.build()


def test_an_operator_whose_feed_alone_is_read_needs_no_other_sink() -> None:
    @sf.pipeline("orders")
    def orders(flow: sf.Flow) -> None:
        keyed = flow.source("in", lambda spark: spark, Order).key_by("user")
        keyed.process("balance", Balance)
        feed = flow.state_changes("balance", state="total")
        feed.append("changes", sf.delta("/tmp/changes"))
        gone = "kind in ('delete', 'expire')"
        feed.upsert("current", sf.delta("/tmp/current"), keys="user", delete_when=gone, order_by="slot")

    assert [sink.uid for sink in orders.build().sinks] == ["changes", "current"]
