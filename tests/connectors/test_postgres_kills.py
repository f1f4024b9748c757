"""Commits to Postgres while the server is killed, started again and slow, and the run with it: equal to a batch computation, nothing twice.
STATEFLOW_LONG=1 kills fifty times."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.airflow.postgres import Postgres, running_postgres
from tests.connectors.decided import UNAVAILABLE
from tests.connectors.postgres_committer import Records
from tests.connectors.postgres_server import Server

LONG = bool(os.environ.get("STATEFLOW_LONG"))
KILLS = 50 if LONG else 4
pytestmark = [pytest.mark.system, pytest.mark.timeout(1800 if LONG else 300)]


def hurt(server: Postgres, moments: random.Random) -> bool:
    """Kills one session, which takes all others along, or all of the server, which may have been slow before. False if there was no
    session."""
    match moments.randrange(3):
        case 0:
            return server.kill_session()
        case 1:
            with server.stopped():
                time.sleep(moments.random())
    server.kill()
    server.start()
    return True


@pytest.mark.parametrize("kind", ["postgres_append", "postgres_upsert"])
def test_kills_of_the_server_in_the_middle_of_commits_leave_every_row_once(kind: str, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    moments, kills = random.Random(seed), 0
    with running_postgres() as server:
        asked, records = Server(server.url), Records(root=tmp_path / "root", kind=kind, slots=40 * KILLS)
        records.decide(asked)
        while kills < KILLS and records.finished < records.slots:
            begun, run = records.finished, records.carry_on(server.url)
            deadline = time.monotonic() + 20
            while records.finished == begun and run.is_alive() and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(moments.random() / 4)
            under_way = run.is_alive()
            kills += hurt(server, moments) and under_way
            run.join(moments.random() / 2)
            run.kill()
            run.join()
            assert run.exitcode in (0, -9, UNAVAILABLE), f"seed {seed}"
        assert kills == KILLS, f"all was committed after {kills} kills, seed {seed}"
        code: int | None = UNAVAILABLE
        while code == UNAVAILABLE:
            run = records.carry_on(server.url)
            run.join(600)
            code = run.exitcode
        assert code == 0, f"seed {seed}"
        assert sorted(asked.run("SELECT id, slot FROM public.t")) == records.wanted, f"seed {seed}"
