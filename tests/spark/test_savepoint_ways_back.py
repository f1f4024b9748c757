"""Outputs that go back to a savepoint, whose checkpoint is long gone: every kind that can, and then all that followed comes once more."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog

import stateflow as sf
from stateflow.config.options import Options
from stateflow.connectors.iceberg.slots import SLOT
from stateflow.errors import IncompatibleError
from stateflow.jobs.job import Job
from tests.connectors.iceberg_catalog import NAME, rows_of, sql_catalog
from tests.spark.pipelines import ORDER, Order, Sum, Workbench, at
from tests.spark.sink_places import contents

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with sql_catalog(tmp_path / "lake") as made:
        yield made


class Shop:
    """A job with an output of each kind that can go back, and a feed of its state."""

    def __init__(self, bench: Workbench, catalog: Catalog) -> None:
        self.bench, self.catalog = bench, catalog
        self.job = Job(str(bench.folder / "root"), "orders")
        folder = str(bench.folder)

        @sf.pipeline("orders")
        def orders(flow: sf.Flow) -> None:
            rows = flow.source("orders", bench.source("orders", ORDER), Order)
            totals = rows.key_by("user", order_by="ts").process("sum", Sum)
            totals.append("lines", sf.files(f"{folder}/lines", "json"))
            totals.append("rows", sf.iceberg("shop.rows", catalog=NAME, create=True))
            newest = sf.iceberg("shop.newest", catalog=NAME, create=True)
            totals.upsert("newest", newest, keys=["user"])
            flow.state_changes("sum").append("changes", sf.delta(f"{folder}/changes"))

        self.pipeline = orders

    @property
    def options(self) -> Options:
        return self.bench.options()

    def run(self, *batches: int) -> tuple[str, ...]:
        for batch in batches:
            self.bench.rows("orders", [Order(user, "a", 1.0 + user, at(batch)) for user in range(3)])
        return self.bench.run(self.pipeline, retained_checkpoints=1).warnings

    def outputs(self) -> dict[str, Any]:
        folder, spark = self.bench.folder, self.bench.spark
        files = json.loads((folder / "lines" / "_latest.json").read_text())["files"]
        lines = [
            line for file in files for line in (folder / "lines" / file["path"]).read_text().splitlines()
        ]
        return {
            "lines": Counter(lines),
            "rows": Counter(tuple(row.values()) for row in rows_of(self.catalog, "shop.rows")),
            "newest": Counter(tuple(row.values()) for row in rows_of(self.catalog, "shop.newest")),
            "changes": Counter(contents(spark, folder / "changes", "user", "kind", "after")),
        }

    def back_to(self, url: str) -> None:
        plan = self.job.restore(url, self.pipeline, options=self.options, rewind_sinks=True)
        assert {sink.action for sink in plan.sinks} == {"rewinds"}
        plan.apply()


def test_all_outputs_go_back_to_a_savepoint_and_get_what_followed_once_more(
    bench: Workbench, catalog: Catalog
) -> None:
    shop = Shop(bench, catalog)
    shop.run(0, 1)
    made = [
        shop.job.savepoint(kind, options=shop.options, to=str(bench.folder / kind))
        for kind in ("native", "canonical")
    ]
    slot, then = made[0].savepoint.record.slot, shop.outputs()
    shop.run(2)
    later = shop.outputs()
    assert slot not in [record.slot for record in shop.job.log().checkpoints]
    for savepoint in made:
        shop.back_to(savepoint.url)
        assert shop.outputs() == then
    assert shop.run() == ()
    assert shop.outputs() == later
    table = catalog.load_table("shop.rows")
    gone = [
        each.snapshot_id for each in table.snapshots() if each.summary and each.summary[SLOT] == str(slot)
    ]
    table.maintenance.expire_snapshots().by_ids(gone).commit()
    expired = r"shop\.rows .* cannot go back .*: the snapshot of slot \d+ has expired; restore without"
    with pytest.raises(IncompatibleError, match=expired):
        shop.back_to(made[0].url)
    assert shop.outputs() == later
