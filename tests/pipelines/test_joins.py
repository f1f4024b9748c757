"""Joins that cannot be are refused when the pipeline is built, in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest

import stateflow as sf
from stateflow.pipelines.graph import KeyedNode
from stateflow.pipelines.streams import KeyedStream
from tests.refusals.refusal import refused


@dataclass
class Click:
    ad: int
    who: str
    tags: list[str]
    ts: datetime


@dataclass
class View:
    ad_id: int
    page: str
    who: str
    ts: datetime


@dataclass
class Paid:
    ad: int
    page: str


@dataclass
class Both:
    ad_id: int
    left_who: str
    right_who: str
    left_ts: datetime
    right_ts: datetime
    right_ad_id: int


@dataclass
class Ambiguous:
    who: str


@dataclass
class Unknown:
    price: float


@dataclass
class WrongType:
    page: int


@dataclass
class Listed:
    tags: list[str]


def made(join: Callable[[KeyedStream, KeyedStream], Any], **time: Any) -> KeyedNode:
    event_time = time or {"event_time": "ts", "watermark": "0 seconds"}

    @sf.pipeline("joins")
    def joins(flow: sf.Flow) -> None:
        clicks = flow.source("clicks", sf.delta("/clicks"), Click, **event_time).key_by("ad")
        join(clicks, flow.source("views", sf.delta("/views"), View, **event_time).key_by("ad_id"))

    return joins.build().operators[0]


WITHIN = ("-10 minutes", "0 minutes")


def joined(left: Click, right: View | None) -> Paid:
    return Paid(left.ad, right.page if right else "")


def untyped(left: Click, right: View | None):  # type: ignore[no-untyped-def]
    return None


def test_fields_are_filled_from_the_key_from_either_row_and_by_prefix() -> None:
    node = made(lambda left, right: left.join("paid", right, Both, within=WITHIN, how="left"))
    operator: Any = node.columnar
    assert [(each.field, each.of, each.column) for each in operator.filled] == [
        ("ad_id", "right_key", "ad"),
        ("left_who", "left", "who"),
        ("right_who", "right", "who"),
        ("left_ts", "left", "ts"),
        ("right_ts", "right", "ts"),
        ("right_ad_id", "right_key", "ad"),
    ]
    assert operator.left.needed.names == ("ad", "who", "ts"), "columns that nobody asks for do not travel"
    assert (operator.least, operator.most) == (-600_000_000, 0)


@dataclass
class Keys:
    ad: int
    ad_id: int


@pytest.mark.parametrize(
    ("how", "of"),
    [
        ("inner", ["key", "key"]),
        ("left", ["key", "right_key"]),
        ("right", ["left_key", "key"]),
        ("full", ["left_key", "right_key"]),
    ],
)
def test_a_key_under_a_name_of_its_own_is_null_where_its_row_is_not_there(how: str, of: list[str]) -> None:
    """Else an order without a payment would have the payment's key."""
    node = made(lambda left, right: left.join("paid", right, Keys, within=WITHIN, how=how))
    operator: Any = node.columnar
    assert [each.of for each in operator.filled] == of


def test_a_function_gets_whole_rows() -> None:
    views = made(
        lambda left, right: right.join(
            "paid", left.stream.transform(lambda f: f, type=View).key_by("ad_id"), swapped, within=WITHIN
        )
    )
    operator: Any = views.columnar
    assert operator.left.needed.names == ("ad_id", "page", "who", "ts")
    assert operator.output.names == ("ad", "page")


def swapped(left: View, right: View) -> Paid:
    return Paid(left.ad_id, right.page)


def test_a_semi_join_puts_out_left_rows_unless_it_is_told_otherwise() -> None:
    node = made(
        lambda left, right: right.join(
            "seen", left.stream.transform(lambda f: f, type=View).key_by("ad_id"), within=WITHIN, how="semi"
        )
    )
    assert node.output is not None
    assert node.output.names == ("ad_id", "page", "who", "ts")


JOIN = Callable[[KeyedStream, KeyedStream], Any]
REFUSED: list[tuple[JOIN, tuple[str, ...]]] = [
    (lambda left, right: left.join("paid", right, Paid), ("join 'paid' has no bound", "within=('-10 minutes', '0 minutes')")),
    (lambda left, right: left.join("paid", right, Paid, within="1 hour"), ("within is '1 hour'", "two durations")),
    (lambda left, right: left.join("paid", right, Paid, within=("5 minutes", timedelta(0))),
     ("within begins at '5 minutes'", "the smaller one first")),
    (lambda left, right: left.join("paid", right, Paid, within=("a bit", "0 minutes")), ("'a bit' is not a duration",)),
    (lambda left, right: left.join("paid", right, Paid, within=WITHIN, how="outer"),
     ("inner, left, right, full, semi, anti", "'outer'")),
    (lambda left, right: left.join("paid", right, Ambiguous, within=WITHIN),
     ("column 'who'", "Ambiguous.who", "left_who or right_who")),
    (lambda left, right: left.join("paid", right, Unknown, within=WITHIN),
     ("Unknown.price", "its rows have ad, who, tags, ts, ad_id, page")),
    (lambda left, right: left.join("paid", right, Paid, within=WITHIN, how="anti"),
     ("Paid.page", "its rows have ad, who, tags, ts")),
    (lambda left, right: left.join("paid", right, WrongType, within=WITHIN),
     ("string", "WrongType.page", "bigint", "the type of the field")),
    (lambda left, right: left.join("paid", right, Listed, within=WITHIN),
     ("column 'tags' (array<string>)", "the left row", "make a string of it")),
    (lambda left, right: left.join("paid", right, joined, within=WITHIN), ("cannot keep column 'tags'",)),
    (lambda left, right: left.join("paid", right, untyped, within=WITHIN), ("function 'untyped'", "write its type")),
    (lambda left, right: left.join("paid", right, within=WITHIN), ("say what it puts out", "a row type, or a function")),
    (lambda left, right: left.join("paid", right, joined, within=WITHIN, how="semi"), ("how='semi'", "calls no function")),
    (lambda left, right: left.join("paid", right.stream.key_by("ad_id", "who"), Paid, within=WITHIN),
     ("join 'paid'", "1 key columns", "the right one 2")),
    (lambda left, right: left.join("paid", right.stream.key_by("page"), Paid, within=WITHIN),
     ("join 'paid'", "keyed by ad (bigint)", "by page (string)")),
    (lambda left, right: left.stream.key_by("ts").join("paid", right.stream.key_by("ts"), Paid, within=WITHIN),
     ("column 'ts'", "the event time", "the key as well")),
    (lambda left, right: left.join("paid", right, Paid, within=WITHIN)
     .key_by("ad").window(sf.tumbling("1 minute")).aggregate("n", Paid, n=sf.count()),
     ("operator 'n'", "no column 'ts'", "it has ad, page", "time='...'")),
    # joins with versions
    (lambda left, right: left.join_asof("paid", right, Paid, how="full"), ("join 'paid'", "left, inner, not 'full'")),
    (lambda left, right: left.join_asof("paid", right, Paid, keep="-1 hour"), ("keep is '-1 hour'", "zero or more")),
    (lambda left, right: left.join_latest("paid", right, Paid, how="anti"), ("join 'paid'", "left, inner, not 'anti'")),
]  # fmt: skip


@pytest.mark.parametrize(("join", "named"), REFUSED)
def test_a_join_that_cannot_be_is_refused(join: JOIN, named: tuple[str, ...]) -> None:
    with refused(sf.UsageError, *named):
        made(join)


@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("how", ["right", "full", "left", "inner"])
def test_a_key_of_right_rows_without_partners_has_to_fit_its_field(how: str, windows: bool) -> None:
    def joining(field: str) -> JOIN:
        def join(left: KeyedStream, right: KeyedStream) -> Any:
            narrow = left.stream.transform(lambda f: f, type="ad int, ts timestamp").key_by("ad")
            wide = right.stream.transform(lambda f: f, type="ad long, page string, ts timestamp").key_by("ad")
            output = f"ad {field}, page string"
            if windows:
                return narrow.window(sf.tumbling("1 minute")).join("paid", wide, output, how=how)
            return narrow.join("paid", wide, output, within=WITHIN, how=how)

        return join

    if how in ("right", "full"):
        with refused(
            sf.UsageError, "join 'paid'", "Row.ad, which is int", "'ad' as bigint", "make the field bigint"
        ):
            made(joining("int"))
    else:
        made(joining("int"))
    made(joining("long"))


def answers(keys: list[Any]) -> list[Any]:
    return [None for _ in keys]


@pytest.mark.parametrize(
    ("join", "message"),
    [
        (
            lambda left, right: ordered(left).join("paid", right, Paid, within=WITHIN),
            "join 'paid': order_by of the left input has no effect, for every pair within the bounds comes out: leave it out of key_by()",
        ),
        (
            lambda left, right: left.join("paid", ordered(right), Paid, within=WITHIN),
            "join 'paid': order_by of the right input has no effect, for every pair within the bounds comes out: leave it out of key_by()",
        ),
        (
            lambda left, right: left.window(sf.tumbling("1 minute")).join("paid", ordered(right), Paid),
            "join 'paid': order_by of the right input has no effect, for every pair of a window comes out: leave it out of key_by()",
        ),
        (
            lambda left, right: ordered(left).join_asof("paid", right, Paid),
            ("join 'paid': order_by of the left input has no effect, for the event time of a left row says which version it gets: leave "
            "it out of key_by()"),
        ),
        (
            lambda left, right: ordered(left).join_latest("paid", right, Paid),
            ("join 'paid': order_by of the left input has no effect, for a left row gets the version that is known when it comes: leave "
            "it out of key_by()"),
        ),
        (
            lambda left, right: ordered(left).enrich("geo", answers, "ad long, who string, country string"),
            "operator 'geo': order_by has no effect, for each row gets the answer for its key: leave it out of key_by()",
        ),
    ],
)  # fmt: skip
def test_an_order_that_decides_nothing_is_refused(join: Any, message: str) -> None:
    with pytest.raises(sf.UsageError) as caught:
        made(join)
    assert str(caught.value) == message


def ordered(keyed: KeyedStream, *order_by: str) -> KeyedStream:
    return keyed.stream.key_by(*keyed.columns, order_by=order_by or ("who",))


@pytest.mark.parametrize("join", ["join_asof", "join_latest"])
def test_columns_by_which_versions_are_ordered_travel_with_them(join: str) -> None:
    node = made(
        lambda left, right: getattr(left, join)("paid", ordered(right, "-who", "ts", "ad_id"), "ad long")
    )
    operator: Any = node.columnar
    ordering = ("-who",) if join == "join_asof" else ("-who", "ts")
    assert operator.right.order_by == ordering, (
        "the key and the time of an as-of join are alike in rows that are compared"
    )
    assert set(operator.right.needed.names) == {"ad_id", "who", "ts"}


def test_a_join_without_event_time_is_refused() -> None:
    with refused(sf.UsageError, "operator 'paid'", "needs event time"):
        made(lambda left, right: left.join("paid", right, Paid, within=WITHIN), late=None)
