"""SIGTERM to all of a run's processes, as `timeout` and container runtimes send it: the run ends after its batch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from stateflow.jobs.job import Job
from tests.spark.murder import ROOT, descendants, process_of

PIPELINE = """
import time
import stateflow as sf


class Slow(sf.KeyedProcess):
    seen = sf.ValueState(int, default=0)

    def process(self, key, rows, ctx):
        for row in rows:
            self.seen.value += 1
        time.sleep(0.3)
        yield (key, self.seen.value)


@sf.pipeline("slow")
def slow(flow, folder: str):
    def rows(spark):
        return spark.readStream.schema("user int").option("maxFilesPerTrigger", 1).json(folder + "/input")

    flow.source("input", rows).key_by("user").process("slow", Slow, output="user int, seen int").append(
        "out", sf.delta(folder + "/out")
    )
"""


@contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The command in a session of its own; nothing of it is left afterwards."""
    (folder / "slow.py").write_text(PIPELINE)
    (folder / "input").mkdir()
    for n in range(40):
        (folder / "input" / f"{n:03d}.json").write_text("\n".join(f'{{"user": {user}}}' for user in range(4)))
    command = [sys.executable, "-m", "stateflow.cli", "run", f"{folder}/slow.py", "-p", f"folder={folder}"]
    options = [
        "--checkpoint-dir",
        f"{folder}/root",
        "--master",
        "local[2]",
        "--conf",
        "spark.driver.memory=1g",
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "STATEFLOW_CHECKPOINT_DIR": ""}
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def told(process: subprocess.Popen[str], words: str, times: int = 1) -> str:
    """What it has said until it has said that so often."""
    assert process.stderr is not None
    said = ""
    while said.count(words) < times:
        line = process.stderr.readline()
        assert line, f"it ended before it said {words!r}:\n{said}"
        said += line
    return said


@pytest.mark.slow
def test_a_run_ends_after_its_batch_and_nothing_is_pending(tmp_path: Path) -> None:
    with running(tmp_path) as process:
        told(process, "chk ", times=2)
        os.killpg(process.pid, signal.SIGTERM)
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert "a stop was requested at checkpoint" in out
        assert "stopping after this batch" in err
        assert "Traceback" not in err
        assert "Exception" not in err
    status = Job(str(tmp_path / "root"), "slow").status()
    assert (status.status, status.pending) == ("IDLE", [])
    assert status.head is not None
    assert 2 < status.head < 41  # it had more to do
    assert f"checkpoint {status.head} " in out


@pytest.mark.system
def test_a_jvm_that_hears_no_sigterm_still_ends_with_a_driver_that_is_killed(tmp_path: Path) -> None:
    with running(tmp_path) as process:
        told(process, "chk ")
        (jvm,) = [found for found in descendants(process.pid) if found.kind == "driver"]
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        end = time.monotonic() + 60
        while process_of(jvm.pid) == jvm and time.monotonic() < end:
            time.sleep(0.05)
        assert process_of(jvm.pid) != jvm
