"""Row types: from Python's types and from schema strings to Spark's."""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, NamedTuple, Optional

import msgspec
import pytest

from stateflow.errors import UsageError
from stateflow.pipelines.ready.aggregates import fits
from stateflow.pipelines.rows.row_type import key_type, row_type, untyped_rows
from stateflow.pipelines.rows.type_text import same_type
from tests.refusals.refusal import refused


@dataclass
class Point:
    x: int
    y: float | None = None


class Tag(msgspec.Struct):
    name: str
    at: datetime | None = None


class Pair(NamedTuple):
    a: int
    b: str


@dataclass
class All:
    a: bool
    b: int
    c: float
    d: str
    e: bytes
    f: datetime
    g: date
    h: Decimal
    i: Annotated[Decimal, "decimal(10,2)"]
    j: Annotated[int, "int"]
    k: int | None
    l: Optional[str]  # noqa: E741, UP045 - older code writes it so
    m: list[int]
    n: dict[str, Point]
    o: Point
    p: Tag
    q: tuple[str, ...]
    r: list[Tag] | None = None
    hidden: int = field(default=0, init=False)


@dataclass
class Sale:
    user: int
    channel: str = "web"
    tags: list[str] = field(default_factory=list)
    note: str | None = "none given"
    at: Annotated[datetime | None, "timestamp_ntz"] = datetime(2026, 1, 1)
    raw: Annotated[Any, "variant"] = "?"
    shop: str = None  # type: ignore[assignment]


class SaleStruct(msgspec.Struct, kw_only=True):
    user: int
    channel: str = "web"
    tags: list[str] = []
    note: str | None = "none given"


class SaleTuple(NamedTuple):
    user: int
    channel: str = "web"
    note: str | None = "none given"


@pytest.mark.parametrize("declared", [Sale, SaleStruct, SaleTuple])
def test_a_default_stands_for_a_null_where_the_type_allows_no_none(declared: Any) -> None:
    rows = row_type(declared)
    defaults = rows.defaults_but(())
    assert defaults.keys() == {"channel", "tags"} & set(rows.names)
    assert defaults["channel"].fill(["app", None]) == ["app", "web"]
    assert rows.defaults_but(("channel",)).keys() == {"tags"} & set(rows.names)
    if "tags" in defaults:
        one, other = defaults["tags"].fill([None, None])
        assert (one, other) == ([], [])
        assert one is not other


def test_a_dataclass_gives_names_types_and_nullability() -> None:
    rows = row_type(All)
    assert {f.name: f.type for f in rows.fields} == {
        "a": "boolean", "b": "bigint", "c": "double", "d": "string", "e": "binary", "f": "timestamp", "g": "date",
        "h": "decimal(38,18)", "i": "decimal(10,2)", "j": "int", "k": "bigint", "l": "string", "m": "array<bigint>",
        "n": "map<string,struct<x:bigint,y:double>>", "o": "struct<x:bigint,y:double>",
        "p": "struct<name:string,at:timestamp>", "q": "array<string>", "r": "array<struct<name:string,at:timestamp>>",
    }  # fmt: skip
    assert {f.name for f in rows.fields if f.nullable} == {"k", "l", "r"}
    assert rows.typed
    assert rows.name == "All"
    assert rows.ddl.startswith("`a` boolean, `b` bigint")


def test_structs_and_named_tuples_are_row_types_too() -> None:
    assert row_type(Tag).names == ("name", "at")
    assert row_type(Pair).names == ("a", "b")
    assert row_type(Pair).make(1, "x") == Pair(1, "x")
    assert row_type(Tag).make("x", None) == Tag("x")
    assert row_type(row_type(Pair)) == row_type(Pair)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("user long, total double", {"user": "bigint", "total": "double"}),
        ("user: long, total: double", {"user": "bigint", "total": "double"}),
        ("`user` BIGINT NOT NULL,\n total FLOAT", {"user": "bigint", "total": "float"}),
        ("a integer, b short, c byte, d real", {"a": "int", "b": "smallint", "c": "tinyint", "d": "float"}),
        ("a decimal(10,2), b string", {"a": "decimal(10,2)", "b": "string"}),
        ("m map<string,array<int>>, s struct<x:bigint,y:string>", {"m": "map<string,array<int>>",
                                                                   "s": "struct<x:bigint,y:string>"}),
        ("ärger double, `größe` int", {"ärger": "double", "größe": "int"}),
        ("s struct<`a,b`:int>, c int", {"s": "struct<`a,b`:int>", "c": "int"}),
    ],
)  # fmt: skip
def test_schema_strings_are_read_as_spark_reads_them(text: str, expected: dict[str, str]) -> None:
    rows = row_type(text)
    assert {f.name: f.type for f in rows.fields} == expected
    assert not rows.typed
    assert rows.field("user") is None or rows.field("user") == rows.fields[0]


@pytest.mark.parametrize("name", ["order id", "a,b", "1st", "a-b"])
def test_a_column_that_cannot_be_read_by_its_name_is_named_whole(name: str) -> None:
    with refused(UsageError, repr(name), "needs another name", ".transform("):
        row_type(f"id bigint, `{name}` string")


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ([("k", "bigint"), ("a.b", "bigint")], ("'a.b'", "withColumnRenamed('a.b', 'a_b')")),
        ([("order id", "bigint")], ("'order id'", "withColumnRenamed('order id', 'order_id')")),
        ([("1st", "string")], ("'1st'", "withColumnRenamed('1st', 'c_1st')")),
        ([("k`", "string")], ("'k`'", "withColumnRenamed('k`', 'k_')")),
        ([("k", "bigint"), ("K", "bigint")], ("'k' and 'K'", "differ in case")),
    ],
)
def test_a_column_that_no_type_declares_is_told_of_with_who_takes_it(
    columns: list[tuple[str, str]], named: tuple[str, ...]
) -> None:
    with refused(UsageError, "operator 'op'", *named):
        untyped_rows("operator 'op'", columns)


def test_fields_inside_of_a_class_that_differ_in_case_alone_are_refused() -> None:
    @dataclass
    class Priced:
        net: float
        NET: float

    @dataclass
    class WithPrices:
        id: int
        prices: Annotated[list[dict[str, Any]], "array<struct<net:double,NET:double>>"]

    price = make_dataclass("OfPrices", [("id", int), ("prices", dict[str, list[Priced | None]])])
    for declared in (price, WithPrices):
        with refused(UsageError, declared.__name__, "'prices'", "'net' and 'NET'", "differ in case"):
            row_type(declared)


def test_columns_that_no_type_declares_may_be_called_as_words_of_sql() -> None:
    rows = untyped_rows("operator 'op'", [("select", "bigint"), ("größe", "map<string,bigint>")])
    assert rows.ddl == "`select` bigint, `größe` map<string,bigint>"


def test_an_untyped_row_is_a_named_tuple() -> None:
    row = row_type("user long, total double").make(1, 2.0)
    assert (row.user, row.total) == (1, 2.0)


def test_names_inside_of_structs_keep_their_case() -> None:
    assert row_type("a STRUCT<userId: BIGINT>").fields[0].type == "struct<userId: BIGINT>"


@pytest.mark.parametrize(
    ("column", "key"),
    [("bigint", "int"), ("int", "int"), ("tinyint", "int"), ("string", "str"), ("binary", "bytes"), ("date", "date"),
     ("boolean", "bool"), ("timestamp", "datetime"), ("decimal(10,2)", "decimal"), ("double", None), ("float", None),
     ("array<int>", None), ("struct<a:int>", None)],
)  # fmt: skip
def test_what_can_be_a_key(column: str, key: str | None) -> None:
    assert key_type(column) == key


def test_names_of_types_inside_of_others_are_sparks() -> None:
    rows = row_type("a map<string, long>, b array<INTEGER>, c struct<long: short, x:long>, d long")
    assert [field.type for field in rows.fields] == [
        "map<string, bigint>", "array<int>", "struct<long: smallint, x:bigint>", "bigint",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("struct<value:string,count:bigint>", "STRUCT<value string, count LONG>", True),
        ("array<struct<`a`:int>>", "ARRAY< struct < a: INTEGER > >", True),
        ("map<string,decimal(10,0)>", "map<string, decimal>", True),
        ("decimal(12, 2)", "NUMERIC(12,2)", True),
        ("struct<a:int,b:int>", "struct<b int, a int>", False),
        ("struct<a:int>", "struct<A int>", False),
        ("array<int>", "array<bigint>", False),
    ],
)
def test_a_type_is_itself_however_it_is_written(one: str, other: str, same: bool) -> None:
    assert same_type(one, other) is same is fits(one, other)
