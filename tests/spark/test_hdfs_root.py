"""A pipeline with its root in a real HDFS: killed, carried on, verified, queried, served, and restored from savepoints in and out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from stateflow.checkpoint.log import read_log
from stateflow.cli.main import app
from stateflow.format.layout import JobLayout
from stateflow.serve.client import StateClient
from stateflow.storage.hdfs import HdfsStore
from stateflow.storage.roots import open_store
from tests.hdfs_servers import HdfsServer
from tests.lent_cache import lend
from tests.spark.murder import ROOT
from tests.spark.murder_evidence import delta_rows
from tests.spark.test_sigterm import told

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

PIPELINE = """
import time
import stateflow as sf


class Counted(sf.KeyedProcess):
    seen = sf.ValueState(int, default=0, queryable=True)

    def process(self, key, rows, ctx):
        for row in rows:
            self.seen.value += 1
        time.sleep(0.1)
        yield (key, self.seen.value)


@sf.pipeline("counted")
def counted(flow, folder: str, out: str = "out"):
    def rows(spark):
        return spark.readStream.schema("user int").option("maxFilesPerTrigger", 2).json(folder + "/input")

    flow.source("input", rows).key_by("user").process("count", Counted, output="user int, seen int").append(
        "out", sf.delta(folder + "/" + out)
    )
"""
USERS = 4
Command = Callable[..., str]


@pytest.fixture
def root(hdfs: HdfsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The root of a new folder; the commands of a test find it in their configuration."""
    url = hdfs.new_root("team/checkpoints")
    monkeypatch.setenv("STATEFLOW_CACHE_DIR", str(lend(tmp_path / "cache")))
    monkeypatch.setenv("STATEFLOW_CONFIG", "stateflow.toml")
    monkeypatch.delenv("STATEFLOW_CHECKPOINT_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    options = "".join(f"{name} = {json.dumps(value)}\n" for name, value in hdfs.options.items())
    settings = f'checkpoint_dir = "{url}"\ninline_threshold = "0 B"\n\n[storage_options]\n{options}'
    (tmp_path / "stateflow.toml").write_text(settings)
    (tmp_path / "counted.py").write_text(PIPELINE)
    return url


def process(*words: str, **given: Any) -> subprocess.Popen[str]:
    """A command in a process of its own, with a driver of its own."""
    command, env = [sys.executable, "-m", "stateflow", *words], {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, **given)


@pytest.fixture
def command(spark: SparkSession) -> Command:
    """What a command prints that is typed in this process, whose Spark computes it."""

    def run(*words: str) -> str:
        done = CliRunner().invoke(app, list(words))
        assert done.exit_code == 0, f"{words}: {done.output}"
        return done.stdout

    return run


def add(folder: Path, first: int, count: int) -> None:
    (folder / "input").mkdir(exist_ok=True)
    for n in range(first, first + count):
        rows = "\n".join(json.dumps({"user": user}) for user in range(USERS))
        (folder / "input" / f"{n:03d}.json").write_text(rows)


def batches(first: int, last: int) -> Counter[tuple[int, int]]:
    """What the batches of two files each put out, up to so many files."""
    return Counter((seen, user) for seen in range(first + 2, last + 1, 2) for user in range(USERS))


def test_a_job_in_hdfs_is_killed_carries_on_and_is_read(
    root: str, hdfs: HdfsServer, command: Command, tmp_path: Path
) -> None:
    add(tmp_path, 0, 12)
    words = ("run", "counted.py", "-p", f"folder={tmp_path}", "--master", "local[2]")
    with process(
        *words, "--conf", "spark.driver.memory=1g", stderr=subprocess.PIPE, start_new_session=True
    ) as running:
        try:
            told(running, "chk ", times=2)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    assert delta_rows(tmp_path / "out") < batches(0, 12)
    command("run", "counted.py", "-p", f"folder={tmp_path}", "--takeover")
    assert delta_rows(tmp_path / "out") == batches(0, 12)

    store = open_store(root, hdfs.options)
    assert isinstance(store, HdfsStore)
    head = read_log(store, JobLayout("counted")).head
    assert head is not None
    assert any(
        file.path for shards in head.operators["count"].shards for shard in shards for file in shard.files
    )
    assert "counted is sound" in command("verify", "counted", "--deep")
    assert command("query", "counted", "count", "seen", "3") == "12\n"
    cached = [file for file in (tmp_path / "cache" / "state").rglob("*") if file.is_file()]
    assert cached, "the host's cache has none of the state files"
    with process("serve", "--port", "0", "-o", "json") as serving:
        try:
            assert serving.stdout is not None
            said = json.loads(serving.stdout.readline())
            with StateClient(said["url"], said["token"]) as client:
                assert client.get_many("counted", "count", "seen", [0, 1, 99]) == [12, 12, None]
        finally:
            serving.kill()

    command("gc", "counted", "--yes")
    command("delete", "counted", "--yes")
    assert [entry.path for entry in store.list("")] == ["counted/epochs/99999999"]


def test_savepoints_go_from_hdfs_to_hdfs_and_to_a_disk_and_come_back(
    root: str, hdfs: HdfsServer, command: Command, tmp_path: Path
) -> None:
    add(tmp_path, 0, 4)
    command("run", "counted.py", "-p", f"folder={tmp_path}")
    made = {
        "native-in-hdfs": hdfs.new_root("savepoint"),
        "native-on-disk": str(tmp_path / "native"),
        "tables-in-hdfs": hdfs.new_root("savepoint"),
    }
    for name, place in made.items():
        kind = "native" if name.startswith("native") else "canonical"
        command("savepoint", "create", "counted", "--type", kind, "--to", place)
        fork = ("-p", f"folder={tmp_path}", "-p", f"out={name}")
        command("restore", name, "counted.py", "--from", place, *fork, "--yes")
    add(tmp_path, 4, 2)
    for name, place in made.items():
        assert command("query", name, "count", "seen", "3") == "4\n"
        command("savepoint", "dispose", place, "--yes")
        if "hdfs" in name:
            left = open_store(place.rpartition("/")[0], hdfs.options)
            assert (left.list(""), left.folders("")) == ([], [])
        else:
            assert not Path(place).exists()
    command("run", "counted.py", "--job", name, "-p", f"folder={tmp_path}", "-p", f"out={name}")
    assert delta_rows(tmp_path / name) == batches(4, 6)
