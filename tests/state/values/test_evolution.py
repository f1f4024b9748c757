"""What may become of a type, both ways: by rule, or not. Every conversion is tried on bytes, with classes and without."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar

import msgspec
import pyarrow as pa
import pytest

import stateflow as sf
from stateflow.errors import CorruptError, IncompatibleError, StateTypeError, UserCodeError
from stateflow.format.records import SchemaVersion, StateSchema
from stateflow.pipelines.rows.row_type import row_type
from stateflow.state.tabular import values_of
from stateflow.state.values.evolution.decision import RefusedError, evolution
from stateflow.state.values.evolution.declared_types import (
    declared_type,
    evolved,
    evolved_serializer,
)
from stateflow.state.values.evolution.evolved_columns import columns_evolution, earlier_names
from stateflow.state.values.evolution.versions import MARKED, marked, parted, stored_reader, todays_form
from stateflow.state.values.plain import jsonable, plain_reader
from stateflow.state.values.schema import schema_of
from stateflow.state.values.serializers import serializer_for
from tests.refusals.refusal import refused

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def record(*fields: Any, name: str = "R") -> Any:
    return make_dataclass(name, fields)


def default(name: str, hint: Any, value: Any) -> Any:
    return name, hint, field(default=value)


class Old(Enum):
    LOW = "l"


class New(Enum):
    SMALL = "l"
    HIGH = "h"


class Numbers(Enum):
    ONE = 1


class Pair(NamedTuple):
    x: int
    y: str


class Triple(NamedTuple):
    x: int
    y: str
    z: float = 0.5


class Swapped(NamedTuple):
    y: str
    x: int


class Between(NamedTuple):
    x: int
    new: int = 0
    y: str = ""


class Defaulted(NamedTuple):
    x: int = 1
    y: int = 2


class DefaultedSwapped(NamedTuple):
    y: int = 2
    x: int = 1


@dataclass(frozen=True)
class Place:
    city: str


class Typed(TypedDict):
    a: int


class Point(msgspec.Struct):
    x: int


class Point3(msgspec.Struct):
    x: float
    z: int = 7


class Tagged(msgspec.Struct, tag=True):
    x: int


class TaggedNow(msgspec.Struct, tag=True):
    x: int


class TagKept(msgspec.Struct, tag="Tagged"):
    x: int


class TagElsewhere(msgspec.Struct, tag="Tagged", tag_field="kind"):
    x: int


class TaggedMore(msgspec.Struct, tag=True):
    y: int


# The same classes in other releases, or under other names.
PointTagged = msgspec.defstruct("Point", [("x", int)], tag=True)
PointMore = msgspec.defstruct("Point", [("x", int), ("gone", str)], tag=True)
ClosedPoint = msgspec.defstruct("Point", [("x", int)], forbid_unknown_fields=True)
TypeField = msgspec.defstruct("Point", [("x", int), ("type", str, "-")])
TagsSwapped = (
    msgspec.defstruct("Tagged", [("x", int)], tag="TaggedNow"),
    msgspec.defstruct("TaggedNow", [("x", int)], tag="Tagged"),
)


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    x: int


class TwoFields(msgspec.Struct):
    x: int
    y: int


@dataclass
class Node:
    value: int
    next: Node | None = None


NodeNow = make_dataclass("Node", [("value", float), ("next", "Node | None", field(default=None))])


class Branch(msgspec.Struct):
    value: float
    next: Branch | None = None
    depth: int = 1


T = TypeVar("T")


@dataclass
class Timed(Generic[T]):
    at: int
    value: T


class TimedStruct(msgspec.Struct, Generic[T]):
    moment: Annotated[int, sf.field(aliases=["at"])]
    value: T
    inner: list[TimedStruct[T]] = []


class TimedTuple(NamedTuple, Generic[T]):
    at: int
    value: T


class Camel(msgspec.Struct, rename="camel"):
    order_count: int
    own: int = msgspec.field(name="its_own", default=1)


class CamelNow(msgspec.Struct, rename="camel"):
    total_count: Annotated[int, sf.field(aliases=["order_count"])] = 0
    own: int = msgspec.field(name="its_own", default=1)


class CamelAsStored(msgspec.Struct, rename="kebab"):
    total: Annotated[int, sf.field(aliases=["orderCount"])]
    its_own: Annotated[int, sf.field(aliases=["its_own"])] = 1


class OneWord(msgspec.Struct):
    total: Annotated[int, sf.field(aliases=["order-count", "orderCount"])]


class Renamed(msgspec.Struct):
    total: Annotated[int, sf.field(aliases=["sum", "x"])]


A, B = record(("a", int)), record(("b", str))
XY = record(("x", int))
NONE, NINE = record(("a", int | None)), record(default("a", int, 9))
WIDE = record(("a", int), default("b", str, "none"), name="Other")

RULES: list[tuple[str, Any, Any, list[tuple[Any, Any]], list[tuple[Any, Any]] | None]] = [
    # what, old, new, [(value of the old, what it is as the new)], the same back; None: refused
    ("int to float", int, float, [(5, 5.0), (-1, -1.0)], None),
    ("int to decimal", int, Decimal, [(5, Decimal(5))], None),
    ("float to decimal", float, Decimal, [], None),
    ("optional", int, int | None, [(5, 5)], None),
    ("optional text", str, str | None, [("x", "x")], None),
    ("optional instant", datetime, datetime | None, [(NOON, NOON)], None),
    ("optional day", date, date | None, [(NOON.date(), NOON.date())], None),
    ("optional bytes", bytes, bytes | None, [(b"\xff", b"\xff")], None),
    ("optional decimal", Decimal, Decimal | None, [(Decimal("1.50"), Decimal("1.50"))], None),
    ("optional and wider", int, float | None, [(5, 5.0)], None),
    ("optional wider", int | None, float | None, [(5, 5.0), (None, None)], None),
    ("wider union", int | str, int | str | list[int], [(5, 5), ("x", "x")], None),
    ("a union of it", str, int | str, [("x", "x")], None),
    ("a union with None", int | str, int | str | None, [(5, 5)], None),
    ("list items", list[int], list[float], [([1, 2], [1.0, 2.0]), ([], [])], None),
    ("items of sets", set[int], set[float], [({1}, {1.0})], None),
    ("items of tuples", tuple[int, str], tuple[float, str | None], [((1, "a"), (1.0, "a"))], None),
    ("values of maps", dict[str, int], dict[str, Decimal], [({"a": 1}, {"a": Decimal(1)})], None),
    ("values of maps by pairs", dict[tuple[int, str], int], dict[tuple[int, str], float], [({(1, "a"): 1}, {(1, "a"): 1.0})], None),
    ("enum renamed and wider", Old, New, [(Old.LOW, New.SMALL)], None),
    ("literals", Literal["a"], Literal["a", "b"], [("a", "a")], None),
    ("a field more", A, WIDE, [(A(1), WIDE(1, "none"))], [(WIDE(1, "x"), A(1))]),
    ("a field less in a list", list[WIDE], list[A], [([WIDE(1, "x")], [A(1)])], [([A(1)], [WIDE(1, "none")])]),
    ("a struct", Point, Point3, [(Point(1), Point3(1.0, 7))], None),
    ("reordered", TwoFields, record(("y", int), ("x", int), name="F"), [(TwoFields(1, 2), None)], [(None, TwoFields(1, 2))]),
    ("dataclass to struct", XY, Point, [(XY(3), Point(3))], [(Point(3), XY(3))]),
    ("a typed dict", list[Typed], list[A], [([{"a": 1}], [A(1)])], [([A(1)], [{"a": 1}])]),
    ("renamed", Point, Renamed, [(Point(3), Renamed(3))], None),
    ("renamed field inside", dict[str, list[Point]], dict[str, list[Renamed]], [({"a": [Point(3)]}, {"a": [Renamed(3)]})], None),
    ("None to a default", NONE, NINE, [(NONE(None), NINE(9)), (NONE(4), NINE(4))], None),
    ("named tuple with one more", Pair, Triple, [(Pair(1, "a"), Triple(1, "a", 0.5))], [(Triple(1, "a", 2.0), Pair(1, "a"))]),
    ("named tuple reordered", Pair, Swapped, [(Pair(1, "a"), Swapped("a", 1))], [(Swapped("a", 1), Pair(1, "a"))]),
    ("a record in itself", Node, Branch, [(Node(1, Node(2)), Branch(1.0, Branch(2.0)))], None),
    ("a tag is new", Point, PointTagged, [(Point(3), PointTagged(3))], [(PointTagged(3), Point(3))]),
    ("a tag is gone, and a field has its place", PointTagged, TypeField, [(PointTagged(3), TypeField(3, "-"))],
     [(TypeField(3, "x"), PointTagged(3))]),
    ("a tag that a closed class does not know", PointTagged, ClosedPoint, [(PointTagged(3), ClosedPoint(3))],
     [(ClosedPoint(3), PointTagged(3))]),
    ("a class goes under another name with its tag", Tagged, TagKept, [(Tagged(3), TagKept(3))], [(TagKept(3), Tagged(3))]),
    ("a member of a union goes under another name with its tag", Tagged | TaggedMore, TagKept | TaggedMore, [(Tagged(3), TagKept(3))],
     [(TagKept(3), Tagged(3))]),
    ("a record without a tag is one of several", Point, PointTagged | Tagged, [(Point(3), PointTagged(3))], None),
    ("a record without a tag is one of several, or None", Point | None, PointTagged | Tagged | None, [(Point(3), PointTagged(3)), (None, None)],
     None),
    ("the only record of a union gets a tag", int | Point | None, int | PointTagged | Tagged | None,
     [(5, 5), (None, None), (Point(3), PointTagged(3))], None),
    ("the only record of a union has a field less", PointMore | list[int], PointTagged | list[int],
     [([5], [5]), (PointMore(3, "a"), PointTagged(3))], None),
    ("a field less of a record that is one of several", PointMore, PointTagged | Tagged, [(PointMore(3, "a"), PointTagged(3))], None),
    ("a generic class", Timed[int], Timed[float], [(Timed(1, 2), Timed(1, 2.0))], None),
    ("a generic class with aliases", Timed[int], TimedStruct[float], [(Timed(1, 2), TimedStruct(1, 2.0))], None),
    ("a generic named tuple", TimedTuple[int], TimedTuple[int | None], [(TimedTuple(1, 2), TimedTuple(1, 2))], None),
    ("renamed in a class that renames its fields", Camel, CamelNow, [(Camel(3, 4), CamelNow(3, 4))], None),
    ("renamed from a name as it is stored", Camel, CamelAsStored, [(Camel(3, 4), CamelAsStored(3, 4))], None),
    ("renamed in a class whose names are one word", list[Camel], list[OneWord], [([Camel(3, 4)], [OneWord(3)])], None),
    ("closed", TwoFields, Closed, [(TwoFields(1, 2), Closed(1))], None),
]  # fmt: skip
RULES += [
    ("an enum's name is gone", one := enum.Enum("E", "A B"), other := enum.Enum("E", "A C"), [(one.B, other.C)], [(other.C, one.B)]),
    ("an old name stays beside the new one", one := enum.Enum("E", "A B"), other := enum.Enum("E", [("A", 1), ("C", 2), ("B", 2)]),
     [(one.B, other.C)], [(other.C, one.B)]),
    ("a member behind others", one := enum.IntEnum("E", "A B"), other := enum.IntEnum("E", "A B C"), [(one.B, other.B)], None),
    ("members change places", one := enum.Enum("E", {"A": 1, "B": 2}), other := enum.Enum("E", {"B": 2, "A": 1}), [(one.B, other.B)],
     [(other.A, one.A)]),
    ("ints up to the last that every float holds", int, float, [(2**53, 2.0**53), (-(2**53), -(2.0**53)), (2**60, 2.0**60)], None),
]  # fmt: skip
REFUSED: list[tuple[Any, Any, str]] = [
    (str, int, "str cannot become int"),
    (int | None, int, r"int \| None cannot become int"),
    (list[int], set[int], "list<int> cannot become set<int>"),
    (list[int | None], list[int], r"field \[\]: int \| None cannot become int"),
    (dict[str, int], dict[int, int], r"field \.?key: str cannot become int"),
    (dict[int, str], dict[float, str], "the keys of a map cannot change from int to float"),
    (dict[Place, int], dict[Place, float], "the values of a map with record Place as keys cannot be converted"),
    (New, Old, "enum Old has no value of HIGH any more"),
    (Old, Numbers, "enum Numbers has no value of LOW"),
    (enum.Enum("E", "A B"), enum.Enum("E", "A X B"), "enum E: B was 2 and is 3 now, so stored values of B would be read as X"),
    (enum.Enum("E", {"A": "a", "B": "b"}), enum.Enum("E", {"A": "b", "B": "a"}), "A was 'a' and is 'b' now, so stored values of A would be read as B"),
    (enum.IntEnum("E", "LOW HIGH"), enum.IntEnum("E", "HIGH LOW"), "LOW was 1 and is 2 now"),
    (enum.StrEnum("E", {"A": "a", "B": "b"}), enum.StrEnum("F", {"B": "a", "C": "b"}), "enum F: B was 'b' and is 'a' now"),
    (dict[str, list[enum.Enum("E", "A B")]], dict[str, list[enum.Enum("E", "B A")]], r"field \.?value\[\]: enum E: A was 1 and is 2"),
    (Literal["a", "b"], Literal["a"], "the literals has no value of 'b'"),
    (A, B, "field b is new and has no default: give it one"),
    (record(("a", int), ("b", str)), record(("a", int), ("c", str)), r'field b is gone: .*sf\.field\(aliases=\["b"\]\).*give it a default'),
    (record(("a", list[A])), record(("a", list[record(("c", int))])), r'field a\[\]\.c is new and has no default, and field a is gone: .*aliases=\["a"\]'),
    (record(("a", int), ("b", str), ("d", str)), record(("a", int), ("c", str)), "field c is new and has no default: give it one"),
    (record(("a", int), ("b", str)), record(("a", int), ("c", str), ("d", str)), "field c is new and has no default: give it one"),
    (A, record(("a", int), ("b", str)), "field b is new and has no default"),
    (WIDE, record(("a", int), ("b", str)), "field b has no default any more"),
    (A, record(("a", str)), "field a: int cannot become str"),
    (A, record(("a", A)), "field a: int cannot become record R"),
    (Pair, NamedTuple("Between", [("x", int), ("new", int), ("y", str)]), "field new is new"),
    (Pair, Between, "field new of a named tuple is new: put it behind all others"),
    (list[int] | str, list[float] | str, "is a member of a union and is not one of"),
    (Defaulted, DefaultedSwapped, "the fields of a named tuple with defaults cannot change places"),
    (Tagged, TaggedNow, "class Tagged had tag type='Tagged' and is TaggedNow with tag type='TaggedNow' now"),
    (Tagged, TagElsewhere, "is TagElsewhere with tag kind='Tagged' now, .*: put the tag back"),
    (Tagged | TaggedNow, TagsSwapped[0] | TagsSwapped[1], "class Tagged had tag type='Tagged' and has tag type='TaggedNow' now"),
    (Tagged | TaggedMore, TaggedNow | TaggedMore, "record Tagged is a member of a union"),
    (int | str, int, r"int \| str cannot become int"),
    (A, Pair, "record R cannot become named tuple Pair"),
    (str, Literal["a"], "str cannot become literal"),
    (sf.CustomSerializer("x", 2, str.encode, lambda b, v: b), sf.CustomSerializer("x", 1, str.encode, lambda b, v: b), "version 2 of custom serializer 'x'"),
    (sf.CustomSerializer("x", 1, str.encode, lambda b, v: b), sf.CustomSerializer("y", 1, str.encode, lambda b, v: b), "does not know what 'x' wrote"),
    (str, sf.CustomSerializer("y", 1, str.encode, lambda b, v: b), "only a function knows"),
]  # fmt: skip


def schema(hint: Any) -> StateSchema:
    return StateSchema(id=1, kind="value", value=serializer_for(hint).schema)


def after(hint: Any, *later: Any) -> StateSchema:
    """The schema of a state that had these types, one after the other."""
    made = schema(hint)
    for slot, one in enumerate(later, start=2):
        made, _ = evolved(made, declared_type(one), slot)
    return made


def fields(value: Any) -> Any:
    return jsonable(plain_reader(schema(type(value)))(serializer_for(type(value)).dumps(value)))


def check_reading(old: Any, new: Any, pairs: list[tuple[Any, Any]]) -> None:
    now, state = declared_type(new), after(old, new)
    serializer = evolved_serializer(now, state)
    for value, expected in pairs:
        for raw in (
            serializer_for(old).dumps(value),
            serializer_for(old).dumps_with_expiry(value, 5),
        ):
            found = serializer.loads(raw)
            if expected is not None:
                assert found == expected
                assert type(found) is type(expected)
            # Written back it is marked, keeps its expiry, and is read again.
            again = serializer.dumps_with_expiry(found, 7)
            assert again[0] & MARKED
            assert serializer.expiry(again) == 7
            assert serializer.loads(again) == found
            assert serializer.loads(serializer.dumps(found)) == found
            # Tables and queries say the same, without the classes; fields that were not stored they do not make up.
            told, known = (
                stored_reader(state)(raw),
                plain_reader(schema(new))(serializer_for(new).dumps(found)),
            )
            assert _without_none(jsonable(told)) <= _without_none(jsonable(known))


class _Told(dict):  # type: ignore[type-arg]
    def __le__(self, other: Any) -> bool:
        return all(name in other and _less(value, other[name]) for name, value in self.items())


def _less(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return _Told(one) <= other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_less, one, other))
    return one is None or one == other


def _without_none(value: Any) -> Any:
    return _Told({"value": value})


@pytest.mark.parametrize(
    ("old", "new", "alike"),
    [
        (record(("a", int), ("b", int)), record(("b", int), ("a", int)), ("fields change places",)),
        (record(("a", int)), record(("a", int), name="S"), ("class R is S now",)),
        (record(("a", int)), record(default("a", int, 1)), ("a has a default now",)),
        (Old, Enum("Later", {"LOW": "l"}), ("enum Old is Later now",)),
        (
            record(("a", record(("x", int), ("y", int)))),
            record(("a", record(("y", int), ("x", int)))),
            ("field a: fields change places",),
        ),
    ],
    ids=["places", "class", "default", "enum", "nested"],
)
def test_what_is_only_written_another_way_is_no_change(old: Any, new: Any, alike: tuple[str, ...]) -> None:
    found = evolution(serializer_for(old).schema, serializer_for(new).schema)
    assert (found.changes, found.losses, found.alike) == ((), (), alike)


def test_what_is_new_beside_fields_that_change_places_is_told_apart() -> None:
    old, new = record(("a", int), ("b", int)), record(("b", int), ("a", int), default("c", int, 1))
    found = evolution(serializer_for(old).schema, serializer_for(new).schema)
    assert (found.changes, found.alike) == (("field c is new",), ("fields change places",))


@pytest.mark.parametrize("rule", RULES, ids=[rule[0] for rule in RULES])
def test_what_a_rule_allows_is_read_as_the_new_type(rule: Any) -> None:
    _, old, new, pairs, back = rule
    if not pairs:
        with pytest.raises(RefusedError):
            after(old, new)
        return
    check_reading(old, new, pairs)
    if back is None:
        with pytest.raises(RefusedError):
            after(new, old)
    else:
        check_reading(new, old, [(value, expected) for value, expected in back if value is not None])


def test_a_text_of_before_tags_were_noted_is_taken_for_that_of_the_same_classes() -> None:
    for hint, recorded in (
        (Tagged, "struct Tagged{x:int}"),
        (Tagged | TaggedMore | None, "optional<union<struct Tagged{x:int},struct TaggedMore{y:int}>>"),
        (Tagged | int, "union<int,struct Tagged{x:int}>"),
    ):
        state = StateSchema(id=1, kind="value", value=recorded)
        declared = declared_type(hint)
        now, _ = evolved(state, declared, 2)
        raw = serializer_for(hint).dumps(Tagged(3))
        assert evolved_serializer(declared, now).loads(raw) == Tagged(3)


@pytest.mark.parametrize(("old", "new", "why"), REFUSED)
def test_what_could_lose_a_value_is_refused_and_says_where(old: Any, new: Any, why: str) -> None:
    with pytest.raises(RefusedError, match=why):
        after(old, new)


def test_a_rule_says_what_it_changes_and_what_it_loses() -> None:
    before = record(("a", int), ("gone", str), ("list", list[Point]))
    now = record(("a", float), ("list", list[Renamed]), default("new", int, 1))
    found = evolution(serializer_for(before).schema, declared_type(now).target)
    assert set(found.changes) == {
        "field a: int becomes float",
        "field new is new",
        "field gone is gone",
        "field list[].total was x",
    }
    assert found.losses == ("field gone is gone",)


def test_only_a_state_that_changed_is_marked_and_a_type_that_comes_back_has_its_number_again() -> None:
    state = after(A)
    assert (state.version, state.versions, state.evolved) == (0, (), False)
    assert evolved_serializer(declared_type(A), state).dumps(A(1)) == serializer_for(A).dumps(A(1))
    state = after(A, WIDE, A)
    assert state.version == 0
    [old] = state.versions
    assert (old.number, old.next, old.slot) == (1, 0, 2)
    serializer = evolved_serializer(declared_type(A), state)
    assert serializer.dumps(A(1)) == serializer_for(A).dumps(A(1))
    assert serializer.loads(marked(serializer_for(WIDE).dumps(WIDE(3, "x")), 1)) == A(3)
    third = record(("a", int), default("c", int, 4))
    state, _ = evolved(state, declared_type(third), 9)
    assert [(v.number, v.next) for v in state.versions] == [(1, 0), (0, 2)]
    serializer = evolved_serializer(declared_type(third), state)
    assert serializer.loads(marked(serializer_for(WIDE).dumps(WIDE(3, "x")), 1)) == third(3, 4)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (NewType("Flag", bool), True),
        (NewType("Cents", int), 5),
        (NewType("Euro", float), 2.5),
        (NewType("UserId", str), "abc"),
        (NewType("Blob", bytes), b"abc"),
        (NewType("Day", date), NOON.date()),
        (NewType("Moment", datetime), NOON),
        (NewType("Price", Decimal), Decimal("1.50")),
        (Annotated[float, msgspec.Meta(ge=0)], 2.5),
    ],
    ids=lambda each: str(getattr(each, "__name__", "")),
)
def test_a_scalar_by_another_name_is_read_as_it_was_written(hint: Any, value: Any) -> None:
    """Its text is that of the scalar, and its bytes are MessagePack."""

    def made(old: list[str]) -> Any:
        return value

    declared = declared_type(hint, made)
    state, _ = evolved(schema(list[str]), declared, 2)
    serializer = evolved_serializer(declared, state)
    stored = [serializer.dumps(value), serializer.dumps_with_expiry(value, 7)]
    for raw in stored:
        assert serializer.loads(raw) == value
        assert stored_reader(state)(raw) == value
    table = values_of(state, "state 's'")
    assert [table.read([raw]).column[0].as_py() for raw in stored] == [value, value]
    # Tables write it as the scalar, and so does code that has the scalar itself: for the record that is no other type.
    [imported] = table.write(pa.array([value], table.arrow), None)
    for raw in (imported, marked(serializer_for(type(value)).dumps(value), 1)):
        assert serializer.loads(raw) == value


def test_a_stored_value_outside_of_a_new_bound_is_named_until_the_bound_is_loose_again() -> None:
    """Records do not keep bounds, so that nothing is refused before."""
    positive = Annotated[int, msgspec.Meta(ge=0)]
    for old, new, value in ((int, positive, -1), (A, record(("a", positive)), A(-1))):
        state, change = evolved(schema(old), declared_type(new), 2)
        assert change is None
        raw = serializer_for(old).dumps(value)
        with refused(IncompatibleError, "Expected `int` >= 0"):
            evolved_serializer(declared_type(new), state).loads(raw)
        assert evolved_serializer(declared_type(old), state).loads(raw) == value


def test_a_field_that_was_removed_does_not_come_back_with_another_meaning() -> None:
    one, two, three = (
        record(("a", int), ("b", str)),
        record(("a", int)),
        record(("a", int), default("b", int, 0)),
    )
    state = after(one, two, three)
    serializer = evolved_serializer(declared_type(three), state)
    assert serializer.loads(serializer_for(one).dumps(one(1, "x"))) == three(1, 0)
    assert stored_reader(state)(serializer_for(one).dumps(one(1, "x"))) == {"a": 1, "b": None}


def test_a_default_that_a_value_got_with_a_release_is_stored_with_it() -> None:
    one = record(("a", int))
    two, later = record(("a", int), default("b", int, 7)), record(("a", int), default("b", int, 9))
    inner = dict[str, list[one]], dict[str, list[two]], dict[str, list[later]]  # type: ignore[valid-type]
    for old, new, newest, value in (
        (one, two, later, one(1)),
        (*inner, {"x": [one(1)]}),
    ):
        reads = evolved_serializer(declared_type(new), after(old, new))
        again = reads.dumps(reads.loads(serializer_for(old).dumps(value)))
        stored = plain_reader(schema(new))(serializer_for(new).dumps(reads.loads(again)))
        assert str(stored).count("'b': 7") == 1, "tables show it"
        # Another default of a later release is for values that never had the field.
        assert "b=7" in str(serializer_for(newest).loads(serializer_for(new).dumps(reads.loads(again))))


def test_an_alias_that_is_gone_again_is_remembered_for_values_of_its_time() -> None:
    final = make_dataclass("Final", [("total", int, field(default=0))])
    with_alias = make_dataclass("Final", [("total", Annotated[int, sf.field(aliases=["x"])])])
    wider = make_dataclass("Final", [("total", float)])
    state = after(Point, with_alias, wider)
    assert (
        evolved_serializer(declared_type(wider), state).loads(serializer_for(Point).dumps(Point(3))).total
        == 3.0
    )
    assert stored_reader(state)(serializer_for(Point).dumps(Point(3))) == {"total": 3.0}
    assert final  # a default would take the place of the value, were the alias forgotten


def test_of_two_fields_that_want_a_stored_value_none_begins_anew_without_a_word() -> None:
    """Whichever of the two is declared first: a value has one field to go to."""
    sums = default("total", Annotated[int, sf.field(aliases=["x"])], 0)
    for fields_now in ([("x", int), sums], [sums, default("x", int, 0)]):
        target = declared_type(record(*fields_now)).target
        with refused(
            RefusedError, "field total", "alias 'x'", "called x today", "give that one another name"
        ):
            evolution(schema(XY).value, target)


def test_a_name_is_used_again_once_its_value_has_gone_on_under_another_one() -> None:
    sums = default("total", Annotated[int, sf.field(aliases=["x"])], 0)
    renamed, both = record(sums, name="XY"), record(sums, default("x", int, 77), name="XY")
    reads = evolved_serializer(declared_type(both), after(XY, renamed, both))
    assert reads.loads(serializer_for(XY).dumps(XY(3))) == both(total=3, x=77)


def test_two_fields_do_not_exchange_their_names() -> None:
    crossed = record(
        ("x", Annotated[int, sf.field(aliases=["y"])]), ("y", Annotated[int, sf.field(aliases=["x"])])
    )
    for reads in (row_type, lambda cls: schema_of(cls, aliases=True)):
        with refused(sf.UsageError, "fields y and x of R", "each other", "give both new names"):
            reads(crossed)


def test_of_two_columns_that_want_stored_values_none_begins_anew_without_a_word() -> None:
    with refused(RefusedError, "column b", "alias 'a'", "give that one another name"):
        columns_evolution("columns{a:int}", "columns{a:int,b:int}", {"b": ["a"]})
    assert columns_evolution("columns{a:int}", "columns{b:int}", {"b": ["a"]}).changes == ("column b was a",)


@pytest.mark.parametrize(
    ("before", "sources"),
    [
        (("user", "x"), {"user": "user", "total": "x", "x": None}),  # of before the rename
        (("user", "total"), {"user": "user", "total": "total", "x": None}),
        (("user", "total", "x"), {"user": "user", "total": "total", "x": "x"}),  # its name is used again
        (("user",), {"user": "user", "total": None, "x": None}),
    ],
)
def test_rows_of_before_a_rename_keep_their_values_when_the_name_is_used_again(
    before: tuple[str, ...], sources: dict[str, str | None]
) -> None:
    for now in (("user", "total", "x"), ("user", "x", "total")):
        assert earlier_names(now, {"total": ("x",)}, before) == sources


def test_a_value_that_is_converted_expires_when_it_would_have() -> None:
    today = todays_form(after(int, float))
    assert today is not None
    converted = today(serializer_for(int).dumps_with_expiry(5, 77))
    assert serializer_for(float).expiry(converted) == 77
    assert serializer_for(float).loads(converted) == 5.0


def test_numbers_end_and_the_way_out_is_named() -> None:
    state = msgspec.structs.replace(schema(A), version=255)
    with refused(RefusedError, "a canonical savepoint"):
        evolved(state, declared_type(WIDE), 4)


def test_marks_are_taken_off_and_damage_is_named() -> None:
    raw = serializer_for(int).dumps_with_expiry(5, 77)
    assert parted(marked(raw, 3)) == (3, (77).to_bytes(8, "big"), serializer_for(int).dumps(5))
    assert parted(marked(serializer_for(int).dumps(5), 3)) == (3, b"", serializer_for(int).dumps(5))
    state = after(int, float)
    serializer = evolved_serializer(declared_type(float), state)
    for bad in (b"", bytes((MARKED | 3,)), marked(serializer_for(float).dumps(1.0), 9)):
        with pytest.raises(CorruptError):
            serializer.loads(bad)
        if bad:
            with pytest.raises(CorruptError):
                stored_reader(state)(bad)


@pytest.mark.parametrize(
    ("versions", "error"),
    [
        ([("int", 1), ("int", 0)], "in a circle"),
        ([("int", 5)], "schema number 5"),
        ([("str", 2)], "str cannot become int by itself"),
        ([("columns{", 2)], "cannot read the type"),
        ([("nonsense", 2)], "cannot read the type"),
    ],
)
def test_a_record_that_makes_no_sense_is_refused(versions: Any, error: str) -> None:
    made = tuple(
        SchemaVersion(number=number, value=text, next=following)
        for number, (text, following) in enumerate(versions)
    )
    state = StateSchema(id=1, kind="value", value="int", version=2, versions=made)
    with pytest.raises(sf.StateflowError, match=error):
        stored_reader(state)(serializer_for(int).dumps(5))


def test_a_field_is_annotated_with_its_aliases_and_nothing_else() -> None:
    with refused(sf.UsageError, "list of names"):
        sf.field(aliases="amount")


def test_two_fields_cannot_go_on_from_one() -> None:
    amount = Annotated[int, sf.field(aliases=["amount"])]
    both = make_dataclass("Both", [("net", amount), ("gross", amount)])
    for reads in (row_type, lambda cls: schema_of(cls, aliases=True)):
        with refused(sf.UsageError, "net and gross of Both", "the alias 'amount'"):
            reads(both)


INEXACT = [2**53 + 1, -(2**53) - 1, 2**63 - 1]


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        (int, float, lambda number: number),
        (int, float | None, lambda number: number),
        (list[int], list[float], lambda number: [1, number]),
        (tuple[int, str], tuple[float, str], lambda number: (number, "a")),
        (dict[str, int], dict[str, float], lambda number: {"a": number}),
        (A, record(("a", float)), A),
        (Node, Branch, lambda number: Node(1, Node(number))),
    ],
)
def test_an_int_that_no_float_is_equal_to_is_refused_where_it_is_read(old: Any, new: Any, value: Any) -> None:
    state = after(old, new)
    serializer = evolved_serializer(declared_type(new), state)
    for number in INEXACT:
        raw = serializer_for(old).dumps(value(number))
        for read in (serializer.loads, stored_reader(state)):
            with refused(StateTypeError, f"stored int {number} ", "more digits than a float holds"):
                read(raw)


def test_every_int_that_no_float_is_equal_to_becomes_a_decimal() -> None:
    serializer = evolved_serializer(declared_type(Decimal), after(int, Decimal))
    assert [serializer.loads(serializer_for(int).dumps(number)) for number in INEXACT] == INEXACT


def test_the_advice_for_such_an_int_works_after_the_type_has_changed() -> None:
    def rounded(old: int) -> float:
        return float(old)

    state = after(int, float)
    declared = declared_type(float, rounded)
    again, change = evolved(state, declared, 9)
    assert change is None
    serializer = evolved_serializer(declared, again)
    assert serializer.loads(serializer_for(int).dumps(2**53 + 1)) == 2.0**53
    assert serializer.loads(evolved_serializer(declared_type(float), state).dumps(1.5)) == 1.5


def test_a_function_says_what_becomes_of_an_enum_whose_values_moved() -> None:
    before, now = enum.Enum("E", "A B"), enum.Enum("E", "A X B")  # type: ignore[misc]

    def by_name(old: int) -> Any:
        return now[before(old).name]

    declared = declared_type(now, lambda old: by_name(old))
    state, _ = evolved(schema(before), declared, 2)
    assert evolved_serializer(declared, state).loads(serializer_for(before).dumps(before.B)) is now.B


# ---- migrate= ----


@dataclass
class First:
    cents: int


@dataclass
class Second:
    amount: Decimal


@dataclass
class Third:
    amount: Decimal
    currency: str


def first_to_second(old: First) -> Second:
    return Second(Decimal(old.cents) / 100)


def second_to_third(old: Second) -> Third:
    return Third(old.amount, "EUR")


def plain_to_third(old: dict[str, Any]) -> Any:
    return Third(Decimal(old["cents"]), "?")


def moved(old: Any, *later: tuple[Any, Any]) -> tuple[Any, StateSchema]:
    state = schema(old)
    for slot, (hint, migrate) in enumerate(later, start=2):
        declared = declared_type(hint, migrate)
        state, _ = evolved(state, declared, slot)
    return evolved_serializer(declared, state), state


CHAINS: dict[str, tuple[list[tuple[Any, Any]], Any]] = {
    "one function": ([(Second, first_to_second)], Second(Decimal("1.05"))),
    "two at once": ([(Third, [first_to_second, second_to_third])], Third(Decimal("1.05"), "EUR")),
    "two, release by release": (
        [(Second, first_to_second), (Third, [first_to_second, second_to_third])],
        Third(Decimal("1.05"), "EUR"),
    ),
    "plain data": ([(Third, plain_to_third)], Third(Decimal(105), "?")),
    "a rule behind a function": (
        [(make_dataclass("Wider", [("amount", Decimal), ("note", str | None, field(default=None))]), first_to_second)],
        None,
    ),
    "a rule before a function": (
        [(make_dataclass("First", [("cents", int), ("x", int, field(default=0))]), None), (str, lambda old: str(old["cents"]))],
        "105",
    ),
}  # fmt: skip


@pytest.mark.parametrize("chain", CHAINS)
def test_functions_convert_what_rules_do_not(chain: str) -> None:
    steps, expected = CHAINS[chain]
    serializer, state = moved(First, *steps)
    found = serializer.loads(serializer_for(First).dumps(First(105)))
    assert found == expected if expected is not None else found.amount == Decimal("1.05")
    assert serializer.loads(serializer.dumps(found)) == found
    if chain != "a rule before a function":
        with pytest.raises(IncompatibleError, match="only migrate= in the pipeline's code"):
            stored_reader(state)(serializer_for(First).dumps(First(105)))


def test_values_of_three_releases_back_are_read() -> None:
    fourth = make_dataclass(
        "Fourth", [("amount", Decimal), ("currency", str), ("seen", bool, field(default=False))]
    )
    functions = [first_to_second, second_to_third]
    serializer, state = moved(First, (Second, first_to_second), (Third, functions), (fourth, functions))
    assert state.version == 3
    values = [
        serializer_for(First).dumps(First(105)),
        marked(serializer_for(Second).dumps(Second(Decimal("1.05"))), 1),
        marked(serializer_for(Third).dumps(Third(Decimal("1.05"), "EUR")), 2),
    ]
    assert [serializer.loads(raw) for raw in values] == [fourth(Decimal("1.05"), "EUR")] * 3


def test_a_function_that_is_gone_while_values_need_it_is_named() -> None:
    _, state = moved(First, (Second, first_to_second))
    with refused(RefusedError, "struct First{cents:int}", "keep it"):
        evolved(state, declared_type(Second), 5)


def test_a_function_that_fails_names_the_value() -> None:
    def fails(old: dict[str, Any]) -> Any:
        raise KeyError("cents")

    serializer, _ = moved(First, (Third, fails))
    with refused(UserCodeError, "function fails failed", "{'cents': 105}", "KeyError"):
        serializer.loads(serializer_for(First).dumps(First(105)))


def test_a_function_that_makes_something_else_is_refused_where_it_is_read() -> None:
    serializer, _ = moved(First, (Third, lambda old: old))
    with refused(sf.StateTypeError, "expected Third"):
        serializer.loads(serializer_for(First).dumps(First(105)))


@pytest.mark.parametrize(
    ("functions", "why"),
    [
        ([lambda old: old, lambda old: old], "both take plain data"),
        ([first_to_second, first_to_second], "both take values of struct First"),
        (5, "migrate= takes a function of one value"),
        ([5], "migrate= takes a function of one value"),
    ],
)
def test_functions_must_be_told_apart(functions: Any, why: str) -> None:
    with pytest.raises(sf.UsageError, match=why):
        declared_type(Third, functions)


def test_a_function_of_plain_data_and_a_rule_are_not_both_taken() -> None:
    with refused(RefusedError, "rules and function", "annotate the function"):
        evolved(schema(A), declared_type(WIDE, lambda old: WIDE(old["a"])), 2)


def test_two_types_of_plain_data_need_annotations() -> None:
    second = make_dataclass("Other", [("name", str)])
    state, _ = evolved(schema(First), declared_type(second, lambda old: second(str(old["cents"]))), 2)
    with refused(RefusedError, "annotate what it takes"):
        evolved(state, declared_type(int, lambda old: 1), 3)


def test_a_custom_serializer_is_given_the_version_that_wrote() -> None:
    def loads(data: bytes, version: int) -> str:
        return f"{version}:{data.decode()}"

    made: Callable[[int], Any] = lambda version: sf.CustomSerializer("text", version, str.encode, loads)  # noqa: E731
    state = after(made(1), made(2))
    serializer = evolved_serializer(declared_type(made(2)), state)
    assert serializer.loads(serializer_for(made(1)).dumps("x")) == "1:x"
    assert serializer.loads(serializer.dumps("x")) == "2:x"
