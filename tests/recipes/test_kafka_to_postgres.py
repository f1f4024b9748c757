"""The recipe from Kafka into Postgres, as its page says it: with a broker and a database."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer

from scripts.recipes.story import FOLDER, ROOT
from tests.commands import process_of_commands
from tests.connectors.kafka_server import Topics
from tests.connectors.postgres_server import server
from tests.spark.kafka_broker import broker

RECIPE = FOLDER / "kafka_to_postgres.py"


def test_the_page_shows_the_code() -> None:
    page = Path(ROOT, "docs", "recipes", "kafka-to-postgres.md").read_text(encoding="utf-8")
    assert f"```python\n{RECIPE.read_text(encoding='utf-8')}```\n" in page


@pytest.mark.system
@pytest.mark.timeout(300)
def test_counts_per_minute_are_in_the_table_once_after_each_run(tmp_path: Path) -> None:
    with (
        broker(tmp_path / "broker") as address,
        server() as database,
        process_of_commands(tmp_path, DATABASE=database.url) as command,
    ):
        database.run("DROP TABLE IF EXISTS public.per_minute, public.stateflow_slots")
        Topics(address).make("orders")

        def ordered(*orders: tuple[str, float, str]) -> list[tuple[object, ...]]:
            """The table, after a run that has read these orders too."""
            producer = Producer({"bootstrap.servers": address})
            for user, amount, at in orders:
                row = {"user": user, "amount": amount, "ts": f"2026-01-01T{at}Z"}
                producer.produce("orders", json.dumps(row).encode(), user.encode())
            assert producer.flush(30) == 0
            done = command(
                *("run", RECIPE, "--checkpoint-dir", tmp_path / "root"),
                *("-p", f"brokers={address}", "-p", "database=env:DATABASE"),
            )
            assert done.returncode == 0, done.stderr[-3000:]
            return database.run(
                "SELECT \"user\", to_char(window_start AT TIME ZONE 'UTC', 'HH24:MI'), orders, total FROM public.per_minute ORDER BY 1, 2"
            )

        first = ordered(("ann", 2, "12:00:10"), ("ann", 3, "12:00:20"), ("bob", 1, "12:00:40"))
        assert first == [("ann", "12:00", 2, 5.0), ("bob", "12:00", 1, 1.0)]
        second = ordered(("ann", 4, "12:00:50"), ("ann", 5, "12:01:30"))
        assert second == [("ann", "12:00", 3, 9.0), ("ann", "12:01", 1, 5.0), ("bob", "12:00", 1, 1.0)]
