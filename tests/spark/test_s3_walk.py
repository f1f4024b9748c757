"""A pipeline whose tables are on S3, from the command line: credentials of the environment, VACUUM, and back with `--rewind-sinks`."""

from __future__ import annotations

import json
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
def test_a_pipeline_on_s3_runs_is_vacuumed_and_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run and the restore start a Spark of their own, which has to find the client and the credentials; the others have the driver's."""
    (tmp_path / "orders.py").write_text(PIPELINE)
    (tmp_path / "in").mkdir()
    with s3_server() as server:
        table = server.new_root("orders").replace("s3://", "s3a://")
        conf = settings(server, **{"spark.sql.shuffle.partitions": "1", "spark.driver.memory": "1g"})
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", conf.pop("spark.hadoop.fs.s3a.access.key"))
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", conf.pop("spark.hadoop.fs.s3a.secret.key"))
        said = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        root = ["--checkpoint-dir", str(tmp_path / "root")]
        pipeline = str(tmp_path / "orders.py:orders")
        params = ["-p", f"input={tmp_path / 'in'}", "-p", f"output={table}"]

        def stateflow(*words: str) -> None:
            done = subprocess.run(
                [sys.executable, "-m", "stateflow", *words], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr

        def give(*numbers: int) -> None:
            for number in numbers:
                order = {"user": number % 2, "amount": 10.0**number}
                (tmp_path / "in" / f"{number}.json").write_text(json.dumps(order))

        give(0, 1)
        stateflow("run", pipeline, *params, *root, *said)
        with drivers(1, conf, tmp_path) as [driver]:

            def runs() -> None:
                answer = driver.do("stateflow", words=["run", pipeline, *params, *root])
                assert "1 batch and 1 row\n" in answer, answer

            assert driver.do("table", path=table) == [[0, 1.0], [1, 10.0]]
            driver.do("stateflow", words=["tag", "orders", "before", *root])
            give(2)
            runs()
            assert driver.do("table", path=table) == [[0, 101.0], [1, 10.0]]
            assert driver.do("table", path=f"{table}-copy") == [[0, 1.0], [0, 100.0], [1, 10.0]]
            back = ["restore", "orders", pipeline, "--from", "tag:before", "--rewind-sinks", "--yes"]
            stateflow(*back, *params, *root, *said)
            assert driver.do("table", path=table) == [[0, 1.0], [1, 10.0]]
            assert driver.do("table", path=f"{table}-copy") == [[0, 1.0], [1, 10.0]]
            runs()
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
