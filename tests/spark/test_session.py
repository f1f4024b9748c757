from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from stateflow.spark.session import build_session
from stateflow.spark.settings import submit_conf


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
    conf = {"spark.sql.shuffle.partitions": "3", "spark.driver.memory": "9g"}
    again = build_session("another", master="local[7]", conf=conf)
    try:
        assert again.sparkContext is spark.sparkContext
        assert again.sparkContext.master == "local[2]"
        assert again.conf.get("spark.sql.shuffle.partitions") == "3"
        assert "spark.driver.memory=9g was not applied" in caplog.text
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")


def test_under_spark_submit_master_and_jars_are_the_submits_own(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(
        "import json, sys\n"
        "from stateflow.spark.session import build_session\n"
        "spark = build_session('mine', master='local[7]')\n"
        "spark.range(3).write.format('delta').save(sys.argv[1])\n"
        "rows = spark.read.format('delta').load(sys.argv[1]).count()\n"
        "zone = spark.conf.get('spark.sql.session.timeZone')\n"
        "print(json.dumps([spark.sparkContext.master, rows, zone]))\n",
        encoding="utf-8",
    )
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    settings = {**submit_conf(), "spark.ui.enabled": "false"}
    conf = [argument for name, value in settings.items() for argument in ("--conf", f"{name}={value}")]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [str(submit), "--master", "local[1]", *conf, str(script), str(tmp_path / "table")],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(root)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == ["local[1]", 3, "UTC"]
