"""The whole story with Postgres as Airflow's database, as in production."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.airflow.postgres import postgres
from tests.airflow.server import airflow
from tests.airflow.story import whole_story

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]


def test_the_whole_story_with_postgres(tmp_path: Path) -> None:
    with postgres() as url, airflow(tmp_path, database=url) as server:
        client = server.client()
        client.await_dags("stateflow_orders", "stateflow_savepoint", "stateflow_recovery")
        whole_story(client, server.client("second"), tmp_path)
