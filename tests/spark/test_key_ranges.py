"""Whether a file can hold a key: every wrong no would leave two rows of a key in a table."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as of

from stateflow.spark.sinks.key_ranges import (
    KeyRange,
    bounds_of,
    key_ranges,
    may_hold,
    share_outside,
    together,
)

TYPES: dict[str, of.DataType] = {
    kind.simpleString(): kind
    for kind in (
        of.IntegerType(), of.LongType(), of.DateType(), of.TimestampType(), of.TimestampNTZType(), of.StringType(),
        of.DoubleType(), of.FloatType(), of.BooleanType(), of.BinaryType(), of.DecimalType(10, 2), of.StringType("UTF8_LCASE"),
    )
}  # fmt: skip


def stats(kind: str, values: list[Any], zone: timezone = UTC) -> dict[str, Any]:
    """What Delta says of a file with these values in column `k`."""
    there = [value for value in values if value is not None]
    ends = {"minValues": {"k": told(kind, min(there), zone, False)}} if there else {}
    if there and (greatest := told(kind, max(there), zone, True)) is not None:
        ends["maxValues"] = {"k": greatest}
    numbers = {"numRecords": len(values), "nullCount": {"k": len(values) - len(there)}}
    return {"path": "f", "partitionValues": {}, "stats": json.dumps({**numbers, **ends})}


def told(kind: str, value: Any, zone: timezone, greatest: bool) -> Any:
    if kind == "string":
        if len(value) <= 32 or not greatest:
            return value[:32]
        # One character that nothing goes beyond, as long as the next one does not begin with it.
        at = next((k for k in range(32, min(len(value), 64)) if value[k] < "\U0010ffff"), None)
        return None if at is None else value[:at] + ("\x7f" if value[at] < "\x7f" else "\U0010ffff")
    if kind == "date":
        return value.isoformat()
    if kind == "timestamp":
        return (
            value.replace(tzinfo=UTC)
            .astimezone(zone)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )
    return value.isoformat(timespec="milliseconds") if kind == "timestamp_ntz" else value


INSTANTS = st.datetimes(datetime(1900, 1, 1), datetime(9998, 1, 1)) | st.integers(0, 5000).map(
    lambda n: datetime(1969, 12, 31, 23, 59, 59, 998_000) + timedelta(microseconds=n)
)
TEXTS = st.text(max_size=4) | st.tuples(
    st.sampled_from(["a" * 31, "ä" * 32, "\U0010ffff" * 33, "\U0001f600" * 31]),
    st.text("a~\x7f\U0010ffffé", max_size=40),
).map("".join)
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int": (pa.int32(), st.integers(-5, 5) | st.integers(-(2**31), 2**31 - 1)),
    "bigint": (pa.int64(), st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1)),
    "date": (pa.date32(), st.dates() | st.dates(date(1969, 12, 30), date(1970, 1, 3))),
    "timestamp": (pa.timestamp("us", "UTC"), INSTANTS),
    "timestamp_ntz": (pa.timestamp("us"), INSTANTS),
    "string": (pa.string(), TEXTS.filter(lambda text: len(text) < 256)),
}  # fmt: skip


def of_batch(kind: str, values: list[Any], partitions: bool = False, pieces: int = 1) -> list[KeyRange]:
    """The ranges of a batch with these keys, as they come out of a record."""
    if kind == "timestamp":
        values = [None if value is None else value.replace(tzinfo=UTC) for value in values]
    several = [values[k::pieces] for k in range(pieces)]
    batches = [pa.record_batch([pa.array(each, VALUES[kind][0])], names=["k"]) for each in several]
    bounds = together(bounds_of(batch, {"K": 0}) for batch in batches)
    field = [of.StructField("k", TYPES[kind])]
    recorded = json.loads(json.dumps(bounds))
    return list(key_ranges(field, ["K"] if partitions else [], recorded))


@given(st.data(), st.sampled_from(sorted(VALUES)), st.integers(-12 * 60, 12 * 60))
def test_a_file_that_has_a_key_of_the_batch_may_hold_one(
    data: st.DataObject, kind: str, minutes: int
) -> None:
    value = VALUES[kind][1]
    key = data.draw(value)
    others = st.lists(value | st.none(), max_size=3)
    file, batch = [key, *data.draw(others)], [key, *data.draw(others)]
    zone = timezone(timedelta(minutes=minutes))
    assert may_hold(stats(kind, file, zone), of_batch(kind, batch, pieces=data.draw(st.integers(1, 3))))


def test_a_file_may_hold_a_key_at_its_very_bounds() -> None:
    """Of an instant the log has the milliseconds alone."""

    def holds(kind: str, ends: Any, least: int, greatest: int) -> bool:
        stats = {"numRecords": 1, "minValues": {"k": ends}, "maxValues": {"k": ends}}
        return may_hold({"stats": json.dumps(stats)}, [KeyRange("k", kind, False, least, greatest)])

    assert [holds("bigint", 5, *ends) for ends in ((5, 9), (1, 5), (5, 5), (6, 9), (1, 4))] == [
        True, True, True, False, False,
    ]  # fmt: skip
    at = int(datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()) * 1_000_000 + 123_456
    assert holds("timestamp", "2026-01-01T12:00:00.123Z", at, at)
    assert not holds("timestamp", "2026-01-01T12:00:00.123Z", at + 2000, at + 2000)


@given(st.data(), st.sampled_from(sorted(VALUES)))
def test_a_file_may_only_hold_a_key_where_the_ranges_meet(data: st.DataObject, kind: str) -> None:
    file, batch = (data.draw(st.lists(VALUES[kind][1], min_size=1, max_size=3)) for _ in range(2))
    room: Any = {"timestamp": timedelta(milliseconds=2), "timestamp_ntz": timedelta(milliseconds=2)}.get(kind)
    if kind == "string":
        apart = max(batch) < min(file)[:32] and "\ufffd" not in "".join(file)
    elif kind == "date":
        apart = max(batch) < min(file) and min(file) >= date(1582, 10, 15)
    else:
        apart = (max(batch) + room if room else max(batch)) < min(file)
    if apart and "maxValues" in stats(kind, file)["stats"]:
        assert not may_hold(stats(kind, file), of_batch(kind, batch))


@given(st.data(), st.sampled_from(["int", "bigint", "date", "string"]))
def test_a_partition_holds_the_keys_of_its_value(data: st.DataObject, kind: str) -> None:
    value = VALUES[kind][1]
    key, others = data.draw(value), data.draw(st.lists(value, max_size=3))
    batch = of_batch(kind, [key, *others], partitions=True)
    assert may_hold({"partitionValues": {"k": str(key)}}, batch)
    assert not may_hold({"partitionValues": {"k": None}}, batch)
    other = data.draw(value)
    if (
        other > max(key, *others, key)
        and (kind != "date" or other >= date(1582, 10, 15))
        and "\ufffd" not in str(other)
    ):
        assert not may_hold({"partitionValues": {"k": str(other)}}, batch)


def add(**given: Any) -> dict[str, Any]:
    return {"path": "f", "partitionValues": {}, "stats": json.dumps({"numRecords": 2, **given})}


LONE = chr(0xDC00)
"""Half of a character, which JSON can have and UTF-8 cannot."""
FIVE = [KeyRange("k", "int", False, 5, 6)]
WORD = [KeyRange("k", "string", False, "b", "c")]
DAY = [KeyRange("k", "date", False, 0, 1)]
AT = [KeyRange("k", "timestamp", False, 0, 1)]
NTZ = [KeyRange("k", "timestamp_ntz", False, 0, 1)]


def ends(least: Any, greatest: Any) -> dict[str, Any]:
    return add(minValues={"k": least}, maxValues={"k": greatest})


@pytest.mark.parametrize(
    ("action", "ranges"),
    [
        ({"path": "f"}, FIVE), ({"path": "f", "stats": None}, FIVE), ({"path": "f", "stats": "{"}, FIVE), ({"path": "f", "stats": "[]"}, FIVE),
        (add(), FIVE), (add(minValues={"j": 9}, maxValues={"j": 9}), FIVE), (add(minValues={"k": 9}), FIVE), (add(maxValues={"k": 1}), FIVE),
        (ends(9, None), FIVE), (ends("9", "9"), FIVE), (ends(9.5, 9.5), FIVE), (ends(True, True), FIVE), (ends({"x": 9}, {"x": 9}), FIVE),
        (add(minValues=None, maxValues=[9], nullCount="2"), FIVE), (ends(LONE, LONE), WORD), (ends(9, 9), []), (ends("\ufffd", "\ufffd"), WORD), (ends("d", "\ufffd"), WORD), (ends(9, 9), WORD),
        (ends("+10000-01-01", "+10000-01-01"), DAY), (ends("-0001-01-01", "-0001-01-01"), DAY), (ends("0900-01-01", "0900-01-01"), DAY),
        (ends("2020-01-01T00:00:00.000", "2020-01-01T00:00:00.000"), AT), (ends("2020-01-01T00:00:00.000Z", "2020-01-01T00:00:00.000Z"), NTZ),
        (ends("+10000-01-01T00:00:00.000Z", "+10000-01-01T00:00:00.000Z"), AT), (ends("1970-01-01T00:00:00.001Z", "1971-01-01T00:00:00.000Z"), AT),
        (ends("1969-01-01T00:00:00.000Z", "1969-12-31T23:59:59.999Z"), AT), (ends("1970-01-01T01:00:59.000+01:00", "1971-01-01T00:00:00.000+01:00"), AT),
        ({"partitionValues": {}}, [KeyRange("k", "int", True, 5, 6)]), ({"partitionValues": {"k": "x"}}, [KeyRange("k", "int", True, 5, 6)]),
        ({"partitionValues": {"k": "\ufffd"}}, [KeyRange("k", "string", True, "b", "c")]),
    ],
)  # fmt: skip
def test_what_is_not_said_for_sure_means_yes(action: dict[str, Any], ranges: list[KeyRange]) -> None:
    assert may_hold(action, ranges)


@pytest.mark.parametrize(
    ("action", "ranges"),
    [
        (ends(7, 9), FIVE), (ends(-9, 4), FIVE), (add(nullCount={"k": 2}), FIVE), (ends("ca", "d"), WORD), (ends("", "a\U0010ffff"), WORD),
        (ends("1970-01-03", "1970-01-03"), DAY), (ends("1970-01-01T00:00:00.002Z", "1971-01-01T00:00:00.000Z"), AT),
        (ends("1970-01-01T01:01:00.002+01:00", "1971-01-01T00:00:00.000+01:00"), AT), (ends("1969-01-01T00:00:00.000", "1969-01-01T00:00:00.000"), NTZ),
        ({"partitionValues": {"k": "-7"}}, [KeyRange("k", "int", True, 5, 6)]), ({"partitionValues": {"k": None}}, [KeyRange("k", "int", True, 5, 6)]),
        (add(minValues={"k": 5, "j": 1}, maxValues={"k": 5, "j": 1}), [*FIVE, KeyRange("j", "int", False, 2, 2)]),
    ],
)  # fmt: skip
def test_one_column_that_is_apart_means_no(action: dict[str, Any], ranges: list[KeyRange]) -> None:
    assert not may_hold(action, ranges)


def test_a_column_is_looked_up_under_its_physical_name_whatever_its_letters() -> None:
    mapped = of.StructField(
        "Id",
        of.IntegerType(),
        True,
        {"delta.columnMapping.physicalName": "col-7"},
    )
    assert key_ranges([mapped], [], {"iD": [1, 2]}) == (KeyRange("col-7", "int", False, 1, 2, "Id"),)


@pytest.mark.parametrize(
    "kind", ["double", "float", "boolean", "binary", "decimal(10,2)", "string collate UTF8_LCASE"]
)
def test_columns_of_other_types_are_not_compared(kind: str) -> None:
    assert key_ranges([of.StructField("k", TYPES[kind])], [], {"k": [1, 2]}) == ()


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
def test_partitions_by_time_are_not_compared(kind: str) -> None:
    assert key_ranges([of.StructField("k", TYPES[kind])], ["k"], {"k": [1, 2]}) == ()


@pytest.mark.parametrize(
    ("values", "bounds"),
    [
        (pa.array([3, None, -2]), {"k": (-2, 3)}), (pa.array([None, None], pa.int64()), {}), (pa.array([], pa.int64()), {}),
        (pa.array([1.5]), {"k": None}), (pa.array([True]), {"k": None}), (pa.array([b"x"]), {"k": None}), (pa.array([1], pa.timestamp("s")), {"k": None}),
        (pa.array(["é", "z", ""]), {"k": ("", "é")}), (pa.array(["é"], pa.large_string()), {"k": ("é", "é")}), (pa.array(["x" * 257, "a"]), {"k": None}),
        (pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers()), {"k": None}),
        (pa.array([4_000_000], pa.date32()), {"k": (4_000_000, 4_000_000)}), (pa.array([2**62], pa.timestamp("us", "UTC")), {"k": (2**62, 2**62)}),
    ],
)  # fmt: skip
def test_bounds_of_a_batch(values: pa.Array, bounds: dict[str, Any]) -> None:
    assert bounds_of(pa.record_batch([values], names=["x"]), {"k": 0}) == bounds


def test_bounds_that_one_batch_cannot_tell_are_not_told_for_all() -> None:
    assert together([{"a": (1, 2), "b": (1, 2)}, {}, {"a": (0, 1), "b": None}, {"b": (3, 4)}]) == {
        "a": (0, 2),
        "b": None,
    }


@pytest.mark.parametrize(
    ("action", "ranges", "share"),
    [
        (ends(0, 9), [KeyRange("k", "int", False, 5, 6)], 0.8), (ends(0, 9), [KeyRange("k", "int", False, -5, 60)], 0), (ends(7, 9), FIVE, 1), (add(), FIVE, 0), (ends(5, 5), FIVE, 0),
        (ends(0, 9), [], 0), (ends("user-00", "user-99"), [KeyRange("k", "string", False, "user-02", "user-97")], 0.1),
        (ends("1970-01-01", "1970-01-10"), DAY, 0.8), (ends("", "a"), [KeyRange("k", "string", False, "", "a")], 0),
        ({"partitionValues": {"k": "5"}}, [KeyRange("k", "int", True, 5, 6)], 0), ({"partitionValues": {"k": "7"}}, [KeyRange("k", "int", True, 5, 6)], 1),
        (add(minValues={"k": 0, "j": 1}, maxValues={"k": 9, "j": 1}), [*FIVE, KeyRange("j", "int", False, 1, 2)], 0.8),
    ],
)  # fmt: skip
def test_how_much_of_a_file_a_batch_leaves_alone(
    action: dict[str, Any], ranges: list[KeyRange], share: float
) -> None:
    assert share_outside(action, ranges) == pytest.approx(share, abs=0.1)


@given(st.data(), st.sampled_from(sorted(VALUES)))
def test_the_share_that_is_left_alone_is_a_share(data: st.DataObject, kind: str) -> None:
    file, batch = (data.draw(st.lists(VALUES[kind][1], min_size=1, max_size=3)) for _ in range(2))
    assert 0 <= share_outside(stats(kind, file), of_batch(kind, batch)) <= 1
