"""An erased key leaves no byte in what stands beside its values: indexes, timers, namespaces, operator state."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.errors import NotFoundError, UsageError
from stateflow.format.records import OperatorListState, Prepared, ShownState
from stateflow.jobs.erasure import ErasePlan, plan_erase
from stateflow.state.values.serializers import serializer_for
from stateflow.testing import KeyedHarness
from tests.jobs.builder import JobBuilder
from tests.jobs.operators import one_shard, operator_of
from tests.jobs.queried import QueriedJob, entries_of, states_of
from tests.jobs.test_erasing import ME, job, options
from tests.refusals.refusal import refused

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
WHO = "b7f3e1c09d5a4826-nobody-else-has-this"


class Sided(sf.KeyedProcess[str, Any, Any]):
    """Every kind of entry that exists beside values."""

    items = sf.MapState(str, str, ttl="1 hour", namespace=str)
    log = sf.ListState(str, ttl="1 hour", queryable=True)
    last = sf.ValueState(str, ttl=sf.ttl("1 hour", time="event"), namespace=int)
    soon = sf.Timer("event", many=True, namespace=str)
    later = sf.Timer("processing")

    def process(self, key: str, rows: Iterator[Any], ctx: sf.Context) -> None:
        for _ in rows:
            self.items.at(f"for {key}")["x"] = key
            self.items["y"] = key
            self.log.add(key)
            self.last.at(7).value = key
            self.soon.under(key).set(NOON + timedelta(hours=1))
            self.soon.under(key).set(NOON + timedelta(hours=2))
            self.later.set(NOON + timedelta(days=1))

    @soon.fires
    def on_soon(self, key: str, at: datetime, ctx: sf.Context) -> None: ...

    @later.fires
    def on_later(self, key: str, at: datetime, ctx: sf.Context) -> None: ...


def elements(*values: str) -> OperatorListState:
    text = serializer_for(str)
    return OperatorListState("union", text.schema, tuple((text.dumps(value),) for value in values))


@pytest.fixture(params=["rocksdb", "memory"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> QueriedJob:
    harness = KeyedHarness(Sided, key=lambda row: row, now=NOON)
    harness.advance(NOON)
    harness.rows(*(WHO if n == 3 else f"user {n}" for n in range(40)))
    stored = entries_of(harness)
    told = {int.from_bytes(key[2:4]) for key, value in stored.items() if WHO.encode() in value}
    assert told > {schema.expiry_index for schema in states_of(Sided).values() if schema.ttl}, "every index"
    made = QueriedJob(tmp_path / "root", backend=request.param, process=Sided, key=(("user", "str"),))
    made.checkpoint(stored)
    return made


def bearers(folder: Path) -> list[str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path.name for path in files if WHO.encode() in path.read_bytes())


def with_elements(made: QueriedJob, **states: OperatorListState) -> None:
    """One more checkpoint, with operator state of the keyed operator and of one without keys."""
    head = made.head()
    balance = msgspec.structs.replace(head.operators["balance"], operator_states=states)
    bare = operator_of((), key=(), operator_states=states)
    made.decide(operators={"balance": balance, "counting": bare})


def planned(tmp_path: Path, **choice: Any) -> ErasePlan:
    return plan_erase(job(tmp_path), WHO, options(tmp_path), **choice)


def test_no_byte_of_the_key_stays_in_any_side_table(made: QueriedJob, tmp_path: Path) -> None:
    assert bearers(tmp_path / "root")
    done = planned(tmp_path).apply(ME)
    assert done.entries > 8
    assert bearers(tmp_path / "root") == []


def test_operator_state_that_stays_is_named_and_what_is_chosen_is_emptied(
    made: QueriedJob, tmp_path: Path
) -> None:
    with_elements(made, seen=elements(WHO, "x"), rates=elements("y"), nothing=elements())
    plan = planned(tmp_path, empty=["counting.seen", "balance.seen"])
    assert plan.emptied == ("balance.seen", "counting.seen")
    assert plan.unreached == ("balance.rates", "counting.rates")
    assert list(plan.keys) == ["balance"], "an operator without keys has no such key"
    plan.apply(ME)
    head = job(tmp_path).log().head
    assert head is not None
    for uid in ("balance", "counting"):
        states = head.operators[uid].operator_states
        assert (states["seen"].parts, states["rates"]) == (((), ()), elements("y"))
    assert bearers(tmp_path / "root") == []


def test_operator_state_that_there_is_not_is_refused(made: QueriedJob, tmp_path: Path) -> None:
    with_elements(made, seen=elements("x"))
    with refused(NotFoundError, "'balance.sen'", "balance.seen, counting.seen"):
        planned(tmp_path, empty=["balance.sen"])
    with_elements(made, seen=elements())
    with refused(NotFoundError, "to empty", "none of its states without keys"):
        planned(tmp_path, empty=["balance.seen"])


def test_operator_state_that_is_gone_since_the_plan_asks_for_a_new_plan(
    made: QueriedJob, tmp_path: Path
) -> None:
    with_elements(made, seen=elements(WHO))
    plan = planned(tmp_path, empty=["counting.seen"])
    with_elements(made, visited=elements(WHO))
    with refused(UsageError, "nothing is erased", "plan it again"):
        plan.apply(ME)
    planned(tmp_path, empty=["counting.visited", "balance.visited"]).apply(ME)
    assert bearers(tmp_path / "root") == []


def test_of_a_job_whose_operators_have_no_keys_state_can_be_emptied(made: QueriedJob, tmp_path: Path) -> None:
    with_elements(made, seen=elements(WHO))
    head = made.head()
    made.decide(operators={"counting": head.operators["counting"]})
    with refused(UsageError, "has keys", "counting.seen"):
        planned(tmp_path)
    plan = planned(tmp_path, empty=["counting.seen"])
    assert (dict(plan.keys), plan.rewritten_bytes) == ({}, 0)
    assert plan.apply(ME).entries == 0
    after = job(tmp_path).log().head
    assert after is not None
    assert after.operators["counting"].operator_states["seen"].parts == ((),)
    assert bearers(tmp_path / "root") == []


@pytest.mark.parametrize(
    ("kind", "column", "key", "neighbours"),
    [
        ("decimal", "decimal(38,18)", "12345678901234567.1", ("12345678901234567", "12345678901234567.2")),
        ("decimal", "decimal(38,18)", "1E-18", ("0", "0.000000000000000002")),
        ("int", "bigint", "-9223372036854775808", ("-9223372036854775807", "9223372036854775807")),
        ("bool", "boolean", "true", ("false",)),
        ("str", "string", "it's \\a", ("it's a", "its \\a")),
        ("date", "date", "0999-12-31", ("0999-12-30", "1000-01-01")),
        (
            "datetime",
            "timestamp",
            "2026-01-31T12:00:00.000001+01:00",
            ("2026-01-31T12:00:00.000002+01:00", "2026-01-31T12:00:00.000001Z"),
        ),
    ],
)
def test_of_the_table_of_a_feed_exactly_the_rows_of_the_key_are_named(
    spark: SparkSession, tmp_path: Path, kind: str, column: str, key: str, neighbours: tuple[str, ...]
) -> None:
    made = JobBuilder(tmp_path / "root")
    made.decide(
        operators={"balance": one_shard(key=("k", kind), backend="memory")},
        sinks={"changes": Prepared(kind="delta_append", target="/data/changes")},
        feeds=(ShownState("changes", "balance", "n", made.writer.next_slot, "/data/changes"),),
        outcomes={"changes": "committed"},
    )
    [rows] = plan_erase(job(tmp_path), key, options(tmp_path), absent=True).rows_elsewhere
    condition = rows.removesuffix(" in /data/changes")
    table = spark.createDataFrame([(text,) for text in (key, *neighbours)], "text string")
    table = table.selectExpr("text", f"cast(text as {column}) as k")
    assert [row.text for row in table.where(condition).collect()] == [key], condition
