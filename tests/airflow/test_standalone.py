"""A package is all that a cluster's machines need: two workers that have Spark and Java, and nothing of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from demo.table import Orders, compared, read
from stateflow.airflow import StateflowRunOperator
from tests.airflow.conftest import Connect
from tests.airflow.tasks import Try, ran
from tests.quick_java import QUICK_JAVA
from tests.spark.standalone import standalone

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]

PIPELINE = '''
"""Totals per user, and where each of them was computed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import stateflow as sf
from rounding import rounded


@dataclass
class Order:
    user: int
    amount: float
    ts: datetime


@dataclass
class Total:
    user: int
    orders: int
    total: float
    python: str
    library: str
    native: str
    sibling: str
    folder: str


class Balance(sf.KeyedProcess[int, Order, Total]):
    total = sf.ValueState(float, default=0.0)
    orders = sf.ValueState(int, default=0)

    def process(self, key: int, rows: Iterator[Order], ctx: sf.Context) -> Iterator[Total]:
        import rocksdict
        from there.greeting import GREETING

        for row in rows:
            self.total.value += row.amount
            self.orders.value += 1
        yield Total(
            key, self.orders.value, rounded(self.total.value), sys.executable, sf.__file__, rocksdict.__file__, GREETING,
            os.getcwd(),
        )


@sf.pipeline("orders")
def orders(flow: sf.Flow, *, input: str, output: str) -> None:
    events = flow.source("events", sf.delta(input, options={"maxFilesPerTrigger": "1"}), Order)
    totals = events.key_by("user", order_by="ts").process("balance", Balance)
    totals.append("totals", sf.delta(output))
'''


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The pipeline with a module beside it, and a package that only tasks import."""
    folder = tmp_path / "project"
    (folder / "there").mkdir(parents=True)
    (folder / "orders.py").write_text(PIPELINE)
    (folder / "rounding.py").write_text("def rounded(amount):\n    return round(amount, 2)\n")
    (folder / "there" / "__init__.py").touch()
    (folder / "there" / "greeting.py").write_text(
        "from pathlib import Path\n\nGREETING = str(Path(__file__).absolute())\n"
    )
    return folder


def stateflow(*arguments: object, folder: Path, **surroundings: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "stateflow.cli", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, **surroundings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done


def test_a_packaged_pipeline_runs_where_nothing_of_it_is_installed(
    project: Path, tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = stateflow("package", "orders.py:orders", "--to", "../dist", "-o", "json", folder=project)
    package = json.loads(packaged.stdout)
    again = stateflow("package", "orders.py", "--to", "../dist", folder=project)
    assert again.stdout.count("was there already") == 2

    # The driver's folder lacks what only tasks need: they have it from the package, or not at all.
    driver = tmp_path / "driver"
    driver.mkdir()
    for name in ("orders.py", "rounding.py"):
        (driver / name).write_text((project / name).read_text())
    orders, totals = Orders(tmp_path / "orders"), tmp_path / "totals"
    orders.add(2, 500)
    parameters = {"input": str(orders.folder), "output": str(totals)}
    options = {"shared_filesystem": "true", "parallelism": "2"}
    cluster = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "600m",
        "spark.executor.memory": "600m",
        "spark.executor.extraJavaOptions": QUICK_JAVA,
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    }
    with standalone(tmp_path) as master:
        # As it was printed: from a shell, and in a DAG.
        command = package["usage"]["run"]
        command[2], command[command.index("--master") + 1] = "orders.py:orders", master
        given = [word for key, value in parameters.items() for word in ("-p", f"{key}={value}")]
        given += [word for key, value in options.items() for word in ("--option", f"{key}={value}")]
        given += [word for key, value in cluster.items() for word in ("--conf", f"{key}={value}")]
        run = stateflow(
            *command[1:], *given, "--checkpoint-dir", tmp_path / "root", "-o", "json", folder=driver
        )
        summary = json.loads(run.stdout.splitlines()[-1])
        assert (summary["epoch"], summary["batches"], summary["processed_rows"]) == (1, 2, 1000)

        orders.add(1, 500)
        connect(tmp_path / "root", options=options)
        host, _, port = master.rpartition(":")
        connection = {"conn_type": "spark", "host": host, "port": int(port)}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
        task = eval(package["usage"]["operator"], {"StateflowRunOperator": dict})
        assert task["pipeline"] == f"{project / 'orders.py'}:orders"
        task |= {
            "pipeline": f"{driver / 'orders.py'}:orders",
            "parameters": parameters,
            "conf": {**task["conf"], **cluster},
        }
        result = ran(StateflowRunOperator, Try("orders", run_id=f"packaged__{os.getpid()}"), **task)
        assert (result["epoch"], result["batches"], result["rows"]) == (2, 1, 500)
    verdict = compared(orders.folder, totals)
    assert (verdict.orders, verdict.right) == (1500, True)
    rows = read(totals)
    for row in rows:
        unpacked = Path(row["folder"]) / "environment"
        assert Path(row["folder"]).parents[1] in (tmp_path / "worker-1", tmp_path / "worker-2")
        assert Path(row["python"]).is_relative_to(unpacked / "python")
        assert Path(row["library"]) == unpacked / "site-packages" / "stateflow" / "__init__.py"
        assert Path(row["sibling"]) == Path(row["folder"]) / "pipeline" / "there" / "greeting.py"
        assert Path(row["native"]).is_relative_to(unpacked / "site-packages" / "rocksdict")
    assert len({Path(row["folder"]).parents[1] for row in rows}) == 2, "one of the workers did nothing"
