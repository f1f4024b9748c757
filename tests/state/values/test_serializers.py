"""Values: frozen bytes, the declared type comes back, a wrong type is refused when it is written."""

from __future__ import annotations

import dataclasses
import enum
import math
import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any, NamedTuple, Optional, TypedDict, cast
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.errors import CorruptError, IncompatibleError, StateTypeError, UsageError
from stateflow.state.values.key_types import key_types_for
from stateflow.state.values.serializers import CustomSerializer, serializer_for
from tests.refusals.refusal import refused

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


@dataclasses.dataclass
class Order:
    user: int
    amount: float
    at: datetime
    tags: list[str] = dataclasses.field(default_factory=list)
    parent: Order | None = None


@dataclasses.dataclass
class WiderOrder:
    user: float
    amount: float
    at: datetime
    note: str = "none"


class Point(NamedTuple):
    x: int
    y: str = "y"


class Event(msgspec.Struct):
    id: uuid.UUID
    price: Decimal
    day: date


class Colour(Enum):
    RED = "r"


CASES: list[tuple[Any, Any, str, str]] = [
    (bool, True, "bool", "0101"),
    (int, -2, "int", "02feffffffffffffff"),
    (float, 2.5, "float", "030000000000000440"),
    (str, "é", "str", "04c3a9"),
    (bytes, b"\0q", "bytes", "050071"),
    (date, date(1970, 1, 2), "date", "0601000000"),
    (datetime, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "datetime", "0740420f0000000000"),
    (Decimal, Decimal("1.50"), "decimal", "08312e3530"),
    (list[int], [1, 2], "list<int>", "09920102"),
    (dict[str, int], {"a": 1}, "map<str,int>", "0981a16101"),
    (dict[int, list[str]], {1: ["a"]}, "map<int,list<str>>", "09810191a161"),
    (float | None, None, "optional<float>", "09c0"),
    (Optional[str], "a", "optional<str>", "09a161"),  # noqa: UP045 - users write both
    (int | str, "a", "union<int,str>", "09a161"),
    (str | int, 1, "union<int,str>", "0901"),
    (set[int], {1}, "set<int>", "099101"),
    (frozenset[int], frozenset({1}), "frozenset<int>", "099101"),
    (tuple[int, ...], (1, 2), "tuple<int,...>", "09920102"),
    (tuple[int, str], (1, "a"), "tuple<int,str>", "099201a161"),
    (Point, Point(1), "namedtuple Point{x:int,y?:str}", "099201a179"),
    (Colour, Colour.RED, "enum Colour<RED='r'>", "09a172"),
    (
        Event,
        Event(uuid.UUID(int=0), Decimal("0.1"), date(2020, 1, 1)),
        "struct Event{id:uuid,price:decimal,day:date}",
        (
            "0983a26964d92430303030303030302d303030302d303030302d303030302d303030303030303030303030a57072696365a3302e31"
            "a3646179aa323032302d30312d3031"
        ),
    ),
    (
        Order,
        Order(1, 2.5, NOON, ["a"], Order(2, 0.0, NOON)),
        "struct Order{user:int,amount:float,at:datetime,tags?:list<str>,parent?:optional<struct Order>}",
        (
            "0985a47573657201a6616d6f756e74cb4004000000000000a26174d6ff6b003640a47461677391a161a6706172656e74"
            "85a47573657202a6616d6f756e74cb0000000000000000a26174d6ff6b003640a47461677390a6706172656e74c0"
        ),
    ),
]


@pytest.mark.parametrize(("hint", "value", "schema", "frozen"), CASES)
def test_schema_and_bytes_never_change(hint: Any, value: Any, schema: str, frozen: str) -> None:
    serializer = serializer_for(hint)
    assert serializer.schema == schema
    assert serializer.dumps(value).hex() == frozen


@pytest.mark.parametrize(("hint", "value", "schema", "frozen"), CASES)
def test_what_is_read_is_equal_of_the_declared_type_and_fresh(
    hint: Any, value: Any, schema: str, frozen: str
) -> None:
    serializer = serializer_for(hint)
    for stored in (serializer.dumps(value), serializer.dumps_with_expiry(value, 77)):
        one, two = serializer.loads(stored), serializer.loads(stored)
        assert one == value
        assert type(one) is type(value)
        if isinstance(value, (list, dict, set, Order)):
            assert one is not two


@pytest.mark.parametrize(("hint", "value", "schema", "frozen"), CASES)
def test_an_expiry_stands_between_header_and_value(hint: Any, value: Any, schema: str, frozen: str) -> None:
    serializer = serializer_for(hint)
    plain = serializer.dumps(value)
    stored = serializer.dumps_with_expiry(value, 1_000_000)
    assert stored == bytes([plain[0] | 0x80]) + bytes.fromhex("00000000000f4240") + plain[1:]
    assert serializer.expiry(stored) == 1_000_000
    assert serializer.expiry(plain) is None
    assert serializer.expiry(serializer.dumps_with_expiry(value, -5)) == -5


@given(st.floats() | st.integers(-(2**63), 2**63 - 1))
def test_numbers_come_back_exactly(value: float) -> None:
    serializer = serializer_for(type(value))
    read = serializer.loads(serializer.dumps(value))
    assert read == value or (math.isnan(read) and math.isnan(value))
    assert math.copysign(1, read) == math.copysign(1, value) or math.isnan(value)


@given(st.datetimes(timezones=st.timezones()))
def test_instants_come_back_in_utc(value: datetime) -> None:
    for hint, wrap in ((datetime, lambda v: v), (list[datetime], lambda v: [v])):
        serializer = serializer_for(hint)
        try:
            stored = serializer.dumps(wrap(value))
        except StateTypeError:
            # Shifted to UTC it lies outside the years that Python knows.
            assert value.year in (1, 9999)
            return
        read = serializer.loads(stored)
        read = read if hint is datetime else read[0]
        assert read == value.astimezone(UTC)
        assert read.utcoffset() == timedelta(0)


@given(st.decimals())
def test_decimals_keep_all_their_digits(value: Decimal) -> None:
    serializer = serializer_for(Decimal)
    assert str(serializer.loads(serializer.dumps(value))) == str(value)


class Given(TypedDict):
    n: int


WRONG: list[tuple[Any, Any, str]] = [
    (int, True, "expected int, got bool"),
    (int, 2.0, "expected int, got float"),
    (int, 2**63, "64 bits"),
    (int, None, "expected int, got NoneType"),
    (float, False, "expected float, got bool"),
    (float, "1", "expected float, got str: '1'"),
    (float, Decimal(1), "expected float, got Decimal"),
    (float, 2**53 + 1, "expected float, got int 9007199254740993, which no float is equal to"),
    (float, np.int64(2**53 + 1), "expected float, got int64"),
    (float, 10**400, "expected float, got int 1000"),
    (
        float,
        Fraction(1, 3),
        r"expected float, got Fraction Fraction\(1, 3\), which no float is equal to: .* float\(value\)",
    ),
    (float, np.longdouble(1) / 3, "expected float, got longdouble"),
    (
        datetime,
        pd.Timestamp("2026-01-01T00:00:00.123456789Z"),
        r"got Timestamp 2026-01-01 00:00:00.123456789\+00:00, .*floor\(\"us\"\)",
    ),
    (float | None, -(2**53) - 1, "expected float, got int -9007199254740993"),
    (list[float], [1.5, 2**53 + 1], "expected float, got int"),
    (dict[str, list[float]], {"a": [2**53 + 1]}, "expected float, got int"),
    (tuple[int, float], (2**53 + 1, 2**53 + 1), "expected float, got int"),
    (frozenset[float], frozenset([2**53 + 1]), "expected float, got int"),
    (dict[float, int], {2**53 + 1: 1}, "expected float, got int"),
    (dict[float, int], {2**53: 1, 2**53 + 1: 1}, "two keys of a dict are one float"),
    (Order, Order(2**53 + 1, 2**53 + 1, NOON), "expected float, got int"),
    (bool, 1, "expected bool, got int"),
    (str, b"x", "expected str, got bytes"),
    (str, "\ud800", "surrogate"),
    (bytes, "x", "expected bytes, got str"),
    (date, NOON, "expected date, got datetime"),
    (datetime, date(2020, 1, 1), "expected datetime, got date"),
    (datetime, datetime(2020, 1, 1), "no time zone"),
    (list[datetime], [datetime(2020, 1, 1)], "time zone"),
    (dict[str, datetime], {"a": datetime(2020, 1, 1)}, "time zone"),
    (Order, Order(1, 1.0, datetime(2020, 1, 1)), "time zone"),
    (Order, Order(cast("Any", "x"), 1.0, NOON), "expected `int`, got `str` - at `\\$.user`"),
    (Order, {"user": 1}, "expected Order, got dict"),
    (Given, [1], "expected Given, got list"),
    (Order, None, "expected Order, got NoneType"),
    (Event, Order(1, 1.0, NOON), "expected Event, got Order"),
    (list[int], ["a"], "expected `int`, got `str`"),
    (list[int], 5, "expected `array`, got `int`"),
    (float | None, "a", "got `str`"),
    (list[int], [2**70], "a value of list\\[int\\] has an int beyond 64 bits, .*Decimal or str"),
    (Order, Order(2**70, 1.0, NOON), "a value of Order has an int beyond 64 bits"),
    (list[object], [1], "cannot be kept"),
]


@pytest.mark.parametrize(("hint", "value", "says"), WRONG)
def test_a_wrong_type_is_refused_when_it_is_written(hint: Any, value: Any, says: str) -> None:
    for refuse in ("dumps", "check"):
        with pytest.raises(UsageError, match=says):
            getattr(serializer_for(hint), refuse)(value)
    if "kept" not in says:
        with pytest.raises(StateTypeError, match=says):
            serializer_for(hint).dumps_with_expiry(value, 5)


@dataclasses.dataclass
class Coin:
    worth: int


@dataclasses.dataclass
class OldCoin(Coin):
    year: int


@dataclasses.dataclass
class Token(Coin):
    """It has the fields of a coin, and is none."""


@dataclasses.dataclass
class Slot:
    coin: Coin
    time: int


class Mark(msgspec.Struct):
    n: int


class Scratch(Mark):
    pass


@dataclasses.dataclass
class Purse:
    owner: str
    coins: list[Coin] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Doubling:
    n: int

    def __post_init__(self) -> None:
        self.n *= 2


ODD_TIME = time(1, 2, 3, tzinfo=timezone(timedelta(hours=5, seconds=7)))
CHANGED: list[tuple[Any, Any, tuple[str, ...]]] = [
    (Coin | None, Token(1), ("Token", "store one of Coin", "declare Token")),
    (list[Coin], [Coin(1), Token(1)], ("Token", "declare Token")),
    (dict[int, Coin], {1: Token(1)}, ("Token", "declare Token")),
    (Slot, Slot(Token(1), 2), ("Token", "declare Token")),
    (list[Mark], [Scratch(1)], ("Scratch", "declare Scratch")),
    (time, ODD_TIME, ("01:02:03+05:00:07", "as 01:02:03+05:00,", "declare datetime")),
    (list[time], [ODD_TIME], ("01:02:03+05:00:07", "in whole minutes")),
    (Coin | None, OldCoin(1, 1900), ("OldCoin", "Coin(worth=1)", "declare OldCoin")),
    (list[Coin], [Coin(1), OldCoin(1, 1900)], ("OldCoin(worth=1, year=1900)", "store one of Coin")),
    (frozenset[tuple[int, ...]], [(1,), (1,)], ("frozenset",)),
    (Purse, Purse("me", [OldCoin(1, 1900)]), ("OldCoin",)),
    (Purse, Purse("me", cast("Any", [{"worth": 1, "more": 2}])), ("dict", "Coin(worth=1)")),
    (Purse, Purse(cast("Any", date(2020, 1, 1))), ("date", "'2020-01-01'", "store one of str")),
    (Purse, Purse(cast("Any", Decimal("1.5"))), ("Decimal", "'1.5'")),
    (list[str], [uuid.UUID(int=1)], ("UUID", "store one of str")),
    (frozenset[str], frozenset([date(2020, 1, 1)]), ("date", "'2020-01-01'")),
    (dict[str, int], {date(2020, 1, 1): 1}, ("date", "'2020-01-01'")),
    (Doubling, Doubling(1), ("int 2", "int 4", "__post_init__")),
    (Given, {"n": 1, "more": 2}, ("'more'", "leave it out")),
    (list[Given], [{"n": 1, "more": 2}], ("'more'", "leave it out")),
]


@pytest.mark.parametrize(("hint", "value", "named"), CHANGED, ids=str)
def test_a_value_that_would_come_back_as_another_is_refused(
    hint: Any, value: Any, named: tuple[str, ...]
) -> None:
    with refused(StateTypeError, *named):
        serializer_for(hint).dumps(value)


@dataclasses.dataclass(eq=False)
class Aloof:
    """Is equal to nothing."""

    name: str
    share: float


TWICE = datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
KEPT: list[tuple[Any, Any, Any]] = [
    (tuple[float, str], (1, "a"), (1.0, "a")),
    (set[float | str], {1, "a"}, {1.0, "a"}),
    (list[str], ("a", "b"), ["a", "b"]),
    (tuple[str, datetime], ("a", TWICE), ("a", TWICE.astimezone(UTC))),
    (frozenset[uuid.UUID], frozenset([uuid.UUID(int=1)]), frozenset([uuid.UUID(int=1)])),
    (tuple[str, date], ("a", "2020-01-01"), ("a", date(2020, 1, 1))),
    (Given, {"n": 1}, {"n": 1}),
]


@pytest.mark.parametrize(("hint", "value", "read"), KEPT, ids=[str(hint) for hint, _, _ in KEPT])
def test_a_value_in_another_form_is_taken(hint: Any, value: Any, read: Any) -> None:
    serializer = serializer_for(hint)
    assert serializer.loads(serializer.dumps(value)) == read


def test_a_value_that_is_equal_to_nothing_is_taken() -> None:
    serializer = serializer_for(tuple[Aloof, frozenset[float]])
    aloof, [number] = serializer.loads(serializer.dumps((Aloof("a", math.nan), frozenset([math.nan]))))
    assert (aloof.name, math.isnan(aloof.share), math.isnan(number)) == ("a", True, True)


@pytest.mark.parametrize(("hint", "wrap"), [
    (datetime, lambda at: at),
    (Order, lambda at: Order(1, 1.0, at)),
    (list[datetime], lambda at: [at]),
    (dict[datetime, int], lambda at: {at: 1}),
])  # fmt: skip
def test_a_datetime_that_has_no_place_in_utc_is_refused(hint: Any, wrap: Any) -> None:
    west, east = (timezone(timedelta(hours=hours)) for hours in (-5, 5))
    serializer = serializer_for(hint)
    for far, named, nearest in (
        (datetime.max.replace(tzinfo=west), "9999-12-31 23:59:59.999999-05:00", "max"),
        (datetime.min.replace(tzinfo=east), "0001-01-01 00:00:00+05:00", "min"),
    ):
        advised = f"datetime.{nearest}.replace(tzinfo=UTC)"
        with refused(StateTypeError, named, "the years 1 to 9999", advised):
            serializer.dumps(wrap(far))
        value = wrap(eval(advised, {"datetime": datetime, "UTC": UTC}))
        assert serializer.loads(serializer.dumps(value)) == value


def test_a_datetime_without_a_zone_is_refused_in_a_class_of_attrs() -> None:
    attrs = pytest.importorskip("attrs")
    visit = attrs.make_class("Visit", {"at": attrs.field(type=datetime), "share": attrs.field(type=float)})
    serializer = serializer_for(visit)
    with refused(StateTypeError, "2026-11-20 12:00:00", "value.replace(tzinfo=datetime.UTC)"):
        serializer.dumps(visit(NOON.replace(tzinfo=None), 1.0))
    with refused(StateTypeError, "expected float", "9007199254740993"):
        serializer.dumps(visit(NOON, 2**53 + 1))
    assert serializer.loads(serializer.dumps(visit(NOON, 1.0))) == visit(NOON, 1.0)


def test_text_that_looks_like_a_datetime_is_no_datetime() -> None:
    serializer = serializer_for(dict[str, datetime])
    value = {"2020-01-01T00:00:00": NOON}
    assert serializer.loads(serializer.dumps(value)) == value


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Level(enum.IntFlag):
    LOW = 1
    HIGH = 2


@pytest.mark.parametrize("value", [Access.READ, Access.READ | Access.WRITE, Access(0), Level.LOW | Level.HIGH, Level(8)], ids=str)  # fmt: skip
def test_flags_come_back_together(value: enum.Flag) -> None:
    for hint, given_value in ((type(value), value), (list[type(value)], [value])):  # type: ignore[misc]
        serializer = serializer_for(hint)
        read = serializer.loads(serializer.dumps(given_value))
        assert repr(read) == repr(given_value)


def test_a_long_int_where_floats_are_beside_stays_what_it_is() -> None:
    serializer = serializer_for(tuple[int, float])
    for long in (2**53 + 1, 2**62, -(2**63)):
        assert serializer.loads(serializer.dumps((long, float(2**60)))) == (long, 2.0**60)
    exactly = serializer_for(list[float])
    assert exactly.loads(exactly.dumps([2**60, math.inf, -(2**53)])) == [2.0**60, math.inf, -(2.0**53)]
    assert math.isnan(exactly.loads(exactly.dumps([math.nan]))[0])


def test_numbers_of_other_kinds_are_converted() -> None:
    numbers = serializer_for(float)
    for given_number in (3, np.float32(3), np.int64(3), Fraction(3)):
        assert numbers.loads(numbers.dumps(given_number)) == 3.0
        assert type(numbers.loads(numbers.dumps(given_number))) is float
    assert math.isnan(numbers.loads(numbers.dumps(np.float32("nan"))))
    whole = serializer_for(int)
    assert whole.loads(whole.dumps(np.int32(3))) == 3
    instants = serializer_for(datetime)
    for exact in (pd.Timestamp("2026-01-01T00:00:00.123456789Z").floor("us"), pd.Timestamp(NOON)):
        assert instants.loads(instants.dumps(exact)) == exact
    assert serializer_for(bool).dumps(np.bool_(True)) == serializer_for(bool).dumps(True)


WIDER: list[tuple[Any, Any, Any, Any]] = [
    (int, 3, float, 3.0),
    (int, 3, int | None, 3),
    (int, 3, float | None, 3.0),
    (str, "a", str | None, "a"),
    (datetime, NOON, datetime | None, NOON),
    (date, date(2020, 1, 1), date | None, date(2020, 1, 1)),
    (Decimal, Decimal("1.5"), Decimal | None, Decimal("1.5")),
    (list[int], [1], list[float], [1.0]),
    (Order, Order(1, 2.0, NOON, ["dropped"]), WiderOrder, WiderOrder(1.0, 2.0, NOON, "none")),
]


@pytest.mark.parametrize(("old", "value", "new", "expected"), WIDER)
def test_a_widened_state_reads_its_old_values(old: Any, value: Any, new: Any, expected: Any) -> None:
    for stored in (serializer_for(old).dumps(value), serializer_for(old).dumps_with_expiry(value, 5)):
        read = serializer_for(new).loads(stored)
        assert read == expected
        assert type(read) is type(expected)


@pytest.mark.parametrize(
    ("old", "value", "new"),
    [(str, "a", int), (float, 1.5, int), (list[int], [1], int), (int, 1, str), (WiderOrder, None, Order)],
)
def test_an_old_value_that_does_not_fit_is_refused(old: Any, value: Any, new: Any) -> None:
    stored = serializer_for(old).dumps(value or WiderOrder(1.5, 1.0, NOON))
    with refused(IncompatibleError, "stored value"):
        serializer_for(new).loads(stored)


@pytest.mark.parametrize("damaged", ["", "7f00", "00", "02"])
def test_a_damaged_value_is_reported(damaged: str) -> None:
    with refused(CorruptError, "damaged"):
        serializer_for(int).loads(bytes.fromhex(damaged))


def test_damaged_structure_is_reported() -> None:
    with refused(CorruptError, "damaged"):
        serializer_for(list[int]).loads(bytes.fromhex("099201"))


def test_a_custom_serializer_reads_what_its_older_versions_wrote() -> None:
    old = serializer_for(
        CustomSerializer("csv", 1, lambda v: ",".join(v).encode(), lambda b, _: b.decode().split(","))
    )
    new = serializer_for(
        CustomSerializer(
            "csv",
            2,
            lambda v: ";".join(v).encode(),
            lambda b, version: b.decode().split("," if version == 1 else ";"),
        )
    )
    assert (old.schema, new.schema) == ("custom:csv:1", "custom:csv:2")
    assert new.loads(old.dumps(["a", "b"])) == ["a", "b"]
    assert new.loads(new.dumps_with_expiry(["a", "b"], 9)) == ["a", "b"]
    assert new.dumps(["a"]).hex() == "0a0200000061"


def test_a_custom_serializer_must_make_bytes() -> None:
    with refused(StateTypeError, "'x' made str"):
        serializer_for(CustomSerializer("x", 1, cast("Any", str), lambda b, _: b)).dumps(5)


def test_columns_are_no_value_of_another_type() -> None:
    with refused(IncompatibleError, "another way (code 11)"):
        serializer_for(bytes).loads(b"\x0bx")


def test_key_types_follow_the_declared_key() -> None:
    assert key_types_for(int) == ("int",)
    assert key_types_for(tuple[int, str]) == ("int", "str")
    assert key_types_for(Point) == ("int", "str")


def test_zones_other_than_utc_are_the_same_instant() -> None:
    serializer = serializer_for(datetime)
    assert serializer.dumps(NOON) == serializer.dumps(NOON.astimezone(timezone(timedelta(hours=-3))))


class ByPosition(msgspec.Struct, array_like=True):
    x: int


class TaggedByPosition(ByPosition, tag=7):
    """Its tag stands where the comparison of types, and whoever reads without the class, take the first field to be."""


class TaggedByName(msgspec.Struct, tag=7):
    x: int


def test_a_tag_before_the_fields_of_a_value_by_position_is_refused() -> None:
    for hint in (TaggedByPosition, dict[str, list[TaggedByPosition | None]]):
        with refused(UsageError, "class TaggedByPosition", "leave array_like=True out"):
            serializer_for(hint)
    for value in (ByPosition(1), TaggedByName(1)):
        assert serializer_for(type(value)).loads(serializer_for(type(value)).dumps(value)) == value


class LeavesDefaultsOut(msgspec.Struct, omit_defaults=True):
    limit: int = 100


class StoresDefaults(LeavesDefaultsOut, omit_defaults=False):
    """What is left of the class when the advice is followed."""


class HigherDefault(msgspec.Struct):
    limit: int = 500


def test_a_class_that_leaves_out_what_equals_a_default_is_refused() -> None:
    for hint in (LeavesDefaultsOut, list[LeavesDefaultsOut | None]):
        with refused(UsageError, "class LeavesDefaultsOut", "leave omit_defaults=True out"):
            serializer_for(hint)
    stored = serializer_for(StoresDefaults).dumps(StoresDefaults(100))
    assert serializer_for(HigherDefault).loads(stored) == HigherDefault(100)
