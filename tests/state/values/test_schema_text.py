"""Type texts: what `schema` writes is read back as the same type."""

from __future__ import annotations

import dataclasses
import uuid
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec
import pytest

from stateflow.state.values import schema_text as text
from stateflow.state.values.schema import schema_of
from stateflow.state.values.schema_text import UnreadableText, read_columns, read_schema


class Odd(Enum):
    ONE = 'it\'s, "quoted"'
    TWO = "}>=\\"
    THREE = "é"


class Level(IntEnum):
    LOW = -1
    HIGH = 2


class Place(NamedTuple):
    x: int
    y: str = "y"


class Loose(TypedDict):
    name: str
    age: NotRequired[int | None]


@dataclasses.dataclass
class Tree:
    value: int
    children: list[Tree] = dataclasses.field(default_factory=list)
    at: Place | None = None


class Empty(msgspec.Struct):
    pass


class Tagged(msgspec.Struct, tag="}'(\"", tag_field="k{=,"):
    x: int
    next: Tagged | None = None


class Numbered(msgspec.Struct, tag=-7):
    pass


HINTS: list[Any] = [
    bool, int, float, str, bytes, date, datetime, Decimal, time, timedelta, uuid.UUID, None,
    list[int], set[str], frozenset[bytes], tuple[int, ...], tuple[int, str], tuple[()], tuple[tuple[int], ...],
    dict[str, list[int]], dict[tuple[int, str], float | None], int | None, int | str, int | str | None,
    Odd, Level, Literal["a,b", "c>", 'd"', "e'"], Literal[1, -2, None], Place, Loose, Tree, Empty,
    list[dict[str, Tree | None]], Tagged, Numbered,
]  # fmt: skip


def written(tree: text.Tree) -> str:
    """The text of a tree, as `schema` writes it."""
    match tree:
        case text.ScalarText(name):
            return name
        case text.OptionalText(item):
            return f"optional<{written(item)}>"
        case text.UnionText(members):
            return f"union<{','.join(map(written, members))}>"
        case text.ListText(kind, item):
            return f"{kind}<{written(item)}{',...' if kind == 'tuple' else ''}>"
        case text.TupleText(items):
            return f"tuple<{','.join(map(written, items))}>"
        case text.MapText(key, value):
            return f"map<{written(key)},{written(value)}>"
        case text.ReferenceText(name):
            return f"struct {name}"
        case text.ChoiceText(name, members) if name:
            return f"enum {name}<{','.join(f'{member}={value!r}' for member, value in members)}>"
        case text.ChoiceText(_, members):
            return f"literal<{','.join(repr(value) for _, value in members)}>"
        case text.StructText(name, fields, by_position, tag):
            name += "" if tag is None else f"({tag.field!r}={tag.value!r})"
            parts = [f"{f.name}{'?' if f.defaulted else ''}:{written(f.type)}" for f in fields]
            return f"{'namedtuple' if by_position else 'struct'} {name}{{{','.join(parts)}}}"


@pytest.mark.parametrize("hint", HINTS, ids=str)
def test_every_type_is_read_from_its_text(hint: Any) -> None:
    schema = schema_of(hint)
    assert written(read_schema(schema)) == schema


def test_a_tree_says_what_the_type_is() -> None:
    tree = read_schema("struct Order{user:int,tags?:list<str>,parent?:optional<struct Order>}")
    assert tree == text.StructText(
        "Order",
        (
            text.FieldText("user", text.ScalarText("int")),
            text.FieldText("tags", text.ListText("list", text.ScalarText("str")), defaulted=True),
            text.FieldText("parent", text.OptionalText(text.ReferenceText("Order")), defaulted=True),
        ),
    )
    odd = read_schema(schema_of(Odd))
    assert isinstance(odd, text.ChoiceText)
    assert odd.values == tuple(member.value for member in Odd)


def test_columns_are_read_by_name() -> None:
    assert read_columns("columns{total:float,last:datetime}") == (
        text.FieldText("total", text.ScalarText("float")),
        text.FieldText("last", text.ScalarText("datetime")),
    )


@pytest.mark.parametrize(
    "schema",
    [
        "", "interval", "int,", "list<int", "list<int>>", "list<int,str>", "map<int>", "optional<>", "union<>", "struct",
        "struct A{", "struct A{x}", "struct A{x:int;y:int}", "enum A<B>", "enum A<B=c()>", "literal<'a>", "tuple<int,..>",
        "custom:a:1", "raw", "Int", "struct A('a'){x:int}", "struct A('a'='b')", "struct A('a'='b'{x:int}", "struct A(a='b'){x:int}",
        "struct A('a'=1.5){x:int}", "struct A('a'=007){x:int}",
    ],
)  # fmt: skip
def test_what_schema_does_not_write_is_refused(schema: str) -> None:
    with pytest.raises(UnreadableText, match="cannot read the type"):
        read_schema(schema)


def test_columns_that_are_none_are_refused() -> None:
    for schema in ("columns", "columns{a:int", "columns{a:int}x", "struct A{a:int}"):
        with pytest.raises(UnreadableText):
            read_columns(schema)
