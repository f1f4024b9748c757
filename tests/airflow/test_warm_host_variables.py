"""The variables of a task's run on a warm host, with a host of the test that only takes it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stateflow.airflow import SparkSubmit, WarmHost
from stateflow.driver.run_spec import RunSpec
from stateflow.hosts.client import OF_RUN
from tests.hosts.hosting import eventually
from tests.hosts.test_client import Side, taking


@pytest.mark.parametrize("only", [True, False])
def test_a_run_on_a_host_has_the_variables_of_its_task(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, only: bool
) -> None:
    """Also those that spark-submit, which would start otherwise, has with other values."""
    cache = tmp_path_factory.mktemp("w")
    (cache / "hosts").mkdir()
    monkeypatch.setenv("STATEFLOW_CACHE_DIR", str(cache))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    monkeypatch.setenv("PATH", f"/of/the/task{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    monkeypatch.setenv("JAVA_HOME", "/of/the/task/java")
    monkeypatch.setenv("STATEFLOW_HOST_ONLY", "true")
    monkeypatch.setattr("stateflow.spark.session.java.require_java", lambda cache: Path("/of/the/library"))
    taken: dict[str, str] = {}
    Side(cache / "hosts", taking(taken))
    launcher = WarmHost(
        "team",
        only=only,
        env={"TOKEN": "of-the-run"},
        otherwise=SparkSubmit(env={"TOKEN": "of-the-submission"}),
    )
    spec = RunSpec("orders.py", "orders", "dag/1", "run", {}, environment={"STATEFLOW_ROWS": "1"})
    driver = launcher.bound("spark_default").launch(spec)
    eventually(lambda: not driver.look().running, "the host has taken it")
    assert driver.look().exit_code == 0
    assert taken["PATH"] == os.environ["PATH"]
    assert taken["JAVA_HOME"] == "/of/the/task/java"
    assert taken["TOKEN"] == "of-the-run"
    assert taken["STATEFLOW_HOST_ONLY"] == "true"
    assert taken["STATEFLOW_ROWS"] == "1"
    assert "SPARK_LOCAL_DIRS" not in taken
    assert not [name for name in taken if name.startswith(OF_RUN)]
    command = (Path(driver.name) / "command.json").read_text(encoding="utf-8")
    assert "of-the-run" not in command, "no command line shows a value"
    assert "of-the-submission" not in command
    otherwise = json.loads(json.loads(command)["argv"][3])["added"]
    assert ("STATEFLOW_HOST_ONLY" in otherwise) is not only, "who may start otherwise may have its own Spark"
