"""docs/recipes/mysql.md: its sinks keep what every sink promises, on a real MariaDB whose connections break."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from stateflow.errors import IncompatibleError
from stateflow.pipelines import offers
from stateflow.testing.sink_log import SinkLog, make_sink
from tests.connectors.mysql_server import mysql

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.usefixtures("spark", "server")]
LONG = bool(os.environ.get("STATEFLOW_LONG"))
PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes" / "mysql.md"
FOLDER = Path(tempfile.mkdtemp(prefix="stateflow-mysql-page-"))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
for text in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S):
    (FOLDER / text.split()[1]).write_text(text, encoding="utf-8")
INFO = FOLDER / "stateflow_mysql-1.dist-info"
INFO.mkdir()
(INFO / "METADATA").write_text("Name: stateflow-mysql\nVersion: 1\n", encoding="utf-8")
ENTRIES = re.findall(r'`(mysql_\w+ = )"(.*?)"`', PAGE.read_text(encoding="utf-8"))
(INFO / "entry_points.txt").write_text(
    "\n".join(["[stateflow.sinks]", *(name + value for name, value in ENTRIES), ""]), encoding="utf-8"
)
sys.path.insert(0, str(FOLDER))
APPEND = import_module("test_stateflow_mysql").TestAppend
APPEND.every = 1 if LONG else 6  # each accident takes a tenth of a second and more
TestUpsert = import_module("test_stateflow_mysql").TestUpsert


class TestAppend(APPEND):  # type: ignore[misc, valid-type]
    """It has the code of the upsert but for what it writes: all of it is tried before a release alone."""


_OF_APPENDS = {
    "test_a_record_that_is_committed_again_is_in_once",
    "test_every_value_comes_back_as_it_was",
    "test_of_several_who_commit_a_record_at_once_one_does",
}
for name in {name for name in dir(APPEND) if name.startswith("test_")} - _OF_APPENDS:
    if not LONG:
        setattr(TestAppend, name, None)


@pytest.fixture(scope="module")
def server() -> Iterator[None]:
    offers.installed.cache_clear()
    with mysql() as password:
        APPEND.secrets = (password,)
        yield
    sys.path.remove(str(FOLDER))
    offers.installed.cache_clear()


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("CREATE TABLE t (id BIGINT PRIMARY KEY, v VARCHAR(3)) ENGINE=MyISAM", "no transactions"),
        ("CREATE TABLE t (id BIGINT PRIMARY KEY, v VARCHAR(3) UNIQUE)", "no other unique index"),
        ("CREATE TABLE t (id BIGINT, v VARCHAR(3), KEY (id))", "needs a primary key of id"),
        ("CREATE TABLE t (id VARCHAR(9), v VARCHAR(9), PRIMARY KEY (id(1)))", "each in its whole length"),
        ("CREATE TABLE t (id BIGINT, v VARCHAR(3))", "needs a primary key of id"),
        (
            "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(3))",
            "no column 'id' that holds every bigint: it is int",
        ),
        (
            "CREATE TABLE t (id BIGINT PRIMARY KEY, v VARCHAR(3))",
            "no room for a text of 4 characters in its column 'v'",
        ),
        (
            "CREATE TABLE t (id BIGINT PRIMARY KEY, v VARCHAR(9), d DOUBLE(10,2))",
            r"no column 'd' that holds every double: it is double\(10,2\)",
        ),
        (
            "CREATE TABLE t (id BIGINT PRIMARY KEY, v VARCHAR(9) CHECK (v <> 'a   '))",
            "refuses rows of .*CONSTRAINT `upsert_t.v` failed",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_a_row_is_written(
    spark: Any, tmp_path: Path, statement: str, said: str
) -> None:
    table = TestUpsert().target(tmp_path, "t")
    table.ask(statement.replace(" t ", " upsert_t ", 1))
    log = SinkLog(spark, tmp_path / "checkpoints")
    more = ", 1.5d as d" if "d DOUBLE" in statement else ""
    key = "'user-1'" if "id VARCHAR" in statement else "1L"
    rows = spark.sql(f"SELECT {key} as id, 'a   ' as v{more}")

    def attempt() -> None:
        sink = make_sink("totals", "upsert", table, {"keys": ("id",)})
        sink.open(spark, rows.schema)
        log.prepare(sink, rows)

    try:
        with pytest.raises(IncompatibleError, match=said):
            attempt()
        assert table.ask("SELECT * FROM upsert_t") == ()
    finally:
        table.ask("DROP TABLE upsert_t")


def test_a_deadlock_is_tried_again_and_a_broken_connection_is_not() -> None:
    recipe, pymysql = import_module("stateflow_mysql"), import_module("pymysql")
    failures = [pymysql.OperationalError(2013, "lost"), pymysql.OperationalError(1213, "deadlock")]

    def act() -> str:
        if failures:
            raise failures.pop()
        return "done"

    with pytest.raises(pymysql.OperationalError, match="lost"):
        recipe.trying(act)
    assert recipe.trying(act) == "done"
