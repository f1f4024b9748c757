"""Tables back into state: whatever wrote them, the state is what their rows say, or nothing is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stateflow.checkpoint.verification import verify
from stateflow.errors import IncompatibleError, StateflowError, UsageError
from stateflow.format.encoding import EMPTY_NAMESPACE, group_range, list_position, prefix
from stateflow.format.keygroups import default_assignment
from stateflow.format.records import OperatorListState, OperatorState, Shard
from stateflow.reading.opened_shard import opened_shard
from stateflow.spark.state_tables.frames import table_frame
from stateflow.spark.state_tables.load import SortedEntries, canonical_frames, load_state
from stateflow.spark.state_tables.snapshots import checkpoint_of
from stateflow.spark.task.reader import task_reader
from stateflow.spark.task.storage import TaskStorage
from stateflow.state.backends.choice import Backends
from stateflow.state.backends.rocksdb_options import RocksOptions
from stateflow.state.keys.codec import KeyCodec
from stateflow.state.values.serializers import serializer_for
from tests.jobs.builder import T0
from tests.jobs.operators import operator_of
from tests.jobs.state import Held
from tests.refusals.refusal import refused
from tests.spark.holding import Holding, plain
from tests.spark.test_canonical import KINDS, canonical
from tests.spark.test_state_tables import START, USER, bulky, count
from tests.state.stored_keys import timer_key

OPEN = Backends(RocksOptions(inline_threshold=0))


@pytest.fixture
def holding(tmp_path: Path) -> Holding:
    return Holding(tmp_path)


def storage(holding: Holding) -> TaskStorage:
    options, writer = holding.options(), holding.writer
    return TaskStorage(
        holding.root, holding.name, writer.epoch, writer.next_slot, f"{options.cache_dir}/state", 1 << 30,
        options.scratch_dir, fsync=False, storage_options=holding.storage_options,
    )  # fmt: skip


def load(
    spark: SparkSession,
    holding: Holding,
    frames: Mapping[str, DataFrame],
    operator: OperatorState,
    *,
    backend: str = "rocksdb",
    parallelism: int = 2,
    max_parallelism: int = 16,
) -> OperatorState:
    return load_state(
        frames, operator, storage=storage(holding), backend=backend, parallelism=parallelism,
        max_parallelism=max_parallelism, open_shard=OPEN, uid="totals",
    )  # fmt: skip


def declared(holding: Holding, states: Mapping[str, Held], **changes: Any) -> OperatorState:
    """An operator that holds nothing yet."""
    empty = {name: replace(held, content={}) for name, held in states.items()}
    return holding.operator(USER, empty, **changes)


def shown(spark: SparkSession, holding: Holding, state: str, but: tuple[str, ...] = ()) -> list[Any]:
    """The rows of a table in the newest checkpoint."""
    table = table_frame(
        spark, checkpoint_of("orders", "latest", holding.options()), "totals", state
    ).toArrow()
    rows = [{n: v for n, v in row.items() if n not in but} for row in table.to_pylist()]
    return sorted(map(repr, rows))


def entries(holding: Holding, operator: OperatorState) -> list[tuple[bytes, bytes]]:
    """All that the shards hold, each within its own range."""
    found: list[tuple[bytes, bytes]] = []
    for subtask, shards in enumerate(operator.shards):
        for shard in shards:
            assert (shard.first, shard.last) == operator.assignment[subtask]
            with opened_shard(task_reader(storage(holding), OPEN), shard) as opened:
                own = list(opened.scan(*group_range(shard.first, shard.last)))
            assert own == sorted(own)
            found += own
    return found


@pytest.mark.system
@pytest.mark.parametrize(
    ("backend", "parallelism", "most"),
    [("rocksdb", 2, 16), ("memory", 1, 16), ("rocksdb", 5, 128), ("memory", 3, 8)],
)
def test_a_canonical_savepoint_comes_back_as_it_was(
    spark: SparkSession, holding: Holding, backend: str, parallelism: int, most: int
) -> None:
    text = serializer_for(str)
    log = OperatorListState("list", text.schema, tuple((text.dumps(str(n)),) for n in range(2)))
    other = "memory" if backend == "rocksdb" else "rocksdb"
    record = holding.checkpoint(totals=holding.operator(USER, KINDS, backend=other, elements={"log": log}))
    tables = sorted({*(n for n, h in KINDS.items() if h.kind != "timer"), "_timers"})
    but = ("key_group", "slot")  # of another max parallelism, and numbered anew
    before = {state: shown(spark, holding, state, but) for state in tables}
    url, savepoint = canonical(spark, holding, record, split_bytes=1, max_tasks=3)
    frames = canonical_frames(spark, savepoint, url, holding.options())
    loaded = load(
        spark, holding, frames["totals"], savepoint.record.operators["totals"], backend=backend,
        parallelism=parallelism, max_parallelism=most,
    )  # fmt: skip
    assert loaded.assignment == default_assignment(parallelism, most)
    assert (loaded.max_parallelism, loaded.states) == (most, record.operators["totals"].states)
    assert {shard.backend for shards in loaded.shards for shard in shards} == {backend}
    assert len(loaded.operator_states["log"].parts) == parallelism
    assert sorted(e for part in loaded.operator_states["log"].parts for e in part) == [
        text.dumps("0"),
        text.dumps("1"),
    ]
    holding.checkpoint(totals=loaded)
    assert {state: shown(spark, holding, state, but) for state in tables} == before
    # Both entries of every timer are there, and all entries lie in the shard that owns their key group.
    assert len(entries(holding, loaded)) == len(entries(holding, record.operators["totals"]))
    assert verify(holding.store, holding.layout, deep=True) == []
    due = {
        (s.next_event_timer, s.next_processing_timer) for shards in loaded.shards for s in shards
    }  # fmt: skip
    assert min(e for e, _ in due if e is not None) == T0
    assert {p for _, p in due if p is not None} == {T0}


@pytest.mark.slow
def test_state_is_made_of_any_frame(spark: SparkSession, holding: Holding) -> None:
    operator = declared(
        holding, {name: KINDS[name] for name in ("count", "pages", "seen", "profile", "idle")}
    )
    frames = {
        "count": spark.range(1_000).selectExpr("cast(id as int) as user", "id * 10 as value"),
        "pages": spark.createDataFrame([(1, 2, "c"), (1, 0, "a"), (1, 1, "b")], "user long, position int, value string"),
        "seen": spark.sql("select 7L as user, timestamp '2026-01-01 00:00:00Z' as value"),
        "profile": spark.sql("select 7L as user, struct(array('x') as tags, 'n' as name) as value"),
        "_timers": spark.sql(
            "select 'idle' as timer, 7L as user, timestamp '2026-01-01 01:00:00Z' as at union all "
            "select 'idle', 8L, timestamp '2026-01-01 00:30:00Z'"
        ),
    }  # fmt: skip
    loaded = load(spark, holding, frames, operator, parallelism=3)
    holding.checkpoint(totals=loaded)
    snapshot = checkpoint_of("orders", "latest", holding.options())
    count = table_frame(spark, snapshot, "totals", "count")
    assert plain(count.collect(), "user", "value") == [(n, n * 10) for n in range(1_000)]
    pages = table_frame(spark, snapshot, "totals", "pages").collect()
    assert plain(pages, "slot", "position", "value") == [(0, 0, "a"), (0, 1, "b"), (0, 2, "c")]
    seen = table_frame(spark, snapshot, "totals", "seen").toArrow().to_pylist()
    assert [(row["user"], row["value"], row["expires_at"]) for row in seen] == [(7, START, None)]
    profile = table_frame(spark, snapshot, "totals", "profile").toArrow().to_pylist()
    assert profile[0]["value"] == {"name": "n", "tags": ["x"], "last": None}
    due = [s.next_event_timer for shards in loaded.shards for s in shards if s.next_event_timer is not None]
    assert min(due) == T0 + timedelta(minutes=30) // timedelta(microseconds=1)


def test_states_without_a_frame_or_rows_are_empty(spark: SparkSession, holding: Holding) -> None:
    operator = declared(holding, {"count": KINDS["count"], "text": KINDS["text"]})
    nothing = spark.range(0).selectExpr("id as user", "id as value")
    for frames in ({}, {"count": nothing}, {"count": nothing.where("user > 5")}):
        loaded = load(spark, holding, frames, operator)
        assert loaded.shards == (
            (Shard(first=0, last=7, backend="rocksdb"),), (Shard(first=8, last=15, backend="rocksdb"),)
        )  # fmt: skip


@pytest.mark.slow
def test_an_edited_table_is_the_new_state(spark: SparkSession, holding: Holding) -> None:
    record = holding.checkpoint(totals=holding.operator(USER, bulky(range(100))))
    snapshot = checkpoint_of("orders", "latest", holding.options())
    frames = {state: table_frame(spark, snapshot, "totals", state) for state in ("count", "bulk")}
    frames["count"] = frames["count"].where("user <> 3").withColumn("value", F.col("value") + 1)
    loaded = load(spark, holding, frames, record.operators["totals"])
    holding.checkpoint(totals=loaded)
    after = table_frame(spark, checkpoint_of("orders", "latest", holding.options()), "totals", "count")
    assert plain(after.collect(), "user", "value") == [(n, n * 10 + 1) for n in range(100) if n != 3]


def test_a_list_keeps_its_order_and_makes_room_behind_itself(spark: SparkSession, holding: Holding) -> None:
    # Slots of another job may be above those that this one gives its own elements.
    operator = declared(holding, {"pages": KINDS["pages"]})
    rows = [(user, 10**12 - n % 7, n // 7, f"{n:04d}") for user in (1, 2) for n in range(500)]
    frame = spark.createDataFrame(rows, "user long, slot long, position long, value string").repartition(4)
    loaded = load(spark, holding, {"pages": frame}, operator)
    holding.checkpoint(totals=loaded)
    table = table_frame(
        spark, checkpoint_of("orders", "latest", holding.options()), "totals", "pages"
    ).collect()
    for user in (1, 2):
        own = sorted((row["slot"], row["position"], row["value"]) for row in table if row["user"] == user)
        assert [(slot, position) for slot, position, _ in own] == [(0, n) for n in range(500)]
        wanted = [v for _, _, v in sorted((s, p, v) for u, s, p, v in rows if u == user)]
        assert [value for _, _, value in own] == wanted


@pytest.mark.parametrize(
    ("state", "sql", "words"),
    [
        ("count", "select 5L as user, 1L as value union all select 5L, 2L", "state 'count': key 5 has two rows"),
        ("pages", "select 5L as user, 1 as position, explode(array('a', 'b')) as value", "state 'pages': key 5 has two rows"),
        ("_timers", "select 5L as user, 'idle' as timer, explode(array(now(), timestamp '2026-01-02')) as at",
         "state '_timers' (timer 'idle'): key 5 has two rows"),
        ("weights", "select 5L as user, array() as value", "cannot be read: A null type field"),
        ("_timers", "select 5L as user, 'late' as timer, timestamp '2026-01-01' as at", "no timer 'late'"),
        ("count", "select cast(null as bigint) as user, 1L as value", "user holds 1 nulls"),
        ("count", "select 5L as user, cast(null as bigint) as value", "value holds 1 nulls"),
        ("count", "select 5L as user, 'x' as value", "value holds string where int64 belongs"),
        ("count", "select 5L as user", "no column 'value'"),
        ("count", "select 'x' as user, 1L as value", "user holds string"),
        ("count", "select 5L as user, 1L as value, 1 as extra", "has a column 'extra'"),
        ("nope", "select 1", "has no state 'nope' to load: its states are"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(
    spark: SparkSession, holding: Holding, state: str, sql: str, words: str
) -> None:
    operator = declared(holding, KINDS)
    with pytest.raises((UsageError, IncompatibleError)) as caught:
        load(spark, holding, {state: spark.sql(sql)}, operator)
    assert words in str(caught.value)
    assert "operator 'totals'" in str(caught.value)


def test_parallelism_above_max_parallelism_is_refused(spark: SparkSession, holding: Holding) -> None:
    with refused(UsageError, "parallelism is 9: use 1 to 8"):
        load(
            spark, holding, {}, declared(holding, {"count": KINDS["count"]}), parallelism=9, max_parallelism=8
        )


def test_a_store_that_fails_fails_the_load(spark: SparkSession, holding: Holding) -> None:
    operator = declared(holding, {"count": KINDS["count"]})
    frame = spark.range(20_000).selectExpr("id as user", "id as value")
    shared = holding.folder / "root" / "orders" / "shared"
    if shared.exists():
        for path in shared.iterdir():
            path.unlink()
        shared.rmdir()
    shared.write_text("a file where the folder belongs")
    with pytest.raises(StateflowError):
        load(spark, holding, {"count": frame}, operator)


# ---- entries as they come by, without Spark ----


def keys_of(state_id: int, group: int, users: Any) -> list[bytes]:
    encode = KeyCodec(["int"]).encode
    return [prefix(group, state_id) + encode(user) + EMPTY_NAMESPACE for user in users]


def made(**states: Held) -> OperatorState:
    schemas = {
        name: msgspec.structs.replace(held.schema, id=n) for n, (name, held) in enumerate(states.items(), 1)
    }
    return operator_of(key=USER, groups=16, states=schemas)


def test_a_key_that_comes_again_in_the_next_batch_is_found() -> None:
    seen = SortedEntries("totals", made(count=KINDS["count"]))
    first, second = keys_of(1, 3, range(5)), keys_of(1, 3, range(4, 8))
    assert seen.checked(first) == first
    with refused(UsageError, "key 4 has two rows"):
        seen.checked(second)
    assert SortedEntries("totals", made(count=KINDS["count"])).checked([]) == []


def test_the_positions_of_a_list_go_on_across_batches() -> None:
    seen = SortedEntries("totals", made(pages=KINDS["pages"], count=KINDS["count"]))
    (one, two), others = keys_of(1, 3, [1, 2]), keys_of(2, 3, [1, 2])
    batches = [
        [one + list_position(5, 0), one + list_position(5, 9)],
        [one + list_position(7, 0), two + list_position(2, 3)],
        [*others],
    ]
    found = [key for batch in batches for key in seen.checked(batch)]
    wanted = [one + list_position(0, n) for n in range(3)] + [two + list_position(0, 0), *others]
    assert found == wanted


def test_the_earliest_timer_of_each_time_is_noted() -> None:
    operator = made(idle=KINDS["idle"], soon=KINDS["soon"])
    operator = msgspec.structs.replace(
        operator, states={"idle": operator.states["idle"], "soon": msgspec.structs.replace(operator.states["soon"], id=3)}
    )  # fmt: skip
    seen = SortedEntries("totals", operator)
    assert seen.next_timers == (None, None)
    encode = KeyCodec(["int"]).encode
    rows = [
        timer_key(group, state_id, at, encode(user))
        for state_id, group, at, user in (
            (1, 2, 900, 1), (1, 2, 950, 2), (1, 5, 700, 3), (1, 9, -5, 4), (3, 0, 40, 5), (3, 2, 30, 6),
        )
    ]  # fmt: skip
    rows += keys_of(2, 2, [1, 2])
    rows.sort()
    seen.checked(rows[:3])
    seen.checked(rows[3:])
    assert seen.next_timers == (-5, 30)


def test_times_of_this_file_are_instants() -> None:
    assert datetime.fromtimestamp(T0 / 1_000_000, UTC) == START
    assert count([1])["count"].content == {1: 10}
