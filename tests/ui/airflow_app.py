"""Airflow's real API app with the plugin in it, two real users and a DAG to trigger: no process, a database that is thrown away.

Import the fixtures that a test file needs; nothing of Airflow is imported before its home is a temporary folder.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fastapi.testclient import TestClient

if "AIRFLOW_HOME" not in os.environ:
    # Before anything imports Airflow, which reads it then, and would make a folder in the user's home.
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="stateflow-airflow-")
    os.environ.setdefault("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
    atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
PASSWORDS = {"admin": "admin-secret", "viewer": "viewer-secret"}
SECRET = "a-storage-secret-nobody-may-see"
DAG = """
from airflow.sdk import DAG, Param, task

with DAG("stateflow_savepoint", schedule=None, params={
    "job": Param("", type="string"),
    "kind": Param("native", enum=["native", "canonical"]),
    "note": Param("", type=["string", "null"]),
}):

    @task
    def take():
        pass

    take()

with DAG("stateflow_stop", schedule=None):
    take()
"""


@dataclass(frozen=True)
class AirflowApp:
    """The app as three people see it: each client carries its own token, or none."""

    anonymous: TestClient
    admin: TestClient
    viewer: TestClient
    root: Path
    """Of connection stateflow_default."""
    plugin: Any
    """The plugin's own FastAPI app."""


def press(person: Any, dag_id: str, form: Any, **headers: str) -> Any:
    """What a button does in the browser: it asks the plugin, and takes its answer to Airflow's public API.

    The last answer: the plugin's refusal, or what Airflow says.
    """
    headers = {"X-Stateflow-Action": "1", "Content-Type": "application/json", **headers}
    text = form if isinstance(form, str) else json.dumps(form)
    asked = person.post(f"/stateflow/api/actions/{dag_id}", content=text, headers=headers)
    if asked.status_code != 200:
        return asked
    wanted = asked.json()
    signed = {name: value for name, value in headers.items() if name == "Authorization"}
    return person.post(f"/{wanted['path']}", json=wanted["body"], headers=signed)


@pytest.fixture(scope="module")
def airflow_app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowApp]:
    folder = tmp_path_factory.mktemp("airflow")
    root = folder / "checkpoints"
    root.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        _configure(patch, folder, root)
        _database(folder)
        from airflow import plugins_manager, settings

        patch.setattr(settings, "PLUGINS_FOLDER", str(PLUGINS))
        _forget_plugins(plugins_manager)
        from airflow.api_fastapi.app import create_app, purge_cached_app
        from fastapi.testclient import TestClient

        class Patient(TestClient):
            """Asks again when it is told to, as the pages do: on a busy machine a first look takes longer than a request."""

            def get(self, *address: Any, **more: Any) -> Any:
                end = time.monotonic() + 60
                while True:
                    answer = super().get(*address, **more)
                    if "ask again in a moment" not in answer.text or time.monotonic() > end:
                        return answer
                    time.sleep(0.2)

        purge_cached_app()
        app = create_app("core")  # the routes of tasks, which no page asks, take as long as all others
        plugin = next(route.app for route in app.routes if getattr(route, "path", "") == "/stateflow")  # type: ignore[attr-defined]
        with TestClient(app, raise_server_exceptions=False) as anonymous:
            people = {name: Patient(app, headers=_token(anonymous, name)) for name in PASSWORDS}
            yield AirflowApp(anonymous, people["admin"], people["viewer"], root, plugin)
        purge_cached_app()
        _forget_plugins(plugins_manager)


def _configure(patch: pytest.MonkeyPatch, folder: Path, root: Path) -> None:
    passwords = folder / "passwords.json"
    passwords.write_text(json.dumps(PASSWORDS))
    dags = folder / "dags"
    dags.mkdir()
    (dags / "savepoint.py").write_text(DAG)
    extra = {"checkpoint_dir": str(root), "storage_options": {"aws_secret_access_key": SECRET}}
    for name, value in {
        "_AIRFLOW_PROCESS_CONTEXT": "server",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,viewer:viewer",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__API_AUTH__JWT_SECRET": "only-for-tests-" * 5,
        "AIRFLOW_CONN_STATEFLOW_DEFAULT": json.dumps({"conn_type": "stateflow", "extra": extra}),
        "AIRFLOW_CONN_NOWHERE": json.dumps(
            {"conn_type": "stateflow", "extra": {**extra, "checkpoint_dir": str(folder / "nowhere")}}
        ),
    }.items():
        patch.setenv(name, value)


def _database(folder: Path) -> None:
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.utils.db import initdb

    initdb()
    DagBundlesManager().sync_bundles_to_db()
    bag = DagBag(folder / "dags", bundle_path=folder / "dags", bundle_name="dags-folder")
    assert not bag.import_errors, bag.import_errors
    sync_bag_to_db(bag, "dags-folder", None)
    pause("stateflow_savepoint", False)


def pause(dag_id: str, paused: bool) -> None:
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    with create_session(scoped=False) as session:
        dag = session.get(DagModel, dag_id)
        assert dag is not None
        dag.is_paused = paused


def _token(client: TestClient, name: str) -> dict[str, str]:
    answer = client.post("/auth/token", json={"username": name, "password": PASSWORDS[name]})
    assert answer.status_code == 201, answer.text
    return {"Authorization": f"Bearer {answer.json()['access_token']}"}


def _forget_plugins(plugins_manager: Any) -> None:
    for name in ("_get_plugins", "_get_ui_plugins", "get_fastapi_plugins"):
        getattr(plugins_manager, name).cache_clear()
