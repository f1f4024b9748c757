from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from stateflow.errors import UsageError
from stateflow.spark.session.build import build_session
from stateflow.spark.session.settings import require_image, says_where, submit_conf
from tests.refusals.refusal import refused


def test_a_delta_table_is_written_by_python_workers_and_read_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = str(tmp_path / "table")
    doubled = spark.range(10).mapInPandas(lambda frames: (frame * 2 for frame in frames), "id long")
    doubled.write.format("delta").save(table)
    read = spark.read.format("delta").load(table)
    assert sorted(row.id for row in read.collect()) == list(range(0, 20, 2))


def test_workers_run_the_interpreter_that_runs_the_driver(spark: SparkSession) -> None:
    def interpreter(_: object) -> list[str]:
        return [sys.executable]

    assert spark.sparkContext.parallelize([1], 1).mapPartitions(interpreter).collect() == [sys.executable]


def test_timestamps_are_utc_and_the_ui_is_off(spark: SparkSession) -> None:
    shown = spark.sql("select cast(timestamp_seconds(0) as string) as t").collect()[0].t
    assert shown == "1970-01-01 00:00:00"
    assert spark.sparkContext.uiWebUrl is None


def test_delta_commits_with_few_snapshot_partitions_and_no_extra_shuffle(spark: SparkSession) -> None:
    assert spark.conf.get("spark.databricks.delta.snapshotPartitions") == "2"
    assert spark.conf.get("spark.databricks.delta.optimizeWrite.enabled") == "false"


def test_a_running_session_is_kept_and_takes_runtime_settings_only(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    conf = {
        "spark.sql.shuffle.partitions": "3",
        "spark.driver.memory": "9g",
        "spark.locality.wait": "3000ms",
    }
    again = build_session("another", master="local[7]", conf=conf)
    try:
        assert again.sparkContext is spark.sparkContext
        assert again.sparkContext.master == "local[2]"
        assert again.conf.get("spark.sql.shuffle.partitions") == "3"
        [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert "spark.driver.memory=9g was not applied" in warning
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")


@pytest.mark.system
def test_under_spark_submit_its_master_jars_and_settings_are_kept_and_executors_find_modules_on_its_path_first(
    tmp_path: Path,
) -> None:
    for folder, module in (("pipeline", "packaged"), ("pipeline", "both"), ("driver", "both")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / f"{module}.py").touch()
    (tmp_path / "driver" / "beside.py").touch()
    script = tmp_path / "main.py"
    script.write_text(
        "import json, sys\n"
        "from stateflow.spark.session.build import build_session\n"
        "conf = {'spark.executorEnv.PYTHONPATH': sys.argv[1]}\n"
        "spark = build_session('mine', master='local[7]', conf=conf)\n"
        "spark.range(3).write.format('delta').save('table')\n"
        "rows = spark.read.format('delta').load('table').count()\n"
        "def places(_):\n"
        "    import beside, both, packaged\n"
        "    return [module.__file__ for module in (packaged, both, beside)]\n"
        "print(json.dumps({\n"
        "    'master': spark.sparkContext.master,\n"
        "    'rows': rows,\n"
        "    'ours': spark.conf.get('spark.sql.session.timeZone'),\n"
        "    'its own': spark.conf.get('spark.sql.execution.arrow.maxRecordsPerBatch'),\n"
        "    'modules': spark.sparkContext.parallelize([1], 1).mapPartitions(places).collect(),\n"
        "}))\n",
        encoding="utf-8",
    )
    conf = {
        **submit_conf(),
        "spark.executorEnv.PYTHONPATH": "pipeline",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "77",
        "spark.ui.enabled": "false",
    }
    done = submitted(script, tmp_path / "driver", conf=conf)
    assert json.loads(done.splitlines()[-1]) == {
        "master": "local[1]",
        "rows": 3,
        "ours": "UTC",
        "its own": "77",
        "modules": [
            str(tmp_path / name) for name in ("pipeline/packaged.py", "pipeline/both.py", "driver/beside.py")
        ],
    }


def submitted(script: Path, argument: Path, *, conf: Mapping[str, str]) -> str:
    """What it printed."""
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    flags = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [str(submit), "--master", "local[1]", *flags, str(script), str(argument)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(root)},
        cwd=script.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_a_cast_never_makes_another_value(spark: SparkSession) -> None:
    with refused(
        UsageError, "spark.sql.ansi.enabled=False", "--conf spark.sql.ansi.enabled=true", "try_cast"
    ):
        build_session("other", conf={"spark.sql.ansi.enabled": "False"})
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        assert build_session("other").conf.get("spark.sql.ansi.enabled") == "true"
    finally:
        spark.conf.set("spark.sql.ansi.enabled", "true")


def test_who_has_chosen_a_place_for_sparks_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert not says_where({})
    assert says_where({"spark.local.dir": "/big"})
    (tmp_path / "spark-defaults.conf").write_text("spark.local.dir /big\n")
    assert says_where({})
    (tmp_path / "spark-defaults.conf").write_text("spark.executor.memory 1g\n")
    assert not says_where({})
    (tmp_path / "spark-defaults.conf").write_bytes(
        "# \u00dcbung\nspark.executor.memory 1g\n".encode("latin-1")
    )
    assert not says_where({})
    home = tmp_path / "home"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "spark-defaults.conf").write_text("spark.local.dir /big\n")
    monkeypatch.delenv("SPARK_CONF_DIR")
    monkeypatch.delenv("SPARK_HOME", raising=False)
    with monkeypatch.context() as installed:
        installed.setattr(pyspark, "__file__", str(home / "__init__.py"))
        assert says_where({})
    assert not says_where({})
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/big")
    assert says_where({})


@pytest.mark.parametrize(
    ("variable", "value", "conf"),
    [
        ("SPARK_REMOTE", "sc://localhost", {}),
        ("SPARK_CONNECT_MODE_ENABLED", "1", {}),
        ("UNUSED", "", {"spark.remote": "sc://localhost"}),
        ("UNUSED", "", {"spark.api.mode": "connect"}),
    ],
)
def test_spark_connect_is_refused_before_a_session_starts(
    variable: str, value: str, conf: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with refused(UsageError, "the driver's JVM", "Spark Connect"):
        build_session("any", conf=conf)


@pytest.mark.parametrize(
    ("master", "conf"),
    [
        (None, {}),
        ("local[2]", {}),
        ("yarn", {}),
        ("k8s://there", {"spark.kubernetes.container.image": "orders:1"}),
        ("k8s://there", {"spark.kubernetes.executor.container.image": "orders:1"}),
    ],
)
def test_only_pods_need_an_image(master: str | None, conf: Mapping[str, str]) -> None:
    require_image(master, conf)


def test_pods_without_an_image_are_refused_unless_sparks_own_file_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    with refused(UsageError, "--conf", "spark.kubernetes.container.image=IMAGE"):
        require_image("k8s://there", {"spark.kubernetes.driver.container.image": "orders:1"})
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.kubernetes.container.image orders:1\n", encoding="utf-8"
    )
    require_image("k8s://there", {})
