"""What a driver under Airflow shows to others: a real one is looked at from outside, while it runs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from demo.table import Orders
from stateflow.airflow import SparkSubmit
from stateflow.driver.processes import DriverProcess
from stateflow.driver.run_spec import RunSpec
from tests.lent_cache import lend
from tests.spark.listening import command_line, family, listening, rpc_answer

pytestmark = pytest.mark.timeout(600)  # a driver, on a machine that may be busy

PIPELINE = """
import json, time
from pathlib import Path

import stateflow as sf


@sf.pipeline("seen")
def seen(flow, input: str, told: str, api_password: str):
    def look(frame, checkpoint):
        context = frame.sparkSession.sparkContext
        conf = dict(context.getConf().getAll())
        secret = context._jsc.hadoopConfiguration().get("fs.s3a.secret.key")
        body = {"conf": conf, "password": api_password, "hadoop": secret}
        (Path(told) / "part").write_text(json.dumps(body))
        (Path(told) / "part").rename(Path(told) / "told")
        while not (Path(told) / "go").exists():
            time.sleep(0.1)

    flow.source("orders", sf.delta(input)).for_each_batch("look", look)
"""


@dataclass
class Seen:
    """A driver as others see it, and what it says of itself."""

    driver: DriverProcess
    told: dict[str, Any]
    pids: list[int]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    folder = tmp_path_factory.mktemp("seen")
    orders = Orders(folder / "orders")
    orders.add(1, 5)
    (folder / "seen.py").write_text(PIPELINE)
    spec = RunSpec(
        f"{folder / 'seen.py'}:seen",
        "seen",
        "dag/1",
        "run",
        parameters={"input": str(folder / "orders"), "told": str(folder), "api_password": "hush-parameter"},
        options={"storage_options": '{"secret": "hush-option"}', "progress": "false"},
        conf={"spark.hadoop.fs.s3a.secret.key": "hush-setting"},
        trigger="drain",
        environment={"STATEFLOW_CHECKPOINT_DIR": str(folder / "root"), "STATEFLOW_CACHE_DIR": str(lend(folder / "cache"))},
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
        driver = SparkSubmit(driver_memory="700m").bound("spark_default").launch(spec)
    try:
        end = time.monotonic() + 240
        while not (folder / "told").exists():
            assert driver.look().running, driver.last_words()
            assert time.monotonic() < end, driver.last_words()
            time.sleep(0.2)
        leader = json.loads((driver.folder / "driver").read_text())["pid"]
        yield Seen(driver, json.loads((folder / "told").read_text()), family(leader))
    finally:
        (folder / "go").touch()
        driver.stop(30)
        while driver.look().running:
            time.sleep(0.2)


@pytest.mark.slow
def test_no_command_line_shows_a_secret_and_all_of_them_arrive(seen: Seen) -> None:
    assert seen.told["password"] == "hush-parameter"
    assert seen.told["hadoop"] == "hush-setting"
    lines = [command_line(pid) for pid in seen.pids]
    assert any("org.apache.spark.deploy.SparkSubmit" in line for line in lines)
    assert "hush" not in "".join(lines)
    assert "hush" not in (seen.driver.folder / "command.json").read_text()


def test_every_port_is_on_loopback_and_none_of_them_is_a_page_of_spark(seen: Seen) -> None:
    ports = [each for pid in seen.pids for each in listening(pid)]
    assert ports
    assert {address for address, _ in ports} <= {"127.0.0.1", "::1"}
    assert seen.told["conf"]["spark.ui.enabled"] == "false"
    assert seen.told["conf"]["spark.ui.killEnabled"] == "false"


def test_the_driver_talks_to_nobody_who_lacks_its_secret(seen: Seen) -> None:
    assert seen.told["conf"]["spark.authenticate"] == "true"
    assert "spark.authenticate.secret" not in seen.told["conf"]
    answer = rpc_answer(int(seen.told["conf"]["spark.driver.port"]))
    assert b"your client does not have SASL enabled" in answer, answer
    assert b"org.apache.spark.network" in answer
