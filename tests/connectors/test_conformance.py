"""The library's sinks keep what every sink promises, and a sink that does not is found out."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import stateflow as sf
from stateflow.connectors import Sink
from stateflow.spark import sinks
from stateflow.spark.sinks import function
from stateflow.spark.sinks.memory import MemoryTable
from stateflow.testing import SinkConformance

pytestmark = pytest.mark.usefixtures("spark")


class TestMemory(SinkConformance):
    mode = "collect"
    ordered = any_columns = True
    knows_records = makes_target = False

    def target(self, folder: Path, name: str) -> MemoryTable:
        return sf.memory(f"conformance {name}")

    def rows(self, target: MemoryTable) -> Iterable[Mapping[str, Any]]:
        return target.rows


TABLES = (
    "CREATE TABLE IF NOT EXISTS orders (id INT, slot INT, at INT, v TEXT, op TEXT)",
    "CREATE TABLE IF NOT EXISTS deliveries (key TEXT PRIMARY KEY, slot INT, record TEXT)",
)


@dataclass
class Deliver:
    """A user's function, as docs/sinks.md has it."""

    file: str

    def connect(self) -> closing[sqlite3.Connection]:
        connection = sqlite3.connect(self.file, timeout=30, isolation_level=None)
        for table in TABLES:
            connection.execute(table)
        return closing(connection)

    def __call__(self, frame: DataFrame, delivery: sf.Delivery) -> None:
        rows = [tuple(row) for row in frame.toLocalIterator()]
        with self.connect() as connection:
            connection.execute("BEGIN IMMEDIATE")
            found = connection.execute(
                "SELECT slot, record FROM deliveries WHERE key = ?", (delivery.key,)
            ).fetchone()
            if found == (delivery.slot, delivery.record):
                return
            if found is not None and found[0] >= delivery.slot:
                raise RuntimeError(f"a copy of the job? {found} is in")
            connection.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", rows)
            mine = (delivery.key, delivery.slot, delivery.record)
            connection.execute("REPLACE INTO deliveries VALUES (?, ?, ?)", mine)
            connection.execute("COMMIT")


class TestFunction(SinkConformance):
    mode = "function"
    any_columns = ordered = True
    makes_target = False
    # The function above has one table of its own.
    test_every_value_comes_back_as_it_was = None

    def target(self, folder: Path, name: str) -> Deliver:
        return Deliver(str(folder / "shop.db"))

    def rows(self, target: Deliver) -> Iterable[Mapping[str, Any]]:
        with target.connect() as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute("SELECT * FROM orders ORDER BY rowid")]

    def code(self, sink: Sink) -> Sequence[str]:
        return [function.__file__, __file__]


@pytest.mark.system
class OfDelta(SinkConformance):
    folder: Path
    every = 4
    files = ("delta_table",)

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _one_table(cls, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        cls.folder = tmp_path_factory.mktemp("tables")
        yield
        for table in cls.folder.iterdir():
            if table.name == "values":  # Spark has read it
                continue
            assert _sorted(_rows_by_log(table)) == _sorted(_rows_by_spark(spark, table))

    def target(self, folder: Path, name: str) -> Any:
        return sf.delta(str(self.folder / name))

    def rows(self, target: Any) -> Iterable[Mapping[str, Any]]:
        """As the log says, which is a fifth of what Spark takes for it: in the end Spark has to read the same."""
        table = Path(target.path)
        if table.name == "values":  # of all types
            return _rows_by_spark(self.spark(), table)
        return _rows_by_log(table)

    def code(self, sink: Sink) -> Sequence[str]:
        return [f"{Path(sinks.__file__).parent}/{name}.py" for name in self.files]


def _sorted(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Rows in any order, with columns in any order."""
    return sorted(str(sorted(row.items())) for row in rows)


def _rows_by_spark(spark: SparkSession, table: Path) -> list[dict[str, Any]]:
    return spark.read.format("delta").load(str(table)).toArrow().to_pylist()


def _rows_by_log(table: Path) -> list[dict[str, Any]]:
    live: dict[str, None] = {}
    for commit in sorted((table / "_delta_log").glob("*.json")):
        removed, added = _changed(commit)
        live = {name: None for name in live if name not in removed} | dict.fromkeys(added)
    return [row for name in live for row in _rows_in(table / name)]


@cache
def _changed(commit: Path) -> tuple[set[str], list[str]]:
    """The files that a commit takes out and puts in."""
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    assert not any(action.get("add", {}).get("deletionVector") for action in actions), "no reader of those"
    removed = {action["remove"]["path"] for action in actions if "remove" in action}
    return removed, [action["add"]["path"] for action in actions if "add" in action]


@cache
def _rows_in(file: Path) -> list[dict[str, Any]]:
    return pq.read_table(file).to_pylist()


@pytest.mark.core
class TestDeltaAppend(OfDelta):
    files = ("delta_append", "delta_table", "delta_rewind")
    # `tests/spark/test_sinks_delta_append.py` plays these on a real table, one accident at a time.
    test_rows_are_seen_when_their_record_is_committed_and_not_before = None
    test_a_batch_that_fails_before_its_record_leaves_nothing = None
    test_a_batch_without_rows_and_slots_left_out_change_nothing = None
    test_a_record_that_is_committed_again_is_in_once = None
    test_of_several_who_commit_a_record_at_once_one_does = None
    test_a_run_that_was_replaced_writes_nothing = None
    test_another_job_has_slots_of_its_own = None
    test_what_a_copy_of_the_log_committed_is_not_taken_for_this_record = None
    test_a_target_that_lost_slots_is_refused = None


class TestDeltaUpsert(OfDelta):
    mode = "upsert"
    files = ("delta_upsert", "delta_rewrite", "delta_table")
    # The same code as of appends.
    test_the_output_goes_back_to_an_older_slot_or_says_that_it_cannot = None
    # `tests/spark/test_sinks_delta_upsert.py` and, of copies of a log, the file of appends play these on a real table.
    test_a_record_that_is_committed_again_is_in_once = None
    test_of_several_who_commit_a_record_at_once_one_does = None
    test_what_a_copy_of_the_log_committed_is_not_taken_for_this_record = None
    test_of_a_key_the_newest_row_stays_and_deletes_delete = None
