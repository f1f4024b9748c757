"""Whole jobs that read a table of Iceberg and write others, by the commands that people type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

import stateflow as sf
from scripts.recipes.story import FOLDER, ROOT
from stateflow.spark.inputs import connected
from tests.commands import Commands, process_of_commands
from tests.connectors.iceberg_catalog import rows_of, sql_catalog

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(600),
    pytest.mark.skipif(connected.SupportsTriggerAvailableNow is None, reason="Spark is older than 4.2"),
]
PIPELINE = FOLDER / "iceberg.py"
SCHEMA = pa.schema([("id", pa.int64()), ("user", pa.string()), ("amount", pa.int32())])


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    with sql_catalog(tmp_path_factory.mktemp("lake")) as made:
        yield made


@pytest.fixture(scope="module")
def commands(lake: Catalog, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """Of all tests, with the catalog in the environment."""
    with process_of_commands(tmp_path_factory.mktemp("here")) as made:
        yield made


@pytest.fixture
def catalog(lake: Catalog) -> Catalog:
    """With an empty table of orders, and no other."""
    for name in lake.list_tables("shop"):
        lake.purge_table(name)
    lake.create_table("shop.orders", SCHEMA)
    return lake


def order(catalog: Catalog, *orders: tuple[int, str, int]) -> None:
    columns = [
        pa.array(values, field.type) for values, field in zip(zip(*orders, strict=True), SCHEMA, strict=True)
    ]
    catalog.load_table("shop.orders").append(pa.table(columns, schema=SCHEMA))


def ran(commands: Commands, root: Path) -> None:
    done = commands("run", PIPELINE, "--checkpoint-dir", root)
    assert done.returncode == 0, done.stdout + done.stderr


def totals(catalog: Catalog) -> dict[str, int]:
    return {row["user"]: row["amount"] for row in rows_of(catalog, "shop.totals")}


def copied(catalog: Catalog) -> Counter[int]:
    return Counter(row["id"] for row in rows_of(catalog, "shop.by_user"))


def test_the_page_shows_the_code() -> None:
    page = Path(ROOT, "docs", "recipes", "iceberg.md").read_text(encoding="utf-8")
    assert f"```python\n{PIPELINE.read_text(encoding='utf-8')}```\n" in page


def test_a_job_reads_what_is_appended_and_goes_back_with_its_outputs(
    catalog: Catalog, commands: Commands, tmp_path: Path
) -> None:
    order(catalog, (1, "ann", 5), (2, "bob", 7))
    ran(commands, tmp_path)
    assert totals(catalog) == {"ann": 5, "bob": 7}
    slot = max(record.slot for record in sf.Job(str(tmp_path), "iceberg").checkpoints())
    order(catalog, (3, "ann", 1))
    order(catalog, (4, "eve", 9))
    ran(commands, tmp_path)
    assert totals(catalog) == {"ann": 6, "bob": 7, "eve": 9}
    assert copied(catalog) == Counter((1, 2, 3, 4))
    back = commands(
        *("restore", "iceberg", PIPELINE, "--from", f"checkpoint:{slot}"),
        *("--rewind-sinks", "--yes", "--checkpoint-dir", tmp_path),
    )
    assert back.returncode == 0, back.stdout + back.stderr
    assert totals(catalog) == {"ann": 5, "bob": 7}
    assert copied(catalog) == Counter((1, 2))
    order(catalog, (5, "bob", 1))
    ran(commands, tmp_path)
    assert totals(catalog) == {"ann": 6, "bob": 8, "eve": 9}
    assert copied(catalog) == Counter((1, 2, 3, 4, 5))


def test_a_change_of_rows_that_were_read_ends_the_run_with_the_way_on(
    catalog: Catalog, commands: Commands, tmp_path: Path
) -> None:
    order(catalog, (1, "ann", 5))
    ran(commands, tmp_path)
    catalog.load_table("shop.orders").delete("id = 1")
    done = commands("run", PIPELINE, "--checkpoint-dir", tmp_path)
    assert done.returncode == 7, done.stdout + done.stderr
    assert "changed or deleted rows (delete)" in done.stderr
    assert "give the source a new uid" in done.stderr


def test_a_table_that_does_not_fit_ends_the_run_before_anything_is_written(
    catalog: Catalog, commands: Commands, tmp_path: Path
) -> None:
    order(catalog, (1, "ann", 5))
    catalog.create_table("shop.totals", pa.schema([("user", pa.string()), ("amount", pa.int32())]))
    done = commands("run", PIPELINE, "--checkpoint-dir", tmp_path)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "its column 'amount' is int, which does not hold every bigint" in done.stderr
    assert copied(catalog) == Counter()
