"""A column whose values state holds as numbers or bytes of another meaning: a decimal's digits without the point, a date's day.

The state's own types do not change with it, so operators would read other values: a sum of 30.00 as 0.30.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import make_dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any

import pytest

import stateflow as sf
from tests.compatibility.test_ready_options import Count, Declare, Streams, problem

Make = Callable[[str], Declare]


def on(step: Callable[[Any, str], Any]) -> Make:
    """By the type of column v, the operator on rows with it."""

    def of(kind: str) -> Declare:
        def declare(s: Streams) -> Any:
            rows = f"sku string, v {kind}, n int, ts timestamp"
            return step(
                s.flow.source("rows", sf.delta("/rows"), rows, event_time="ts", watermark="1 minute"), kind
            )

        return declare

    return of


def running(make: Callable[[], Any], output: str = "sku string, a {}", **key: Any) -> Make:
    return on(lambda rows, kind: rows.key_by("sku", **key).aggregate("op", output.format(kind), a=make()))


class Unread(sf.WindowProcess[str, Any, Count]):
    def process(self, key: str, window: Any, rows: list[Any], ctx: Any) -> Iterable[Count]:
        return ()


KEEPING: dict[str, Make] = {
    "min": running(lambda: sf.min("v")),
    "max": running(lambda: sf.max("v")),
    "last": running(lambda: sf.last("v"), order_by="ts"),
    "last of another column": running(lambda: sf.last("n"), "sku string, a int", order_by="v"),
    "collect": running(lambda: sf.collect("v", limit=3), "sku string, a array<{}>", order_by="ts"),
    "top_values": running(lambda: sf.top_values("v", 3), "sku string, a array<{}>"),
    "count_distinct": running(lambda: sf.count_distinct("v"), "sku string, a long"),
    "approximate": running(lambda: sf.count_distinct("v", approximate=True), "sku string, a long"),
    "window": on(lambda rows, kind: rows.key_by("sku").window(sf.tumbling("1 hour")).aggregate("op", f"sku string, a {kind}", a=sf.max("v"))),
    "window of a count": on(lambda rows, kind: rows.key_by("sku").window(sf.count_window(3)).aggregate("op", f"sku string, a {kind}", a=sf.max("v"))),
    "deduplicate": on(lambda rows, kind: rows.deduplicate("op", by="sku", within="1 day", keep="last")),
    "top": on(lambda rows, kind: rows.key_by("sku").top("op", 3, by="-n")),
    "top by it": on(lambda rows, kind: rows.key_by("sku").top("op", 3, by="-v")),
    "latest": on(lambda rows, kind: rows.key_by("sku").latest("op")),
}  # fmt: skip
WHOLE_ROWS: dict[str, Make] = {
    "window code": on(lambda rows, kind: rows.key_by("sku").window(sf.tumbling("1 hour")).process("op", Unread)),
    "window code of a count": on(lambda rows, kind: rows.key_by("sku").window(sf.count_window(3)).process("op", Unread)),
    "join": on(lambda rows, kind: rows.key_by("sku").join("op", rows.key_by("sku"), f"left_v {kind}", within=("-1 hour", "1 hour"))),
    "join by windows": on(lambda rows, kind: rows.key_by("sku").window(sf.tumbling("1 hour")).join("op", rows.key_by("sku"), f"right_v {kind}")),
    "as-of join": on(lambda rows, kind: rows.key_by("sku").join_asof("op", rows.key_by("sku"), f"right_v {kind}")),
    "latest join": on(lambda rows, kind: rows.key_by("sku").join_latest("op", rows.key_by("sku"), f"right_v {kind}")),
}  # fmt: skip
"""Their values lie side by side, each with its point."""
SUMS: dict[str, Make] = {
    "sum": running(lambda: sf.sum("v"), "sku string, a decimal(38,6)"),
    "mean": running(lambda: sf.mean("v"), "sku string, a decimal(38,10)"),
}
APART: dict[str, Make] = {
    "count": running(lambda: sf.count("v"), "sku string, a long"),
    "quantile": running(lambda: sf.quantile("v", 0.5), "sku string, a double"),
    "variance": running(lambda: sf.variance("v"), "sku string, a double"),
    "sum of another column": running(lambda: sf.sum("n"), "sku string, a long"),
}


@pytest.mark.parametrize("make", [*KEEPING.values(), *SUMS.values()], ids=[*KEEPING, *SUMS])
def test_other_digits_behind_the_point_are_refused(make: Make) -> None:
    said = problem(make("decimal(20,2)"), make("decimal(22,4)"))
    assert "decimals with 2 digits behind the point" in said
    assert "decimals with 4 digits behind the point" in said
    assert "begins anew" in said
    assert problem(make("decimal(20,2)"), make("decimal(22,2)")) == ""
    assert problem(make("decimal(20,2)"), make("decimal(22,4)"), files=False) == ""


@pytest.mark.parametrize("make", [*KEEPING.values(), *WHOLE_ROWS.values()], ids=[*KEEPING, *WHOLE_ROWS])
def test_a_date_is_no_number(make: Make) -> None:
    for was, now in (("date", "int"), ("int", "date"), ("decimal(9,2)", "binary")):
        assert problem(make(was), make(now)), (was, now)
    assert problem(make("date"), make("date")) == problem(make("int"), make("bigint")) == ""


@pytest.mark.parametrize("name", ["approximate", "collect"])
def test_of_values_side_by_side_no_type_changes(name: str) -> None:
    for was, now in (
        ("int", "double"),
        ("int", "string"),
        ("double", "decimal(9,2)"),
        ("decimal(9,0)", "int"),
    ):
        assert problem(KEEPING[name](was), KEEPING[name](now)), (was, now)


@pytest.mark.parametrize("make", [*APART.values(), *WHOLE_ROWS.values()], ids=[*APART, *WHOLE_ROWS])
def test_what_keeps_no_such_value_goes_on(make: Make) -> None:
    assert problem(make("decimal(20,2)"), make("decimal(22,4)")) == ""


@pytest.mark.parametrize("make", [*KEEPING.values(), *WHOLE_ROWS.values()], ids=[*KEEPING, *WHOLE_ROWS])
@pytest.mark.parametrize("kind", ["decimal(20,2)", "date", "int"])
def test_a_record_of_before_these_were_noted_goes_on(make: Make, kind: str) -> None:
    assert problem(make(kind), make(kind), forgotten="kind of values in ") == ""


NESTED = (
    ("struct<a:int>", "struct<b:int>"),
    ("struct<a:int,b:int>", "struct<a:int>"),
    ("struct<a:int,b:int>", "struct<b:int,a:int>"),
    ("struct<a:bigint>", "struct<a:string>"),
    ("array<int>", "array<string>"),
    ("array<struct<a:int>>", "array<struct<b:int>>"),
    ("map<string,int>", "map<string,double>"),
)


@pytest.mark.parametrize("name", ["window code", "window code of a count"])
def test_window_code_reads_no_nested_column_as_another(name: str) -> None:
    make = WHOLE_ROWS[name]
    for was, now in NESTED:
        said = problem(make(was), make(now))
        assert was in said
        assert now in said
        assert problem(make(was), make(now), files=False) == ""
    assert problem(make("struct<a: int, b: long>"), make("STRUCT<a:integer,b:bigint>")) == ""


def test_a_record_that_tells_of_a_nested_column_its_family_alone_goes_on_with_that() -> None:
    make = WHOLE_ROWS["window code"]
    for was, now in NESTED:
        family = was.partition("<")[0]
        known = {"kind of values in column 'v'": f"{family} values"}
        assert problem(make(was), make(now), noted=known) == ""
        other = "map<string,int>" if family != "map" else "array<int>"
        assert f"{family} values" in problem(make(was), make(other), noted=known)


def test_a_field_of_a_nested_class_counts_by_its_name() -> None:
    def of(name: str) -> Declare:
        row = make_dataclass(
            "Row", [("sku", str), ("ts", datetime), ("v", make_dataclass("Money", [(name, int)]))]
        )
        return lambda s: (
            s.flow.source("rows", sf.delta("/rows"), row, event_time="ts", watermark="1 minute")
            .key_by("sku")
            .window(sf.tumbling("1 hour"))
            .process("op", Unread)
        )

    assert "cents" in problem(of("cents"), of("euros"))
    assert problem(of("cents"), of("cents")) == ""


def test_what_left_and_comes_back_is_told_too() -> None:
    """Entries that nobody has written in between have the values of then."""
    two, four = (
        "sku string, d date, v decimal(20,2), ts timestamp",
        "sku string, d date, v decimal(20,4), ts timestamp",
    )

    def sums(rows: str, **aggregates: Any) -> Declare:
        output = "sku string, n long" + (", s decimal(38,6)" if aggregates else "")
        return lambda s: (
            s.flow.source("rows", sf.delta("/rows"), rows, event_time="ts", watermark="1 minute")
            .key_by("sku")
            .aggregate("op", output, n=sf.count(), **aggregates)
        )

    between = sums(two)
    assert "2 digits behind the point" in problem(
        sums(two, s=sf.sum("v")), sums(four, s=sf.sum("v")), between=between
    )
    assert "was sum(v) and is max(v) now" in problem(
        sums(two, s=sf.sum("v")), sums(two, s=sf.max("v")), between=between
    )
    assert problem(sums(two, s=sf.sum("v")), sums(two, s=sf.sum("v")), between=between) == ""
    assert problem(sums(two, s=sf.sum("v")), between, between=between) == ""

    def latest(rows: str) -> Declare:
        return lambda s: (
            s.flow.source("rows", sf.delta("/rows"), rows, event_time="ts", watermark="1 minute")
            .key_by("sku")
            .latest("op")
        )

    without = latest("sku string, ts timestamp")
    assert "2 digits behind the point" in problem(latest(two), latest(four), between=without)
    assert problem(latest(two), latest(two), between=without) == ""


def test_a_column_that_comes_goes_or_is_renamed_is_no_other_kind() -> None:
    def latest(rows: Any) -> Declare:
        return lambda s: (
            s.flow.source("rows", sf.delta("/rows"), rows, event_time="ts", watermark="1 minute")
            .key_by("sku")
            .latest("op")
        )

    plain, more = "sku string, ts timestamp", "sku string, d date, v decimal(20,2), ts timestamp"
    assert problem(latest(plain), latest(more)) == ""
    assert problem(latest(more), latest(_renamed("decimal(20,2)"))) == ""
    assert "'paid' had decimals with 2 digits" in problem(latest(more), latest(_renamed("decimal(22,4)")))


def _renamed(kind: str) -> Any:
    paid: Any = Annotated[Decimal, kind, sf.field(aliases=["v"])]
    return make_dataclass("Row", [("sku", str), ("ts", datetime), ("d", date), ("paid", paid)])
