"""Tables of Unity Catalog whose commits go through the catalog: read, appended to and upserted by name, exactly once."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.errors import DisagreementError, IncompatibleError, NotFoundError
from stateflow.jobs.job import Job
from stateflow.restore.planned import RestorePlan
from stateflow.spark.internals.delta_log import DeltaLog
from stateflow.spark.sinks.delta_append import DeltaAppend
from stateflow.spark.sinks.delta_table import conflicted
from stateflow.spark.sources.delta_log import Ahead, ahead, local_log
from stateflow.spark.sources.delta_offset import DeltaOffset
from tests.refusals.refusal import refused
from tests.spark.pipelines import Workbench
from tests.unity.plugin import unity_catalog
from tests.unity.server import TOKEN, UnityServer

pytestmark = pytest.mark.system


@dataclass
class Order:
    id: int
    amount: int


@sf.pipeline("orders")
def orders(flow: sf.Flow, *, catalog: str, source: str = "orders", copy: str = "copy") -> None:
    rows = flow.source("orders", sf.table(f"{catalog}.shop.{source}"), Order)
    rows.append("copy", sf.table(f"{catalog}.shop.{copy}", create=True))
    rows.upsert("latest", sf.table(f"{catalog}.shop.latest", create=True), keys=["id"], order_by=["amount"])


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Workbench:
    return Workbench(spark, tmp_path)


@pytest.fixture
def unity(spark: SparkSession, tmp_path: Path) -> Iterator[UnityServer]:
    """A catalog with a managed table of two orders."""
    with unity_catalog(spark, tmp_path) as server:
        name = server.catalog.name
        spark.sql(f"CREATE TABLE {name}.shop.orders (id BIGINT, amount BIGINT) USING delta")
        spark.sql(f"INSERT INTO {name}.shop.orders VALUES (1, 10), (2, 20)")
        yield server


def rows(spark: SparkSession, unity: UnityServer, table: str) -> list[tuple[int, ...]]:
    return sorted(map(tuple, spark.table(f"{unity.catalog.name}.shop.{table}").collect()))


def both(spark: SparkSession, unity: UnityServer) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    return rows(spark, unity, "copy"), rows(spark, unity, "latest")


def insert(spark: SparkSession, unity: UnityServer, values: str) -> None:
    spark.sql(f"INSERT INTO {unity.catalog.name}.shop.orders VALUES {values}")


def unpublish(unity: UnityServer, table: str) -> Path:
    """As a writer leaves a table which dies when the catalog has taken its commit, and before it is in the log's folder."""
    known = unity.catalog.table("shop", table)
    assert known.latest in known.commits, "the catalog has heard that its newest commit is in the log"
    folder = Path(known.location.removeprefix("file:").removeprefix("//"))
    # Delta puts it there when its statement has ended, from a thread of its own.
    until = time.monotonic() + 30
    while not (folder / "_delta_log" / f"{known.latest:020d}.json").exists() and time.monotonic() < until:
        time.sleep(0.05)
    for file in (folder / "_delta_log").glob(f"*{known.latest:020d}.*"):
        file.unlink()
    return folder


def test_each_batch_is_committed_once_through_crashes_and_commits_that_are_not_in_the_log_yet(
    spark: SparkSession, bench: Workbench, unity: UnityServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = bench.options()
    job = Job(str(bench.folder / "root"), "orders")
    named, kept = {"catalog": unity.catalog.name}, {"retained_checkpoints": 20}

    bench.run(orders, named, **kept)
    before = [(1, 10), (2, 20)], [(1, 10), (2, 20)]
    assert both(spark, unity) == before
    first = bench.records("orders")[-1].slot
    assert unity.catalog.table("shop", "copy").latest == 1, "one commit, which the catalog has taken"

    # A record is decided, and its run ends before anything of it is out.
    def ended(*arguments: Any) -> None:
        raise OSError("the run ends here")

    insert(spark, unity, "(1, 11), (3, 30)")
    with monkeypatch.context() as patch:
        patch.setattr(DeltaAppend, "commit", ended)
        with pytest.raises(Exception, match="the run ends here"):
            bench.run(orders, named, **kept)
    assert both(spark, unity) == before

    # The answer to its commit gets lost, so that Delta asks again. Nothing of all tables' newest commits is in their logs.
    unity.lost.append(2)
    for table in ("orders", "copy", "latest"):
        unpublish(unity, table)
    bench.run(orders, named, **kept)
    after = [(1, 10), (1, 11), (2, 20), (3, 30)], [(1, 11), (2, 20), (3, 30)]
    assert both(spark, unity) == after
    assert (unity.catalog.table("shop", "copy").latest, unity.lost) == (2, [])
    for table in ("copy", "latest"):
        unpublish(unity, table)
    assert bench.run(orders, named, **kept).rows == 0
    assert both(spark, unity) == after

    job.restore(f"checkpoint:{first}", orders, options=options, rewind_sinks=True, parameters=named).apply()
    assert both(spark, unity) == before
    bench.run(orders, named, **kept)
    assert both(spark, unity) == after
    held = [
        path
        for path in (bench.folder / "root").rglob("*")
        if path.is_file() and TOKEN.encode() in path.read_bytes()
    ]
    assert held == []


def test_of_two_that_commit_one_slot_the_catalog_takes_one(spark: SparkSession, unity: UnityServer) -> None:
    name = unity.catalog.name
    path = unity.catalog.table("shop", "orders").location.removeprefix("file:").removeprefix("//")
    logs = [DeltaLog(spark, path, (name, "shop", "orders")) for _ in range(2)]
    mine, other = (log.begin() for log in logs)
    assert (mine.slot_of("app"), other.slot_of("app")) == (None, None)

    def slot(txn: Any, log: DeltaLog) -> None:
        mark = json.dumps({"txn": {"appId": "app", "version": 7, "lastUpdated": log.now()}})
        txn.commit([mark], "query", 7, {})

    slot(other, logs[1])
    with pytest.raises(Exception, match=r"(?i)concurrent") as lost:
        slot(mine, logs[0])
    assert conflicted(lost.value)
    assert (logs[0].begin().slot_of("app"), unity.catalog.table("shop", "orders").latest) == (7, 2)


def test_a_path_does_not_lead_to_such_a_table_and_a_look_without_spark_does_not_claim_to(
    spark: SparkSession, bench: Workbench, unity: UnityServer
) -> None:
    folder = unpublish(unity, "orders")

    @sf.pipeline("by-path")
    def by_path(flow: sf.Flow, *, source: str, copy: str) -> None:
        flow.source("orders", sf.delta(source), Order).append("copy", sf.delta(copy))

    spark.sql(f"CREATE TABLE delta.`{bench.folder}/plain` (id BIGINT, amount BIGINT) USING delta")
    for parameters, who in (
        ({"source": str(folder), "copy": str(bench.folder / "out")}, "source 'orders'"),
        ({"source": str(bench.folder / "plain"), "copy": str(folder)}, ""),
    ):
        with refused(
            IncompatibleError, who, "go through its catalog", "sf.table('catalog.schema.table')"
        ) as caught:
            bench.run(by_path, parameters)
        assert "\n" not in str(caught.value)
    log = local_log(str(folder))
    assert log is not None
    assert log.commit(1) is None
    assert ahead(log, DeltaOffset("any", 1), None) is Ahead.UNKNOWN
    assert log.table is not None
    assert ahead(log, DeltaOffset(log.table, 1), None) is Ahead.UNKNOWN
    shutil.rmtree(folder / "_delta_log" / "_staged_commits")
    assert ahead(log, DeltaOffset(log.table, 1), None) is Ahead.NOTHING


def test_a_managed_table_that_was_made_anew_or_renamed_is_noticed(
    spark: SparkSession, bench: Workbench, unity: UnityServer
) -> None:
    name = unity.catalog.name
    bench.run(orders, {"catalog": name})
    unity.catalog.rename("shop", "orders", "orders_2")
    insert_into = f"INSERT INTO {name}.shop.orders_2 VALUES (3, 30)"
    spark.sql(insert_into)
    with refused(NotFoundError, f"no table {name}.shop.orders:", f"did you mean {name}.shop.orders_2?"):
        bench.run(orders, {"catalog": name})
    assert bench.run(orders, {"catalog": name, "source": "orders_2"}).rows == 1
    spark.sql(f"DROP TABLE {name}.shop.copy")
    spark.sql(f"CREATE TABLE {name}.shop.copy (id BIGINT, amount BIGINT) USING delta")
    spark.sql(insert_into)
    with pytest.raises(DisagreementError, match=rf"{name}\.shop\.copy has no slot of this job"):
        bench.run(orders, {"catalog": name, "source": "orders_2"})
    assert rows(spark, unity, "copy") == []


def test_the_statement_that_a_refusal_advises_alters_the_table(
    spark: SparkSession, bench: Workbench, unity: UnityServer
) -> None:
    name = unity.catalog.name
    spark.sql(f"CREATE TABLE {name}.shop.copy (id BIGINT) USING delta")
    with pytest.raises(IncompatibleError, match="'amount' is not in the table") as caught:
        bench.run(orders, {"catalog": name})
    statement = re.findall(r"ALTER TABLE .*\)", str(caught.value))[0]
    assert f"`{name}`.`shop`.`copy`" in statement
    spark.sql(statement)
    bench.run(orders, {"catalog": name})
    assert rows(spark, unity, "copy") == [(1, 10), (2, 20)]


def test_external_tables_are_read_and_written_as_tables_of_a_path_are(
    spark: SparkSession, bench: Workbench, unity: UnityServer
) -> None:
    name = unity.catalog.name
    for table in ("orders_out", "copy", "latest"):
        spark.sql(
            f"CREATE TABLE {name}.shop.{table} (id BIGINT, amount BIGINT) USING delta LOCATION '{bench.folder}/{table}'"
        )
    spark.sql(f"INSERT INTO {name}.shop.orders_out VALUES (1, 10), (2, 20)")
    named = {"catalog": name, "source": "orders_out"}
    bench.run(orders, named)
    spark.sql(f"INSERT INTO {name}.shop.orders_out VALUES (1, 11)")
    bench.run(orders, named)
    assert both(spark, unity) == ([(1, 10), (1, 11), (2, 20)], [(1, 11), (2, 20)])
    record = bench.records("orders")[-1]
    assert not any(prepared.is_managed for prepared in record.sinks.values())
    assert {prepared.name for prepared in record.sinks.values()} == {
        f"{name}.shop.copy",
        f"{name}.shop.latest",
    }

    unity.catalog.rename("shop", "copy", "copy_2")
    spark.sql(f"INSERT INTO {name}.shop.orders_out VALUES (4, 40)")
    assert bench.run(orders, {**named, "copy": "copy_2"}).rows == 1
    shutil.rmtree(bench.folder / "copy")
    spark.sql(f"DROP TABLE {name}.shop.copy_2")
    spark.sql(
        f"CREATE TABLE {name}.shop.copy_2 (id BIGINT, amount BIGINT) USING delta LOCATION '{bench.folder}/copy'"
    )
    spark.sql(f"INSERT INTO {name}.shop.orders_out VALUES (5, 50)")
    with pytest.raises(DisagreementError, match=r"has no slot of this job"):
        bench.run(orders, {**named, "copy": "copy_2"})


@pytest.mark.parametrize("undone", ["rows", "a column"])
def test_what_a_stranger_did_to_a_managed_table_stops_a_rewind_until_it_is_undone(
    spark: SparkSession, bench: Workbench, unity: UnityServer, undone: str
) -> None:
    named, job = {"catalog": unity.catalog.name}, Job(str(bench.folder / "root"), "orders")
    bench.run(orders, named, retained_checkpoints=20)
    first, before = bench.records("orders")[-1].slot, both(spark, unity)
    insert(spark, unity, "(3, 30)")
    bench.run(orders, named, retained_checkpoints=20)
    table = f"{unity.catalog.name}.shop.copy"
    if undone == "rows":
        spark.sql(f"INSERT INTO {table} VALUES (99, 99)")
        unpublish(unity, "copy")
    else:
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")

    def plan() -> RestorePlan:
        made = job.restore(
            f"checkpoint:{first}", orders, options=bench.options(), rewind_sinks=True, parameters=named
        )
        [note] = {sink.note for sink in made.sinks}
        assert note.endswith(", unless somebody else has written to it since, which only --yes finds out")
        return made

    with refused(DisagreementError, "not of this job", "RESTORE TABLE") as refusal:
        plan().apply()
    advised = re.search(r"`(RESTORE TABLE .*? AS OF \d+)`", str(refusal.value))
    assert advised is not None
    spark.sql(advised[1])
    plan().apply()
    assert both(spark, unity) == before
