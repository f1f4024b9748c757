"""`stateflow query` and `stateflow serve` as they are typed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from stateflow.checkpoint.pins import list_pins
from stateflow.format.records import Owner, Savepoint, encode
from stateflow.serve.client import StateClient
from stateflow.storage.roots import open_store
from tests.jobs.builder import T0
from tests.jobs.queried import QueriedJob, entries_of, filled
from tests.reading.test_query import behind_expired_entries
from tests.serve.command import app
from tests.serve.conftest import until

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def job(tmp_path: Path) -> QueriedJob:
    made = QueriedJob(tmp_path / "root")
    made.checkpoint(entries_of(filled(*range(40))))
    return made


@pytest.fixture
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Nothing of this machine's configuration, and a cache of its own."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("STATEFLOW_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("STATEFLOW_CHECKPOINT_DIR", "STATEFLOW_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return {**os.environ, "PYTHONPATH": str(REPOSITORY)}


@pytest.fixture
def command(surroundings: dict[str, str]) -> Any:
    return lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments])


def test_query_says_what_a_state_holds(job: QueriedJob, command: Any) -> None:
    root = ("--checkpoint-dir", job.root)
    said = command("query", "orders", "balance", "total", 7, *root)
    assert (said.exit_code, said.stdout) == (0, "1.0\n")
    assert f"checkpoint {job.head().slot} of 2026-01-01" in said.stderr
    assert command("query", "orders", "balance", "log", 7, *root).stdout == "sku0\nsku1\n"
    entries = command("query", "orders", "balance", "items", 7, *root).stdout.split()
    assert entries == ["map", "key", "value", "sku0", "1", "sku1", "1"]
    assert command("query", "orders", "balance", "items", 7, "--map-key", "sku1", *root).stdout == "1\n"
    assert command("query", "orders", "balance", "idle", 7, *root).stdout == "2026-01-01T07:00:00Z\n"
    assert command("query", "orders", "balance", "secret", 7, *root).stdout == "hidden\n"
    mean = command("query", "orders", "balance", "mean", 7, *root)
    assert json.loads(mean.stdout) == {"_1": 1.0, "_2": 2}
    assert "an accumulator" in mean.stderr
    less = command("query", "orders", "balance", "log", 7, "--limit", 1, *root)
    assert less.stdout == "sku0\n"
    assert "more than 1 entries" in less.stderr
    nothing = command("query", "orders", "balance", "total", 999, *root)
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert "nothing is set for key 999" in nothing.stderr
    assert list_pins(job.store, job.layout) == []


def test_query_does_not_call_a_key_empty_of_which_only_the_first_entries_have_expired(
    job: QueriedJob, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind_expired_entries(job)
    monkeypatch.setattr("stateflow.reading.query.MOST_EXPIRED", 5)
    monkeypatch.setattr("time.time_ns", lambda: job.clock() * 1000)
    said = command("query", "orders", "balance", "carts", 1, "--checkpoint-dir", job.root)
    assert (said.exit_code, said.stdout) == (0, "")
    assert f"`stateflow state export --checkpoint-dir {job.root}`" in said.stderr


def test_query_as_json(job: QueriedJob, command: Any) -> None:
    said = command("query", "orders", "balance", "items", "7", "-o", "json", "--checkpoint-dir", job.root)
    body = json.loads(said.stdout)
    assert body.pop("fetched_bytes") >= 0
    assert body == {
        "job": "orders",
        "checkpoint": job.head().slot,
        "at": T0,
        "savepoint": None,
        "operator": "balance",
        "state": "items",
        "kind": "map",
        "key": "7",
        "namespace": None,
        "map_key": None,
        "found": True,
        "what": "map",
        "value": {"sku0": 1, "sku1": 1},
        "more": False,
    }


def test_query_of_an_older_checkpoint(job: QueriedJob, command: Any) -> None:
    first = job.head().slot
    job.checkpoint(entries_of(filled(7, rows=3)))
    asked = ("query", "orders", "balance", "total", 7, "--checkpoint-dir", job.root)
    assert command(*asked).stdout == "3.0\n"
    assert command(*asked, "--checkpoint", first).stdout == "1.0\n"


def test_query_of_a_native_savepoint(job: QueriedJob, command: Any, tmp_path: Path) -> None:
    job.checkpoint(entries_of(filled(*range(1500))))
    url = str(tmp_path / "elsewhere" / "savepoint")
    job.native(url, max_files=1)
    said = command("query", "orders", "balance", "total", 7, "--from", url)
    assert (said.exit_code, said.stdout) == (0, "1.0\n"), said.stderr
    with_slash = command("query", "orders", "balance", "total", 7, "--from", f"{url}/")
    assert (with_slash.exit_code, with_slash.stdout) == (0, "1.0\n"), with_slash.stderr
    moved = tmp_path / "moved"
    Path(url).rename(moved)
    assert command("query", "orders", "balance", "log", 7, "--from", moved).stdout == "sku0\nsku1\n"
    wrong = command("query", "clicks", "balance", "total", 7, "--from", moved)
    assert wrong.exit_code == 2
    assert "is of job 'orders', not of 'clicks'" in wrong.stderr
    assert command("query", "orders", "balance", "total", 7, "--from", url).exit_code == 3
    both = command("query", "orders", "balance", "total", 7, "--from", moved, "--checkpoint", "3")
    assert both.exit_code == 2


def test_a_canonical_savepoint_is_a_table_and_not_looked_into(
    job: QueriedJob, command: Any, tmp_path: Path
) -> None:
    record = msgspec.structs.replace(job.head(), operators={})
    body = Savepoint(id="s", kind="canonical", job="orders", record=record, owner=Owner(run="me"))
    open_store(str(tmp_path / "tables")).create("_metadata", encode(body))
    said = command("query", "orders", "balance", "total", 7, "--from", tmp_path / "tables")
    assert said.exit_code == 2
    assert "read it as a table" in said.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("oders", "balance", "total", "7"), 3, "there is no job 'oders'"),
        (("orders", "balnce", "total", "7"), 3, "its operators are balance"),
        (("orders", "balance", "totl", "7"), 3, "its states are"),
        (("orders", "balance", "total", "x"), 2, "key column 'user' is int"),
        (("orders", "balance", "total", "7", "--map-key", "x"), 2, "has no map keys"),
        (("orders", "balance", "total", "7", "--checkpoint", "99"), 3, "no checkpoint 99"),
        (("orders", "balance", "total", "7", "--checkpoint", "tag:x"), 3, "no tag 'x'"),
    ],
)
def test_query_of_what_is_not_there(
    job: QueriedJob, command: Any, arguments: tuple[str, ...], code: int, says: str
) -> None:
    said = command("query", *arguments, "--checkpoint-dir", job.root)
    assert (said.exit_code, said.stdout) == (code, "")
    assert says in said.stderr


@contextmanager
def serving(surroundings: dict[str, str], *arguments: object) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    command = [sys.executable, "-m", "tests.serve.command", "serve", "--port", "0", "-o", "json"]
    with subprocess.Popen(
        [*command, *map(str, arguments)],
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline() or "{}")
        finally:
            if process.poll() is None:
                process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_answers_until_it_is_told_to_end(
    job: QueriedJob, surroundings: dict[str, str], number: signal.Signals
) -> None:
    with serving(surroundings, "--checkpoint-dir", job.root, "--job", "orders") as (process, said):
        assert said["event"] == "serving"
        assert said["url"].startswith("http://127.0.0.1:")
        with StateClient(said["url"], said["token"]) as client:
            assert client.get("orders", "balance", "total", 7) == 1.0
        (pin,) = list_pins(job.store, job.layout)
        assert (pin.kind, pin.owner.host, pin.owner.pid) == ("reader", socket.gethostname(), process.pid)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        assert (out, err) == ("", "")
    assert list_pins(job.store, job.layout) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_ends_also_when_it_is_told_to_as_soon_as_it_says_that_it_serves(
    job: QueriedJob, surroundings: dict[str, str], number: signal.Signals
) -> None:
    with serving(surroundings, "--checkpoint-dir", job.root, "--job", "orders") as (process, _):
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
        assert (process.returncode, err) == (0, "")
    assert list_pins(job.store, job.layout) == []


@pytest.mark.slow
def test_serve_releases_what_a_killed_one_had_pinned(job: QueriedJob, surroundings: dict[str, str]) -> None:
    with serving(surroundings, "--checkpoint-dir", job.root, "--job", "orders") as (process, _):
        process.kill()
        process.wait()
    (left,) = list_pins(job.store, job.layout)
    with serving(surroundings, "--checkpoint-dir", job.root) as (process, said):
        assert [p.id for p in list_pins(job.store, job.layout)] == []
        with StateClient(said["url"], said["token"]) as client:
            assert client.get("orders", "balance", "total", 7) == 1.0
        until(lambda: len(list_pins(job.store, job.layout)) == 1)
        assert list_pins(job.store, job.layout)[0].id != left.id
        process.terminate()
        process.wait(timeout=30)


@pytest.mark.slow
def test_serve_with_a_tokens_file_makes_no_token(
    job: QueriedJob, surroundings: dict[str, str], tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text('[me]\ntoken = "my-own-token-of-some-length"\nrights = ["orders/*/*"]\n')
    with serving(surroundings, "--checkpoint-dir", job.root, "--tokens", tokens) as (process, said):
        assert said["token"] is None
        with StateClient(said["url"], "my-own-token-of-some-length") as client:
            assert client.get("orders", "balance", "total", 7) == 1.0
        process.terminate()
        process.wait(timeout=30)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--job", "oders"), 3, "no job 'oders'"),
        (("--tokens", "none.toml"), 3, "tokens file none.toml does not exist"),
        (("--host", "192.0.2.1"), 2, "cannot listen on"),
    ],
)
def test_serve_that_cannot_start_says_why_and_pins_nothing(
    job: QueriedJob, command: Any, arguments: tuple[str, ...], code: int, says: str
) -> None:
    said = command("serve", "--checkpoint-dir", job.root, "--job", "orders", "--port", 0, *arguments)
    assert said.exit_code == code
    assert says in said.stderr
    assert said.stdout == ""
    assert list_pins(job.store, job.layout) == []


def test_a_port_that_is_taken_is_said(job: QueriedJob, command: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = command("serve", "--checkpoint-dir", job.root, "--port", port)
    assert said.exit_code == 2
    assert f"the server cannot listen on 127.0.0.1:{port}" in said.stderr


def test_without_its_libraries_serve_says_what_to_install(
    job: QueriedJob, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    said = command("serve", "--checkpoint-dir", job.root)
    assert said.exit_code == 2
    assert "pip install fastapi uvicorn" in said.stderr
