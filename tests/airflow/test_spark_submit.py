"""What a driver is started with by way of spark-submit."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from stateflow.airflow import SparkSubmit
from stateflow.config.options import cache_folder, drivers_folder
from stateflow.driver.processes import DriverFolder, DriverProcess
from stateflow.driver.run_spec import RunSpec
from stateflow.spark.session import class_data
from stateflow.spark.session.java import require_java


class Started(dict[str, Any]):
    """Of the one driver: its command, and what it was told."""

    def settings(self) -> dict[str, str]:
        argv = self["argv"]
        pairs = (word.partition("=") for flag, word in itertools.pairwise(argv) if flag == "--conf")
        return {name: value for name, _, value in pairs}


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Started:
    found = Started()

    def start(
        self: DriverFolder, argv: Sequence[str], environment: Mapping[str, str], cwd: Path, **options: Any
    ) -> DriverProcess:
        found.update(argv=list(argv), environment=dict(environment), **options)
        return DriverProcess(tmp_path)

    monkeypatch.setattr(DriverFolder, "start", start)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    return found


def spec(**conf: str) -> RunSpec:
    return RunSpec("orders.py:orders", "orders", "dag/1", "run", conf=conf, above=3)


def test_a_driver_starts_from_the_archive_of_sparks_classes_and_takes_its_temporary_files_along(
    started: Started,
) -> None:
    SparkSubmit().bound("spark_default").launch(spec())
    cache = cache_folder()
    options = class_data.options(cache, require_java(cache))
    assert options in started.settings()["spark.driver.extraJavaOptions"]
    assert (started["above"], started["temporary"]) == (3, "SPARK_LOCAL_DIRS")


@pytest.mark.parametrize(
    ("submit", "conf"),
    [({}, {"spark.local.dir": "/big"}), ({"properties_file": "/etc/spark/our.conf"}, {})],
    ids=["setting", "file"],
)
def test_where_somebody_has_chosen_temporary_files_stay(
    started: Started, submit: dict[str, Any], conf: dict[str, str]
) -> None:
    SparkSubmit(**submit).bound("spark_default").launch(spec(**conf))
    assert started["temporary"] == ""


@pytest.mark.parametrize("by", ["operator", "connection"])
def test_a_driver_on_another_host_gets_no_archive_of_this_one(
    started: Started, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    extra = {"deploy-mode": "cluster"} if by == "connection" else {}
    connection = {"conn_type": "spark", "host": "yarn", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    submit = {"deploy_mode": "cluster"} if by == "operator" else {}
    SparkSubmit(**submit).bound("spark_default").launch(spec())
    assert started["argv"][started["argv"].index("--deploy-mode") + 1] == "cluster"
    assert "spark.driver.extraJavaOptions" not in started.settings()


def test_the_command_is_logged_once(started: Started, capsys: pytest.CaptureFixture[str]) -> None:
    SparkSubmit().bound("spark_default").launch(spec())
    told = capsys.readouterr()
    assert (told.out + told.err).count("Spark-Submit cmd") == 1


def test_drivers_of_a_checkout_keep_their_files_outside_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("STATEFLOW_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert drivers_folder() == tmp_path / ".cache" / "stateflow" / "drivers"
    monkeypatch.setenv("STATEFLOW_CACHE_DIR", "/fast/cache")
    assert drivers_folder() == Path("/fast/cache/drivers")
