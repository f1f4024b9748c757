"""The DAGs that come with the provider get into a team's own folder, and what a team has changed stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateflow.airflow.copying import copy_dags, main
from stateflow.errors import UsageError
from tests.jobs.made import REPOSITORY
from tests.refusals.refusal import refused


def test_all_dags_are_copied_with_what_they_import(tmp_path: Path) -> None:
    names = {path.name for path in copy_dags(tmp_path)}
    assert {"stateflow_recovery.py", "stateflow_settings.py", "stateflow_steps.py"} <= names
    assert {path.name for path in tmp_path.iterdir()} == names
    assert (tmp_path / ".airflowignore").read_bytes() == (REPOSITORY / "dags" / ".airflowignore").read_bytes()
    assert copy_dags(tmp_path) == []


@pytest.mark.parametrize("own", ["ours/\n", "ours/", "ours/\nstateflow_steps.py\n"])
def test_a_team_s_own_airflowignore_gets_the_lines_that_it_lacks(tmp_path: Path, own: str) -> None:
    (tmp_path / ".airflowignore").write_text(own)
    assert tmp_path / ".airflowignore" in copy_dags(tmp_path)
    lines = (tmp_path / ".airflowignore").read_text().splitlines()
    assert lines[0] == "ours/"
    assert sorted(lines[1:]) == ["stateflow_approval.py", "stateflow_settings.py", "stateflow_steps.py"]
    assert copy_dags(tmp_path) == []


def test_a_dag_that_a_team_has_changed_is_left_alone_and_nothing_is_copied(tmp_path: Path) -> None:
    (tmp_path / "stateflow_recovery.py").write_text("# ours")
    with refused(UsageError, "stateflow_recovery.py differs", "nothing was copied"):
        copy_dags(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["stateflow_recovery.py"]


def test_the_command_says_what_it_copied_and_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 0
    assert str(tmp_path / "stateflow_recovery.py") in capsys.readouterr().out.splitlines()
    assert main([]) == UsageError.exit_code
    assert "give the folder" in capsys.readouterr().err
    assert main([str(tmp_path / "nowhere")])
    assert "nowhere is no folder" in capsys.readouterr().err
