"""Keys of every type, plain and composite, and what cannot be one."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.format.keygroups import default_assignment, xxhash64
from stateflow.pipelines.rows.row_type import row_type
from stateflow.spark.shuffle.exchange import KeyedInput, carried_by, exchanged, key_types_of, spread
from tests.refusals.refusal import refused
from tests.spark.pipelines import COUNTED, Count, Workbench

SCHEMA = "small int, large long, text string, raw binary, flag boolean, day date, at timestamp, money decimal(10,2), share double"
KEYS: dict[str, list[Any]] = {
    "small": [0, 1, -5, 2**31 - 1],
    "large": [0, 1, -5, 2**62],
    "text": ["", "a", "é\u0001", "a" * 200],
    "raw": [b"", b"\0", b"\0\xff", b"abc"],
    "flag": [True, False, True, True],
    "day": [date(1969, 12, 31), date(2026, 1, 1), date(1970, 1, 1), date(2026, 1, 1)],
    "at": [datetime(2026, 1, 1, 0, 0, 0, 5, tzinfo=UTC), datetime(1960, 1, 1, tzinfo=UTC)] * 2,
    "money": [Decimal("0.10"), Decimal("-3.25"), Decimal("0.10"), Decimal("99999999.99")],
    "share": [0.5, 1.5, 2.5, 3.5],
}


def rows() -> list[dict[str, Any]]:
    out = []
    for n in range(4):
        row = {name: values[n] for name, values in KEYS.items()}
        out.append({**row, "raw": _base64(row["raw"]), "money": str(row["money"])})
    return out


def _base64(raw: bytes) -> str:
    import base64

    return base64.b64encode(raw).decode()


@pytest.mark.slow
def test_every_type_of_key_finds_its_state_again(bench: Workbench) -> None:
    plain = [name for name in KEYS if name != "share"]
    keyed: dict[str, tuple[str, ...]] = {name: (name,) for name in plain}
    keyed["both"] = ("text", "day", "flag")
    tables = {uid: sf.memory(f"keys-{uid}") for uid in keyed}
    for table in tables.values():
        table.clear()

    @sf.pipeline("keys")
    def keys(flow: sf.Flow) -> None:
        source = flow.source("in", bench.source("in", SCHEMA))
        for uid, columns in keyed.items():
            source.key_by(*columns).process(uid, Count, output=COUNTED).collect(f"{uid}-out", tables[uid])

    bench.rows("in", rows())
    bench.rows("in", rows())
    bench.run(keys, backend="memory", inline_threshold="20 KiB")
    for uid, columns in keyed.items():
        made = [tuple(KEYS[c][n] for c in columns) for n in range(4)]
        if len(columns) == 1:
            counts = Counter(repr(_as_read(key[0])) for key in made)
        else:
            counts = Counter(f"Key(text={t!r}, day={d!r}, flag={f!r})" for t, d, f in made)
        for batch, (_, found) in enumerate(tables[uid].batches, 1):
            got = {_unnamed(r["key"]): r["count"] for r in found}
            assert got == {_unnamed(key): count * batch for key, count in counts.items()}, uid
    head = bench.records("keys")[-1]
    assert head.operators["small"].key == (("small", "int"),)
    assert head.operators["both"].key == (("text", "str"), ("day", "date"), ("flag", "bool"))
    # Tiny state has no objects of its own: it travels inside the record.
    files = [f for o in head.operators.values() for t in o.shards for s in t for f in s.files]
    assert files
    assert all(f.data is not None for f in files)
    assert not list((bench.folder / "root").rglob("*.sst"))


def _as_read(key: Any) -> Any:
    return key.quantize(Decimal(1).scaleb(-18)) if isinstance(key, Decimal) else key


def _unnamed(key: str) -> str:
    """Decimals of one value and named tuples of one content are the same, whatever they are written like."""
    inner = key.partition("(")[2] if "=" in key else key
    if inner.startswith("Decimal") or key.startswith("Decimal"):
        return str(Decimal(key.split("'")[1]).normalize())
    return inner.rstrip(")") if "=" in key else key


def test_keys_are_cast_before_they_are_hashed(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1,), (2,), (-7,)], "user int")
    given = KeyedInput(frame, ("user",), (), row_type("user long"))
    assert key_types_of("x", given) == ("int",)
    out = exchanged("x", [given], ("int",), 128, default_assignment(2, 128)).collect()
    assert {row["_sf_key0"]: row["_sf_group"] for row in out} == {k: xxhash64(k) % 128 for k in (1, 2, -7)}


def test_decimals_that_would_be_rounded_to_one_key_are_no_key(spark: SparkSession) -> None:
    frame = spark.sql("select cast(1 as decimal(38,20)) as fine, cast(1 as decimal(38,18)) as coarse")
    untyped = row_type("user long")
    assert key_types_of("x", KeyedInput(frame, ("coarse",), (), untyped)) == ("decimal",)
    with refused(sf.UsageError, "operator 'x'", "'fine'", "decimal(38,20)", "cast it to decimal(38,18)"):
        key_types_of("x", KeyedInput(frame, ("fine",), (), untyped))


def test_the_shuffle_carries_no_key_that_a_field_repeats_and_no_flag_that_is_always_false(
    spark: SparkSession,
) -> None:
    frame = spark.createDataFrame(
        [(1, 10, "a"), (2, 20, "b"), (-7, 30, "a")], "user int, large long, text string"
    )
    columns, types = ("large", "user", "text"), ("int", "int", "str")
    given = KeyedInput(frame, columns, ("text",), row_type("user int, text string, large long"))
    carry = carried_by([given], types)
    lean = exchanged("x", [given], types, 128, default_assignment(1, 128), carry=carry)
    whole = exchanged("x", [given], types, 128, default_assignment(1, 128))
    assert lean.columns == ["_sf_place", "_sf_key1", "user", "text", "large"]
    assert [row["user"] for row in lean.collect()] == [row["user"] for row in whole.collect()]
    timed = KeyedInput(frame.selectExpr("*", "user > 1 as _sf_late"), columns, (), given.rows)
    kept = exchanged("x", [timed], types, 128, default_assignment(1, 128), carry=carried_by([timed], types))
    assert kept.columns == ["_sf_place", "_sf_key1", "_sf_late", "user", "text", "large"]


@pytest.mark.parametrize(
    ("columns", "order_by", "sides", "sorts"),
    [
        (("user",), (), 1, []),
        (("user", "text"), (), 1, []),
        (("user",), ("-n",), 1, ["_sf_place", "user", "_sf_by0_0"]),
        (("user",), (), 2, ["_sf_place", "_sf_key0", "_sf_side"]),
    ],
)
def test_spark_does_not_sort_rows_without_an_order(
    spark: SparkSession, columns: tuple[str, ...], order_by: tuple[str, ...], sides: int, sorts: list[str]
) -> None:
    """The task sorts them, by the place."""
    frame = spark.createDataFrame([(1, "a", 1)], "user long, text string, n long")
    inputs = [KeyedInput(frame, columns, order_by, row_type("user long, text string, n long"))] * sides
    types = key_types_of("x", inputs[0])
    carry = carried_by(inputs, types)
    made = exchanged("x", inputs, types, 128, default_assignment(1, 128), carry=carry)
    plan = made._jdf.queryExecution().executedPlan().toString()
    found = [
        re.findall(r"(\w+)#\d+L? (?:ASC|DESC)", sort) for sort in re.findall(r"Sort \[(.*?)\], false", plan)
    ]
    assert found == ([sorts] if sorts else [])
    assert carry.mixed == (not sorts)


@dataclass
class Numbered:
    id: int
    seq: int = 5


@pytest.mark.parametrize(("order", "wanted"), [("seq", [2, None, 9, 10]), ("-seq", [10, 9, None, 2])])
def test_rows_are_in_the_order_of_the_values_that_code_sees(
    spark: SparkSession, order: str, wanted: list[int | None]
) -> None:
    """Of their declared type, with defaults in, also where an operator needs the column for nothing else."""
    frame = spark.createDataFrame([(1, "9"), (1, None), (1, "10"), (1, "2")], "id long, seq string").coalesce(
        1
    )
    declared = row_type(Numbered)
    given = KeyedInput(frame, ("id",), (order,), declared)
    in_one = exchanged("x", [given], ("int",), 128, default_assignment(1, 128)).collect()
    assert [row["seq"] for row in in_one] == wanted
    assert [row["seq"] for row in spread("x", given, 1).collect()] == wanted
    texts = replace(given, rows=row_type("id long, seq string"), declared=declared)
    lean = exchanged("x", [texts], ("int",), 128, default_assignment(1, 128)).collect()
    assert [row["seq"] and int(row["seq"]) for row in lean] == wanted


def test_rows_are_not_sorted_by_a_default_that_spark_cannot_put_in(spark: SparkSession) -> None:
    given = KeyedInput(spark.range(1), ("id",), ("tags",), row_type(Tagged))
    with refused(sf.UsageError, "operator 'x'", "'tags'", "Tagged", "F.coalesce("):
        spread("x", replace(given, frame=spark.sql("select 1L as id, array(1L) as tags")), 1)


@dataclass
class Tagged:
    id: int
    tags: list[int] = field(default_factory=list)


def test_a_null_key_and_a_float_key_are_refused(bench: Workbench) -> None:
    @sf.pipeline("nulls")
    def nulls(flow: sf.Flow, *, column: str) -> None:
        source = flow.source("in", bench.source("in", SCHEMA))
        source.key_by(column).process("counted", Count, output=COUNTED).collect("out", sf.memory("nulls"))

    bench.rows("in", [*rows(), {"small": None, "text": None}])
    with refused(sf.UsageError, "operator 'counted'", "key column 'share'", "double"):
        bench.run(nulls, {"column": "share"})
    assert bench.listing() == []
    with pytest.raises(sf.UsageError) as caught:
        bench.run(nulls, {"column": "small"})
    assert str(caught.value) == (
        "operator 'counted': 1 row has a null in key column 'small': leave such rows out before, with "
        ".transform(lambda rows: rows.where('small is not null')), or give them a value; if every row has one, it is called otherwise than "
        "'small' in what is read"
    )
    assert sf.memory("nulls").rows == []
    assert all(not r.operators for r in bench.records("nulls"))


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [True, False])
def test_every_subtask_runs_even_without_a_row(spark: SparkSession, ordered: bool) -> None:
    """Else no timer would fire there, and the operator would not be acknowledged."""
    full = spark.createDataFrame([(1,), (2,)], "user long")
    cached = full.persist()
    empty = [
        spark.createDataFrame([], "user long"),
        spark.createDataFrame(spark.sparkContext.emptyRDD(), "user long"),
        full.where("user > 5"),
        full.where("1 = 0"),
        full.limit(0),
        cached.where("user > 5"),
        cached.where("1 = 0"),
    ]
    ran = spark.sparkContext.accumulator(0)

    def count(batches: Any) -> Any:
        for _ in batches:
            pass
        ran.add(1)
        return iter(())

    for n, frame in enumerate(empty, 1):
        given = KeyedInput(frame, ("user",), (), row_type("user long"))
        out = exchanged("x", [given], ("int",), 128, default_assignment(2, 128), ordered=ordered)
        out.mapInArrow(count, "user long").write.format("noop").mode("overwrite").save()
        assert ran.value == 2 * n
    cached.unpersist()
