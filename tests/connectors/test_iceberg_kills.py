"""Commits to Iceberg by processes that are killed at any moment, two at a time, with catalogs that are killed, too: equal to a batch
computation, nothing twice. STATEFLOW_LONG=1 kills more of them."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog

import stateflow as sf
import stateflow.connectors.tries as pauses_module
from stateflow.testing import SinkConformance
from tests.connectors.decided import BEHIND, UNAVAILABLE
from tests.connectors.forwarder import forwarder
from tests.connectors.iceberg_catalog import NAME, rows_of, sql_catalog
from tests.connectors.iceberg_committer import Records
from tests.connectors.iceberg_rest import RestServer, rest_server
from tests.connectors.promises import only

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]
LONG = bool(os.environ.get("STATEFLOW_LONG"))
KILLS, ACCIDENTS = (50, 8) if LONG else (12, 4)


def rows(catalog: Catalog) -> list[tuple[int, int]]:
    return sorted((row["id"], row["slot"]) for row in rows_of(catalog, "shop.t"))


def finish(records: Records) -> None:
    code: int | None = UNAVAILABLE
    while code in (UNAVAILABLE, BEHIND):
        process = records.carry_on()
        process.join(300)
        code = process.exitcode
    assert code == 0


def records_of(catalog: Catalog, folder: Path, kind: str, slots: int) -> Records:
    catalog.create_table("shop.t", Records.SCHEMA)
    records = Records(root=folder / "root", table=sf.iceberg("shop.t", catalog=NAME), slots=slots, kind=kind)
    records.decide()
    return records


@pytest.mark.parametrize("kind", ["iceberg_append", "iceberg_upsert"])
def test_kills_of_two_runs_that_both_believe_to_be_the_newest(kind: str, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    moments, kills = random.Random(seed), 0
    with sql_catalog(tmp_path / "lake") as catalog:
        records = records_of(catalog, tmp_path, kind, 140 if LONG else 50)
        while kills < KILLS and records.finished < records.slots:
            runs = [records.carry_on() for _ in range(2)]
            for run in runs:
                run.join(0.05 + moments.random() * 0.3)
                kills += run.is_alive()
                run.kill()
                run.join()
                assert run.exitcode in (0, -9, UNAVAILABLE, BEHIND), run.exitcode
        finish(records)
        assert kills >= KILLS, f"all was committed after {kills} kills"
        assert rows(catalog) == records.wanted, f"seed {seed}, {kills} kills"


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RestServer, Catalog]]:
    with rest_server(tmp_path_factory.mktemp("rest")) as made:
        yield made


@pytest.mark.parametrize("kind", ["iceberg_append", "iceberg_upsert"])
def test_a_rest_catalog_that_is_killed_started_again_and_slow(
    kind: str, tmp_path: Path, rest: tuple[RestServer, Catalog]
) -> None:
    server, catalog = rest
    seed = random.randrange(10**6)
    moments = random.Random(seed)
    records = records_of(catalog, tmp_path, kind, 60 if LONG else 30)
    try:
        for accident in range(ACCIDENTS):
            run = records.carry_on()
            run.join(0.3 + moments.random() * 0.7)
            if accident % 2:
                with server.stopped():
                    time.sleep(0.5 + moments.random())
            else:
                server.kill()
                if moments.random() < 0.5:
                    run.kill()
                server.start()
            run.join(1 + moments.random())
            run.kill()
            run.join()
        finish(records)
        assert rows(catalog) == records.wanted, f"seed {seed}"
    finally:
        catalog.drop_table("shop.t")


class TestIcebergByRest(SinkConformance):
    """An append by a REST catalog, whose connections break at lines of the commit."""

    every = 6

    @pytest.fixture(autouse=True)
    def _catalog(
        self, rest: tuple[RestServer, Catalog], monkeypatch: pytest.MonkeyPatch, spark: Any
    ) -> Iterator[None]:
        monkeypatch.setattr(pauses_module, "PAUSES", (0.0,) * 3)
        server, self.catalog = rest
        with forwarder(server.port) as self.between:
            monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"http://127.0.0.1:{self.between.port}/")
            yield

    def target(self, folder: Path, name: str) -> Any:
        return sf.iceberg(f"shop.{name}", catalog=NAME, create=True)

    def rows(self, target: Any) -> Iterable[Mapping[str, Any]]:
        found = rows_of(self.catalog, target.name)
        maps = [f"c{k}" for k, kind in enumerate(self.types) if kind.startswith("map")]
        for row in found:
            row.update({name: dict(row[name]) for name in maps if row.get(name) is not None})
        return found

    def break_connection(self) -> None:
        self.between.break_connections()

    def test_a_connection_that_breaks_at_any_line_of_commit_loses_and_doubles_nothing(
        self, tmp_path: Path
    ) -> None:
        super().test_a_connection_that_breaks_at_any_line_of_commit_loses_and_doubles_nothing(tmp_path)
        assert self.between.broken, "the catalog was asked by another way"


_OF_CATALOGS = {
    "test_rows_are_seen_when_their_record_is_committed_and_not_before",
    "test_a_record_that_is_committed_again_is_in_once",
    "test_of_several_who_commit_a_record_at_once_one_does",
    "test_an_error_at_any_line_of_commit_loses_and_doubles_nothing",
    "test_a_connection_that_breaks_at_any_line_of_commit_loses_and_doubles_nothing",
}
# Behind PyIceberg's catalog it is the code that `test_iceberg_conformance.py` tries with another one.
only(TestIcebergByRest, _OF_CATALOGS)
