"""What a driver takes over from its task, and what it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stateflow.airflow.launchers.environment import NO_DATABASE, inherited
from stateflow.airflow.launchers.spark_submit import submission_environment
from tests.airflow.test_decorated import DAG_FILE


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("PATH", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("KRB5CCNAME", True),
        ("STATEFLOW_CACHE_DIR", True),
        ("AIRFLOW_HOME", True),
        ("AIRFLOW_CTX_DAG_RUN_ID", True),
        ("AIRFLOW_CONN_LAKE", True),
        ("AIRFLOW_VAR_STATEFLOW", True),
        ("AIRFLOW__CORE__DAGS_FOLDER", True),
        ("AIRFLOW__API__BASE_URL", True),
        ("AIRFLOW__SECRETS__BACKEND", True),
        ("AIRFLOW__SECRETS__BACKEND_KWARGS", True),
        ("AIRFLOW__WORKERS__SECRETS_BACKEND_KWARGS", True),
        ("__AIRFLOW_SUPERVISOR_FD", False),
        ("_AIRFLOW_PROCESS_CONTEXT", False),
        ("_AIRFLOW__STARTUP_MSG", False),
        ("_AIRFLOW__AS_LIBRARY", False),
        ("AIRFLOW__CORE__SQL_ALCHEMY_CONN", False),
        ("AIRFLOW__CORE__SQL_ALCHEMY_CONN_CMD", False),
        ("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_SECRET", False),
        ("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC", False),
        ("AIRFLOW__CORE__FERNET_KEY", False),
        ("AIRFLOW__CORE__FERNET_KEY_CMD", False),
        ("AIRFLOW__API__SECRET_KEY", False),
        ("AIRFLOW__WEBSERVER__SECRET_KEY", False),
        ("AIRFLOW__WEBSERVER__SECRET_KEY_CMD", False),
        ("AIRFLOW__CORE__INTERNAL_API_SECRET_KEY", False),
        ("AIRFLOW__API_AUTH__JWT_SECRET", False),
        ("AIRFLOW__CELERY__BROKER_URL", False),
        ("AIRFLOW__CELERY__RESULT_BACKEND_CMD", False),
        ("AIRFLOW__CELERY__FLOWER_BASIC_AUTH", False),
        ("AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__SENTINEL_KWARGS", False),
    ],
)
def test_a_variable_is_taken_over_unless_it_is_airflow_s_own(name: str, kept: bool) -> None:
    assert inherited({name: "as it was"}) == {**NO_DATABASE, **({name: "as it was"} if kept else {})}


def test_what_is_not_taken_over_is_not_under_an_older_name_either() -> None:
    from airflow.configuration import conf

    older = {
        f"AIRFLOW__{section}__{key}".upper(): f"AIRFLOW__{old_section}__{old_key}".upper()
        for (section, key), (old_section, old_key, _) in conf.deprecated_options.items()
    }
    own = {new: old for new, old in older.items() if "hush" not in inherited({new: "hush"}).values()}
    assert {"AIRFLOW__API__SECRET_KEY", "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"} <= own.keys()
    assert inherited(dict.fromkeys(own.values(), "hush")) == NO_DATABASE


@pytest.mark.parametrize("task", [{}, {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "airflow-db-not-allowed:///"}])
def test_the_task_s_way_to_the_database_becomes_none(task: dict[str, str]) -> None:
    """Without the variable Airflow would take the address in its file."""
    assert inherited(task) == {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "sqlite://"}


LOAD = (
    "import sys; from pathlib import Path; from stateflow.pipelines.loading import load_pipeline\n"
    "print(load_pipeline(sys.argv[1], Path.cwd()).pipeline.name)"
)


@pytest.mark.slow
def test_a_dag_s_file_can_be_loaded_in_the_environment_that_airflow_s_supervisor_makes(
    tmp_path: Path,
) -> None:
    file = tmp_path / "accounts_dag.py"
    file.write_text(DAG_FILE)
    home = {"AIRFLOW_HOME": str(tmp_path / "airflow")}
    supervised = {**os.environ, **home, "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "airflow-db-not-allowed:///"}
    command = [sys.executable, "-c", LOAD, f"{file}:accounts"]
    done = subprocess.run(command, env=inherited(supervised), capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("accounts\n", 0), done.stderr
    assert not (tmp_path / "airflow" / "airflow.db").exists()


@pytest.mark.slow
def test_a_module_in_another_folder_of_the_bundle_is_found_where_the_environment_names_the_folder(
    tmp_path: Path,
) -> None:
    (tmp_path / "of_the_bundle.py").write_text("DAYS = 7\n")
    file = tmp_path / "team" / "accounts_dag.py"
    file.parent.mkdir()
    file.write_text(f"import of_the_bundle\n{DAG_FILE}")
    told = []
    for env in ({}, {"PYTHONPATH": str(tmp_path)}):
        surroundings = submission_environment({**os.environ, "AIRFLOW_HOME": str(tmp_path / "airflow")}, env)
        command = [sys.executable, "-c", LOAD, f"{file}:accounts"]
        done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)
        told.append(done.stdout or done.stderr)
    assert "ModuleNotFoundError: No module named 'of_the_bundle'" in told[0]
    assert told[1] == "accounts\n"
