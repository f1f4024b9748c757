"""What a driver is started with by way of spark-submit."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from stateflow.airflow import SparkSubmit
from stateflow.airflow.connections.spark import spark_master
from stateflow.airflow.launchers import spark_submit
from stateflow.config.options import cache_folder, drivers_folder
from stateflow.driver.processes import DriverFolder, DriverProcess
from stateflow.driver.run_spec import RunSpec
from stateflow.errors import UsageError
from stateflow.jobs.run_secrets import RunSecrets, handed_over
from stateflow.spark.session import class_data, compiling
from stateflow.spark.session.java import require_java
from tests.refusals.refusal import refused

YARN = {"conn_type": "spark", "host": "yarn"}


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


@pytest.mark.slow
def test_a_driver_starts_from_the_archive_of_sparks_classes_and_takes_its_temporary_files_along(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in class_data.JAVA_READS:  # the tests' own JVMs compile otherwise
        monkeypatch.delenv(name, raising=False)
    SparkSubmit().bound("spark_default").launch(spec())
    cache = cache_folder()
    options = class_data.options(cache, require_java(cache))
    java_options = started.settings()["spark.driver.extraJavaOptions"]
    assert options in java_options
    assert compiling.LATER in java_options
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


def test_what_is_called_like_a_secret_goes_by_the_environment_and_not_by_a_command_line(
    started: Started,
) -> None:
    secret = RunSpec(
        "orders.py:orders", "orders", "dag/1", "run",
        parameters={"input": "/data", "db_password": "hush"},
        options={"parallelism": "2", "storage_options": '{"aws_secret_access_key": "hush"}'},
        conf={"spark.hadoop.fs.s3a.secret.key": "hush", "spark.executor.memory": "2g"},
    )  # fmt: skip
    SparkSubmit().bound("spark_default").launch(secret)
    assert "hush" not in " ".join(started["argv"])
    assert "input=/data" in started["argv"]
    assert started.settings()["spark.executor.memory"] == "2g"
    assert handed_over(started["environment"]) == RunSecrets(
        {"db_password": "hush"}, {"spark.hadoop.fs.s3a.secret.key": "hush"}
    )
    assert started["environment"]["STATEFLOW_STORAGE_OPTIONS"] == '{"aws_secret_access_key": "hush"}'


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"parameters": {"db_password": "hush"}}, "db_password"),
        ({"conf": {"spark.x.secret": "hush"}}, "spark.x.secret"),
    ],
)
def test_a_secret_that_would_have_to_stand_on_the_command_line_of_a_cluster_is_refused(
    started: Started, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], named: str
) -> None:
    secret = RunSpec("orders.py:orders", "orders", "dag/1", "run", **more)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(YARN))
    with pytest.raises(UsageError) as error:
        SparkSubmit(deploy_mode="cluster").bound("spark_default").launch(secret)
    assert str(error.value).startswith(f"{named} cannot reach a driver in cluster mode")
    assert "hush" not in str(error.value)
    assert started == {}


def test_a_driver_takes_over_the_task_s_environment_without_what_is_airflow_s_own(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "airflow-db-not-allowed:///")
    monkeypatch.setenv("__AIRFLOW_SUPERVISOR_FD", "12")
    monkeypatch.setenv("AWS_PROFILE", "lake")
    SparkSubmit().bound("spark_default").launch(spec())
    told = started["environment"]
    assert told["AWS_PROFILE"] == "lake"
    assert told["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == "sqlite://"
    assert "__AIRFLOW_SUPERVISOR_FD" not in told


def test_a_user_s_variables_reach_the_driver_and_nobody_else(
    started: Started, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    masked: list[str] = []
    monkeypatch.setattr(spark_submit, "mask_secret", masked.append)
    monkeypatch.setenv("AWS_PROFILE", "of the worker")
    env = {"AWS_PROFILE": "lake", "API_TOKEN": "hush-hush", "RETRIES": 3, "PATH": "/opt/bin", "GONE": None}
    launcher = SparkSubmit(env=env)
    launcher.bound("spark_default").launch(spec())
    told = started["environment"]
    assert (told["AWS_PROFILE"], told["API_TOKEN"], told["RETRIES"]) == ("lake", "hush-hush", "3")
    assert told["PATH"] == f"{Path(sys.executable).parent}:/opt/bin", "spark-submit is this installation's"
    assert "GONE" not in told
    shown = capsys.readouterr()
    for text in (" ".join(started["argv"]), repr(launcher), shown.out + shown.err):
        assert "hush" not in text
        assert "lake" not in text
    assert "'API_TOKEN': '***'" in repr(launcher), "who looks at the task sees which there are"
    assert masked == ["hush-hush"], "the driver's output is in the task's log"


@pytest.mark.parametrize("variable", ["SPARK_LOCAL_DIRS", "JAVA_HOME", "PYSPARK_PYTHON"])
def test_a_user_s_variables_win_over_the_library_s(started: Started, variable: str) -> None:
    SparkSubmit(env={variable: "/chosen"}).bound("spark_default").launch(spec())
    assert started["environment"][variable] == "/chosen"
    assert started["temporary"] == ("" if variable == "SPARK_LOCAL_DIRS" else "SPARK_LOCAL_DIRS")


def test_variables_that_would_have_to_stand_on_the_command_line_of_a_cluster_are_refused(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(YARN))
    launcher = SparkSubmit(deploy_mode="cluster", env={"B": "hush", "A": "hush"})
    with refused(UsageError, "env (A, B)", "cluster mode") as error:
        launcher.bound("spark_default").launch(spec())
    assert "hush" not in str(error.value)
    assert started == {}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"env": "AWS_PROFILE=lake"}, "env takes a dict of names and values"),
        ({"env": {1: "hush"}}, "env takes a dict of names and values"),
        ({"env": {"A=B": "hush"}}, "'A=B' cannot be the name of an environment variable"),
        ({"env_vars": {"A": "hush"}}, "would stand on a command line: give env="),
    ],
)
def test_variables_that_are_none_are_refused_while_the_dag_is_parsed(
    arguments: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence) as error:
        SparkSubmit(**arguments)
    assert "hush" not in str(error.value)


@pytest.mark.parametrize(
    "connection",
    [
        {"host": "local[2]", "extra": {"deploy-mode": "cluster"}},
        {"host": "spark://master", "port": 7077},
    ],
)
def test_cluster_mode_is_refused_where_spark_takes_no_python_driver(
    started: Started, monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any]
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", **connection}))
    launcher = SparkSubmit(**({} if "extra" in connection else {"deploy_mode": "cluster"}))
    with refused(UsageError, "'spark_default'", connection["host"], "leave out deploy_mode", "yarn"):
        launcher.bound("spark_default").launch(spec())
    assert started == {}
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", **connection, "extra": {}})
    )
    SparkSubmit().bound("spark_default").launch(spec())
    assert started["argv"], "the way on that the refusal names is one"


@pytest.mark.parametrize("conn_type", ["http", "stateflow"])
def test_a_connection_of_another_type_is_not_taken_for_a_master(
    started: Started, monkeypatch: pytest.MonkeyPatch, conn_type: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_API", json.dumps({"conn_type": conn_type, "host": "api.example.com"}))
    for use in (lambda: SparkSubmit().bound("api").launch(spec()), lambda: spark_master("api")):
        with refused(UsageError, "'api'", conn_type, "type spark", "airflow connections add"):
            use()
    assert started == {}


@pytest.mark.parametrize("written", ["spark://master:7077", "k8s://https%3A%2F%2Fapi:443"])
def test_one_that_is_written_as_an_address_is(monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ADDRESS", written)
    master, _ = spark_master("address")
    assert master
    assert master.partition(":")[0] == written.partition(":")[0]


@pytest.mark.parametrize("size", ["4 GB", "None", "much", "4.5g", "-4g"])
@pytest.mark.parametrize("name", ["driver_memory", "executor_memory"])
def test_a_size_that_no_spark_takes_is_refused_as_written_and_as_rendered(
    started: Started, name: str, size: str
) -> None:
    with pytest.raises(ValueError, match=f"{name}='{size}' is no size .* such as '4g' or '512m'"):
        SparkSubmit(**{name: size})
    launcher = SparkSubmit(**{name: "{{ params.memory }}"})
    launcher.submit[name] = size  # as Airflow renders it
    with refused(UsageError, f"{name}='{size}'", "'4g'"):
        launcher.bound("spark_default")
    assert started == {}


@pytest.mark.parametrize("size", ["4gb", "2048"])
def test_a_size_for_a_driver_on_this_host_is_one_that_java_takes(started: Started, size: str) -> None:
    with refused(UsageError, f"driver_memory='{size}'", "Java", "'4g'"):
        SparkSubmit(driver_memory=size).bound("spark_default").launch(spec())
    assert started == {}
    SparkSubmit(driver_memory="4g", executor_memory=size).bound("spark_default").launch(spec())
    assert started["argv"]


def test_spark_s_pages_are_for_who_asks_for_them_and_the_ports_of_one_process_for_nobody(
    started: Started,
) -> None:
    SparkSubmit().bound("spark_default").launch(spec())
    own = started.settings()
    assert (own["spark.ui.enabled"], own["spark.ui.killEnabled"]) == ("false", "false")
    assert (own["spark.driver.bindAddress"], own["spark.authenticate"]) == ("127.0.0.1", "true")
    SparkSubmit().bound("spark_default").launch(
        spec(**{"spark.ui.enabled": "true", "spark.authenticate": "false"})
    )
    own = started.settings()
    assert (own["spark.ui.enabled"], own["spark.ui.killEnabled"]) == ("true", "false")
    assert own["spark.authenticate"] == "false"


def test_a_driver_of_a_cluster_keeps_the_cluster_s_way_of_authentication(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = {"conn_type": "spark", "host": "spark://master", "port": 7077}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    SparkSubmit().bound("spark_default").launch(spec())
    assert not {"spark.authenticate", "spark.driver.bindAddress"} & started.settings().keys()


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
