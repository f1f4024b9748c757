"""What a replay leaves: nothing, even if it was killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from stateflow.checkpoint.pins import list_pins
from stateflow.config.options import load
from stateflow.jobs.erasure import plan_erase
from stateflow.jobs.job import Job
from stateflow.replay.fork import forked
from tests.jobs.made import made_job

KILLED = """
import os, signal, sys
from stateflow.jobs.job import Job
from stateflow.replay.fork import forked
job = Job(sys.argv[1], "orders")
with forked(job, job.log().checkpoints, job.owner("replay")):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_replay_left_the_next_one_takes_away(tmp_path: Path) -> None:
    made_job(tmp_path)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    job = Job(str(tmp_path), "orders")
    left = set(job.store.folders(""))
    assert killed.returncode == -9
    assert len(left) == 2
    assert list_pins(job.store, job.layout)

    with forked(job, (), job.owner("replay")) as fork:
        assert set(job.store.folders("")) == {"orders", fork.name}
        assert fork.name not in left
        assert list_pins(job.store, job.layout) == []
    assert job.store.folders("") == ["orders"]


def test_an_erasure_takes_away_what_a_killed_replay_left(tmp_path: Path) -> None:
    made_job(tmp_path)
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    job = Job(str(tmp_path), "orders")
    assert len(job.store.folders("")) == 2

    plan_erase(job, "1", load(env={}, folder=tmp_path)).apply(job.owner("erase"))

    assert job.store.folders("") == ["orders"]
