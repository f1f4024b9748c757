"""A pipeline whose tables are on S3, from the command line: credentials of the environment, VACUUM, and back with `--rewind-sinks`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import s3_server
from tests.spark.s3_drivers import drivers, settings

pytestmark = pytest.mark.system

PIPELINE = """
from dataclasses import dataclass

import stateflow as sf


@dataclass
class Order:
    user: int
    amount: float


@dataclass
class Total:
    user: int
    total: float


@sf.pipeline("orders")
def orders(flow: sf.Flow, input: str, output: str) -> None:
    orders = flow.source("orders", sf.files(input, "json"), Order)
    totals = orders.key_by("user").aggregate("totals", Total, total=sf.sum("amount"))
    totals.upsert("totals", sf.delta(output, options={"delta.checkpointInterval": "2"}), keys=["user"])
    orders.append("copy", sf.delta(output + "-copy"))
"""


@pytest.mark.timeout(600)
def test_a_pipeline_on_s3_runs_is_vacuumed_and_goes_back(tmp_path: Path) -> None:
    (tmp_path / "orders.py").write_text(PIPELINE)
    (tmp_path / "in").mkdir()
    with s3_server() as server:
        table = server.new_root("orders").replace("s3://", "s3a://")
        conf = settings(server, **{"spark.sql.shuffle.partitions": "1", "spark.driver.memory": "1g"})
        access = {"AWS_ACCESS_KEY_ID": conf.pop("spark.hadoop.fs.s3a.access.key"),
                  "AWS_SECRET_ACCESS_KEY": conf.pop("spark.hadoop.fs.s3a.secret.key")}  # fmt: skip
        said = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        root = ["--checkpoint-dir", str(tmp_path / "root")]
        params = ["-p", f"input={tmp_path / 'in'}", "-p", f"output={table}"]

        def stateflow(*words: str) -> str:
            done = subprocess.run(
                [sys.executable, "-m", "stateflow", *words], cwd=tmp_path, env={**os.environ, **access},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        def run(*numbers: int) -> None:
            for number in numbers:
                order = {"user": number % 2, "amount": 10.0**number}
                (tmp_path / "in" / f"{number}.json").write_text(json.dumps(order))
            stateflow("run", "orders.py:orders", *params, *root, *said)

        run(0, 1)
        stateflow("tag", "orders", "before", *root)
        with drivers(1, settings(server), tmp_path) as [driver]:
            assert driver.do("table", path=table) == [[0, 1.0], [1, 10.0]]
            run(2)
            assert driver.do("table", path=table) == [[0, 101.0], [1, 10.0]]
            assert driver.do("table", path=f"{table}-copy") == [[0, 1.0], [0, 100.0], [1, 10.0]]
            restore = [
                "restore",
                "orders",
                "orders.py:orders",
                "--from",
                "tag:before",
                "--rewind-sinks",
                "--yes",
            ]
            stateflow(*restore, *params, *root, *said)
            assert driver.do("table", path=table) == [[0, 1.0], [1, 10.0]]
            assert driver.do("table", path=f"{table}-copy") == [[0, 1.0], [1, 10.0]]
            stateflow("run", "orders.py:orders", *params, *root, *said)
            assert driver.do("table", path=table) == [[0, 101.0], [1, 10.0]]
            assert driver.do("table", path=f"{table}-copy") == [[0, 1.0], [0, 100.0], [1, 10.0]]
            # The file of the user whose total has changed is in older versions only.
            assert driver.do("vacuum", path=table) >= 1
            assert driver.do("table", path=table) == [[0, 101.0], [1, 10.0]]
        assert any(path.endswith("/orders/_delta_log/_last_checkpoint") for _, path in server.requests)
        record = server.options["access_key_id"].encode()
        secret = server.options["secret_access_key"].encode()
        for file in (tmp_path / "root").rglob("*"):
            assert not file.is_file() or (record not in file.read_bytes() and secret not in file.read_bytes())
