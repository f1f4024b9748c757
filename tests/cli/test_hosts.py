"""Options and commands about warm hosts that need no host."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateflow.cli.entry import _of_hosts
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
