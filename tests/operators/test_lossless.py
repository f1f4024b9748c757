"""Values of user code that Arrow would take and change: every one is refused, everywhere they come out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import stateflow as sf
from stateflow.pipelines.rows.row_type import named_rows
from stateflow.state.values.arrow.lossless import MISFITS, array_of
from stateflow.testing import ColumnarHarness, KeyedHarness
from tests.refusals.refusal import refused

TEXTS, NUMBERS = pa.list_(pa.string()), pa.list_(pa.int64())
INSTANT = pa.timestamp("us", "UTC")
NAIVE = datetime(2026, 1, 1)
MOMENT = datetime(2026, 1, 1, 5, tzinfo=UTC)
LOSSY = [
    (1.5, pa.int64()), (Decimal("1.9"), pa.int64()), (np.float64(1.5), pa.int64()), (np.float32(1.5), pa.int32()),
    ("tea", TEXTS), ("", TEXTS), (b"ab", NUMBERS), (bytearray(b"ab"), NUMBERS), (memoryview(b"ab"), NUMBERS), ({1, 2}, NUMBERS),
    (frozenset({1}), NUMBERS), ({"a": "b"}, pa.list_(TEXTS)), (float("nan"), pa.int64()), (float("inf"), pa.int64()), (Decimal("NaN"), pa.int64()),
    (NAIVE, INSTANT), (5, INSTANT), (np.int64(5), INSTANT), (5, pa.date32()), (MOMENT, pa.date32()),
    (1e300, pa.float32()), (-3.5e38, pa.float32()),
]  # fmt: skip
SAME = [
    (2.0, pa.int64()), (Decimal(2), pa.int64()), (np.int64(2), pa.int64()), (None, pa.int64()), (MOMENT, INSTANT), (None, INSTANT),
    (["tea"], TEXTS), ([], TEXTS), ([1, 2], NUMBERS), ([["a"], None], pa.list_(TEXTS)), (date(2026, 1, 1), pa.date32()), (1, pa.float64()), (np.float64(1.5), pa.float64()),
    (float("inf"), pa.float32()), (-1.5, pa.float32()), (float(np.finfo(np.float32).max), pa.float32()),
]  # fmt: skip


def inside(value: Any, kind: Any) -> list[tuple[Any, Any]]:
    """The value bare, and in everything that can have it."""
    return [
        (value, kind),
        ([value], pa.list_(kind)),
        ({"a": value}, pa.map_(pa.string(), kind)),
        ({"a": value}, pa.struct([("a", kind)])),
        ([{"a": [value]}], pa.list_(pa.map_(pa.string(), pa.list_(kind)))),
    ]


@pytest.mark.parametrize(("value", "kind"), [each for lossy in LOSSY for each in inside(*lossy)])
def test_what_arrow_would_change_is_refused(value: Any, kind: Any) -> None:
    with pytest.raises(MISFITS):
        array_of([None, value], kind)


@pytest.mark.parametrize(("value", "kind"), SAME)
def test_what_stays_the_same_is_taken(value: Any, kind: Any) -> None:
    for each, of in inside(value, kind):
        array_of([each, None], of)
    assert array_of([value], kind).to_pylist() == [value]


@dataclass
class Tagged:
    tags: Any


@pytest.mark.parametrize("tags", ["tea", {"tea"}])
def test_a_text_in_the_place_of_a_list_is_found_in_a_record_too(tags: Any) -> None:
    of = pa.struct([("tags", TEXTS)])
    array_of([Tagged(["tea"]), Tagged(("tea",)), None], of)
    with pytest.raises(MISFITS):
        array_of([None, Tagged(tags)], of)


@dataclass
class Point:
    a: int
    b: int


@dataclass
class Misspelt:
    a: int
    bb: int


@dataclass
class Measured(Point):
    """With a field that it computes."""

    length: int = field(init=False, default=7)


class Packed(msgspec.Struct):
    b: int
    a: int


class Named(NamedTuple):
    b: int
    a: int


POINT = pa.struct([("a", pa.int64()), ("b", pa.int64())])
ROW = named_rows("Row", ["b", "a"])
FITTING = [
    Point(1, 2),
    Measured(1, 2),
    Packed(2, 1),
    Named(2, 1),
    ROW(2, 1),
    {"a": 1, "b": 2},
    {"b": 2, "a": 1},
]
OTHERS = [
    Misspelt(1, 2),
    {"a": 1},
    {"a": 1, "b": 2, "c": 3},
    {"a": 1, "bb": 2},
    {},
    named_rows("Row", ["a"])(1),
]


@pytest.mark.parametrize("value", FITTING, ids=repr)
def test_the_fields_of_a_record_are_taken_by_their_names(value: Any) -> None:
    for each, of in inside(value, POINT):
        assert array_of([each, None], of) == pa.array([plain(each, of), None], of)


def plain(value: Any, kind: Any) -> Any:
    """The value with the point in it as a dict, and with maps as pairs."""
    if kind == POINT:
        return {"a": 1, "b": 2}
    if pa.types.is_list(kind):
        return [plain(each, kind.value_type) for each in value]
    if pa.types.is_map(kind):
        return [(key, plain(each, kind.item_type)) for key, each in value.items()]
    return {"a": plain(value["a"], kind.field("a").type)}


def test_a_field_that_a_class_computes_is_taken_where_it_is_named() -> None:
    of = pa.struct([*POINT, ("length", pa.int64())])
    assert array_of([Measured(1, 2)], of).to_pylist() == [{"a": 1, "b": 2, "length": 7}]


@pytest.mark.parametrize("value", OTHERS, ids=repr)
def test_a_record_with_other_fields_is_refused_wherever_it_is(value: Any) -> None:
    for each, of in inside(value, POINT):
        with refused(ValueError, "its fields are", "record a, b"):
            array_of([None, each], of)


@pytest.mark.parametrize("value", [5, "ab", (1, 2), [("a", 1), ("b", 2)], object], ids=repr)
def test_what_is_no_record_is_refused(value: Any) -> None:
    with refused(TypeError, "it is no record", "a dict with a, b"):
        array_of([value], POINT)


def test_a_map_with_records_as_keys_is_a_list_of_pairs() -> None:
    of = pa.map_(POINT, pa.list_(POINT))
    pairs = [({"a": 1, "b": 2}, [{"a": 3, "b": 4}])]
    assert array_of([[(Point(1, 2), [Point(3, 4)])], pairs], of).to_pylist() == [pairs, pairs]
    for wrong in (["ab"], "ab", [1], [(1, 2, 3)]):
        with refused(TypeError, "it is no dict"):
            array_of([wrong], pa.map_(pa.string(), pa.string()))


def test_a_process_is_told_of_a_misspelt_field_and_may_do_as_it_is_told() -> None:
    class Points(sf.KeyedProcess[int, View, Any]):
        def process(self, key: int, rows: Iterator[View], ctx: sf.Context) -> Iterator[Any]:
            yield from ((key, row) for row in rows)

    harness = KeyedHarness(
        Points, output="k long, at struct<a: bigint, b: bigint>", key=lambda _: 1, key_type=int
    )
    with refused(sf.UsageError, "Misspelt(a=1, bb=2)", "column 'at'", "its fields are a, bb", "record a, b"):
        harness.rows(Misspelt(1, 2))
    with refused(sf.UsageError, "{'a': 1}", "give each of these a value, or None"):
        harness.rows({"a": 1})
    assert harness.rows({"a": 1, "b": None}) == [(1, {"a": 1, "b": None})]


@dataclass
class View:
    ad: int
    ts: datetime


@dataclass
class Out:
    ad: int
    n: int | None
    seen: datetime | None


MISTAKES = [
    ({"n": 1.5}, r"1\.5 (for|as) 'n'.*: it has a fraction"),
    ({"n": Decimal("1.9")}, r"Decimal\('1.9'\) (for|as) 'n'.*: it has a fraction"),
    ({"n": True}, r"True (for|as) 'n'.*, which is no int64"),
    ({"seen": NAIVE}, r".*(for|as) 'seen'.*: it has no time zone; use datetime"),
    ({"seen": 5}, r"5 (for|as) 'seen'.*: it is a number; use datetime"),
]


@pytest.mark.parametrize(("given", "message"), MISTAKES)
def test_a_joins_function_is_told_the_value_the_column_and_the_key(given: Any, message: str) -> None:
    def made(left: Any, right: Any) -> Out:
        return Out(**{"ad": left.ad, "n": None, "seen": None, **given})

    @sf.pipeline("joined")
    def joined(flow: sf.Flow) -> None:
        views = flow.source("views", sf.delta("/views"), View, event_time="ts", watermark="1 minute").key_by(
            "ad"
        )
        others = flow.source(
            "others", sf.delta("/others"), View, event_time="ts", watermark="1 minute"
        ).key_by("ad")
        views.join("j", others, made, within=("0 minutes", "1 minute")).append("out", sf.delta("/out"))

    harness = ColumnarHarness.of(joined.build(), "j")
    with pytest.raises(sf.StateflowError, match=rf"join 'j': the function gave {message}") as told:
        harness.both([View(7, MOMENT)], [View(7, MOMENT)])
    assert "on key 7" in str(told.value)


@pytest.mark.parametrize(("given", "message"), MISTAKES)
def test_an_answer_is_told_with_its_key(given: Any, message: str) -> None:
    @sf.pipeline("enriched")
    def enriched(flow: sf.Flow) -> None:
        views = flow.source("views", sf.delta("/views"), View).key_by("ad")
        answer = {"n": None, "seen": None, **given}
        views.enrich("e", lambda ads: [answer for _ in ads], Out).append("out", sf.delta("/out"))

    with pytest.raises(sf.StateflowError, match=rf"operator 'e': the answer for 7 has {message}"):
        ColumnarHarness.of(enriched.build(), "e").rows(View(7, MOMENT))


def test_a_process_is_told_of_values_inside_of_others() -> None:
    class Lists(sf.KeyedProcess[int, View, Any]):
        def process(self, key: int, rows: Iterator[View], ctx: sf.Context) -> Iterator[Any]:
            yield {"n": [1.5]}

    with refused(sf.UsageError, "put out [1.5] in column 'n'", "it has a fraction"):
        KeyedHarness(Lists, output="n array<bigint>").rows(View(7, MOMENT))


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        ("tea", "'tea' is one value and no list: put it into a list"),
        ({"tea"}, "a set has no order; use sorted(...)"),
    ],
)
def test_a_process_is_told_of_a_text_or_a_set_in_the_place_of_a_list(tags: Any, reason: str) -> None:
    class Tags(sf.KeyedProcess[int, View, Any]):
        def process(self, key: int, rows: Iterator[View], ctx: sf.Context) -> Iterator[Any]:
            yield key, tags

    with refused(sf.UsageError, f"put out {tags!r} in column 'tags'", reason):
        KeyedHarness(Tags, output="k long, tags array<string>").rows(View(7, MOMENT))
