"""What docker/compose.yaml tells Airflow's services, told to the real Airflow here, with sqlite instead of Postgres."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.composed import DOCKER, command, environment, services

pytestmark = pytest.mark.timeout(900)
REPOSITORY = DOCKER.parent

LOOK = """
import json, shlex, sys
from airflow.cli.cli_parser import get_parser
from airflow.configuration import conf
from airflow.utils.providers_configuration_loader import providers_configuration_loaded

parser = get_parser()
understood = {text: parser.parse_args(shlex.split(text)).func is not None for text in json.loads(sys.argv[1])}
from stateflow.airflow import StateflowHook
from stateflow.airflow.connections.spark import spark_master

hook = StateflowHook()
options = conf.getsection("core")
print(json.dumps({
    "understood": understood,
    "executor": conf.get("core", "executor"),
    "parallelism": conf.getint("core", "parallelism"),
    "health": conf.getboolean("scheduler", "enable_health_check"),
    "execution": conf.get("core", "execution_api_server_url"),
    "root": hook.root,
    "storage": hook.storage_options,
    "master": spark_master("spark_default"),
}))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compose")


@pytest.fixture(scope="module")
def told(home: Path) -> dict[str, str]:
    """The environment of the container that comes first; its paths lead into a folder of the test's own."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "STATEFLOW"))
    }
    return {
        **inherited,
        **environment("airflow-init"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "AIRFLOW__CORE__DAGS_FOLDER": str(REPOSITORY / "dags"),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "secrets" / "passwords.json"),
    }


def ran(arguments: list[str], told: dict[str, str], home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, env=told, cwd=home, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_first_service_makes_the_tables_and_the_passwords(told: dict[str, str], home: Path) -> None:
    file = DOCKER / "airflow" / Path(command("airflow-init")[1]).name
    done = ran([sys.executable, str(file)], told, home)
    assert done.returncode == 0, done.stderr[-3000:]
    passwords = home / "secrets" / "passwords.json"
    assert json.loads(passwords.read_text()) == {
        "admin": told["ADMIN_PASSWORD"],
        "viewer": told["VIEWER_PASSWORD"],
    }
    assert passwords.stat().st_mode & 0o077 == 0
    with sqlite3.connect(home / "airflow.db") as database:
        tables = {name for (name,) in database.execute("select name from sqlite_master where type = 'table'")}
    assert {"dag", "dag_run", "task_instance", "alembic_version"} <= tables


def test_a_password_that_is_missing_is_named_before_anything_is_done(
    told: dict[str, str], tmp_path: Path
) -> None:
    file = DOCKER / "airflow" / "init.py"
    less = {**told, "VIEWER_PASSWORD": "", "AIRFLOW_HOME": str(tmp_path)}
    done = ran([sys.executable, str(file)], less, tmp_path)
    assert done.returncode == 1
    assert done.stderr == "init: VIEWER_PASSWORD is not set: run make docker-env, then start again\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_airflow_reads_its_settings_commands_and_connections_as_they_are_meant(
    told: dict[str, str], home: Path
) -> None:
    commands = [" ".join(command(name)[1:]) for name in services() if command_of_airflow(name)]
    for service in services().values():
        test: list[str] = (service.get("healthcheck") or {}).get("test", [])
        if test and test[0] == "CMD-SHELL":
            commands.append(test[1].removeprefix("airflow ").replace("${HOSTNAME}", "here"))
    assert len(commands) == 6
    done = ran([sys.executable, "-c", LOOK, json.dumps(commands)], told, home)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    store = environment("store")
    assert all(found["understood"].values())
    assert (found["executor"], found["parallelism"], found["health"]) == ("LocalExecutor", 8, True)
    assert found["execution"] == "http://airflow-api-server:8080/execution/"
    assert found["root"] == "s3://lake/checkpoints"
    assert found["storage"]["access_key_id"] == store["ROOT_ACCESS_KEY"]
    assert found["storage"]["secret_access_key"] == store["ROOT_SECRET_KEY"]
    assert found["master"] == ["spark://spark-master:7077", {}]


def command_of_airflow(name: str) -> bool:
    return "command" in services()[name] and command(name)[0] == "airflow"
