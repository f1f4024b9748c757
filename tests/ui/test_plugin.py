"""What Airflow is told of the plugin, and what that costs every process which is told."""

from __future__ import annotations

import importlib.metadata
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.ui import airflow_app

PROJECT = airflow_app.PLUGINS.parent


def test_pages_stand_under_browse_and_on_dags_and_their_runs_below_airflows_own_path() -> None:
    from stateflow_ui.plugin import views

    found = {view["destination"]: view for view in views("/airflow/")}
    assert set(found) == {"nav", "dag", "dag_run"}
    assert (found["nav"]["href"], found["nav"]["category"]) == ("/airflow/stateflow/", "browse")
    assert found["dag"]["href"] == "/airflow/stateflow/?dag_id={DAG_ID}"
    assert found["dag_run"]["href"] == "/airflow/stateflow/?dag_id={DAG_ID}&run_id={RUN_ID}"
    assert len({view["url_route"] for view in found.values()}) == 3, (
        "Airflow drops a second view of one route"
    )
    assert views("")[0]["href"] == "/stateflow/"
    icon = found["nav"]["icon"].rpartition("/stateflow/")[2]
    assert (airflow_app.PLUGINS / "stateflow_ui" / icon).is_file()


@pytest.mark.slow
def test_a_process_that_serves_no_pages_loads_none_of_them(tmp_path: Path) -> None:
    text = (
        "import sys\n"
        "from airflow.plugins_manager import AirflowPlugin\n"
        "before = set(sys.modules)\n"
        "from stateflow_ui.plugin import StateflowPlugin\n"
        "StateflowPlugin().external_views\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        check=True,
        env={
            "PATH": "",
            "PYTHONPATH": str(airflow_app.PLUGINS),
            "AIRFLOW_HOME": str(tmp_path),
            "HOME": str(tmp_path),
        },
    )
    assert done.stdout.splitlines()[-1] == "['stateflow_ui', 'stateflow_ui.plugin']"


@pytest.mark.parametrize("installed", [True, False])
def test_the_plugin_is_registered_once(monkeypatch: pytest.MonkeyPatch, installed: bool) -> None:
    """By its entry point where the package is installed, else by the file in the plugins folder."""

    def entry_points(**wanted: Any) -> list[object]:
        assert wanted == {"group": "airflow.plugins", "name": "stateflow"}
        return [object()] if installed else []

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    loaded = runpy.run_path(str(airflow_app.PLUGINS / "stateflow_plugin.py"))
    assert ("StateflowPlugin" in loaded) is not installed


def test_the_entry_point_names_what_there_is() -> None:
    project = tomllib.loads((PROJECT / "provider" / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["airflow.plugins"]["stateflow"].partition(":")
    assert hasattr(__import__(module, fromlist=[name]), name)


def test_airflow_does_not_take_the_packages_modules_for_plugins() -> None:
    from airflow._shared.module_loading import find_path_from_directory

    for syntax in ("glob", "regexp"):
        found = [
            Path(path).name
            for path in find_path_from_directory(str(airflow_app.PLUGINS), ".airflowignore", syntax)
        ]
        assert [name for name in found if name.endswith(".py")] == ["stateflow_plugin.py"], syntax
