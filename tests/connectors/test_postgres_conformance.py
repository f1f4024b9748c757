"""The sinks into Postgres keep what every sink promises, on a real server whose connections break."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest

import stateflow as sf
import stateflow.connectors.tries as pauses_module
from stateflow.testing import SinkConformance
from tests.connectors.postgres_server import Server
from tests.connectors.promises import only

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.usefixtures("spark")]


class TestPostgresAppend(SinkConformance):
    failure = psycopg.OperationalError
    secrets: ClassVar[list[str]] = []
    tables = "append"

    @pytest.fixture(autouse=True)
    def _server(self, database: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.database = database
        password = psycopg.conninfo.conninfo_to_dict(database.url)["password"]
        monkeypatch.setattr(type(self), "secrets", [str(password)])
        monkeypatch.setattr(pauses_module, "PAUSES", (0.0,) * 3)

    def target(self, folder: Path, name: str) -> Any:
        return sf.postgres(f"shop.{self.tables}_{name}", connection="env:TEST_POSTGRES", create=True)

    def rows(self, target: Any) -> Iterable[Mapping[str, Any]]:
        with psycopg.connect(self.database.url, row_factory=psycopg.rows.dict_row) as connection:
            if connection.execute("SELECT to_regclass(%s) AS t", (target.name,)).fetchone()["t"] is None:
                return []
            if target.name.endswith("_values"):
                return self.values(connection, target.name)
            return connection.execute(f"SELECT * FROM {target.name}").fetchall()

    def values(self, connection: psycopg.Connection[Any], table: str) -> list[dict[str, Any]]:
        """Nested values are JSON, as somebody reads it who knows the types."""
        found = connection.execute(f"SELECT t.* FROM {table} t").fetchall()
        texts = connection.execute(f"SELECT id, to_jsonb(t)::text AS row FROM {table} t").fetchall()
        nested = {f"c{k}": kind for k, kind in enumerate(self.types) if "<" in kind}
        columns = ", ".join(f"{name} {kind}" for name, kind in nested.items())
        frame = self.spark().createDataFrame(
            [(each["id"], each["row"]) for each in texts], "id long, row string"
        )
        read = frame.selectExpr("id", f"from_json(row, '{columns}', map('timeZone', 'UTC')) AS row")
        parsed = {row["id"]: row for row in read.selectExpr("id", "row.*").toArrow().to_pylist()}
        return [row | parsed[row["id"]] for row in found]

    def break_connection(self) -> None:
        self.database.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'stateflow'"
        )


class TestPostgresUpsert(TestPostgresAppend):
    mode = "upsert"
    tables = "upsert"


_OF_UPSERTS = {
    "test_rows_are_seen_when_their_record_is_committed_and_not_before",
    "test_a_record_that_is_committed_again_is_in_once",
    "test_a_death_at_any_line_of_commit_loses_and_doubles_nothing",
    "test_every_value_comes_back_as_it_was",
    "test_columns_that_do_not_fit_are_refused_before_the_decision",
    "test_of_a_key_the_newest_row_stays_and_deletes_delete",
}
# An upsert is the code of an append but for its statements and the columns that it needs.
only(TestPostgresUpsert, _OF_UPSERTS)
