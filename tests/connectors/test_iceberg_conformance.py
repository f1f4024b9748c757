"""The sinks into Iceberg keep what every sink promises."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog

import stateflow as sf
import stateflow.connectors.tries as pauses_module
from stateflow.testing import SinkConformance
from tests.connectors.iceberg_catalog import NAME, rows_of, sql_catalog

pytestmark = [pytest.mark.system, pytest.mark.timeout(600), pytest.mark.usefixtures("spark")]


class TestIcebergAppend(SinkConformance):
    @pytest.fixture(autouse=True)
    def _catalog(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(pauses_module, "PAUSES", (0.0,) * 3)
        with sql_catalog(tmp_path / "lake") as catalog:
            self.catalog: Catalog = catalog
            yield

    def target(self, folder: Path, name: str) -> Any:
        return sf.iceberg(f"shop.{name}", catalog=NAME, create=True)

    def rows(self, target: Any) -> Iterable[Mapping[str, Any]]:
        rows = rows_of(self.catalog, target.name)
        maps = [f"c{k}" for k, kind in enumerate(self.types) if kind.startswith("map")]
        for row in rows:
            row.update({name: dict(row[name]) for name in maps if row.get(name) is not None})
        return rows


class TestIcebergUpsert(TestIcebergAppend):
    mode = "upsert"
    # From here on it is the code of an append: the slot in the table, whoever has replaced the run, and the way back.
    test_a_run_that_was_replaced_writes_nothing = None
    test_another_job_has_slots_of_its_own = None
    test_what_a_copy_of_the_log_committed_is_not_taken_for_this_record = None
    test_a_target_that_lost_slots_is_refused = None
    test_an_abandoned_slot_may_have_arrived_or_not = None
    test_the_target_says_which_slot_it_has = None
    test_the_target_says_whose_rows_it_has = None
    test_the_output_goes_back_to_an_older_slot_or_says_that_it_cannot = None
