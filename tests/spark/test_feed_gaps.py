"""A source that is to read changes from versions without a feed of them: the run says how to go on, and that gives the right sums."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import stateflow as sf
from stateflow.spark.runner import RunRequest, run
from tests.refusals.refusal import refused
from tests.spark.pipelines import Workbench
from tests.spark.sink_places import contents

SIGN = "if(_change_type in ('insert', 'update_postimage'), 1, -1)"


@dataclass
class Orders:
    """A table of orders, and a job that sums them up by region."""

    bench: Workbench
    folder: Path

    @property
    def table(self) -> str:
        return str(self.folder / "orders")

    def sql(self, *statements: str) -> None:
        for statement in statements:
            self.bench.spark.sql(statement.replace("ORDERS", f"delta.`{self.table}`"))

    def keeps_feed(self, on: bool) -> None:
        self.sql(f"ALTER TABLE ORDERS SET TBLPROPERTIES ('delta.enableChangeDataFeed' = '{str(on).lower()}')")

    def pipeline(
        self,
        *,
        changes: bool = True,
        uid: str = "orders",
        job: str = "summing",
        options: Mapping[str, str] | None = None,
    ) -> sf.Pipeline:
        sign, more = (SIGN, ", _change_type string") if changes else ("1", "")

        @sf.pipeline(job)
        def summing(flow: sf.Flow) -> None:
            orders = sf.delta(self.table, changes=changes, options=options)
            rows = flow.source(uid, orders, f"region string, amount long{more}")
            signed = rows.transform(
                lambda frame: frame.selectExpr("region", f"amount * {sign} as amount"),
                type="region string, amount long",
            )
            sums = signed.key_by("region").aggregate(
                "sums", "region string, amount long", amount=sf.sum("amount")
            )
            sums.upsert("out", sf.delta(str(self.folder / job)))

        return summing

    def sums(self, job: str = "summing", *, allow: bool = False, **how: Any) -> list[tuple[Any, ...]]:
        """As the job has them after a run."""
        self.bench.run(self.pipeline(job=job, **how), allow_non_restored_state=allow)
        return contents(self.bench.spark, str(self.folder / job), "region", "amount")

    def gap(self, *parts: str, **how: Any) -> str:
        where = ("source 'orders'", self.table, "kept no feed", "--job", "outputs of its own")
        with refused(sf.IncompatibleError, *where, *parts) as caught:
            self.sums(**how)
        assert "DELTA_" not in str(caught.value)
        return str(caught.value)


@pytest.fixture
def orders(bench: Workbench, tmp_path: Path) -> Orders:
    return Orders(bench, tmp_path)


@pytest.mark.slow
def test_rows_that_were_deleted_before_there_was_a_feed_are_read_by_a_new_job(orders: Orders) -> None:
    orders.sql(
        "CREATE TABLE ORDERS (region string, amount long) USING delta",
        "INSERT INTO ORDERS VALUES ('north', 10), ('south', 20)",
    )
    assert orders.sums(changes=False) == [("north", 10), ("south", 20)]
    orders.sql("DELETE FROM ORDERS WHERE region = 'south'")
    with refused(
        sf.IncompatibleError, "version 2", "under the same uid if", "else as a new job (--job NAME)"
    ):
        orders.sums(changes=False)
    with refused(sf.UsageError, "source 'orders'", "no feed of its changes", "has to begin anew") as caught:
        orders.sums()
    orders.sql(str(caught.value).split("from now on, ")[1].split(", and run again")[0])
    orders.gap("version 2 of", "'startingVersion': '3'")

    assert orders.sums("anew") == [("north", 10)]
    orders.sql("UPDATE ORDERS SET amount = 12", "INSERT INTO ORDERS VALUES ('west', 1)")
    assert orders.sums("anew") == [("north", 12), ("west", 1)]


@pytest.mark.slow
def test_a_feed_that_was_off_for_a_while_is_read_anew_or_from_where_it_is_on_again(orders: Orders) -> None:
    orders.sql("CREATE TABLE ORDERS (region string, amount long) USING delta")
    orders.keeps_feed(True)
    orders.sql("INSERT INTO ORDERS VALUES ('north', 10), ('south', 20)")
    assert orders.sums() == [("north", 10), ("south", 20)]
    orders.keeps_feed(False)
    orders.sql("INSERT INTO ORDERS VALUES ('north', 100)", "DELETE FROM ORDERS WHERE region = 'south'")
    orders.keeps_feed(True)
    orders.sql("INSERT INTO ORDERS VALUES ('north', 1000)")

    said = orders.gap("the versions from 3 to 5", "'startingVersion': '6'", "--allow-non-restored-state")
    advised = re.search("{'(startingVersion)': '(6)'}", said)
    assert advised is not None
    beginning = {"options": {advised[1]: advised[2]}}
    assert orders.sums(uid="later", allow=True, **beginning) == [("north", 1010), ("south", 20)]
    orders.sql("UPDATE ORDERS SET amount = 1001 WHERE amount = 1000")
    assert orders.sums(uid="later", **beginning) == [("north", 1011), ("south", 20)]

    assert orders.sums("anew") == [("north", 1111)]
    orders.sql("DELETE FROM ORDERS WHERE amount = 100")
    assert orders.sums("anew") == [("north", 1011)]


@pytest.mark.slow
def test_a_feed_is_read_on_under_the_uid_of_a_source_that_has_read_rows(orders: Orders) -> None:
    orders.sql("CREATE TABLE ORDERS (region string, amount long) USING delta")
    orders.keeps_feed(True)
    orders.sql("INSERT INTO ORDERS VALUES ('north', 10), ('south', 20)")
    assert orders.sums(changes=False) == [("north", 10), ("south", 20)]
    orders.sql("DELETE FROM ORDERS WHERE region = 'south'", "UPDATE ORDERS SET amount = 11")
    with refused(sf.IncompatibleError, "version 3", "under the same uid if"):
        orders.sums(changes=False)
    assert orders.sums() == [("north", 11), ("south", 0)]


@pytest.mark.slow
def test_a_feed_that_is_turned_off_under_a_run_is_told_to_be_turned_on_first(orders: Orders) -> None:
    orders.sql("CREATE TABLE ORDERS (region string, amount long) USING delta")
    orders.keeps_feed(True)
    orders.sql("INSERT INTO ORDERS VALUES ('north', 10)", "INSERT INTO ORDERS VALUES ('north', 1)")
    stop, told = Event(), list[Any]()

    def turned_off(report: Any) -> None:
        told.append(report)
        if len(told) > 1:
            stop.set()  # or the run would never end
        orders.keeps_feed(False)
        orders.sql("INSERT INTO ORDERS VALUES ('north', 100)")

    endless = orders.bench.options(trigger="until-stopped")
    beginning = {"options": {"startingVersion": "2"}}
    parts = (
        "from 4 to 5",
        "'delta.enableChangeDataFeed' = 'true'",
        "without the option",
        "the version in which",
    )
    with refused(sf.IncompatibleError, *parts):
        run(RunRequest(orders.pipeline(**beginning), endless, {}, listener=turned_off, stop=stop))
    orders.keeps_feed(True)
    orders.gap("from 4 to 5", "'startingVersion': '6'", **beginning)
    assert orders.sums("anew") == [("north", 111)]
