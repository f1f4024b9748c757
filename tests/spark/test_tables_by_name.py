"""Tables that a catalog names: a run asks once where each is, and reads and writes there."""

from __future__ import annotations

import re
import shutil
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import stateflow as sf
from stateflow.errors import DisagreementError, IncompatibleError, NotFoundError, UsageError
from stateflow.jobs.job import Job
from stateflow.pipelines.inputs.tables import DeltaTable
from stateflow.spark.sinks.delta_append import DeltaAppend
from stateflow.spark.sources.catalog_tables import located
from tests.refusals.refusal import refused
from tests.spark.pipelines import Workbench

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sources.md"
WHO = "source 'orders'"


@dataclass
class Order:
    id: int
    amount: int


@sf.pipeline("orders")
def orders(
    flow: sf.Flow,
    *,
    source: str = "shop.orders",
    copy: str = "shop.copy",
    latest: str = "shop.latest",
    create: bool = True,
) -> None:
    rows = flow.source("orders", sf.table(source), Order)
    rows.append("copy", sf.delta(copy) if copy.startswith("/") else sf.table(copy, create=create))
    rows.upsert("latest", sf.table(latest, create=create), keys=["id"], order_by=["amount"])


@pytest.fixture
def shop(spark: SparkSession) -> Iterator[SparkSession]:
    spark.sql("CREATE SCHEMA shop")
    spark.sql("CREATE TABLE shop.orders (id BIGINT, amount BIGINT) USING delta")
    spark.sql("INSERT INTO shop.orders VALUES (1, 10), (2, 20)")
    yield spark
    spark.sql("DROP SCHEMA shop CASCADE")


def documented() -> sf.Pipeline:
    """The pipeline that the page has."""
    page = PAGE.read_text(encoding="utf-8").partition("\n## Tables of a catalog\n")[2]
    code = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)[0]
    module = types.ModuleType("documented_tables")
    sys.modules[module.__name__] = module
    exec(code, module.__dict__)
    return module.orders  # type: ignore[no-any-return]


def rows(spark: SparkSession, table: str) -> list[tuple[int, ...]]:
    return sorted(map(tuple, spark.table(table).collect()))


def place(spark: SparkSession, table: str) -> str:
    return located(spark, sf.table(table), WHO).path


def tables(spark: SparkSession) -> list[str]:
    shown = spark.sql("SHOW TABLES IN shop").collect()
    return sorted(row["tableName"] for row in shown if not row["isTemporary"])


@pytest.mark.slow
def test_a_job_reads_appends_and_upserts_by_name_and_goes_on_under_new_names(
    shop: SparkSession, bench: Workbench
) -> None:
    bench.run(orders)
    assert (rows(shop, "shop.copy"), rows(shop, "shop.latest")) == ([(1, 10), (2, 20)],) * 2
    record = bench.records("orders")[-1]
    assert {uid: prepared.name for uid, prepared in record.sinks.items()} == {
        "copy": "spark_catalog.shop.copy",
        "latest": "spark_catalog.shop.latest",
    }
    assert record.sinks["copy"].target == place(shop, "shop.copy")

    for table in ("orders", "copy"):  # their folders move with them
        shop.sql(f"ALTER TABLE shop.{table} RENAME TO shop.{table}_2")
    shop.sql("INSERT INTO shop.orders_2 VALUES (1, 11)")
    with refused(NotFoundError, "no table spark_catalog.shop.orders:", "mean spark_catalog.shop.orders_2?"):
        bench.run(orders)
    assert bench.run(orders, {"source": "shop.orders_2", "copy": "SHOP.copy_2"}).rows == 1
    assert rows(shop, "shop.copy_2") == [(1, 10), (1, 11), (2, 20)]
    assert rows(shop, "shop.latest") == [(1, 11), (2, 20)]

    shop.sql("INSERT INTO shop.orders_2 VALUES (3, 30)")
    moved = {"source": "spark_catalog.shop.orders_2", "copy": place(shop, "shop.copy_2")}
    assert bench.run(orders, moved).rows == 1  # by its path, the table is the same
    assert len(rows(shop, "shop.copy_2")) == 4


@pytest.mark.slow
def test_savepoints_recovery_restores_and_replays_find_the_tables_of_the_record(
    shop: SparkSession, bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = bench.options()
    job = Job(str(bench.folder / "root"), "orders")
    kept = {"retained_checkpoints": 20}
    bench.run(orders, **kept)
    first = bench.records("orders")[-1].slot
    assert job.savepoint(options=options).url

    # A record is decided, and its run ends before anything of it is out. The next one finishes it.
    def ended(*arguments: Any) -> None:
        raise OSError("the run ends here")

    shop.sql("INSERT INTO shop.orders VALUES (1, 11), (3, 30)")
    with monkeypatch.context() as patch:
        patch.setattr(DeltaAppend, "commit", ended)
        with pytest.raises(Exception, match="the run ends here"):
            bench.run(orders, **kept)
    assert rows(shop, "shop.copy") == [(1, 10), (2, 20)]
    bench.run(orders, **kept)
    after = [(1, 10), (1, 11), (2, 20), (3, 30)], [(1, 11), (2, 20), (3, 30)]
    assert (rows(shop, "shop.copy"), rows(shop, "shop.latest")) == after
    last = bench.records("orders")[-1].slot
    report = job.replay(orders, last, last, options=options)
    assert report.is_same, report.document()
    assert {uid: sink.after for uid, sink in report.sinks.items()} == {"copy": 2, "latest": 2}

    shop.sql("INSERT INTO shop.copy VALUES (99, 99)")
    with refused(DisagreementError, "not of this job", "RESTORE TABLE") as refusal:
        job.restore(f"checkpoint:{first}", orders, options=options, rewind_sinks=True)
    advised = re.search(r"`(RESTORE TABLE .*? AS OF \d+)`", str(refusal.value))
    assert advised is not None
    shop.sql(advised[1])
    job.restore(f"checkpoint:{first}", orders, options=options, rewind_sinks=True).apply()
    assert (rows(shop, "shop.copy"), rows(shop, "shop.latest")) == ([(1, 10), (2, 20)],) * 2
    bench.run(orders, **kept)
    assert (rows(shop, "shop.copy"), rows(shop, "shop.latest")) == after


@pytest.mark.slow
def test_a_table_that_was_made_anew_is_refused_before_it_gets_rows(
    shop: SparkSession, bench: Workbench
) -> None:
    bench.run(documented())
    shop.sql("DROP TABLE shop.copy")
    shop.sql("CREATE TABLE shop.copy (id BIGINT, amount BIGINT) USING delta")
    shop.sql("INSERT INTO shop.orders VALUES (3, 30)")
    with refused(
        DisagreementError,
        "spark_catalog.shop.copy",
        "no slot of this job",
        "put the table back",
        "a new sink uid",
    ):
        bench.run(orders)
    assert rows(shop, "shop.copy") == []
    shop.sql("DROP TABLE shop.orders")
    shop.sql("CREATE TABLE shop.orders (id BIGINT, amount BIGINT) USING delta")
    with refused(DisagreementError, "it was recreated", "bring the old table back", "give it a new uid"):
        bench.run(orders)


@pytest.mark.slow
def test_nothing_is_made_or_written_where_one_name_is_wrong(shop: SparkSession, bench: Workbench) -> None:
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"create": "false"}, NotFoundError, r"sink 'copy': there is no table spark_catalog\.shop\.copy: .*create=True.*in memory"),
        ({"latest": "shpo.latest"}, NotFoundError, r"sink 'latest': .* no schema spark_catalog\.shpo: did you mean shop\?"),
        ({"latest": "spark_catalog.SHOP.copy"}, UsageError, r"sinks 'copy' and 'latest' write to one place, spark_catalog\.SHOP\.copy"),
        ({"latest": "spark_catalog.shop.orders"}, UsageError, r"source 'orders' reads .*shop\.orders, and sink 'latest' writes to .*shop\.orders"),
    ]  # fmt: skip
    for parameters, error, message in wrong:
        with pytest.raises(error, match=message):
            bench.run(orders, parameters)
        assert (tables(shop), bench.listing()) == (["orders"], []), parameters


@pytest.mark.slow
def test_a_table_by_path_and_by_name_is_one_table(shop: SparkSession, bench: Workbench) -> None:
    shop.sql("CREATE TABLE shop.latest (id BIGINT, amount BIGINT) USING delta")
    with refused(UsageError, "'copy' and 'latest'", "spark_catalog.shop.latest"):
        bench.run(orders, {"copy": place(shop, "shop.latest")})


def test_a_name_that_stands_for_no_delta_table_is_told_with_what_to_do(
    shop: SparkSession, tmp_path: Path
) -> None:
    shop.sql("CREATE TABLE shop.parquet (id BIGINT) USING parquet")
    shop.sql("CREATE VIEW shop.seen AS SELECT * FROM shop.orders")
    shop.sql(f"CREATE TABLE shop.gone (id BIGINT) USING delta LOCATION '{tmp_path / 'gone'}'")
    shutil.rmtree(tmp_path / "gone")
    shop.conf.set("spark.sql.catalog.broken", "no.such.Class")
    for name, error, message in (
        ("shop.ordres", NotFoundError, r"no table spark_catalog\.shop\.ordres: did you mean spark_catalog\.shop\.orders\?"),
        ("nowhere.orders", NotFoundError, r"no schema spark_catalog\.nowhere: CREATE SCHEMA `spark_catalog`\.`nowhere`, or correct the name"),
        ("main.shop.orders", NotFoundError, r"no catalog 'main' for .*: set spark\.sql\.catalog\.main to its class"),
        ("spark_catalg.shop.orders", NotFoundError, r"no catalog 'spark_catalg' .*: did you mean spark_catalog\?"),
        ("spark_catalog.a.b.c", UsageError, r"3 parts behind spark_catalog.*: write spark_catalog\.schema\.table"),
        ("broken.shop.orders", UsageError, r"could not tell where the table broken\.shop\.orders is: .*no\.such\.Class"),
        ("shop.parquet", UsageError, r"is a table of parquet.*: read its folder with sf\.files, or CONVERT TO DELTA"),
        ("shop.seen", UsageError, r"shop\.seen is a view, .*: name the table that it is made of"),
        ("shop.gone", NotFoundError, r"knows .*shop\.gone, and there is no Delta table at its place .*: bring its files back, or DROP TABLE"),
    ):  # fmt: skip
        with pytest.raises(error, match=message) as caught:
            located(shop, sf.table(name), WHO)
        assert str(caught.value).startswith(WHO)
        assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_table_is_made_where_the_pipeline_says_and_stays_there(
    shop: SparkSession, bench: Workbench
) -> None:
    folder = bench.folder / "a b" / "made"

    @sf.pipeline("made")
    def made(flow: sf.Flow, *, location: str) -> None:
        rows = flow.source("orders", sf.table("shop.orders"), Order)
        target = sf.table(
            "shop.made", location=location, partition_by=["id"], options={"delta.appendOnly": "true"}
        )
        rows.append("made", target)

    bench.run(made, {"location": str(folder)})
    detail = shop.sql("DESCRIBE DETAIL shop.made").first()
    assert detail is not None
    assert (detail["location"], detail["partitionColumns"]) == (f"file:{folder}", ["id"])
    assert detail["properties"]["delta.appendOnly"] == "true"
    assert len(rows(shop, "shop.made")) == 2
    with refused(UsageError, "shop.made", str(folder), "location='/elsewhere'"):
        bench.run(made, {"location": "/elsewhere"})


def test_only_the_preview_of_commits_through_a_catalog_is_refused(shop: SparkSession) -> None:
    from stateflow.spark.sources.catalog_tables import _at

    detail = shop.sql("DESCRIBE DETAIL shop.orders").first()
    assert detail is not None
    plain = list(detail["tableFeatures"])

    def found(*more: str) -> DeltaTable:
        return _at(sf.table("shop.orders"), {**detail.asDict(), "tableFeatures": [*plain, *more]}, WHO)

    assert (found().managed_as, found("catalogManaged").managed_as) == (
        (),
        ("spark_catalog", "shop", "orders"),
    )
    with refused(IncompatibleError, "preview", "copy it into a new table"):
        found("catalogOwned-preview")
