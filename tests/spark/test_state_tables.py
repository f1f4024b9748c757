"""`spark.read.format("stateflow")`: a snapshot's state as rows, and no more of it opened than a question needs."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession, datasource
from pyspark.sql import functions as F

from stateflow.checkpoint.collection import collect
from stateflow.checkpoint.pins import list_pins
from stateflow.checkpoint.rescale import rescaled
from stateflow.errors import NotFoundError, StateflowError, UsageError
from stateflow.format.instants import instant
from stateflow.format.keygroups import xxhash64
from stateflow.format.records import OperatorListState, Shard
from stateflow.spark.state_tables.export import export_state
from stateflow.spark.state_tables.failures import failed, library_error
from stateflow.spark.state_tables.frames import read_state, table_frame
from stateflow.spark.state_tables.snapshots import checkpoint_of, savepoint_at, snapshot_of
from stateflow.spark.state_tables.source import StateDataSource, register
from stateflow.state.values.arrow.column_values import NO_COLUMNS
from stateflow.state.values.plain import jsonable
from stateflow.state.values.serializers import serializer_for
from tests.jobs.builder import T0
from tests.jobs.state import Held
from tests.refusals.refusal import refused
from tests.spark.holding import Holding, plain

USER = (("user", "int"),)
DAY = 86_400 * 1_000_000
WEEK = 7 * DAY
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Profile:
    name: str
    tags: list[str]
    last: datetime | None = None


def count(users: Any) -> dict[str, Held]:
    return {"count": Held("value", int, {user: user * 10 for user in users})}


def bulky(users: Any) -> dict[str, Held]:
    """So much that every shard has a file of its own: small ones travel in the record."""
    random = Random(1)
    return {**count(users), "bulk": Held("value", bytes, {user: random.randbytes(1_000) for user in users})}


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


@pytest.fixture
def holding(tmp_path: Path) -> Holding:
    return Holding(tmp_path)


def load(spark: SparkSession, holding: Holding, operator: str, state: str, **options: Any) -> DataFrame:
    reader = spark.read.format("stateflow").options(**holding.given, operator=operator, state=state)
    if "path" not in options:
        reader = reader.option("job", holding.name)
    return reader.options(**options).load()


def failure(function: Any) -> Exception:
    """What a read has failed with, without Spark's words around it."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        function()
    return library_error(caught.value)


@pytest.fixture
def native(holding: Holding) -> str:
    return str(holding.folder / "savepoint")


@pytest.mark.slow
def test_every_kind_of_state_has_its_columns_and_values(spark: SparkSession, holding: Holding) -> None:
    day, last = date(2026, 2, 3), datetime(2026, 1, 1, 12, 0, 0, 5, tzinfo=UTC)
    states = {
        "count": Held("value", int, {1: 10, 2: -20}),
        "money": Held("value", Decimal, {1: Decimal("0.10")}),
        "profile": Held("value", Profile, {1: Profile("é", ["a", "b"], last), 2: Profile("", [])}),
        "pages": Held("list", str, {1: ["x", "y", "x"]}),
        "per_day": Held("map", float, {1: {day: 0.5, date(1969, 1, 1): -1.0}}, map_key="date"),
        "longest": Held("reducing", float, {2: 2.5}),
        "seen": Held("value", datetime, {1: last}, ttl=WEEK, expires={1: T0 + WEEK}),
        "idle": Held("timer", "event", {1: last, 2: START}),
        "soon": Held("timer", "processing", {1: START}),
    }
    holding.checkpoint(totals=holding.operator(USER, states))

    def rows(state: str, *names: str) -> list[tuple[Any, ...]]:
        return plain(load(spark, holding, "totals", state).collect(), *names)

    groups = {user: xxhash64(user) % 16 for user in (1, 2)}
    assert rows("count", "key_group", "user", "value") == sorted([(groups[1], 1, 10), (groups[2], 2, -20)])
    assert rows("money", "user", "value") == [(1, Decimal("0.10"))]
    profiles = {
        row["user"]: row["value"].asDict() for row in load(spark, holding, "totals", "profile").collect()
    }
    assert profiles[2] == {"name": "", "tags": [], "last": None}
    assert (profiles[1]["name"], profiles[1]["tags"]) == ("é", ["a", "b"])
    assert rows("pages", "user", "slot", "position", "value") == [
        (1, 3, 0, "x"),
        (1, 3, 1, "y"),
        (1, 3, 2, "x"),
    ]
    assert rows("per_day", "user", "map_key", "value") == [(1, date(1969, 1, 1), -1.0), (1, day, 0.5)]
    assert rows("longest", "user", "value") == [(2, 2.5)]
    seen = load(spark, holding, "totals", "seen").select(
        "user", F.unix_micros("value"), F.unix_micros("expires_at")
    )
    micros = round(last.timestamp() * 1_000_000)
    assert [tuple(row) for row in seen.collect()] == [(1, micros, T0 + WEEK)]
    timers = load(spark, holding, "totals", "_timers").select("timer", "user", F.unix_micros("at"))
    assert sorted(tuple(row) for row in timers.collect()) == [
        ("idle", 1, micros),
        ("idle", 2, T0),
        ("soon", 1, T0),
    ]


def test_expired_values_are_shown_with_the_time_of_their_end(spark: SparkSession, holding: Holding) -> None:
    held = Held("value", int, {1: 1, 2: 2}, ttl=1, expires={1: 5, 2: T0 * 10})
    holding.checkpoint(totals=holding.operator(USER, {"gone": held}))
    rows = load(spark, holding, "totals", "gone").select("user", F.unix_micros("expires_at")).collect()
    assert sorted(tuple(row) for row in rows) == [(1, 5), (2, T0 * 10)]


def test_operator_state_has_a_row_per_subtask_and_element(spark: SparkSession, holding: Holding) -> None:
    text = serializer_for(str)
    rates = serializer_for(dict[str, float])
    elements = {
        "log": OperatorListState(
            "list", text.schema, ((text.dumps("a"), text.dumps("b")), (), (text.dumps("c"),))
        ),
        "rates": OperatorListState("broadcast", rates.schema, ((rates.dumps({"x": 0.5}),),)),
    }
    holding.checkpoint(totals=holding.operator(USER, count([1]), elements=elements))
    log = load(spark, holding, "totals", "log")
    assert log.columns == ["subtask", "position", "value"]
    assert plain(log.collect(), *log.columns) == [(0, 0, "a"), (0, 1, "b"), (2, 0, "c")]
    assert load(spark, holding, "totals", "rates").collect()[0]["value"] == {"x": 0.5}


@pytest.mark.slow
def test_a_frame_shows_the_snapshot_that_was_chosen_when_it_was_loaded(
    spark: SparkSession, holding: Holding
) -> None:
    first = holding.checkpoint(totals=holding.operator(USER, count([1])))
    holding.tag(first.slot, "v1")
    frame = load(spark, holding, "totals", "count")
    second = holding.checkpoint(totals=holding.operator(USER, count([1, 2, 3])))
    assert frame.count() == 1
    for which, expected in (
        ("latest", 3), ("tag:v1", 1), (str(second.slot), 3), (f"checkpoint:{first.slot}", 1),
    ):  # fmt: skip
        assert load(spark, holding, "totals", "count", checkpoint=which).count() == expected
        assert load(spark, holding, "totals", "count", at=which).count() == expected
    then = str(instant(second.at - 1))
    assert load(spark, holding, "totals", "count", at=then).count() == 1
    assert list_pins(holding.store, holding.layout) == [
        pin for pin in list_pins(holding.store, holding.layout) if pin.kind == "tag"
    ]


@pytest.mark.parametrize("backend", ["rocksdb", "memory"])
def test_a_savepoint_is_read_from_wherever_it_lies(
    spark: SparkSession, holding: Holding, native: str, backend: str
) -> None:
    record = holding.checkpoint(totals=holding.operator(USER, count(range(50)), backend=backend))
    holding.native(native, record)
    moved = holding.folder / "elsewhere"
    Path(native).rename(moved)
    frame = load(spark, holding, "totals", "count", path=str(moved))
    assert plain(frame.collect(), "user", "value") == [(user, user * 10) for user in range(50)]


def test_a_halved_shard_shows_only_what_it_owns(spark: SparkSession, holding: Holding) -> None:
    # Widened by accident, old values come back: 1 -> 4 -> 3 leaves several pieces of one file.
    operator = holding.operator(USER, count(range(100)), parallelism=1)
    quarters = rescaled(rescaled(operator, 4, "x"), 3, "x")
    files = {shard.files[0].path for subtask in quarters.shards for shard in subtask}
    assert len(files) == 1
    holding.checkpoint(totals=quarters)
    frame = load(spark, holding, "totals", "count")
    assert plain(frame.collect(), "user", "value") == [(user, user * 10) for user in range(100)]
    # And a piece that came alone shows nothing of its siblings.
    only = msgspec.structs.replace(quarters, shards=(quarters.shards[0][:1], (), ()))
    holding.checkpoint(totals=only)
    shard: Shard = only.shards[0][0]
    found = load(spark, holding, "totals", "count").collect()
    assert found
    assert {row["user"] for row in found} == {
        user for user in range(100) if shard.first <= xxhash64(user) % 16 <= shard.last
    }


def test_keys_of_shards_that_share_a_file_are_read_once(spark: SparkSession, holding: Holding) -> None:
    operator = rescaled(holding.operator(USER, count(range(100)), parallelism=1), 2, "x")
    half = operator.shards[1][0]
    assert (half.first, half.physical_first) == (8, 0)
    holding.checkpoint(totals=operator)
    frame = load(spark, holding, "totals", "count", keys=str([*range(100)]))
    assert plain(frame.collect(), "user", "value") == [(user, user * 10) for user in range(100)]


def test_a_key_opens_only_its_shard(spark: SparkSession, holding: Holding) -> None:
    holding.checkpoint(totals=holding.operator(USER, bulky(range(200)), parallelism=8))
    frame = load(spark, holding, "totals", "count", key="42")
    assert frame.rdd.getNumPartitions() == 1
    assert plain(frame.collect(), "user", "value") == [(42, 420)]
    mine = [f for f in _shard_of(holding, 42).files if f.path]
    assert len(mine) == len(holding.cached()) > 0
    several = load(spark, holding, "totals", "count", keys="[1, 2, 3, 999]")
    assert plain(several.collect(), "user", "value") == [(1, 10), (2, 20), (3, 30)]
    assert load(spark, holding, "totals", "count", key="999").count() == 0


def test_a_key_is_found_in_a_state_whose_entries_begin_with_a_time(
    spark: SparkSession, holding: Holding
) -> None:
    ends = {user: START + timedelta(days=user) for user in range(50)}
    holding.checkpoint(totals=holding.operator(USER, {"ends": Held("columns", NO_COLUMNS, ends)}))
    one = load(spark, holding, "totals", "ends", key="42")
    assert one.rdd.getNumPartitions() == 1
    assert [tuple(row) for row in one.select("user", F.unix_micros("at")).collect()] == [(42, T0 + 42 * DAY)]
    several = load(spark, holding, "totals", "ends", keys="[1, 2, 999]")
    assert plain(several.collect(), "user") == [(1,), (2,)]


def _shard_of(holding: Holding, user: int) -> Shard:
    from stateflow.checkpoint.log import read_log

    head = read_log(holding.store, holding.layout).head
    assert head is not None
    group = xxhash64(user) % 16
    return next(
        s for subtask in head.operators["totals"].shards for s in subtask if s.first <= group <= s.last
    )


PUSHES_DOWN = hasattr(datasource, "Filter")
"""No Spark before 4.1 narrows what a source in Python reads: every shard is opened, with the same result."""


def in_one_task(frame: DataFrame) -> bool:
    """Whether a condition has narrowed what is read."""
    return frame.rdd.getNumPartitions() == 1 or not PUSHES_DOWN


@pytest.mark.slow
def test_where_on_the_key_opens_only_its_shard(spark: SparkSession, holding: Holding) -> None:
    holding.checkpoint(totals=holding.operator(USER, bulky(range(200)), parallelism=8))
    options = {**holding.given, "job": holding.name, "operator": "totals", "state": "count"}
    frame = read_state(spark, **options)
    one = frame.where("user = 42 and value > 0")
    assert in_one_task(one)
    assert plain(one.collect(), "user", "value") == [(42, 420)]
    if PUSHES_DOWN:
        assert len(holding.cached()) == len([f for f in _shard_of(holding, 42).files if f.path]) > 0
    # The frame is not narrowed for the next question, nor for another one in the same query.
    assert frame.count() == 200
    assert plain(one.union(frame.where("user in (7, 8)")).collect(), "user") == [(7,), (8,), (42,)]
    assert frame.where("user = 1 or value = 20").count() == 2
    assert frame.where("user is null").count() == 0
    assert frame.where("user <> 1").count() == 199
    group = xxhash64(42) % 16
    groups = frame.where(f"key_group = {group}")
    assert in_one_task(groups)
    assert {row["user"] for row in groups.collect()} == {u for u in range(200) if xxhash64(u) % 16 == group}
    assert in_one_task(frame.where("key_group < 4 and key_group >= 2"))


@pytest.mark.slow
def test_where_finds_keys_of_every_type(spark: SparkSession, holding: Holding) -> None:
    key = (("s", "str"), ("d", "date"), ("b", "bool"), ("t", "datetime"), ("m", "decimal"), ("r", "bytes"))
    keys = [
        (s, date(2026, 1, day), b, START + timedelta(hours=day), Decimal(day) / 4, bytes([day, 0]))
        for s in ("a", "b\0", "é")
        for day in (1, 2, 3)
        for b in (True, False)
    ]
    states = {
        "n": Held("value", int, {k: i for i, k in enumerate(keys)}),
        "m": Held("map", int, {k: {"x": i} for i, k in enumerate(keys)}, map_key="str"),
        "ends": Held("columns", NO_COLUMNS, {k: START + timedelta(days=i) for i, k in enumerate(keys)}),
    }
    holding.checkpoint(wide=holding.operator(key, states, parallelism=16))
    options = {**holding.given, "job": holding.name, "operator": "wide"}
    for state in states:
        frame = read_state(spark, **options, state=state)
        for index in (0, 7, 17):
            s, d, b, t, m, r = keys[index]
            found = frame.where(
                (F.col("s") == s) & (F.col("d") == F.lit(d)) & (F.col("b") == b) & (F.col("t") == F.lit(t))
                & (F.col("m") == F.lit(m)) & (F.col("r") == F.lit(r))
            )  # fmt: skip
            assert in_one_task(found)
            if state == "ends":
                micros = found.select(F.unix_micros("at")).collect()
                assert [row[0] for row in micros] == [T0 + index * DAY]
            else:
                assert [row["value"] for row in found.collect()] == [index]
        half = frame.where((F.col("s") == "a") & F.col("b"))
        assert half.count() == 3


def test_key_columns_may_have_any_name(spark: SparkSession, holding: Holding) -> None:
    key = (("a b", "str"), ("c.d`e", "int"))
    operator = holding.operator(key, {"n": Held("value", int, {("x", 1): 1, ("y", 2): 2})}, parallelism=4)
    holding.checkpoint(odd=operator)
    frame = load(spark, holding, "odd", "n")
    assert frame.columns[1:3] == ["a b", "c.d`e"]
    assert frame.where("`a b` = 'y' and `c.d``e` = 2").select("value").collect()[0][0] == 2
    assert load(spark, holding, "odd", "n", key='["y", 2]').count() == 1
    options = {**holding.given, "job": holding.name, "operator": "odd", "state": "n"}
    assert in_one_task(read_state(spark, **options).where("`a b` = 'y' and `c.d``e` = 2"))


def test_what_does_not_exist_is_named_with_what_does(spark: SparkSession, holding: Holding) -> None:
    states = {**count([1]), "idle": Held("timer", "event", {1: START})}
    holding.checkpoint(totals=holding.operator(USER, states))
    given = {**holding.given, "job": "orders", "operator": "totals", "state": "count"}
    for wrong, kind, words in (
        ({"operator": "nope"}, NotFoundError, "has no operator 'nope': its operators are totals"),
        ({"state": "nope"}, NotFoundError, "has no state 'nope' in checkpoint 2 of job 'orders': its states are _timers, count"),
        ({"state": "idle"}, UsageError, "timer 'idle' of operator 'totals' is in the table '_timers'"),
        ({"job": "nope"}, NotFoundError, "there is no job 'nope'"),
        ({"checkpoint": "99"}, NotFoundError, "no checkpoint 99"),
        ({"checkpoint": "tag:nope"}, NotFoundError, "no tag 'nope'"),
        ({"checkpoint": "newest"}, UsageError, "'newest' names no checkpoint"),
        ({"at": "2020-01-01T00:00"}, NotFoundError, "the first one that it keeps is 2 of 2026-"),
        ({"at": "2", "checkpoint": "2"}, UsageError, "options checkpoint and at are the same"),
        ({"chekpoint": "1"}, UsageError, "option 'chekpoint' of the stateflow source does not exist"),
        ({"path": "/nowhere"}, UsageError, "say what to read"),
        ({"key": "a"}, UsageError, "is int, and 'a' is not one"),
        ({"keys": "5"}, UsageError, "write a JSON array of keys"),
        ({"pushdown": "maybe"}, UsageError, "write true or false"),
    ):  # fmt: skip
        error = failure(
            lambda wrong=wrong: spark.read.format("stateflow").options(**{**given, **wrong}).load().count()
        )
        assert isinstance(error, kind), (wrong, error)
        assert words in str(error), (wrong, error)
    missing = failure(lambda: load(spark, holding, "totals", "count", path=str(holding.folder / "nothing")))
    assert isinstance(missing, NotFoundError)
    assert "there is no savepoint" in str(missing)
    error = failure(lambda: spark.read.format("stateflow").schema("a int").options(**given).load().count())
    assert "read it without a schema of your own" in str(error)


def test_what_is_not_given_comes_from_the_configuration(
    holding: Holding, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    holding.checkpoint(totals=holding.operator(USER, count([1])))
    monkeypatch.chdir(tmp_path)
    with refused(UsageError, "no checkpoint root", "checkpoint_dir"):
        snapshot_of({"job": "orders"})
    (tmp_path / "stateflow.toml").write_text('checkpoint_dir = "elsewhere"\nscratch_dir = "here"\n')
    monkeypatch.setenv("STATEFLOW_CHECKPOINT_DIR", holding.root)
    with pytest.raises(UsageError, match="sets scratch_dir, and is not trusted"):
        snapshot_of({"job": "orders"})
    monkeypatch.setenv("STATEFLOW_CONFIG", str(tmp_path / "stateflow.toml"))
    found = snapshot_of({"job": "orders", "storage.region": "x"})
    assert found.record.operators.keys() == {"totals"}
    assert found.options.scratch_dir == str(tmp_path / "here"), "beside the file that names it"
    assert found.storage().storage_options == {"region": "x"}
    assert snapshot_of({"job": "orders", "root": holding.root}).record == found.record


def test_a_checkpoint_that_is_collected_while_it_is_read_fails_the_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    holding = Holding(tmp_path, retained=1)
    first = holding.checkpoint(totals=holding.operator(USER, bulky(range(50))))
    frame = load(spark, holding, "totals", "count")
    for _ in range(3):
        holding.checkpoint(totals=holding.operator(USER, count([1])))
    collect(holding.store, holding.layout, collector="gc", retained=1, orphans=True)
    error = failure(frame.collect)
    assert f"checkpoint {first.slot} of job 'orders' was collected while it was read" in str(error)
    assert isinstance(error, NotFoundError)


def test_a_missing_file_of_a_snapshot_that_stands_is_damage(spark: SparkSession, holding: Holding) -> None:
    record = holding.checkpoint(totals=holding.operator(USER, bulky(range(50))))
    path = next(f.path for s in record.operators["totals"].shards[0] for f in s.files if f.path)
    frame = load(spark, holding, "totals", "count")
    holding.store.delete([path])
    error = failure(frame.collect)
    assert f"{path} is missing" in str(error)
    assert "stateflow verify" in str(error)


def test_a_task_hands_out_rows_in_batches_of_a_bounded_size(holding: Holding) -> None:
    from stateflow.spark.state_tables.tables import BATCH_BYTES

    states = {"text": Held("value", str, dict.fromkeys(range(1_500), "x" * 20_000)), **count(range(50_000))}
    holding.checkpoint(totals=holding.operator(USER, states, parallelism=1))
    snapshot = snapshot_of({**holding.given, "job": "orders"})
    for state, most in (("text", BATCH_BYTES // 20_000 + 1), ("count", 20_000)):
        table, (part,) = snapshot.table("totals", state)
        sizes = [batch.num_rows for batch in table.rows(part)]
        assert sum(sizes) == {"text": 1_500, "count": 50_000}[state]
        assert max(sizes) <= most
        assert len(sizes) > 2


@pytest.mark.slow
def test_an_export_is_pinned_and_holds_every_row(spark: SparkSession, holding: Holding) -> None:
    profile = {n: Profile(f"n{n}", ["a"], START) for n in range(20)}
    states = {"profile": Held("value", Profile, profile), "none": Held("value", int, {}), **count(range(20))}
    holding.checkpoint(totals=holding.operator(USER, states))
    snapshot = checkpoint_of("orders", "latest", holding.options())
    by = {"owner": holding.owner(), "ids": holding.ids, "clock": holding.clock}
    for format in ("parquet", "json", "csv"):
        out = str(holding.folder / f"out-{format}")
        assert export_state(spark, snapshot, "totals", "profile", out, format, **by) == 20  # type: ignore[arg-type]
        reader = spark.read.options(header="true", escape='"') if format == "csv" else spark.read
        back = reader.format(format).load(out)
        assert back.count() == 20
        value = back.where("user = 3").collect()[0]["value"]
        assert value.startswith('{"name":"n3"') if format == "csv" else value["name"] == "n3"
        with refused(UsageError, "exists already", "--overwrite"):
            export_state(spark, snapshot, "totals", "profile", out, format, **by)  # type: ignore[arg-type]
        assert export_state(spark, snapshot, "totals", "count", out, format, overwrite=True, **by) == 20  # type: ignore[arg-type]
        assert "n3" not in str(reader.format(format).load(out).where("user = 3").collect())
    out = str(holding.folder / "none")
    assert export_state(spark, snapshot, "totals", "none", out, **by) == 0
    assert spark.read.parquet(out).columns == ["key_group", "user", "value"]
    with refused(UsageError, "'xml' is not a format"):
        export_state(spark, snapshot, "totals", "none", out, "xml", **by)  # type: ignore[arg-type]
    (Path(out) / "more").mkdir()
    # Spark's session, not this process, would know another scheme's folder: there only Hadoop lists it.
    for place in (out, f"viewfs:{out}"):
        with refused(UsageError, place, "--overwrite", "new folder"):
            export_state(spark, snapshot, "totals", "none", place, overwrite=True, **by)
    assert (Path(out) / "more").is_dir()
    assert not list_pins(holding.store, holding.layout)


def test_an_export_has_instants_as_microseconds(spark: SparkSession, holding: Holding) -> None:
    """Spark's own Parquet would have a form of old without a time zone, and its text would end with milliseconds."""
    at = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
    far = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    profile = {1: Profile("a", [], at), 2: Profile("b", [], far)}
    states = {"profile": Held("value", Profile, profile), "at": Held("value", datetime, {1: at, 2: far})}
    holding.checkpoint(totals=holding.operator(USER, states))
    snapshot = checkpoint_of("orders", "latest", holding.options())
    by = {"owner": holding.owner(), "ids": holding.ids, "clock": holding.clock}
    before = spark.conf.get("spark.sql.parquet.outputTimestampType")
    for state in states:
        for format in ("parquet", "json", "csv"):
            export_state(spark, snapshot, "totals", state, str(holding.folder / state / format), format, **by)  # type: ignore[arg-type]
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == before, "the session is as it was"
    micros = pa.timestamp("us", "UTC")
    plain_at, nested = (
        pq.read_table(holding.folder / state / "parquet").sort_by("user") for state in ("at", "profile")
    )
    assert (
        plain_at.schema.field("value").type == nested.schema.field("value").type.field("last").type == micros
    )
    assert (
        plain_at["value"].to_pylist() == [value["last"] for value in nested["value"].to_pylist()] == [at, far]
    )
    for state in states:
        for format in ("json", "csv"):
            files = (holding.folder / state / format).glob("part-*")
            assert ":00.123456" in "".join(file.read_text() for file in files)


SPANS = [
    timedelta(days=1, microseconds=1),
    timedelta(),
    timedelta(days=-1),
    timedelta(microseconds=-1),
    timedelta(hours=30),
    timedelta(seconds=100.5),
    timedelta(days=99_999_999, seconds=86_399),
]


class Place(NamedTuple):
    shop: str
    day: date


def test_an_export_as_text_has_every_key_and_value_as_it_was(spark: SparkSession, holding: Holding) -> None:
    """Readers that know RFC 4180, and not Spark's own CSV, take the cells as they were."""
    texts = {
        " a": "  padded ",
        "a": 'says "x"',
        "b": "ends \\",
        "c": "two\nlines",
        "d": "",
        '"': ', \\"',
        "e": "#",
    }
    day = date(2026, 1, 31)
    maps: dict[Any, Any] = {
        dict[bytes, int]: ({b"ab\xff": 1}, {"YWL/": 1}),
        dict[date, int]: ({day: 1}, {"2026-01-31": 1}),
        dict[datetime, int]: ({START: 1}, {"2026-01-01T00:00:00.000000Z": 1}),
        dict[tuple[int, str], list[dict[date, int]]]: (
            {(1, 'x"\n'): [{day: 1}], (2, ""): []},
            {'[1,"x\\"\\n"]': [{"2026-01-31": 1}], '[2,""]': []},
        ),
        dict[tuple[Place, bool], int]: (
            {(Place("s", day), True): 1, (Place("t", date.min), False): 2},
            {'[["s","2026-01-31"],true]': 1, '[["t","0001-01-01"],false]': 2},
        ),
        dict[int, dict[tuple[date, ...], int]]: (
            {7: {(day, day): 1}},
            {"7": {'["2026-01-31","2026-01-31"]': 1}},
        ),
        dict[Decimal, dict[date, int]]: (
            {
                Decimal(text): {day: 1}
                for text in ("12345678901234567890.123456789", "0.1", "0.100000000000000001")
            },
            {
                "12345678901234567890.123456789000000000": {"2026-01-31": 1},
                "0.100000000000000000": {"2026-01-31": 1},
                "0.100000000000000001": {"2026-01-31": 1},
            },
        ),
        dict[timedelta, int]: (dict.fromkeys(SPANS, 1), {jsonable(span): 1 for span in SPANS}),
        dict[tuple[timedelta, int], int]: ({(SPANS[0], 7): 1}, {f'["{jsonable(SPANS[0])}",7]': 1}),
    }
    states = {
        f"map_{n}": Held("value", kind, {"a": held}) for n, (kind, (held, _)) in enumerate(maps.items())
    }
    holding.checkpoint(
        totals=holding.operator((("user", "str"),), {"text": Held("value", str, texts), **states})
    )
    snapshot = checkpoint_of("orders", "latest", holding.options())
    by = {"owner": holding.owner(), "ids": holding.ids, "clock": holding.clock}

    def exported(state: str, format: str) -> list[Path]:
        out = holding.folder / f"{state}-{format}"
        export_state(spark, snapshot, "totals", state, str(out), format, **by)  # type: ignore[arg-type]
        return list(out.glob("part-*"))

    def cells(state: str) -> dict[str, str]:
        found = {}
        for file in exported(state, "csv"):
            with file.open(newline="") as lines:
                found |= {row["user"]: row["value"] for row in csv.DictReader(lines, strict=True)}
        return found

    assert cells("text") == texts
    options = {"header": "true", "escape": '"', "multiLine": "true", "nullValue": "\u0001"}
    back = spark.read.options(**options).csv(str(holding.folder / "text-csv"))
    assert {row["user"]: row["value"] for row in back.collect()} == texts
    for state, (_, written) in zip(states, maps.values(), strict=True):
        lines = [line for file in exported(state, "json") for line in file.read_text().splitlines()]
        assert [json.loads(line)["value"] for line in lines] == [written]
        assert json.loads(cells(state)["a"]) == written


def test_a_pin_is_held_for_the_length_of_an_export(holding: Holding) -> None:
    holding.checkpoint(totals=holding.operator(USER, count([1])))
    snapshot = checkpoint_of("orders", "latest", holding.options())
    with snapshot.pinned(holding.owner(), holding.ids, holding.clock, "export"):
        (held,) = list_pins(holding.store, holding.layout)
    assert (held.kind, held.slot, held.reason) == ("reader", snapshot.record.slot, "export")
    assert not list_pins(holding.store, holding.layout)


def test_a_failure_says_what_could_not_be_done() -> None:
    assert str(failed("the export failed", ValueError("no luck"))) == "the export failed: no luck"
    told_by = RuntimeError('STATEFLOW-ERROR {"type": "UsageError", "message": "a key has two rows"}')
    error = failed("the export failed", told_by)
    assert (type(error), str(error)) == (UsageError, "a key has two rows")
    assert library_error(ValueError("of no concern")).args == ("of no concern",)


def test_damage_inside_of_a_driver_made_frame_is_a_stateflow_error(
    spark: SparkSession, holding: Holding, native: str
) -> None:
    from stateflow.spark.task.failures import translated

    record = holding.checkpoint(totals=holding.operator(USER, bulky(range(50))))
    holding.native(native, record)
    snapshot = savepoint_at(native, holding.options())
    frame = table_frame(spark, snapshot, "totals", "count")
    for path in (Path(native) / "state").iterdir():
        path.unlink()
    with pytest.raises(Exception) as caught:  # noqa: PT011
        frame.collect()
    error = translated(caught.value)
    assert isinstance(error, StateflowError)
    assert "is missing" in str(error)


def test_every_session_knows_the_format_without_being_told(spark: SparkSession) -> None:
    """By the package whose name PySpark looks for."""
    import pyspark_stateflow

    assert pyspark_stateflow.DefaultSource is StateDataSource
    fresh = spark.newSession()
    with pytest.raises(Exception, match="operator"):
        fresh.read.format("stateflow").option("job", "nobody").load()


def test_a_python_that_has_the_library_finds_the_format_from_any_folder(tmp_path: Path) -> None:
    """PySpark asks `pkgutil`, which does not see what an import hook brings."""
    asked = "import pkgutil; print('pyspark_stateflow' in {found.name for found in pkgutil.iter_modules()})"
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", asked]
    said = subprocess.run(command, cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "True"
