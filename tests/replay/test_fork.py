"""What a replay leaves: nothing, even if it was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from stateflow.checkpoint.pins import list_pins, release
from stateflow.cli.main import app
from stateflow.config.options import load
from stateflow.errors import BusyError
from stateflow.format.layout import replay_owner
from stateflow.jobs.erasure import plan_erase
from stateflow.jobs.job import Job
from stateflow.replay.fork import forked, sweep
from tests.jobs.made import made_job
from tests.jobs.queried import queried_job
from tests.refusals.refusal import refused

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

    with forked(job, job.log().checkpoints, job.owner("replay")) as fork:
        assert set(job.store.folders("")) == {"orders", fork.name}
        assert fork.name not in left
        assert {pin.owner.pid for pin in list_pins(job.store, job.layout)} == {os.getpid()}
    assert list_pins(job.store, job.layout) == []
    assert job.store.folders("") == ["orders"]


def test_an_erasure_takes_away_what_a_killed_replay_left(tmp_path: Path) -> None:
    queried_job(tmp_path, 1)
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    job = Job(str(tmp_path), "orders")
    assert len(job.store.folders("")) == 2

    plan_erase(job, "1", load(env={}, folder=tmp_path)).apply(job.owner("erase"))

    assert job.store.folders("") == ["orders"]


def test_an_erasure_takes_away_what_a_replay_left_that_was_killed_on_another_host(tmp_path: Path) -> None:
    queried_job(tmp_path, 1)
    job = Job(str(tmp_path), "orders")
    elsewhere = msgspec.structs.replace(job.owner("replay"), host="another", pid_scope="another")
    erase = plan_erase(
        job,
        "1",
        load(code={"heartbeat_timeout": "1 s", "heartbeat_interval": "200 ms"}, env={}, folder=tmp_path),
    )
    with ExitStack() as never_ends:
        fork = never_ends.enter_context(forked(job, job.log().checkpoints, elsewhere))
        # Nobody here can tell whether it is still running.
        sweep(job.store)
        with refused(BusyError, "reader by", "on another reads checkpoint", "--absent"):
            erase.apply(job.owner("erase"))
        assert fork.name in job.store.folders("")
        # As the refusal says, `stateflow gc orders --release PIN --yes`, pin by pin.
        for pin in list_pins(job.store, job.layout):
            release(job.store, job.layout, pin.id)
        again = plan_erase(job, "1", load(env={}, folder=tmp_path), absent=True)
        again.apply(job.owner("erase"))
        assert job.store.folders("") == ["orders"]
        never_ends.pop_all()


def test_a_fork_goes_also_where_folders_of_the_root_have_no_name_of_a_job(tmp_path: Path) -> None:
    made_job(tmp_path)
    job = Job(str(tmp_path), "orders")
    job.savepoint("native")
    job.store.put("not a job/notes", b"somebody's")
    with ExitStack() as never_ends:
        elsewhere = msgspec.structs.replace(job.owner("replay"), host="another", pid_scope="another")
        fork = never_ends.enter_context(forked(job, job.log().checkpoints, elsewhere))
        assert sweep(job.store) == []
        for pin in list_pins(job.store, job.layout):
            release(job.store, job.layout, pin.id)
        assert sweep(job.store) == [fork.name]
        assert fork.name not in job.store.folders("")
        never_ends.pop_all()


def test_a_fork_that_cannot_be_removed_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made_job(tmp_path)
    job = Job(str(tmp_path), "orders")
    job.store.put(replay_owner("replay-1"), b"no owner")
    assert sweep(job.store) == []
    assert "the folder replay-1, which a replay may have left, stays" in caplog.text


def test_the_command_that_lets_its_pins_go_takes_away_a_fork_of_another_host(tmp_path: Path) -> None:
    made_job(tmp_path)
    job = Job(str(tmp_path), "orders")
    elsewhere = msgspec.structs.replace(job.owner("replay"), host="another", pid_scope="another")
    killed = forked(job, job.log().checkpoints, elsewhere)
    fork = killed.__enter__()
    words = ["gc", "orders", "--yes", "--checkpoint-dir", str(tmp_path)]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert fork.name in job.store.folders(""), "nobody knows whether it is over"
    said = CliRunner().invoke(
        app, [*words, *(word for pin in list_pins(job.store, job.layout) for word in ("--release", pin.id))]
    )
    assert f"deleted {fork.name}: a replay that is gone has left it" in said.output
    assert job.store.folders("") == ["orders"]


def test_a_job_that_is_called_as_a_fork_is_none(tmp_path: Path) -> None:
    made_job(tmp_path)
    job = Job(str(tmp_path), "orders")
    job.store.put("replay-of-orders/job", b"somebody's")
    sweep(job.store)
    assert job.store.folders("") == ["orders", "replay-of-orders"]
