"""Options and commands about warm hosts that need no host."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from stateflow.cli import host
from stateflow.cli.entry import _of_hosts
from stateflow.config.options import load
from stateflow.errors import UsageError
from stateflow.hosts import starting
from stateflow.hosts.client import Refused
from stateflow.hosts.configured import lacking_host
from stateflow.hosts.keeper import claim
from stateflow.hosts.settings import HostSettings, differences, driver_memory, folder_of, names
from tests.cli.conftest import Command

NO_HOST = "--host-only needs a host: give --host NAME or set host"


@pytest.fixture(autouse=True)
def no_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEFLOW_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("STATEFLOW_HOST", "STATEFLOW_HOST_ONLY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("words", "file", "variable"),
    [
        (["--host-only"], "", ""),
        (["--option", "host_only=true"], "", ""),
        ([], "host_only = true", ""),
        ([], "", "STATEFLOW_HOST_ONLY"),
        (["--host", "", "--host-only"], 'host = "team"', ""),
    ],
)
def test_a_run_on_nothing_but_a_host_has_to_name_one(
    command: Command, monkeypatch: pytest.MonkeyPatch, words: list[str], file: str, variable: str
) -> None:
    Path("stateflow.toml").write_text(file, encoding="utf-8")
    if variable:
        monkeypatch.setenv(variable, "true")
    said = command("run", "keyed.py", *words)
    assert (said.code, NO_HOST in said.err) == (2, True), said.err


@pytest.mark.parametrize("name", ["../x", "Team", "a/b"])
@pytest.mark.parametrize("where", ["argument", "option", "file", "variable"])
def test_what_cannot_be_a_host_is_refused_wherever_it_is_named(
    command: Command, monkeypatch: pytest.MonkeyPatch, name: str, where: str
) -> None:
    words = {"argument": ["--host", name], "option": ["--option", f"host={name}"]}.get(where, [])
    if where == "file":
        Path("stateflow.toml").write_text(f'host = "{name}"', encoding="utf-8")
    if where == "variable":
        monkeypatch.setenv("STATEFLOW_HOST", name)
    said, shown = command("run", "keyed.py", *words), command("host", "show", name)
    assert (said.code, said.err) == (shown.code, shown.err)
    assert said.code == 2
    assert f"{name!r} cannot be the name of a host" in said.err


def test_a_run_may_do_without_the_host_that_the_configuration_demands(command: Command) -> None:
    Path("stateflow.toml").write_text('host = "team"\nhost_only = true', encoding="utf-8")
    said = command("run", "keyed.py", "--host", "")
    assert "keyed.py" in said.err
    assert "host" not in said.err


class Submitted:
    """Runs as spark-submit starts them. None gets as far as Spark: their pipeline is not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *words: str, file: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        (self.folder / "stateflow.toml").write_text(file, encoding="utf-8")
        spec = find_spec("stateflow.application.submitted")
        assert spec is not None
        return subprocess.run(
            [sys.executable, str(spec.origin), "run", "nowhere.py", *words],
            cwd=self.folder, env={**os.environ, **variables}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip


@pytest.fixture
def submitted(tmp_path: Path) -> Submitted:
    return Submitted(tmp_path)


@pytest.mark.parametrize(
    ("words", "file", "where"),
    [
        (["--host", "team", "--host-only"], "", "the command line (--host-only)"),
        ([], 'host = "team"\nhost_only = true', "stateflow.toml"),
    ],
)
def test_a_run_of_spark_submit_is_refused_that_nothing_but_a_host_may_carry_out(
    submitted: Submitted, words: list[str], file: str, where: str
) -> None:
    said = submitted(*words, file=file)
    assert said.returncode == 2
    for named in ("host team", where, "`stateflow run`", "WarmHost('team')", "host_only to false"):
        assert named in said.stderr
    assert "nowhere.py" not in said.stderr


@pytest.mark.parametrize(
    ("words", "file", "variable", "says"),
    [
        (["--host", "team"], "", "", True),
        ([], 'host = "team"\nhost_only = false', "", True),
        ([], 'host = "team"\nhost_only = true', "false", True),
        (["--host", ""], 'host = "team"\nhost_only = true', "", False),
        ([], "", "", False),
    ],
)
def test_a_run_of_spark_submit_that_is_to_go_to_a_host_says_that_it_does_not(
    submitted: Submitted, words: list[str], file: str, variable: str, says: bool
) -> None:
    said = submitted(*words, file=file, **({"STATEFLOW_HOST_ONLY": variable} if variable else {}))
    lines = said.stderr.splitlines()
    assert ("the host team is not asked" in lines[0] and "WarmHost('team')" in lines[0]) is says
    assert "nowhere.py" in lines[-1]


@pytest.mark.parametrize("words", [["--host", "team"], ["--host-only"]])
def test_a_fresh_run_says_that_it_takes_no_host(command: Command, words: list[str]) -> None:
    said = command("run", "keyed.py", "--fresh", *words)
    assert (said.code, "leave out --host and --host-only" in said.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([], {}),
        (["--host", "a", "--host=b"], {"host": "b"}),
        (["--option", "host=a", "--option=host-wait=1 minute"], {"host": "a", "host_wait": "1 minute"}),
        (["--host", "b", "--option", "host=a"], {"host": "b"}),
        (["--option", "host_only=false", "--host-only"], {"host_only": "true"}),
        (["--host", ""], {"host": ""}),
        (["--option", "parallelism=2", "--option", "host"], {}),
    ],
)
def test_options_about_hosts_are_read_as_where_all_is_read(words: list[str], options: dict[str, str]) -> None:
    assert _of_hosts(["run", "a.py", *words]) == options


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2", "is no amount of memory: write it with its unit"),
        ("abc", "is no amount of memory"),
        ("0g", "is no amount of memory"),
        ("300m", "is too little for Spark, which needs 512m at least"),
    ],
)
def test_memory_that_spark_cannot_start_with_is_refused_at_once(
    command: Command, text: str, why: str
) -> None:
    said = command("host", "start", "team", "--memory", text)
    assert (said.code, f"--memory '{text}' {why}" in said.err) == (2, True), said.err
    assert names() == []


@pytest.mark.parametrize(
    ("text", "setting"),
    [("2g", "2g"), ("2048m", "2048m"), ("2 GB", "2g"), ("512m", "512m"), ("1.5g", "1536m")],
)
def test_memory_is_written_as_for_spark_or_as_all_sizes(text: str, setting: str) -> None:
    assert driver_memory(text, "memory") == {"spark.driver.memory": setting}
    assert driver_memory("", "memory") == {}
    with pytest.raises(UsageError, match=r"^memory 'x'"):
        driver_memory("x", "memory")


def test_a_taken_name_is_refused_before_anything_starts(command: Command) -> None:
    folder = folder_of("team")
    starting.prepare(folder, HostSettings(master="local[2]"))
    lock = claim(folder)
    other = command("host", "start", "team", "--master", "local[3]")
    assert (other.code, "starts Spark" in other.err) == (8, False)
    assert (
        "runs already, with other settings, which it keeps (--master local[2], not local[3]): to" in other.err
    )
    assert "`stateflow host stop team`" in other.err
    same = command("host", "start", "team", "--master", "local[2]")
    assert (same.code, "runs already: see" in same.err) == (8, True), same.err
    cold = command("host", "start", "team", "--master", "local[2]", "--cold")
    assert (cold.code, "runs already: see" in cold.err) == (8, True), "how it was started is no setting of it"
    os.close(lock)


def test_a_host_that_drains_is_not_said_to_run(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of("team")
    starting.prepare(folder, HostSettings())
    lock = claim(folder)
    answers = {folder: False, folder / "application-1-7": True}
    for each in answers:
        each.mkdir(exist_ok=True)

    def ask(of: Path) -> dict[str, bool]:
        if of not in answers:
            raise Refused("it does not answer", 9)
        return {"draining": answers[of]}

    monkeypatch.setattr(starting, "ask", ask)
    replaced = command("host", "start", "team")
    assert (replaced.code, "runs already: see" in replaced.err) == (8, True), replaced.err
    answers[folder] = True
    for _ in range(2):
        said = command("host", "start", "team", "--runs", "8")
        assert said.code == 8
        assert "the host 'team' drains, and takes no runs any more: start it again when its runs" in said.err
        assert "`stateflow host stop team`" in said.err
        assert "runs already" not in said.err
        # Its newest application has ended before one that it had replaced, which still has runs.
        answers.pop(folder, None)
    os.close(lock)


def test_a_host_says_which_settings_are_others_and_no_secrets() -> None:
    running = HostSettings(
        master="local[1]", places=4, lease=900.0,
        conf={"spark.driver.memory": "2g", "spark.secret": "hush", "spark.same": "1"},
    )  # fmt: skip
    asked = HostSettings(
        places=8,
        recycle_runs=5,
        warms=False,
        conf={"spark.secret": "psst", "spark.same": "1", "spark.x": "2"},
    )
    assert differences(running, asked) == [
        "--master local[1], not none",
        "--runs 4, not 8",
        "--memory 2g, not none",
        "--recycle-runs 2000, not 5",
        "--lease 15 minutes, not none",
        "another --conf spark.secret",
        "no --conf spark.x",
    ]
    assert differences(running, running) == []


def test_a_drain_names_what_it_waits_for_for_how_long_and_how_to_end_it(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting.prepare(folder_of("team"), HostSettings(drain_timeout=300))
    monkeypatch.setattr(host, "_signal", lambda *arguments: None)
    clicks = {"job": "clicks.py", "since": 60.0, "endless": "clicks"}
    orders = {"job": "orders", "since": 0.0, "endless": ""}
    now = {"draining": False, "draining_since": 0.0, "runs": [orders, clicks]}
    before = {"draining": True, "draining_since": time.time() - 180, "runs": [clicks]}
    monkeypatch.setattr(host, "_applications", lambda folder: [before, now])
    assert [
        line[27:] if line[:2] == "20" else line for line in command("host", "drain", "team").err.splitlines()
    ] == [
        "  clicks, since 1970-01-01 00:01:00: is continuous, and ends after its batch in 2 minutes, or now with `stateflow stop clicks`",
        "  orders, since 1970-01-01 00:00:00: ends with its input, or after its batch in 5 minutes",
        "  clicks, since 1970-01-01 00:01:00: is continuous, and ends after its batch in 5 minutes, or now with `stateflow stop clicks`",
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, ""),
        ({"host_only": "true"}, "host_only is set, and host is not: no run starts"),
        ({"host": "Team"}, "'Team' cannot be the name of a host"),
        (
            {"host": "team"},
            "the host team, set by the command line (--host), takes no runs: it is not running",
        ),
    ],
)
def test_what_is_wrong_with_the_configured_host_is_told(
    tmp_path: Path, given: dict[str, str], said: str
) -> None:
    found = lacking_host(load(cli=given, env={}, folder=tmp_path))
    assert found.startswith(said)
    assert bool(found) is bool(said)


def test_the_doctor_looks_at_the_configured_host(command: Command) -> None:
    Path("stateflow.toml").write_text('host = "team"', encoding="utf-8")
    checks = {each["check"]: each for each in command("doctor", "-o", "json").json["checks"]}
    assert checks["warm host"]["verdict"] == "warn"
    assert "team" in checks["warm host"]["found"]
    Path("stateflow.toml").write_text("", encoding="utf-8")
    assert "warm host" not in command("doctor", "-o", "json").out


def test_hosts_that_ended_long_ago_are_not_listed(command: Command) -> None:
    for name in ("old", "new"):
        starting.prepare(folder_of(name), HostSettings())
    os.utime(folder_of("old") / "settings.json", (0, 0))
    assert command("host", "list").out.splitlines() == ["new: ended"]
    lock = claim(folder_of("old"))
    assert "old: starting" in command("host", "list").out
    os.close(lock)
