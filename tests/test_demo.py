"""The demo's parts, and the orders example end to end: killed in a batch, recovered, judged without Spark."""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from rich.console import Console
from typer.testing import CliRunner

from demo import __main__ as demo_command
from demo.airflow_client import RunOf
from demo.airflow_server import PROJECT, AirflowServer
from demo.spark import PIPELINE, Demo
from demo.spark_runs import Command
from demo.story import BAD, GOOD, Story
from demo.table import Orders, compared, read
from stateflow.cli.main import app

ROWS = 300
pytestmark = pytest.mark.timeout(900)  # two starts of Spark, on a machine that may be busy


def write_totals(orders: Path, totals: Path, *, repeat: int = 0, off: float = 0.0) -> None:
    """Totals as the pipeline appends them, in one file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    running: dict[int, tuple[int, float]] = {}
    rows = []
    for order in read(orders):
        count, total = running.get(order["user"], (0, off))
        running[order["user"]] = (count + 1, total + order["amount"])
        rows.append({"user": order["user"], "orders": count + 1, "total": total + order["amount"]})
    (totals / "_delta_log").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows + rows[:repeat]), totals / "t.parquet")
    (totals / "_delta_log" / f"{0:020d}.json").write_text(json.dumps({"add": {"path": "t.parquet"}}) + "\n")


def test_right_totals_are_found_right(tmp_path: Path) -> None:
    assert Orders(tmp_path / "orders").add(2, ROWS) == 2 * ROWS
    write_totals(tmp_path / "orders", tmp_path / "totals")
    verdict = compared(tmp_path / "orders", tmp_path / "totals")
    assert verdict.right
    assert verdict.orders == 2 * ROWS


def test_a_doubled_row_and_a_wrong_total_are_noticed(tmp_path: Path) -> None:
    Orders(tmp_path / "orders").add(1, ROWS)
    write_totals(tmp_path / "orders", tmp_path / "doubled", repeat=2)
    doubled = compared(tmp_path / "orders", tmp_path / "doubled")
    assert (doubled.right, doubled.doubled, doubled.wrong) == (False, 2, ())
    write_totals(tmp_path / "orders", tmp_path / "off", off=0.25)
    off = compared(tmp_path / "orders", tmp_path / "off")
    assert (off.right, len(off.wrong)) == (False, off.users)


def test_input_is_the_same_with_every_seed(tmp_path: Path) -> None:
    for name in ("one", "two"):
        Orders(tmp_path / name, seed=3).add(2, 50)
    Orders(tmp_path / "other", seed=4).add(2, 50)
    assert read(tmp_path / "one") == read(tmp_path / "two") != read(tmp_path / "other")


def test_a_table_that_is_there_goes_on(tmp_path: Path) -> None:
    Orders(tmp_path / "at once", seed=3).add(3, 50)
    assert Orders(tmp_path / "bit by bit", seed=3).add(2, 50) == 100
    assert Orders(tmp_path / "bit by bit", seed=3).add(1, 50) == 150
    assert read(tmp_path / "bit by bit") == read(tmp_path / "at once")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Demo, list[int], list[dict[str, Any]], str]:
    """A run that was killed after its first checkpoint, and the one after it: events on stdout, and stderr."""
    folder = tmp_path_factory.mktemp("demo")
    shutil.copy(PIPELINE, folder / "orders.py")
    demo = Demo(folder, Console(quiet=True))
    demo.orders.add(3, ROWS)
    command: Command = demo.command
    taken = command.killed_in_a_batch(*demo.run, batches=1, pause=0.3)
    done = subprocess.run(
        [*command.base, *demo.run, *command.root, "-o", "json", "--note", "after the kill"],
        capture_output=True,
        text=True,
        check=False,
        env=command.environment,
    )
    assert done.returncode == 0, done.stderr
    return demo, taken, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.mark.system
def test_a_killed_run_is_carried_on_and_nothing_is_lost_or_doubled(played: Any) -> None:
    demo, taken, events, _ = played
    assert len(taken) == 1
    verdict = compared(demo.orders.folder, demo.totals)
    assert verdict.right
    assert verdict.orders == 3 * ROWS
    assert all(event["id"] > taken[0] for event in events[:-1])


@pytest.mark.system
def test_a_run_tells_every_batch_as_json_and_as_text(played: Any) -> None:
    _, _, events, told = played
    *batches, summary = events
    assert summary["event"] == "summary"
    assert summary["stopped"] == "the input was drained"
    assert summary["lastCheckpointId"] == batches[-1]["id"]
    assert summary["processed_rows"] == sum(batch["processed_rows"] for batch in batches)
    for batch in batches:
        assert set(batch) == {
            "event", "job", "id", "epoch", "input_free", "processed_rows", "emitted_rows", "rows_per_second", "keys",
            "dead_letters", "state_size", "uploaded_bytes", "compacted_bytes", "inlined_bytes", "end_to_end_duration",
            "sync_duration", "upload_duration", "decide_duration", "commit_duration", "cache_hits", "cache_misses",
            "fetched_bytes", "watermark", "event_time", "event_time_lag", "counters", "sinks",
        }  # fmt: skip
        assert (batch["event"], batch["job"], batch["processed_rows"]) == ("checkpoint", "orders", ROWS)
        assert batch["counters"] == {"orders": ROWS}
        assert batch["state_size"] > 0
        assert f"chk {batch['id']}  {ROWS} rows" in told


@pytest.mark.system
def test_every_command_that_the_demo_suggests_works(played: Any) -> None:
    demo = played[0]
    for arguments in demo.suggestions()[:-1]:
        result = CliRunner().invoke(app, [*arguments, *demo.command.root])
        assert result.exit_code == 0, (arguments, result.output)


@pytest.mark.system
def test_the_note_is_kept_with_the_run(played: Any) -> None:
    demo = played[0]
    shown = CliRunner().invoke(app, ["show", "orders", "-o", "json", *demo.command.root])
    assert json.loads(shown.stdout)["owner"]["note"] == "after the kill"


# The demo with Airflow: tests/airflow/test_story.py tells its story; here is what it says when it cannot


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(demo_command, "cache_folder", lambda: tmp_path)
    return tmp_path


def test_a_port_that_is_taken_is_named(own_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert demo_command.main(["--check", "--port", str(port)]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told == [f"demo: port {port} is in use: end what listens there or choose another one"]


def test_too_little_memory_is_said_before_anything_starts(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=400_000_000))
    assert demo_command.main(["--check"]) == 9
    assert "demo: 0.4 GB of memory are free" in capsys.readouterr().err
    assert not (own_folder / "demo" / "airflow").exists()


def test_a_second_demo_does_not_delete_the_first_ones_folder(
    own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with demo_command.alone(own_folder / "demo"):
        (own_folder / "demo" / "precious").touch()
        assert demo_command.main(["--check"]) == 8
        assert (own_folder / "demo" / "precious").exists()
    assert "a demo is running from this folder already" in capsys.readouterr().err


def test_the_faulty_version_changes_a_line_that_the_example_has() -> None:
    text = PIPELINE.read_text(encoding="utf-8")
    assert text.count(GOOD) == 1
    assert BAD not in text


def test_a_line_of_a_tasks_log_is_told_once_by_all_who_wait_for_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one waits for the kill, the other for the end of the run."""
    told = io.StringIO()
    story = Story(tmp_path, Console(file=told))
    logs = {1: "chk 6  4,000 rows\nSpark's own words\nchk 7  4,000 rows", 2: ""}
    state = {"try_number": 1, "state": "running"}
    story.client = SimpleNamespace(  # type: ignore[assignment]
        task=lambda run, task: state,
        log=lambda run, task, number: logs[number],
    )
    seconds = iter(range(10, 100, 10))
    monkeypatch.setattr("demo.story.time.monotonic", lambda: float(next(seconds)))
    run = RunOf("stateflow_orders", "1")
    for attempt in (1, 1, 2):
        state["try_number"], logs[2] = attempt, "chk 8  4,000 rows"
        story._follower(run, "run", lambda text: None)()
    assert told.getvalue() == "".join(f"   chk {number}  4,000 rows\n" for number in (6, 7, 8))


def test_whatever_a_server_has_started_is_found_and_ended(tmp_path: Path) -> None:
    server = AirflowServer(tmp_path / "home", str(tmp_path))
    server.home.mkdir()
    sleeping = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
    piped: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True}
    elsewhere = subprocess.Popen(sleeping, cwd=tmp_path, **piped)
    there = subprocess.Popen(sleeping, cwd=server.home, start_new_session=True, **piped)
    named = {**os.environ, "AIRFLOW_HOME": str(server.home)}
    detached = subprocess.Popen(sleeping, cwd=tmp_path, env=named, start_new_session=True, **piped)
    try:
        # A process that is only about to begin shows no environment yet.
        assert [each.stdout.readline() for each in (elsewhere, there, detached)] == ["up\n"] * 3
        assert {process.pid for process in server.belongings()} == {there.pid, detached.pid}
        server.stop()
        assert not psutil.pid_exists(there.pid)
        assert not psutil.pid_exists(detached.pid)
        assert elsewhere.poll() is None
    finally:
        for process in (elsewhere, there, detached):
            process.kill()
            process.communicate()


@pytest.mark.system
@pytest.mark.skipif(not os.environ.get("STATEFLOW_LONG"), reason="STATEFLOW_LONG=1 runs it")
def test_the_demo_ends_with_the_right_verdict() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo", "--check"], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "right"
