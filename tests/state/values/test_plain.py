"""Values of single look-ups are what a table of the state shows, only sooner."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from math import inf, nan
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest

from stateflow.errors import CorruptError, IncompatibleError, UsageError
from stateflow.format.encoding import EMPTY_NAMESPACE, prefix
from stateflow.format.keygroups import xxhash64
from stateflow.format.records import StateSchema
from stateflow.state.columns.layout import ColumnLayout
from stateflow.state.columns.state import ColumnState
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.keys.text import key_of_plain, key_of_text, text_of_key
from stateflow.state.tabular import StateTable
from stateflow.state.values.plain import comparable, jsonable, plain_reader
from stateflow.state.values.serializers import CustomSerializer, serializer_for
from tests.refusals.refusal import refused

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


class Point(NamedTuple):
    x: int
    label: str = "none"


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


@dataclass(frozen=True)
class Place:
    row: int
    name: str


@dataclass
class Line:
    sku: str
    price: Decimal
    at: datetime
    tags: list[str] = field(default_factory=list)


@dataclass
class Order:
    id: int
    lines: list[Line]
    by_day: dict[date, list[Line]]
    points: list[Point]
    pair: tuple[int, str]
    colour: Colour
    level: Level
    size: Literal["s", "m"]
    seen: set[int]
    first: Line | None = None
    grid: dict[tuple[int, int], float] = field(default_factory=dict)
    places: dict[Place, int] = field(default_factory=dict)
    span: timedelta = timedelta(seconds=1)
    key: UUID = field(default_factory=lambda: UUID(int=7))
    clock: time = time(1, 2, 3)
    data: bytes = b"\x00\xff"
    nothing: None = None


class Packed(msgspec.Struct, array_like=True):
    a: int
    b: datetime | None = None


class Sparse(TypedDict, total=False):
    a: int
    b: str
    c: list[int]


LINE = Line("a", Decimal("12.5"), AT, ["x"])
ORDER = Order(
    1, [LINE, LINE], {date(2026, 1, 2): [LINE]}, [Point(1), Point(2, "two")], (1, "one"), Colour.GREEN, Level.HIGH,
    "m", {3, 4}, LINE, {(1, 2): 0.5}, {Place(1, "here"): 2},
)  # fmt: skip
VALUES: list[tuple[Any, Any]] = [
    (bool, True),
    (int, -(2**63)),
    (float, -0.1),
    (str, "gr\u00fc\u00df\0e"),
    (bytes, b"\0\x01"),
    (date, date(1, 1, 1)),
    (datetime, AT),
    (datetime, datetime(1, 1, 1, tzinfo=UTC)),
    (Decimal, Decimal("-12.500")),
    (int | None, None),
    (int | None, 5),
    (list[int], []),
    (list[datetime], [AT, datetime(2600, 1, 1, tzinfo=UTC)]),
    (tuple[str, ...], ("a", "b")),
    (frozenset[str], frozenset({"a"})),
    (tuple[int, str, date | None], (1, "a", None)),
    (dict[str, int], {"a": 1}),
    (dict[int, dict[date, float]], {1: {date(2026, 1, 1): 0.5}}),
    (dict[tuple[str, int], Point], {("a", 1): Point(1)}),
    (timedelta, timedelta(days=2, microseconds=3)),
    (time, time(1, 2, 3)),
    (UUID, UUID(int=7)),
    (Colour, Colour.RED),
    (Level, Level.LOW),
    (Literal[1, 2], 2),
    (Point, Point(1, "p")),
    (Place, Place(1, "p")),
    (Order, ORDER),
    (Packed, Packed(1)),
    (Packed, Packed(1, AT)),
    (list[Sparse], [{}, {"a": 2, "c": [1]}]),
    (list[Sparse | None], [None, {"a": 3}]),
]


def schema_for(value: str, kind: str = "value", **more: Any) -> StateSchema:
    return StateSchema(id=1, kind=kind, value=value, **more)


def tabled(schema: StateSchema, raw: bytes) -> Any:
    """What a table shows, with maps as dicts whose keys are plain."""
    full = prefix(xxhash64(7) % 128, 1) + KeyCodec(("int",)).encode(7) + EMPTY_NAMESPACE
    column = StateTable((("k", "int"),), 128, "s", schema).decode([full], [raw]).column("value")
    return like_plain(column.to_pylist()[0], column.type)


def like_plain(value: Any, kind: pa.DataType, *, key: bool = False) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {like_plain(k, kind.key_type, key=True): like_plain(v, kind.item_type) for k, v in value}
    if pa.types.is_struct(kind):
        found = {each.name: like_plain(value[each.name], each.type, key=key) for each in kind}
        return tuple(found.values()) if key else found
    if pa.types.is_list(kind):
        made = [like_plain(one, kind.value_type, key=key) for one in value]
        return tuple(made) if key else made
    return value


@pytest.mark.parametrize(("hint", "value"), VALUES, ids=lambda one: str(one)[:40])
def test_a_value_is_what_a_table_shows(hint: Any, value: Any) -> None:
    serializer = serializer_for(hint)
    schema = schema_for(serializer.schema)
    raw = serializer.dumps(value)
    read = plain_reader(schema)
    assert read(raw) == tabled(schema, raw)
    assert read(serializer.dumps_with_expiry(value, 5)) == read(raw)
    json.dumps(jsonable(read(raw)))


SETS: list[tuple[str, list[Any], list[Any]]] = [
    ("set<int>", [10, 8, 0, -1], [-1, 0, 8, 10]),
    ("frozenset<str>", ["b", "a"], ["a", "b"]),
    ("optional<set<datetime>>", [AT, AT - timedelta(days=1)], [AT - timedelta(days=1), AT]),
    ("set<optional<int>>", [2, None, 1], [1, 2, None]),
    ("set<float>", [2.0, 1.0], [1.0, 2.0]),
    ("set<frozenset<int>>", [[3, 1], [2]], [[2], [1, 3]]),
    ("list<set<int>>", [[2, 1]], [[1, 2]]),
    ("set<struct Place{row:int,name:str}>", [{"row": 2, "name": "b"}, {"name": "a", "row": 1}],
     [{"row": 1, "name": "a"}, {"row": 2, "name": "b"}]),
]  # fmt: skip


@pytest.mark.parametrize(("written", "stored", "shown"), SETS)
def test_a_set_is_sorted_whatever_order_it_was_stored_in(written: str, stored: Any, shown: Any) -> None:
    read = plain_reader(schema_for(written))
    for items in (stored, stored[::-1]):
        assert read(b"\x09" + msgspec.msgpack.encode(items)) == shown
    assert read(b"\x09" + msgspec.msgpack.encode([])) == []


def test_a_set_that_is_a_key_of_a_dict_is_sorted() -> None:
    read = plain_reader(schema_for("map<frozenset<int>,set<int>>"))
    stored = {frozenset([8, 0]): {8, 0}, frozenset([1]): set()}
    assert read(b"\x09" + msgspec.msgpack.encode(stored)) == {(0, 8): [0, 8], (1,): []}


@pytest.mark.parametrize(
    "columns", [{"a": int, "b": float, "c": bool, "d": datetime}, {"a": int, "s": str, "d": datetime}]
)
def test_columns_are_what_a_table_shows(columns: dict[str, Any]) -> None:
    state = ColumnState([("k", "int")], ColumnLayout(columns).schema(), 128, "x")
    given = {"a": [1, None], "b": [0.5, None], "c": [True, None], "d": [AT, None], "s": ["x", None]}
    table = pa.table(
        {
            name: pa.array(given[name], kind)
            for name, kind in zip(state.schema.names, state.schema.types, strict=True)
        }
    )
    text = ",".join(f"{name}:{serializer_for(hint).schema}" for name, hint in columns.items())
    schema = schema_for(f"columns{{{text}}}", "columns")
    read = plain_reader(schema)
    written = state._values.write([c.combine_chunks() for c in table.columns], len(table))
    for row, raw in zip(table.to_pylist(), written, strict=True):
        assert read(raw) == row == tabled(schema, raw)
    with pytest.raises(CorruptError):
        read(b"\x0b\x00")


def test_digits_of_decimals_and_large_integers_are_kept() -> None:
    assert str(plain_reader(schema_for("decimal"))(serializer_for(Decimal).dumps(Decimal("1.50")))) == "1.50"
    large = serializer_for(list[int]).dumps([2**64 - 1])
    assert plain_reader(schema_for("list<int>"))(large) == [2**64 - 1]


def test_floats_that_json_does_not_know_are_texts() -> None:
    given = [float("nan"), float("inf"), {"low": float("-inf"), 0.5: 0.5}]
    assert jsonable(given) == ["NaN", "Infinity", {"low": "-Infinity", "0.5": 0.5}]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({nan: 1, inf: 2, -inf: 3, 0.5: 4}, {"NaN": 1, "Infinity": 2, "-Infinity": 3, "0.5": 4}),
        ({(1, nan): 1, (1, None): 2}, {'[1,"NaN"]': 1, "[1,null]": 2}),
        ({None: 1, "null": 2}, [["null", 2], [None, 1]]),
        ({"null": 2, None: 1}, [["null", 2], [None, 1]]),
        ([{1: nan, "1": {True: 1, "true": 2}}], [[["1", [["true", 2], [True, 1]]], [1, "NaN"]]]),
        ({1: "a", date(2026, 1, 2): "b"}, {"1": "a", "2026-01-02": "b"}),
    ],
)
def test_no_entry_of_a_dict_is_lost_as_json(given: Any, shown: Any) -> None:
    assert jsonable(given) == shown
    json.dumps(jsonable(given), allow_nan=False)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (nan, float("nan"), True),
        ({"a": [(1, nan)], nan: None}, {nan: None, "a": [(1, float("nan"))]}, True),
        (1, True, False),
        ([0], [False], False),
        ({1: "a"}, {True: "a"}, False),
        (True, True, True),
        (1, 1.0, True),
        (Decimal("1.50"), Decimal("1.5"), True),
        (nan, "NaN", False),
        (None, False, False),
        ({"a": 1}, {"a": 1, "b": None}, False),
    ],
)
def test_values_are_compared_as_what_they_are_and_not_as_python_has_it(
    one: Any, other: Any, same: bool
) -> None:
    assert (comparable(one) == comparable(other)) is same


def test_what_has_no_arrow_type_is_read_as_messagepack_has_it() -> None:
    hint = dict[str, int | str | list[datetime]]
    value = {"a": 1, "b": "x", "c": [AT]}
    serializer = serializer_for(hint)
    assert plain_reader(schema_for(serializer.schema))(serializer.dumps(value)) == value
    nested = schema_for("struct Node{value:int,next:optional<struct Node>}")
    raw = b"\x09" + msgspec.msgpack.encode({"value": 1, "next": {"value": 2, "next": None}})
    assert plain_reader(nested)(raw) == {"value": 1, "next": {"value": 2, "next": None}}


def test_what_a_custom_serializer_wrote_stays_bytes() -> None:
    custom = serializer_for(CustomSerializer("json", 3, lambda v: v.encode(), lambda b, _: b.decode()))
    assert plain_reader(schema_for(custom.schema))(custom.dumps("hello")) == b"\x03\0\0\0hello"


def test_a_value_from_before_its_state_was_widened_is_read_as_what_it_is_now() -> None:
    stored = serializer_for(int).dumps(3)
    assert plain_reader(schema_for("float"))(stored) == 3.0
    assert isinstance(plain_reader(schema_for("float"))(stored), float)
    assert plain_reader(schema_for("optional<int>"))(stored) == 3
    assert plain_reader(schema_for("int"))(serializer_for(int | None).dumps(3)) == 3
    older = b"\x09" + msgspec.msgpack.encode({"a": 1, "gone": 2})
    assert plain_reader(schema_for("struct S{a:int,b?:str}"))(older) == {"a": 1, "b": None}


@pytest.mark.parametrize(
    ("schema", "raw"),
    [
        ("int", b""),
        ("int", b"\x02\x00"),
        ("int", b"\x00"),
        ("int", b"\x7f\x00"),
        ("str", b"\x04\xff"),
        ("datetime", b"\x07" + b"\x7f" * 8),
        ("list<int>", b"\x09\x93\x01"),
        ("list<int>", b"\x09\xc1"),
    ],
)
def test_damaged_bytes_are_corruption(schema: str, raw: bytes) -> None:
    with refused(CorruptError, "run `stateflow verify`"):
        plain_reader(schema_for(schema))(raw)


def test_what_does_not_fit_its_type_is_incompatible() -> None:
    with pytest.raises(IncompatibleError, match=r"does not fit the type list<int>"):
        plain_reader(schema_for("list<int>"))(serializer_for(list[str]).dumps(["x"]))
    with refused(IncompatibleError, "a newer stateflow"):
        plain_reader(schema_for("tensor<3>"))


@pytest.mark.parametrize(
    ("types", "key"),
    [
        (["int"], -5),
        (["bool"], False),
        (["str"], '["x"]'),
        (["bytes"], b"\0\xff"),
        (["date"], date(2026, 1, 2)),
        (["datetime"], AT),
        (["decimal"], Decimal("1.50")),
        (["str", "int"], ("a,b", 7)),
        (["date", "decimal", "bytes"], (date(2026, 1, 2), Decimal("1.5"), b"x")),
        (["datetime", "bool"], (AT, True)),
    ],
)
def test_a_key_is_read_back_from_its_text_and_from_json(types: list[str], key: Any) -> None:
    shape = [("", kind) for kind in types]
    assert key_of_text(shape, text_of_key(key)) == key
    assert key_of_plain(shape, json.loads(msgspec.json.encode(key))) == key


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-01T12:00:00.0000001Z",  # which reading would cut to another moment
        "0001-01-01T00:00:00+01:00",  # in UTC before the first year, and after the last one
        "9999-12-31T23:59:59.999999-01:00",
        "2026-01-01T12:00:00",
    ],
)
def test_a_time_that_no_key_can_be_is_refused_rather_than_taken_for_another(text: str) -> None:
    with pytest.raises(UsageError, match="an instant with its zone"):
        key_of_text([("at", "datetime")], text)


def test_zeros_behind_the_microseconds_change_no_time() -> None:
    assert key_of_text([("", "datetime")], "2026-01-02T12:00:00.500000000Z").microsecond == 500_000


@pytest.mark.parametrize(
    ("types", "value"),
    [(["int"], True), (["int"], 1.5), (["bool"], 1), (["str"], 1), (["date"], 5), (["datetime"], 5), (["bytes"], "?"), (["int"], None), (["int"], [1, 2]), (["int"], 2**70)],
)  # fmt: skip
def test_json_that_is_no_key_is_refused(types: list[str], value: Any) -> None:
    def encoded() -> bytes:
        return KeyCodec(types).encode(key_of_plain([("k", kind) for kind in types], value))

    with pytest.raises(UsageError):
        encoded()
