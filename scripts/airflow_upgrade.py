"""Airflow upgraded in place under jobs that run, played once: `python -m scripts.airflow_upgrade`.

It begins in an environment of its own with the earlier version: a scheduled job, a savepoint of it, and a deferred run whose driver is in
the middle of a batch. Airflow's processes end, the driver goes on, the later version is installed over the earlier one, and the same
database, DAGs and folder are started again: runs go on, each order counts once, and links, results and logs of before still open.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.bootstrap import ROOT, uv_environment
from scripts.other_airflow import environment, requirements

if TYPE_CHECKING:
    from demo.airflow_client import AirflowClient, RunOf
    from demo.airflow_server import AirflowServer

BEFORE, AFTER = "3.3.1", "3.3.2"


def main() -> int:
    python = environment(BEFORE, (), "upgrade")
    folder = Path(tempfile.mkdtemp(prefix="stateflow-airflow-upgrade-"))
    paths = os.pathsep.join([str(ROOT), str(ROOT / "plugins")])
    variables = {
        **os.environ,
        "PYTHONPATH": paths,
        # What a server of its own makes up: an upgrade keeps it.
        "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(os.urandom(32)).decode(),
    }

    def played(act: str) -> int:
        command = [str(python), "-m", "scripts.airflow_upgrade", act, str(folder)]
        return subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode

    if code := played("before"):
        return code
    upgrade(python, folder)
    code = played("after")
    if not code:
        shutil.rmtree(folder, ignore_errors=True)
    return code


def upgrade(python: Path, folder: Path) -> None:
    """Installs the later version into the environment, which is made anew the next time."""
    (python.parents[1] / "wanted.in").unlink()
    wanted = folder / "wanted.in"
    wanted.write_text(requirements((ROOT / "requirements.in").read_text(encoding="utf-8"), AFTER))
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python, "-r", wanted]
    subprocess.run(command, env=uv_environment(), check=True)
    print(f"Airflow {AFTER} is installed over {BEFORE}", flush=True)


def server_of(folder: Path, *, goes_on: bool) -> AirflowServer:
    from tests.airflow.server import server_in

    key = {"AIRFLOW__CORE__FERNET_KEY": os.environ["AIRFLOW__CORE__FERNET_KEY"]}
    return server_in(folder, settings={"schedule": "* * * * *"}, environment=key, goes_on=goes_on)


def before(folder: Path) -> None:
    from demo.table import Orders, compared
    from stateflow.jobs.job import Job
    from tests.airflow.stage import ROWS, Stage, driver_of, until

    (folder / "checkpoints").mkdir()
    orders, stage = Orders(folder / "orders"), Stage(folder, "patient")
    job = Job(str(folder / "checkpoints"), "orders")
    server = server_of(folder, goes_on=False)
    try:
        server.start()
        client = client_of(server, BEFORE)
        client.await_dags("patient", "stateflow_orders", "stateflow_savepoint")
        orders.add(2, ROWS)
        client.unpause("stateflow_orders")
        until(job_has(job, 2), "the scheduled runs to read both files")
        scheduled = run_with_rows(client, job)
        saved = client.trigger("stateflow_savepoint", {"job": "orders", "note": "before the upgrade"})
        ended_well(client, saved)

        stage.orders.add(2, ROWS)
        stage.shut()
        deferred = client.trigger("patient")
        client.await_task(deferred, "run", states=["deferred"])
        stage.await_inside()
        assert compared(orders.folder, folder / "totals").right
        pages = {
            "scheduled": page_of(client, scheduled, "run"),
            "saved": page_of(client, saved, "savepoint"),
        }
        notes = {
            "runs": {
                name: [run.dag_id, run.run_id]
                for name, run in (("scheduled", scheduled), ("saved", saved), ("deferred", deferred))
            },
            "pages": pages,
            "driver": driver_of(stage.job).pid,
            "epoch": job.log().newest_epoch,
        }
        (folder / "notes.json").write_text(json.dumps(notes))
        server.halt()
    except BaseException:
        server.stop()
        raise
    print(
        f"Airflow {BEFORE} has ended; driver {notes['driver']} is in its batch; {orders_read(job)} orders are in {job.name}",
        flush=True,
    )


def after(folder: Path) -> None:
    from demo.airflow_client import RunOf
    from demo.table import Orders, compared
    from stateflow.jobs.job import Job
    from stateflow.savepoints.format import verify_savepoint
    from stateflow.storage.roots import open_store
    from tests.airflow.stage import ROWS, Stage, driver_of, gone, until

    notes = json.loads((folder / "notes.json").read_text())
    runs = {name: RunOf(*each) for name, each in notes["runs"].items()}
    orders, job = Orders(folder / "orders"), Job(str(folder / "checkpoints"), "orders")
    with server_of(folder, goes_on=True) as server:
        client = client_of(server, AFTER)
        stage = Stage(folder, "patient", again=True)
        driver = driver_of(stage.job)
        assert driver.pid == notes["driver"], "the driver of before"
        assert not gone(driver)
        assert client.task(runs["deferred"], "run")["state"] == "deferred"
        for name, task_id in (("scheduled", "run"), ("saved", "savepoint")):
            assert page_of(client, runs[name], task_id) == notes["pages"][name], name
        print("links, results and logs of before are as they were", flush=True)
        stage.open()
        ended_well(client, runs["deferred"])
        assert client.tries(runs["deferred"], "run") == ["success"]
        assert stage.job.log().newest_epoch == 1, "one driver did it all"
        assert stage.verdict().right
        print("the deferred run of before has ended well, with its one driver", flush=True)
        orders.add(2, ROWS)
        until(job_has(job, 4), "the schedule to go on")
        assert job.log().newest_epoch > notes["epoch"]
        verdict = compared(orders.folder, folder / "totals")
        assert (verdict.orders, verdict.right) == (4 * ROWS, True)
        old = notes["pages"]["saved"]["result"]["savepoint"]
        assert verify_savepoint(open_store(old), deep=True) == []
        ended_well(client, client.trigger("stateflow_savepoint", {"job": "orders", "note": "after"}))
        print(f"the scheduled job goes on: {verdict.orders} orders, each counts once", flush=True)


def client_of(server: AirflowServer, version: str) -> AirflowClient:
    client = server.client()
    client.patience = 400
    found = client.call("GET", "/api/v2/version")["version"]
    assert found == version, f"Airflow {found} runs instead of {version}"
    print(f"Airflow {version} runs", flush=True)
    return client


def page_of(client: AirflowClient, run: RunOf, task_id: str) -> dict[str, Any]:
    """What people see of a task that has ended: its result, its links, its log."""
    from stateflow.airflow.operators.links import XCOM_KEY

    log = client.log(run, task_id)
    assert log, "its log is there"
    return {
        "result": client.xcom(run, task_id),
        "subject": client.xcom(run, task_id, XCOM_KEY),
        "links": {name: address for name, address in client.links(run, task_id).items() if address},
        "log": log,
    }


def ended_well(client: AirflowClient, run: RunOf) -> None:
    assert client.await_run(run) == "success", client.described(run)


def job_has(job: Any, files: int) -> Callable[[], bool]:
    from tests.airflow.stage import ROWS

    return lambda: orders_read(job) == files * ROWS


def orders_read(job: Any) -> int:
    lines = job.history() if job.exists else ()
    return sum(line.processed_rows for line in lines if line.kind == "checkpoint")


def run_with_rows(client: AirflowClient, job: Any) -> RunOf:
    """The scheduled run that wrote the newest checkpoint, once it has ended."""
    from demo.airflow_client import RunOf

    dag_id, _, run_id = job.checkpoints()[-1].owner.dag_run.partition("/")
    run = RunOf(dag_id, run_id)
    ended_well(client, run)
    return run


if __name__ == "__main__":
    acts = {"before": before, "after": after}
    if len(sys.argv) == 3:
        acts[sys.argv[1]](Path(sys.argv[2]))
    else:
        sys.exit(main())
