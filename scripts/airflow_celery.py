"""The run operator with Airflow's CeleryExecutor, played once: `python -m scripts.airflow_celery`.

A worker is killed with its task while a batch is inside; the retry finds the driver. The connection of the checkpoint root comes from a
secrets backend. It takes Debian's redis-server for the broker, Postgres for Airflow's database, and an environment of its own in the
cache folder.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scripts.bootstrap import ROOT
from scripts.other_airflow import environment

VERSION = "3.3.2"
MORE = ("apache-airflow-providers-celery", "celery<5.7", "redis", "psycopg2-binary", "asyncpg")
"""Celery 5.7.0 lacks what the provider 3.26.0 imports: Airflow then says that the executor could not be loaded."""


def main() -> int:
    for program, package in (("redis-server", "redis-server"), ("/usr/lib/postgresql", "postgresql")):
        if not (shutil.which(program) or Path(program).is_dir()):
            sys.exit(f"{program} is not installed (Debian: apt-get install {package})")
    python = environment(VERSION, MORE, "celery")
    command = [str(python), "-m", "scripts.airflow_celery", "play"]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "plugins")])
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, check=False).returncode


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    from demo.airflow_server import free_port

    port = free_port()
    redis = subprocess.Popen(
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)],
        stdout=subprocess.DEVNULL,
    )
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        redis.terminate()
        redis.wait(30)


def play() -> None:
    from tests.airflow.postgres import postgres
    from tests.airflow.server import airflow, connection
    from tests.airflow.stage import PATIENCE, ROWS, Stage, driver_of, gone, until

    folder = Path(tempfile.mkdtemp(prefix="stateflow-celery-"))
    stores = folder / "connections.json"
    with postgres() as database, broker(folder) as queue:
        of_airflow = {
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__CELERY__BROKER_URL": queue,
            "AIRFLOW__CELERY__RESULT_BACKEND": f"db+{database}",
            "AIRFLOW__CELERY__WORKER_CONCURRENCY": "2",
            "AIRFLOW__SECRETS__BACKEND": "airflow.secrets.local_filesystem.LocalFilesystemBackend",
            "AIRFLOW__SECRETS__BACKEND_KWARGS": json.dumps({"connections_file_path": str(stores)}),
            # A backend comes before the environment: this root is never asked.
            "AIRFLOW_CONN_STATEFLOW_DEFAULT": connection(folder / "wrong"),
        }
        stores.write_text(json.dumps({"stateflow_default": json.loads(connection(folder / "checkpoints"))}))
        with airflow(folder, environment=of_airflow, database=database) as server:
            client = server.client()
            client.await_dags("gated_runs", patience=PATIENCE)

            def worker() -> subprocess.Popen[bytes]:
                log = (folder / "worker.log").open("ab")
                return subprocess.Popen(
                    [sys.executable, "-m", "airflow", "celery", "worker", "--skip-serve-logs"],
                    env=server._variables, cwd=server.home, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip

            first = worker()
            stage = Stage(folder, "celery")
            stage.orders.add(2, ROWS)
            stage.shut()
            run = client.trigger("gated_runs", {"job": stage.name, "on_live": "refuse"})
            try:
                stage.await_inside()
            except BaseException:
                print((folder / "worker.log").read_text()[-3000:], flush=True)
                print(client.described(run), flush=True)
                raise
            driver = driver_of(stage.job)
            print(
                f"a batch is inside; driver {driver.pid}; Celery's worker {first.pid} is killed", flush=True
            )
            began = time.monotonic()
            os.killpg(first.pid, signal.SIGKILL)
            task = int(client.task(run, "run")["pid"] or 0)
            if task:
                with suppress(ProcessLookupError):
                    os.kill(task, signal.SIGKILL)
            assert not gone(driver), "the driver outlives its worker"
            second = worker()
            client.await_task(run, "run", states=["running"], attempt=2, patience=PATIENCE)
            print(f"try 2 runs {time.monotonic() - began:.0f} s after the kill", flush=True)
            until(lambda: "going on with it" in client.log(run, "run"), "the retry to find the driver")
            stage.open()
            assert client.await_run(run, patience=PATIENCE) == "success", client.described(run)
            assert int(stage.job.status().owner["pid"]) == driver.pid
            assert stage.job.log().newest_epoch == 1
            assert stage.verdict().right
            assert not (folder / "wrong").exists()
            print(
                f"tries: {client.tries(run, 'run')}; one driver did it all; each order counts once",
                flush=True,
            )
            os.killpg(second.pid, signal.SIGTERM)
            second.wait(60)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["play"]:
        play()
    else:
        sys.exit(main())
